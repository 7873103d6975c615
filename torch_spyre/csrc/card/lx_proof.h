// SPDX-License-Identifier: Apache-2.0
// The scratchpad half of the proof: no LX byte is read before its core wrote it, and a core reads another one's LX only
// where that core wrote in an earlier phase and does not write in this one.
//
// Loops touch the same bytes again and again. What a core has written only grows, so an area that was found to be
// written stays so: it is looked up as a whole, and its bytes are visited once.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "access.h"
#include "program.h"

namespace spyre::card {

struct Location {
  int core;
  uint32_t pc;
};

/// The LX bytes of one operand as numbers that can be compared: a box, or the points of a layout map.
using Area = std::vector<int64_t>;
Area area_of(const Box& box, int64_t offset);
Area area_of(int32_t layout, const LayoutMap& map, const Shape& shape, int64_t offset, int element_bytes);

struct AreaHash {
  size_t operator()(const Area& area) const;
};

/// Areas that were seen. It may forget some: then their bytes are visited again.
class AreaSet {
 public:
  bool contains(const Area& area) const { return areas_.contains(area); }
  void add(const Area& area);
  void clear() { areas_.clear(); }

 private:
  std::unordered_set<Area, AreaHash> areas_;
};

/// A set of LX bytes: one bit each, from the first `add` on.
class ByteSet {
 public:
  void add(int64_t begin, int64_t end);
  void remove(int64_t begin, int64_t end);
  bool covers(int64_t begin, int64_t end) const;
  bool overlaps(int64_t begin, int64_t end) const;

 private:
  std::vector<uint64_t> words_;
};

class LxProof {
 public:
  using Spend = std::function<void(uint64_t steps, Location at)>;
  using Fail = std::function<void(const char* kind, Location at, const std::string& message)>;  // does not return

  LxProof(const Image& image, Spend spend, Fail fail);
  /// A core reads or writes its own LX. The area lies inside it.
  void touch(Location at, const Area& area, int access);
  /// A core reads the LX of another one, or its own as others see it.
  void read_remote(Location at, int owner, const Area& area);
  /// To be called at each BARRIER and at the END, when all writes of the phase are known.
  void end_phase(Location at);

 private:
  struct Read {
    Location reader;
    Area area;
  };
  struct Core {
    ByteSet written;  // so far
    AreaSet known;    // areas inside `written`
    ByteSet earlier;  // written in earlier phases
    AreaSet earlier_known;
    ByteSet now;  // written in this phase; filled only to check `reads`
    AreaSet now_known;
    std::vector<Area> writes;  // areas written in this phase
    std::vector<Read> reads;   // areas that others read in this phase
    AreaSet reads_known;
  };

  uint64_t cost(const Area& area) const;
  template <class Fn>
  void for_each_run(const Area& area, Fn&& fn) const;
  void check_reads(int owner);

  const Image& image_;
  Spend spend_;
  Fail fail_;
  bool remote_ = false;  // does any instruction read the LX of another core?
  std::vector<Core> cores_;
};

}  // namespace spyre::card
