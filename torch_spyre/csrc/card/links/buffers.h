// SPDX-License-Identifier: Apache-2.0
// Host memory for data on its way, kept for the next exchange: fresh pages would cost more than the copy.
#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace spyre::card {

class BufferPool;

/// Bytes of a pool; they go back when it is destroyed. Contents begin undefined.
class PooledBytes {
 public:
  PooledBytes() = default;
  PooledBytes(std::shared_ptr<BufferPool> pool, size_t size);
  PooledBytes(PooledBytes&&) noexcept = default;
  PooledBytes& operator=(PooledBytes&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(memory_, other.memory_);
    std::swap(capacity_, other.capacity_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~PooledBytes();

  std::byte* data() const { return memory_.get(); }
  size_t size() const { return size_; }
  std::span<std::byte> span() const { return {memory_.get(), size_}; }

 private:
  friend class BufferPool;
  std::shared_ptr<BufferPool> pool_;
  std::unique_ptr<std::byte[]> memory_;
  size_t capacity_ = 0, size_ = 0;
};

class BufferPool {
 public:
  static constexpr size_t kKept = 8, kLargest = 64u << 20;

  std::pair<std::unique_ptr<std::byte[]>, size_t> take(size_t size) {
    std::lock_guard lock(mutex_);
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it)
      if (it->second >= size && (best == free_.end() || it->second < best->second)) best = it;
    if (best == free_.end()) return {std::make_unique_for_overwrite<std::byte[]>(size), size};
    auto taken = std::move(*best);
    free_.erase(best);
    return taken;
  }
  void give(std::unique_ptr<std::byte[]> memory, size_t capacity) {
    std::lock_guard lock(mutex_);
    if (capacity <= kLargest && free_.size() < kKept) free_.emplace_back(std::move(memory), capacity);
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<std::unique_ptr<std::byte[]>, size_t>> free_;
};

inline PooledBytes::PooledBytes(std::shared_ptr<BufferPool> pool, size_t size) : pool_(std::move(pool)), size_(size) {
  std::tie(memory_, capacity_) = pool_->take(size);
}
inline PooledBytes::~PooledBytes() {
  if (memory_) pool_->give(std::move(memory_), capacity_);
}

}  // namespace spyre::card
