// SPDX-License-Identifier: Apache-2.0
#include "eager_buckets.h"

#include <algorithm>
#include <cstring>

#include "device.h"
#include "errors.h"
#include "profiler.h"
#include "recording.h"

namespace spyre {
namespace {

bool equal(const Polynomials& wanted, c10::IntArrayRef got, int64_t n) {
  if (wanted.size() != got.size()) return false;
  for (size_t i = 0; i < got.size(); ++i)
    if (wanted[i](n) != got[i]) return false;
  return true;
}

std::vector<int64_t> values(const Polynomials& of, int64_t n) {
  std::vector<int64_t> found;
  for (const auto& p : of) found.push_back(p(n));
  return found;
}

/// Copies the sticks of a block of extents `from` into one of extents `to`.
void copy_sticks(std::span<const int64_t> from, std::span<const int64_t> to, const std::byte* source,
                 std::byte* target) {
  if (from.empty() || std::equal(from.begin(), from.end(), to.begin())) {
    int64_t sticks = 1;
    for (int64_t extent : from) sticks *= extent;
    std::memcpy(target, source, static_cast<size_t>(sticks * kStickBytes));
    return;
  }
  int64_t step_from = kStickBytes, step_to = kStickBytes;
  for (size_t i = 1; i < from.size(); ++i) step_from *= from[i], step_to *= to[i];
  for (int64_t i = 0; i < from[0]; ++i)
    copy_sticks(from.subspan(1), to.subspan(1), source + i * step_from, target + i * step_to);
}

c10::DataPtr roomy_copy(const StorageRecord& from, LayoutPtr to) {
  const profiler::Call call(nullptr);
  Recording::spoil_active("a tensor that is moved to where it has room");
  auto ptr = allocate(from.device, to->device_bytes(), to, from.host_dtype, from.dma_sizes, from.dma_strides);
  if (from.bytes == 0) return ptr;
  const auto& target = record_of(ptr);
  std::vector<std::byte> before(from.bytes), after(target.bytes);
  const auto& short_size = from.layout->device_size;
  const auto& long_size = to->device_size;
  const auto stream = current_stream_id(from.device);
  on_card([&] { card_of(from.device).read(from.address, before, stream); });
  copy_sticks({short_size.data(), short_size.size() - 1}, {long_size.data(), long_size.size() - 1}, before.data(),
              after.data());
  on_card([&] { card_of(from.device).write(target.address, after, stream); });
  return ptr;
}

}  // namespace

LayoutPtr RoomyLayout::at(int64_t n) const { return intern({device_size, values(stride_map, n), format}); }

bool RoomyLayout::is(const SpyreTensorLayout& layout, int64_t n) const {
  if (layout.device_dtype != format || layout.element_arrangement != ElementArrangement::STANDARD) return false;
  if (layout.device_size != device_size) return false;
  for (size_t i = 0; i < device_size.size(); ++i)
    if (device_size[i] != 1 && stride_map[i](n) != layout.stride_map[i]) return false;
  return true;
}

bool RoomyLayout::has_room_for(const SpyreTensorLayout& layout, int64_t n) const {
  const auto rank = device_size.size();
  if (layout.device_dtype != format || layout.element_arrangement != ElementArrangement::STANDARD) return false;
  if (layout.device_size.size() != rank || layout.device_size.back() != device_size.back()) return false;
  for (size_t i = 0; i < rank; ++i) {
    const auto extent = layout.device_size[i];
    if (extent > device_size[i] || (extent != 1 && stride_map[i](n) != layout.stride_map[i])) return false;
  }
  return true;
}

void BucketPlan::check() const {
  const bool found = tensor >= 0 && static_cast<size_t>(tensor) < tensors.size() && dim >= 0 && low >= 0;
  if (!found)
    raise("InvalidArgument", c10::str("BucketPlan: dim ", dim, " of tensor ", tensor, " does not exist among ",
                                      tensors.size(), " tensors, or the range begins below 0"));
  for (int i : inputs)
    if (i >= static_cast<int>(tensors.size()))
      raise("InvalidArgument", c10::str("BucketPlan names tensor ", i, " of ", tensors.size()));
}

std::optional<int64_t> BucketPlan::matches(std::span<const at::Tensor* const> given, std::vector<Move>& moves) const {
  if (given.size() != tensors.size() || !given[tensor] || given[tensor]->dim() <= dim) return std::nullopt;
  const auto n = given[tensor]->size(dim);
  if (n < low || n > high) return std::nullopt;
  for (size_t i = 0; i < given.size(); ++i) {
    const auto& wanted = tensors[i];
    if (!wanted.on_card) continue;
    const at::Tensor* t = given[i];
    if (!t || !t->is_privateuseone() || !equal(wanted.size, t->sizes(), n) || !equal(wanted.stride, t->strides(), n) ||
        t->storage_offset() != wanted.offset)
      return std::nullopt;
    if (!wanted.used) continue;
    const auto layout = record_of(*t).layout;
    if (wanted.fixed) {
      if (layout != wanted.fixed) return std::nullopt;
    } else if (!wanted.roomy.is(*layout, n)) {
      if (!wanted.roomy.has_room_for(*layout, n)) return std::nullopt;
      moves.push_back({static_cast<int>(i), wanted.roomy.at(n), wanted.written});
    }
  }
  return n;
}

std::shared_ptr<const LaunchPlan> BucketPlan::launch_for(int64_t n) const {
  auto made = std::make_shared<LaunchPlan>(launch);
  for (const auto& r : results)
    made->outputs.push_back({values(r.size, n), values(r.stride, n), r.dtype, r.layout.at(n)});
  made->check();
  return made;
}

std::vector<Operand> BucketPlan::numbers_for(int64_t n) const {
  std::vector<Operand> found;
  for (const auto& ratio : numbers) {
    const auto above = ratio.above(n), below = ratio.below(n);
    if (below == 0 || (below == -1 && above == INT64_MIN))
      raise("InvalidArgument", c10::str("BucketPlan: the launch scalar ", above, " / ", below, " for n = ", n));
    found.push_back({nullptr, static_cast<double>(above) / static_cast<double>(below), above / below});
  }
  return found;
}

at::Tensor with_room(const at::Tensor& tensor, const Move& move) {
  const auto& record = record_of(tensor);
  const auto nbytes = std::max(tensor.storage().nbytes(), static_cast<size_t>(move.layout->device_bytes()));
  auto data = roomy_copy(record, move.layout);
  if (move.in_place) {
    auto* impl = tensor.storage().unsafeGetStorageImpl();
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(nbytes);
    return tensor;
  }
  auto copy = make_tensor(record.device, {0}, {1}, tensor.scalar_type(),
                          intern(make_layout(c10::IntArrayRef{0}, tensor.scalar_type())));
  auto* impl = copy.storage().unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(std::move(data));
  impl->set_nbytes(nbytes);
  copy.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return copy;
}

}  // namespace spyre
