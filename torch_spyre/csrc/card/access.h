// SPDX-License-Identifier: Apache-2.0
// Which bytes an operand touches: exact bounds and contiguous runs of a strided box, and of a layout map.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kernels/kernels.h"

namespace spyre::card {

/// Bytes [begin, end) relative to the operand's base.
struct ByteSpan {
  __int128 begin, end;
};

constexpr int kMaxAxes = kMaxDims + kMaxIndices;  // dims of a box, and the index values of a gather

/// A dense run repeated over `axes`: what is left of an operand's box after contiguous dims have been collapsed.
struct Box {
  struct Axis {
    int64_t count, stride;  // count > 1, stride > 0
  };
  __int128 begin = 0;
  int64_t run = 0;
  int n_axes = 0;
  Axis axes[2 * kMaxAxes] = {};

  ByteSpan span() const;
};

/// Splits the bytes that `maps` reach over `extents` into boxes. One box unless a stick dim ends inside a stick.
void make_boxes(std::span<const int64_t> extents, const DimMap* maps, int element_bytes, std::vector<Box>& boxes);

/// Calls fn(begin, end) for every run. The box must lie inside an int64 range.
template <class Fn>
void for_each_run(const Box& box, int64_t base, Fn&& fn, int axis = 0) {
  if (axis == box.n_axes) {
    fn(base, base + box.run);
    return;
  }
  for (int64_t k = 0; k < box.axes[axis].count; ++k) for_each_run(box, base + k * box.axes[axis].stride, fn, axis + 1);
}

/// Byte offset of one host element offset; negative if the layout has no place for it.
int64_t layout_address(const LayoutMap& map, int64_t element);

/// Calls fn(byte offset) for every point of the shape (the `direct` part included).
void for_each_point(const LayoutMap& map, const Shape& shape, const std::function<void(int64_t)>& fn);

/// Bounds of a layout access. When the quick bound does not show that all points lie inside the layout and below
/// `limit` bytes, it visits every point, at most `max_visits`, and says so in `visited`. Returns false if some point
/// falls outside the extents of the layout or if it would visit too many.
bool layout_span(const LayoutMap& map, const Shape& shape, int element_bytes, __int128 limit, uint64_t max_visits,
                 ByteSpan& span, uint64_t& visited);

/// Points of the box as a saturating product.
uint64_t points(const Shape& shape);

/// Disjoint half-open ranges, merged when they touch.
class IntervalSet {
 public:
  void add(int64_t begin, int64_t end);
  /// The first common part with the range; (0, 0) if there is none.
  std::pair<int64_t, int64_t> first_overlap(int64_t begin, int64_t end) const;
  void remove(int64_t begin, int64_t end);
  void clear() { ranges_.clear(); }

 private:
  std::map<int64_t, int64_t> ranges_;
};

}  // namespace spyre::card
