// SPDX-License-Identifier: Apache-2.0
// exp, log, tanh and sigmoid in 16-lane vectors: at most 2 ulp of fp32, the same bits on every instruction set.
//
// The polynomials are minimax fits of relative error on the reduced ranges named below.
#pragma once
#include "simd.h"

SPYRE_ISA_BEGIN

template <int n>
SPYRE_INLINE F polynomial(F x, const float (&c)[n]) {
  F r = splat(c[n - 1]);
  SPYRE_UNROLL
  for (int i = n - 2; i >= 0; --i) r = fma(r, x, splat(c[i]));
  return r;
}

/// 2^n for n in -126..127.
SPYRE_INLINE F power_of_two(I n) { return floats(shl<23>(add(n, splat_i(127)))); }

#if !defined(SPYRE_KERNELS_AVX512)
/// a * 2^n for whole n in -250..250: two steps, of which only the second can round.
SPYRE_INLINE F times_power_of_two(F a, F n) {
  I whole = truncate(n), half = sar<1>(whole);
  return mul(mul(a, power_of_two(half)), power_of_two(sub(whole, half)));
}
#endif

SPYRE_INLINE F exp(F x) {
  // (e^r - 1 - r) / r^2 for |r| <= ln(2)/2.
  constexpr float kPoly[] = {0x1.000000p-1f, 0x1.555554p-3f,  0x1.555486p-5f,
                             0x1.111280p-7f, 0x1.6d9460p-10f, 0x1.9f02e4p-13f};
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  x = smaller(splat(89.0f), larger(splat(-104.0f), x));
  F shifted = fma(x, splat(0x1.715476p+0f), splat(kRound));
  F whole = sub(shifted, splat(kRound));
  F r = fma(whole, splat(-0x1.62e400p-1f), x);
  r = fma(whole, splat(-0x1.7f7d1cp-20f), r);
  return times_power_of_two(add(fma(mul(r, r), polynomial(r, kPoly), r), splat(1.0f)), whole);
}

SPYRE_INLINE F log(F x) {
  // (log(1+z) - z + z^2/2) / z^3 for 1+z in [sqrt(1/2), sqrt(2)].
  constexpr float kPoly[] = {0x1.555548p-2f,  -0x1.000006p-2f, 0x1.99a4b6p-3f,  -0x1.555c4cp-3f, 0x1.233760p-3f,
                             -0x1.fc221ep-4f, 0x1.e6f0eep-4f,  -0x1.de3bb4p-4f, 0x1.145618p-4f};
  M subnormal = lt(x, splat(0x1p-126f));
  F scaled = select(subnormal, mul(x, splat(0x1p23f)), x);
  I u = bits(scaled);
  // Exponent such that the mantissa lies in [sqrt(1/2), sqrt(2)).
  I e = sar<23>(sub(u, splat_i(0x3F3504F3)));
  F z = sub(floats(sub(u, shl<23>(e))), splat(1.0f));
  e = select(subnormal, sub(e, splat_i(23)), e);
  F ef = from_int(e);
  F z2 = mul(z, z);
  F y = mul(mul(polynomial(z, kPoly), z), z2);
  y = fma(ef, splat(0x1.7f7d1cp-20f), y);
  y = fma(z2, splat(-0.5f), y);
  F result = fma(ef, splat(0x1.62e400p-1f), add(z, y));
  result = select(eq(x, floats(splat_i(0x7F800000))), x, result);
  result = select(eq(x, splat(0.0f)), floats(splat_i(static_cast<int32_t>(0xFF800000u))), result);
  result = select(lt(x, splat(0.0f)), floats(splat_i(0x7FC00000)), result);
  return select(unordered(x), x, result);
}

SPYRE_INLINE F absolute(F x) { return floats(and_(bits(x), splat_i(0x7FFFFFFF))); }

SPYRE_INLINE F tanh(F x) {
  // (tanh(x) - x) / x^3 in x^2, for |x| < 0.65.
  constexpr float kPoly[] = {-0x1.555552p-2f, 0x1.11101ep-3f,  -0x1.b9e042p-5f,
                             0x1.62eedep-6f,  -0x1.08f302p-7f, 0x1.0df3a0p-9f};
  F a = absolute(x);
  F z = mul(a, a);
  F small = fma(mul(a, z), polynomial(z, kPoly), a);
  F large = sub(splat(1.0f), div(splat(2.0f), add(exp(add(a, a)), splat(1.0f))));
  F y = select(lt(a, splat(0.625f)), small, large);
  y = select(unordered(x), x, y);
  return floats(or_(bits(y), and_(bits(x), splat_i(static_cast<int32_t>(0x80000000u)))));
}

SPYRE_INLINE F sigmoid(F x) {
  F e = exp(floats(or_(bits(x), splat_i(static_cast<int32_t>(0x80000000u)))));  // e^-|x|, never overflows
  M negative = lt(x, splat(0.0f));
  F sum = add(splat(1.0f), e);
  F lost = sub(e, sub(sum, splat(1.0f)));  // what rounding took from 1 + e
  F q = div(select(negative, e, splat(1.0f)), sum);
  F inverse = select(negative, sub(q, splat(1.0f)), floats(xor_(bits(q), splat_i(static_cast<int32_t>(0x80000000u)))));
  return select(unordered(x), x, fma(mul(q, lost), inverse, q));
}

SPYRE_ISA_END
