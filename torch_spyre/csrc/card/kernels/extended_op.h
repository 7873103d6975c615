// SPDX-License-Identifier: Apache-2.0
// The vector operations from kFirstExtended on: always through buffers, so that each is compiled once per arithmetic.
//
// An operation has an fp32 form, an int32 form, or both. Where the wanted form is missing the values pass through the
// other one: bit operations in fp32 compute work on the truncated integers, sin in int32 compute on the converted ones.
#pragma once
#include "convert.h"
#include "iterate.h"
#include "philox.h"
#include "wide_ops.h"

SPYRE_ISA_BEGIN

constexpr VOp kFirstExtended = VOp::ceil;

SPYRE_INLINE I sign_bits(F a) { return and_(bits(a), splat_i(static_cast<int32_t>(0x80000000u))); }
SPYRE_INLINE F negated(F a) { return floats(xor_(bits(a), splat_i(static_cast<int32_t>(0x80000000u)))); }
SPYRE_INLINE F magnitude(F a) { return floats(and_(bits(a), splat_i(0x7FFFFFFF))); }
SPYRE_INLINE F truth(M m) { return select(m, splat(1.0f), splat(0.0f)); }

SPYRE_INLINE F round_to_even(F a) {
  const F whole = splat(8388608.0f);  // from 2^23 on there are no fractions
  F m = magnitude(a);
  F r = select(lt(m, whole), sub(add(m, whole), whole), m);
  return floats(or_(bits(r), sign_bits(a)));
}

/// Exact: the quotient of two fp32 numbers below 2^29 truncates rightly in fp64, and the rest is an fp32 number.
inline F fmod_exact(F a, F b) {
  alignas(64) float x[16], y[16];
  store(x, a);
  store(y, b);
  for (int i = 0; i < 16; i += kWide) {
    const D u = load_wide(x + i), v = load_wide(y + i), mu = magnitude(u), mv = magnitude(v);
    D q = mu / mv;
    D whole = (q + kMagic) - kMagic;
    whole = choose(whole > q, whole - 1.0, whole);
    D r = choose(mu < mv, mu, mu - whole * mv);
    const L far = (q >= 0x1p29) & (q < kInfinity);
    for (int l = 0; any_lane(far) && l < kWide; ++l) {
      if (far[l]) r[l] = __builtin_fmod(mu[l], mv[l]);
    }
    r = choose((mu == kInfinity) | (mv == 0.0) | (u != u) | (v != v), wide(kNan), r);
    store_wide(x + i, with_sign(r, sign_bit(u)));
  }
  return load(x);
}

/// A rest that has not the sign of the divisor takes one divisor more.
SPYRE_INLINE M wrong_side(F rest, F b) {
  const F zero = splat(0.0f), one = splat(1.0f);
  F differ = sub(select(lt(rest, zero), one, zero), select(lt(b, zero), one, zero));
  return lt(zero, mul(magnitude(rest), magnitude(differ)));
}

inline F remainder_of(F a, F b) {
  F rest = fmod_exact(a, b);
  F moved = select(wrong_side(rest, b), add(rest, b), rest);
  return select(eq(rest, splat(0.0f)), floats(sign_bits(b)), moved);  // a zero has the sign of the divisor, too
}

/// The quotient of torch: from the exact rest, so that it agrees with the remainder.
inline F floor_divide(F a, F b) {
  F rest = fmod_exact(a, b);
  F q = div(sub(a, rest), b);
  q = select(wrong_side(rest, b), sub(q, splat(1.0f)), q);
  F down = round_down(q);
  down = select(lt(splat(0.5f), sub(q, down)), add(down, splat(1.0f)), down);
  F quotient = div(a, b);
  down = select(eq(q, splat(0.0f)), floats(sign_bits(quotient)), down);
  return select(eq(b, splat(0.0f)), quotient, down);
}

template <VOp op>
SPYRE_INLINE F apply_float(F a, F b, F c) {
  const F zero = splat(0.0f), one = splat(1.0f);
  if constexpr (op == VOp::ceil) return negated(round_down(negated(a)));
  if constexpr (op == VOp::trunc) return floats(or_(bits(round_down(magnitude(a))), sign_bits(a)));
  if constexpr (op == VOp::round) return round_to_even(a);
  if constexpr (op == VOp::sign) return select(lt(zero, a), one, select(lt(a, zero), splat(-1.0f), zero));
  if constexpr (op == VOp::fmod) return fmod_exact(a, b);
  if constexpr (op == VOp::remainder) return remainder_of(a, b);
  if constexpr (op == VOp::floordiv) return floor_divide(a, b);
  if constexpr (op == VOp::isnan) return truth(unordered(a));
  if constexpr (op == VOp::isinf) return truth(eq(magnitude(a), floats(splat_i(0x7F800000))));
  if constexpr (op == VOp::logical_and) return select(eq(a, zero), zero, truth(ne_or_nan(b, zero)));
  if constexpr (op == VOp::logical_or) return select(eq(a, zero), truth(ne_or_nan(b, zero)), one);
  if constexpr (op == VOp::logical_xor) return select(eq(a, zero), truth(ne_or_nan(b, zero)), truth(eq(b, zero)));
  if constexpr (op == VOp::logical_not) return truth(eq(a, zero));
  if constexpr (op == VOp::clamp) return minimum(maximum(a, b), c);
  if constexpr (op == VOp::fma) return fma(a, b, c);
}

/// Wrapping arithmetic on the bit patterns.
SPYRE_INLINE int32_t wrap(uint32_t x) { return static_cast<int32_t>(x); }

inline int32_t integer_pow(int32_t a, int32_t n) {
  if (n < 0) return a == 1 ? 1 : a == -1 ? (n & 1 ? -1 : 1) : 0;
  uint32_t r = 1;
  for (uint32_t x = static_cast<uint32_t>(a), k = static_cast<uint32_t>(n); k; k >>= 1, x *= x) {
    if (k & 1) r *= x;
  }
  return wrap(r);
}

/// Rest of the truncating division; 0 for the divisors 0 and -1.
SPYRE_INLINE int32_t integer_rest(int32_t a, int32_t b) { return b == 0 || b == -1 ? 0 : a % b; }
SPYRE_INLINE bool wrong_side(int32_t rest, int32_t b) { return rest != 0 && (rest < 0) != (b < 0); }

inline int32_t integer_floordiv(int32_t a, int32_t b) {
  if (b == 0) return 0;
  if (b == -1) return wrap(0u - static_cast<uint32_t>(a));
  return a / b - (wrong_side(a % b, b) ? 1 : 0);
}

template <VOp op>
SPYRE_INLINE int32_t apply_integer(int32_t a, int32_t b, int32_t c) {
  if constexpr (op == VOp::ceil || op == VOp::trunc || op == VOp::round) return a;
  if constexpr (op == VOp::sign) return (a > 0) - (a < 0);
  if constexpr (op == VOp::pow) return integer_pow(a, b);
  if constexpr (op == VOp::fmod) return integer_rest(a, b);
  if constexpr (op == VOp::remainder) {
    const int32_t rest = integer_rest(a, b);
    return wrong_side(rest, b) ? rest + b : rest;
  }
  if constexpr (op == VOp::floordiv) return integer_floordiv(a, b);
  if constexpr (op == VOp::isnan || op == VOp::isinf) return 0;
  if constexpr (op == VOp::logical_and) return a != 0 && b != 0;
  if constexpr (op == VOp::logical_or) return a != 0 || b != 0;
  if constexpr (op == VOp::logical_xor) return (a != 0) != (b != 0);
  if constexpr (op == VOp::logical_not) return a == 0;
  if constexpr (op == VOp::bit_and) return a & b;
  if constexpr (op == VOp::bit_or) return a | b;
  if constexpr (op == VOp::bit_xor) return a ^ b;
  if constexpr (op == VOp::bit_not) return ~a;
  if constexpr (op == VOp::shl) return b < 0 || b > 31 ? 0 : wrap(static_cast<uint32_t>(a) << (b & 31));
  if constexpr (op == VOp::shr) return a >> (b < 0 || b > 31 ? 31 : b);
  if constexpr (op == VOp::clamp) {
    const int32_t low = a < b ? b : a;
    return low > c ? c : low;
  }
  if constexpr (op == VOp::fma)
    return wrap(static_cast<uint32_t>(a) * static_cast<uint32_t>(b) + static_cast<uint32_t>(c));
}

constexpr bool has_float_form(VOp op) { return (op < VOp::bit_and || op > VOp::shr) && op != VOp::random; }
constexpr bool has_integer_form(VOp op) { return !is_wide(op) || op == VOp::pow; }

using FloatFunction = void (*)(const float* const*, float*, int64_t);
using IntegerFunction = void (*)(const int32_t* const*, int32_t*, int64_t);

template <VOp op, int n_in>
void run_float(const float* const* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const F a = load(in[0] + i), b = n_in > 1 ? load(in[1] + i) : a, c = n_in > 2 ? load(in[2] + i) : a;
    store(out + i, apply_float<op>(a, b, c));
  }
}

template <VOp op, int n_in>
void run_integer(const int32_t* const* in, int32_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = apply_integer<op>(in[0][i], n_in > 1 ? in[1][i] : 0, n_in > 2 ? in[2][i] : 0);
  }
}

template <VOp op, int n_in>
constexpr FloatFunction float_function() {
  if constexpr (op < kFirstExtended || !has_float_form(op)) {
    return nullptr;
  } else if constexpr (is_wide(op)) {
    return run_wide<op, n_in>;
  } else {
    return run_float<op, n_in>;
  }
}

template <VOp op, int n_in>
constexpr IntegerFunction integer_function() {
  if constexpr (op < kFirstExtended || !has_integer_form(op)) {
    return nullptr;
  } else if constexpr (op == VOp::random) {
    return philox_by_number;
  } else {
    return run_integer<op, n_in>;
  }
}

struct ExtendedFunctions {
  FloatFunction on_floats = nullptr;
  IntegerFunction on_integers = nullptr;
};

inline ExtendedFunctions pick_extended(VOp op) {
  switch (op) {
#define VOP(code, name, operands) \
  case VOp::name:                 \
    return {float_function<VOp::name, operands>(), integer_function<VOp::name, operands>()};
#include "spyre/vops.def"
#undef VOP
  }
  return {};
}

/// Buffers of one chunk: three inputs and the output. Only the bytes of n elements mean anything.
struct ChunkBuffers {
  alignas(64) float f[4][kChunk] = {};
  alignas(64) int32_t i[4][kChunk] = {};
};

template <class T>
SPYRE_INLINE void load_chunk(void (*read)(Format, const std::byte*, int64_t, int64_t, T*), Format f, const std::byte* p,
                             int64_t stride, int64_t n, T* to) {
  if (stride != 0) return read(f, p, stride, n, to);
  T value;
  read(f, p, 0, 1, &value);
  for (int64_t j = 0; j < n; ++j) to[j] = value;
}

/// isinf answers for the host, which reads the largest code of SEN169_FP16 as an infinity.
inline void load_run_host(Format f, const std::byte* p, int64_t stride, int64_t n, float* to) {
  if (f == Format::SEN169_FP16) return load_run_vector<Format::SEN169_FP16, true>(p, stride, n, to);
  load_run(f, p, stride, n, to);
}

/// One chunk of an extended operation. `p` and `stride` hold the output first.
inline void run_chunk(VOp op, Compute compute, const ExtendedFunctions& functions, ChunkBuffers& t, std::byte* const* p,
                      const int64_t* stride, const Format* formats, int n_in, int64_t n) {
  const bool integers = functions.on_integers && (compute == Compute::i32 || !functions.on_floats);
  const bool converted = compute == Compute::i32 && !integers;
  const float* f[3] = {t.f[1], t.f[2], t.f[3]};
  const int32_t* i[3] = {t.i[1], t.i[2], t.i[3]};
  for (int k = 1; k <= n_in; ++k) {
    if (!integers && !converted) {
      load_chunk<float>(op == VOp::isinf ? load_run_host : load_run, formats[k], p[k], stride[k], n, t.f[k]);
      continue;
    }
    load_chunk<int32_t>(load_run_int, formats[k], p[k], stride[k], n, t.i[k]);
    for (int64_t j = 0; converted && j < n; j += 16) store(t.f[k] + j, from_int(load_i(t.i[k] + j)));
  }
  if (integers) {
    functions.on_integers(i, t.i[0], n);
    return store_run_int(formats[0], p[0], stride[0], n, t.i[0]);
  }
  functions.on_floats(f, t.f[0], n);
  if (!converted) return store_run(formats[0], p[0], stride[0], n, t.f[0]);
  for (int64_t j = 0; j < n; j += 16) store_i(t.i[0] + j, to_int(load(t.f[0] + j)));
  store_run_int(formats[0], p[0], stride[0], n, t.i[0]);
}

/// A function of one SEN169_FP16 number to another has few arguments: where many elements ask, a table answers sooner.
constexpr int64_t kTableElements = 8192;

void fill_table(VOp op, uint16_t* table) {
  const ExtendedFunctions functions = pick_extended(op);
  constexpr Format kFormats[] = {Format::SEN169_FP16, Format::SEN169_FP16};
  constexpr int64_t kStrides[] = {2, 2};
  ChunkBuffers buffers;
  uint16_t codes[kChunk];
  for (int first = 0; first < kCodes; first += kChunk) {
    for (int j = 0; j < kChunk; ++j) codes[j] = static_cast<uint16_t>(first + j);
    std::byte* p[] = {reinterpret_cast<std::byte*>(table + first), reinterpret_cast<std::byte*>(codes)};
    run_chunk(op, Compute::f32, functions, buffers, p, kStrides, kFormats, 1, kChunk);
  }
}

/// Null where a table does not serve.
inline const uint16_t* table_for(VOp op, Compute compute, const Shape& shape, const Format* formats, int n_in) {
  if (n_in != 1 || compute != Compute::f32 || !pick_extended(op).on_floats) return nullptr;
  if (formats[0] != Format::SEN169_FP16 || formats[1] != Format::SEN169_FP16) return nullptr;
  int64_t elements = 1;
  for (int d = 0; d < shape.rank; ++d) elements *= shape.extent[d];
  return elements < kTableElements ? nullptr : code_table(op, fill_table);
}

inline void look_up(const uint16_t* table, std::byte* out, const std::byte* in, int64_t n) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {  // four at a time: one load of codes, one store
    const uint64_t codes = read_as<uint64_t>(in + 2 * i);
    const uint64_t low = table[codes & 0xFFFF] | static_cast<uint32_t>(table[codes >> 16 & 0xFFFF]) << 16;
    const uint64_t high = table[codes >> 32 & 0xFFFF] | static_cast<uint32_t>(table[codes >> 48]) << 16;
    write_as(out + 2 * i, low | high << 32);
  }
  for (; i < n; ++i) write_as(out + 2 * i, table[read_as<uint16_t>(in + 2 * i)]);
}

inline void extended_op(VOp op, Compute compute, const Shape& shape, const View* const* views, const Format* formats,
                        int n_in) {
  const ExtendedFunctions functions = pick_extended(op);
  const uint16_t* table = table_for(op, compute, shape, formats, n_in);
  ChunkBuffers buffers;
  for_each_loops<4>(shape, ~0u, views, n_in + 1, [&](const Loops<4>& loops) {
    int n_outer;
    const Rectangle<4> r = rectangle_of(loops, &n_outer);
    for_each_point(loops, n_outer, [&](std::byte* const* base) {
      for (int64_t row = 0; row < r.rows; ++row) {
        if (table && r.stride[0] == 2 && r.stride[1] == 2) {
          look_up(table, base[0] + row * r.row_stride[0], base[1] + row * r.row_stride[1], r.n);
          continue;
        }
        for (int64_t i = 0; i < r.n; i += kChunk) {
          std::byte* p[4] = {};
          for (int k = 0; k <= n_in; ++k) p[k] = base[k] + row * r.row_stride[k] + i * r.stride[k];
          run_chunk(op, compute, functions, buffers, p, r.stride, formats, n_in, min64(kChunk, r.n - i));
        }
      }
    });
  });
}

SPYRE_ISA_END
