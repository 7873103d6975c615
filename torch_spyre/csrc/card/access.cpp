// SPDX-License-Identifier: Apache-2.0
#include "access.h"

#include <algorithm>
#include <cstdlib>

#include "spyre/remainders.h"

namespace spyre::card {

ByteSpan Box::span() const {
  ByteSpan s{begin, begin + run};
  for (int a = 0; a < n_axes; ++a) s.end += static_cast<__int128>(axes[a].count - 1) * axes[a].stride;
  return s;
}

namespace {

void add_axis(Box& box, int64_t count, int64_t stride) {
  if (count == 1 || stride == 0) return;
  if (stride < 0) {
    box.begin += static_cast<__int128>(count - 1) * stride;
    stride = -stride;
  }
  box.axes[box.n_axes++] = {count, stride};
}

/// Merges axes that continue the run, innermost first.
void collapse(Box& box) {
  std::sort(box.axes, box.axes + box.n_axes, [](auto& a, auto& b) { return a.stride < b.stride; });
  int kept = 0;
  for (int a = 0; a < box.n_axes; ++a) {
    auto axis = box.axes[a];
    int64_t grown;
    if (kept == 0 && axis.stride <= box.run && !__builtin_mul_overflow(axis.count - 1, axis.stride, &grown) &&
        !__builtin_add_overflow(grown, box.run, &grown))
      box.run = grown;
    else
      box.axes[kept++] = axis;
  }
  box.n_axes = kept;
}

void split_dim(std::span<const int64_t> extents, const DimMap* maps, size_t dim, Box box, std::vector<Box>& boxes) {
  if (dim == extents.size()) {
    collapse(box);
    boxes.push_back(box);
    return;
  }
  const DimMap& m = maps[dim];
  int64_t n = extents[dim];
  if (m.block == 0 || n <= m.block || static_cast<__int128>(m.inner) * m.block == m.outer) {
    add_axis(box, n, m.inner);
    return split_dim(extents, maps, dim + 1, box, boxes);
  }
  int64_t sticks = n / m.block, rest = n % m.block;
  if (rest) {
    Box tail = box;
    tail.begin += static_cast<__int128>(sticks) * m.outer;
    add_axis(tail, rest, m.inner);
    split_dim(extents, maps, dim + 1, tail, boxes);
  }
  add_axis(box, m.block, m.inner);
  add_axis(box, sticks, m.outer);
  split_dim(extents, maps, dim + 1, box, boxes);
}

}  // namespace

void make_boxes(std::span<const int64_t> extents, const DimMap* maps, int element_bytes, std::vector<Box>& boxes) {
  boxes.clear();
  Box box;
  box.run = element_bytes;
  split_dim(extents, maps, 0, box, boxes);
}

int64_t layout_address(const LayoutMap& map, int64_t element) {
  if (element < 0) return -1;
  int64_t bytes = 0;
  for (int d = 0; d < map.n_device_dims; ++d) {
    const auto& dev = map.device[d];
    int64_t coord = element / dev.host_stride;
    if (coord >= dev.extent) return -1;
    element -= coord * dev.host_stride;
    bytes += coord * dev.byte_stride;
  }
  return element == 0 ? bytes : -1;
}

namespace {

void visit(const LayoutMap& map, const Shape& shape, int dim, int64_t element, int64_t direct,
           const std::function<void(int64_t)>& fn) {
  if (dim == shape.rank) {
    int64_t address = layout_address(map, element);
    fn(address < 0 ? -1 : address + direct);
    return;
  }
  for (int64_t v = 0; v < shape.extent[dim]; ++v)
    visit(map, shape, dim + 1, element + v * map.stride[dim], direct + v * map.direct[dim], fn);
}

}  // namespace

void for_each_point(const LayoutMap& map, const Shape& shape, const std::function<void(int64_t)>& fn) {
  visit(map, shape, 0, map.offset, 0, fn);
}

uint64_t points(const Shape& shape) {
  uint64_t n = 1;
  for (int d = 0; d < shape.rank; ++d)
    if (__builtin_mul_overflow(n, static_cast<uint64_t>(shape.extent[d]), &n)) return ~0ull;
  return n;
}

bool layout_span(const LayoutMap& map, const Shape& shape, int element_bytes, __int128 limit, uint64_t max_visits,
                 ByteSpan& span, uint64_t& visited) {
  __int128 low = map.offset, high = map.offset, direct = 0;
  for (int d = 0; d < shape.rank; ++d) {
    __int128 reach = static_cast<__int128>(shape.extent[d] - 1) * map.stride[d];
    (reach < 0 ? low : high) += reach;
    direct += static_cast<__int128>(shape.extent[d] - 1) * map.direct[d];
  }
  visited = 0;
  if (low < 0 || high >> 62) return false;
  // Quick bound: each coordinate is limited by the remainders that the dims before it leave.
  Remainders rest(static_cast<int64_t>(low));
  for (int d = 0; d < shape.rank; ++d)
    if (shape.extent[d] > 1) rest.add(shape.extent[d], std::abs(map.stride[d]));
  __int128 end = 0;
  bool tight = rest.known();
  for (int d = 0; d < map.n_device_dims && tight; ++d) {
    const int64_t coord = rest.end() / map.device[d].host_stride;
    tight = coord < map.device[d].extent;
    end += static_cast<__int128>(coord) * map.device[d].byte_stride;
    rest.take(map.device[d].host_stride);
  }
  span = {0, end + direct + element_bytes};
  if (tight && rest.end() == 0 && span.end <= limit) return true;
  if (points(shape) > max_visits) return false;
  visited = points(shape);
  bool inside = true;
  span = {0, 0};
  for_each_point(map, shape, [&](int64_t address) {
    inside &= address >= 0;
    span.end = std::max<__int128>(span.end, static_cast<__int128>(address) + element_bytes);
  });
  return inside;
}

void IntervalSet::add(int64_t begin, int64_t end) {
  auto next = ranges_.upper_bound(begin);
  if (next != ranges_.begin()) {
    auto previous = std::prev(next);
    if (previous->second >= end) return;
    if (previous->second >= begin) {
      begin = previous->first;
      next = ranges_.erase(previous);
    }
  }
  while (next != ranges_.end() && next->first <= end) {
    end = std::max(end, next->second);
    next = ranges_.erase(next);
  }
  ranges_.emplace_hint(next, begin, end);
}

std::pair<int64_t, int64_t> IntervalSet::first_overlap(int64_t begin, int64_t end) const {
  auto next = ranges_.upper_bound(begin);
  if (next != ranges_.begin() && std::prev(next)->second > begin) --next;
  if (next == ranges_.end() || next->first >= end) return {0, 0};
  return {std::max(begin, next->first), std::min(end, next->second)};
}

void IntervalSet::remove(int64_t begin, int64_t end) {
  if (begin >= end) return;
  auto next = ranges_.lower_bound(begin);
  if (next != ranges_.begin() && std::prev(next)->second > begin) {
    auto previous = std::prev(next);
    int64_t last = previous->second;
    previous->second = begin;
    if (last > end) ranges_.emplace_hint(next, end, last);
  }
  while (next != ranges_.end() && next->first < end) {
    int64_t last = next->second;
    next = ranges_.erase(next);
    if (last > end) next = ranges_.emplace_hint(next, end, last);
  }
}

}  // namespace spyre::card
