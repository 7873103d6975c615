// SPDX-License-Identifier: Apache-2.0
// Kernels that make tensors and views. No view touches the layout: it belongs to the storage and maps host element
// offsets, which every view shares.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/RangeUtils.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/util/safe_numerics.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "device.h"
#include "eager.h"
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

/// The strides that a tensor of this shape gets: PyTorch replaces a negative one by that of a contiguous tensor, which
/// is harmless where the dim has at most one element; elsewhere the storage size raises.
std::vector<int64_t> settled_strides(c10::IntArrayRef size, c10::IntArrayRef stride) {
  host_span(size, stride);
  auto settled = stride.vec();
  for (size_t i = size.size(); i-- > 0;) {
    if (settled[i] >= 0) continue;
    const bool last = i + 1 == size.size();
    const bool overflows =
        c10::mul_overflows(last ? 1 : std::max<int64_t>(size[i + 1], 1), last ? 1 : settled[i + 1], &settled[i]);
    TORCH_CHECK(!overflows, "Stride calculation overflowed");
  }
  return settled;
}

/// What nobody has written holds NaN or the largest number, where PyTorch is asked for deterministic algorithms.
at::Tensor deterministic(at::Tensor fresh) {
  const auto& context = at::globalContext();
  if (C10_LIKELY(!context.deterministicAlgorithms() || !context.deterministicFillUninitializedMemory())) return fresh;
  const auto type = fresh.scalar_type();
  if (fresh.numel() == 0) return fresh;
  if (c10::isFloat8Type(type))  // stored, not computed with
    return fresh.copy_(at::full({}, std::nan(""), at::TensorOptions().dtype(type)));
  if (c10::isFloatingType(type)) return fresh.fill_(std::nan(""));
  const bool is_signed = type != at::kByte;
  const int bits = type == at::kBool ? 1 : std::min<int>(8 * c10::elementSize(type), 32) - is_signed;  // int64 has 32
  return fresh.fill_((int64_t{1} << bits) - 1);
}

at::Tensor empty(c10::IntArrayRef size, OptDtype dtype, OptLayout layout, OptDevice device,
                 std::optional<bool> pin_memory, OptFormat format) {
  check_options(layout, pin_memory);
  const auto type = dtype_or_pytorch_default(dtype);
  check_supported(type);
  at::detail::check_size_nonnegative(size);
  at::detail::computeStorageNbytesContiguous(size, c10::elementSize(type));  // raises what the CPU would
  const auto stride = strides_in(format, size);
  const auto device_layout = size.size() <= 6 && !channels_last(format) ? intern(make_layout(size, type))
                                                                        : layout_for_strided(size, stride, type);
  return deterministic(make_tensor(index_of(device), size, stride, type, device_layout));
}

at::Tensor& empty_out(c10::IntArrayRef size, OptFormat format, at::Tensor& out) {
  TORCH_CHECK(!format, "'memory_format' argument is incompatible with 'out' tensor argument");
  at::detail::check_size_nonnegative(size);
  resize(out, size, std::nullopt);
  deterministic(out);
  return out;
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, OptDtype dtype, OptLayout layout,
                         OptDevice device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  const auto type = dtype_or_pytorch_default(dtype);
  check_supported(type);
  host_bytes(size, stride, type);  // raises what the CPU would
  check_numel(size);
  const auto settled = settled_strides(size, stride);
  return deterministic(make_tensor(index_of(device), size, settled, type, layout_for_strided(size, settled, type)));
}

const at::Tensor& as_strided_in_place(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                                      std::optional<int64_t> offset) {
  TORCH_CHECK(size.size() == stride.size(), "mismatch in length of strides and shape");
  check_numel(size);
  for (int64_t s : stride)
    TORCH_CHECK(s >= 0, "as_strided: Negative strides are not supported at the moment, got strides: ", stride);
  check_inside(self.storage(), self.scalar_type(), size, stride, offset.value_or(self.storage_offset()));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset.value_or(self.storage_offset()));
  return self;
}

at::Tensor new_empty_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, OptDtype dtype,
                             OptLayout layout, OptDevice device, std::optional<bool> pin_memory) {
  const auto place = device.value_or(self.device());
  const auto options = self.options().dtype(dtype.value_or(self.scalar_type())).device(place).layout(layout);
  return at::empty_strided(size, stride, options.pinned_memory(pin_memory));
}

/// PyTorch's kernels look at the bytes of the storage alone, where a card may hold more than the elements need.
at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  auto view = at::native::as_strided_tensorimpl(self, size, stride, offset);
  const auto end = [](const at::Tensor& t) {
    return host_bytes(t.sizes(), t.strides(), t.scalar_type(), t.storage_offset());
  };
  if (end(view) > end(self))
    check_inside(self.storage(), self.scalar_type(), view.sizes(), view.strides(), view.storage_offset());
  return view;
}

/// Bits on the card are encoded; only the trivial reinterpretation has a meaning.
at::Tensor view_dtype(const at::Tensor& self, c10::ScalarType dtype) {
  if (self.scalar_type() != dtype) {
    raise("UnsupportedOp", c10::str("view(dtype) from ", self.scalar_type(), " to ", dtype,
                                    " would reinterpret encoded bits on spyre; use .to(dtype), or .cpu().view(dtype)"));
  }
  return at::native::alias(self);
}

int64_t arange_size(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, c10::ScalarType type) {
  return type == at::kLong ? at::native::compute_arange_size<int64_t>(start, end, step)
                           : at::native::compute_arange_size<double>(start, end, step);
}

/// `range` counts in whole numbers where its result holds such.
int64_t range_size(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, c10::ScalarType type) {
  at::native::arange_check_bounds(start, end, step);
  const bool whole = c10::isIntegralType(type, /*includeBool=*/true);
  const auto in = [&](const at::Scalar& number) {
    return whole ? static_cast<double>(number.to<int64_t>()) : number.to<double>();
  };
  TORCH_CHECK(in(step) != 0, "step must be nonzero");
  const double size = std::trunc((in(end) - in(start)) / in(step)) + 1;
  TORCH_CHECK(size >= 0 && size < 0x1p63, "invalid size, possible overflow?");
  return static_cast<int64_t>(size);
}

// PyTorch's own kernels write into an empty tensor, which each call would resize first: no plan could be kept.
at::Tensor arange_step(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, OptDtype dtype,
                       OptLayout layout, OptDevice device, std::optional<bool> pin_memory) {
  const bool integers = start.isIntegral(true) && end.isIntegral(true) && step.isIntegral(true);
  const auto type = integers ? dtype.value_or(at::kLong) : dtype_or_pytorch_default(dtype);
  const auto size = arange_size(start, end, step, type);
  auto out = empty({size}, type, layout, device, pin_memory, std::nullopt);
  return size == 0 ? out : at::arange_out(out, start, end, step);
}

/// Sequences of numbers fill an `out` that has as many elements, of whatever shape, in the order of its own dims;
/// another one becomes a vector. The compiler knows vectors only.
at::Tensor& fill_sequence(const c10::OperatorHandle& op, torch::jit::Stack stack, int64_t steps, at::Tensor& out) {
  if (out.numel() != steps) resize(out, {steps}, std::nullopt);
  if (steps == 0) return out;
  const auto vector = out.dim() == 1 ? out : at::empty({steps}, out.options());
  stack.emplace_back(vector);
  run_eager(op, &stack);
  if (out.dim() != 1) out.copy_(vector.view(out.sizes()));
  return out;
}

c10::OperatorHandle op_named(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

at::Tensor& arange_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  static const auto op = op_named("aten::arange", "start_out");
  const auto steps = arange_size(start, end, step, out.scalar_type());
  if (out.numel() != steps && out.numel() > 0) {
    TORCH_WARN(
        "The number of elements in the out tensor of shape ", out.sizes(), " is ", out.numel(),
        " which does not match the computed number of elements ", steps,
        ". Note that this may occur as a result of rounding error. The out tensor will be resized to a tensor of "
        "shape (",
        steps, ",).");
  }
  return fill_sequence(op, {start, end, step}, steps, out);
}

at::Tensor& range_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  static const auto op = op_named("aten::range", "out");
  return fill_sequence(op, {start, end, step}, range_size(start, end, step, out.scalar_type()), out);
}

at::Tensor& linspace_out(const at::Scalar& start, const at::Scalar& end, int64_t steps, at::Tensor& out) {
  static const auto op = op_named("aten::linspace", "out");
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  return fill_sequence(op, {start, end, steps}, steps, out);
}

at::Tensor& logspace_out(const at::Scalar& start, const at::Scalar& end, int64_t steps, double base, at::Tensor& out) {
  static const auto op = op_named("aten::logspace", "out");
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  return fill_sequence(op, {start, end, steps, base}, steps, out);
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
  TORCH_CHECK(!stride.data() || stride.size() == size.size(), "unequal size length (", size.size(),
              ") and stride length (", stride.size(), ")");
  check_numel(size);
  // Without strides, as in resize_: a size that the tensor has already keeps its own.
  const auto strides = stride.data()          ? settled_strides(size, stride)
                       : self.sizes() == size ? self.strides().vec()
                                              : contiguous_strides(size);
  // Bytes that are no tensor yet come from a file that is being loaded: what it lacks is not made up.
  if (!record_of(source.data_ptr()).layout) check_inside(source, self.scalar_type(), size, strides, offset);
  grow_for(source, self.scalar_type(), size, strides, offset);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(size, strides, offset);
  return self;
}

/// All elements of the storage, as many as on other devices. uint8 means its bytes, to the end of the last stick.
at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto place = source.device().type();
  const auto* held = place == c10::DeviceType::PrivateUse1 ? &record_of(source.data_ptr()) : nullptr;
  const bool typed = held && held->layout && held->host_dtype == self.scalar_type() && self.scalar_type() != at::kByte;
  const auto elements = typed ? held->span : static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage_offset(self, std::move(source), 0, {elements}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  TORCH_CHECK(self.dtype() == source.dtype(), "Could not set tensor of type ", source.dtype(), " to a tensor of type ",
              self.dtype());
  return set_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  const auto fresh = make_tensor(self.device().index(), {0}, {1}, self.scalar_type(),
                                 intern(make_layout(c10::IntArrayRef{0}, self.scalar_type())));
  return set_tensor(self, fresh);
}

}  // namespace

/// A tensor that has the size already keeps its strides: it may be a view, and what lies around it is not its own.
const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, OptFormat format) {
  if (self.sizes() == size && !format) return self;
  TORCH_CHECK(format != c10::MemoryFormat::Preserve, "Unsupported memory format", *format);
  check_numel(size);
  const auto stride = strides_in(format, size);
  const int64_t held = record_of(self.storage().data_ptr()).span;
  grow_for(self.storage(), self.scalar_type(), size, stride, self.storage_offset());
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, self.storage_offset());
  const int64_t added = record_of(self.storage().data_ptr()).span - held;
  if (added > 0) deterministic(make_view(self, {added}, {1}, held));
  return self;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty.out", TORCH_FN(empty_out));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("new_empty_strided", TORCH_FN(new_empty_strided));
  m.impl("arange", TORCH_FN(arange));
  m.impl("arange.start", TORCH_FN(arange_start));
  m.impl("arange.start_step", TORCH_FN(arange_step));
  m.impl("arange.start_out", TORCH_FN(arange_out));
  m.impl("range.out", TORCH_FN(range_out));
  m.impl("linspace.out", TORCH_FN(linspace_out));
  m.impl("logspace.out", TORCH_FN(logspace_out));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("as_strided_", TORCH_FN(as_strided_in_place));
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
