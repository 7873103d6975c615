// SPDX-License-Identifier: Apache-2.0
// Matrix multiplication: fp32 FMA, k = 0, 1, 2, ... for every output, whatever the shape.
//
// When few rows of A share B it is used from where it lies: A is decoded once into fp32 rows, in blocks of kDepth along
// k, and C waits in an fp32 tile between blocks, so that blocking does not change the order of the additions. Else
// matmul_many.h.
#pragma once
#include "matmul_lanes.h"
#include "matmul_many.h"

SPYRE_ISA_BEGIN

/// rows x (16*vectors) outputs over `depth` values of k. B rows are `pitch` bytes apart, in format f.
template <Format f, int rows, int vectors>
void multiply(const float* a, const std::byte* b, int64_t pitch, int64_t depth, float* c, bool first) {
  F sum[rows][vectors];
  SPYRE_UNROLL
  for (int r = 0; r < rows; ++r) {
    SPYRE_UNROLL
    for (int v = 0; v < vectors; ++v) sum[r][v] = first ? splat(0.0f) : load(c + r * kTilePitch + v * 16);
  }
  for (int64_t k = 0; k < depth; ++k) {
    F x[vectors];
    load_vectors<f, vectors>(b, x);
    if (f == Format::SEN169_FP16 && vectors < 4) __builtin_prefetch(b + kFewDepth * pitch);  // narrow: two passes
    b += pitch;
    SPYRE_UNROLL
    for (int r = 0; r < rows; ++r) {
      F y = splat(a[r * kRowPitch + k]);
      SPYRE_UNROLL
      for (int v = 0; v < vectors; ++v) sum[r][v] = fma(y, x[v], sum[r][v]);
    }
  }
  SPYRE_UNROLL
  for (int r = 0; r < rows; ++r) {
    SPYRE_UNROLL
    for (int v = 0; v < vectors; ++v) store(c + r * kTilePitch + v * 16, sum[r][v]);
  }
}

using MultiplyFunction = void (*)(const float*, const std::byte*, int64_t, int64_t, float*, bool);

/// Multiply functions for 1..max_rows rows.
template <Format f, int max_rows, int (*vectors)(int rows)>
struct MultiplyTable {
  MultiplyFunction function[max_rows + 1];
  template <int rows>
  constexpr void fill() {
    if constexpr (rows > 0) {
      function[rows] = multiply<f, rows, vectors(rows)>;
      fill<rows - 1>();
    }
  }
  constexpr MultiplyTable() : function{} { fill<max_rows>(); }
};

/// Vectors of a row of B taken at a time when it is decoded in registers: as many as the registers allow.
constexpr int direct_vectors(int rows) {
#if defined(SPYRE_KERNELS_AVX512)
  return rows <= 5 ? 4 : 2;
#else
  return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
#endif
}

/// Decodes rows [m0, m0+rows) of A: block after block of kDepth, each `rows` rows of kRowPitch floats.
inline void decode_rows(const Matrix& a, int64_t m0, int64_t rows, int64_t depth, float* to) {
  for (int64_t k = 0; k < depth; k += kDepth) {
    const int64_t n = min64(kDepth, depth - k);
    for (int64_t r = 0; r < rows; ++r, to += kRowPitch) {
      load_summed(a, a.base + a.row_offset(m0 + r), a.column, k, n, to);
    }
  }
}

/// Few rows: B is streamed once, decoded in registers. `width` columns lie side by side at every k.
template <Format f>
void multiply_direct(const Problem& p, const float* a, int64_t m0, int64_t rows, int64_t n, int64_t width) {
  static constexpr MultiplyTable<f, kDirectRows, direct_vectors> kTable;
  const MultiplyFunction run = kTable.function[rows];
  const int64_t columns = direct_vectors(static_cast<int>(rows)) * 16;
  const int64_t step = columns < width ? kFewDepth : kDepth;
  Tile tile(p, m0, rows, n, width);
  const std::byte* base = p.b.base + offset_of(p.b.column, n);
  for (int64_t k = 0; k < p.k;) {
    const int64_t within = k % kDepth;
    int64_t depth = min64(min64(kDepth - within, step), p.k - k);
    depth = p.b.within_tap(k, depth);
    if (p.b.row.block) depth = min64(depth, p.b.row.block - (p.b.taps ? k % p.b.tap_depth : k) % p.b.row.block);
    const std::byte* b = base + p.b.offset_of_k(p.b.row, k);
    for (int64_t j = 0; j < width; j += columns) {
      run(a + (k / kDepth) * rows * kRowPitch + within, b + j * vector_bytes(f), p.b.row.inner, depth, tile.sums + j,
          tile.first(k));
    }
    k += depth;
    tile.advance(k);
  }
  tile.finish();
}

constexpr int64_t kAheadRows = 32;  // sticks that the memory delivers while one product ends and the next one begins
constexpr int64_t kFirstRows = 16;  // and while A is decoded

SPYRE_INLINE void prefetch_stick(const std::byte* p) {
  __builtin_prefetch(p);
  __builtin_prefetch(p + 64);
}

/// One row and a stick of columns, in registers from the first k to the last. Reads ahead past the end of B: products
/// that follow each other in memory keep it busy, though each is done in a few microseconds.
template <Format f, int kVectors>
void multiply_row(const Problem& p, const float* a, int64_t n) {
  const int64_t pitch = p.b.row.inner;
  const std::byte* b = p.b.base + offset_of(p.b.column, n);
  F sum[kVectors];
  SPYRE_UNROLL
  for (int v = 0; v < kVectors; ++v) sum[v] = splat(0.0f);
  for (int64_t k = 0; k < p.k; k += kDepth, a += kRowPitch) {
    const int64_t depth = min64(kDepth, p.k - k);
    for (int64_t i = 0; i < depth; ++i, b += pitch) {
      F x[kVectors];
      load_vectors<f, kVectors>(b, x);
      prefetch_stick(b + kAheadRows * pitch);
      const F y = splat(a[i]);
      SPYRE_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[v] = fma(y, x[v], sum[v]);
    }
  }
  alignas(64) float line[16 * kVectors];
  SPYRE_UNROLL
  for (int v = 0; v < kVectors; ++v) store(line + v * 16, sum[v]);
  store_span(p.c.format, p.c.base + p.c.row_offset(0), p.c.column, n, 16 * kVectors, line);
}

using RowFunction = void (*)(const Problem&, const float*, int64_t);

/// multiply_row for the format of B, or null.
template <int vectors>
RowFunction row_function(Format f) {
  switch (f) {
    case Format::SEN169_FP16:
      return multiply_row<Format::SEN169_FP16, vectors>;
    case Format::SEN143_FP8:
      return multiply_row<Format::SEN143_FP8, vectors>;
    case Format::SEN152_FP8:
      return multiply_row<Format::SEN152_FP8, vectors>;
    case Format::SENINT8:
      return multiply_row<Format::SENINT8, vectors>;
    default:
      return nullptr;
  }
}

/// Whether multiply_row serves.
inline bool is_row(const Problem& p) {
  return p.m == 1 && row_function<4>(p.b.format) && p.b.row.block == 0 && !p.b.taps && !p.accumulate && !p.bytes;
}

/// Vectors of a stick of 8-bit elements, where that many sums stay in registers.
#if defined(SPYRE_KERNELS_AVX512)
constexpr int kWideRow = 8;
#else
constexpr int kWideRow = 4;
#endif

using DirectFunction = void (*)(const Problem&, const float*, int64_t, int64_t, int64_t, int64_t);

/// multiply_direct for the format of B, or null.
inline DirectFunction direct_function(Format f) {
  switch (f) {
    case Format::SEN169_FP16:
      return multiply_direct<Format::SEN169_FP16>;
    case Format::IEEE_FP32:
      return multiply_direct<Format::IEEE_FP32>;
    case Format::SEN143_FP8:
      return multiply_direct<Format::SEN143_FP8>;
    case Format::SEN152_FP8:
      return multiply_direct<Format::SEN152_FP8>;
    case Format::SENINT8:
      return multiply_direct<Format::SENINT8>;
    default:
      return nullptr;
  }
}

void multiply_problem(const Problem& p) {
  const DirectFunction direct = p.m <= kDirectRows ? direct_function(p.b.format) : nullptr;
  if (!direct) return multiply_many(p);
  const bool row = is_row(p);
  for (int64_t k = 0; row && k < min64(kFirstRows, p.k); ++k) prefetch_stick(p.b.base + k * p.b.row.inner);
  const int64_t blocks = (p.k + kDepth - 1) / kDepth;
  float* a = static_cast<float*>(scratch(kScratchA, sizeof(float) * static_cast<size_t>(blocks * p.m * kRowPitch)));
  decode_rows(p.a, 0, p.m, p.k, a);
  const int64_t stick = row && format_bytes(p.b.format) == 1 ? kWideRow * 16 : 64;
  for (int64_t n = 0, step; n < p.n; n += step) {
    const int64_t together = side_by_side(p.b, n, p.n);
    step = together >= stick ? stick : 64;
    if (together < 64) {
      multiply_columns(p, RowBlock(p, 0, p.m), n, min64(64, p.n - n), chunk_depth(p));
    } else if (row) {
      (step > 64 ? row_function<kWideRow> : row_function<4>)(p.b.format)(p, a, n);
    } else {
      direct(p, a, 0, p.m, n, 64);
    }
  }
}

/// Wider integers: int32 accumulation, wrapping.
void multiply_integers(const Problem& p) {
  int32_t line[kWidth];
  for (int64_t i = 0; i < p.m; ++i) {
    const std::byte* a = p.a.base + p.a.row_offset(i);
    std::byte* c = p.c.base + p.c.row_offset(i);
    for (int64_t n = 0; n < p.n; n += kWidth) {
      const int64_t width = min64(kWidth, p.n - n);
      for (int64_t j = 0; j < width; ++j) {
        line[j] = 0;
        if (p.accumulate) load_run_int(p.c.format, c + offset_of(p.c.column, n + j), 0, 1, &line[j]);
      }
      for (int64_t k = 0; k < p.k; ++k) {
        const int64_t x = read_int(p.a.format, a + p.a.offset_of_k(p.a.column, k));
        const std::byte* b = p.b.base + p.b.offset_of_k(p.b.row, k);
        for (int64_t j = 0; j < width; ++j) {
          const int64_t y = read_int(p.b.format, b + offset_of(p.b.column, n + j));
          line[j] = static_cast<int32_t>(static_cast<uint32_t>(line[j]) + static_cast<uint32_t>(x * y));
        }
      }
      for (int64_t j = 0; j < width; ++j) store_run_int(p.c.format, c + offset_of(p.c.column, n + j), 0, 1, &line[j]);
    }
  }
}

/// Batch dims along which B stays the same: it is decoded once for them all. Sums that start from C stay apart, as
/// batches may share C.
inline Groups shared_batches(const Shape& shape, int batch, bool accumulate, const View& b) {
  Groups found;
  for (int d = 0; d < batch && !accumulate && found.count < kMaxGroups; ++d) {
    const bool same = b.dim[d].inner == 0 && (b.dim[d].block == 0 || b.dim[d].outer == 0);
    if (!same || shape.extent[d] == 1) continue;
    found.dim[found.count] = d;
    found.extent[found.count++] = shape.extent[d];
  }
  return found;
}

/// The dims of k but the last one, row-major: where each of their points lies in A and in B.
inline void take_taps(Problem& p, const Shape& shape, int first, const View& a, const View& b) {
  const int last = shape.rank - 1;
  int64_t count = 1;
  for (int d = first; d < last; ++d) count *= shape.extent[d];
  if (count == 1) return;
  int64_t* in_a = static_cast<int64_t*>(scratch(kScratchTaps, sizeof(int64_t) * 2 * static_cast<size_t>(count)));
  int64_t* in_b = in_a + count;
  for (int64_t t = 0; t < count; ++t) {
    in_a[t] = in_b[t] = 0;
    for (int64_t d = last - 1, rest = t; d >= first; rest /= shape.extent[d--]) {
      in_a[t] += offset_of(a.dim[d], rest % shape.extent[d]);
      in_b[t] += offset_of(b.dim[d], rest % shape.extent[d]);
    }
  }
  p.a.taps = in_a;
  p.b.taps = in_b;
  p.a.tap_depth = p.b.tap_depth = p.k;
  p.k *= count;
}

void matmul(const Shape& shape, bool accumulate, int taps, const View& c, const View& a, const View& b) {
  const int batch = shape.rank - 3 - taps, m = batch, n = batch + 1, k = shape.rank - 1;
  for (int d = 0; d < shape.rank; ++d) {
    if (shape.extent[d] <= 0) return;
  }
  Problem p{shape.extent[m],
            shape.extent[n],
            shape.extent[k],
            accumulate,
            a.format == Format::SENINT8 && b.format == Format::SENINT8,
            {a.base, a.format, a.dim[m], a.dim[k]},
            {b.base, b.format, b.dim[k], b.dim[n]},
            {c.base, c.format, c.dim[m], c.dim[n]}};
  take_taps(p, shape, n + 1, a, b);
  if (multiply_batches(shape, m, p, c, a, b)) return;
  const Groups groups = shared_batches(shape, batch, accumulate, b);
  p.a.take(groups, p.m, a);
  p.c.take(groups, p.m, c);
  uint32_t taken = 0;
  for (int g = 0; g < groups.count; ++g) {
    p.m *= groups.extent[g];
    taken |= 1u << groups.dim[g];
  }
  const bool integers = is_integer(a.format) && is_integer(b.format) && !p.bytes;
  int64_t index[kMaxDims] = {};
  for (;;) {
    int64_t at_a = 0, at_b = 0, at_c = 0;
    for (int d = 0; d < batch; ++d) {
      at_a += offset_of(a.dim[d], index[d]);
      at_b += offset_of(b.dim[d], index[d]);
      at_c += offset_of(c.dim[d], index[d]);
    }
    p.a.base = a.base + at_a;
    p.b.base = b.base + at_b;
    p.c.base = c.base + at_c;
    integers ? multiply_integers(p) : multiply_problem(p);
    int d = batch - 1;
    for (; d >= 0; --d) {
      if (taken >> d & 1) continue;
      if (++index[d] < shape.extent[d]) break;
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

SPYRE_ISA_END
