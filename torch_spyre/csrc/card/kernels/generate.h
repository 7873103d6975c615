// SPDX-License-Identifier: Apache-2.0
// The kernel without inputs: iota.
#pragma once
#include "walk.h"

SPYRE_ISA_BEGIN

void iota(const Shape& shape, const View& out, int64_t start, const DimMap* step) {
  const View* const views[1] = {&out};
  const int last = shape.rank - 1;
  const bool integers = is_integer(out.format);
  for_each_stretch(shape, views, [&](const int64_t* index, std::byte* const* p, const int64_t* stride, int64_t n) {
    int64_t row = start;
    for (int d = 0; d < last; ++d) row += offset_of(step[d], index[d]);
    const DimMap along = last < 0 ? DimMap{} : step[last];
    const int64_t first = last < 0 ? 0 : index[last];
    for (int64_t i = 0; i < n; i += kChunk) {
      const int64_t m = min64(kChunk, n - i);
      std::byte* q = p[0] + i * stride[0];
      alignas(64) float real[kChunk];
      for (int64_t j = 0; j < m; ++j) {
        const int64_t x = row + offset_of(along, first + i + j);
        real[j] = static_cast<float>(x);
        if (integers) write_int(out.format, q + j * stride[0], x);
      }
      if (!integers) store_run(out.format, q, stride[0], m, real);
    }
    return true;
  });
}

SPYRE_ISA_END
