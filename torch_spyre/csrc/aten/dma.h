// SPDX-License-Identifier: Apache-2.0
// DMA between strided host memory and a strided view of a laid-out storage.
#pragma once
#include <memory>

#include "storage.h"

namespace spyre {

/// Pairs the DMA engine converts in one rounding; every other pair is converted on the host first.
bool dma_converts(c10::ScalarType from, c10::ScalarType to);

/// On the current stream of the device. With `keep`, an owner of the host memory, they may return before the transfer
/// ran. Host memory of dtype `host_dtype` into the view (size, stride, offset: host elements) of a storage.
void dma_in(const void* host, c10::ScalarType host_dtype, c10::IntArrayRef host_stride, const StorageRecord& record,
            c10::IntArrayRef size, c10::IntArrayRef stride, int64_t offset, std::shared_ptr<const void> keep = nullptr);
void dma_out(const StorageRecord& record, c10::IntArrayRef size, c10::IntArrayRef stride, int64_t offset, void* host,
             c10::ScalarType host_dtype, c10::IntArrayRef host_stride, std::shared_ptr<const void> keep = nullptr);

}  // namespace spyre
