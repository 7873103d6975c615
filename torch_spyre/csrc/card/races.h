// SPDX-License-Identifier: Apache-2.0
// Accesses to card memory in one phase, and those of different cores that meet.
#pragma once
#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

namespace spyre::card {

struct MemoryAccess {
  uint64_t begin, end;  // card addresses
  uint32_t pc;
  uint8_t core;
  bool write;
};

class PhaseAccesses {
 public:
  void add(const MemoryAccess& a) {
    if (!list_.empty()) {
      MemoryAccess& last = list_.back();
      if (last.pc == a.pc && last.core == a.core && last.write == a.write && last.end == a.begin) {
        last.end = a.end;
        return;
      }
    }
    list_.push_back(a);
    if (list_.size() >= merge_at_) merge();
  }

  /// Calls found(a, b) for accesses of two cores that overlap, one of them a write; ends the phase. Every access that
  /// meets an earlier one (by address) is reported once.
  template <class Found>
  void end_phase(const Found& found) {
    std::sort(list_.begin(), list_.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
    Reach writes, reads;
    for (const MemoryAccess& a : list_) {
      const MemoryAccess* other = writes.meets(a);
      if (!other && a.write) other = reads.meets(a);
      if (other) found(a, *other);
      (a.write ? writes : reads).add(a);
    }
    list_.clear();
  }

 private:
  /// Of the accesses so far the one that ends last, and the one of another core that ends last.
  struct Reach {
    const MemoryAccess *first = nullptr, *second = nullptr;

    void add(const MemoryAccess& a) {
      if (!first || a.end > first->end) {
        if (first && first->core != a.core) second = first;
        first = &a;
      } else if (a.core != first->core && (!second || a.end > second->end)) {
        second = &a;
      }
    }
    const MemoryAccess* meets(const MemoryAccess& a) const {
      if (first && first->core != a.core) return first->end > a.begin ? first : nullptr;
      return second && second->end > a.begin ? second : nullptr;
    }
  };

  /// Joins overlapping accesses of one core and kind, which keep the instruction of the first.
  void merge() {
    std::sort(list_.begin(), list_.end(),
              [](auto& a, auto& b) { return std::tie(a.core, a.write, a.begin) < std::tie(b.core, b.write, b.begin); });
    size_t kept = 0;
    for (const MemoryAccess& a : list_) {
      MemoryAccess* last = kept ? &list_[kept - 1] : nullptr;
      if (last && last->core == a.core && last->write == a.write && a.begin <= last->end)
        last->end = std::max(last->end, a.end);
      else
        list_[kept++] = a;
    }
    list_.resize(kept);
    merge_at_ = std::max<size_t>(kMergeAt, 2 * kept);
  }

  static constexpr size_t kMergeAt = 1 << 20;
  std::vector<MemoryAccess> list_;
  size_t merge_at_ = kMergeAt;
};

}  // namespace spyre::card
