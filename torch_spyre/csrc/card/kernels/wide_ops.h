// SPDX-License-Identifier: Apache-2.0
// The vector operations that are computed in fp64 inside (wide.h): within 1 ulp of fp32.
#pragma once
#include "wide.h"

SPYRE_ISA_BEGIN

/// The torch formulas of silu, gelu and mish give -inf * 0 there.
SPYRE_INLINE D nan_at_minus_infinity(D x, D y) { return choose(x == -kInfinity, wide(kNan), y); }

inline D wide_gelu(D x) {
  D z = between(magnitude(x) * 0x1.6a09e667f3bcdp-1, 0.0, 12.0);
  D half = 0.5 * erfc_positive(z, 0.5 * x * x);
  return nan_at_minus_infinity(x, choose(x < 0.0, x * half, x * (1.0 - half)));
}

inline D wide_gelu_tanh(D x) {
  D u = 0x1.9884533d43651p+0 * (x + 0.044715 * x * x * x);  // 0.5 * (1 + tanh(u/2)) = 1 / (1 + e^-u)
  return nan_at_minus_infinity(x, x / (1.0 + wide_exp(-u)));
}

inline D wide_softplus(D x, D beta, D threshold) {
  D u = beta * x;
  D y = (choose(u > 0.0, u, D{}) + wide_log1p(wide_exp(-magnitude(u)))) / beta;
  return choose(u > threshold, x, y);
}

/// x * tanh(log(1 + e^x)), with the tanh as a fraction in e^x.
inline D wide_mish(D x) {
  D e = wide_exp(between(x, -700.0, 300.0));
  D n = e * (e + 2.0);
  return nan_at_minus_infinity(x, x * (n / (n + 2.0)));
}

inline D wide_sinh(D x) {
  D e = wide_expm1(magnitude(x));
  return with_sign(0.5 * (e + e / (e + 1.0)), sign_bit(x));
}

inline D wide_cosh(D x) {
  D e = wide_exp(magnitude(x));
  return 0.5 * (e + 1.0 / e);
}

constexpr bool is_wide(VOp op) { return (op >= VOp::erf && op <= VOp::pow); }

template <VOp op>
SPYRE_INLINE D apply_wide(D a, D b, D c) {
  if constexpr (op == VOp::erf) return wide_erf(a);
  if constexpr (op == VOp::gelu) return wide_gelu(a);
  if constexpr (op == VOp::gelu_tanh) return wide_gelu_tanh(a);
  if constexpr (op == VOp::silu) return nan_at_minus_infinity(a, a / (1.0 + wide_exp(-a)));
  if constexpr (op == VOp::softplus3) return wide_softplus(a, b, c);
  if constexpr (op == VOp::mish) return wide_mish(a);
  if constexpr (op == VOp::sin) return wide_sin_cos(a).sin;
  if constexpr (op == VOp::cos) return wide_sin_cos(a).cos;
  if constexpr (op == VOp::tan) {
    const SinCos t = wide_sin_cos(a);
    return t.sin / t.cos;
  }
  if constexpr (op == VOp::asin) return wide_atan2(a, wide_sqrt((1.0 - a) * (1.0 + a)));
  if constexpr (op == VOp::acos) return wide_atan2(wide_sqrt((1.0 - a) * (1.0 + a)), a);
  if constexpr (op == VOp::atan) return wide_atan2(a, wide(1.0));
  if constexpr (op == VOp::atan2) return wide_atan2(a, b);
  if constexpr (op == VOp::sinh) return wide_sinh(a);
  if constexpr (op == VOp::cosh) return wide_cosh(a);
  if constexpr (op == VOp::log2) return wide_log2(a);
  if constexpr (op == VOp::log1p) return wide_log1p(a);
  if constexpr (op == VOp::expm1) return wide_expm1(a);
  if constexpr (op == VOp::exp2) return wide_exp2(a);
  if constexpr (op == VOp::pow) return wide_pow(a, b);
}

/// n elements, rounded up to whole vectors of 16.
template <VOp op, int n_in>
void run_wide(const float* const* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; i += kWide) {
    const D a = load_wide(in[0] + i);
    const D b = n_in > 1 ? load_wide(in[1] + i) : D{}, c = n_in > 2 ? load_wide(in[2] + i) : D{};
    store_wide(out + i, apply_wide<op>(a, b, c));
  }
}

SPYRE_ISA_END
