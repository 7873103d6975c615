// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <ATen/core/Tensor.h>

namespace spyre {

/// resize_: host elements keep their linear position; a storage that is too small gets a new one with a new layout.
const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat> format);

}  // namespace spyre
