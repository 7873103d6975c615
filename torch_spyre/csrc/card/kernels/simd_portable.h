// SPDX-License-Identifier: Apache-2.0
// Back end of simd.h for any machine: 16-lane vectors of the compiler, and the reference for the other back ends.
//
// What the compiler's vectors lack (fma, square root, floor, conversions of halves) is a loop over the lanes, kept out
// of line to keep the code small.
#pragma once
#include "isa.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // no vector crosses a library boundary
#endif

SPYRE_ISA_BEGIN

typedef float FloatLanes __attribute__((vector_size(64)));
typedef int32_t IntLanes __attribute__((vector_size(64)));
typedef uint32_t UnsignedLanes __attribute__((vector_size(64)));

struct F {
  FloatLanes v;
};
struct I {
  IntLanes v;
};
struct M {
  IntLanes v;  // 0 or -1
};

#define SPYRE_OUT_OF_LINE [[maybe_unused]] __attribute__((noinline))
#define SPYRE_LANES(type, expression)                 \
  type r;                                             \
  for (int l = 0; l < 16; ++l) r.v[l] = (expression); \
  return r

SPYRE_INLINE UnsignedLanes u(I a) { return reinterpret_cast<UnsignedLanes>(a.v); }
SPYRE_INLINE I s(UnsignedLanes a) { return {reinterpret_cast<IntLanes>(a)}; }

SPYRE_INLINE F splat(float x) { return {FloatLanes{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}}; }
SPYRE_INLINE I splat_i(int32_t x) { return {IntLanes{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}}; }

template <class V>
SPYRE_INLINE V load_lanes(const void* p) {
  V r;
  __builtin_memcpy(&r, p, 64);
  return r;
}
template <class V>
SPYRE_INLINE V load_lanes_n(const void* p, int n) {
  V r = {};
  __builtin_memcpy(&r, p, static_cast<size_t>(n) * 4);
  return r;
}
SPYRE_INLINE F load(const float* p) { return load_lanes<F>(p); }
SPYRE_INLINE F load_n(const float* p, int n) { return load_lanes_n<F>(p, n); }
SPYRE_INLINE I load_i(const int32_t* p) { return load_lanes<I>(p); }
SPYRE_INLINE I load_i_n(const int32_t* p, int n) { return load_lanes_n<I>(p, n); }
SPYRE_INLINE void store(float* p, F a) { __builtin_memcpy(p, &a, 64); }
SPYRE_INLINE void store_n(float* p, F a, int n) { __builtin_memcpy(p, &a, static_cast<size_t>(n) * 4); }
SPYRE_INLINE void store_i(int32_t* p, I a) { __builtin_memcpy(p, &a, 64); }
SPYRE_INLINE void store_i_n(int32_t* p, I a, int n) { __builtin_memcpy(p, &a, static_cast<size_t>(n) * 4); }

/// 16-bit lanes: sign-extended loads, truncating stores.
SPYRE_OUT_OF_LINE I load_16_n(const void* p, int n) {
  int16_t t[16] = {};
  __builtin_memcpy(t, p, static_cast<size_t>(n) * 2);
  SPYRE_LANES(I, t[l]);
}
SPYRE_INLINE I load_16(const void* p) { return load_16_n(p, 16); }
/// Sixteen bytes as 0..255.
SPYRE_OUT_OF_LINE I load_8_n(const void* p, int n) {
  uint8_t t[16] = {};
  __builtin_memcpy(t, p, static_cast<size_t>(n));
  I r;
  for (int l = 0; l < 16; ++l) r.v[l] = t[l];
  return r;
}
SPYRE_INLINE I load_8(const void* p) { return load_8_n(p, 16); }
SPYRE_OUT_OF_LINE void store_16_n(void* p, I a, int n) {
  uint16_t t[16];
  for (int l = 0; l < 16; ++l) t[l] = static_cast<uint16_t>(a.v[l]);
  __builtin_memcpy(p, t, static_cast<size_t>(n) * 2);
}
SPYRE_INLINE void store_16(void* p, I a) { store_16_n(p, a, 16); }
SPYRE_INLINE void stream_fence() {}
SPYRE_INLINE void stream_line(void* p, const void* q) { __builtin_memcpy(p, q, 64); }

SPYRE_INLINE I bits(F a) { return {reinterpret_cast<IntLanes>(a.v)}; }
SPYRE_INLINE F floats(I a) { return {reinterpret_cast<FloatLanes>(a.v)}; }

SPYRE_INLINE uint32_t lane_bits(float x) {
  uint32_t r;
  __builtin_memcpy(&r, &x, 4);
  return r;
}
SPYRE_INLINE float lane_float(uint32_t x) {
  float r;
  __builtin_memcpy(&r, &x, 4);
  return r;
}
SPYRE_OUT_OF_LINE float lane_half_to_float(uint32_t h) {
  uint32_t sign = (h & 0x8000u) << 16, m = h & 0x7FFFu;
  if (m >= 0x7C00u) return lane_float(sign | 0x7F800000u | (m > 0x7C00u ? 0x400000u : 0u) | ((m & 0x3FFu) << 13));
  if (m >= 0x400u) return lane_float(sign | ((m << 13) + (112u << 23)));
  float tiny = static_cast<float>(m) * 0x1p-24f;
  return sign ? -tiny : tiny;
}
SPYRE_OUT_OF_LINE uint32_t lane_float_to_half(float x) {
  uint32_t u = lane_bits(x), sign = (u >> 16) & 0x8000u, m = u & 0x7FFFFFFFu;
  if (m > 0x7F800000u) return sign | 0x7E00u | ((m >> 13) & 0x3FFu);
  if (m >= 0x477FF000u) return sign | 0x7C00u;  // 65520 and up
  // Below 2^-14 the spacing is 2^-24: adding 0.5 lines the bits up and rounds to nearest even.
  if (m < 0x38800000u) return sign | (lane_bits(lane_float(m) + 0.5f) - 0x3F000000u);
  return sign | ((m - (112u << 23) + 0xFFFu + ((m >> 13) & 1u)) >> 13);
}
/// IEEE half <-> fp32, round to nearest even.
SPYRE_OUT_OF_LINE F load_f16_n(const void* p, int n) {
  uint16_t t[16] = {};
  __builtin_memcpy(t, p, static_cast<size_t>(n) * 2);
  SPYRE_LANES(F, lane_half_to_float(t[l]));
}
SPYRE_INLINE F load_f16(const void* p) { return load_f16_n(p, 16); }
SPYRE_OUT_OF_LINE void store_f16_n(void* p, F a, int n) {
  uint16_t t[16];
  for (int l = 0; l < 16; ++l) t[l] = static_cast<uint16_t>(lane_float_to_half(a.v[l]));
  __builtin_memcpy(p, t, static_cast<size_t>(n) * 2);
}
SPYRE_INLINE void store_f16(void* p, F a) { store_f16_n(p, a, 16); }

SPYRE_INLINE F from_int(I a) { return {__builtin_convertvector(a.v, FloatLanes)}; }
SPYRE_OUT_OF_LINE I truncate(F a) {
  SPYRE_LANES(I, a.v[l] >= -2147483648.0f && a.v[l] < 2147483648.0f ? static_cast<int32_t>(a.v[l]) : INT32_MIN);
}

SPYRE_INLINE F add(F a, F b) { return {a.v + b.v}; }
SPYRE_INLINE F sub(F a, F b) { return {a.v - b.v}; }
SPYRE_INLINE F mul(F a, F b) { return {a.v * b.v}; }
SPYRE_INLINE F div(F a, F b) { return {a.v / b.v}; }
#if defined(__FP_FAST_FMAF)
SPYRE_OUT_OF_LINE F fma(F a, F b, F c) { SPYRE_LANES(F, __builtin_fmaf(a.v[l], b.v[l], c.v[l])); }
#else
typedef float PairLanes __attribute__((vector_size(8)));
typedef double DoubleLanes __attribute__((vector_size(16)));
typedef int64_t LongLanes __attribute__((vector_size(16)));
/// No fused instruction: the product is exact in double; the sum is rounded to odd, which makes the second rounding, to
/// float, come out as if there were only one.
SPYRE_OUT_OF_LINE F fma(F a, F b, F c) {
  const float* x = reinterpret_cast<const float*>(&a);
  const float* y = reinterpret_cast<const float*>(&b);
  const float* z = reinterpret_cast<const float*>(&c);
  F r;
  for (int l = 0; l < 16; l += 2) {
    DoubleLanes p = DoubleLanes{x[l], x[l + 1]} * DoubleLanes{y[l], y[l + 1]}, w = {z[l], z[l + 1]};
    DoubleLanes sum = p + w;
    DoubleLanes back = sum - p;
    DoubleLanes error = (p - (sum - back)) + (w - back);
    LongLanes inexact = (error < 0) | (error > 0);  // false for NaN
    LongLanes above = (error < 0) ^ (sum < 0);      // the magnitude was rounded up
    LongLanes odd = (reinterpret_cast<LongLanes>(sum) + (above & inexact)) | (inexact & 1);
    PairLanes rounded = __builtin_convertvector(reinterpret_cast<DoubleLanes>(odd), PairLanes);
    __builtin_memcpy(reinterpret_cast<float*>(&r) + l, &rounded, 8);
  }
  return r;
}
#endif
SPYRE_OUT_OF_LINE F square_root(F a) { SPYRE_LANES(F, __builtin_sqrtf(a.v[l])); }
SPYRE_OUT_OF_LINE F round_down(F a) { SPYRE_LANES(F, __builtin_floorf(a.v[l])); }

SPYRE_INLINE I add(I a, I b) { return s(u(a) + u(b)); }
SPYRE_INLINE I sub(I a, I b) { return s(u(a) - u(b)); }
SPYRE_INLINE I mul(I a, I b) { return s(u(a) * u(b)); }
SPYRE_INLINE I and_(I a, I b) { return {a.v & b.v}; }
SPYRE_INLINE I or_(I a, I b) { return {a.v | b.v}; }
SPYRE_INLINE I xor_(I a, I b) { return {a.v ^ b.v}; }
SPYRE_INLINE I maximum(I a, I b) { return {a.v > b.v ? a.v : b.v}; }
SPYRE_INLINE I minimum(I a, I b) { return {a.v < b.v ? a.v : b.v}; }
template <int n>
SPYRE_INLINE I shl(I a) {
  return s(u(a) << n);
}
template <int n>
SPYRE_INLINE I shr(I a) {
  return s(u(a) >> n);
}
template <int n>
SPYRE_INLINE I sar(I a) {
  return {a.v >> n};
}

SPYRE_INLINE M lt(F a, F b) { return {a.v < b.v}; }
SPYRE_INLINE M le(F a, F b) { return {a.v <= b.v}; }
SPYRE_INLINE M eq(F a, F b) { return {a.v == b.v}; }
SPYRE_INLINE M ne_or_nan(F a, F b) { return {a.v != b.v}; }
SPYRE_INLINE M lt(I a, I b) { return {a.v < b.v}; }
SPYRE_INLINE M eq(I a, I b) { return {a.v == b.v}; }
SPYRE_INLINE M not_(M a) { return {~a.v}; }
SPYRE_INLINE bool any(M a) {
  int32_t r = 0;
  for (int l = 0; l < 16; ++l) r |= a.v[l];
  return r != 0;
}
/// a > b ? a : b and a < b ? a : b; b if they do not compare.
SPYRE_INLINE F larger(F a, F b) { return {a.v > b.v ? a.v : b.v}; }
SPYRE_INLINE F smaller(F a, F b) { return {a.v < b.v ? a.v : b.v}; }
/// Lane l + n in lane l < n; the other lanes hold anything.
template <int n>
SPYRE_INLINE F lanes_from(F a) {
  F r = a;
  for (int l = 0; l < n; ++l) r.v[l] = a.v[l + n];
  return r;
}
/// m ? a : b, lane by lane.
SPYRE_INLINE I select(M m, I a, I b) { return {(a.v & m.v) | (b.v & ~m.v)}; }
SPYRE_INLINE F select(M m, F a, F b) { return floats(select(m, bits(a), bits(b))); }

#undef SPYRE_LANES

SPYRE_ISA_END
