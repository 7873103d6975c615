// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for one instruction set. Extra flags of this file: none.
#define SPYRE_KERNELS_PORTABLE 1
#include "implementation.h"

namespace spyre::card {
const KernelTable kPortableKernels = {"portable",     portable::vector_op, portable::reduce,     portable::matmul,
                                      portable::copy, portable::sum_views, portable::gather,     portable::scatter,
                                      portable::iota, portable::scan,      portable::arg_reduce, portable::sort};
}  // namespace spyre::card
