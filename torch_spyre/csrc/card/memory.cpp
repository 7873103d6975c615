// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace spyre::card {
namespace {

constexpr uint64_t kReservation = 8 * kSegmentBytes;
constexpr uint64_t kChunk = 2u << 20;            // unit of commit accounting: one huge page
constexpr uint64_t kDense = 4;                   // a write of at least this part of a range fills its pages
constexpr int kCollapse = 25;                    // MADV_COLLAPSE of Linux 6.1: small pages become huge ones now
constexpr uint64_t kOpenStep = 256u << 20;       // pages become accessible in steps, so that few system calls are made
constexpr uint64_t kRetainedLimit = 512u << 20;  // freed memory kept for reuse before it goes back to the host

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

uint64_t host_budget() {
  static const uint64_t budget = [] {
    if (const char* text = std::getenv("SPYRE_HOST_MEMORY_GB")) {
      char* end = nullptr;
      double gib = std::strtod(text, &end);
      if (end == text || *end != '\0' || !(gib > 0) || gib > 1e6)
        throw Error("InvalidArgument",
                    std::string("SPYRE_HOST_MEMORY_GB is '") + text + "'; give a positive number of GiB");
      return static_cast<uint64_t>(gib * (1ull << 30));
    }
    uint64_t physical = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    return physical / 10 * 8;
  }();
  return budget;
}

std::atomic<uint64_t> process_committed{0};

/// How many of the bits from `first` to `last` are 0.
uint64_t clear_bits(const std::vector<uint64_t>& words, uint64_t first, uint64_t last) {
  uint64_t n = 0;
  for (uint64_t w = first / 64; w <= last / 64; ++w) {
    uint64_t clear = ~words[w];
    if (w == first / 64) clear &= ~0ull << (first % 64);
    if (w == last / 64) clear &= ~0ull >> (63 - last % 64);
    n += static_cast<uint64_t>(std::popcount(clear));
  }
  return n;
}

std::string gib(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (uint64_t{1} << 30));
  return text;
}

}  // namespace

int FirstFit::size_class(uint64_t bytes) {
  uint64_t units = bytes / kStickBytes;
  int log = std::bit_width(units) - 1;
  int eighth = log >= 3 ? static_cast<int>(units >> (log - 3)) & 7 : static_cast<int>(units << (3 - log)) & 7;
  return log * 8 + eighth;
}

void FirstFit::insert(uint64_t begin, uint64_t end) {
  blocks_.emplace(begin, end);
  by_size_[size_class(end - begin)].insert(begin);
}

void FirstFit::erase(std::map<uint64_t, uint64_t>::iterator block) {
  by_size_[size_class(block->second - block->first)].erase(block->first);
  blocks_.erase(block);
}

void FirstFit::add_segment(uint64_t begin, uint64_t end) {
  borders_.insert(begin);
  borders_.insert(end);
  insert(begin, end);
}

uint64_t FirstFit::take(uint64_t bytes) {
  uint64_t best = kNone;
  int own = size_class(bytes);
  for (int c = own + 1; c < kClasses; ++c)
    if (!by_size_[c].empty()) best = std::min(best, *by_size_[c].begin());
  for (uint64_t begin : by_size_[own]) {
    if (begin > best) break;
    if (blocks_.at(begin) - begin >= bytes) {
      best = begin;
      break;
    }
  }
  if (best == kNone) return kNone;
  auto block = blocks_.find(best);
  uint64_t end = block->second;
  erase(block);
  if (best + bytes < end) insert(best + bytes, end);
  return best;
}

Range FirstFit::give(uint64_t begin, uint64_t end) {
  auto next = blocks_.lower_bound(begin);
  if (next != blocks_.end() && next->first == end && !borders_.count(end)) {
    end = next->second;
    auto gone = next++;
    erase(gone);
  }
  if (next != blocks_.begin() && !borders_.count(begin)) {
    auto previous = std::prev(next);
    if (previous->second == begin) {
      begin = previous->first;
      erase(previous);
    }
  }
  insert(begin, end);
  return {begin, end};
}

uint64_t FirstFit::largest() const {
  for (int c = kClasses - 1; c >= 0; --c) {
    uint64_t best = 0;
    for (uint64_t begin : by_size_[c]) best = std::max(best, blocks_.at(begin) - begin);
    if (best) return best;
  }
  return 0;
}

Memory::Memory(const Progress& progress)
    : progress_(progress), committed_(kReservation / kChunk / 64), huge_(committed_.size()) {
  host_budget();
  void* p = mmap(nullptr, kReservation + kChunk, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    throw Error("OutOfMemory", std::string("cannot reserve 128 GiB of address space for a card: ") +
                                   std::strerror(errno) + "; raise the limit on virtual memory (ulimit -v)");
  // A huge-page boundary, so that chunks are huge pages; the slack on both sides is given back.
  auto raw = reinterpret_cast<uintptr_t>(p);
  uintptr_t aligned = round_up(raw, kChunk);
  if (aligned > raw) munmap(p, aligned - raw);
  if (raw + kChunk > aligned) munmap(reinterpret_cast<void*>(aligned + kReservation), raw + kChunk - aligned);
  base_ = reinterpret_cast<std::byte*>(aligned);
  madvise(base_, kReservation, MADV_DONTDUMP);
  for (int s = 0; s < kDataSegments; ++s)
    free_.add_segment(s == 0 ? kStickBytes : s * kSegmentBytes, (s + 1) * kSegmentBytes);
}

Memory::~Memory() {
  uint64_t chunks = 0;
  for (uint64_t word : committed_) chunks += std::popcount(word);
  process_committed -= chunks * kChunk;
  munmap(base_, kReservation);
}

void Memory::open_pages(uint64_t end) {
  if (end <= opened_) return;
  uint64_t target = std::min(round_up(end, kOpenStep), kReservation);
  if (mprotect(base_ + opened_, target - opened_, PROT_READ | PROT_WRITE) != 0)
    throw Error("OutOfMemory", std::string("the host refuses pages for card memory: ") + std::strerror(errno) +
                                   "; free host memory or allow overcommit (vm.overcommit_memory)");
  madvise(base_ + opened_, target - opened_, MADV_NOHUGEPAGE);
  opened_ = target;
}

uint64_t Memory::allocate(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  uint64_t address = FirstFit::kNone;
  uint64_t rounded = 0;
  if (bytes <= kSegmentBytes) {
    rounded = round_up(std::max<uint64_t>(bytes, 1), kStickBytes);
    address = free_.take(rounded);
  }
  if (address == FirstFit::kNone)
    throw Error("OutOfMemory",
                "cannot allocate " + std::to_string(bytes) +
                    " bytes of card memory: " + std::to_string(total_bytes() - allocated_) + " bytes free of " +
                    std::to_string(total_bytes()) + ", largest free block " + std::to_string(free_.largest()) +
                    " bytes (an allocation never crosses a 16 GiB segment). Asked for " + gib(bytes) + " with " +
                    gib(total_bytes() - allocated_) + " free; the largest tensor that fits now has " +
                    gib(free_.largest()) + ": free tensors or use smaller ones");
  try {
    open_pages(address + rounded);
  } catch (...) {
    free_.give(address, address + rounded);
    throw;
  }
  live_.emplace(address, Live{address + rounded, {}, recall(address, address + rounded), ++allocations_});
  allocated_ += rounded;
  retained_ -= std::min(retained_, rounded);
  return address;
}

bool Memory::free(uint64_t address) {
  std::lock_guard lock(mutex_);
  auto block = live_.find(address);
  if (block == live_.end())
    throw Error("InvalidArgument",
                "free of card address " + std::to_string(address) + ", which is not the start of a live allocation");
  uint64_t end = block->second.end;
  remember(address, block->second);
  live_.erase(block);
  allocated_ -= end - address;
  free_.give(address, end);
  retained_ += end - address;
  return retained_ > kRetainedLimit;
}

/// Points up to which queued work may use the block: what its streams have queued by now, and earlier owners.
std::vector<Point> Memory::unfinished(const Live& block) const {
  std::vector<Point> points;
  for (size_t s = block.used._Find_first(); s < block.used.size(); s = block.used._Find_next(s))
    points.push_back(progress_.tail(static_cast<int>(s)));
  for (Point p : block.pending)
    if (!block.used[p.stream]) points.push_back(p);
  std::erase_if(points, [&](Point p) { return progress_.done(p); });
  return points;
}

void Memory::remember(uint64_t begin, const Live& block) {
  auto points = unfinished(block);
  if (points.empty()) return;
  freed_.emplace(begin, Freed{block.end, std::move(points)});
  if (freed_.size() < prune_at_) return;
  std::erase_if(freed_, [&](const auto& entry) {
    const auto& points = entry.second.pending;
    return std::all_of(points.begin(), points.end(), [&](Point p) { return progress_.done(p); });
  });
  prune_at_ = std::max<size_t>(64, 2 * freed_.size());
}

/// Takes [begin, end) out of the remembered ranges; what is left of a range beside it stays.
std::vector<Point> Memory::recall(uint64_t begin, uint64_t end) {
  std::vector<Point> points;
  auto it = freed_.upper_bound(begin);
  if (it != freed_.begin() && std::prev(it)->second.end > begin) --it;
  while (it != freed_.end() && it->first < end) {
    auto node = freed_.extract(it++);
    const Freed& range = node.mapped();
    for (Point p : range.pending)
      if (!progress_.done(p)) points.push_back(p);
    if (node.key() < begin) freed_.emplace(node.key(), Freed{begin, range.pending});
    if (range.end > end) it = freed_.emplace(end, range).first;
  }
  return points;
}

void Memory::reclaim() {
  std::lock_guard lock(mutex_);
  std::vector<Range> ranges;
  uint64_t released = 0;
  for (auto [begin, end] : free_.blocks()) {
    uint64_t first = round_up(begin, kChunk) / kChunk, last = std::min(end, opened_) / kChunk;
    for (uint64_t c = first; c < last; ++c) {
      uint64_t& word = committed_[c / 64];
      if (word == 0) {
        c |= 63;
        continue;
      }
      uint64_t bit = 1ull << (c % 64);
      if (!(word & bit)) continue;
      word &= ~bit;
      ++released;
      if (!ranges.empty() && ranges.back().end == c * kChunk)
        ranges.back().end += kChunk;
      else
        ranges.push_back({c * kChunk, (c + 1) * kChunk});
    }
  }
  for (Range r : ranges) {
    madvise(base_ + r.begin, r.end - r.begin, MADV_DONTNEED);
    madvise(base_ + r.begin, r.end - r.begin, MADV_NOHUGEPAGE);
    for (uint64_t c = r.begin / kChunk; c < r.end / kChunk; ++c) huge_[c / 64] &= ~(1ull << (c % 64));
  }
  process_committed -= released * kChunk;
  retained_ = 0;
}

void Memory::use_huge_pages(uint64_t first, uint64_t last) {
  std::byte* begin = base_ + first * kChunk;
  const uint64_t bytes = (last + 1 - first) * kChunk;
  const bool in_use = clear_bits(committed_, first, last) <= last - first;
  madvise(begin, bytes, MADV_HUGEPAGE);
  if (in_use) madvise(begin, bytes, kCollapse);
  for (uint64_t c = first; c <= last; ++c) huge_[c / 64] |= 1ull << (c % 64);
}

bool Memory::commit(uint64_t address, uint64_t bytes, uint64_t written) {
  if (bytes == 0) return true;
  std::lock_guard lock(mutex_);
  const uint64_t first = address / kChunk, last = (address + bytes - 1) / kChunk;
  if (clear_bits(huge_, first, last) > 0) {
    if (written >= bytes / kDense)
      use_huge_pages(first, last);
    else if (auto block = live_.upper_bound(address); block != live_.begin()) {
      auto& [begin, live] = *--block;
      live.written += written;
      if (live.written >= (live.end - begin) / kDense) use_huge_pages(begin / kChunk, (live.end - 1) / kChunk);
    }
  }
  const uint64_t fresh = clear_bits(committed_, first, last);
  if (fresh == 0) return true;
  if (process_committed.fetch_add(fresh * kChunk) + fresh * kChunk > host_budget()) {
    process_committed -= fresh * kChunk;
    return false;
  }
  for (uint64_t c = first; c <= last; ++c) committed_[c / 64] |= 1ull << (c % 64);
  return true;
}

void Memory::throw_budget(uint64_t bytes) const {
  throw Error("OutOfMemory", "writing " + std::to_string(bytes) +
                                 " bytes of card memory would exceed the host budget: " +
                                 std::to_string(process_committed.load()) + " of " + std::to_string(host_budget()) +
                                 " bytes are in use; free tensors or raise SPYRE_HOST_MEMORY_GB");
}

/// The last allocation that begins at the address or below it.
Memory::Live* Memory::live_at(uint64_t address) {
  auto block = live_.upper_bound(address);
  return block == live_.begin() ? nullptr : &std::prev(block)->second;
}

uint64_t Memory::use(uint64_t address, uint64_t bytes, int stream, const char* what, std::vector<Point>& after) {
  std::lock_guard lock(mutex_);
  Live* live = live_at(address);
  if (live && address <= live->end && bytes <= live->end - address) {
    live->used.set(stream);
    std::erase_if(live->pending, [&](Point p) { return progress_.done(p); });
    for (Point p : live->pending)
      if (p.stream != stream) after.push_back(p);
    return live->number;
  }
  throw Error("OutOfBounds", std::string(what) + ": bytes [" + std::to_string(address) + ", " +
                                 std::to_string(address) + " + " + std::to_string(bytes) +
                                 ") are not inside one live allocation of this card");
}

void Memory::wrote(uint64_t address, uint64_t bytes, bool timing_only) {
  if (!timing_only && !any_undefined_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(mutex_);
  auto block = live_.upper_bound(address);
  if (block == live_.begin()) return;
  auto& [begin, live] = *std::prev(block);
  if (timing_only) {
    live.contents = Contents::timed;
    any_undefined_ = true;
  } else if (address == begin && round_up(address + bytes, kStickBytes) >= live.end) {
    live.contents = Contents::values;
  }
}

void Memory::lost_write(uint64_t address, uint64_t number) {
  std::lock_guard lock(mutex_);
  Live* live = live_at(address);
  if (!live || live->number != number) return;
  live->contents = Contents::dropped;
  any_undefined_ = true;
}

Memory::Contents Memory::contents(uint64_t address) const {
  if (!any_undefined_.load(std::memory_order_relaxed)) return Contents::values;
  std::lock_guard lock(mutex_);
  auto block = live_.upper_bound(address);
  return block == live_.begin() ? Contents::values : std::prev(block)->second.contents;
}

uint64_t Memory::allocated_bytes() const {
  std::lock_guard lock(mutex_);
  return allocated_;
}

}  // namespace spyre::card
