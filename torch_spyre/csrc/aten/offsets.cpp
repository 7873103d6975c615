// SPDX-License-Identifier: Apache-2.0
#include "offsets.h"

#include <c10/util/SmallVector.h>

#include <algorithm>

#include "spyre/remainders.h"

namespace spyre {
namespace {

/// A device dim that host offsets move along.
struct Axis {
  int64_t stride, extent;
  uint64_t pitch;  // bytes of one step; 0 for the lanes
  size_t dim;
};
using Axes = c10::SmallVector<Axis, 8>;

/// In the order in which an offset is decoded: the largest stride first, of equal ones the outer dim.
Axes decoding_axes(const SpyreTensorLayout& layout) {
  Axes axes;
  const auto lanes = layout.device_size.size() - 1;
  uint64_t pitch = 0;
  for (size_t d = layout.device_size.size(); d-- > 0;) {
    const Axis axis{layout.stride_map[d], layout.device_size[d], pitch, d};
    pitch = d == lanes ? kStickBytes : pitch * static_cast<uint64_t>(axis.extent);
    if (axis.stride <= 0 || axis.extent <= 1) continue;
    const auto place = std::find_if(axes.begin(), axes.end(), [&](const Axis& a) { return a.stride <= axis.stride; });
    axes.insert(place, axis);
  }
  return axes;
}

Remainders offsets_of(c10::IntArrayRef size, c10::IntArrayRef stride, int64_t begin) {
  Remainders offsets(begin);
  for (size_t d = 0; d < size.size(); ++d) offsets.add(size[d], stride[d]);
  return offsets;
}

bool empty(c10::IntArrayRef size) { return std::find(size.begin(), size.end(), 0) != size.end(); }

}  // namespace

ViewStart view_start(const SpyreTensorLayout& layout, c10::IntArrayRef size, c10::IntArrayRef stride, int64_t offset) {
  const ViewStart as_it_is{offset, 0};
  if (offset <= 0 || empty(size) || layout.element_arrangement != ElementArrangement::STANDARD) return as_it_is;
  ViewStart start = as_it_is;
  auto rest = offsets_of(size, stride, offset);
  for (const Axis& axis : decoding_axes(layout)) {
    if (!rest.known() || rest.begin() == 0) break;
    const auto steps = rest.begin() / axis.stride;
    if (axis.pitch != 0 && steps > 0) {
      if (rest.end() / axis.stride >= axis.extent) return as_it_is;  // not all of it is stored; the planner says so
      start.offset -= steps * axis.stride;
      start.bytes += static_cast<uint64_t>(steps) * axis.pitch;
    }
    rest.take(axis.stride);
  }
  return start;
}

std::vector<int64_t> view_extents(const SpyreTensorLayout& layout, c10::IntArrayRef size, c10::IntArrayRef stride,
                                  int64_t offset) {
  std::vector<int64_t> extents(layout.device_size.size(), 1);
  const auto axes = decoding_axes(layout);
  auto rest = offsets_of(size, stride, offset);
  for (const Axis& axis : axes) {
    extents[axis.dim] = rest.known() ? std::min(rest.end() / axis.stride + 1, axis.extent) : axis.extent;
    rest.take(axis.stride);
  }
  if (!extents.empty()) extents.back() = layout.device_size.back();
  return extents;
}

}  // namespace spyre
