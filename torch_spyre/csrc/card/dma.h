// SPDX-License-Identifier: Apache-2.0
// The DMA engine: a host tensor and a view of a device storage become one copy() over resolved addresses.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "spyre/card.h"

namespace spyre::card {

struct DmaPlan {
  Shape shape;
  View host, device;  // device.base is relative to card address 0 until run_dma
  LayoutMap layout;   // the device side, if `general`
  bool general = false;
  bool empty = false;            // no elements: nothing to do
  uint64_t bytes = 0;            // moved, counted in device elements
  uint64_t storage_address = 0;  // the device storage
  uint64_t storage_bytes = 0;
  bool zero_storage = false;  // clear it first, so that padding lanes are zero
};

/// Checks both tensors against each other and the view against its layout. Throws InvalidArgument or OutOfBounds.
DmaPlan plan_dma(const HostTensor& host, const DeviceTensor& device, bool to_device);

/// The same by strides: one plan for each box, and more where a box has too many dims. Clearing is left to the first.
std::vector<DmaPlan> plan_boxes(const BoxTransfer& transfer, bool to_device);

/// Writes an element over and over to `bytes` bytes from `begin`.
void run_fill(std::byte* begin, uint64_t bytes, std::span<const std::byte> element);

/// `memory` is the host address of card address 0. Throws Overflow if an int64 value does not fit int32.
void run_dma(const DmaPlan& plan, bool to_device, std::byte* memory);

/// Card addresses that a plan touches.
void for_each_device_run(const DmaPlan& plan, const std::function<void(uint64_t, uint64_t)>& fn);

}  // namespace spyre::card
