// SPDX-License-Identifier: Apache-2.0
// Walks for kernels whose order is part of their meaning: row-major stretches, and lines along one dim.
#pragma once
#include "convert.h"
#include "iterate.h"

SPYRE_ISA_BEGIN

inline bool is_empty(const Shape& shape) {
  for (int d = 0; d < shape.rank; ++d) {
    if (shape.extent[d] <= 0) return true;
  }
  return false;
}

/// Calls body(index, p, step, n) for stretches along the last dim, in row-major order: `index` is the first point, and
/// operand k has its n elements at p[k] + i * step[k]. Stops and returns false when the body does.
template <int N, class Body>
inline bool for_each_stretch(const Shape& shape, const View* const (&views)[N], const Body& body) {
  if (is_empty(shape)) return true;
  int64_t index[kMaxDims] = {}, step[N];
  const int last = shape.rank - 1;
  const int64_t extent = last < 0 ? 1 : shape.extent[last];
  for (;;) {
    std::byte* row[N];
    for (int k = 0; k < N; ++k) {
      row[k] = views[k]->base;
      for (int d = 0; d < last; ++d) row[k] += offset_of(views[k]->dim[d], index[d]);
    }
    for (int64_t v = 0, n; v < extent; v += n) {
      std::byte* p[N];
      n = extent - v;
      for (int k = 0; k < N; ++k) {
        const DimMap m = last < 0 ? DimMap{} : views[k]->dim[last];
        p[k] = row[k] + offset_of(m, v);
        step[k] = m.inner;
        if (m.block) n = min64(n, m.block - v % m.block);
      }
      if (last >= 0) index[last] = v;
      if (!body(index, p, step, n)) return false;
    }
    int d = last - 1;
    for (; d >= 0; --d) {
      if (++index[d] < shape.extent[d]) break;
      index[d] = 0;
    }
    if (d < 0) return true;
  }
}

/// n elements from one format and stride to another, by the rules of the card.
inline void move_run(Format to, std::byte* out, int64_t out_step, Format from, const std::byte* in, int64_t in_step,
                     int64_t n) {
  const int bytes = format_bytes(from);
  if (to == from && (n == 1 || (out_step == bytes && in_step == bytes))) {
    __builtin_memcpy(out, in, static_cast<size_t>(n * bytes));
    return;
  }
  const bool integers = is_integer(to) && is_integer(from);
  alignas(64) float f[kChunk];
  alignas(64) int32_t i[kChunk];
  for (int64_t v = 0; v < n; v += kChunk) {
    const int64_t m = min64(kChunk, n - v);
    if (integers) {
      load_run_int(from, in + v * in_step, in_step, m, i);
      store_run_int(to, out + v * out_step, out_step, m, i);
    } else {
      load_run(from, in + v * in_step, in_step, m, f);
      store_run(to, out + v * out_step, out_step, m, f);
    }
  }
}

/// n elements of a line from index v on, in the stretches of its map: body(offset, step, first, count).
template <class Body>
inline void along_line(const DimMap& m, int64_t v, int64_t n, const Body& body) {
  for (int64_t done = 0, count; done < n; done += count) {
    count = m.block ? min64(n - done, m.block - (v + done) % m.block) : n - done;
    body(offset_of(m, v + done), m.inner, done, count);
  }
}

inline void load_line(const View& view, const std::byte* base, int dim, int64_t v, int64_t n, float* to) {
  along_line(view.dim[dim], v, n, [&](int64_t offset, int64_t step, int64_t first, int64_t count) {
    load_run(view.format, base + offset, step, count, to + first);
  });
}
inline void load_line(const View& view, const std::byte* base, int dim, int64_t v, int64_t n, int32_t* to) {
  along_line(view.dim[dim], v, n, [&](int64_t offset, int64_t step, int64_t first, int64_t count) {
    load_run_int(view.format, base + offset, step, count, to + first);
  });
}
inline void store_line(const View& view, std::byte* base, int dim, int64_t v, int64_t n, const float* from) {
  along_line(view.dim[dim], v, n, [&](int64_t offset, int64_t step, int64_t first, int64_t count) {
    store_run(view.format, base + offset, step, count, from + first);
  });
}
inline void store_line(const View& view, std::byte* base, int dim, int64_t v, int64_t n, const int32_t* from) {
  along_line(view.dim[dim], v, n, [&](int64_t offset, int64_t step, int64_t first, int64_t count) {
    store_run_int(view.format, base + offset, step, count, from + first);
  });
}

/// Calls body(p) for every line along `dim`: p[k] is its first element in operand k.
template <int N, class Body>
inline void for_each_line(const Shape& shape, int dim, const View* const (&views)[N], const Body& body) {
  if (is_empty(shape)) return;
  for_each_loops<N>(shape, ~(1u << dim), views, N, [&](const Loops<N>& loops) {
    for_each_point(loops, loops.rank, [&](std::byte* const* p) { body(p); });
  });
}

SPYRE_ISA_END
