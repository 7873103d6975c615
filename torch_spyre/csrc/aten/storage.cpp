// SPDX-License-Identifier: Apache-2.0
#include "storage.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/accumulate.h>
#include <c10/util/safe_numerics.h>

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

bool is_contiguous(c10::IntArrayRef size, c10::IntArrayRef stride) {
  int64_t expected = 1;
  for (size_t i = size.size(); i-- > 0; expected *= size[i])
    if (stride[i] != expected) return false;
  return true;
}

/// Host bytes up to which a tensor of this dtype finds elements. uint8 may also mean the bytes of another dtype. A
/// tensor that asks for exactly as many elements as the bytes of the storage have room for, as code of PyTorch does
/// that copies storages, gets them all: past the storage's own elements, its whole sticks hold zeros.
int64_t held_bytes(const StorageRecord& r, const c10::Storage& storage, c10::ScalarType dtype, int64_t wanted) {
  const auto nbytes = static_cast<int64_t>(storage.nbytes()), itemsize = static_cast<int64_t>(c10::elementSize(dtype));
  const bool means_bytes = dtype == at::kByte && r.host_dtype != at::kByte;
  const bool means_all = dtype == r.host_dtype && wanted == nbytes / itemsize * itemsize;
  return !r.layout || means_bytes || means_all ? nbytes : r.span * itemsize;
}

/// Dims of the shape of a storage, greatest stride first, with those joined that follow each other without a gap.
struct Dim {
  int64_t size, stride;
};
c10::SmallVector<Dim, 8> joined_dims(const StorageRecord& r) {
  c10::SmallVector<Dim, 8> dims, joined;
  for (size_t i = 0; i < r.dma_sizes.size(); ++i)
    if (r.dma_sizes[i] > 1) dims.push_back({r.dma_sizes[i], r.dma_strides[i]});
  std::sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.stride > b.stride; });
  for (const auto& dim : dims) {
    if (!joined.empty() && joined.back().stride % dim.stride == 0 && joined.back().stride / dim.stride == dim.size) {
      joined.back() = {joined.back().size * dim.size, dim.stride};
    } else {
      joined.push_back(dim);
    }
  }
  return joined;
}

/// Is each element of the tensor, which lies inside the span of the storage, one of the storage's own?
bool stays_on_rows(const at::TensorBase& tensor, const StorageRecord& r) {
  const auto dims = joined_dims(r);
  c10::SmallVector<int64_t, 8> last(dims.size());  // the greatest coordinates
  const auto step = [&](int64_t distance, int64_t times) {
    for (size_t d = 0; d < dims.size(); ++d) {
      last[d] += distance / dims[d].stride * times;
      distance %= dims[d].stride;
    }
    return distance == 0;
  };
  bool inside = step(tensor.storage_offset(), 1);
  for (int64_t i = 0; i < tensor.dim() && inside; ++i)
    if (tensor.size(i) > 1) inside = step(tensor.stride(i), tensor.size(i) - 1);
  for (size_t d = 0; d < dims.size(); ++d) inside = inside && last[d] < dims[d].size;
  return inside;
}

void lay_flat(const c10::Storage& storage, const StorageRecord& r, int64_t elements) {
  const auto dtype = r.host_dtype;
  const std::vector<int64_t> size{elements}, stride{1};
  relayout_storage(storage, layout_for_strided(size, stride, dtype), dtype, size, stride,
                   std::max(storage.nbytes(), static_cast<size_t>(host_bytes(size, stride, dtype))));
}

/// Does the tensor reach no further than the storage? Quick, as each operand of each launch is asked.
bool inside(const at::TensorBase& tensor, const StorageRecord& r) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  if (impl->numel() == 0) return true;
  const auto size = impl->sizes(), stride = impl->strides();
  int64_t last = impl->storage_offset(), step = 0;
  bool overflows = false;
  for (size_t i = 0; i < size.size(); ++i) {
    overflows |= c10::mul_overflows(size[i] - 1, stride[i], &step);
    overflows |= c10::add_overflows(last, step, &last);
  }
  return !overflows && last < r.span;
}

/// The host bytes of a storage are as many as it says: a transfer writes to all of its shape.
void check_host_room(const StorageRecord& r, int64_t nbytes) {
  const int64_t needed = host_bytes(r.dma_sizes, r.dma_strides, r.host_dtype);
  if (needed > nbytes)
    raise("InvalidArgument", c10::str("a storage of ", nbytes, " bytes is laid out for ", needed, " host bytes"));
}

void check_reach(c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType dtype, int64_t offset, int64_t held) {
  const int64_t wanted = host_bytes(size, stride, dtype, offset);
  TORCH_CHECK(wanted <= held, "setStorage: sizes ", size, ", strides ", stride, ", storage offset ", offset,
              ", and itemsize ", c10::elementSize(dtype), " requiring a storage size of ", wanted,
              " are out of bounds for storage of size ", held);
}

/// A tensor on all the bytes of a storage, or a part of such a tensor: those past its elements become zeros.
void reach_whole_sticks(const at::TensorBase& tensor, const StorageRecord& r) {
  const auto& storage = tensor.storage();
  const auto nbytes = static_cast<int64_t>(storage.nbytes());
  check_reach(tensor.sizes(), tensor.strides(), r.host_dtype, tensor.storage_offset(), nbytes);
  lay_flat(storage, r, nbytes / static_cast<int64_t>(tensor.itemsize()));
}

at::Tensor zero_bytes(int64_t n) {
  auto bytes = at::detail::empty_cpu({n}, at::kByte);
  std::memset(bytes.data_ptr(), 0, n);
  return bytes;
}

}  // namespace

void StorageRecord::set_host_shape(c10::IntArrayRef size, c10::IntArrayRef stride) {
  span = host_span(size, stride);
  if (span == 0 || is_contiguous(size, stride)) {
    dense = true;
  } else if (interleaves(size, stride)) {
    dense = true;
    dma_sizes = {span};
    dma_strides = {1};
    return;
  } else {
    dense = c10::multiply_integers(size) == span;
  }
  dma_sizes = size.vec();
  dma_strides = stride.vec();
}

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
  if (C10_UNLIKELY(!inside(tensor, *r))) {
    reach_whole_sticks(tensor, *r);
    r = &raw_record_of(tensor);
  } else if (C10_UNLIKELY(!r->dense) && tensor.numel() > 0 && !stays_on_rows(tensor, *r)) {
    lay_flat(tensor.storage(), *r, r->span);
    r = &raw_record_of(tensor);
  }
  return *r;
}

void check_inside(const c10::Storage& storage, c10::ScalarType dtype, c10::IntArrayRef size, c10::IntArrayRef stride,
                  int64_t offset) {
  const auto& data = storage.data_ptr();
  if (data.get() == nullptr && data.get_context() == nullptr) return;  // a fake tensor has no memory to leave
  const int64_t wanted = host_bytes(size, stride, dtype, offset);
  check_reach(size, stride, dtype, offset, held_bytes(record_of(data), storage, dtype, wanted));
}

void grow_for(const c10::Storage& storage, c10::ScalarType dtype, c10::IntArrayRef size, c10::IntArrayRef stride,
              int64_t offset) {
  const int64_t wanted = host_bytes(size, stride, dtype, offset);
  const auto& r = record_of(storage.data_ptr());
  if (wanted <= held_bytes(r, storage, dtype, wanted)) return;
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  if (!r.layout || r.host_dtype != dtype) {
    const auto nbytes = std::max(storage.nbytes(), static_cast<size_t>(wanted));
    const std::vector<int64_t> bytes{static_cast<int64_t>(nbytes)};
    return relayout_storage(storage, nullptr, at::kByte, bytes, {1}, nbytes);
  }
  // A tensor that is all of its new storage gets the layout of its shape; a longer one stays linear.
  const int64_t elements = wanted / static_cast<int64_t>(c10::elementSize(dtype));
  const bool whole = !interleaves(size, stride) && c10::multiply_integers(size) == elements;
  const std::vector<int64_t> flat{elements}, one{1};
  const auto new_size = whole ? size : c10::IntArrayRef(flat), new_stride = whole ? stride : c10::IntArrayRef(one);
  const auto layout = layout_for_strided(new_size, new_stride, dtype);
  const auto nbytes = std::max(storage.nbytes(), storage_nbytes(layout, new_size, new_stride, dtype));
  relayout_storage(storage, layout, dtype, new_size, new_stride, nbytes);
}

size_t storage_nbytes(LayoutPtr layout, c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType dtype) {
  return static_cast<size_t>(std::max(host_bytes(size, stride, dtype), layout->device_bytes()));
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
  check_host_room(r, nbytes);
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
  auto whole = zero_bytes(host_bytes(r.dma_sizes, r.dma_strides, r.host_dtype));
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
  const auto old_nbytes = storage.nbytes();
  const auto kept = old_nbytes > 0 ? read_host_bytes(storage) : at::Tensor();
  const uint64_t card_bytes = layout ? static_cast<uint64_t>(layout->device_bytes()) : nbytes;
  auto old = impl->set_data_ptr(allocate(device, card_bytes, layout, dtype, size, stride));
  impl->set_nbytes(nbytes);
  if (!kept.defined() || card_bytes == 0) return;
  try {
    write_host_bytes(storage, kept);
  } catch (...) {  // a layout without room for the shape, or no memory: the storage stays as it was
    impl->set_data_ptr_noswap(std::move(old));
    impl->set_nbytes(old_nbytes);
    throw;
  }
}

}  // namespace spyre
