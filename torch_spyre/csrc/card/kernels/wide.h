// SPDX-License-Identifier: Apache-2.0
// Functions that need more than fp32 inside: fp64 vectors of the compiler, one result of fp32 precision.
//
// Only IEEE operations on fp64, never contracted, so the bits do not depend on the number of lanes. An fp32 argument is
// a normal fp64 number even when subnormal, and overflow or underflow happens once, when the result rounds to fp32. The
// polynomials are Chebyshev fits with relative error below 1e-14.
#pragma once
#include "isa.h"

SPYRE_ISA_BEGIN

#if defined(SPYRE_KERNELS_AVX512)
#define SPYRE_WIDE_LANES 8
#elif defined(SPYRE_KERNELS_AVX2)
#define SPYRE_WIDE_LANES 4
#else
#define SPYRE_WIDE_LANES 2
#endif

constexpr int kWide = SPYRE_WIDE_LANES;
typedef double D __attribute__((vector_size(8 * SPYRE_WIDE_LANES)));
typedef int64_t L __attribute__((vector_size(8 * SPYRE_WIDE_LANES)));  // also the masks: 0 or -1
typedef uint64_t U __attribute__((vector_size(8 * SPYRE_WIDE_LANES)));
typedef float S __attribute__((vector_size(4 * SPYRE_WIDE_LANES)));
#undef SPYRE_WIDE_LANES

constexpr double kInfinity = __builtin_inf();
constexpr double kNan = __builtin_nan("");
constexpr double kMagic = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
constexpr double kPi = 0x1.921fb54442d18p+1;
constexpr double kLn2 = 0x1.62e42fefa39efp-1;
constexpr double kLog2E = 0x1.71547652b82fep+0;

SPYRE_INLINE D wide(double x) { return D{} + x; }
SPYRE_INLINE D load_wide(const float* p) {
  S s;
  __builtin_memcpy(&s, p, sizeof(S));
  return __builtin_convertvector(s, D);
}
SPYRE_INLINE void store_wide(float* p, D x) {
  S s = __builtin_convertvector(x, S);
  __builtin_memcpy(p, &s, sizeof(S));
}
SPYRE_INLINE D choose(L m, D a, D b) { return m ? a : b; }
SPYRE_INLINE D magnitude(D x) { return reinterpret_cast<D>(reinterpret_cast<U>(x) & ~(uint64_t{1} << 63)); }
SPYRE_INLINE U sign_bit(D x) { return reinterpret_cast<U>(x) & (uint64_t{1} << 63); }
SPYRE_INLINE D with_sign(D x, U sign) { return reinterpret_cast<D>(reinterpret_cast<U>(magnitude(x)) | sign); }
SPYRE_INLINE D flip(D x, U sign) { return reinterpret_cast<D>(reinterpret_cast<U>(x) ^ sign); }
/// A NaN passes.
SPYRE_INLINE D between(D x, double low, double high) {
  x = choose(x < low, wide(low), x);
  return choose(x > high, wide(high), x);
}
SPYRE_INLINE bool any_lane(L m) {
  int64_t r = 0;
  for (int l = 0; l < kWide; ++l) r |= m[l];
  return r != 0;
}
inline D wide_sqrt(D x) {
  for (int l = 0; l < kWide; ++l) x[l] = __builtin_sqrt(x[l]);
  return x;
}

template <int n>
SPYRE_INLINE D polynomial(D x, const double (&c)[n]) {
  D r = wide(c[n - 1]);
  SPYRE_UNROLL
  for (int i = n - 2; i >= 0; --i) r = r * x + c[i];
  return r;
}

/// e^r = 1 + p for |r| <= ln(2)/2.
SPYRE_INLINE D exp_minus_one_reduced(D r) {
  constexpr double kPoly[] = {0x1.0000000000001p-1,  0x1.5555555555556p-3,  0x1.5555555553b6cp-5,
                              0x1.1111111110918p-7,  0x1.6c16c1794e1dcp-10, 0x1.a01a01a83ba17p-13,
                              0x1.a019b621f9d08p-16, 0x1.71de0be2b5e96p-19, 0x1.2894f52583578p-22,
                              0x1.af3ce42b12b24p-26};
  return r * r * polynomial(r, kPoly) + r;
}
/// 2^n, n a whole number in -1022..1023.
SPYRE_INLINE D two_to(D n) { return reinterpret_cast<D>(reinterpret_cast<U>(n + (kMagic + 1023.0)) << 52); }

struct Exponential {
  D scale, minus_one;  // e^x = scale * (1 + minus_one)
};
inline Exponential exponential(D x) {
  x = between(x, -700.0, 700.0);
  D n = (x * kLog2E + kMagic) - kMagic;
  D r = (x - n * 0x1.62e42fefa2000p-1) - n * 0x1.9ef35793c7673p-41;
  return {two_to(n), exp_minus_one_reduced(r)};
}
SPYRE_INLINE D wide_exp(D x) {
  Exponential e = exponential(x);
  return e.scale * (1.0 + e.minus_one);
}
SPYRE_INLINE D wide_expm1(D x) {
  Exponential e = exponential(x);
  return choose(x == 0.0, x, e.scale * e.minus_one + (e.scale - 1.0));
}
inline D wide_exp2(D x) {
  x = between(x, -1000.0, 1000.0);
  D n = (x + kMagic) - kMagic;
  return two_to(n) * (1.0 + exp_minus_one_reduced((x - n) * kLn2));
}

struct Logarithm {
  D exponent, log_mantissa;  // log x = exponent * ln 2 + log_mantissa, mantissa in [sqrt(1/2), sqrt(2))
};
/// Normal positive numbers; garbage for others.
inline Logarithm logarithm(D x) {
  // (log(m) - 2s) / s^3 in s^2, s = (m-1)/(m+1).
  constexpr double kPoly[] = {0x1.5555555555555p-1, 0x1.9999999999a3ep-2, 0x1.2492492475dbcp-2, 0x1.c71c720302bd8p-3,
                              0x1.745cf85360411p-3, 0x1.3b1c5ae500a38p-3, 0x1.0fbaab3c72fc6p-3, 0x1.0c2c748b6f13cp-3};
  U u = reinterpret_cast<U>(x);
  U biased = (u + (0x3FF0000000000000u - 0x3FE6A09E667F3BCDu)) >> 52;
  D m = reinterpret_cast<D>(u - (biased << 52) + 0x3FF0000000000000u);
  D e = reinterpret_cast<D>(biased | 0x4330000000000000u) - (0x1p52 + 1023.0);
  D f = m - 1.0, s = f / (f + 2.0), s2 = s * s;
  return {e, 2.0 * s + s * s2 * polynomial(s2, kPoly)};
}
/// The special values of a logarithm of x, else y.
SPYRE_INLINE D log_or(D x, D y) {
  y = choose(x == kInfinity, x, y);
  y = choose(x == 0.0, wide(-kInfinity), y);
  y = choose(x < 0.0, wide(kNan), y);
  return choose(x != x, x, y);
}
SPYRE_INLINE D wide_log(D x) {
  Logarithm l = logarithm(x);
  return log_or(x, l.exponent * kLn2 + l.log_mantissa);
}
SPYRE_INLINE D wide_log2(D x) {
  Logarithm l = logarithm(x);
  return log_or(x, l.exponent + l.log_mantissa * kLog2E);
}
inline D wide_log1p(D x) {
  D u = 1.0 + x;
  Logarithm l = logarithm(u);
  D lost = x - (u - 1.0);  // what rounding took from 1 + x
  return choose(x == 0.0, x, log_or(u, l.exponent * kLn2 + l.log_mantissa + lost / u));
}

/// IEEE pow.
inline D wide_pow(D x, D y) {
  D a = magnitude(x);
  Logarithm l = logarithm(a);
  D log2 = l.exponent + l.log_mantissa * kLog2E;
  log2 = choose(a == 0.0, wide(-kInfinity), log2);
  log2 = choose(a == kInfinity, wide(kInfinity), log2);
  D r = wide_exp2(y * log2);
  r = choose((a == 1.0) & (y == y), wide(1.0), r);
  // Above 2^24 every fp32 number is an even integer.
  D shifted = y + kMagic;
  L large = magnitude(y) >= 0x1p24, whole = large | (shifted - kMagic == y);
  L odd = whole & ~large & ((reinterpret_cast<L>(shifted) & 1) != 0);
  r = flip(r, reinterpret_cast<U>(odd) & sign_bit(x));
  r = choose((x < 0.0) & (a != kInfinity) & ~whole & (y == y), wide(kNan), r);
  r = choose(x != x, x, r);
  return choose((y == 0.0) | (x == 1.0), wide(1.0), r);
}

struct Angle {
  D rest;      // in [-pi/4, pi/4]
  U quadrant;  // low two bits
};

/// Any finite fp32 x of 2^20 and up: x * 2/pi modulo 4 with 128 bits of 2/pi, exactly.
inline double reduce_large(double x, uint64_t* quadrant) {
  constexpr uint32_t kTwoOverPi[] = {0,          0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0,
                                     0xdb629599, 0x3c439041, 0xfe5163ab, 0xdebbc561, 0xb7246e3a};
  typedef unsigned __int128 Big;
  const float a = static_cast<float>(x < 0 ? -x : x);
  uint32_t u;
  __builtin_memcpy(&u, &a, 4);
  const int exponent = static_cast<int>(u >> 23) - 150;  // a = m * 2^exponent
  const uint32_t m = (u & 0x7FFFFF) | 0x800000, start = static_cast<uint32_t>(exponent - 2 + 32);
  const uint32_t word = start / 32, shift = start % 32;  // bits above weight 2 are whole turns
  Big window = 0;
  for (uint32_t i = 0; i < 4; ++i) window = window << 32 | kTwoOverPi[word + i];
  if (shift) window = window << shift | kTwoOverPi[word + 4] >> (32 - shift);
  const Big product = window * m;
  *quadrant = static_cast<uint64_t>(product >> 126) + (static_cast<uint64_t>(product >> 125) & 1);
  const Big fraction = product << 2;
  const double high = static_cast<double>(static_cast<int64_t>(static_cast<uint64_t>(fraction >> 64)));
  const double rest = (high * 0x1p-64 + static_cast<double>(static_cast<uint64_t>(fraction)) * 0x1p-128) * (kPi / 2);
  if (x >= 0) return rest;
  *quadrant = 0 - *quadrant;
  return -rest;
}

inline Angle reduce_angle(D x) {
  D shifted = x * 0x1.45f306dc9c883p-1 + kMagic;
  D k = shifted - kMagic;
  Angle a{((x - k * 0x1.921fb54400000p+0) - k * 0x1.0b4611a600000p-34) - k * 0x1.3198a2e037073p-69,
          reinterpret_cast<U>(shifted)};
  D size = magnitude(x);
  L large = (size >= 0x1p20) & (size < kInfinity);
  if (__builtin_expect(any_lane(large), 0)) {
    for (int l = 0; l < kWide; ++l) {
      uint64_t quadrant;
      if (!large[l]) continue;
      a.rest[l] = reduce_large(x[l], &quadrant);
      a.quadrant[l] = quadrant;
    }
  }
  return a;
}
SPYRE_INLINE D sin_reduced(D r) {
  constexpr double kPoly[] = {-0x1.5555555555555p-3, 0x1.1111111111110p-7,   -0x1.a01a01a019926p-13,
                              0x1.71de3a545e700p-19, -0x1.ae64540f0ba18p-26, 0x1.61217c1864fa1p-33,
                              -0x1.ab161757f0c63p-41};
  D z = r * r;
  return r + r * z * polynomial(z, kPoly);
}
SPYRE_INLINE D cos_reduced(D r) {
  constexpr double kPoly[] = {0x1.5555555555555p-5,   -0x1.6c16c16c16c16p-10, 0x1.a01a01a019d02p-16,
                              -0x1.27e4fb7711e1dp-22, 0x1.1eed8de9ef73ep-29,  -0x1.9394b76d1f265p-37,
                              0x1.ab76cf6e9b365p-45};
  D z = r * r;
  return (1.0 - 0.5 * z) + z * z * polynomial(z, kPoly);
}
struct SinCos {
  D sin, cos;
};
inline SinCos wide_sin_cos(D x) {
  Angle a = reduce_angle(x);
  D s = sin_reduced(a.rest), c = cos_reduced(a.rest);
  L odd = reinterpret_cast<L>(a.quadrant & 1) != 0;
  U half = (a.quadrant & 2) << 62;
  D sine = flip(choose(odd, c, s), half);
  return {choose(x == 0.0, x, sine), flip(choose(odd, s, c), half ^ ((a.quadrant & 1) << 63))};
}

inline D wide_atan2(D y, D x) {
  // (atan(w) - w) / w^3 in w^2, |w| <= tan(pi/8).
  constexpr double kPoly[] = {-0x1.5555555555555p-2, 0x1.9999999999953p-3, -0x1.249249248d768p-3, 0x1.c71c71c2fe5d9p-4,
                              -0x1.745d165cb83aap-4, 0x1.3b1392b641b06p-4, -0x1.110e858a72e28p-4, 0x1.e199da4156fd9p-5,
                              -0x1.ac78ec6b8cb98p-5, 0x1.74d64aa665b0ap-5, -0x1.1b2058fb5da30p-5, 0x1.0aa87c56e3eb5p-6};
  D ay = magnitude(y), ax = magnitude(x);
  L steep = ay > ax;
  D low = choose(steep, ax, ay), high = choose(steep, ay, ax);
  D z = choose(low == high, choose(low == 0.0, low, wide(1.0)), low / high);
  L far = z > 0x1.a827999fcef34p-2;
  D w = choose(far, (z - 1.0) / (z + 1.0), z), w2 = w * w;
  D r = w + w * w2 * polynomial(w2, kPoly);
  r = choose(far, r + kPi / 4, r);
  r = choose(steep, kPi / 2 - r, r);
  r = choose(reinterpret_cast<L>(sign_bit(x)) != 0, kPi - r, r);
  r = with_sign(r, sign_bit(y));
  return choose((x != x) | (y != y), wide(kNan), r);
}

/// erfc(z) for z in [0, 12]; z2 = z^2.
inline D erfc_positive(D z, D z2) {
  // e^(z^2) erfc(z) (1 + 2z) in t = (z - 3.75) / (z + 3.75).
  constexpr double kPoly[] = {0x1.3ccda0b5d5dbdp+0,   -0x1.1f367683f8c98p-3, 0x1.d5f29481fe4d9p-9,
                              0x1.510169d0cad87p-4,   -0x1.bda9309ae483ap-4, 0x1.7a1418827d6d0p-4,
                              -0x1.e0d0fa63ff293p-5,  0x1.d0b005997bf03p-6,  -0x1.3f60390f93ca8p-7,
                              0x1.cc39042399a30p-10,  0x1.33f434f4b5ce8p-12, -0x1.303126dc98703p-12,
                              0x1.b291ad54c9c2ap-15,  0x1.7728a0728c8b7p-16, -0x1.8d55395f22d98p-17,
                              -0x1.58dfd848e4115p-20, 0x1.1139e290546d4p-19, 0x1.0c033485b6a3ap-21};
  D t = (z - 3.75) / (z + 3.75);
  return wide_exp(-z2) * polynomial(t, kPoly) / (1.0 + 2.0 * z);
}
inline D wide_erf(D x) {
  // erf(x) / x in x^2, |x| <= 1.
  constexpr double kPoly[] = {0x1.20dd750429b6bp+0,   -0x1.812746b037352p-2,  0x1.ce2f21a000d30p-4,
                              -0x1.b82ce3026aae0p-6,  0x1.565bcb082cca2p-8,   -0x1.c02d67e37081ep-11,
                              0x1.f99c295886f05p-14,  -0x1.f4684782919e8p-17, 0x1.b5d3ea9fd0b5ap-20,
                              -0x1.462a758d4591dp-23, 0x1.43f6d0dee7032p-27};
  D a = between(magnitude(x), 0.0, 12.0), a2 = a * a;
  D r = choose(a < 1.0, a * polynomial(a2, kPoly), 1.0 - erfc_positive(a, a2));
  return choose(x != x, x, with_sign(r, sign_bit(x)));
}

SPYRE_ISA_END
