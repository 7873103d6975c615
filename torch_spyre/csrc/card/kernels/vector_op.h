// SPDX-License-Identifier: Apache-2.0
// Elementwise operations: vops.def in 16-lane vectors, and sum_views.
//
// Operands in the output's format that are contiguous or constant along a run are used in place; anything else passes
// through a small fp32 (or int32) buffer. The operations of extended_op.h always do.
#pragma once
#include "codes.h"
#include "convert.h"
#include "extended_op.h"
#include "iterate.h"
#include "vmath.h"

SPYRE_ISA_BEGIN

SPYRE_INLINE F one_if(M m) { return select(m, splat(1.0f), splat(0.0f)); }
SPYRE_INLINE I one_if_int(M m) { return select(m, splat_i(1), splat_i(0)); }

template <VOp op>
SPYRE_INLINE F apply(F a, F b, F c) {
  const F zero = splat(0.0f), one = splat(1.0f);
  if constexpr (op == VOp::identity) return a;
  if constexpr (op == VOp::add) return add(a, b);
  if constexpr (op == VOp::sub) return sub(a, b);
  if constexpr (op == VOp::mul) return mul(a, b);
  if constexpr (op == VOp::div) return div(a, b);
  if constexpr (op == VOp::maximum) return maximum(a, b);
  if constexpr (op == VOp::minimum) return minimum(a, b);
  if constexpr (op == VOp::neg) return floats(xor_(bits(a), splat_i(static_cast<int32_t>(0x80000000u))));
  if constexpr (op == VOp::abs) return absolute(a);
  if constexpr (op == VOp::relu) return select(le(a, zero), zero, a);
  if constexpr (op == VOp::exp) return exp(a);
  if constexpr (op == VOp::log) return log(a);
  if constexpr (op == VOp::sqrt) return square_root(a);
  if constexpr (op == VOp::rsqrt) return div(one, square_root(a));
  if constexpr (op == VOp::reciprocal) return div(one, a);
  if constexpr (op == VOp::tanh) return tanh(a);
  if constexpr (op == VOp::sigmoid) return sigmoid(a);
  if constexpr (op == VOp::floor) return round_down(a);
  if constexpr (op == VOp::eq) return one_if(eq(a, b));
  if constexpr (op == VOp::ne) return one_if(ne_or_nan(a, b));
  if constexpr (op == VOp::lt) return one_if(lt(a, b));
  if constexpr (op == VOp::le) return one_if(le(a, b));
  if constexpr (op == VOp::gt) return one_if(lt(b, a));
  if constexpr (op == VOp::ge) return one_if(le(b, a));
  if constexpr (op == VOp::select) return select(ne_or_nan(a, zero), b, c);
}

/// int32 division truncates; x / 0 is 0; the one overflow wraps.
inline I divide(I a, I b) {
  int32_t x[16], y[16];
  store_i(x, a);
  store_i(y, b);
  for (int l = 0; l < 16; ++l) {
    x[l] = y[l] == 0 ? 0 : y[l] == -1 ? static_cast<int32_t>(0u - static_cast<uint32_t>(x[l])) : x[l] / y[l];
  }
  return load_i(x);
}

template <VOp op>
SPYRE_INLINE I apply(I a, I b, I c) {
  const I zero = splat_i(0);
  if constexpr (op == VOp::identity || op == VOp::floor) {
    return a;
  } else if constexpr (op == VOp::add) {
    return add(a, b);
  } else if constexpr (op == VOp::sub) {
    return sub(a, b);
  } else if constexpr (op == VOp::mul) {
    return mul(a, b);
  } else if constexpr (op == VOp::div) {
    return divide(a, b);
  } else if constexpr (op == VOp::maximum) {
    return maximum(a, b);
  } else if constexpr (op == VOp::minimum) {
    return minimum(a, b);
  } else if constexpr (op == VOp::neg) {
    return sub(zero, a);
  } else if constexpr (op == VOp::abs) {
    return maximum(a, sub(zero, a));
  } else if constexpr (op == VOp::relu) {
    return maximum(a, zero);
  } else if constexpr (op == VOp::eq) {
    return one_if_int(eq(a, b));
  } else if constexpr (op == VOp::ne) {
    return one_if_int(not_(eq(a, b)));
  } else if constexpr (op == VOp::lt) {
    return one_if_int(lt(a, b));
  } else if constexpr (op == VOp::le) {
    return one_if_int(not_(lt(b, a)));
  } else if constexpr (op == VOp::gt) {
    return one_if_int(lt(b, a));
  } else if constexpr (op == VOp::ge) {
    return one_if_int(not_(lt(a, b)));
  } else if constexpr (op == VOp::select) {
    return select(eq(a, zero), c, b);
  } else {
    return to_int(apply<op>(from_int(a), from_int(b), from_int(c)));  // exp, log, ... have no integer form
  }
}

/// How a run of one compute domain is read and written in place.
template <Format f>
struct InPlace {
  using V = F;
  static constexpr int kBytes = vector_bytes(f);
  static constexpr Format kFormat = f;
  static SPYRE_INLINE V read(const std::byte* p, int n) { return load_vector<f>(p, n); }
  static SPYRE_INLINE void write(std::byte* p, V x, int n) { store_vector<f>(p, x, n); }
  static SPYRE_INLINE void read_pair(const std::byte* p, V& a, V& b) { load_pair<f>(p, a, b); }
  static SPYRE_INLINE void write_pair(std::byte* p, V a, V b) { store_pair<f>(p, a, b); }
  static SPYRE_INLINE V scalar(Format format, const std::byte* p) {
    if (format == Format::SEN169_FP16) return decode_sen169(splat_i(read_as<int16_t>(p)));
    if (format == Format::IEEE_FP32) return splat(read_as<float>(p));
    float x;
    load_run(format, p, 0, 1, &x);
    return splat(x);
  }
};

struct InPlaceInt {
  using V = I;
  static constexpr int kBytes = 4;
  static constexpr Format kFormat = Format::IEEE_INT32;
  static SPYRE_INLINE V read(const std::byte* p, int n) {
    const int32_t* q = reinterpret_cast<const int32_t*>(p);
    return n == 16 ? load_i(q) : load_i_n(q, n);
  }
  static SPYRE_INLINE void write(std::byte* p, V x, int n) {
    int32_t* q = reinterpret_cast<int32_t*>(p);
    n == 16 ? store_i(q, x) : store_i_n(q, x, n);
  }
  static SPYRE_INLINE void read_pair(const std::byte* p, V& a, V& b) {
    a = read(p, 16);
    b = read(p + 64, 16);
  }
  static SPYRE_INLINE void write_pair(std::byte* p, V a, V b) {
    write(p, a, 16);
    write(p + 64, b, 16);
  }
  static SPYRE_INLINE V scalar(Format format, const std::byte* p) {
    if (format == Format::IEEE_INT32) return splat_i(read_as<int32_t>(p));
    int32_t x;
    load_run_int(format, p, 0, 1, &x);
    return splat_i(x);
  }
};

/// Operand 0 is the output.
using VectorRectangle = Rectangle<4>;

/// Rows of 64 elements of which one operand is the same for all rows, like the weights of a norm: it is read once.
template <VOp op, class P, int shared>
void run_shared_operand(const VectorRectangle& r, std::byte* const* base) {
  using V = typename P::V;
  V same[4];
  P::read_pair(base[1 + shared], same[0], same[1]);
  P::read_pair(base[1 + shared] + 32 * P::kBytes, same[2], same[3]);
  std::byte* out = base[0];
  const std::byte* in = base[2 - shared];
  auto step = [](V x, V y) SPYRE_INLINE_ATTRIBUTE { return shared == 0 ? apply<op>(y, x, x) : apply<op>(x, y, y); };
  for (int64_t row = 0; row < r.rows; ++row, out += r.row_stride[0], in += r.row_stride[2 - shared]) {
    SPYRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      V x, y;
      P::read_pair(in + half * 32 * P::kBytes, x, y);
      P::write_pair(out + half * 32 * P::kBytes, step(x, same[2 * half]), step(y, same[2 * half + 1]));
    }
  }
}

template <VOp op, class P, int n_in, unsigned fixed>
void run_rectangle(const VectorRectangle& r, std::byte* const* base, const Format* formats) {
  using V = typename P::V;
  if constexpr ((op == VOp::mul || op == VOp::add) && fixed == 0 && P::kFormat == Format::SEN169_FP16) {
    if (r.n == 64 && r.rows > 1 && r.row_stride[1] == 0) return run_shared_operand<op, P, 0>(r, base);
    if (r.n == 64 && r.rows > 1 && r.row_stride[2] == 0) return run_shared_operand<op, P, 1>(r, base);
  }
  std::byte* p[4] = {base[0], base[1], n_in > 1 ? base[2] : base[0], n_in > 2 ? base[3] : base[0]};
  for (int64_t row = 0; row < r.rows; ++row) {
    V constant[3] = {};
    SPYRE_UNROLL
    for (int k = 0; k < n_in; ++k) {
      if (fixed >> k & 1) constant[k] = P::scalar(formats[k + 1], p[k + 1]);
    }
    auto step = [&](int64_t i, int m) SPYRE_INLINE_ATTRIBUTE {
      V x[3] = {constant[0], constant[1], constant[2]};
      SPYRE_UNROLL
      for (int k = 0; k < n_in; ++k) {
        if (!(fixed >> k & 1)) x[k] = P::read(p[k + 1] + i * P::kBytes, m);
      }
      P::write(p[0] + i * P::kBytes, apply<op>(x[0], x[1], x[2]), m);
    };
    int64_t i = 0;
    for (; i + 32 <= r.n; i += 32) {
      V x[3] = {constant[0], constant[1], constant[2]}, y[3] = {constant[0], constant[1], constant[2]};
      SPYRE_UNROLL
      for (int k = 0; k < n_in; ++k) {
        if (!(fixed >> k & 1)) P::read_pair(p[k + 1] + i * P::kBytes, x[k], y[k]);
      }
      P::write_pair(p[0] + i * P::kBytes, apply<op>(x[0], x[1], x[2]), apply<op>(y[0], y[1], y[2]));
    }
    for (; i + 16 <= r.n; i += 16) step(i, 16);
    if (i < r.n) step(i, static_cast<int>(r.n - i));
    for (int k = 0; k <= n_in; ++k) p[k] += r.row_stride[k];
  }
}

/// select on SEN169_FP16 moves codes as they are, but for NaN, of which there is one.
template <unsigned fixed>
void select_codes(const VectorRectangle& r, std::byte* const* base, const Format* formats) {
  std::byte* p[4] = {base[0], base[1], base[2], base[3]};
  Codes constant[3] = {};
  for (int64_t row = 0; row < r.rows; ++row) {
    SPYRE_UNROLL
    for (int k = 0; k < 3; ++k) {
      if (!(fixed >> k & 1) || (row > 0 && r.row_stride[k + 1] == 0)) continue;
      const F x = InPlace<Format::SEN169_FP16>::scalar(formats[k + 1], p[k + 1]);
      // A condition counts as it is: what is too small for a code is not 0.
      constant[k] = splat_code(k == 0 ? any(ne_or_nan(x, splat(0.0f))) : encode_one(x));
    }
    auto step = [&](int64_t i, int n) SPYRE_INLINE_ATTRIBUTE {
      Codes x[3] = {constant[0], constant[1], constant[2]};
      SPYRE_UNROLL
      for (int k = 0; k < 3; ++k) {
        if (!(fixed >> k & 1)) x[k] = load_codes(p[k + 1] + i * 2, n);
      }
      store_codes(p[0] + i * 2, select_code(x[0], x[1], x[2]), n);
    };
    int64_t i = 0;
    for (; i + kCodeLanes <= r.n; i += kCodeLanes) step(i, kCodeLanes);
    if (i < r.n) step(i, static_cast<int>(r.n - i));
    for (int k = 0; k < 4; ++k) p[k] += r.row_stride[k];
  }
}

using RectangleFunction = void (*)(const VectorRectangle&, std::byte* const*, const Format*);

/// The function for each set of operands that stay constant along a run; null: go through buffers.
template <VOp op, class P, int n_in>
inline RectangleFunction pick(unsigned fixed) {
  if constexpr (op == VOp::select && P::kFormat == Format::SEN169_FP16) {
    constexpr RectangleFunction kTable[] = {select_codes<0>, select_codes<1>, select_codes<2>, select_codes<3>,
                                            select_codes<4>, select_codes<5>, select_codes<6>, nullptr};
    return kTable[fixed];
  } else if constexpr (n_in == 1) {
    return fixed == 0 ? run_rectangle<op, P, 1, 0> : run_rectangle<op, P, 1, 1>;
  } else if constexpr (n_in == 2) {
    constexpr RectangleFunction kTable[] = {run_rectangle<op, P, 2, 0>, run_rectangle<op, P, 2, 1>,
                                            run_rectangle<op, P, 2, 2>, nullptr};
    return kTable[fixed];
  } else {
    constexpr RectangleFunction kTable[] = {
        run_rectangle<op, P, 3, 0>, run_rectangle<op, P, 3, 1>, run_rectangle<op, P, 3, 2>, run_rectangle<op, P, 3, 3>,
        run_rectangle<op, P, 3, 4>, run_rectangle<op, P, 3, 5>, run_rectangle<op, P, 3, 6>, nullptr};
    return kTable[fixed];
  }
}

template <class P>
inline RectangleFunction pick_op(VOp op, unsigned fixed) {
  switch (op) {
#define VOP(code, name, operands)                                                         \
  case VOp::name:                                                                         \
    if constexpr (VOp::name < kFirstExtended) return pick<VOp::name, P, operands>(fixed); \
    break;
#include "spyre/vops.def"
#undef VOP
  }
  return nullptr;
}

/// One run through buffers: any format, any stride.
template <class P, class T>
void run_buffered(VOp op, const VectorRectangle& r, std::byte* const* base, const Format* formats, int n_in,
                  void (*read)(Format, const std::byte*, int64_t, int64_t, T*),
                  void (*write)(Format, std::byte*, int64_t, int64_t, const T*)) {
  T buffer[4][kChunk];
  const RectangleFunction run = pick_op<P>(op, 0);
  const Format all[4] = {P::kFormat, P::kFormat, P::kFormat, P::kFormat};
  for (int64_t row = 0; row < r.rows; ++row) {
    for (int64_t i = 0; i < r.n; i += kChunk) {
      VectorRectangle piece;
      piece.n = min64(kChunk, r.n - i);
      std::byte* p[4];
      for (int k = 0; k <= n_in; ++k) {
        p[k] = base[k] + row * r.row_stride[k] + i * r.stride[k];
        if (formats[k] == P::kFormat && r.stride[k] == P::kBytes) continue;
        if (k > 0) load_chunk<T>(read, formats[k], p[k], r.stride[k], piece.n, buffer[k]);
        p[k] = reinterpret_cast<std::byte*>(buffer[k]);
      }
      run(piece, p, all);
      if (p[0] == reinterpret_cast<std::byte*>(buffer[0])) {
        write(formats[0], base[0] + row * r.row_stride[0] + i * r.stride[0], r.stride[0], piece.n, buffer[0]);
      }
    }
  }
}

template <class P>
inline RectangleFunction pick_in_place(VOp op, const VectorRectangle& r, const Format* formats, int n_in) {
  if (formats[0] != P::kFormat || (r.stride[0] != P::kBytes && r.n > 1)) return nullptr;
  unsigned fixed = 0;
  for (int k = 1; k <= n_in; ++k) {
    if (r.stride[k] == 0) {
      fixed |= 1u << (k - 1);
    } else if (formats[k] != P::kFormat || r.stride[k] != P::kBytes) {
      return nullptr;
    }
  }
  return pick_op<P>(op, fixed);
}

void vector_op(VOp op, Compute compute, const Shape& shape, const View& out, const View* in, int n_in) {
  const View* views[4] = {&out};
  Format formats[4] = {out.format};
  for (int k = 0; k < n_in; ++k) {
    views[k + 1] = &in[k];
    formats[k + 1] = in[k].format;
  }
  if (op >= kFirstExtended) return extended_op(op, compute, shape, views, formats, n_in);
  for_each_loops<4>(shape, ~0u, views, n_in + 1, [&](const Loops<4>& loops) {
    int n_outer;
    const VectorRectangle r = rectangle_of(loops, &n_outer);
    const bool floating = compute == Compute::f32;
    RectangleFunction run = floating ? pick_in_place<InPlace<Format::SEN169_FP16>>(op, r, formats, n_in)
                                     : pick_in_place<InPlaceInt>(op, r, formats, n_in);
    if (floating && !run) run = pick_in_place<InPlace<Format::IEEE_FP32>>(op, r, formats, n_in);
    for_each_point(loops, n_outer, [&](std::byte* const* p) {
      if (run) {
        run(r, p, formats);
      } else if (floating) {
        run_buffered<InPlace<Format::IEEE_FP32>, float>(op, r, p, formats, n_in, load_run, store_run);
      } else {
        run_buffered<InPlaceInt, int32_t>(op, r, p, formats, n_in, load_run_int, store_run_int);
      }
    });
  });
}

constexpr int kMaxSummands = 64;

template <int N>
void sum_up_to(const Shape& shape, const View& out, const View* in, int n) {
  const View* views[N] = {&out};
  for (int k = 0; k < n; ++k) views[k + 1] = &in[k];
  for_each_loops<N>(shape, ~0u, views, n + 1, [&](const Loops<N>& loops) {
    int n_outer;
    const Rectangle<N> r = rectangle_of(loops, &n_outer);
    alignas(64) float sum[kChunk] = {}, term[kChunk] = {};
    for_each_point(loops, n_outer, [&](std::byte* const* base) {
      for (int64_t row = 0; row < r.rows; ++row) {
        for (int64_t i = 0; i < r.n; i += kChunk) {
          const int64_t m = min64(kChunk, r.n - i);
          auto at = [&](int k) { return base[k] + row * r.row_stride[k] + i * r.stride[k]; };
          load_run(in[0].format, at(1), r.stride[1], m, sum);
          for (int k = 1; k < n; ++k) {
            load_run(in[k].format, at(k + 1), r.stride[k + 1], m, term);
            for (int64_t j = 0; j < m; j += 16) store(sum + j, add(load(sum + j), load(term + j)));
          }
          store_run(out.format, at(0), r.stride[0], m, sum);
        }
      }
    });
  });
}

void sum_views(const Shape& shape, const View& out, const View* in, int n) {
  n < 4 ? sum_up_to<4>(shape, out, in, n) : sum_up_to<kMaxSummands + 1>(shape, out, in, n);
}

SPYRE_ISA_END
