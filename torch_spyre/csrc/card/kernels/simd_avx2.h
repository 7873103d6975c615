// SPDX-License-Identifier: Apache-2.0
// Back end of simd.h: two 256-bit registers per vector. Needs AVX2, FMA, F16C.
#pragma once
#include <immintrin.h>

#include "isa.h"

SPYRE_ISA_BEGIN

struct F {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};
struct M {
  __m256i a, b;
};

SPYRE_INLINE F splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
SPYRE_INLINE I splat_i(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
SPYRE_INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
SPYRE_INLINE void store(float* p, F x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
SPYRE_INLINE __m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
SPYRE_INLINE void store_256(void* p, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
SPYRE_INLINE I load_i(const int32_t* p) { return {load_256(p), load_256(p + 8)}; }
SPYRE_INLINE void store_i(int32_t* p, I x) {
  store_256(p, x.a);
  store_256(p + 8, x.b);
}
SPYRE_INLINE F load_n(const float* p, int n) {
  alignas(32) float t[16] = {};
  __builtin_memcpy(t, p, static_cast<size_t>(n) * 4);
  return load(t);
}
SPYRE_INLINE void store_n(float* p, F x, int n) {
  alignas(32) float t[16];
  store(t, x);
  __builtin_memcpy(p, t, static_cast<size_t>(n) * 4);
}
SPYRE_INLINE I load_i_n(const int32_t* p, int n) {
  alignas(32) int32_t t[16] = {};
  __builtin_memcpy(t, p, static_cast<size_t>(n) * 4);
  return load_i(t);
}
SPYRE_INLINE void store_i_n(int32_t* p, I x, int n) {
  alignas(32) int32_t t[16];
  store_i(t, x);
  __builtin_memcpy(p, t, static_cast<size_t>(n) * 4);
}

/// 16-bit lanes: sign-extended loads, truncating stores.
SPYRE_INLINE I load_16(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  return {_mm256_cvtepi16_epi32(_mm_loadu_si128(q)), _mm256_cvtepi16_epi32(_mm_loadu_si128(q + 1))};
}
SPYRE_INLINE I load_16_n(const void* p, int n) {
  alignas(32) int16_t t[16] = {};
  __builtin_memcpy(t, p, static_cast<size_t>(n) * 2);
  return load_16(t);
}
/// Sixteen bytes as 0..255.
SPYRE_INLINE I load_8(const void* p) {
  const __m128i v = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))};
}
/// Sixteen bytes as -128..127.
SPYRE_INLINE I load_signed_8(const void* p) {
  const __m128i v = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))};
}
SPYRE_INLINE I load_8_n(const void* p, int n) {
  alignas(16) uint8_t t[16] = {};
  __builtin_memcpy(t, p, static_cast<size_t>(n));
  return load_8(t);
}
SPYRE_INLINE __m256i narrow(I x) {
  const __m256i low = _mm256_set1_epi32(0xFFFF);
  __m256i t = _mm256_packus_epi32(_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low));
  return _mm256_permute4x64_epi64(t, 0xD8);
}
SPYRE_INLINE void store_16(void* p, I x) { store_256(p, narrow(x)); }
SPYRE_INLINE void store_16_n(void* p, I x, int n) {
  alignas(32) int16_t t[16];
  store_16(t, x);
  __builtin_memcpy(p, t, static_cast<size_t>(n) * 2);
}
SPYRE_INLINE void stream_fence() { _mm_sfence(); }
/// Copies 64 bytes past the cache; p must be 64-byte aligned.
SPYRE_INLINE void stream_line(void* p, const void* q) {
  _mm256_stream_si256(static_cast<__m256i*>(p), load_256(q));
  _mm256_stream_si256(static_cast<__m256i*>(p) + 1, load_256(static_cast<const __m256i*>(q) + 1));
}

/// IEEE half <-> fp32, round to nearest even.
SPYRE_INLINE F load_f16(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
SPYRE_INLINE F load_f16_n(const void* p, int n) {
  alignas(32) int16_t t[16] = {};
  __builtin_memcpy(t, p, static_cast<size_t>(n) * 2);
  return load_f16(t);
}
SPYRE_INLINE void store_f16(void* p, F x) {
  constexpr int kRound = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  __m128i* q = static_cast<__m128i*>(p);
  _mm_storeu_si128(q, _mm256_cvtps_ph(x.a, kRound));
  _mm_storeu_si128(q + 1, _mm256_cvtps_ph(x.b, kRound));
}
SPYRE_INLINE void store_f16_n(void* p, F x, int n) {
  alignas(32) int16_t t[16];
  store_f16(t, x);
  __builtin_memcpy(p, t, static_cast<size_t>(n) * 2);
}

SPYRE_INLINE I bits(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
SPYRE_INLINE F floats(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
SPYRE_INLINE F from_int(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
SPYRE_INLINE I truncate(F x) { return {_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)}; }

SPYRE_INLINE F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
SPYRE_INLINE F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
SPYRE_INLINE F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
SPYRE_INLINE F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
SPYRE_INLINE F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
SPYRE_INLINE F square_root(F x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
SPYRE_INLINE F round_down(F x) { return {_mm256_floor_ps(x.a), _mm256_floor_ps(x.b)}; }

SPYRE_INLINE I add(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
SPYRE_INLINE I sub(I x, I y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
SPYRE_INLINE I mul(I x, I y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
SPYRE_INLINE I and_(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
SPYRE_INLINE I or_(I x, I y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
SPYRE_INLINE I xor_(I x, I y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
SPYRE_INLINE I maximum(I x, I y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
SPYRE_INLINE I minimum(I x, I y) { return {_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)}; }
template <int n>
SPYRE_INLINE I shl(I x) {
  return {_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)};
}
template <int n>
SPYRE_INLINE I shr(I x) {
  return {_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)};
}
template <int n>
SPYRE_INLINE I sar(I x) {
  return {_mm256_srai_epi32(x.a, n), _mm256_srai_epi32(x.b, n)};
}

template <int kPredicate>
SPYRE_INLINE M compare(F x, F y) {
  return {_mm256_castps_si256(_mm256_cmp_ps(x.a, y.a, kPredicate)),
          _mm256_castps_si256(_mm256_cmp_ps(x.b, y.b, kPredicate))};
}
SPYRE_INLINE M lt(F x, F y) { return compare<_CMP_LT_OQ>(x, y); }
SPYRE_INLINE M le(F x, F y) { return compare<_CMP_LE_OQ>(x, y); }
SPYRE_INLINE M eq(F x, F y) { return compare<_CMP_EQ_OQ>(x, y); }
SPYRE_INLINE M ne_or_nan(F x, F y) { return compare<_CMP_NEQ_UQ>(x, y); }
SPYRE_INLINE M lt(I x, I y) { return {_mm256_cmpgt_epi32(y.a, x.a), _mm256_cmpgt_epi32(y.b, x.b)}; }
SPYRE_INLINE M eq(I x, I y) { return {_mm256_cmpeq_epi32(x.a, y.a), _mm256_cmpeq_epi32(x.b, y.b)}; }
SPYRE_INLINE M not_(M x) {
  const __m256i ones = _mm256_set1_epi32(-1);
  return {_mm256_xor_si256(x.a, ones), _mm256_xor_si256(x.b, ones)};
}
SPYRE_INLINE bool any(M x) { return _mm256_movemask_epi8(_mm256_or_si256(x.a, x.b)) != 0; }
/// x > y ? x : y and x < y ? x : y; y if they do not compare.
SPYRE_INLINE F larger(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
SPYRE_INLINE F smaller(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
/// Lane l + n in lane l < n; the other lanes hold anything.
template <int n>
SPYRE_INLINE F lanes_from(F x) {
  if constexpr (n == 8) return {x.b, x.b};
  if constexpr (n == 4) return {_mm256_permute2f128_ps(x.a, x.a, 0x01), x.b};
  return {_mm256_permute_ps(x.a, n == 2 ? 0x0E : 0x01), x.b};
}
/// m ? x : y, lane by lane.
SPYRE_INLINE F select(M m, F x, F y) {
  return {_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(m.a)), _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(m.b))};
}
SPYRE_INLINE I select(M m, I x, I y) { return {_mm256_blendv_epi8(y.a, x.a, m.a), _mm256_blendv_epi8(y.b, x.b, m.b)}; }

SPYRE_ISA_END
