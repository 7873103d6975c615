// SPDX-License-Identifier: Apache-2.0
// Copies between host and card, scalar reads and fills. A copy from spyre to spyre is a kernel like any other op and
// goes to the eager compiler.
#include "copy.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "device.h"
#include "dma.h"
#include "eager.h"
#include "errors.h"
#include "factory.h"
#include "pinned.h"
#include "storage.h"

namespace spyre {
namespace {

/// All bytes of a storage, as PyTorch copies storages.
bool is_whole_storage(const at::Tensor& t) {
  return t.scalar_type() == at::kByte && t.dim() == 1 && t.is_contiguous() && t.storage_offset() == 0 &&
         static_cast<size_t>(t.numel()) == t.storage().nbytes();
}

/// uint8 on a storage of plain bytes or of another dtype, or over all of a storage: the tensor means the host bytes
/// (torch.save, torch.load, storage copies).
bool speaks_bytes(const at::Tensor& t) {
  const auto& r = raw_record_of(t);
  return t.scalar_type() == at::kByte && (r.layout == nullptr || r.host_dtype != at::kByte || is_whole_storage(t));
}

at::Tensor byte_view(const at::Tensor& bytes, const at::Tensor& like) {
  return bytes.as_strided(like.sizes(), like.strides(), like.storage_offset());
}

/// One of the elements that an expanded dim repeats.
at::Tensor without_repetition(at::Tensor t) {
  for (int64_t d = t.dim(); d-- > 0;)
    if (t.stride(d) == 0) t = t.narrow(d, 0, 1);
  return t;
}

/// The card stores int64 as int32. Looked at before anything is written, so that a refused copy changes nothing.
void check_fits_int32(const at::Tensor& host) {
  const auto [low, high] = at::aminmax(without_repetition(host));
  const int64_t least = low.item<int64_t>(), most = high.item<int64_t>();
  using Limits = std::numeric_limits<int32_t>;
  if (least >= Limits::min() && most <= Limits::max()) return;
  raise("Overflow", c10::str("the int64 value ", most > Limits::max() ? most : least,
                             " lies outside int32, which is how the card stores integers; keep values in [-2147483648, "
                             "2147483647] or leave the tensor on the host"));
}

/// What lets a transfer outlive the call: `part`, which it reads or writes, is pinned memory of the caller's tensor.
std::shared_ptr<const void> keep_pinned(bool non_blocking, const at::Tensor& part, const at::Tensor& caller) {
  return non_blocking && part.is_alias_of(caller) ? pinned_block(part.const_data_ptr()) : nullptr;
}

constexpr int64_t kDmaDims = 8;

/// Calls `transfer` with views of host and card that together hold all elements and have no more dims than a transfer:
/// dims that follow each other on both sides become one, and what still has too many goes slice by slice.
template <typename Transfer>
void in_few_dims(const at::Tensor& host, const at::Tensor& card, const Transfer& transfer) {
  if (host.dim() <= kDmaDims) return transfer(host, card);
  if (host.numel() == 0) return;
  std::vector<int64_t> order(host.dim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return card.stride(a) > card.stride(b); });
  std::vector<int64_t> size, on_host, on_card;
  for (const int64_t d : order) {
    const int64_t n = host.size(d), h = host.stride(d), c = card.stride(d);
    if (n == 1) continue;
    if (!size.empty() && on_host.back() == h * n && on_card.back() == c * n) {
      size.back() *= n;
      on_host.back() = h;
      on_card.back() = c;
      continue;
    }
    size.push_back(n);
    on_host.push_back(h);
    on_card.push_back(c);
  }
  const auto a = host.as_strided(size, on_host), b = card.as_strided(size, on_card);
  if (a.dim() <= kDmaDims) return transfer(a, b);
  for (int64_t i = 0; i < size[0]; ++i) in_few_dims(a.select(0, i), b.select(0, i), transfer);
}

void copy_in(const at::Tensor& host, const at::Tensor& dst, bool non_blocking = false) {
  at::assert_no_internal_overlap(dst);
  if (speaks_bytes(dst)) {
    auto bytes = read_host_bytes(dst.storage());
    byte_view(bytes, dst).copy_(host);
    write_host_bytes(dst.storage(), bytes);
    return;
  }
  const auto& record = record_of(dst);
  auto source = host.resolve_conj().resolve_neg();
  if (!dma_converts(source.scalar_type(), dst.scalar_type())) source = source.to(dst.scalar_type());
  if (source.scalar_type() == at::kLong) check_fits_int32(source);
  in_few_dims(source, dst, [&](const at::Tensor& from, const at::Tensor& to) {
    dma_in(from.const_data_ptr(), from.scalar_type(), from.strides(), record, to.sizes(), to.strides(),
           to.storage_offset(), keep_pinned(non_blocking, from, host));
  });
}

void copy_out(const at::Tensor& src, const at::Tensor& host, bool non_blocking = false) {
  at::assert_no_internal_overlap(host);
  if (speaks_bytes(src)) {
    host.copy_(byte_view(read_host_bytes(src.storage()), src));
    return;
  }
  const auto& record = record_of(src);
  const bool direct = dma_converts(src.scalar_type(), host.scalar_type()) && !host.is_neg() && !host.is_conj();
  auto target = direct ? host : at::empty(src.sizes(), at::TensorOptions().dtype(src.scalar_type()));
  in_few_dims(target, src, [&](const at::Tensor& to, const at::Tensor& from) {
    dma_out(record, from.sizes(), from.strides(), from.storage_offset(), to.data_ptr(), to.scalar_type(), to.strides(),
            keep_pinned(non_blocking, to, host));
  });
  if (!direct) host.copy_(target);
}

void copy_on_device(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_copy_from", "");
  at::assert_no_internal_overlap(dst);
  torch::jit::Stack stack{src, dst, non_blocking};
  run_eager(op, &stack, /*written=*/1);
}

bool same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

/// All bytes of a laid-out storage into one of plain bytes (deepcopy, UntypedStorage.clone): the copy is laid out
/// alike.
bool clones_storage(const at::Tensor& src, const at::Tensor& dst) {
  return is_whole_storage(src) && is_whole_storage(dst) && raw_record_of(src).layout && !raw_record_of(dst).layout;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  if (dst.is_privateuseone()) {
    resize(dst, self.sizes(), std::nullopt);
  } else {
    dst.resize_(self.sizes());
  }
  return copy_from(self, dst, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  auto host = at::empty({}, at::TensorOptions().dtype(self.scalar_type()));
  copy_out(self.as_strided({}, {}, self.storage_offset()), host);
  return at::_local_scalar_dense(host);
}

at::Tensor& fill_scalar(at::Tensor& self, const at::Scalar& value) {
  if (self.numel() == 0) return self;
  const auto target = without_repetition(self);
  copy_in(at::scalar_tensor(value, at::TensorOptions().dtype(self.scalar_type())).expand(target.sizes()), target);
  return self;
}

at::Tensor& fill_tensor(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports a 0-dimensional value tensor but got one with ", value.dim(),
              " dimensions.");
  copy_from(value, self, false);
  return self;
}

/// A copy of all that a storage holds keeps its layout; a copy of a part is a fresh tensor.
at::Tensor clone(const at::Tensor& self, std::optional<at::MemoryFormat> format) {
  const auto& r = record_of(self);
  const auto wanted = format.value_or(at::MemoryFormat::Preserve);
  const bool keeps_strides = wanted == at::MemoryFormat::Preserve
                                 ? self.is_non_overlapping_and_dense()
                                 : wanted == at::MemoryFormat::Contiguous && self.is_contiguous();
  const bool whole =
      keeps_strides && self.storage_offset() == 0 && self.sizes() == r.dma_sizes && self.strides() == r.dma_strides;
  auto copy = whole ? make_tensor(self.device().index(), self.sizes(), self.strides(), self.scalar_type(), r.layout)
                    : at::empty_like(self, self.options(), wanted);
  copy_from(self, copy, false);
  return copy;
}

at::Tensor& zero(at::Tensor& self) { return fill_scalar(self, 0); }

}  // namespace

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  if (dst.numel() == 0 || same_view(self, dst)) return dst;
  const auto src = self.sizes() == dst.sizes() ? self : self.expand(dst.sizes());
  const bool from_spyre = src.is_privateuseone(), to_spyre = dst.is_privateuseone();
  if (!from_spyre && to_spyre) {
    copy_in(src.is_cpu() ? src : src.cpu(), dst, non_blocking);
  } else if (from_spyre && !to_spyre) {
    if (dst.is_cpu()) {
      copy_out(src, dst, non_blocking);
    } else {
      dst.copy_(src.cpu());
    }
  } else if (clones_storage(src, dst)) {
    clone_storage(src.storage(), dst.storage());
  } else if (src.device() == dst.device() && !speaks_bytes(src) && !speaks_bytes(dst)) {
    copy_on_device(src, dst, non_blocking);
  } else {
    auto host = at::empty(src.sizes(), at::TensorOptions().dtype(src.scalar_type()));
    copy_out(src, host);
    copy_in(host, dst);
  }
  return dst;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("fill_.Scalar", TORCH_FN(fill_scalar));
  m.impl("fill_.Tensor", TORCH_FN(fill_tensor));
  m.impl("zero_", TORCH_FN(zero));
  m.impl("clone", TORCH_FN(clone));
}

}  // namespace spyre
