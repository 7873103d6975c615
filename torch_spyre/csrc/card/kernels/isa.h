// SPDX-License-Identifier: Apache-2.0
// Which instruction set this translation unit is compiled for, and the namespace that keeps its code apart.
//
// Everything that is compiled with instruction-set flags lives in SPYRE_ISA_BEGIN ... SPYRE_ISA_END: an unnamed
// namespace, so that the linker can never pick an AVX-512 copy of a shared inline function for another machine. For the
// same reason these files use no function templates of the standard library.
#pragma once
#include "kernels.h"

#if defined(SPYRE_KERNELS_AVX512)
#define SPYRE_ISA_NAME avx512
#elif defined(SPYRE_KERNELS_AVX2)
#define SPYRE_ISA_NAME avx2
#else
#define SPYRE_ISA_NAME portable
#endif

#define SPYRE_ISA_BEGIN                   \
  namespace spyre::card::SPYRE_ISA_NAME { \
  namespace {
#define SPYRE_ISA_END \
  }                   \
  }

// Vectors must stay in registers, so the vector back ends inline without exception. The portable one has no such
// registers and would only grow.
#if defined(SPYRE_KERNELS_AVX512) || defined(SPYRE_KERNELS_AVX2)
#define SPYRE_INLINE_ATTRIBUTE __attribute__((always_inline))
#define SPYRE_UNROLL _Pragma("GCC unroll 16")
#else
#define SPYRE_INLINE_ATTRIBUTE
#define SPYRE_UNROLL
#endif
#define SPYRE_INLINE inline SPYRE_INLINE_ATTRIBUTE

namespace spyre::card {

/// The kernels of one instruction set.
struct KernelTable {
  const char* name;
  void (*vector_op)(VOp, Compute, const Shape&, const View&, const View*, int);
  void (*reduce)(ROp, Compute, const Shape&, uint32_t, bool, const View&, const View&);
  void (*matmul)(const Shape&, bool, int, const View&, const View&, const View&);
  bool (*copy)(const Shape&, const View&, const View&);
  void (*sum_views)(const Shape&, const View&, const View*, int);
  bool (*gather)(const Shape&, const View&, const View&, const TableIndex*, int, bool, BadIndex*);
  bool (*scatter)(const Shape&, const View&, const View&, const TableIndex*, int, bool, bool, BadIndex*);
  void (*iota)(const Shape&, const View&, int64_t, const DimMap*);
  void (*scan)(ROp, Compute, const Shape&, int, const View&, const View&);
  void (*arg_reduce)(ROp, const Shape&, int, const View*, const View*, const View&);
  void (*sort)(const Shape&, int, bool, bool, int64_t, const View*, const View*, const View&);
};

extern const KernelTable kPortableKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

/// Working memory of the calling thread, 64-byte aligned, at least `bytes`; contents are not kept when it grows.
/// Slots are independent, so that a kernel can hold several.
enum ScratchSlot : int {
  kScratchA,
  kScratchB,
  kScratchC,
  kScratchRuns,
  kScratchState,
  kScratchRows,
  kScratchTaps,
  kScratchSlots
};
void* scratch(ScratchSlot slot, size_t bytes);

/// Size of the second cache of a CPU, for blocking. Results do not depend on it.
int64_t second_cache_bytes();

constexpr int kCodes = 1 << 16;  // of a 16-bit format
/// The results of an operation for all codes of a 16-bit format, made by `fill` when first asked for and kept.
const uint16_t* code_table(VOp op, void (*fill)(VOp op, uint16_t* table));

}  // namespace spyre::card

SPYRE_ISA_BEGIN

SPYRE_INLINE int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
SPYRE_INLINE int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
SPYRE_INLINE int64_t abs64(int64_t a) { return a < 0 ? -a : a; }

inline int64_t gcd64(int64_t a, int64_t b) {
  while (b) {
    int64_t t = a % b;
    a = b;
    b = t;
  }
  return a;
}

SPYRE_ISA_END
