// SPDX-License-Identifier: Apache-2.0
// Matrix multiplication: fp32 FMA, k = 0, 1, 2, ... for every output, whatever the shape.
//
// A is decoded once into fp32 rows, in blocks of kDepth along k. B is used from where it lies when few rows of A share
// it, else decoded block by block into panels of kPanel columns. C waits in an fp32 tile between blocks, so that
// blocking does not change the order of the additions.
#pragma once
#include "convert.h"
#include "iterate.h"
#include "transpose.h"

SPYRE_ISA_BEGIN

#if defined(SPYRE_KERNELS_AVX512)
constexpr int kTileRows = 14, kTileVectors = 2, kDirectRows = 12;
#elif defined(SPYRE_KERNELS_AVX2)
constexpr int kTileRows = 6, kTileVectors = 1, kDirectRows = 6;
#else
constexpr int kTileRows = 4, kTileVectors = 1, kDirectRows = 4;
#endif
constexpr int kPanel = 16 * kTileVectors;  // columns of one register tile
constexpr int kDepth = 256;                // k per block
constexpr int kFewDepth = 64;           // k per pass when few rows share B: a stick of columns stays in the first cache
constexpr int kManyRows = 64;           // from here on wider blocks pay
constexpr int kRowPitch = kDepth + 16;  // floats from row to row of A; not a power of two, to spread cache sets
constexpr int kWidth = 256;             // columns of one tile of C
constexpr int kTilePitch = kWidth + 16;
constexpr int64_t kExactDepth = 1024;  // sums of so many products of two int8 are exact in fp32
static_assert(kExactDepth * 128 * 128 <= 1 << 24 && kExactDepth % kDepth == 0);
constexpr int64_t kRowBlockFloats = 3 << 20;  // decoded A kept at a time

/// Batches whose rows count as rows of one product, the last one fastest.
struct Groups {
  int count = 0;
  int dim[2];
  int64_t extent[2];
};

/// One operand of one batch: byte address of (i, j) = base + row_offset(i) + offset_of(column, j). Rows may come from
/// several batches, `group_rows` from each.
struct Matrix {
  std::byte* base;
  Format format;
  DimMap row, column;
  int64_t group_rows = INT64_MAX;
  Groups groups = {};
  DimMap group[2] = {};

  void take(const Groups& taken, int64_t rows, const View& view) {
    groups = taken;
    group_rows = rows;
    for (int g = 0; g < taken.count; ++g) group[g] = view.dim[taken.dim[g]];
  }
  int64_t row_offset(int64_t i) const {
    if (i < group_rows) return offset_of(row, i);
    int64_t offset = offset_of(row, i % group_rows), rest = i / group_rows;
    for (int g = groups.count - 1; g >= 0; --g) {
      offset += offset_of(group[g], rest % groups.extent[g]);
      rest /= groups.extent[g];
    }
    return offset;
  }
};

/// Elements [v, v+n) along one dim as fp32.
inline void load_span(Format f, const std::byte* base, const DimMap& m, int64_t v, int64_t n, float* to) {
  if (m.block == 0 || m.outer == m.block * m.inner) return load_run(f, base + v * m.inner, m.inner, n, to);
  while (n > 0) {
    int64_t piece = min64(n, m.block - v % m.block);
    load_run(f, base + offset_of(m, v), m.inner, piece, to);
    v += piece;
    to += piece;
    n -= piece;
  }
}

inline void store_span(Format f, std::byte* base, const DimMap& m, int64_t v, int64_t n, const float* from) {
  if (m.block == 0 || m.outer == m.block * m.inner) return store_run(f, base + v * m.inner, m.inner, n, from);
  while (n > 0) {
    int64_t piece = min64(n, m.block - v % m.block);
    store_run(f, base + offset_of(m, v), m.inner, piece, from);
    v += piece;
    from += piece;
    n -= piece;
  }
}

template <Format f, int vectors>
SPYRE_INLINE void load_vectors(const std::byte* p, F (&x)[vectors]) {
  constexpr int kBytes = vector_bytes(f) * 16;
  SPYRE_UNROLL
  for (int v = 0; v + 1 < vectors; v += 2) load_pair<f>(p + v * kBytes, x[v], x[v + 1]);
  if constexpr (vectors % 2) x[vectors - 1] = load_vector<f>(p + (vectors - 1) * kBytes);
}

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

constexpr int panel_vectors(int) { return kTileVectors; }

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
      load_span(a.format, a.base + a.row_offset(m0 + r), a.column, k, n, to);
    }
  }
}

/// How many columns from n on, before `end`, lie side by side.
inline int64_t side_by_side(const Matrix& b, int64_t n, int64_t end) {
  if (b.column.inner != format_bytes(b.format)) return 0;
  if (b.column.block == 0 || b.column.outer == b.column.block * b.column.inner) return end - n;
  return min64(end - n, b.column.block - n % b.column.block);
}

/// Several panels whose columns lie side by side.
template <Format f>
void decode_dense_panels(const Matrix& b, int64_t k, int64_t depth, int64_t n, int64_t panels, float* to) {
  const std::byte* base = b.base + offset_of(b.column, n);
  for (int64_t r = 0; r < depth; ++r) {
    const std::byte* row = base + offset_of(b.row, k + r);
    // The next block of rows, while this one is multiplied. A prefetch past the end does no harm.
    for (int64_t l = 0; l < panels * kPanel * vector_bytes(f); l += 64)
      __builtin_prefetch(row + kFewDepth * b.row.inner + l);
    for (int64_t q = 0; q < panels; ++q) {
      F x[kTileVectors];
      load_vectors<f, kTileVectors>(row + q * kPanel * vector_bytes(f), x);
      SPYRE_UNROLL
      for (int v = 0; v < kTileVectors; ++v) store(to + (q * depth + r) * kPanel + v * 16, x[v]);
    }
  }
}

/// The same for any format.
inline void decode_dense_panels(const Matrix& b, int64_t k, int64_t depth, int64_t n, int64_t panels, float* to) {
  alignas(64) float line[kWidth];
  const std::byte* base = b.base + offset_of(b.column, n);
  for (int64_t r = 0; r < depth; ++r) {
    load_run(b.format, base + offset_of(b.row, k + r), b.column.inner, panels * kPanel, line);
    for (int64_t q = 0; q < panels; ++q) {
      __builtin_memcpy(to + (q * depth + r) * kPanel, line + q * kPanel, sizeof(float) * kPanel);
    }
  }
}

/// One panel of any layout, zero padded.
inline void decode_any_panel(const Matrix& b, int64_t k, int64_t depth, int64_t n, int64_t columns, float* to) {
  const bool along_k = format_bytes(b.format) == b.row.inner && format_bytes(b.format) != b.column.inner;
  if (along_k) {
    alignas(64) float lines[kPanel][kDepth];
    for (int64_t c = 0; c < kPanel; ++c) {
      if (c < columns) load_span(b.format, b.base + offset_of(b.column, n + c), b.row, k, depth, lines[c]);
      if (c >= columns) __builtin_memset(lines[c], 0, sizeof lines[c]);
    }
    transpose(4, reinterpret_cast<std::byte*>(to), kPanel * 4, reinterpret_cast<const std::byte*>(lines),
              sizeof lines[0], kPanel, depth);
    return;
  }
  for (int64_t r = 0; r < depth; ++r) {
    float* row = to + r * kPanel;
    load_span(b.format, b.base + offset_of(b.row, k + r), b.column, n, columns, row);
    for (int64_t c = columns; c < kPanel; ++c) row[c] = 0.0f;
  }
}

/// Decodes `depth` x `width` of B from (k, n) into panels: panel after panel of depth rows of kPanel floats.
inline void decode_panels(const Matrix& b, int64_t k, int64_t depth, int64_t n, int64_t width, float* to) {
  for (int64_t j = 0; j < width;) {
    const int64_t panels = side_by_side(b, n + j, n + width) / kPanel;
    if (panels > 0 && b.format == Format::SEN169_FP16) {
      decode_dense_panels<Format::SEN169_FP16>(b, k, depth, n + j, panels, to);
    } else if (panels > 0) {
      decode_dense_panels(b, k, depth, n + j, panels, to);
    } else {
      decode_any_panel(b, k, depth, n + j, min64(kPanel, width - j), to);
    }
    j += max64(panels, 1) * kPanel;
    to += max64(panels, 1) * kPanel * depth;
  }
}

struct Problem {
  int64_t m, n, k;
  bool accumulate;
  bool bytes;  // SENINT8: fp32 sums over kExactDepth values of k are exact and join in wrapping int32
  Matrix a, b, c;
};

/// Columns [n, n+width) of rows [m0, m0+rows) of C while k advances: fp32 sums and, for SENINT8, int32 totals.
struct Tile {
  const Problem& p;
  int64_t m0, rows, n, width;
  float* sums;
  int32_t* totals = nullptr;

  Tile(const Problem& problem, int64_t first_row, int64_t n_rows, int64_t first_column, int64_t columns)
      : p(problem), m0(first_row), rows(n_rows), n(first_column), width(columns) {
    const size_t words = static_cast<size_t>(rows * kTilePitch);
    sums = static_cast<float*>(scratch(kScratchC, sizeof(float) * words));
    if (p.bytes) totals = static_cast<int32_t*>(scratch(kScratchState, sizeof(int32_t) * words));
    for (int64_t r = 0; r < rows && p.bytes; ++r) load_totals(row(r), totals + r * kTilePitch);
    for (int64_t r = 0; r < rows && p.accumulate && !p.bytes; ++r) {
      load_span(p.c.format, row(r), p.c.column, n, width, sums + r * kTilePitch);
    }
  }

  std::byte* row(int64_t r) const { return p.c.base + p.c.row_offset(m0 + r); }
  /// Whether the sums start from 0 at k.
  bool first(int64_t k) const { return p.bytes ? k % kExactDepth == 0 : k == 0 && !p.accumulate; }
  /// After the values of k below `end`.
  void advance(int64_t end) {
    if (!p.bytes || (end % kExactDepth != 0 && end != p.k)) return;
    for (int64_t r = 0; r < rows; ++r) {
      int32_t* to = totals + r * kTilePitch;
      const float* from = sums + r * kTilePitch;
      for (int64_t j = 0; j < width; j += 16) store_i(to + j, add(load_i(to + j), truncate(load(from + j))));
    }
  }
  void finish() {
    for (int64_t r = 0; r < rows; ++r) {
      if (p.bytes) {
        store_totals(row(r), totals + r * kTilePitch);
      } else {
        store_span(p.c.format, row(r), p.c.column, n, width, sums + r * kTilePitch);
      }
    }
  }

 private:
  void load_totals(const std::byte* from, int32_t* to) const {
    for (int64_t j = 0; j < width; ++j) {
      to[j] = 0;
      if (p.accumulate) load_run_int(p.c.format, from + offset_of(p.c.column, n + j), 0, 1, to + j);
    }
  }
  void store_totals(std::byte* to, const int32_t* from) const {
    for (int64_t j = 0; j < width; ++j) store_run_int(p.c.format, to + offset_of(p.c.column, n + j), 0, 1, from + j);
  }
};

/// Columns [n, n+width) of rows [m0, m0+rows) through decoded panels.
inline void multiply_panels(const Problem& p, const float* a, int64_t m0, int64_t rows, int64_t n, int64_t width) {
  static constexpr MultiplyTable<Format::IEEE_FP32, kTileRows, panel_vectors> kTable;
  float* panels = static_cast<float*>(scratch(kScratchB, sizeof(float) * kDepth * kWidth));
  Tile tile(p, m0, rows, n, width);
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  const int64_t step = rows < kManyRows ? kFewDepth : kDepth;
  for (int64_t k = 0; k < p.k; k += step) {
    const int64_t depth = min64(step, p.k - k);
    const float* block = a + k / kDepth * rows * kRowPitch + k % kDepth;
    decode_panels(p.b, k, depth, n, width, panels);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t from = t * rows / tiles, count = (t + 1) * rows / tiles - from;
      const MultiplyFunction run = kTable.function[count];
      for (int64_t j = 0; j < width; j += kPanel) {
        run(block + from * kRowPitch, reinterpret_cast<const std::byte*>(panels + j * depth), kPanel * 4, depth,
            tile.sums + from * kTilePitch + j, tile.first(k));
      }
    }
    tile.advance(k + depth);
  }
  tile.finish();
}

/// Few rows: B is streamed once, decoded in registers. `width` columns lie side by side at every k.
template <Format f>
void multiply_direct(const Problem& p, const float* a, int64_t m0, int64_t rows, int64_t n, int64_t width) {
  static constexpr MultiplyTable<f, kDirectRows, direct_vectors> kTable;
  const MultiplyFunction run = kTable.function[rows];
  const int64_t columns = direct_vectors(static_cast<int>(rows)) * 16;
  Tile tile(p, m0, rows, n, width);
  const std::byte* base = p.b.base + offset_of(p.b.column, n);
  for (int64_t k = 0; k < p.k;) {
    const int64_t within = k % kDepth;
    int64_t depth = min64(min64(kDepth - within, kFewDepth), p.k - k);
    if (p.b.row.block) depth = min64(depth, p.b.row.block - k % p.b.row.block);
    const std::byte* b = base + offset_of(p.b.row, k);
    for (int64_t j = 0; j < width; j += columns) {
      run(a + (k / kDepth) * rows * kRowPitch + within, b + j * vector_bytes(f), p.b.row.inner, depth, tile.sums + j,
          tile.first(k));
    }
    k += depth;
    tile.advance(k);
  }
  tile.finish();
}

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
  const int64_t blocks = (p.k + kDepth - 1) / kDepth;
  const int64_t limit = max64(kRowBlockFloats / (blocks * kRowPitch) / kTileRows, 4) * kTileRows;
  const DirectFunction direct = p.m <= kDirectRows ? direct_function(p.b.format) : nullptr;
  for (int64_t m0 = 0; m0 < p.m; m0 += limit) {
    const int64_t rows = min64(limit, p.m - m0);
    float* a = static_cast<float*>(scratch(kScratchA, sizeof(float) * static_cast<size_t>(blocks * rows * kRowPitch)));
    decode_rows(p.a, m0, rows, p.k, a);
    for (int64_t n = 0; n < p.n;) {
      int64_t width = 64;
      if (!direct || side_by_side(p.b, n, p.n) < width) {
        width = min64(rows < kManyRows ? 64 : kWidth, p.n - n);
        multiply_panels(p, a, m0, rows, n, width);
      } else {
        direct(p, a, m0, rows, n, width);
      }
      n += width;
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
        const int64_t x = read_int(p.a.format, a + offset_of(p.a.column, k));
        const std::byte* b = p.b.base + offset_of(p.b.row, k);
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
inline Groups shared_batches(const Shape& shape, bool accumulate, const View& b) {
  Groups found;
  for (int d = 0; d < shape.rank - 3 && !accumulate && found.count < 2; ++d) {
    const bool same = b.dim[d].inner == 0 && (b.dim[d].block == 0 || b.dim[d].outer == 0);
    if (!same || shape.extent[d] == 1) continue;
    found.dim[found.count] = d;
    found.extent[found.count++] = shape.extent[d];
  }
  return found;
}

void matmul(const Shape& shape, bool accumulate, const View& c, const View& a, const View& b) {
  const int batch = shape.rank - 3, m = batch, n = batch + 1, k = batch + 2;
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
  const Groups groups = shared_batches(shape, accumulate, b);
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
