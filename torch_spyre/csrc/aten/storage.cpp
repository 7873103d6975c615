// SPDX-License-Identifier: Apache-2.0
#include "storage.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstring>

#include "device.h"
#include "dma.h"
#include "errors.h"
#include "recording.h"

namespace spyre {
namespace {

constexpr c10::DispatchKeySet kSpyreKeys(c10::DispatchKey::PrivateUse1);

/// Plain bytes become elements of the tensor's dtype: in the tensor's own shape if it covers the storage, else flat.
void adopt(const at::TensorBase& tensor) {
  const auto& storage = tensor.storage();
  const auto dtype = tensor.scalar_type();
  check_supported(dtype);
  const auto itemsize = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t elements = static_cast<int64_t>(storage.nbytes()) / itemsize;
  const bool whole = tensor.storage_offset() == 0 && tensor.is_contiguous() && tensor.numel() == elements;
  const std::vector<int64_t> flat{elements};
  const auto size = whole ? tensor.sizes() : c10::IntArrayRef(flat);
  const auto stride = contiguous_strides(size);
  relayout_storage(storage, layout_for_strided(size, stride, dtype), dtype, size, stride, storage.nbytes());
}

at::Tensor zero_bytes(int64_t n) {
  auto bytes = at::detail::empty_cpu({n}, at::kByte);
  std::memset(bytes.data_ptr(), 0, n);
  return bytes;
}

}  // namespace

StorageRecord& raw_record_of(const at::TensorBase& tensor) {
  TORCH_CHECK(tensor.is_privateuseone(), "expected a tensor on spyre, got one on ", tensor.device());
  return record_of(tensor.storage().data_ptr());
}

StorageRecord& record_of(const at::TensorBase& tensor) {
  auto* r = &raw_record_of(tensor);
  if (C10_UNLIKELY(r->layout == nullptr)) {
    adopt(tensor);
    r = &raw_record_of(tensor);
  }
  if (C10_UNLIKELY(r->host_dtype != tensor.scalar_type())) {
    raise(
        "UnsupportedOp",
        c10::str("a tensor of dtype ", tensor.scalar_type(), " on a spyre storage that holds ", r->host_dtype,
                 ": elements are encoded on the card, their bits cannot be reinterpreted. Convert with .to(dtype), or "
                 "reinterpret on the host with .cpu().view(dtype)"));
  }
  return *r;
}

size_t storage_nbytes(LayoutPtr layout, c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType dtype) {
  const int64_t host = host_span(size, stride) * static_cast<int64_t>(c10::elementSize(dtype));
  return static_cast<size_t>(std::max(host, layout->device_bytes()));
}

at::Tensor make_tensor(c10::DeviceIndex device, c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType dtype,
                       LayoutPtr layout) {
  const size_t nbytes = storage_nbytes(layout, size, stride, dtype);
  auto ptr = allocate(device, layout->device_bytes(), layout, dtype, size, stride);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes, std::move(ptr),
                                                       allocator(), /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), kSpyreKeys,
                                                         c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return tensor;
}

at::Tensor make_view(const at::TensorBase& base, c10::IntArrayRef size, c10::IntArrayRef stride, int64_t offset) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()),
                                                       base.key_set(), base.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return view;
}

at::Tensor read_host_bytes(const c10::Storage& storage) {
  const auto& r = record_of(storage.data_ptr());
  const auto nbytes = static_cast<int64_t>(storage.nbytes());
  auto bytes = zero_bytes(nbytes);
  if (r.bytes == 0) return bytes;
  if (!r.layout) {
    auto out = std::as_writable_bytes(std::span(static_cast<uint8_t*>(bytes.data_ptr()), nbytes));
    Recording::spoil_active("values read by the host");
    on_card([&] { card_of(r.device).read(r.address, out, current_stream_id(r.device)); });
    return bytes;
  }
  // In the shape it was laid out with: a padded tensor has no elements between its rows.
  dma_out(r, r.dma_sizes, r.dma_strides, 0, bytes.data_ptr(), r.host_dtype, r.dma_strides);
  return bytes;
}

void write_host_bytes(const c10::Storage& storage, const at::Tensor& bytes) {
  const auto& r = record_of(storage.data_ptr());
  if (r.bytes == 0) return;
  if (!r.layout) {
    const auto n = std::min<size_t>(bytes.numel(), storage.nbytes());
    auto in = std::as_bytes(std::span(static_cast<const uint8_t*>(bytes.data_ptr()), n));
    Recording::spoil_active("values from the host");
    with_memory([&] { card_of(r.device).write(r.address, in, current_stream_id(r.device)); });
    return;
  }
  auto whole = zero_bytes(host_span(r.dma_sizes, r.dma_strides) * static_cast<int64_t>(c10::elementSize(r.host_dtype)));
  std::memcpy(whole.data_ptr(), bytes.data_ptr(), std::min(bytes.numel(), whole.numel()));
  dma_in(whole.data_ptr(), r.host_dtype, r.dma_strides, r, r.dma_sizes, r.dma_strides, 0);
}

void clone_storage(const c10::Storage& source, const c10::Storage& target) {
  const auto& from = record_of(source.data_ptr());
  const auto device = target.device().index();
  auto* impl = target.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(
      allocate(device, from.bytes, from.layout, from.host_dtype, from.dma_sizes, from.dma_strides));
  impl->set_nbytes(source.nbytes());
  if (from.bytes == 0) return;
  const auto& to = record_of(target.data_ptr());
  std::vector<std::byte> bytes(from.bytes);
  Recording::spoil_active("values read by the host");
  on_card([&] { card_of(from.device).read(from.address, bytes, current_stream_id(from.device)); });
  on_card([&] { card_of(device).write(to.address, bytes, current_stream_id(device)); });
}

void relayout_storage(const c10::Storage& storage, LayoutPtr layout, c10::ScalarType dtype, c10::IntArrayRef size,
                      c10::IntArrayRef stride, size_t nbytes) {
  auto* impl = storage.unsafeGetStorageImpl();
  const auto device = storage.device().index();
  const auto kept = storage.nbytes() > 0 ? read_host_bytes(storage) : at::Tensor();
  const uint64_t card_bytes = layout ? static_cast<uint64_t>(layout->device_bytes()) : nbytes;
  impl->set_data_ptr_noswap(allocate(device, card_bytes, layout, dtype, size, stride));
  impl->set_nbytes(nbytes);
  if (kept.defined() && card_bytes > 0) write_host_bytes(storage, kept);
}

}  // namespace spyre
