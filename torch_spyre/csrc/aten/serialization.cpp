// SPDX-License-Identifier: Apache-2.0
// torch.save and torch.load keep layouts.
//
// PyTorch saves host bytes and, beside each tensor, a map of flags that a device may add to. We add one flag whose name
// is the storage's layout. A reader on another device, or without this package, skips flags that it does not know.
#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <algorithm>
#include <sstream>

#include "errors.h"
#include "storage.h"

namespace spyre {
namespace {

using Flags = std::unordered_map<std::string, bool>;
using Ints = std::vector<int64_t>;

constexpr std::string_view kPrefix = "spyre_layout_v1;";

void write(std::ostream& out, c10::IntArrayRef values) {
  for (size_t i = 0; i < values.size(); ++i) out << (i ? "," : "") << values[i];
  out << ';';
}

Ints read_ints(std::istream& in) {
  Ints values;
  std::string field, item;
  std::getline(in, field, ';');
  std::istringstream items(field);
  while (std::getline(items, item, ',')) values.push_back(std::stoll(item));
  return values;
}

/// A fake tensor says that it is on spyre, but its storage is not.
bool has_card_storage(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().device_type() == c10::DeviceType::PrivateUse1;
}

void save_layout(const at::Tensor& tensor, Flags& flags) {
  if (!has_card_storage(tensor)) return;
  const auto& r = raw_record_of(tensor);
  if (!r.layout || r.host_dtype != tensor.scalar_type()) return;
  std::ostringstream out;
  out << kPrefix;
  write(out, r.layout->device_size);
  write(out, r.layout->stride_map);
  write(out, {static_cast<int64_t>(r.layout->device_dtype), static_cast<int64_t>(r.layout->element_arrangement)});
  write(out, r.dma_sizes);
  write(out, r.dma_strides);
  flags[out.str()] = true;
}

void restore(const at::Tensor& tensor, const std::string& text) {
  std::istringstream in(text.substr(kPrefix.size()));
  const auto size = read_ints(in), map = read_ints(in), codes = read_ints(in);
  const auto dma_sizes = read_ints(in), dma_strides = read_ints(in);
  const auto dtype = tensor.scalar_type();
  const bool extents = std::all_of(size.begin(), size.end(), [](int64_t n) { return n >= 0; });
  const bool fits = extents && size.size() == map.size() && !size.empty() && codes.size() == 2 && codes[1] >= 0 &&
                    codes[1] <= 3 && dma_sizes.size() == dma_strides.size() &&
                    codes[0] == static_cast<int64_t>(device_format(dtype));
  const auto nbytes = tensor.storage().nbytes();
  if (!fits ||
      host_span(dma_sizes, dma_strides) * static_cast<int64_t>(tensor.itemsize()) > static_cast<int64_t>(nbytes)) {
    raise("InvalidArgument", "torch.load: the saved layout '" + text + "' does not fit its tensor");
  }
  const auto layout = intern(
      SpyreTensorLayout{size, map, static_cast<DataFormats>(codes[0]), static_cast<ElementArrangement>(codes[1])});
  relayout_storage(tensor.storage(), layout, dtype, dma_sizes, dma_strides, nbytes);
}

/// The first tensor on a storage that was just read gives it its layout; the others share it.
void load_layout(const at::Tensor& tensor, Flags& flags) {
  if (!has_card_storage(tensor) || raw_record_of(tensor).layout) return;
  for (const auto& [text, on] : flags) {
    if (on && text.starts_with(kPrefix)) return restore(tensor, text);
  }
}

const bool registered = [] {
  torch::jit::TensorBackendMetaRegistry(c10::DeviceType::PrivateUse1, &save_layout, &load_layout);
  return true;
}();

}  // namespace
}  // namespace spyre
