// SPDX-License-Identifier: Apache-2.0
// Inclusive scans along one dim: one accumulator per line, in index order.
//
// Many lines side by side advance together, 16 lanes at a time; otherwise each line runs through a buffer.
#pragma once
#include "reduce.h"
#include "walk.h"

SPYRE_ISA_BEGIN

/// One lane of the joins of reduce.h.
SPYRE_INLINE float scan_join(ROp op, float a, float b) {
  if (op == ROp::sum) return a + b;
  if (op == ROp::prod) return a * b;
  if (a != a) return a;
  return b != b || (op == ROp::max ? a < b : b < a) ? b : a;
}
SPYRE_INLINE int32_t scan_join(ROp op, int32_t a, int32_t b) {
  if (op == ROp::sum) return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  if (op == ROp::prod) return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
  return (op == ROp::max ? a < b : b < a) ? b : a;
}

template <class R>
void scan_line(ROp op, int64_t extent, int dim, const View& out, const View& in, std::byte* to, const std::byte* from) {
  typename R::T buffer[kChunk], sum{};
  for (int64_t v = 0; v < extent; v += kChunk) {
    const int64_t n = min64(kChunk, extent - v);
    load_line(in, from, dim, v, n, buffer);
    for (int64_t i = 0; i < n; ++i) buffer[i] = sum = v + i == 0 ? buffer[i] : scan_join(op, sum, buffer[i]);
    store_line(out, to, dim, v, n, buffer);
  }
}

/// n lines side by side, n <= kChunk.
template <class R>
void scan_columns(int64_t extent, int dim, const View& out, const View& in, std::byte* to, int64_t to_step,
                  const std::byte* from, int64_t from_step, int64_t n) {
  alignas(64) typename R::T sum[kChunk] = {}, x[kChunk] = {};
  for (int64_t v = 0; v < extent; ++v) {
    R::load_elements(in.format, from + offset_of(in.dim[dim], v), from_step, n, v == 0 ? sum : x);
    for (int64_t i = 0; v > 0 && i < n; i += 16) R::write(sum + i, R::join(R::read(sum + i), R::read(x + i)));
    R::store_elements(out.format, to + offset_of(out.dim[dim], v), to_step, n, sum);
  }
}

template <class R>
void scan_with(ROp op, const Shape& shape, int dim, const View& out, const View& in) {
  const View* views[2] = {&out, &in};
  const int64_t extent = shape.extent[dim];
  if (is_empty(shape)) return;
  for_each_loops<2>(shape, ~(1u << dim), views, 2, [&](const Loops<2>& loops) {
    const int inner = loops.rank - 1;
    const int64_t n = inner < 0 ? 1 : loops.extent[inner];
    const bool lines =
        n < 8 || (out.dim[dim].inner == format_bytes(out.format) && loops.stride[inner][0] != out.dim[dim].inner);
    for_each_point(loops, inner < 0 ? 0 : inner, [&](std::byte* const* p) {
      for (int64_t i = 0; i < n; i += lines ? 1 : kChunk) {
        const int64_t a = inner < 0 ? 0 : loops.stride[inner][0], b = inner < 0 ? 0 : loops.stride[inner][1];
        if (lines) {
          scan_line<R>(op, extent, dim, out, in, p[0] + i * a, p[1] + i * b);
        } else {
          scan_columns<R>(extent, dim, out, in, p[0] + i * a, a, p[1] + i * b, b, min64(kChunk, n - i));
        }
      }
    });
  });
}

void scan(ROp op, Compute compute, const Shape& shape, int dim, const View& out, const View& in) {
  const bool integers = compute == Compute::i32;
  switch (op) {
#define SPYRE_SCAN(name)                                                       \
  case ROp::name:                                                              \
    return integers ? scan_with<IntReduce<ROp::name>>(op, shape, dim, out, in) \
                    : scan_with<FloatReduce<ROp::name>>(op, shape, dim, out, in);
    SPYRE_SCAN(sum)
    SPYRE_SCAN(max)
    SPYRE_SCAN(min)
    SPYRE_SCAN(prod)
#undef SPYRE_SCAN
  }
}

SPYRE_ISA_END
