// SPDX-License-Identifier: Apache-2.0
#include "recording.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "device.h"
#include "errors.h"
#include "profiler.h"
#include "storage.h"

namespace spyre {
namespace {

/// Null until the thread starts its first recording.
thread_local std::shared_ptr<std::atomic<Recording*>> active_slot;

}  // namespace

Recording* Recording::active() {
  return C10_UNLIKELY(active_slot != nullptr) ? active_slot->load(std::memory_order_relaxed) : nullptr;
}

void Recording::spoil_active(const char* reason) {
  if (auto* recording = active(); C10_UNLIKELY(recording != nullptr)) recording->spoil(reason);
}

Recording::~Recording() {
  auto* self = this;
  if (slot_) slot_->compare_exchange_strong(self, nullptr);
}

void Recording::start() {
  if (active()) raise("InvalidArgument", "this thread records launches already; stop that recording first");
  if (slot_ && slot_->load() == this) raise("InvalidArgument", "the recording is active on another thread");
  if (!launches_.empty()) raise("InvalidArgument", "the recording holds launches; make a new one");
  if (!active_slot) active_slot = std::make_shared<std::atomic<Recording*>>(nullptr);
  static std::atomic<uint64_t> started{0};
  id_ = ++started;
  slot_ = active_slot;
  slot_->store(this);
}

void Recording::stop() {
  if (active() != this) raise("InvalidArgument", "the recording is not active on this thread");
  slot_->store(nullptr);
  numbers_.clear();
  if (!unfinished_.empty()) spoil("a collective that was not waited for");
}

void Recording::spoil(const std::string& reason) {
  if (spoiled_.empty()) spoiled_ = reason;
}

card::Buffer Recording::pool(c10::DeviceIndex device, uint64_t bytes) {
  if (pools_.empty() || record_of(pools_.back()).bytes < bytes) {
    const std::vector<int64_t> size{static_cast<int64_t>(bytes)};
    pools_.push_back(allocate(device, bytes, nullptr, at::kByte, size, {1}));
  }
  return record_of(pools_.back()).buffer();
}

void Recording::hold(const at::Tensor& tensor) {
  if (held_.insert(tensor.storage().unsafeGetStorageImpl()).second) storages_.push_back(tensor.storage());
}

Recording::Origin Recording::origin_of(uint64_t address, uint64_t displacement) const {
  const auto it = numbers_.find(address - displacement);
  const bool inside = it != numbers_.end();
  return {inside, inside ? it->second : address - displacement, displacement};
}

void Recording::check_stream(c10::DeviceIndex device) {
  if (launches_.empty()) {
    device_ = device;
    stream_ = current_stream_id(device);
  }
  if (device != device_ || current_stream_id(device) != stream_) spoil("launches on several devices or streams");
}

void Recording::launched(c10::DeviceIndex device, const LaunchPlan& plan, std::span<const card::Buffer> buffers,
                         std::span<const uint64_t> displacements, std::span<const card::Scalar> scalars) {
  check_stream(device);
  Launch launch{plan.program, plan.name, {buffers.begin(), buffers.end()}, {scalars.begin(), scalars.end()}, {}, {}};
  for (size_t i = 0; i < buffers.size(); ++i) launch.origins.push_back(origin_of(buffers[i].address, displacements[i]));
  launches_.push_back(std::move(launch));
}

void Recording::did(c10::DeviceIndex device, std::string what, std::span<const uint64_t> addresses,
                    std::function<void()> again) {
  check_stream(device);
  Launch step{nullptr, std::move(what), {}, {}, {}, std::move(again)};
  for (const auto address : addresses) step.origins.push_back(origin_of(address, 0));
  launches_.push_back(std::move(step));
}

size_t Recording::size() const {
  return static_cast<size_t>(std::ranges::count_if(launches_, [](const Launch& launch) { return !launch.again; }));
}

bool Recording::Launch::operator==(const Launch& other) const {
  const auto same_bits = [](const card::Scalar& a, const card::Scalar& b) { return a.i == b.i; };
  const auto same_size = [](const card::Buffer& a, const card::Buffer& b) { return a.bytes == b.bytes; };
  if (program == nullptr && name != other.name) return false;
  return program == other.program && origins == other.origins &&
         std::ranges::equal(scalars, other.scalars, same_bits) && std::ranges::equal(buffers, other.buffers, same_size);
}

bool Recording::same_as(const Recording& other) const {
  return device_ == other.device_ && launches_ == other.launches_;
}

void Recording::replay() const {
  if (!spoiled_.empty()) raise("InvalidArgument", "the recording cannot be replayed: " + spoiled_);
  for (const auto& launch : launches_) {
    if (launch.again) {
      launch.again();
      continue;
    }
    const profiler::Call call(&launch.name);
    submit(device_, launch.program, launch.buffers, launch.scalars);
  }
}

}  // namespace spyre
