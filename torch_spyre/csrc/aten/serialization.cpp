// SPDX-License-Identifier: Apache-2.0
// torch.save and torch.load keep layouts.
//
// PyTorch saves host bytes and, beside each tensor, a map of flags that a device may add to. We add one flag whose name
// is the storage's layout. A reader on another device, or without this package, skips flags that it does not know.
#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <sstream>
#include <string_view>

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

/// A file is not trusted: what it says of a layout is checked before anything is laid out.
[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  constexpr size_t kShown = 200;
  const auto shown = std::string(text.substr(0, kShown)) + (text.size() > kShown ? "…" : "");
  raise("InvalidArgument",
        "torch.load: the saved layout '" + shown + "' " + why +
            "; the file is damaged, or was not written by torch.save. Save it again, or load it with "
            "map_location=\"cpu\", which needs no layout");
}

/// The next field: integers with commas between them, up to a semicolon.
Ints take_ints(std::string_view text, std::string_view& rest) {
  const auto end = rest.find(';');
  if (end == std::string_view::npos) refuse(text, "ends too early");
  auto field = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  Ints values;
  while (!field.empty()) {
    const auto item = field.substr(0, field.find(','));
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(item.data(), item.data() + item.size(), value);
    if (error != std::errc() || stop != item.data() + item.size())
      refuse(text, "holds '" + std::string(item.substr(0, 30)) + "' where an integer of 64 bits is meant");
    values.push_back(value);
    field.remove_prefix(std::min(item.size() + 1, field.size()));
  }
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

/// What the text says, checked by itself.
struct SavedLayout {
  LayoutPtr layout;
  Ints sizes, strides;  // of the host
};

SavedLayout parse(std::string_view text, c10::ScalarType dtype) {
  auto rest = text.substr(kPrefix.size());
  auto size = take_ints(text, rest), map = take_ints(text, rest);
  const auto codes = take_ints(text, rest);
  SavedLayout saved{nullptr, take_ints(text, rest), take_ints(text, rest)};
  if (!rest.empty()) refuse(text, "goes on after its end");
  if (codes.size() != 2 || codes[0] != static_cast<int64_t>(device_format(dtype)) || codes[1] < 0 || codes[1] > 3)
    refuse(text, c10::str("does not name the format of ", dtype));
  const auto negative = [](int64_t n) { return n < 0; };
  for (const auto* values : {&saved.sizes, &saved.strides})
    if (std::any_of(values->begin(), values->end(), negative)) refuse(text, "has a negative host size or stride");
  if (saved.sizes.size() != saved.strides.size()) refuse(text, "has host sizes and strides of two ranks");
  SpyreTensorLayout layout{std::move(size), std::move(map), device_format(dtype), ElementArrangement(codes[1])};
  if (const char* defect = defect_of(layout)) refuse(text, c10::str("is no layout: ", defect));
  saved.layout = intern(std::move(layout));
  return saved;
}

/// Padding may take many times the room of the elements, but a file of some bytes must not claim all of a card.
constexpr int64_t kPlentyBytes = 1 << 20, kMostPadding = 1 << 14;

/// Does a storage of plain bytes hold something outside the saved shape? torch.save writes zeros there.
bool loses_bytes(const c10::Storage& storage, const SavedLayout& saved, c10::ScalarType dtype, int64_t needed) {
  const bool dense = interleaves(saved.sizes, saved.strides) ||
                     c10::multiply_integers(saved.sizes) == host_span(saved.sizes, saved.strides);
  if (dense && needed == static_cast<int64_t>(storage.nbytes())) return false;
  const auto bytes = read_host_bytes(storage);
  auto* data = static_cast<uint8_t*>(bytes.data_ptr());
  if (dense) {
    std::memset(data, 0, needed);
  } else {
    const auto item = static_cast<int64_t>(c10::elementSize(dtype));
    auto sizes = saved.sizes, strides = saved.strides;
    for (auto& stride : strides) stride *= item;
    sizes.push_back(item);
    strides.push_back(1);
    bytes.as_strided(sizes, strides).zero_();
  }
  return std::any_of(data, data + bytes.numel(), [](uint8_t b) { return b != 0; });
}

void restore(const at::Tensor& tensor, std::string_view text) {
  const auto saved = parse(text, tensor.scalar_type());
  const auto nbytes = static_cast<int64_t>(tensor.storage().nbytes());
  int64_t needed = 0;
  try {
    needed = host_bytes(saved.sizes, saved.strides, tensor.scalar_type());
  } catch (const c10::Error& error) {
    refuse(text, std::string("has no size: ") + error.what_without_backtrace());
  }
  if (needed > nbytes) refuse(text, c10::str("does not fit its tensor, whose storage has ", nbytes, " bytes"));
  if ((saved.layout->device_bytes() - kPlentyBytes) / kMostPadding > nbytes)
    refuse(text, c10::str("needs ", saved.layout->device_bytes(), " bytes on the card for ", nbytes, " in the file"));
  if (host_bytes(tensor.sizes(), tensor.strides(), tensor.scalar_type(), tensor.storage_offset()) > needed)
    refuse(text, c10::str("holds ", needed, " bytes, which its tensor reaches beyond"));
  if (needed > 0 && saved.layout->device_bytes() == 0) refuse(text, "has no place for any element");
  if (loses_bytes(tensor.storage(), saved, tensor.scalar_type(), needed))
    refuse(text, "has no place for all that the storage holds");
  relayout_storage(tensor.storage(), saved.layout, tensor.scalar_type(), saved.sizes, saved.strides, nbytes);
  // As on the CPU: what a file holds does not grow when another tensor of the file claims more.
  tensor.storage().unsafeGetStorageImpl()->set_resizable(false);
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
