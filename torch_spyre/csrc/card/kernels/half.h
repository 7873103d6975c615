// SPDX-License-Identifier: Apache-2.0
// IEEE half <-> SEN169_FP16 without a detour through fp32, for the values that DMA meets most.
//
// Between 2^-14 and 65472 both formats are normal and differ by one fraction bit and the exponent bias, so 16-bit
// arithmetic suffices. Anything else (subnormal halves, 65504, infinities, NaN) is left to the general conversion.
#pragma once
#include "simd.h"

SPYRE_ISA_BEGIN

#if defined(SPYRE_KERNELS_AVX512)

SPYRE_INLINE __m512i words(int x) { return _mm512_set1_epi16(static_cast<int16_t>(x)); }

/// Converts 32 elements, or does nothing and returns false.
template <bool kToSen169>
SPYRE_INLINE bool convert_half(void* out, const void* in) {
  constexpr int kLowest = kToSen169 ? 0x400 : 0x2200, kHighest = kToSen169 ? 0x7BFE : 0x5DFF;
  __m512i h = _mm512_loadu_si512(in);
  __m512i m = _mm512_and_si512(h, words(0x7FFF));
  __mmask32 nonzero = _mm512_test_epi16_mask(m, m);
  __mmask32 low = _mm512_mask_cmplt_epu16_mask(nonzero, m, words(kLowest));
  if (low | _mm512_cmpgt_epu16_mask(m, words(kHighest))) return false;
  __m512i code;
  if (kToSen169) {
    code = _mm512_maskz_add_epi16(nonzero, _mm512_avg_epu16(m, words(0)), words(0x2000));  // halves, ties up
  } else {
    code = _mm512_maskz_slli_epi16(nonzero, _mm512_sub_epi16(m, words(0x2000)), 1);
  }
  _mm512_storeu_si512(out, _mm512_ternarylogic_epi32(code, h, words(0x8000), 0xF8));  // code | (h & 0x8000)
  return true;
}

#elif defined(SPYRE_KERNELS_AVX2)

SPYRE_INLINE __m256i words(int x) { return _mm256_set1_epi16(static_cast<int16_t>(x)); }

template <bool kToSen169>
SPYRE_INLINE bool convert_half(void* out, const void* in) {
  constexpr int kLowest = kToSen169 ? 0x400 : 0x2200, kHighest = kToSen169 ? 0x7BFE : 0x5DFF;
  __m256i code[2], bad = words(0);
  for (int i = 0; i < 2; ++i) {
    __m256i h = load_256(static_cast<const __m256i*>(in) + i);
    __m256i m = _mm256_and_si256(h, words(0x7FFF));
    __m256i nonzero = _mm256_cmpgt_epi16(m, words(0));
    __m256i low = _mm256_and_si256(nonzero, _mm256_cmpgt_epi16(words(kLowest), m));
    bad = _mm256_or_si256(bad, _mm256_or_si256(low, _mm256_cmpgt_epi16(m, words(kHighest))));
    __m256i c = kToSen169 ? _mm256_add_epi16(_mm256_avg_epu16(m, words(0)), words(0x2000))  // halves, ties up
                          : _mm256_slli_epi16(_mm256_sub_epi16(m, words(0x2000)), 1);
    code[i] = _mm256_or_si256(_mm256_and_si256(c, nonzero), _mm256_and_si256(h, words(0x8000)));
  }
  if (_mm256_movemask_epi8(bad)) return false;
  store_256(out, code[0]);
  store_256(static_cast<__m256i*>(out) + 1, code[1]);
  return true;
}

#else

template <bool kToSen169>
SPYRE_INLINE bool convert_half(void*, const void*) {
  return false;
}

#endif

SPYRE_ISA_END
