// SPDX-License-Identifier: Apache-2.0
#include "layout.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>
#include <c10/util/hash.h>
#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <sstream>
#include <string_view>
#include <unordered_set>

#include "errors.h"

namespace spyre {
namespace {

constexpr char kInt64Downcast[] =
    "Spyre does not support int64: values are stored as int32, and one outside int32 raises; "
    "TORCH_SPYRE_DOWNCAST_WARN=0 or torch.spyre.set_downcast_warning(False) switches this warning off";

struct FormatRow {
  const char* name;
  int64_t bytes, elems;
};

constexpr FormatRow kFormats[] = {
#define FORMAT(code, name, bytes, elems) {#name, bytes, elems},
#include "spyre/formats.def"
#undef FORMAT
};

bool warning_default() {
  const char* text = std::getenv("TORCH_SPYRE_DOWNCAST_WARN");
  if (!text) return true;
  std::string value(text);
  std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::tolower(c); });
  return value != "0" && value != "false" && value != "off";
}

std::atomic<bool>& warning_flag() {
  static std::atomic<bool> flag{warning_default()};
  return flag;
}

struct LayoutHash {
  size_t operator()(const std::unique_ptr<const SpyreTensorLayout>& p) const { return p->hash(); }
};
struct LayoutEqual {
  bool operator()(const std::unique_ptr<const SpyreTensorLayout>& a,
                  const std::unique_ptr<const SpyreTensorLayout>& b) const {
    return *a == *b;
  }
};

const FormatRow& row_of(DataFormats format) {
  const auto code = static_cast<int64_t>(format);
  return kFormats[is_format(code) ? code : static_cast<int64_t>(DataFormats::INVALID)];
}

/// Do the strides of a contiguous tensor of this size fit?
bool is_countable(c10::IntArrayRef size) {
  int64_t step = 1;
  bool overflows = false;
  for (int64_t n : size) overflows |= c10::mul_overflows(step, std::max<int64_t>(n, 1), &step);
  return !overflows;
}

int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  TORCH_CHECK(!c10::mul_overflows(a, b, &result), "Stride calculation overflowed");
  return result;
}

}  // namespace

const char* defect_of(const SpyreTensorLayout& layout) {
  const auto& size = layout.device_size;
  const auto& map = layout.stride_map;
  if (size.empty() || size.size() != map.size()) return "device_size and stride_map have one entry for each device dim";
  if (!is_format(static_cast<int64_t>(layout.device_dtype))) return "its format does not exist";
  if (std::any_of(size.begin(), size.end(), [](int64_t n) { return n < 0; })) return "an extent is negative";
  if (std::any_of(map.begin(), map.end(), [](int64_t s) { return s < -1; }))
    return "a stride is at least 0, or -1 for a dim without host elements";
  if (std::find(size.begin(), size.end(), 0) != size.end()) return nullptr;
  int64_t elements = 1, bytes = kStickBytes, reach = 1, step = 0;
  bool overflows = false;
  for (size_t d = 0; d < size.size(); ++d) {
    overflows |= c10::mul_overflows(elements, size[d], &elements);
    if (d + 1 < size.size()) overflows |= c10::mul_overflows(bytes, size[d], &bytes);
    overflows |= c10::mul_overflows(size[d] - 1, std::max<int64_t>(map[d], 0), &step);
    overflows |= c10::add_overflows(reach, step, &reach);
  }
  return overflows ? "its bytes or its host elements are more than an int64 counts" : nullptr;
}

namespace {

void append(std::ostream& out, const std::vector<int64_t>& values) {
  out << '[';
  for (size_t i = 0; i < values.size(); ++i) out << (i ? ", " : "") << values[i];
  out << ']';
}

}  // namespace

bool is_format(int64_t code) { return code >= 0 && code < static_cast<int64_t>(std::size(kFormats)); }

const char* format_name(DataFormats format) { return row_of(format).name; }

int64_t element_bytes(DataFormats format) { return row_of(format).bytes; }

int64_t elems_per_stick(DataFormats format) { return row_of(format).elems; }

DataFormats host_format(c10::ScalarType dtype) {
  using S = c10::ScalarType;
  switch (dtype) {
    case S::Half:
      return DataFormats::IEEE_FP16;
    case S::BFloat16:
      return DataFormats::BFLOAT16;
    case S::Bool:
      return DataFormats::BOOL;
    case S::Long:
      return DataFormats::IEEE_INT64;
    default:
      return device_format(dtype);
  }
}

DataFormats device_format(c10::ScalarType dtype) {
  using S = c10::ScalarType;
  switch (dtype) {
    case S::Half:
    case S::BFloat16:
    case S::Bool:
      return DataFormats::SEN169_FP16;
    case S::Float:
      return DataFormats::IEEE_FP32;
    case S::Long:
    case S::Int:
      return DataFormats::IEEE_INT32;
    case S::Short:
      return DataFormats::SENINT16;
    case S::Char:
    case S::QInt8:
      return DataFormats::SENINT8;
    case S::Byte:
    case S::QUInt8:
      return DataFormats::SENUINT32;
    case S::Float8_e4m3fn:
      return DataFormats::SEN143_FP8;
    case S::Float8_e5m2:  // other codes on the host (dma.cpp)
    case S::Float8_e5m2fnuz:
      return DataFormats::SEN152_FP8;
    case S::QUInt4x2:
    case S::QUInt2x4:
      return DataFormats::SENUINT2;
    default:
      return DataFormats::INVALID;
  }
}

bool is_supported(c10::ScalarType dtype) { return elems_per_stick(device_format(dtype)) > 0; }

void check_supported(c10::ScalarType dtype) {
  if (!is_supported(dtype)) {
    const char* advice = c10::isComplexType(dtype)
                             ? "; compute with complex numbers on the host (.cpu()), or keep real and imaginary parts "
                               "as two tensors (torch.view_as_real)"
                             : "; convert to float16, float32 or an integer type on the host first";
    raise("UnsupportedOp", c10::str("Spyre backend does not support dtype ", c10::getDtypeNames(dtype).first, advice));
  }
  if (dtype == c10::ScalarType::Long) warn_int64_downcast();
}

void warn_int64_downcast() {
  static std::atomic<bool> warned{false};
  if (downcast_warning() && !warned.exchange(true)) warn_user(kInt64Downcast);
}

bool downcast_warning() { return warning_flag().load(); }
void set_downcast_warning(bool on) { warning_flag().store(on); }

size_t SpyreTensorLayout::hash() const {
  return c10::get_hash(device_size, stride_map, static_cast<int>(device_dtype), static_cast<int>(element_arrangement));
}

std::string SpyreTensorLayout::repr() const {
  std::ostringstream out;
  out << "SpyreTensorLayout(device_size=";
  append(out, device_size);
  out << ", stride_map =";
  append(out, stride_map);
  out << ", device_dtype=DataFormats." << format_name(device_dtype) << ')';
  return out.str();
}

int64_t SpyreTensorLayout::device_bytes() const {
  // An empty dim first: the others may be of any size.
  if (device_size.empty() || std::find(device_size.begin(), device_size.end() - 1, 0) != device_size.end() - 1)
    return 0;
  int64_t bytes = kStickBytes;
  for (size_t d = 0; d + 1 < device_size.size(); ++d) {
    TORCH_CHECK(!c10::mul_overflows(bytes, device_size[d], &bytes), "Storage size calculation overflowed with ",
                repr());
  }
  return bytes;
}

LayoutPtr intern(SpyreTensorLayout layout) {
  if (const char* defect = defect_of(layout))
    raise("InvalidArgument", c10::str(layout.repr(), " is no layout: ", defect));
  static std::mutex mutex;
  static auto* table = new std::unordered_set<std::unique_ptr<const SpyreTensorLayout>, LayoutHash, LayoutEqual>;
  auto value = std::make_unique<const SpyreTensorLayout>(std::move(layout));
  std::lock_guard lock(mutex);
  return table->insert(std::move(value)).first->get();
}

SpyreTensorLayout make_layout(c10::IntArrayRef host_size, c10::IntArrayRef host_strides, c10::ScalarType dtype,
                              c10::IntArrayRef dim_order, ElementArrangement arrangement) {
  const auto format = device_format(dtype);
  const int64_t elems = elems_per_stick(format);
  if (elems == 0) check_supported(dtype);
  const auto rank = static_cast<int64_t>(host_size.size());
  const auto n = static_cast<int64_t>(dim_order.size());
  const bool sparse = n == rank + 1 && dim_order.back() == -1;
  TORCH_CHECK(n == rank || sparse, "Incompatible host_size and dim_order");
  TORCH_CHECK(static_cast<int64_t>(host_strides.size()) == rank, "Incompatible host_size and host_strides");
  SpyreTensorLayout layout{{}, {}, format, arrangement};
  if (rank == 0) {
    layout.device_size = {1, elems};
    layout.stride_map = {-1, -1};
    return layout;
  }
  TORCH_CHECK(n <= 6, "Unsupported tensor rank: ", n);
  at::detail::check_size_nonnegative(host_size);
  for (int64_t s : host_strides) TORCH_CHECK(s >= 0, "Negative strides are not supported, got strides: ", host_strides);
  std::vector<bool> seen(rank);
  for (int64_t d : dim_order.slice(0, sparse ? n - 1 : n)) {
    TORCH_CHECK(d >= 0 && d < rank && !seen[d], "Invalid dim in dim_order: ", d);
    seen[d] = true;
  }

  // Device dims: the order without its first dim, the first dim, then the stick dim again for the lanes of a stick.
  std::vector<int64_t> dims(dim_order.begin() + 1, dim_order.end());
  dims.push_back(dim_order.front());
  dims.push_back(dim_order.back());
  const int64_t lanes = n, stick_dim = dim_order.back();
  // With one host dim the stick count and the outermost dim are the same entry.
  const int64_t sticks = n == 1 ? 0 : n - 2;
  for (int64_t j = 0; j <= n; ++j) {
    if (j == lanes) {
      layout.device_size.push_back(elems);
    } else if (j == sticks) {
      layout.device_size.push_back(sparse ? 1 : host_size[stick_dim] / elems + (host_size[stick_dim] % elems != 0));
    } else {
      layout.device_size.push_back(host_size[dims[j]]);
    }
  }
  layout.stride_map.assign(n + 1, -1);
  std::vector<int64_t> previous(rank, -1);
  for (int64_t j = n; j >= 0; --j) {
    const int64_t d = dims[j];
    if (d == -1 || host_size[d] == 1) continue;
    const int64_t p = previous[d];
    layout.stride_map[j] = p == -1 ? host_strides[d] : product(layout.stride_map[p], layout.device_size[p]);
    previous[d] = j;
  }
  return layout;
}

SpyreTensorLayout make_layout(c10::IntArrayRef host_size, c10::ScalarType dtype) {
  std::vector<int64_t> order(host_size.size());
  std::iota(order.begin(), order.end(), 0);
  // Row-major strides as products of the sizes themselves: an empty dim makes the outer ones 0.
  std::vector<int64_t> strides(host_size.size(), 1);
  for (size_t i = host_size.size(); i-- > 1;) strides[i - 1] = product(strides[i], host_size[i]);
  return make_layout(host_size, strides, dtype, order);
}

bool interleaves(c10::IntArrayRef size, c10::IntArrayRef stride) {
  std::vector<size_t> dims;
  for (size_t i = 0; i < size.size(); ++i) {
    if (size[i] == 0) return false;
    if (size[i] > 1) dims.push_back(i);
  }
  std::sort(dims.begin(), dims.end(), [&](size_t a, size_t b) { return stride[a] < stride[b]; });
  host_span(size, stride);  // so that the sums below fit
  int64_t reach = 1;
  for (size_t d : dims) {
    if (stride[d] < reach) return true;
    reach += (size[d] - 1) * stride[d];
  }
  return false;
}

LayoutPtr layout_for_strided(c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType dtype) {
  const int64_t span = host_span(size, stride);
  if (size.size() > 6 || interleaves(size, stride)) return intern(make_layout({span}, dtype));
  // No element, no address: sizes and strides of an empty tensor may be anything.
  if (span == 0) return intern(is_countable(size) ? make_layout(size, dtype) : make_layout({0}, dtype));
  std::vector<int64_t> order(size.size());
  std::iota(order.begin(), order.end(), 0);
  return intern(make_layout(size, stride, dtype, order));
}

int64_t host_span(c10::IntArrayRef size, c10::IntArrayRef stride) {
  at::detail::check_size_nonnegative(size);
  return static_cast<int64_t>(at::detail::computeStorageNbytes(size, stride, 1));
}

int64_t host_bytes(c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType dtype, int64_t offset) {
  at::detail::check_size_nonnegative(size);
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  return static_cast<int64_t>(
      at::detail::computeStorageNbytes(size, stride, c10::elementSize(dtype), static_cast<size_t>(offset)));
}

void check_numel(c10::IntArrayRef size) {
  at::detail::check_size_nonnegative(size);
  // As PyTorch counts: (2, 5, 2^60, 0) has no elements, although the product of its first sizes exceeds int64.
  uint64_t numel = 0;
  const bool overflows = c10::safe_multiplies_u64(size, &numel);
  TORCH_CHECK(!overflows && numel <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
              "numel: integer multiplication overflow");
}

std::vector<int64_t> contiguous_strides(c10::IntArrayRef size) {
  std::vector<int64_t> strides(size.size(), 1);
  for (size_t i = size.size(); i-- > 1;) strides[i - 1] = product(strides[i], std::max<int64_t>(size[i], 1));
  return strides;
}

}  // namespace spyre
