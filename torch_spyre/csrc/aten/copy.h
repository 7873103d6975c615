// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <ATen/core/Tensor.h>

namespace spyre {

/// aten::_copy_from: any devices, dtypes and strides; `self` is broadcast to `dst`. Returns dst.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking);

}  // namespace spyre
