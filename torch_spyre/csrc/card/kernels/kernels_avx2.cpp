// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for one instruction set. Extra flags of this file: -mavx2 -mfma -mf16c.
#if defined(__x86_64__)
#define SPYRE_KERNELS_AVX2 1
#include "implementation.h"

namespace spyre::card {
const KernelTable kAvx2Kernels = {"avx2",     avx2::vector_op, avx2::reduce,     avx2::matmul,
                                  avx2::copy, avx2::sum_views, avx2::gather,     avx2::scatter,
                                  avx2::iota, avx2::scan,      avx2::arg_reduce, avx2::sort};
}  // namespace spyre::card
#endif
