// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for one instruction set. Extra flags of this file: -mavx512f -mavx512bw -mavx512vl -mavx512dq
// -mfma -mf16c.
#if defined(__x86_64__)
#define SPYRE_KERNELS_AVX512 1
#include "implementation.h"

namespace spyre::card {
const KernelTable kAvx512Kernels = {"avx512",     avx512::vector_op, avx512::reduce,     avx512::matmul,
                                    avx512::copy, avx512::sum_views, avx512::gather,     avx512::scatter,
                                    avx512::iota, avx512::scan,      avx512::arg_reduce, avx512::sort};
}  // namespace spyre::card
#endif
