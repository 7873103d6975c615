// SPDX-License-Identifier: Apache-2.0
#include "pinned.h"

#include <ATen/core/CachingHostAllocator.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

namespace spyre {
namespace {

constexpr size_t kAlignment = 128;

struct Block {
  explicit Block(size_t size) : bytes(size), data(std::aligned_alloc(kAlignment, size)) {
    TORCH_CHECK_WITH(OutOfMemoryError, data, "cannot allocate ", size, " bytes of pinned host memory");
  }
  ~Block() { std::free(data); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  size_t bytes;
  void* data;
};

void delete_block(void* data);

/// Blocks that tensors own. One that only a queued transfer still holds is not among them.
class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, nullptr, &delete_block, c10::Device(c10::DeviceType::CPU)};
    auto block = std::make_shared<const Block>((n + kAlignment - 1) / kAlignment * kAlignment);
    void* data = block->data;
    std::unique_lock lock(mutex_);
    stats_.active_requests.increase(1);
    stats_.active_bytes.increase(block->bytes);
    stats_.allocations.increase(1);
    stats_.allocated_bytes.increase(block->bytes);
    ++stats_.num_host_alloc;
    blocks_.emplace(reinterpret_cast<uintptr_t>(data), std::move(block));
    return {data, data, &delete_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  void copy_data(void* to, const void* from, std::size_t n) const override { std::memcpy(to, from, n); }

  void drop(void* data) {
    if (!data) return;
    std::unique_lock lock(mutex_);
    auto node = blocks_.extract(reinterpret_cast<uintptr_t>(data));
    stats_.active_requests.decrease(1);
    stats_.active_bytes.decrease(node.mapped()->bytes);
    stats_.allocations.decrease(1);
    stats_.allocated_bytes.decrease(node.mapped()->bytes);
    ++stats_.num_host_free;
  }

  std::shared_ptr<const Block> find(const void* address) const {
    const auto a = reinterpret_cast<uintptr_t>(address);
    std::shared_lock lock(mutex_);
    auto it = blocks_.upper_bound(a);
    if (it == blocks_.begin()) return nullptr;
    --it;
    return a < it->first + it->second->bytes ? it->second : nullptr;
  }

  /// Transfers hold their block, so there is nothing to note.
  bool record_event(void* data, void*, c10::Stream) override { return find(data) != nullptr; }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    std::shared_lock lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    for_each_stat([](auto& s) { s.reset_accumulated(); });
  }
  void reset_peak_stats() override {
    for_each_stat([](auto& s) { s.reset_peak(); });
  }

 private:
  template <typename F>
  void for_each_stat(F f) {
    std::unique_lock lock(mutex_);
    for (auto* s : {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations, &stats_.allocated_bytes}) f(*s);
  }

  mutable std::shared_mutex mutex_;
  std::map<uintptr_t, std::shared_ptr<const Block>> blocks_;
  at::HostStats stats_;
};

PinnedAllocator& instance() {
  static auto* allocator = new PinnedAllocator;  // never destroyed: tensors may outlive every static of this library
  return *allocator;
}

void delete_block(void* data) { instance().drop(data); }

const bool registered = [] {
  at::setHostAllocator(at::DeviceType::PrivateUse1, &instance());
  return true;
}();

}  // namespace

c10::Allocator* pinned_allocator() { return &instance(); }
std::shared_ptr<const void> pinned_block(const void* address) { return instance().find(address); }

}  // namespace spyre
