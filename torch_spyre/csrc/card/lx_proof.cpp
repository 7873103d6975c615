// SPDX-License-Identifier: Apache-2.0
#include "lx_proof.h"

#include <algorithm>

namespace spyre::card {
namespace {

constexpr size_t kMostAreas = 4096;       // of an AreaSet
constexpr uint64_t kBytesPerStep = 512;   // of a long run
constexpr uint64_t kListSteps = 8;        // an area that is kept until the end of a phase costs memory too
constexpr int64_t kBox = 0, kLayout = 1;  // what the first number of an Area says
constexpr size_t kBoxHead = 3, kLayoutHead = 5;

/// Calls fn(word, mask) for the words of a range; stops when fn returns false.
template <class Fn>
bool for_each_word(int64_t begin, int64_t end, Fn&& fn) {
  for (int64_t at = begin; at < end;) {
    int64_t word = at / 64, next = std::min(end, (word + 1) * 64);
    uint64_t mask = ~0ull << (at % 64);
    if (next % 64) mask &= ~0ull >> (64 - next % 64);
    if (!fn(static_cast<size_t>(word), mask)) return false;
    at = next;
  }
  return true;
}

/// Starts of the runs of a box, from axis `a` on.
template <class Fn>
void for_each_start(const Area& area, size_t a, int64_t base, Fn&& fn) {
  if (a == area.size()) return fn(base);
  for (int64_t k = 0; k < area[a]; ++k) for_each_start(area, a + 2, base + k * area[a + 1], fn);
}

std::string range(int64_t begin, int64_t end) {
  return "LX bytes [" + std::to_string(begin) + ", " + std::to_string(end) + ")";
}

std::string of_core(int core) { return " of core " + std::to_string(core); }

}  // namespace

Area area_of(const Box& box, int64_t offset) {
  Area area{kBox, offset + static_cast<int64_t>(box.begin), box.run};
  for (int a = 0; a < box.n_axes; ++a) area.insert(area.end(), {box.axes[a].count, box.axes[a].stride});
  return area;
}

Area area_of(int32_t layout, const LayoutMap& map, const Shape& shape, int64_t offset, int element_bytes) {
  Area area{kLayout, layout, map.offset, offset, element_bytes};
  area.insert(area.end(), shape.extent, shape.extent + shape.rank);
  return area;
}

size_t AreaHash::operator()(const Area& area) const {
  uint64_t h = area.size();
  for (int64_t word : area) {
    h = (h ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 32;
  }
  return h;
}

void AreaSet::add(const Area& area) {
  if (areas_.size() >= kMostAreas) areas_.clear();
  areas_.insert(area);
}

void ByteSet::add(int64_t begin, int64_t end) {
  const auto needed = static_cast<size_t>((end + 63) / 64);
  if (words_.size() < needed) words_.resize(needed);
  for_each_word(begin, end, [&](size_t word, uint64_t mask) { return words_[word] |= mask, true; });
}

void ByteSet::remove(int64_t begin, int64_t end) {
  end = std::min(end, static_cast<int64_t>(words_.size()) * 64);
  for_each_word(begin, end, [&](size_t word, uint64_t mask) { return words_[word] &= ~mask, true; });
}

bool ByteSet::covers(int64_t begin, int64_t end) const {
  return for_each_word(
      begin, end, [&](size_t word, uint64_t mask) { return word < words_.size() && (words_[word] & mask) == mask; });
}

bool ByteSet::overlaps(int64_t begin, int64_t end) const {
  return !for_each_word(begin, end,
                        [&](size_t word, uint64_t mask) { return word >= words_.size() || !(words_[word] & mask); });
}

LxProof::LxProof(const Image& image, Spend spend, Fail fail)
    : image_(image), spend_(std::move(spend)), fail_(std::move(fail)), cores_(image.cores) {
  remote_ = std::any_of(image.operands.begin(), image.operands.end(),
                        [](const Operand& o) { return o.space == Space::LX_REMOTE; });
}

uint64_t LxProof::cost(const Area& area) const {
  uint64_t n = 1;
  if (area[0] == kLayout) {
    for (size_t d = kLayoutHead; d < area.size(); ++d)
      if (__builtin_mul_overflow(n, static_cast<uint64_t>(area[d]), &n)) return ~0ull;
    return n;
  }
  for (size_t a = kBoxHead; a < area.size(); a += 2)
    if (__builtin_mul_overflow(n, static_cast<uint64_t>(area[a]), &n)) return ~0ull;
  uint64_t per_run = 1 + static_cast<uint64_t>(area[2]) / kBytesPerStep;
  return __builtin_mul_overflow(n, per_run, &n) ? ~0ull : n;
}

template <class Fn>
void LxProof::for_each_run(const Area& area, Fn&& fn) const {
  if (area[0] == kBox) {
    const int64_t run = area[2];
    return for_each_start(area, kBoxHead, area[1], [&](int64_t begin) { fn(begin, begin + run); });
  }
  LayoutMap map = image_.layouts[static_cast<size_t>(area[1])].map;
  map.offset = area[2];
  Shape shape;
  shape.rank = static_cast<int>(area.size() - kLayoutHead);
  std::copy(area.begin() + kLayoutHead, area.end(), shape.extent);
  for_each_point(map, shape, [&](int64_t address) { fn(area[3] + address, area[3] + address + area[4]); });
}

void LxProof::touch(Location at, const Area& area, int access) {
  Core& core = cores_[at.core];
  if (core.known.contains(area)) {
    spend_(1, at);
  } else {
    spend_(cost(area), at);
    for_each_run(area, [&](int64_t begin, int64_t end) {
      if ((access & kRead) && !core.written.covers(begin, end))
        fail_("UninitializedRead", at, "reads " + range(begin, end) + ", which nothing has written");
      if (access & kWrite) core.written.add(begin, end);
    });
    core.known.add(area);
  }
  if (!remote_ || !(access & kWrite) || core.now_known.contains(area)) return;
  spend_(kListSteps, at);
  core.writes.push_back(area);
  core.now_known.add(area);
}

void LxProof::read_remote(Location at, int owner, const Area& area) {
  Core& core = cores_[owner];
  spend_(1, at);
  if (core.reads_known.contains(area)) return;
  spend_(kListSteps, at);
  core.reads.push_back({at, area});
  core.reads_known.add(area);
}

void LxProof::end_phase(Location at) {
  if (!remote_) return;
  for (size_t c = 0; c < cores_.size(); ++c) {
    Core& core = cores_[c];
    if (!core.reads.empty()) check_reads(static_cast<int>(c));
    for (const Area& area : core.writes) {
      if (core.earlier_known.contains(area)) continue;
      spend_(cost(area), at);
      for_each_run(area, [&](int64_t begin, int64_t end) { core.earlier.add(begin, end); });
      core.earlier_known.add(area);
    }
    core.writes.clear();
    core.now_known.clear();
    core.reads.clear();
    core.reads_known.clear();
  }
}

void LxProof::check_reads(int owner) {
  Core& core = cores_[owner];
  const Location at = core.reads.front().reader;
  for (const Area& area : core.writes) {
    spend_(cost(area), at);
    for_each_run(area, [&](int64_t begin, int64_t end) { core.now.add(begin, end); });
  }
  for (const Read& read : core.reads) {
    if (core.writes.empty() && core.earlier_known.contains(read.area)) continue;
    spend_(cost(read.area), read.reader);
    for_each_run(read.area, [&](int64_t begin, int64_t end) {
      if (core.now.overlaps(begin, end))
        fail_("RaceDetected", read.reader,
              "reads " + range(begin, end) + of_core(owner) +
                  " in the phase in which that core writes them; put a BARRIER between");
      if (!core.earlier.covers(begin, end))
        fail_("UninitializedRead", read.reader,
              "reads " + range(begin, end) + of_core(owner) + ", which that core did not write in an earlier phase");
    });
    core.earlier_known.add(read.area);
  }
  for (const Area& area : core.writes) {
    spend_(cost(area), at);
    for_each_run(area, [&](int64_t begin, int64_t end) { core.now.remove(begin, end); });
  }
}

}  // namespace spyre::card
