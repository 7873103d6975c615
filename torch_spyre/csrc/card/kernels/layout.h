// SPDX-License-Identifier: Apache-2.0
// LayoutMaps: a host offset decoded through a device layout.
//
// Most decode separably: no digit of one iteration dim carries into a digit of another, so the address is a sum of one
// nested map per dim and the copy becomes plain loops. The others are walked run by run.
#pragma once
#include "iterate.h"

SPYRE_ISA_BEGIN

/// Bytes at a host offset. `rest` receives the remainder after each device dim.
SPYRE_INLINE int64_t decode_offset(const LayoutMap& m, int64_t offset, int64_t* rest) {
  int64_t bytes = 0;
  for (int d = 0; d < m.n_device_dims; ++d) {
    const int64_t coordinate = offset / m.device[d].host_stride;
    offset -= coordinate * m.device[d].host_stride;
    bytes += coordinate * m.device[d].byte_stride;
    rest[d] = offset;
  }
  return bytes;
}

/// The map of one iteration dim alone; adds its greatest remainders to `rest`. False if it is no nest of blocks.
inline bool layout_dim(const LayoutMap& m, int64_t extent, int64_t stride, int64_t* rest, Map* map) {
  int64_t blocks[kMaxLevels], strides[kMaxLevels];  // from the top
  int levels = 0;
  int64_t reach = (extent - 1) * stride, bottom = 0;
  for (int d = 0; d < m.n_device_dims; ++d) {
    const int64_t h = m.device[d].host_stride;
    if (h <= reach) {
      if (stride % h == 0) {
        bottom = stride / h * m.device[d].byte_stride;
        reach = 0;
      } else {
        if (h % stride != 0 || levels == kMaxLevels - 1) return false;
        blocks[levels] = h / stride;
        if (levels > 0 && blocks[levels - 1] % blocks[levels] != 0) return false;
        strides[levels++] = m.device[d].byte_stride;
        reach = h - stride;
      }
    }
    rest[d] += reach;
  }
  map->blocks = levels;
  map->stride[0] = bottom;
  for (int l = 0; l < levels; ++l) {
    map->block[l] = blocks[levels - 1 - l];
    map->stride[l + 1] = strides[levels - 1 - l];
  }
  return true;
}

/// The maps of all dims of a view. False if its layout is not separable.
inline bool maps_of(const Shape& shape, const View& view, Map* maps, std::byte** base) {
  *base = view.base;
  if (!view.layout) {
    for (int d = 0; d < shape.rank; ++d) maps[d] = map_of(view.dim[d], shape.extent[d]);
    return true;
  }
  const LayoutMap& m = *view.layout;
  int64_t rest[kMaxDims];
  if (m.offset < 0) return false;
  *base += decode_offset(m, m.offset, rest);
  for (int d = 0; d < shape.rank; ++d) {
    maps[d].blocks = 0;
    maps[d].stride[0] = 0;
    if (shape.extent[d] == 1) continue;
    if (m.stride[d] < 0) return false;
    if (m.stride[d] > 0 && !layout_dim(m, shape.extent[d], m.stride[d], rest, &maps[d])) return false;
    maps[d].stride[0] += m.direct[d];
    for (int l = 0; l < maps[d].blocks; ++l) maps[d].stride[l + 1] += m.direct[d] * maps[d].block[l];
    simplify(maps[d], shape.extent[d]);
  }
  for (int d = 0; d < m.n_device_dims; ++d) {
    if (rest[d] >= m.device[d].host_stride) return false;  // a carry is possible
  }
  return true;
}

/// Elements along one iteration dim with a constant byte step.
struct Stretch {
  int64_t offset, step, n;
};

/// The stretch of `view` that starts at `index` and goes at most n elements along dim `d`.
inline Stretch stretch_at(const Shape& shape, const View& view, const int64_t* index, int d, int64_t n) {
  Stretch s{0, 0, n};
  if (!view.layout) {
    for (int i = 0; i < shape.rank; ++i) s.offset += offset_of(view.dim[i], index[i]);
    const DimMap& m = view.dim[d];
    s.step = m.inner;
    if (m.block) s.n = min64(n, m.block - index[d] % m.block);
    return s;
  }
  const LayoutMap& m = *view.layout;
  int64_t at = m.offset, rest[kMaxDims];
  for (int i = 0; i < shape.rank; ++i) {
    at += index[i] * m.stride[i];
    s.offset += index[i] * m.direct[i];
  }
  s.offset += decode_offset(m, at, rest);
  s.step = m.direct[d];
  const int64_t stride = m.stride[d];
  if (stride == 0 || m.n_device_dims == 0) return s;
  const LayoutMap::DeviceDim& last = m.device[m.n_device_dims - 1];
  if (stride < 0 || stride % last.host_stride != 0) s.n = 1;
  s.step += stride / last.host_stride * last.byte_stride;
  for (int i = 0; i + 1 < m.n_device_dims; ++i) {
    s.n = min64(s.n, max64(1, (m.device[i].host_stride - rest[i] + stride - 1) / stride));
  }
  return s;
}

SPYRE_ISA_END
