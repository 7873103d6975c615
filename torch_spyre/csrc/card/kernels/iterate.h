// SPDX-License-Identifier: Apache-2.0
// From a shape and the address maps of N operands to a short nest of plain strided loops.
//
// Enters: an iteration box whose dims may be stick dims of some operands. Leaves: one or more Loops, each a nest with
// constant byte strides, dims of extent 1 dropped, ordered by the stride of operand 0 (outermost first), neighbours
// merged where every operand is contiguous across them.
#pragma once
#include "isa.h"

SPYRE_ISA_BEGIN

constexpr int kMaxLevels = 4;  // nesting of one address map
constexpr int kMaxLoops = 24;  // loops after splitting

/// Address along one iteration dim in up to kMaxLevels nested blocks:
/// (v % block[0])*stride[0] + (v / block[0] % (block[1]/block[0]))*stride[1] + ...; blocks divide each other upwards.
struct Map {
  int blocks = 0;
  int64_t block[kMaxLevels - 1];
  int64_t stride[kMaxLevels];
};

SPYRE_INLINE int64_t offset_of(const DimMap& m, int64_t v) {
  return m.block == 0 ? v * m.inner : (v % m.block) * m.inner + (v / m.block) * m.outer;
}

SPYRE_INLINE int64_t offset_of(const Map& m, int64_t v) {
  int64_t offset = 0;
  for (int l = m.blocks; l > 0; --l) {
    offset += v / m.block[l - 1] * m.stride[l];
    v %= m.block[l - 1];
  }
  return offset + v * m.stride[0];
}

/// Index v = outer*g + lane, lane < g: the map of `outer`.
SPYRE_INLINE Map outer_of(const Map& m, int64_t g) {
  Map r;
  int from = m.blocks > 0 && m.block[0] == g ? 1 : 0;
  r.blocks = m.blocks - from;
  for (int l = 0; l <= r.blocks; ++l) r.stride[l] = m.stride[l + from];
  if (from == 0) r.stride[0] *= g;
  for (int l = 0; l < r.blocks; ++l) r.block[l] = m.block[l + from] / g;
  return r;
}

/// Levels that the extent never reaches, that hold one element or that continue the level below are no levels.
SPYRE_INLINE void simplify(Map& m, int64_t extent) {
  while (m.blocks > 0 && m.block[m.blocks - 1] >= extent) --m.blocks;
  if (m.blocks > 0 && m.block[0] == 1) m = outer_of(m, 1);
  for (int l = 1; l <= m.blocks;) {
    int64_t below = l == 1 ? 1 : m.block[l - 2];
    if (m.stride[l] != m.stride[l - 1] * (m.block[l - 1] / below)) {
      ++l;
      continue;
    }
    for (int i = l; i < m.blocks; ++i) {
      m.block[i - 1] = m.block[i];
      m.stride[i] = m.stride[i + 1];
    }
    --m.blocks;
  }
}

SPYRE_INLINE Map map_of(const DimMap& d, int64_t extent) {
  Map m;
  m.stride[0] = d.inner;
  if (d.block != 0) {
    m.blocks = 1;
    m.block[0] = d.block;
    m.stride[1] = d.outer;
    simplify(m, extent);
  }
  return m;
}

/// An iteration box: extents, one map per dim and operand, one base per operand.
template <int N>
struct Box {
  int rank = 0;
  int operands = N;
  int64_t extent[kMaxLoops];
  Map map[kMaxLoops][N];
  std::byte* base[N];
};

template <int N>
struct Loops {
  int rank = 0;
  int operands = N;
  int64_t extent[kMaxLoops];
  int64_t stride[kMaxLoops][N];
  std::byte* base[N];
};

template <int N>
SPYRE_INLINE bool all_linear(const Box<N>& box, int d) {
  for (int k = 0; k < box.operands; ++k) {
    if (box.map[d][k].blocks) return false;
  }
  return true;
}

/// Orders by operand 0, then by the others, and merges contiguous neighbours.
template <int N>
inline void coalesce(Loops<N>& loops) {
  auto outer_first = [&](const int64_t* a, const int64_t* b) {
    for (int k = 0; k < loops.operands; ++k) {
      int64_t x = abs64(a[k]), y = abs64(b[k]);
      if (x != y) return x > y;
    }
    return false;
  };
  for (int i = 1; i < loops.rank; ++i) {
    int64_t extent = loops.extent[i], stride[N];
    for (int k = 0; k < loops.operands; ++k) stride[k] = loops.stride[i][k];
    int j = i;
    for (; j > 0 && outer_first(stride, loops.stride[j - 1]); --j) {
      loops.extent[j] = loops.extent[j - 1];
      for (int k = 0; k < loops.operands; ++k) loops.stride[j][k] = loops.stride[j - 1][k];
    }
    loops.extent[j] = extent;
    for (int k = 0; k < loops.operands; ++k) loops.stride[j][k] = stride[k];
  }
  int kept = 0;
  for (int i = 1; i < loops.rank; ++i) {
    bool merge = true;
    for (int k = 0; k < loops.operands; ++k) {
      merge = merge && loops.stride[kept][k] == loops.stride[i][k] * loops.extent[i];
    }
    if (merge) {
      loops.extent[kept] *= loops.extent[i];
    } else {
      ++kept;
      loops.extent[kept] = loops.extent[i];
    }
    for (int k = 0; k < loops.operands; ++k) loops.stride[kept][k] = loops.stride[i][k];
  }
  if (loops.rank > 0) loops.rank = kept + 1;
}

template <int N, class Body>
void split_and_run(Box<N>& box, const Body& body);

/// Runs [v, v+n) of dim d as a box of its own; no operand crosses a block of its map there.
template <int N, class Body>
void run_piece(const Box<N>& box, int d, int64_t v, int64_t n, const Body& body) {
  Box<N> piece = box;
  piece.extent[d] = n;
  for (int k = 0; k < box.operands; ++k) {
    piece.base[k] += offset_of(box.map[d][k], v);
    piece.map[d][k].blocks = 0;
  }
  split_and_run(piece, body);
}

/// Dim d has blocks that share no divisor: piece by piece, from boundary to boundary.
template <int N, class Body>
void run_pieces(const Box<N>& box, int d, const Body& body) {
  for (int64_t v = 0; v < box.extent[d];) {
    int64_t n = box.extent[d] - v;
    for (int k = 0; k < box.operands; ++k) {
      const Map& m = box.map[d][k];
      if (m.blocks) n = min64(n, m.block[0] - v % m.block[0]);
    }
    run_piece(box, d, v, n, body);
    v += n;
  }
}

/// Splits stick dim d at the common block of all operands; the rest that fills no block becomes a box of its own.
/// False if there is no common block: then the whole box has been run.
template <int N, class Body>
bool split_dim(Box<N>& box, int d, const Body& body) {
  int64_t g = 0;
  for (int k = 0; k < box.operands; ++k) {
    if (box.map[d][k].blocks) g = gcd64(box.map[d][k].block[0], g);
  }
  if (g == 1) {
    run_pieces(box, d, body);
    return false;
  }
  const int64_t rest = box.extent[d] % g, full = box.extent[d] - rest;
  if (rest) run_piece(box, d, full, rest, body);
  const int outer = box.rank++;
  box.extent[outer] = full / g;
  box.extent[d] = g;
  for (int k = 0; k < box.operands; ++k) {
    box.map[outer][k] = outer_of(box.map[d][k], g);
    simplify(box.map[outer][k], full / g);
    box.map[d][k].blocks = 0;
  }
  return true;
}

template <int N, class Body>
void split_and_run(Box<N>& box, const Body& body) {
  for (int d = 0; d < box.rank; ++d) {
    if (!all_linear(box, d) && !split_dim(box, d, body)) return;
  }
  Loops<N> loops;
  loops.operands = box.operands;
  for (int k = 0; k < box.operands; ++k) loops.base[k] = box.base[k];
  for (int d = 0; d < box.rank; ++d) {
    if (box.extent[d] == 1) continue;
    loops.extent[loops.rank] = box.extent[d];
    for (int k = 0; k < box.operands; ++k) loops.stride[loops.rank][k] = box.map[d][k].stride[0];
    ++loops.rank;
  }
  coalesce(loops);
  body(loops);
}

/// Calls body(Loops<N>&) for the whole shape. `dims` selects iteration dims (bit i = dim i).
template <int N, class Body>
inline void for_each_loops(const Shape& shape, uint32_t dims, const View* const* views, int operands,
                           const Body& body) {
  Box<N> box;
  box.operands = operands;
  for (int k = 0; k < operands; ++k) box.base[k] = views[k]->base;
  for (int d = 0; d < shape.rank; ++d) {
    if (shape.extent[d] <= 0) return;
    if (!(dims >> d & 1) || shape.extent[d] == 1) continue;
    box.extent[box.rank] = shape.extent[d];
    for (int k = 0; k < operands; ++k) box.map[box.rank][k] = map_of(views[k]->dim[d], shape.extent[d]);
    ++box.rank;
  }
  split_and_run(box, body);
}

/// Runs body(pointers) for every point of the loops [0, n_outer).
template <int N, class Body>
inline void for_each_point(const Loops<N>& loops, int n_outer, const Body& body) {
  std::byte* p[N];
  int64_t index[kMaxLoops] = {};
  for (int k = 0; k < loops.operands; ++k) p[k] = loops.base[k];
  for (;;) {
    body(p);
    int d = n_outer - 1;
    for (; d >= 0; --d) {
      for (int k = 0; k < loops.operands; ++k) p[k] += loops.stride[d][k];
      if (++index[d] < loops.extent[d]) break;
      for (int k = 0; k < loops.operands; ++k) p[k] -= loops.stride[d][k] * loops.extent[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

/// The two innermost loops, for kernels that walk a rectangle.
template <int N>
struct Rectangle {
  int64_t rows = 1, n = 1;
  int64_t row_stride[N] = {}, stride[N] = {};
};

template <int N>
SPYRE_INLINE Rectangle<N> rectangle_of(const Loops<N>& loops, int* n_outer) {
  Rectangle<N> r;
  int inner = loops.rank - 1, row = loops.rank - 2;
  if (inner >= 0) {
    r.n = loops.extent[inner];
    for (int k = 0; k < loops.operands; ++k) r.stride[k] = loops.stride[inner][k];
  }
  if (row >= 0) {
    r.rows = loops.extent[row];
    for (int k = 0; k < loops.operands; ++k) r.row_stride[k] = loops.stride[row][k];
  }
  *n_outer = row > 0 ? row : 0;
  return r;
}

SPYRE_ISA_END
