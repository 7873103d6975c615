// SPDX-License-Identifier: Apache-2.0
// Back end of simd.h: one 512-bit register per vector. Needs AVX-512 F, BW, VL, DQ.
#pragma once
#include <immintrin.h>

#include "isa.h"

// GCC 12 warns about the deliberately undefined registers of its own header.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

SPYRE_ISA_BEGIN

struct F {
  __m512 v;
};
struct I {
  __m512i v;
};
struct M {
  __mmask16 v;
};

SPYRE_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1); }

SPYRE_INLINE F splat(float x) { return {_mm512_set1_ps(x)}; }
SPYRE_INLINE I splat_i(int32_t x) { return {_mm512_set1_epi32(x)}; }
SPYRE_INLINE F load(const float* p) { return {_mm512_loadu_ps(p)}; }
SPYRE_INLINE F load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
SPYRE_INLINE void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
SPYRE_INLINE void store_n(float* p, F a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
SPYRE_INLINE I load_i(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
SPYRE_INLINE I load_i_n(const int32_t* p, int n) { return {_mm512_maskz_loadu_epi32(first_lanes(n), p)}; }
SPYRE_INLINE void store_i(int32_t* p, I a) { _mm512_storeu_si512(p, a.v); }
SPYRE_INLINE void store_i_n(int32_t* p, I a, int n) { _mm512_mask_storeu_epi32(p, first_lanes(n), a.v); }

/// 16-bit lanes: sign-extended loads, truncating stores.
SPYRE_INLINE __m256i load_half(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
SPYRE_INLINE I load_16(const void* p) { return {_mm512_cvtepi16_epi32(load_half(p))}; }
SPYRE_INLINE I load_16_n(const void* p, int n) {
  return {_mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}
/// Sixteen bytes as 0..255.
SPYRE_INLINE I load_8(const void* p) { return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))}; }
/// Sixteen bytes as -128..127.
SPYRE_INLINE I load_signed_8(const void* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
SPYRE_INLINE I load_8_n(const void* p, int n) {
  return {_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first_lanes(n), p))};
}
SPYRE_INLINE void store_16(void* p, I a) { _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v)); }
SPYRE_INLINE void store_16_n(void* p, I a, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), _mm512_cvtepi32_epi16(a.v));
}
SPYRE_INLINE void stream_fence() { _mm_sfence(); }
/// Copies 64 bytes past the cache; p must be 64-byte aligned.
SPYRE_INLINE void stream_line(void* p, const void* q) {
  _mm512_stream_si512(static_cast<__m512i*>(p), _mm512_loadu_si512(q));
}

/// IEEE half <-> fp32, round to nearest even.
SPYRE_INLINE F load_f16(const void* p) { return {_mm512_cvtph_ps(load_half(p))}; }
SPYRE_INLINE F load_f16_n(const void* p, int n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}
SPYRE_INLINE __m256i to_f16(F a) { return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
SPYRE_INLINE void store_f16(void* p, F a) { _mm256_storeu_si256(static_cast<__m256i*>(p), to_f16(a)); }
SPYRE_INLINE void store_f16_n(void* p, F a, int n) { _mm256_mask_storeu_epi16(p, first_lanes(n), to_f16(a)); }

SPYRE_INLINE I bits(F a) { return {_mm512_castps_si512(a.v)}; }
SPYRE_INLINE F floats(I a) { return {_mm512_castsi512_ps(a.v)}; }
SPYRE_INLINE F from_int(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
SPYRE_INLINE I truncate(F a) { return {_mm512_cvttps_epi32(a.v)}; }

SPYRE_INLINE F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
SPYRE_INLINE F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
SPYRE_INLINE F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
SPYRE_INLINE F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
SPYRE_INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
SPYRE_INLINE F square_root(F a) { return {_mm512_sqrt_ps(a.v)}; }
SPYRE_INLINE F round_down(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }

SPYRE_INLINE I add(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
SPYRE_INLINE I sub(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
SPYRE_INLINE I mul(I a, I b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
SPYRE_INLINE I and_(I a, I b) { return {_mm512_and_si512(a.v, b.v)}; }
SPYRE_INLINE I or_(I a, I b) { return {_mm512_or_si512(a.v, b.v)}; }
SPYRE_INLINE I xor_(I a, I b) { return {_mm512_xor_si512(a.v, b.v)}; }
SPYRE_INLINE I maximum(I a, I b) { return {_mm512_max_epi32(a.v, b.v)}; }
SPYRE_INLINE I minimum(I a, I b) { return {_mm512_min_epi32(a.v, b.v)}; }
template <int n>
SPYRE_INLINE I shl(I a) {
  return {_mm512_slli_epi32(a.v, n)};
}
template <int n>
SPYRE_INLINE I shr(I a) {
  return {_mm512_srli_epi32(a.v, n)};
}
template <int n>
SPYRE_INLINE I sar(I a) {
  return {_mm512_srai_epi32(a.v, n)};
}

SPYRE_INLINE M lt(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
SPYRE_INLINE M le(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
SPYRE_INLINE M eq(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
SPYRE_INLINE M ne_or_nan(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_NEQ_UQ)}; }
SPYRE_INLINE M lt(I a, I b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }
SPYRE_INLINE M eq(I a, I b) { return {_mm512_cmpeq_epi32_mask(a.v, b.v)}; }
SPYRE_INLINE M not_(M a) { return {static_cast<__mmask16>(~a.v)}; }
SPYRE_INLINE bool any(M a) { return a.v != 0; }
/// a > b ? a : b and a < b ? a : b; b if they do not compare.
SPYRE_INLINE F larger(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
SPYRE_INLINE F smaller(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
/// a * 2^n for whole n in -250..250.
SPYRE_INLINE F times_power_of_two(F a, F n) { return {_mm512_scalef_ps(a.v, n.v)}; }
/// Lane l + n in lane l < n; the other lanes hold anything.
template <int n>
SPYRE_INLINE F lanes_from(F a) {
  if constexpr (n >= 4) return {_mm512_shuffle_f32x4(a.v, a.v, n == 8 ? 0x0E : 0x01)};
  return {_mm512_permute_ps(a.v, n == 2 ? 0x0E : 0x01)};
}
/// m ? a : b, lane by lane.
SPYRE_INLINE F select(M m, F a, F b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
SPYRE_INLINE I select(M m, I a, I b) { return {_mm512_mask_blend_epi32(m.v, b.v, a.v)}; }

SPYRE_ISA_END
