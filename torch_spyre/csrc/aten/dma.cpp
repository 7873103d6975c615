// SPDX-License-Identifier: Apache-2.0
#include "dma.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Float8_e5m2fnuz.h>

#include <algorithm>
#include <array>
#include <cmath>

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

/// dtypes that have no host format of their own travel as another one. uint8 has elements of 32 bits on the card and
/// travels as int32; float8_e5m2 is kept in the format of float8_e5m2fnuz, whose codes it takes on the host.
bool is_repacked(at::ScalarType dtype) { return dtype == at::kByte || dtype == at::kFloat8_e5m2; }

/// Infinity becomes the largest number, -0 becomes 0, NaN stays. Every other value of float8_e5m2 is one of
/// float8_e5m2fnuz; back, what lies between two subnormal numbers goes to the even one.
template <class From, class To>
std::array<uint8_t, 256> make_codes() {
  std::array<uint8_t, 256> codes;
  for (int code = 0; code < 256; ++code) {
    const auto x = static_cast<float>(From(static_cast<uint8_t>(code), From::from_bits()));
    constexpr float kMost = 57344.0f;
    codes[code] = To(std::isnan(x) ? x : std::clamp(x, -kMost, kMost)).x;
  }
  return codes;
}

template <class From, class To>
void recode(at::Tensor bytes) {
  static const auto codes = make_codes<From, To>();
  auto* p = bytes.data_ptr<uint8_t>();
  std::transform(p, p + bytes.numel(), p, [](uint8_t code) { return codes[code]; });
}

at::Tensor host_view(const void* host, at::ScalarType dtype, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::from_blob(const_cast<void*>(host), size, stride, at::TensorOptions().dtype(dtype));
}

/// A copy of a host tensor as it travels.
at::Tensor packed(const void* host, at::ScalarType dtype, c10::IntArrayRef size, c10::IntArrayRef stride) {
  const auto bytes = host_view(host, at::kByte, size, stride);
  if (dtype == at::kByte) return bytes.to(at::kInt).contiguous();
  auto copy = at::empty(size, bytes.options()).copy_(bytes);
  recode<c10::Float8_e5m2, c10::Float8_e5m2fnuz>(copy);
  return copy;
}

void unpack(at::Tensor travelled, void* host, at::ScalarType dtype, c10::IntArrayRef stride) {
  if (dtype != at::kByte) recode<c10::Float8_e5m2fnuz, c10::Float8_e5m2>(travelled);
  host_view(host, at::kByte, travelled.sizes(), stride).copy_(travelled);
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
  if (is_repacked(host_dtype)) {
    const auto sent = packed(host, host_dtype, size, host_stride);
    with_memory(
        [&] { card.dma_in(host_tensor(sent.data_ptr(), device.format, size, sent.strides()), device, true, stream); });
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
  if (is_repacked(host_dtype)) {
    auto came = at::empty(size, at::TensorOptions().dtype(host_dtype == at::kByte ? at::kInt : at::kByte));
    on_card(
        [&] { card.dma_out(device, host_tensor(came.data_ptr(), device.format, size, came.strides()), true, stream); });
    unpack(came, host, host_dtype, host_stride);
    return;
  }
  const auto format = static_cast<int>(host_format(host_dtype));
  const bool blocking = keep == nullptr;
  on_card(
      [&] { card.dma_out(device, host_tensor(host, format, size, host_stride), blocking, stream, std::move(keep)); });
}

}  // namespace spyre
