// SPDX-License-Identifier: Apache-2.0
// Products of many rows: chunks of B are decoded so that they stay in the second cache, then tiles of a few rows of A
// so that they stay in the first one. The sums of a tile stay in registers over the whole depth of a chunk, and wait in
// fp32 while k has further chunks.
//
// Where a tile of A holds nothing but zeros, as in the masked half of causal attention, its multiply-adds are left out.
// That changes no bit: products of two SEN169_FP16 never underflow, so a sum that started from +0 is never -0, and
// adding +0 or -0 to it does nothing. B must be finite there, as 0 * NaN is NaN.
#pragma once
#include "matmul_operands.h"

SPYRE_ISA_BEGIN

constexpr int kChunkDepth = 768;             // k of a chunk of B, at most
constexpr int kRunDepth = 64;                // k of A that is decoded, or left out, at a time
constexpr int kRunPitch = kChunkDepth + 16;  // floats from row to row of a tile of A; spreads cache sets
constexpr int kRuns = kChunkDepth / kRunDepth;
constexpr int64_t kManyRows = 1024;  // rows whose sums wait at a time
static_assert(kChunkDepth % kRunDepth == 0);

/// rows x kPanel outputs over `depth` values of k.
template <int rows>
void multiply_panel(const float* a, const float* b, int64_t depth, float* c, bool first) {
  F sum[rows][kTileVectors];
  SPYRE_UNROLL
  for (int r = 0; r < rows; ++r) {
    SPYRE_UNROLL
    for (int v = 0; v < kTileVectors; ++v) sum[r][v] = first ? splat(0.0f) : load(c + r * kTilePitch + v * 16);
  }
  for (int64_t k = 0; k < depth; ++k, b += kPanel) {
    F x[kTileVectors];
    SPYRE_UNROLL
    for (int v = 0; v < kTileVectors; ++v) x[v] = load(b + v * 16);
    SPYRE_UNROLL
    for (int r = 0; r < rows; ++r) {
      const F y = splat(a[r * kRunPitch + k]);
      SPYRE_UNROLL
      for (int v = 0; v < kTileVectors; ++v) sum[r][v] = fma(y, x[v], sum[r][v]);
    }
  }
  SPYRE_UNROLL
  for (int r = 0; r < rows; ++r) {
    SPYRE_UNROLL
    for (int v = 0; v < kTileVectors; ++v) store(c + r * kTilePitch + v * 16, sum[r][v]);
  }
}

using PanelFunction = void (*)(const float*, const float*, int64_t, float*, bool);

/// multiply_panel for 1..kTileRows rows.
struct PanelTable {
  PanelFunction function[kTileRows + 1];
  template <int rows>
  constexpr void fill() {
    if constexpr (rows > 0) {
      function[rows] = multiply_panel<rows>;
      fill<rows - 1>();
    }
  }
  constexpr PanelTable() : function{} { fill<kTileRows>(); }
};

/// A part of B as panels of fp32: panel after panel of depth rows of kPanel floats.
struct Chunk {
  int64_t k, depth, n, width;
  float* panels;
  int finite = -1;  // whether it holds no NaN and no infinity; -1: not looked at

  bool is_finite() {
    if (finite < 0) {
      const I exponent = splat_i(0x7F800000);
      const int64_t floats_in_all = (width + kPanel - 1) / kPanel * kPanel * depth;
      finite = 1;
      for (int64_t i = 0; i < floats_in_all && finite; i += kPanel) {
        for (int v = 0; v < kTileVectors; ++v) {
          if (any(eq(and_(bits(load(panels + i + v * 16)), exponent), exponent))) finite = 0;
        }
      }
    }
    return finite != 0;
  }
};

/// Values of k, from the start of a chunk, for which a tile of A is multiplied: the others are zeros.
struct Stretches {
  int count = 0;
  int64_t from[kRuns], end[kRuns];

  void add(int64_t k, int64_t n) {
    if (count > 0 && end[count - 1] == k) {
      end[count - 1] = k + n;
    } else {
      from[count] = k;
      end[count++] = k + n;
    }
  }
};

/// Whether kRunDepth codes of SEN169_FP16 are all +0 or -0.
SPYRE_INLINE bool codes_are_zero(const std::byte* p) {
  static_assert(kRunDepth == 64);
  const int32_t* words = reinterpret_cast<const int32_t*>(p);
  const I magnitude = and_(or_(load_i(words), load_i(words + 16)), splat_i(0x7FFF7FFF));
  return !any(not_(eq(magnitude, splat_i(0))));
}

/// Rows [first, first + count) of a problem: where those of A and C lie, in bytes from their bases.
struct RowBlock {
  int64_t first, count;
  int64_t *a, *c;

  RowBlock(const Problem& p, int64_t m0, int64_t rows) : first(m0), count(rows) {
    a = static_cast<int64_t*>(scratch(kScratchRows, sizeof(int64_t) * 2 * static_cast<size_t>(rows)));
    c = a + rows;
    row_offsets(p.a, m0, rows, a);
    row_offsets(p.c, m0, rows, c);
  }
};

/// Some rows of a block, at most kTileRows.
struct RowTile {
  const Problem* problem;
  int64_t first;  // from the start of the block
  int rows;
  const int64_t *a, *c;

  RowTile(const Problem& p, const RowBlock& block, int64_t t, int64_t tiles) : problem(&p) {
    first = t * block.count / tiles;
    rows = static_cast<int>((t + 1) * block.count / tiles - first);
    a = block.a + first;
    c = block.c + first;
  }

  /// Whether runs of kRunDepth values of k lie side by side as codes.
  bool has_runs() const {
    const DimMap& m = problem->a.column;
    const bool whole = !problem->a.taps || problem->a.tap_depth % kRunDepth == 0;
    return problem->a.format == Format::SEN169_FP16 && m.inner == 2 && whole &&
           (m.block % kRunDepth == 0 || m.outer == m.block * m.inner);
  }

  /// A for the k of a chunk as fp32, rows kRunPitch floats apart. Runs of zeros that may be left out are.
  Stretches decode(Chunk& chunk, float* to) const {
    const Problem& p = *problem;
    Stretches found;
    if (!has_runs()) {
      for (int r = 0; r < rows; ++r) {
        load_summed(p.a, p.a.base + a[r], p.a.column, chunk.k, chunk.depth, to + r * kRunPitch);
      }
      found.add(0, chunk.depth);
      return found;
    }
    const bool may_skip = p.b.format == Format::SEN169_FP16 && !p.accumulate;
    for (int64_t k = 0; k < chunk.depth; k += kRunDepth) {
      const int64_t n = min64(kRunDepth, chunk.depth - k);
      const std::byte* from = p.a.base + p.a.offset_of_k(p.a.column, chunk.k + k);
      if (may_skip && n == kRunDepth && is_zero(from) && chunk.is_finite()) continue;
      found.add(k, n);
      for (int r = 0; r < rows; ++r) {
        load_run_vector<Format::SEN169_FP16>(from + a[r], 2, n, to + r * kRunPitch + k);
      }
    }
    return found;
  }

  /// Asks for part i of n of what decode() will read: it comes while another tile is multiplied. Inlined at any rate:
  /// the compiler takes a function that does nothing but prefetch for one that does nothing, and drops calls to it.
  __attribute__((always_inline)) void prefetch(const Chunk& chunk, int64_t i, int64_t n) const {
    const int64_t runs = (chunk.depth + kRunDepth - 1) / kRunDepth;
    for (int64_t run = i * runs / n; run < (i + 1) * runs / n; ++run) {
      const std::byte* from = problem->a.base + problem->a.offset_of_k(problem->a.column, chunk.k + run * kRunDepth);
      for (int r = 0; r < rows; ++r) {
        __builtin_prefetch(from + a[r], 0, 2);
        __builtin_prefetch(from + a[r] + 64, 0, 2);
      }
    }
  }

  /// Asks for the columns of C of one panel, to be written.
  __attribute__((always_inline)) void prefetch_c(int64_t n) const {
    const std::byte* to = problem->c.base + offset_of(problem->c.column, n);
    for (int r = 0; r < rows; ++r) __builtin_prefetch(to + c[r], 1, 2);
  }

 private:
  bool is_zero(const std::byte* from) const {
    for (int r = 0; r < rows; ++r) {
      if (!codes_are_zero(from + a[r])) return false;
    }
    return true;
  }
};

/// Adds the products of a tile with a chunk to `sums`; the sums start from 0 if `first`, and are complete if `last`.
inline void multiply_rows(Chunk& chunk, const RowTile& tile, const RowTile& next, float* sums, bool first, bool last) {
  static constexpr PanelTable kTable;
  float* a = static_cast<float*>(scratch(kScratchRuns, sizeof(float) * kTileRows * kRunPitch));
  const PanelFunction run = kTable.function[tile.rows];
  const int64_t panels = (chunk.width + kPanel - 1) / kPanel;
  const Stretches stretches = tile.decode(chunk, a);
  if (stretches.count == 0 && first) {
    for (int r = 0; r < tile.rows; ++r) __builtin_memset(sums + r * kTilePitch, 0, sizeof(float) * kTilePitch);
  }
  for (int s = 0; s < stretches.count; ++s) {
    const int64_t k = stretches.from[s], depth = stretches.end[s] - k;
    for (int64_t j = 0; j < panels; ++j) {
      if (s == 0 && next.has_runs()) next.prefetch(chunk, j, panels);
      if (s == 0 && last) tile.prefetch_c(chunk.n + j * kPanel);
      run(a + k, chunk.panels + (j * chunk.depth + k) * kPanel, depth, sums + j * kPanel, first && s == 0);
    }
  }
}

/// Columns [n, n+width) of a block of rows, with chunks of `step` along k.
inline void multiply_columns(const Problem& p, const RowBlock& block, int64_t n, int64_t width, int64_t step) {
  const int64_t columns = (width + kPanel - 1) / kPanel * kPanel, tiles = (block.count + kTileRows - 1) / kTileRows;
  float* panels = static_cast<float*>(scratch(kScratchB, sizeof(float) * static_cast<size_t>(step * columns)));
  auto each_tile = [&](Chunk chunk, const auto& body) {
    decode_panels(p.b, chunk.k, chunk.depth, n, width, panels);
    for (int64_t t = 0; t < tiles; ++t) {
      body(chunk, RowTile(p, block, t, tiles), RowTile(p, block, t + 1 < tiles ? t + 1 : 0, tiles));
    }
  };
  if (step >= p.k) {  // the sums of a tile are done at once, and all tiles use the same small buffer
    return each_tile({0, p.k, n, width, panels}, [&](Chunk& chunk, const RowTile& tile, const RowTile& next) {
      Tile sums(p, block.first + tile.first, tile.rows, n, width, tile.c);
      multiply_rows(chunk, tile, next, sums.sums, sums.first(0), true);
      sums.advance(p.k);
      sums.finish();
    });
  }
  Tile sums(p, block.first, block.count, n, width, block.c);
  for (int64_t k = 0; k < p.k; k += step) {
    const int64_t depth = min64(step, p.k - k);
    each_tile({k, depth, n, width, panels}, [&](Chunk& chunk, const RowTile& tile, const RowTile& next) {
      multiply_rows(chunk, tile, next, sums.sums + tile.first * kTilePitch, sums.first(k), k + depth == p.k);
    });
    sums.advance(k + depth);
  }
  sums.finish();
}

/// k of one chunk: as even as possible.
inline int64_t chunk_depth(const Problem& p) {
  const int64_t chunks = (p.k + kChunkDepth - 1) / kChunkDepth;
  if (chunks == 1) return p.k;
  if (p.bytes) return kExactDepth / 2;  // the exact sums end with a chunk
  return ((p.k + chunks - 1) / chunks + kRunDepth - 1) / kRunDepth * kRunDepth;
}

inline void multiply_many(const Problem& p) {
  const int64_t step = chunk_depth(p), cached = second_cache_bytes() / 8 * 5 / static_cast<int64_t>(sizeof(float));
  const int64_t width = max64(min64(cached / step / kPanel * kPanel, kWidth), kPanel);
  for (int64_t m0 = 0; m0 < p.m; m0 += kManyRows) {
    const RowBlock block(p, m0, min64(kManyRows, p.m - m0));
    for (int64_t n = 0; n < p.n; n += width) multiply_columns(p, block, n, min64(width, p.n - n), step);
  }
}

SPYRE_ISA_END
