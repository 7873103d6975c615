// SPDX-License-Identifier: Apache-2.0
#include "dma.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "device.h"
#include "errors.h"
#include "profiler.h"
#include "recording.h"

namespace spyre {
namespace {

bool is_device_float(c10::ScalarType t) { return t == at::kHalf || t == at::kBFloat16 || t == at::kFloat; }

card::DeviceTensor device_tensor(const StorageRecord& r, c10::IntArrayRef stride, int64_t offset) {
  card::DeviceTensor t;
  t.address = r.address;
  t.format = static_cast<int>(r.layout->device_dtype);
  t.device_size = r.layout->device_size;
  t.stride_map = r.layout->stride_map;
  t.host_offset = offset;
  t.host_stride = stride.vec();
  return t;
}

card::HostTensor host_tensor(const void* data, int format, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return {const_cast<void*>(data), format, size.vec(), stride.vec()};
}

/// uint8 has no host format of one byte: its elements are 32-bit words on the card and travel as int32.
at::Tensor as_words(const void* host, c10::IntArrayRef size, c10::IntArrayRef stride) {
  auto bytes = at::from_blob(const_cast<void*>(host), size, stride, at::TensorOptions().dtype(at::kByte));
  return bytes.to(at::kInt).contiguous();
}

}  // namespace

bool dma_converts(c10::ScalarType from, c10::ScalarType to) {
  return from == to || (is_device_float(to) && (is_device_float(from) || from == at::kBool));
}

void dma_in(const void* host, c10::ScalarType host_dtype, c10::IntArrayRef host_stride, const StorageRecord& record,
            c10::IntArrayRef size, c10::IntArrayRef stride, int64_t offset, std::shared_ptr<const void> keep) {
  const profiler::Call call(nullptr);
  Recording::spoil_active("values from the host");
  auto& card = card_of(record.device);
  const int stream = current_stream_id(record.device);
  const auto device = device_tensor(record, stride, offset);
  if (host_dtype == at::kByte) {
    const auto words = as_words(host, size, host_stride);
    with_memory([&] {
      card.dma_in(host_tensor(words.data_ptr(), device.format, size, words.strides()), device, true, stream);
    });
    return;
  }
  const auto format = static_cast<int>(host_format(host_dtype));
  const bool blocking = keep == nullptr;
  with_memory([&] { card.dma_in(host_tensor(host, format, size, host_stride), device, blocking, stream, keep); });
}

void dma_out(const StorageRecord& record, c10::IntArrayRef size, c10::IntArrayRef stride, int64_t offset, void* host,
             c10::ScalarType host_dtype, c10::IntArrayRef host_stride, std::shared_ptr<const void> keep) {
  const profiler::Call call(nullptr);
  Recording::spoil_active("values read by the host");
  auto& card = card_of(record.device);
  if (card.timing_only()) {
    TORCH_WARN_ONCE("spyre runs in timing-only mode: nothing is computed, and values read from the card are zeros");
  }
  const int stream = current_stream_id(record.device);
  const auto device = device_tensor(record, stride, offset);
  if (host_dtype == at::kByte) {
    auto words = at::empty(size, at::TensorOptions().dtype(at::kInt));
    on_card([&] {
      card.dma_out(device, host_tensor(words.data_ptr(), device.format, size, words.strides()), true, stream);
    });
    at::from_blob(host, size, host_stride, at::TensorOptions().dtype(at::kByte)).copy_(words);
    return;
  }
  const auto format = static_cast<int>(host_format(host_dtype));
  const bool blocking = keep == nullptr;
  on_card(
      [&] { card.dma_out(device, host_tensor(host, format, size, host_stride), blocking, stream, std::move(keep)); });
}

}  // namespace spyre
