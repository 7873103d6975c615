// SPDX-License-Identifier: Apache-2.0
// Reductions in the one order of kernels.h: 64 lanes, a pairwise tree per lane, then a fold of the lanes.
//
// A lane that has no value (or one value fewer) takes the neutral element instead, which changes no bit: the tree with
// a neutral leaf performs the same additions. For sums the neutral element is -0.
#pragma once
#include "convert.h"
#include "iterate.h"

SPYRE_ISA_BEGIN

constexpr int kReduceLanes = 64;
constexpr int kMaxTree = 48;  // levels of the binary counter

/// A piece of the reduced index space, in row-major order: n elements `stride` bytes apart.
struct Run {
  int64_t offset, n, stride;
};

struct Runs {
  Run* run;
  int64_t count;
  int64_t elements;
};

/// Runs that are whole rows of 64 elements, each of two halves: row j begins at offset + j*pitch, its second half
/// `half` bytes further on. True of sticks, whose runs are as long as a half or as a row.
struct RegularRows {
  int64_t rows = 0;  // 0: the runs are something else
  int64_t offset = 0, pitch = 0, half = 0;
};

SPYRE_INLINE void append(Runs& runs, Run r) {
  runs.elements += r.n;
  if (runs.count > 0) {
    Run& last = runs.run[runs.count - 1];
    if (last.n == 1) last.stride = r.offset - last.offset;
    bool follows = last.offset + last.n * last.stride == r.offset && (r.n == 1 || r.stride == last.stride);
    if (follows) {
      last.n += r.n;
      return;
    }
  }
  runs.run[runs.count++] = r;
}

/// The dims of `mask` of one operand as runs. The last dim varies fastest.
inline Runs runs_of(const Shape& shape, uint32_t mask, const View& view) {
  int dims[kMaxDims], rank = 0;
  int64_t points = 1;
  for (int d = 0; d < shape.rank; ++d) {
    if (!(mask >> d & 1)) continue;
    dims[rank++] = d;
    points *= shape.extent[d];
  }
  Runs runs{static_cast<Run*>(scratch(kScratchRuns, static_cast<size_t>(points + 1) * sizeof(Run))), 0, 0};
  int64_t index[kMaxDims] = {};
  const int last = rank - 1;
  for (;;) {
    int64_t offset = 0;
    for (int i = 0; i < last; ++i) offset += offset_of(view.dim[dims[i]], index[i]);
    if (rank == 0) {
      append(runs, {0, 1, 0});
    } else {
      const DimMap& m = view.dim[dims[last]];
      const int64_t extent = shape.extent[dims[last]], step = m.block ? m.block : extent;
      for (int64_t v = 0; v < extent; v += step)
        append(runs, {offset + offset_of(m, v), min64(step, extent - v), m.inner});
    }
    int i = last - 1;
    for (; i >= 0; --i) {
      if (++index[i] < shape.extent[dims[i]]) break;
      index[i] = 0;
    }
    if (i < 0) return runs;
  }
}

inline RegularRows regular_rows(const Runs& runs, int bytes) {
  const Run& first = runs.run[0];
  const bool halves = first.n == kReduceLanes / 2, one = runs.count == 1;
  if (first.stride != bytes || runs.elements % kReduceLanes || !(halves || one || first.n == kReduceLanes)) return {};
  const int64_t step = one ? kReduceLanes * bytes : runs.run[1].offset - first.offset;
  for (int64_t i = 1; i < runs.count; ++i) {
    const Run& r = runs.run[i];
    if (r.n != first.n || r.stride != bytes || r.offset != first.offset + i * step) return {};
  }
  const int64_t rows = runs.elements / kReduceLanes;
  if (halves) return {rows, first.offset, 2 * step, step};
  return {rows, first.offset, step, kReduceLanes / 2 * bytes};
}

template <ROp op>
struct FloatReduce {
  using V = F;
  using T = float;
  static SPYRE_INLINE V neutral() {
    if (op == ROp::sum) return splat(-0.0f);
    if (op == ROp::prod) return splat(1.0f);
    return floats(splat_i(op == ROp::max ? static_cast<int32_t>(0xFF800000u) : 0x7F800000));
  }
  static SPYRE_INLINE V join(V a, V b) {
    return op == ROp::sum ? add(a, b) : op == ROp::prod ? mul(a, b) : op == ROp::max ? maximum(a, b) : minimum(a, b);
  }
  template <int n>
  static SPYRE_INLINE V upper(V x) {
    return lanes_from<n>(x);
  }
  static SPYRE_INLINE V read(const T* p) { return load(p); }
  static SPYRE_INLINE void write(T* p, V x) { store(p, x); }
  static SPYRE_INLINE void load_elements(Format f, const std::byte* p, int64_t stride, int64_t n, T* to) {
    load_run(f, p, stride, n, to);
  }
  static SPYRE_INLINE void store_elements(Format f, std::byte* p, int64_t stride, int64_t n, const T* from) {
    store_run(f, p, stride, n, from);
  }
};

template <ROp op>
struct IntReduce {
  using V = I;
  using T = int32_t;
  static SPYRE_INLINE V neutral() {
    return splat_i(op == ROp::sum ? 0 : op == ROp::prod ? 1 : op == ROp::max ? INT32_MIN : INT32_MAX);
  }
  static SPYRE_INLINE V join(V a, V b) {
    return op == ROp::sum ? add(a, b) : op == ROp::prod ? mul(a, b) : op == ROp::max ? maximum(a, b) : minimum(a, b);
  }
  template <int n>
  static SPYRE_INLINE V upper(V x) {
    return bits(lanes_from<n>(floats(x)));
  }
  static SPYRE_INLINE V read(const T* p) { return load_i(p); }
  static SPYRE_INLINE void write(T* p, V x) { store_i(p, x); }
  static SPYRE_INLINE void load_elements(Format f, const std::byte* p, int64_t stride, int64_t n, T* to) {
    load_run_int(f, p, stride, n, to);
  }
  static SPYRE_INLINE void store_elements(Format f, std::byte* p, int64_t stride, int64_t n, const T* from) {
    store_run_int(f, p, stride, n, from);
  }
};

template <class R>
SPYRE_INLINE typename R::T join_scalars(typename R::T a, typename R::T b) {
  typename R::T x[16] = {a}, y[16] = {b};
  R::write(x, R::join(R::read(x), R::read(y)));
  return x[0];
}

/// One row of the tree: the 64 lanes.
template <class R>
struct Row {
  typename R::V v[4];
};

template <class R>
SPYRE_INLINE Row<R> join(const Row<R>& a, const Row<R>& b) {
  return {{R::join(a.v[0], b.v[0]), R::join(a.v[1], b.v[1]), R::join(a.v[2], b.v[2]), R::join(a.v[3], b.v[3])}};
}

/// Binary counter of rows; stack[l] holds a tree of 2^l rows while bit l of count is set.
template <class R>
struct Tree {
  int64_t count = 0;
  Row<R> stack[kMaxTree];

  /// Adds a complete subtree of 2^level rows; count must be a multiple of 2^level.
  SPYRE_INLINE void push(Row<R> row, int level) {
    int l = level;
    for (; count >> l & 1; ++l) row = join(stack[l], row);
    stack[l] = row;
    count += int64_t{1} << level;
  }
  SPYRE_INLINE Row<R> total() const {
    Row<R> row;
    bool first = true;
    for (int l = 0; count >> l; ++l) {
      if (!(count >> l & 1)) continue;
      row = first ? stack[l] : join(stack[l], row);
      first = false;
    }
    return row;
  }
};

template <class R>
SPYRE_INLINE typename R::T fold(const Row<R>& row) {
  using V = typename R::V;
  V x0 = R::join(row.v[0], row.v[2]), x1 = R::join(row.v[1], row.v[3]);  // lane l joins l + 32
  V x = R::join(x0, x1);                                                 // l + 16
  x = R::join(x, R::template upper<8>(x));
  x = R::join(x, R::template upper<4>(x));
  x = R::join(x, R::template upper<2>(x));
  x = R::join(x, R::template upper<1>(x));
  typename R::T t[16];
  R::write(t, x);
  return t[0];
}

template <class R, Format f>
SPYRE_INLINE Row<R> load_row(const std::byte* p, int64_t half) {
  Row<R> row;
  load_pair<f>(p, row.v[0], row.v[1]);
  load_pair<f>(p + half, row.v[2], row.v[3]);
  return row;
}

/// Whole rows, four at a time where the counter allows.
template <class R, Format f>
SPYRE_INLINE void push_rows(Tree<R>& tree, const std::byte* p, const RegularRows& rows) {
  const int64_t pitch = rows.pitch, half = rows.half;
  for (int64_t r = 0; r < rows.rows;) {
    const std::byte* q = p + r * pitch;
    if (tree.count % 4 == 0 && r + 4 <= rows.rows) {
      Row<R> a = join(load_row<R, f>(q, half), load_row<R, f>(q + pitch, half));
      Row<R> b = join(load_row<R, f>(q + 2 * pitch, half), load_row<R, f>(q + 3 * pitch, half));
      tree.push(join(a, b), 2);
      r += 4;
    } else {
      tree.push(load_row<R, f>(q, half), 0);
      ++r;
    }
  }
}

/// The part of a contiguous run that is whole rows; returns its elements.
template <class R, Format f>
SPYRE_INLINE int64_t push_run(Tree<R>& tree, const std::byte* p, int64_t n) {
  constexpr int64_t kHalf = vector_bytes(f) * kReduceLanes / 2;
  push_rows<R, f>(tree, p, {n / kReduceLanes, 0, 2 * kHalf, kHalf});
  return n / kReduceLanes * kReduceLanes;
}

template <class R, Format f>
typename R::T reduce_regular(const std::byte* base, const RegularRows& rows) {
  Tree<R> tree;
  push_rows<R, f>(tree, base + rows.offset, rows);
  return fold<R>(tree.total());
}

template <class R>
using RegularFunction = typename R::T (*)(const std::byte*, const RegularRows&);

/// For the formats that are worth it; null for others.
template <class R>
inline RegularFunction<R> pick_regular(Format f) {
  if constexpr (__is_same(typename R::T, float)) {
    if (f == Format::SEN169_FP16) return reduce_regular<R, Format::SEN169_FP16>;
    if (f == Format::IEEE_FP32) return reduce_regular<R, Format::IEEE_FP32>;
  }
  return nullptr;
}

/// One output: all its values, in order.
template <class R>
typename R::T reduce_one(Format f, const std::byte* base, const Runs& runs) {
  using T = typename R::T;
  Tree<R> tree;
  alignas(64) T pending[kReduceLanes];
  int64_t filled = 0;
  auto push_pending = [&] {
    tree.push({{R::read(pending), R::read(pending + 16), R::read(pending + 32), R::read(pending + 48)}}, 0);
  };
  for (int64_t k = 0; k < runs.count; ++k) {
    const Run& run = runs.run[k];
    const std::byte* p = base + run.offset;
    int64_t i = 0;
    while (i < run.n) {
      if constexpr (sizeof(T) == 4 && __is_same(T, float)) {
        if (filled == 0 && run.n - i >= kReduceLanes) {
          if (f == Format::SEN169_FP16 && run.stride == 2)
            i += push_run<R, Format::SEN169_FP16>(tree, p + i * 2, run.n - i);
          if (f == Format::IEEE_FP32 && run.stride == 4)
            i += push_run<R, Format::IEEE_FP32>(tree, p + i * 4, run.n - i);
          if (i == run.n) break;
        }
      }
      int64_t m = min64(kReduceLanes - filled, run.n - i);
      R::load_elements(f, p + i * run.stride, run.stride, m, pending + filled);
      filled += m;
      i += m;
      if (filled == kReduceLanes) {
        push_pending();
        filled = 0;
      }
    }
  }
  if (filled) {
    T empty[16];
    R::write(empty, R::neutral());
    for (int64_t i = filled; i < kReduceLanes; ++i) pending[i] = empty[0];
    push_pending();
  }
  return fold<R>(tree.total());
}

/// Columns: 16 outputs side by side. `state` holds, per tree level, 64 lanes of 16 values.
template <class R>
struct ColumnTree {
  using T = typename R::T;
  T* state;
  static constexpr int64_t kLevel = kReduceLanes * 16;

  SPYRE_INLINE T* at(int level, int64_t lane) const { return state + level * kLevel + lane * 16; }
  /// Value number i = 64*j + lane of every column.
  SPYRE_INLINE void push(int64_t i, typename R::V x) {
    const int64_t j = i / kReduceLanes, lane = i % kReduceLanes;
    int l = 0;
    for (; j >> l & 1; ++l) x = R::join(R::read(at(l, lane)), x);
    R::write(at(l, lane), x);
  }
  SPYRE_INLINE typename R::V lane_total(int64_t lane, int64_t n) const {
    const int64_t count = (n - lane + kReduceLanes - 1) / kReduceLanes;
    typename R::V x = R::neutral();
    bool first = true;
    for (int l = 0; count >> l; ++l) {
      if (!(count >> l & 1)) continue;
      x = first ? R::read(at(l, lane)) : R::join(R::read(at(l, lane)), x);
      first = false;
    }
    return x;
  }
  SPYRE_INLINE typename R::V total(int64_t n) const {
    const int64_t lanes = min64(n, kReduceLanes);
    for (int64_t lane = 0; lane < lanes; ++lane) R::write(at(kMaxTree - 1, lane), lane_total(lane, n));
    for (int64_t half = kReduceLanes / 2; half > 0; half /= 2) {
      for (int64_t lane = 0; lane + half < lanes && lane < half; ++lane) {
        T* p = at(kMaxTree - 1, lane);
        R::write(p, R::join(R::read(p), R::read(p + half * 16)));
      }
    }
    return R::read(at(kMaxTree - 1, 0));
  }
};

template <class R>
SPYRE_INLINE typename R::V load_columns(Format f, const std::byte* p, int64_t stride, int m) {
  if constexpr (__is_same(typename R::T, float)) {
    if (f == Format::SEN169_FP16 && stride == 2) return load_vector<Format::SEN169_FP16>(p, m);
    if (f == Format::IEEE_FP32 && stride == 4) return load_vector<Format::IEEE_FP32>(p, m);
  }
  typename R::T t[16] = {};
  R::load_elements(f, p, stride, m, t);
  return R::read(t);
}

template <class R>
void reduce_columns(Format f, const std::byte* base, int64_t stride, int m, const Runs& runs, typename R::T* to) {
  ColumnTree<R> tree{static_cast<typename R::T*>(
      scratch(kScratchState, sizeof(typename R::T) * static_cast<size_t>(kMaxTree * ColumnTree<R>::kLevel)))};
  int64_t i = 0;
  for (int64_t k = 0; k < runs.count; ++k) {
    const Run& run = runs.run[k];
    const std::byte* p = base + run.offset;
    for (int64_t v = 0; v < run.n; ++v, p += run.stride) tree.push(i++, load_columns<R>(f, p, stride, m));
  }
  R::write(to, tree.total(runs.elements));
}

template <class R>
void reduce_with(const Shape& shape, uint32_t mask, bool accumulate, const View& out, const View& in) {
  using T = typename R::T;
  for (int d = 0; d < shape.rank; ++d) {
    if (shape.extent[d] <= 0) return;
  }
  const Runs runs = runs_of(shape, mask, in);
  const int bytes = format_bytes(in.format);
  const bool rows = runs.run[0].stride == bytes && runs.run[0].n > 1;
  const RegularRows regular = regular_rows(runs, bytes);
  const RegularFunction<R> sticks = regular.rows ? pick_regular<R>(in.format) : nullptr;
  const View* views[2] = {&in, &out};
  for_each_loops<2>(shape, ~mask, views, 2, [&](const Loops<2>& loops) {
    const int inner = loops.rank - 1;
    const int64_t n = inner < 0 ? 1 : loops.extent[inner];
    const int64_t from = inner < 0 ? 0 : loops.stride[inner][0], to = inner < 0 ? 0 : loops.stride[inner][1];
    for_each_point(loops, inner < 0 ? 0 : inner, [&](std::byte* const* p) {
      for (int64_t i = 0; i < n; i += 16) {
        const int m = static_cast<int>(min64(16, n - i));
        T result[16];
        if (sticks) {
          for (int l = 0; l < m; ++l) result[l] = sticks(p[0] + (i + l) * from, regular);
        } else if (rows || m == 1) {
          for (int l = 0; l < m; ++l) result[l] = reduce_one<R>(in.format, p[0] + (i + l) * from, runs);
        } else {
          reduce_columns<R>(in.format, p[0] + i * from, from, m, runs, result);
        }
        std::byte* q = p[1] + i * to;
        if (accumulate) {
          T present[16];
          R::load_elements(out.format, q, to, m, present);
          for (int l = 0; l < m; ++l) result[l] = join_scalars<R>(result[l], present[l]);
        }
        R::store_elements(out.format, q, to, m, result);
      }
    });
  });
}

void reduce(ROp op, Compute compute, const Shape& shape, uint32_t mask, bool accumulate, const View& out,
            const View& in) {
  const bool integers = compute == Compute::i32;
  switch (op) {
#define SPYRE_REDUCE(name)                                                                \
  case ROp::name:                                                                         \
    return integers ? reduce_with<IntReduce<ROp::name>>(shape, mask, accumulate, out, in) \
                    : reduce_with<FloatReduce<ROp::name>>(shape, mask, accumulate, out, in);
    SPYRE_REDUCE(sum)
    SPYRE_REDUCE(max)
    SPYRE_REDUCE(min)
    SPYRE_REDUCE(prod)
#undef SPYRE_REDUCE
  }
}

SPYRE_ISA_END
