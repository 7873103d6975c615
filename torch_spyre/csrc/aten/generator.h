// SPDX-License-Identifier: Apache-2.0
// The device's random numbers: one generator per device. Its state is a seed and how many draws it has given; each draw
// is the key of one launch, whose program makes the numbers on the card.
#pragma once
#include <ATen/core/Generator.h>

namespace spyre {

const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);
/// The next key of `generator`, or of the device's default one if absent. A CPU generator gives one of its numbers.
uint64_t draw_key(const std::optional<at::Generator>& generator, c10::DeviceIndex index);

}  // namespace spyre
