// SPDX-License-Identifier: Apache-2.0
// c10::DeviceAllocator over the card's own allocator. Nothing is cached here: the card allocates in well under a
// microsecond, and memory returns to it when the storage's reference count drops to zero. Queued work may still use it
// then; the card makes the next owner's work wait for that, whatever streams they are on.
#include <ATen/core/Tensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <mutex>

#include "device.h"
#include "errors.h"
#include "monitor.h"
#include "profiler.h"
#include "recording.h"
#include "storage.h"

namespace spyre {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;

constexpr uint64_t kTokenBase = 0x40CA000000000000;  // not canonical on any 48-bit or 57-bit machine
constexpr int kTokenDeviceShift = 40;

void* token_of(const StorageRecord& r) {
  return reinterpret_cast<void*>(kTokenBase | static_cast<uint64_t>(r.device) << kTokenDeviceShift | r.address);
}

constexpr auto kAggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

struct DeviceState {
  std::mutex mutex;
  DeviceStats stats;
  uint64_t reclaims_seen = 0;  // of the card, when the accumulated statistics were last reset

  void add(uint64_t bytes, uint64_t requested) {
    std::lock_guard lock(mutex);
    for (auto* s : {&stats.allocation, &stats.active, &stats.segment}) (*s)[kAggregate].increase(1);
    for (auto* s : {&stats.allocated_bytes, &stats.active_bytes, &stats.reserved_bytes})
      (*s)[kAggregate].increase(bytes);
    stats.requested_bytes[kAggregate].increase(requested);
    ++stats.num_device_alloc;
  }
  void remove(uint64_t bytes, uint64_t requested) {
    std::lock_guard lock(mutex);
    for (auto* s : {&stats.allocation, &stats.active, &stats.segment}) (*s)[kAggregate].decrease(1);
    for (auto* s : {&stats.allocated_bytes, &stats.active_bytes, &stats.reserved_bytes})
      (*s)[kAggregate].decrease(bytes);
    stats.requested_bytes[kAggregate].decrease(requested);
    ++stats.num_device_free;
  }
};

DeviceState& state_of(c10::DeviceIndex index) {
  static auto* states = new std::array<DeviceState, 64>;
  return (*states)[index];
}

uint64_t whole_sticks(uint64_t bytes) { return (bytes + kStickBytes - 1) / kStickBytes * kStickBytes; }

void report(const StorageRecord& r, int64_t change) {
  const auto& stats = state_of(r.device).stats;
  const auto total = stats.allocated_bytes[kAggregate].current;
  c10::reportMemoryUsageToProfiler(token_of(r), change, total, total, spyre_device(r.device));
  if (c10::memoryProfilingEnabled()) profiler::note_memory(r.device, static_cast<uint64_t>(total));
  notify_memory_hook(r.device, r.address, change);
}

std::atomic<uint64_t> frees{0};

void delete_record(void* context) {
  std::unique_ptr<StorageRecord> r(static_cast<StorageRecord*>(context));
  if (r->bytes == 0 || in_bad_fork()) return;
  card_of(r->device).free(r->address);
  frees.fetch_add(1, std::memory_order_relaxed);
  state_of(r->device).remove(r->bytes, r->bytes);
  report(*r, -static_cast<int64_t>(r->bytes));
}

[[noreturn]] void out_of_memory(c10::DeviceIndex device, uint64_t bytes, const card::Error& error) {
  auto& state = state_of(device);
  {
    std::lock_guard lock(state.mutex);
    ++state.stats.num_ooms;
  }
  const auto& card = card_of(device);
  const uint64_t total = card.total_bytes(), used = card.allocated_bytes();
  TORCH_CHECK_WITH(OutOfMemoryError, false, "spyre:", static_cast<int>(device), " out of memory: tried to allocate ",
                   bytes, " bytes; ", total - used, " of ", total, " bytes are free. ", error.what());
}

/// Card memory; what Python's dead cycles hold is not missing.
uint64_t take(c10::DeviceIndex device, uint64_t bytes) {
  for (bool again = true;; again = false) {
    try {
      return card_of(device).allocate(bytes);
    } catch (const card::Error& e) {
      if (e.kind() != "OutOfMemory") raise(e);
      if (!again || !free_dead_cycles()) out_of_memory(device, bytes, e);
    }
  }
}

struct SpyreAllocator final : c10::DeviceAllocator {
  /// Storage without a tensor: plain host bytes.
  c10::DataPtr allocate(size_t n) override {
    TORCH_CHECK_WITH(OutOfMemoryError, n <= INT64_MAX, "spyre: a storage of ", n, " bytes is more than a card has");
    return spyre::allocate(current_device(), n, nullptr, c10::ScalarType::Byte, {static_cast<int64_t>(n)}, {1});
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    raise("UnsupportedOp", "spyre storages cannot be copied by address; copy a tensor on them");
  }
  bool initialized() override { return true; }
  /// There is no cache; host pages behind freed memory go back to the host.
  void emptyCache(c10::MempoolId_t) override {
    for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
      if (is_open(i)) on_card([&] { card_of(i).trim(); });
    }
  }
  /// Launches and copies are known without this.
  void recordStream(const c10::DataPtr& ptr, c10::Stream stream) override {
    const auto& r = spyre::record_of(ptr);
    if (r.bytes == 0 || r.device != stream.device_index()) return;
    on_card([&] { card_of(r.device).record_use(r.address, static_cast<int>(stream.id())); });
  }
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const auto index = resolve_device(device);
    auto& state = state_of(index);
    const auto reclaims = page_reclaims(index);
    std::lock_guard lock(state.mutex);
    auto stats = state.stats;
    stats.num_alloc_retries = static_cast<int64_t>(reclaims - state.reclaims_seen);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    for_each_stat(device, [](Stat& s) { s.reset_accumulated(); });
    const auto index = resolve_device(device);
    auto& state = state_of(index);
    const auto reclaims = page_reclaims(index);
    std::lock_guard lock(state.mutex);
    state.stats.num_ooms = 0;
    state.reclaims_seen = reclaims;
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    for_each_stat(device, [](Stat& s) { s.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto& card = card_of(resolve_device(device));
    return {card.total_bytes() - card.allocated_bytes(), card.total_bytes()};
  }

 private:
  /// Writes that met the host budget and were tried again after freed pages had gone back.
  static uint64_t page_reclaims(c10::DeviceIndex index) {
    return is_open(index) ? card_of(index).counters().page_reclaims : 0;
  }
  template <typename F>
  void for_each_stat(c10::DeviceIndex device, F f) {
    auto& state = state_of(resolve_device(device));
    std::lock_guard lock(state.mutex);
    auto& s = state.stats;
    for (auto* array : {&s.allocation, &s.active, &s.segment, &s.allocated_bytes, &s.active_bytes, &s.reserved_bytes,
                        &s.requested_bytes}) {
      f((*array)[kAggregate]);
    }
  }
};

SpyreAllocator& the_allocator() {
  static auto* instance = new SpyreAllocator;
  return *instance;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  the_allocator().recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("record_stream", TORCH_FN(record_stream)); }

const bool registered = [] {
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &the_allocator());
  return true;
}();

}  // namespace

bool free_dead_cycles() {
  if (!Py_IsInitialized()) return false;
  const auto before = frees.load(std::memory_order_relaxed);
  pybind11::gil_scoped_acquire gil;
  pybind11::module_::import("gc").attr("collect")();
  return frees.load(std::memory_order_relaxed) != before;
}

c10::Allocator* allocator() { return &the_allocator(); }
c10::DeviceAllocator* device_allocator() { return &the_allocator(); }

c10::DataPtr allocate(c10::DeviceIndex device, uint64_t bytes, LayoutPtr layout, c10::ScalarType dtype,
                      c10::IntArrayRef size, c10::IntArrayRef stride) {
  auto r = std::make_unique<StorageRecord>();
  r->device = device;
  r->layout = layout;
  r->host_dtype = dtype;
  r->set_host_shape(size, stride);
  void* token = nullptr;
  if (bytes > 0) {
    // What no segment holds need not be rounded, which might overflow: the card refuses it.
    const uint64_t rounded = bytes > card::kSegmentBytes ? bytes : whole_sticks(bytes);
    r->address = take(device, rounded);
    r->bytes = rounded;
    state_of(device).add(rounded, rounded);
    report(*r, static_cast<int64_t>(rounded));
    token = token_of(*r);
    if (auto* recording = Recording::active()) recording->allocated(r->address);
  }
  return c10::DataPtr(token, r.release(), &delete_record, spyre_device(device));
}

StorageRecord& record_of(const c10::DataPtr& ptr) {
  TORCH_CHECK(
      ptr.get_deleter() == &delete_record,
      "this storage is a part of one on the spyre device, where a data pointer is no address; slice a tensor on "
      "the whole storage instead");
  return *static_cast<StorageRecord*>(ptr.get_context());
}

}  // namespace spyre
