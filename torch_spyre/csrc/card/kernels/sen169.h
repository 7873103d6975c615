// SPDX-License-Identifier: Apache-2.0
// SEN169_FP16 <-> fp32 in vectors: the conversion every kernel pays for.
//
// decode_sen169 and encode_sen169 are the definition. The functions on memory below them give the same values with
// fewer instructions, by working on 16-bit lanes as far as possible: a code h becomes the fp32 with the upper half
// sign | (h >> 2) + 96*128 and the lower half h << 14. With kHost they read as the host does, and a NaN is canonical.
// Without it, it may come with any payload; stores make it canonical.
#pragma once
#include "simd.h"

SPYRE_ISA_BEGIN

/// Codes, sign-extended to 32 bits, to fp32. Exact.
SPYRE_INLINE F decode_sen169(I codes) {
  // The sign and the 15 magnitude bits at their fp32 places; the exponent still lacks 127 - 31 = 96.
  I placed = and_(shl<14>(codes), splat_i(static_cast<int32_t>(0x9FFFC000u)));
  I magnitude = and_(codes, splat_i(0x7FFF));
  I value = select(eq(magnitude, splat_i(0)), placed, add(placed, splat_i(96 << 23)));
  return floats(select(eq(magnitude, splat_i(0x7FFF)), splat_i(0x7FC00000), value));
}

/// The host side of a DMA reads the largest code as an infinity.
SPYRE_INLINE F decode_sen169_host(I codes) {
  I sign = and_(codes, splat_i(static_cast<int32_t>(0x80000000u)));
  M largest = eq(and_(codes, splat_i(0x7FFF)), splat_i(0x7FFE));
  return select(largest, floats(or_(sign, splat_i(0x7F800000))), decode_sen169(codes));
}

/// fp32 to codes: ties away from zero, saturating, NaN -> 0x7FFF, signed zero below 2^-31 (and at 2^-31).
SPYRE_INLINE I encode_sen169(F x) {
  I u = bits(x);
  I q = add(and_(u, splat_i(0x7FFFFFFF)), splat_i(0x2000 - (96 << 23)));
  q = minimum(shr<14>(maximum(q, splat_i(0))), splat_i(0x7FFE));
  I code = or_(q, and_(shr<16>(u), splat_i(0x8000)));
  return select(unordered(x), splat_i(0x7FFF), code);
}

#if defined(SPYRE_KERNELS_AVX512)

/// 32 elements.
template <bool kHost = false>
SPYRE_INLINE void load_sen169(const void* p, F& a, F& b) {
  // Unpacking works within 128-bit lanes; this order of 64-bit groups makes its results come out in sequence.
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  __m512i h = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(p));
  __m512i high = _mm512_and_si512(_mm512_srai_epi16(h, 2), _mm512_set1_epi16(static_cast<int16_t>(0x9FFF)));
  high = _mm512_mask_add_epi16(high, _mm512_test_epi16_mask(h, magnitude), high, _mm512_set1_epi16(0x3000));
  __m512i low = _mm512_slli_epi16(h, 14);
  const __m512i m = _mm512_and_si512(h, magnitude);
  if constexpr (kHost) {
    const __mmask32 top = _mm512_cmpge_epu16_mask(m, _mm512_set1_epi16(0x7FFE));
    if (top) {  // infinities and NaN, which come in regions if at all
      const __mmask32 nan = _mm512_cmpeq_epi16_mask(m, magnitude);
      const __m512i sign = _mm512_and_si512(h, _mm512_set1_epi16(static_cast<int16_t>(0x8000)));
      high = _mm512_mask_mov_epi16(high, top, _mm512_or_si512(sign, _mm512_set1_epi16(0x7F80)));
      high = _mm512_mask_mov_epi16(high, nan, _mm512_set1_epi16(0x7FC0));
      low = _mm512_mask_mov_epi16(low, top, _mm512_setzero_si512());
    }
  } else {
    high = _mm512_mask_mov_epi16(high, _mm512_cmpeq_epi16_mask(m, magnitude), magnitude);
  }
  a.v = _mm512_castsi512_ps(_mm512_unpacklo_epi16(low, high));
  b.v = _mm512_castsi512_ps(_mm512_unpackhi_epi16(low, high));
}

SPYRE_INLINE __m512i magnitude_code(__m512i u) {
  __m512i q = _mm512_and_si512(u, _mm512_set1_epi32(0x7FFFFFFF));
  return _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(0x2000 - (96 << 23))), 14);
}

SPYRE_INLINE void store_sen169(void* p, F a, F b) {
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  const __m512i upper_halves = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29,
                                                27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  __m512i ua = _mm512_castps_si512(a.v), ub = _mm512_castps_si512(b.v);
  // Packing saturates below at 0 and above at 65535.
  __m512i q = _mm512_packus_epi32(magnitude_code(ua), magnitude_code(ub));
  q = _mm512_min_epu16(_mm512_permutexvar_epi64(order, q), _mm512_set1_epi16(0x7FFE));
  __m512i s = _mm512_permutex2var_epi16(ua, upper_halves, ub);
  __m512i code =
      _mm512_ternarylogic_epi32(q, s, _mm512_set1_epi16(static_cast<int16_t>(0x8000)), 0xF8);  // q | (s & 0x8000)
  if (_mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q)) {  // a NaN somewhere: rare, and cheap to foresee
    __mmask32 nan =
        _mm512_kunpackw(_mm512_cmp_ps_mask(b.v, b.v, _CMP_UNORD_Q), _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q));
    code = _mm512_mask_mov_epi16(code, nan, _mm512_set1_epi16(0x7FFF));
  }
  _mm512_storeu_si512(p, code);
}

/// 16 elements.
template <bool kHost = false>
SPYRE_INLINE F load_sen169(const void* p) {
  return kHost ? decode_sen169_host(load_16(p)) : decode_sen169(load_16(p));
}
SPYRE_INLINE void store_sen169(void* p, F a) { store_16(p, encode_sen169(a)); }

#else

#if defined(SPYRE_KERNELS_AVX2)

template <bool kHost = false>
SPYRE_INLINE F load_sen169(const void* p) {
  const __m256i magnitude = _mm256_set1_epi16(0x7FFF);
  __m256i h = _mm256_permute4x64_epi64(load_256(p), 0xD8);
  __m256i m = _mm256_and_si256(h, magnitude);
  __m256i high = _mm256_and_si256(_mm256_srai_epi16(h, 2), _mm256_set1_epi16(static_cast<int16_t>(0x9FFF)));
  __m256i zero = _mm256_cmpeq_epi16(m, _mm256_setzero_si256());
  high = _mm256_add_epi16(high, _mm256_andnot_si256(zero, _mm256_set1_epi16(0x3000)));
  __m256i low = _mm256_slli_epi16(h, 14);
  if constexpr (kHost) {
    const __m256i top = _mm256_cmpgt_epi16(m, _mm256_set1_epi16(0x7FFD));
    if (_mm256_movemask_epi8(top)) {  // infinities and NaN, which come in regions if at all
      const __m256i nan = _mm256_cmpeq_epi16(m, magnitude);
      const __m256i sign = _mm256_and_si256(h, _mm256_set1_epi16(static_cast<int16_t>(0x8000)));
      high = _mm256_blendv_epi8(high, _mm256_or_si256(sign, _mm256_set1_epi16(0x7F80)), top);
      high = _mm256_blendv_epi8(high, _mm256_set1_epi16(0x7FC0), nan);
      low = _mm256_andnot_si256(top, low);
    }
  } else {
    high = _mm256_or_si256(high, _mm256_srli_epi16(_mm256_cmpeq_epi16(m, magnitude), 1));
  }
  return {_mm256_castsi256_ps(_mm256_unpacklo_epi16(low, high)), _mm256_castsi256_ps(_mm256_unpackhi_epi16(low, high))};
}

SPYRE_INLINE __m256i magnitude_code(__m256i u) {
  __m256i q = _mm256_and_si256(u, _mm256_set1_epi32(0x7FFFFFFF));
  return _mm256_srai_epi32(_mm256_add_epi32(q, _mm256_set1_epi32(0x2000 - (96 << 23))), 14);
}

SPYRE_INLINE void store_sen169(void* p, F x) {
  I u = bits(x);
  // Packing saturates below at 0 and above at 65535.
  __m256i q = _mm256_packus_epi32(magnitude_code(u.a), magnitude_code(u.b));
  q = _mm256_min_epu16(q, _mm256_set1_epi16(0x7FFE));
  __m256i s = _mm256_packs_epi32(_mm256_srai_epi32(u.a, 16), _mm256_srai_epi32(u.b, 16));
  __m256i code = _mm256_or_si256(q, _mm256_and_si256(s, _mm256_set1_epi16(static_cast<int16_t>(0x8000))));
  if (_mm256_movemask_ps(_mm256_cmp_ps(x.a, x.b, _CMP_UNORD_Q))) {  // a NaN somewhere: rare, and cheap to foresee
    M nan = unordered(x);
    code = _mm256_blendv_epi8(code, _mm256_set1_epi16(0x7FFF), _mm256_packs_epi32(nan.a, nan.b));
  }
  store_256(p, _mm256_permute4x64_epi64(code, 0xD8));
}

#else

template <bool kHost = false>
SPYRE_INLINE F load_sen169(const void* p) {
  return kHost ? decode_sen169_host(load_16(p)) : decode_sen169(load_16(p));
}
SPYRE_INLINE void store_sen169(void* p, F a) { store_16(p, encode_sen169(a)); }

#endif

template <bool kHost = false>
SPYRE_INLINE void load_sen169(const void* p, F& a, F& b) {
  a = load_sen169<kHost>(p);
  b = load_sen169<kHost>(static_cast<const std::byte*>(p) + 32);
}
SPYRE_INLINE void store_sen169(void* p, F a, F b) {
  store_sen169(p, a);
  store_sen169(static_cast<std::byte*>(p) + 32, b);
}

#endif

SPYRE_ISA_END
