// SPDX-License-Identifier: Apache-2.0
// The device's random numbers: one generator per device with the CPU's engine, drawn on the host and moved by DMA. The
// same seed gives the same numbers as PyTorch's CPU generator.
#pragma once
#include <ATen/core/Generator.h>

namespace spyre {

const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);
/// The CPU generator that draws the numbers of `generator`, or of the device's default one if absent.
at::Generator host_generator(const std::optional<at::Generator>& generator, c10::DeviceIndex index);

}  // namespace spyre
