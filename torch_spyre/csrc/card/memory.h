// SPDX-License-Identifier: Apache-2.0
// One card's LPDDR5: a lazily committed reservation and the allocator of its data segments.
#pragma once
#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "queue.h"
#include "spyre/card.h"

namespace spyre::card {

struct Range {
  uint64_t begin, end;
};

/// Exact first fit over the free blocks of several segments, 128-byte granularity, coalescing. Not thread-safe.
/// Free blocks are indexed by address and, in size classes an eighth of a power of two wide, by size: the lowest
/// block that fits is the lowest of all larger classes or a member of the request's own class.
class FirstFit {
 public:
  /// Adds a block that never coalesces with a neighbour across its borders.
  void add_segment(uint64_t begin, uint64_t end);
  /// Lowest address where `bytes` (a multiple of 128) fit; kNone if nowhere.
  static constexpr uint64_t kNone = ~0ull;
  uint64_t take(uint64_t bytes);
  /// Returns the coalesced free block that now contains [begin, end).
  Range give(uint64_t begin, uint64_t end);
  uint64_t largest() const;
  const std::map<uint64_t, uint64_t>& blocks() const { return blocks_; }

 private:
  static constexpr int kClasses = 36 * 8;
  static int size_class(uint64_t bytes);
  void insert(uint64_t begin, uint64_t end);
  void erase(std::map<uint64_t, uint64_t>::iterator block);

  std::map<uint64_t, uint64_t> blocks_;  // begin -> end
  std::array<std::set<uint64_t>, kClasses> by_size_;
  std::set<uint64_t> borders_;
};

/// Thread-safe. Card addresses are offsets into the reservation; address 0 is never handed out.
/// Host pages commit when they are first written. `commit` announces such writes so that a host-memory budget
/// (SPYRE_HOST_MEMORY_GB for the whole process, default 80 % of physical memory) can refuse them in time.
///
/// Memory may be freed while queued work still uses it, and handed out again at once: a freed range remembers the
/// points up to which streams use it, and `use` returns those that the first work of a new owner has to wait for.
class Memory {
 public:
  explicit Memory(const Progress& progress);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  uint64_t allocate(uint64_t bytes);
  /// Returns true if so much freed memory is held that `reclaim` should be called at a moment when the card is idle.
  bool free(uint64_t address);
  /// Gives the pages of free blocks back to the host. The card must be idle.
  void reclaim();

  /// Notes that the next command of `stream` uses the range, and adds what it has to wait for. Throws OutOfBounds
  /// unless the range lies in one live allocation, whose number is returned.
  uint64_t use(uint64_t address, uint64_t bytes, int stream, const char* what, std::vector<Point>& after);

  /// Accounts for a write of `written` bytes of the range. Returns false if it would exceed the budget.
  /// The host zeroes a page when it is first touched. Sticks of one row lie far apart, so a row of a large tensor
  /// touches all of its huge pages: only a write that fills a good part of the range gets such pages, or an allocation
  /// of which a good part has been written.
  bool commit(uint64_t address, uint64_t bytes, uint64_t written);
  [[noreturn]] void throw_budget(uint64_t bytes) const;

  /// Whether an allocation holds values. `timed`: a timing-only run wrote them. `dropped`: work that failed or never
  /// ran would have written them.
  enum class Contents : uint8_t { values, timed, dropped };
  /// A write of the range: what it makes of the allocation's contents. Values come back when all of it is written.
  void wrote(uint64_t address, uint64_t bytes, bool timing_only);
  /// The allocation of this number, if it is still there, lost what a command would have written.
  void lost_write(uint64_t address, uint64_t number);
  Contents contents(uint64_t address) const;

  std::byte* at(uint64_t address) const { return base_ + address; }
  uint64_t allocated_bytes() const;
  static constexpr uint64_t total_bytes() { return kDataSegments * kSegmentBytes; }

 private:
  struct Live {
    uint64_t end;
    std::bitset<kAllStreams> used;  // streams that use it
    std::vector<Point> pending;     // uses by earlier owners
    uint64_t number;                // no two allocations have the same
    Contents contents = Contents::values;
    uint64_t written = 0;  // bytes that went to small pages of it
  };
  struct Freed {
    uint64_t end;
    std::vector<Point> pending;
  };

  void open_pages(uint64_t end);
  Live* live_at(uint64_t address);
  void use_huge_pages(uint64_t first_chunk, uint64_t last_chunk);
  std::vector<Point> unfinished(const Live& block) const;
  void remember(uint64_t begin, const Live& block);
  std::vector<Point> recall(uint64_t begin, uint64_t end);

  const Progress& progress_;
  mutable std::mutex mutex_;
  std::byte* base_ = nullptr;
  FirstFit free_;
  std::map<uint64_t, Live> live_;    // by begin
  std::map<uint64_t, Freed> freed_;  // by begin: disjoint free ranges that queued work still uses
  size_t prune_at_ = 64;             // size of freed_ at which finished entries are dropped
  uint64_t allocated_ = 0;
  uint64_t retained_ = 0;            // upper estimate of committed bytes inside free blocks
  uint64_t opened_ = 0;              // bytes from the start that are readable and writable
  std::vector<uint64_t> committed_;  // one bit per chunk
  uint64_t allocations_ = 0;         // ever made
  std::vector<uint64_t> huge_;       // one bit per chunk: the host may back it with one huge page
  std::atomic<bool> any_undefined_{false};
};

}  // namespace spyre::card
