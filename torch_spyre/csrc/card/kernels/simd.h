// SPDX-License-Identifier: Apache-2.0
// Logical vectors of 16 lanes: F (fp32), I (int32), M (mask). One meaning, three back ends.
//
// A kernel written on these types gives the same bits on every back end: each operation is one IEEE operation per lane,
// fma is a true fused multiply-add, and nothing is left to the compiler's choice (-ffp-contract=off).
#pragma once
#include "isa.h"

#if defined(SPYRE_KERNELS_AVX512)
#include "simd_avx512.h"
#elif defined(SPYRE_KERNELS_AVX2)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

SPYRE_ISA_BEGIN

constexpr int kLanes = 16;

SPYRE_INLINE M unordered(F a) { return ne_or_nan(a, a); }
/// a > b ? a : b, and NaN if either is NaN.
SPYRE_INLINE F maximum(F a, F b) { return select(unordered(b), b, larger(b, a)); }
SPYRE_INLINE F minimum(F a, F b) { return select(unordered(b), b, smaller(b, a)); }
/// fp32 values leave the kernels with one NaN pattern, so that bits do not depend on how NaNs met.
SPYRE_INLINE F canonical(F a) { return select(unordered(a), floats(splat_i(0x7FC00000)), a); }
/// Truncates toward zero, saturates, NaN -> 0.
SPYRE_INLINE I to_int(F a) {
  I t = select(le(splat(2147483648.0f), a), splat_i(0x7FFFFFFF), truncate(a));
  return select(unordered(a), splat_i(0), t);
}

SPYRE_ISA_END
