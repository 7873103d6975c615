// SPDX-License-Identifier: Apache-2.0
// What all ways of matrix multiplication share: where operands lie, how they are decoded, and the sums of C.
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
constexpr int kRowPitch = kDepth + 16;  // floats from row to row of A; not a power of two, to spread cache sets
constexpr int kWidth = 256;             // columns of one tile of C
constexpr int kTilePitch = kWidth + 16;
constexpr int64_t kExactDepth = 1024;  // sums of so many products of two int8 are exact in fp32
static_assert(kExactDepth * 128 * 128 <= 1 << 24 && kExactDepth % kDepth == 0);

constexpr int kMaxGroups = 4;

/// Batches whose rows count as rows of one product, the last one fastest.
struct Groups {
  int count = 0;
  int dim[kMaxGroups];
  int64_t extent[kMaxGroups];
};

/// One operand of one batch: byte address of (i, j) = base + row_offset(i) + offset_of(column, j). Rows may come from
/// several batches, `group_rows` from each. With taps, k runs through `tap_depth` elements at each of them in turn.
struct Matrix {
  std::byte* base;
  Format format;
  DimMap row, column;
  int64_t group_rows = INT64_MAX;
  Groups groups = {};
  DimMap group[kMaxGroups] = {};
  int64_t tap_depth = INT64_MAX;
  const int64_t* taps = nullptr;  // byte offsets

  /// Byte offset of k along `m`, the dim of the operand that is summed.
  int64_t offset_of_k(const DimMap& m, int64_t k) const {
    return taps ? taps[k / tap_depth] + offset_of(m, k % tap_depth) : offset_of(m, k);
  }
  /// Of n values from k on, those of the same tap.
  int64_t within_tap(int64_t k, int64_t n) const { return taps ? min64(n, tap_depth - k % tap_depth) : n; }
  /// The operand as its first tap sees it, moved to the tap of k, and k counted from there.
  Matrix at_tap(int64_t& k) const {
    Matrix moved = *this;
    if (!taps) return moved;
    moved.base += taps[k / tap_depth];
    moved.taps = nullptr;
    k %= tap_depth;
    return moved;
  }

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

/// row_offset of rows [i, i+n), without a division for each.
inline void row_offsets(const Matrix& m, int64_t i, int64_t n, int64_t* to) {
  while (n > 0) {
    const int64_t within = m.group_rows == INT64_MAX ? i : i % m.group_rows;
    const int64_t base = m.row_offset(i) - offset_of(m.row, within), count = min64(n, m.group_rows - within);
    for (int64_t r = 0; r < count; ++r) to[r] = base + offset_of(m.row, within + r);
    i += count;
    n -= count;
    to += count;
  }
}

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

/// Elements [k, k+n) of a row of A, or of a column of B, as fp32; `m` is the dim that is summed.
inline void load_summed(const Matrix& x, const std::byte* base, const DimMap& m, int64_t k, int64_t n, float* to) {
  if (!x.taps) return load_span(x.format, base, m, k, n, to);
  for (int64_t piece; n > 0; k += piece, to += piece, n -= piece) {
    piece = x.within_tap(k, n);
    load_span(x.format, base + x.taps[k / x.tap_depth], m, k % x.tap_depth, piece, to);
  }
}

template <Format f, int vectors>
SPYRE_INLINE void load_vectors(const std::byte* p, F (&x)[vectors]) {
  constexpr int kBytes = vector_bytes(f) * 16;
  SPYRE_UNROLL
  for (int v = 0; v + 1 < vectors; v += 2) load_pair<f>(p + v * kBytes, x[v], x[v + 1]);
  if constexpr (vectors % 2) x[vectors - 1] = load_vector<f>(p + (vectors - 1) * kBytes);
}

/// How many columns from n on, before `end`, lie side by side.
inline int64_t side_by_side(const Matrix& b, int64_t n, int64_t end) {
  if (b.column.inner != format_bytes(b.format)) return 0;
  if (b.column.block == 0 || b.column.outer == b.column.block * b.column.inner) return end - n;
  return min64(end - n, b.column.block - n % b.column.block);
}

/// Several panels whose columns lie side by side.
template <Format f>
void decode_dense_panels(const Matrix& b, int64_t k, int64_t depth, int64_t n, int64_t panels, int64_t pitch,
                         float* to) {
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
      for (int v = 0; v < kTileVectors; ++v) store(to + (q * pitch + r) * kPanel + v * 16, x[v]);
    }
  }
}

/// The same for any format.
inline void decode_dense_panels(const Matrix& b, int64_t k, int64_t depth, int64_t n, int64_t panels, int64_t pitch,
                                float* to) {
  alignas(64) float line[kWidth];
  const std::byte* base = b.base + offset_of(b.column, n);
  for (int64_t r = 0; r < depth; ++r) {
    load_run(b.format, base + offset_of(b.row, k + r), b.column.inner, panels * kPanel, line);
    for (int64_t q = 0; q < panels; ++q) {
      __builtin_memcpy(to + (q * pitch + r) * kPanel, line + q * kPanel, sizeof(float) * kPanel);
    }
  }
}

/// One panel of any layout, zero padded.
inline void decode_any_panel(const Matrix& b, int64_t k, int64_t depth, int64_t n, int64_t columns, float* to) {
  const bool along_k = format_bytes(b.format) == b.row.inner && format_bytes(b.format) != b.column.inner;
  if (along_k) {
    alignas(64) float lines[kPanel][kDepth];
    for (int64_t piece; depth > 0; k += piece, depth -= piece, to += piece * kPanel) {
      piece = min64(depth, kDepth);
      for (int64_t c = 0; c < kPanel; ++c) {
        if (c < columns) load_span(b.format, b.base + offset_of(b.column, n + c), b.row, k, piece, lines[c]);
        if (c >= columns) __builtin_memset(lines[c], 0, sizeof lines[c]);
      }
      transpose(4, reinterpret_cast<std::byte*>(to), kPanel * 4, reinterpret_cast<const std::byte*>(lines),
                sizeof lines[0], kPanel, piece);
    }
    return;
  }
  for (int64_t r = 0; r < depth; ++r) {
    float* row = to + r * kPanel;
    load_span(b.format, b.base + offset_of(b.row, k + r), b.column, n, columns, row);
    for (int64_t c = columns; c < kPanel; ++c) row[c] = 0.0f;
  }
}

/// Decodes `depth` x `width` of B from (k, n) into panels: panel after panel of `pitch` rows of kPanel floats.
inline void decode_tap(const Matrix& b, int64_t k, int64_t depth, int64_t n, int64_t width, int64_t pitch, float* to) {
  for (int64_t j = 0; j < width;) {
    const int64_t panels = side_by_side(b, n + j, n + width) / kPanel;
    if (panels > 0 && b.format == Format::SEN169_FP16) {
      decode_dense_panels<Format::SEN169_FP16>(b, k, depth, n + j, panels, pitch, to);
    } else if (panels > 0) {
      decode_dense_panels(b, k, depth, n + j, panels, pitch, to);
    } else {
      decode_any_panel(b, k, depth, n + j, min64(kPanel, width - j), to);
    }
    j += max64(panels, 1) * kPanel;
    to += max64(panels, 1) * kPanel * pitch;
  }
}

/// The same from tap to tap, with panels of `depth` rows.
inline void decode_panels(const Matrix& b, int64_t k, int64_t depth, int64_t n, int64_t width, float* to) {
  for (int64_t r = 0, piece; r < depth; r += piece) {
    piece = b.within_tap(k + r, depth - r);
    int64_t from = k + r;
    const Matrix tap = b.at_tap(from);
    decode_tap(tap, from, piece, n, width, depth, to + r * kPanel);
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
  const int64_t* offsets;  // of the rows, if they are known
  float* sums;
  int32_t* totals = nullptr;

  Tile(const Problem& problem, int64_t first_row, int64_t n_rows, int64_t first_column, int64_t columns,
       const int64_t* row_offsets = nullptr)
      : p(problem), m0(first_row), rows(n_rows), n(first_column), width(columns), offsets(row_offsets) {
    const size_t words = static_cast<size_t>(rows * kTilePitch);
    sums = static_cast<float*>(scratch(kScratchC, sizeof(float) * words));
    if (p.bytes) totals = static_cast<int32_t*>(scratch(kScratchState, sizeof(int32_t) * words));
    for (int64_t r = 0; r < rows && p.bytes; ++r) load_totals(row(r), totals + r * kTilePitch);
    for (int64_t r = 0; r < rows && p.accumulate && !p.bytes; ++r) {
      load_span(p.c.format, row(r), p.c.column, n, width, sums + r * kTilePitch);
    }
  }

  std::byte* row(int64_t r) const { return p.c.base + (offsets ? offsets[r] : p.c.row_offset(m0 + r)); }
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
    if (p.c.format == Format::SEN169_FP16 && p.c.column.inner == 2) return store_sticks();
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
  /// Stick after stick, as the rows of a stick are neighbours.
  void store_sticks() const {
    const int64_t block = p.c.column.block;
    for (int64_t r0 = 0; r0 < rows; r0 += kTileRows) {
      const int64_t count = min64(kTileRows, rows - r0);
      std::byte* to[kTileRows];
      for (int64_t r = 0; r < count; ++r) to[r] = row(r0 + r);
      for (int64_t j = 0, piece; j < width; j += piece) {
        piece = block ? min64(width - j, block - (n + j) % block) : width - j;
        const int64_t offset = offset_of(p.c.column, n + j);
        for (int64_t r = 0; r < count; ++r) {
          store_run_vector<Format::SEN169_FP16>(to[r] + offset, 2, piece, sums + (r0 + r) * kTilePitch + j);
        }
      }
    }
  }
};

SPYRE_ISA_END
