// SPDX-License-Identifier: Apache-2.0
// Kernels that make tensors and views. No view touches the layout: it belongs to the storage and maps host element
// offsets, which every view shares.
#include <ATen/core/Tensor.h>
#include <ATen/native/RangeUtils.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "device.h"
#include "errors.h"
#include "factory.h"
#include "storage.h"

namespace spyre {
namespace {

using OptDtype = std::optional<c10::ScalarType>;
using OptLayout = std::optional<c10::Layout>;
using OptDevice = std::optional<c10::Device>;
using OptFormat = std::optional<c10::MemoryFormat>;

c10::ScalarType dtype_or_pytorch_default(OptDtype dtype) {
  return dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
}

c10::DeviceIndex index_of(OptDevice device) { return resolve_device(device ? device->index() : -1); }

void check_options(OptLayout layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(layout.value_or(c10::kStrided) == c10::kStrided, "Non strided layout not supported");
  TORCH_CHECK(!pin_memory.value_or(false), "Pin memory can only be on CPU");
}

bool channels_last(OptFormat format) {
  const auto f = format.value_or(c10::MemoryFormat::Contiguous);
  return f == c10::MemoryFormat::ChannelsLast || f == c10::MemoryFormat::ChannelsLast3d;
}

/// Memory formats are strides and nothing more: where the elements lie on the card is the layout's business.
std::vector<int64_t> strides_in(OptFormat format, c10::IntArrayRef size) {
  if (!channels_last(format)) return contiguous_strides(size);
  const bool flat = *format == c10::MemoryFormat::ChannelsLast;
  TORCH_CHECK(size.size() == (flat ? 4 : 5), "required rank ", flat ? 4 : 5, " tensor to use ",
              flat ? "channels_last" : "channels_last_3d", " format");
  return flat ? c10::get_channels_last_strides_2d(size) : c10::get_channels_last_strides_3d(size);
}

at::Tensor empty(c10::IntArrayRef size, OptDtype dtype, OptLayout layout, OptDevice device,
                 std::optional<bool> pin_memory, OptFormat format) {
  check_options(layout, pin_memory);
  const auto type = dtype_or_pytorch_default(dtype);
  check_supported(type);
  const auto stride = strides_in(format, size);
  const auto device_layout = size.size() <= 6 && !channels_last(format) ? intern(make_layout(size, type))
                                                                        : layout_for_strided(size, stride, type);
  return make_tensor(index_of(device), size, stride, type, device_layout);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, OptDtype dtype, OptLayout layout,
                         OptDevice device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  const auto type = dtype_or_pytorch_default(dtype);
  check_supported(type);
  return make_tensor(index_of(device), size, stride, type, layout_for_strided(size, stride, type));
}

/// Bits on the card are encoded; only the trivial reinterpretation has a meaning.
at::Tensor view_dtype(const at::Tensor& self, c10::ScalarType dtype) {
  if (self.scalar_type() != dtype) {
    raise("UnsupportedOp", c10::str("view(dtype) from ", self.scalar_type(), " to ", dtype,
                                    " would reinterpret encoded bits on spyre; use .to(dtype), or .cpu().view(dtype)"));
  }
  return at::native::alias(self);
}

// PyTorch's own kernels write into an empty tensor, which each call would resize first: no plan could be kept.
at::Tensor arange_step(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, OptDtype dtype,
                       OptLayout layout, OptDevice device, std::optional<bool> pin_memory) {
  const bool integers = start.isIntegral(true) && end.isIntegral(true) && step.isIntegral(true);
  const auto type = integers ? dtype.value_or(at::kLong) : dtype_or_pytorch_default(dtype);
  const auto size = type == at::kLong ? at::native::compute_arange_size<int64_t>(start, end, step)
                                      : at::native::compute_arange_size<double>(start, end, step);
  auto out = empty({size}, type, layout, device, pin_memory, std::nullopt);
  return size == 0 ? out : at::arange_out(out, start, end, step);
}

at::Tensor arange_start(const at::Scalar& start, const at::Scalar& end, OptDtype dtype, OptLayout layout,
                        OptDevice device, std::optional<bool> pin_memory) {
  return arange_step(start, end, 1, dtype, layout, device, pin_memory);
}

at::Tensor arange(const at::Scalar& end, OptDtype dtype, OptLayout layout, OptDevice device,
                  std::optional<bool> pin_memory) {
  return arange_step(0, end, 1, dtype, layout, device, pin_memory);
}

at::Tensor& set_storage_offset(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                               c10::IntArrayRef stride) {
  TORCH_CHECK(source.device().type() == c10::DeviceType::PrivateUse1,
              "set_ on a spyre tensor needs a spyre storage, got ", source.device());
  const auto strides = stride.size() == size.size() ? stride.vec() : contiguous_strides(size);
  const int64_t span = host_span(size, strides);
  const auto reach = static_cast<size_t>(span == 0 ? 0 : offset + span) * self.itemsize();
  TORCH_CHECK(offset >= 0 && reach <= source.nbytes(), "set_: size ", size, ", stride ", strides, " and offset ",
              offset, " need ", reach, " bytes, but the storage has ", source.nbytes());
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(size, strides, offset);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage_offset(self, std::move(source), 0, {elements}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  TORCH_CHECK(self.dtype() == source.dtype(), "set_: dtypes differ, ", self.dtype(), " and ", source.dtype());
  return set_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  const auto fresh = make_tensor(self.device().index(), {0}, {1}, self.scalar_type(),
                                 intern(make_layout(c10::IntArrayRef{0}, self.scalar_type())));
  return set_tensor(self, fresh);
}

}  // namespace

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, OptFormat format) {
  const auto wanted = channels_last(format) ? *format : c10::MemoryFormat::Contiguous;
  if (self.sizes() == size && self.is_contiguous(wanted)) return self;
  const auto stride = strides_in(format, size);
  const auto dtype = self.scalar_type();
  const int64_t needed = host_span(size, stride) + self.storage_offset();
  const auto& record = record_of(self);
  if (needed > host_span(record.dma_sizes, record.dma_strides)) {
    // A tensor that is all of its new storage gets the layout of its shape; a longer one stays linear.
    const std::vector<int64_t> flat{needed};
    const bool whole = self.storage_offset() == 0;
    const auto new_size = whole ? size : c10::IntArrayRef(flat);
    const auto new_stride = whole ? stride : contiguous_strides(new_size);
    const auto layout = layout_for_strided(new_size, new_stride, dtype);
    const auto nbytes = storage_nbytes(layout, new_size, new_stride, dtype);
    relayout_storage(self.storage(), layout, dtype, new_size, new_stride, nbytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, self.storage_offset());
  return self;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("arange", TORCH_FN(arange));
  m.impl("arange.start", TORCH_FN(arange_start));
  m.impl("arange.start_step", TORCH_FN(arange_step));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("alias", TORCH_FN(at::native::alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view.dtype", TORCH_FN(view_dtype));
  m.impl("resize_", TORCH_FN(resize));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("set_.source_Storage", TORCH_FN(set_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_offset));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("is_set_to", TORCH_FN(at::native::is_set_to));
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

}  // namespace spyre
