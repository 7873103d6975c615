// SPDX-License-Identifier: Apache-2.0
// SEN169_FP16 as it lies in memory, in 16-bit lanes: for what needs no value, only the code.
#pragma once
#include "sen169.h"

SPYRE_ISA_BEGIN

#if defined(SPYRE_KERNELS_AVX512)
constexpr int kCodeLanes = 32;
#elif defined(SPYRE_KERNELS_AVX2)
constexpr int kCodeLanes = 16;
#else
constexpr int kCodeLanes = 8;
#endif

typedef uint16_t Codes __attribute__((vector_size(2 * kCodeLanes)));

/// The first n codes; the other lanes are 0.
SPYRE_INLINE Codes load_codes(const std::byte* p, int n) {
  Codes x = {};
  if (n == kCodeLanes) {
    __builtin_memcpy(&x, p, sizeof x);
  } else {
    __builtin_memcpy(&x, p, static_cast<size_t>(n) * 2);
  }
  return x;
}

SPYRE_INLINE void store_codes(std::byte* p, Codes x, int n) {
  if (n == kCodeLanes) {
    __builtin_memcpy(p, &x, sizeof x);
  } else {
    __builtin_memcpy(p, &x, static_cast<size_t>(n) * 2);
  }
}

SPYRE_INLINE Codes splat_code(uint16_t x) { return Codes{} + x; }

/// The code of the first lane.
SPYRE_INLINE uint16_t encode_one(F x) {
  int32_t code[16];
  store_i(code, encode_sen169(x));
  return static_cast<uint16_t>(code[0]);
}

/// condition != 0 ? x : y. Both zeros are 0, both NaN come out as the one that arithmetic gives.
SPYRE_INLINE Codes select_code(Codes condition, Codes x, Codes y) {
  const Codes r = (condition << 1) != 0 ? x : y;
  return (r == 0xFFFF) ? splat_code(0x7FFF) : r;
}

SPYRE_ISA_END
