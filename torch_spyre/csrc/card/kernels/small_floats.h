// SPDX-License-Identifier: Apache-2.0
// 8-bit floats as fp32, 16 lanes at a time.
#pragma once
#include "scalar_formats.h"
#include "simd.h"

SPYRE_ISA_BEGIN

/// Sixteen codes (0..255) of an 8-bit float. The rules of small_decode.
template <const SmallFloat& f>
SPYRE_INLINE F decode_small(I code) {
  constexpr int kShift = 23 - f.mantissa_bits;
  const I magnitude = and_(code, splat_i(0x7F)), sign = shl<24>(and_(code, splat_i(0x80)));
  const F tiny = mul(from_int(magnitude), splat(float_of(static_cast<uint32_t>(128 - f.bias - f.mantissa_bits) << 23)));
  const I normal = add(shl<kShift>(magnitude), splat_i((127 - f.bias) << 23));
  const I value = or_(select(lt(magnitude, splat_i(1 << f.mantissa_bits)), bits(tiny), normal), sign);
  const M nan = f.negative_zero ? eq(magnitude, splat_i(f.nan)) : eq(code, splat_i(f.nan));
  return floats(select(nan, splat_i(0x7FC00000), value));
}

#if defined(SPYRE_KERNELS_AVX512)
/// The upper halves of the fp32 of all magnitudes; the lower ones are 0, as no 8-bit float has more than 8 digits.
template <const SmallFloat& f>
struct UpperHalves {
  uint16_t half[128];
  constexpr UpperHalves() : half{} {
    for (int m = 0; m < 128; ++m) {
      int digits = m & ((1 << f.mantissa_bits) - 1), exponent = m >> f.mantissa_bits;
      if (exponent == 0) {
        for (exponent = 1; digits > 0 && digits < 1 << f.mantissa_bits; --exponent) digits *= 2;
        digits -= digits > 0 ? 1 << f.mantissa_bits : 0;
      }
      if (m > 0) half[m] = static_cast<uint16_t>((exponent + 127 - f.bias) << 7 | digits << (7 - f.mantissa_bits));
    }
    if (f.negative_zero) half[f.nan] = 0x7FC0;
  }
};

/// 32 codes in memory, looked up: two tables of 64 entries by the lower six bits, the seventh chooses.
template <const SmallFloat& f>
SPYRE_INLINE void load_small_pair(const std::byte* p, F& a, F& b) {
  alignas(64) static constexpr UpperHalves<f> kTable;
  const uint16_t* halves = kTable.half;
  // Unpacking works within 128-bit lanes; this order of groups of four makes its results come out in sequence.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m512i c = _mm512_cvtepi8_epi16(_mm256_permutevar8x32_epi32(codes, order));
  const __m512i low = _mm512_permutex2var_epi16(_mm512_load_si512(halves), c, _mm512_load_si512(halves + 32));
  const __m512i high = _mm512_permutex2var_epi16(_mm512_load_si512(halves + 64), c, _mm512_load_si512(halves + 96));
  __m512i upper = _mm512_mask_mov_epi16(low, _mm512_test_epi16_mask(c, _mm512_set1_epi16(0x40)), high);
  upper = _mm512_ternarylogic_epi32(upper, c, _mm512_set1_epi16(static_cast<short>(0x8000)), 0xF8);  // the sign
  if (!f.negative_zero) {
    const __mmask32 nan = _mm512_cmpeq_epi16_mask(c, _mm512_set1_epi16(static_cast<int8_t>(f.nan)));
    upper = _mm512_mask_mov_epi16(upper, nan, _mm512_set1_epi16(0x7FC0));
  }
  a.v = _mm512_castsi512_ps(_mm512_unpacklo_epi16(_mm512_setzero_si512(), upper));
  b.v = _mm512_castsi512_ps(_mm512_unpackhi_epi16(_mm512_setzero_si512(), upper));
}

#else

#if defined(SPYRE_KERNELS_AVX2)
/// Sixteen codes that are numbers.
template <const SmallFloat& f>
SPYRE_INLINE F half_of(__m128i codes) {
  constexpr int kShift = 10 - f.mantissa_bits;
  // The sign comes twice: at its place, and above the digits where those leave room.
  const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), kShift);
  alignas(32) uint16_t halves[16];
  _mm256_store_si256(reinterpret_cast<__m256i*>(halves),
                     kShift == 8 ? shifted : _mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<short>(0xBFFF))));
  return mul(load_f16(halves), splat(float_of(static_cast<uint32_t>(127 + 15 - f.bias) << 23)));
}
#endif

/// 32 codes in memory. Where the machine converts IEEE halves, a code becomes the half with the same digits, whose bias
/// differs by a power of two: fewer steps than the rules above, which NaN still takes, and numbers whose digits mean
/// infinity in a half.
template <const SmallFloat& f>
SPYRE_INLINE void load_small_pair(const std::byte* p, F& a, F& b) {
#if defined(SPYRE_KERNELS_AVX2)
  const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi8(0x7F));
  constexpr char kMost = f.mantissa_bits == 2 ? 0x7B : 0x7E;
  __m256i others = _mm256_cmpgt_epi8(magnitude, _mm256_set1_epi8(kMost));
  if (!f.negative_zero) {
    others = _mm256_or_si256(others, _mm256_cmpeq_epi8(codes, _mm256_set1_epi8(static_cast<char>(f.nan))));
  }
  if (__builtin_expect(_mm256_testz_si256(others, others), 1)) {
    a = half_of<f>(_mm256_castsi256_si128(codes));
    b = half_of<f>(_mm256_extracti128_si256(codes, 1));
    return;
  }
#endif
  a = decode_small<f>(load_8(p));
  b = decode_small<f>(load_8(p + 16));
}

#endif

SPYRE_ISA_END
