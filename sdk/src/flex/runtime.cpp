// SPDX-License-Identifier: Apache-2.0
#include "flex/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ostream>

namespace flex {
namespace internal {
namespace {

using spyre::card::Buffer;
using spyre::card::Card;
using spyre::card::Error;

constexpr uint64_t kStick = spyre::card::kStickBytes;

}  // namespace

void Allocation::wrote(uint64_t offset, std::span<const std::byte> content) {
  if (type != MemoryType::Program || content.empty()) return;
  std::lock_guard lock(mutex_);
  if (image_.empty()) image_.resize(bytes);
  std::memcpy(image_.data() + offset, content.data(), content.size());
  std::erase_if(jobs_, [&](const auto& entry) {
    return entry.second->begin < offset + content.size() && offset < entry.second->end;
  });
}

std::shared_ptr<const Job> Allocation::job(uint64_t offset, std::vector<uint64_t>& addresses) {
  if (type != MemoryType::Program)
    throw Error("InvalidProgram", "compute: the job lies in memory that was not allocated for programs");
  std::lock_guard lock(mutex_);
  if (image_.empty()) throw Error("InvalidProgram", "compute: nothing was written to the program memory");
  std::shared_ptr<const Job>& job = jobs_[offset];
  try {
    if (!job) job = read_job(image_, offset);
  } catch (...) {
    jobs_.erase(offset);
    throw;
  }
  addresses.resize(job->arguments);
  std::memcpy(addresses.data(), image_.data() + job->correction_offset, addresses.size() * 8);
  return job;
}

Runtime& Runtime::get() {
  static Runtime* runtime = new Runtime;
  return *runtime;
}

bool Runtime::forked() const { return card_.load(std::memory_order_acquire) && process_ != getpid(); }

RuntimeStatus Runtime::start(std::shared_ptr<RuntimeContext>* context, int device) {
  context->reset();
  if (forked())
    return {false,
            "DeviceLost: this process was forked from one that has started its card, which stays with that "
            "process; start the runtime in the child only, or spawn the child instead of forking it"};
  const std::vector<int> cards = visible_cards();
  if (device < 0 || device >= static_cast<int>(cards.size()))
    return {false, "InvalidArgument: device " + std::to_string(device) + ", and " + std::to_string(cards.size()) +
                       " are visible (AIU_WORLD_SIZE, SPYRE_DEVICES)"};
  std::lock_guard lock(start_mutex_);
  if (context_ && context_->deviceId() != device)
    return {false, "InvalidArgument: device " + std::to_string(device) + ", but this process has started device " +
                       std::to_string(context_->deviceId()) + "; a process uses one card"};
  if (!context_) {
    try {
      Card* card = Card::open(cards[static_cast<size_t>(device)]).release();
      observe_card(*card);
      process_ = getpid();
      card_.store(card, std::memory_order_release);
      context_ = std::make_shared<RuntimeContext>(device);
      publish_status(*card, device);
    } catch (const std::exception& error) {
      return {false, error.what()};
    }
  }
  *context = context_;
  return {true, "started device " + std::to_string(device)};
}

std::shared_ptr<RuntimeContext> Runtime::context() {
  std::lock_guard lock(start_mutex_);
  return context_;
}

Card& Runtime::card() {
  Card* card = card_.load(std::memory_order_acquire);
  if (!card) throw Error("DeviceLost", "the runtime has not been started; call initializeRuntime first");
  if (forked())
    throw Error("DeviceLost",
                "this process was forked from the one that has the card; use the card there, or spawn "
                "the child instead of forking it");
  return *card;
}

CompositeAddress Runtime::allocate(uint64_t bytes, MemoryType type) {
  if (bytes == 0) throw Error("InvalidArgument", "allocate: 0 bytes; an allocation has at least one");
  if (bytes > SEGMENT_SIZE)
    throw Error("OutOfMemory", "allocate: " + std::to_string(bytes) + " bytes; a segment has " +
                                   std::to_string(SEGMENT_SIZE) + ", and an allocation lies in one");
  bytes = (bytes + kStick - 1) / kStick * kStick;
  const uint64_t address = card().allocate(bytes);
  auto made = std::make_shared<Allocation>(address, bytes, type);
  {
    std::lock_guard lock(mutex_);
    allocations_[address] = made;
  }
  const Chunk chunk({address >> SEGMENT_SIZE_BITS, address & (SEGMENT_SIZE - 1)}, bytes, 0);
  return {chunk, std::shared_ptr<void>(made.get(), [address](void*) { Runtime::get().release(address); })};
}

void Runtime::release(uint64_t address) {
  if (forked()) return;  // the parent's memory; its locks may be held by threads that do not exist here
  uint64_t bytes = 0;
  {
    std::lock_guard lock(mutex_);
    const auto found = allocations_.find(address);
    bytes = found->second->bytes;
    allocations_.erase(found);
  }
  if (ActivitySink* listener = sink.load(std::memory_order_acquire))
    listener->memory(false, address, bytes, host_now_ns(), 0);
  card_.load(std::memory_order_acquire)->free(address);
}

std::shared_ptr<Allocation> Runtime::find(uint64_t address) {
  std::lock_guard lock(mutex_);
  auto found = allocations_.upper_bound(address);
  if (found == allocations_.begin() || (--found)->second->end() <= address)
    throw Error("InvalidArgument", "address " + std::to_string(address) + " lies in no allocation of this process");
  return found->second;
}

void Runtime::buffers(std::span<const uint64_t> addresses, std::vector<Buffer>& found) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < addresses.size(); ++i) {
    auto next = allocations_.upper_bound(addresses[i]);
    if (next == allocations_.begin() || (--next)->second->end() <= addresses[i])
      throw Error("InvalidArgument", "compute: argument " + std::to_string(i) + " is address " +
                                         std::to_string(addresses[i]) + ", which lies in no allocation");
    found.push_back({addresses[i], next->second->end() - addresses[i]});
  }
}

uint64_t dmva(const CompositeAddress& address) {
  if (address.chunks().size() != 1)
    throw Error("InvalidArgument", "an address of " + std::to_string(address.chunks().size()) +
                                       " chunks; this card's have one (one that was moved from has none)");
  const LogicalAddress& at = address.chunks().front().addr;
  return (at.region_id << SEGMENT_SIZE_BITS) + at.offset;
}

}  // namespace internal

CompositeAddress FlexAllocator::allocate(size_t bytes, const AllocationDirective& directive) {
  std::unique_lock lock(mutex_);
  const uint64_t start = internal::host_now_ns();
  internal::Runtime& runtime = internal::Runtime::get();
  auto tried = [&] {
    CompositeAddress made = runtime.allocate(bytes, directive.type);
    if (auto* listener = runtime.sink.load(std::memory_order_acquire))
      listener->memory(true, internal::dmva(made), made.total_size(), start, 0);
    return made;
  };
  try {
    return tried();
  } catch (const spyre::card::Error& error) {
    if (error.kind() != "OutOfMemory" || !callback_) throw;
  }
  callback_(lock);
  if (!lock.owns_lock()) lock.lock();
  return tried();
}

uint64_t FlexAllocator::compositeAddressToDmva(const CompositeAddress& address) const {
  return internal::dmva(address);
}

void FlexAllocator::registerMemoryPressureCallback(MemoryPressureCallback callback) {
  std::lock_guard lock(mutex_);
  callback_ = callback;
}

std::ostream& operator<<(std::ostream& out, const CompositeAddress& address) {
  out << "CompositeAddress[";
  for (size_t i = 0; i < address.chunks().size(); ++i) {
    const Chunk& chunk = address.chunks()[i];
    out << (i ? ", " : "") << chunk.addr.region_id << ":" << chunk.addr.offset << "+" << chunk.size;
  }
  return out << "]";
}

std::ostream& operator<<(std::ostream& out, const RuntimeStatus& status) { return out << status.text; }

RuntimeStatus initializeRuntime(std::shared_ptr<RuntimeContext>* context, int logical_device_id) {
  return internal::Runtime::get().start(context, logical_device_id);
}

std::shared_ptr<RuntimeContext> getFlexRuntimeContext() { return internal::Runtime::get().context(); }

RuntimeStream* RuntimeContext::getDefaultStream() { return &default_stream_; }

RuntimeStream* RuntimeContext::createStream(RuntimeStreamPriority priority) {
  constexpr int kEach = spyre::card::kFirstHighPriorityStream - 1;
  const bool high = priority == RuntimeStreamPriority::HIGH;
  std::lock_guard lock(mutex_);
  const int id = (high ? spyre::card::kFirstHighPriorityStream : 1) + created_[high]++ % kEach;
  return streams_.emplace_back(std::make_unique<RuntimeStream>(id, priority)).get();
}

std::shared_ptr<FlexAllocator> RuntimeContext::getAllocator() { return allocator_; }

bool RuntimeContext::hasStreamError() {
  std::lock_guard lock(mutex_);
  return default_stream_.needsShutdown() ||
         std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream->needsShutdown(); });
}

}  // namespace flex
