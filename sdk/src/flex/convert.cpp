// SPDX-License-Identifier: Apache-2.0
// Copies that convert numbers and layout at once. The card's DMA does it for formats of whole bytes; the formats that
// pack several elements into a byte are converted here, element by element, on a copy of the device's bytes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "flex/runtime.h"

namespace flex::internal {
namespace {

using spyre::card::Card;
using spyre::card::Error;

/// Bits of an element that is smaller than a byte; 0 for the others. The first element lies in the lowest bits.
int packed_bits(DataFormats format) {
  if (format == DataFormats::SENINT4) return 4;
  return format == DataFormats::SENUINT2 || format == DataFormats::SENINT2 ? 2 : 0;
}

int whole_bytes(DataFormats format) {
  switch (format) {
#define FORMAT(code, name, bytes, elements) \
  case DataFormats::name:                   \
    return bytes;
#include "spyre/formats.def"
#undef FORMAT
  }
  return 0;
}

/// A float as an integer of the card: toward zero, at most the last one, 0 for NaN.
int64_t to_integer(double value, double lowest, double highest) {
  if (std::isnan(value)) return 0;
  return static_cast<int64_t>(std::clamp(value, lowest, highest));
}

int64_t packed_code(double value, DataFormats format) {
  if (format == DataFormats::SENINT4) return to_integer(value, -8, 7);
  return format == DataFormats::SENUINT2 ? to_integer(value, 0, 3) : to_integer(value, -2, 1);
}

/// Elements in memory, whatever their size.
class Elements {
 public:
  Elements(std::byte* base, DataFormats format)
      : base_(base), format_(format), bits_(packed_bits(format)), bytes_(whole_bytes(format)) {
    if (!bits_ && !bytes_)
      throw Error("InvalidArgument", "copy: " + EnumsConversion::dataFormatsToString(format) + " cannot be stored");
  }

  float get(int64_t i) const {
    if (bits_) return static_cast<float>(signed_code(code(i)));
    uint32_t code = 0;
    std::memcpy(&code, base_ + i * bytes_, static_cast<size_t>(std::min(bytes_, 4)));
    return spyre::card::decode(code, static_cast<int>(format_));
  }
  void put(int64_t i, float value) {
    if (bits_) return put_code(i, static_cast<int>(packed_code(value, format_)));
    const uint32_t code = spyre::card::encode(value, static_cast<int>(format_));
    std::memcpy(base_ + i * bytes_, &code, static_cast<size_t>(std::min(bytes_, 4)));
  }

 private:
  int mask() const { return (1 << bits_) - 1; }
  int shift(int64_t i) const { return static_cast<int>(i % (8 / bits_)) * bits_; }
  std::byte& byte(int64_t i) const { return base_[i / (8 / bits_)]; }
  int code(int64_t i) const { return static_cast<int>(byte(i)) >> shift(i) & mask(); }
  void put_code(int64_t i, int code) {
    const int kept = static_cast<int>(byte(i)) & ~(mask() << shift(i));
    byte(i) = static_cast<std::byte>(kept | (code & mask()) << shift(i));
  }
  int signed_code(int code) const {
    return format_ != DataFormats::SENUINT2 && code > mask() / 2 ? code - mask() - 1 : code;
  }

  std::byte* base_;
  DataFormats format_;
  int bits_, bytes_;
};

void check_ranks(const data_conversion_stride_info& box) {
  if (box.stride_src_.size() != box.size_.size() || box.stride_dst_.size() != box.size_.size())
    throw Error("InvalidArgument",
                "copy: sizes and strides of a conversion have ranks " + std::to_string(box.size_.size()) + ", " +
                    std::to_string(box.stride_src_.size()) + ", " + std::to_string(box.stride_dst_.size()));
}

/// Calls fn(source element, destination element) for each index.
template <class Fn>
void for_each(const data_conversion_stride_info& box, Fn&& fn) {
  const size_t rank = box.size_.size();
  if (std::any_of(box.size_.begin(), box.size_.end(), [](int64_t n) { return n <= 0; })) return;
  std::vector<int64_t> index(rank, 0);
  int64_t from = box.offset_src_, to = box.offset_dst_;
  while (true) {
    fn(from, to);
    size_t d = 0;
    for (; d < rank; ++d) {
      from += box.stride_src_[d];
      to += box.stride_dst_[d];
      if (++index[d] < box.size_[d]) break;
      from -= box.stride_src_[d] * box.size_[d];
      to -= box.stride_dst_[d] * box.size_[d];
      index[d] = 0;
    }
    if (d == rank) return;
  }
}

void check_reach(const data_conversion_stride_info& box, bool to_device, int64_t limit) {
  __int128 lowest = to_device ? box.offset_dst_ : box.offset_src_, highest = lowest;
  const std::vector<int64_t>& stride = to_device ? box.stride_dst_ : box.stride_src_;
  for (size_t d = 0; d < box.size_.size(); ++d) {
    if (box.size_[d] <= 0) return;
    const __int128 reach = static_cast<__int128>(box.size_[d] - 1) * stride[d];
    (reach < 0 ? lowest : highest) += reach;
  }
  if (lowest < 0 || highest >= limit)
    throw Error("OutOfBounds", "copy: the conversion reaches elements outside the " + std::to_string(limit) +
                                   " of the device storage");
}

void convert_packed(Card& card, int stream, void* host, uint64_t address, uint64_t bytes, bool to_device,
                    const data_conversion_info& conversion) {
  const DataFormats device_format = to_device ? conversion.dataformat_dst_ : conversion.dataformat_src_;
  const int bits = packed_bits(device_format) ? packed_bits(device_format) : 8 * whole_bytes(device_format);
  std::vector<std::byte> image(bytes);
  if (!to_device) card.read(address, image, stream);
  std::byte* outside = static_cast<std::byte*>(host);
  Elements source(to_device ? outside : image.data(), conversion.dataformat_src_);
  Elements target(to_device ? image.data() : outside, conversion.dataformat_dst_);
  for (const data_conversion_stride_info& box : conversion.dcsi_) {
    check_ranks(box);
    check_reach(box, to_device, static_cast<int64_t>(bytes) * 8 / std::max(bits, 1));
    for_each(box, [&](int64_t from, int64_t to) { target.put(to, source.get(from)); });
  }
  if (to_device) card.write(address, image, stream);
}

/// The front end gives the bool result of a float32 comparison a layout of 32 elements per stick, which is that of
/// float32, and calls it SEN169_FP16. The extent of the innermost dim tells the two apart.
DataFormats device_format(const data_conversion_info& conversion) {
  if (conversion.isHostToSen_) return conversion.dataformat_dst_;
  const bool floats = conversion.dataformat_src_ == DataFormats::SEN169_FP16 &&
                      conversion.dataformat_dst_ == DataFormats::BOOL && !conversion.input_shape_.empty() &&
                      conversion.input_shape_.front() == dataFormatToStickSize[DataFormats::IEEE_FP32];
  return floats ? DataFormats::IEEE_FP32 : conversion.dataformat_src_;
}

/// One more than the last element that a conversion touches on the host.
uint64_t host_reach(const data_conversion_info& conversion) {
  __int128 most = 0;
  for (const data_conversion_stride_info& box : conversion.dcsi_) {
    check_ranks(box);
    __int128 last = conversion.isHostToSen_ ? box.offset_src_ : box.offset_dst_;
    for (size_t d = 0; d < box.size_.size(); ++d) {
      const int64_t stride = (conversion.isHostToSen_ ? box.stride_src_ : box.stride_dst_)[d];
      last += static_cast<__int128>(box.size_[d] - 1) * std::max<int64_t>(stride, 0);
    }
    most = std::max(most, last + 1);
  }
  return static_cast<uint64_t>(std::min<__int128>(most, INT64_MAX));
}

/// The front end calls both sides of a uint8 tensor SENUINT32, but on the host an element is one byte. Then the host's
/// bytes are too few for four each.
bool is_uint8(const data_conversion_info& conversion, uint64_t host_bytes) {
  if (conversion.dataformat_src_ != DataFormats::SENUINT32 || conversion.dataformat_dst_ != DataFormats::SENUINT32)
    return false;
  const uint64_t elements = host_reach(conversion);
  return elements <= host_bytes && elements > host_bytes / 4;
}

void convert_uint8(Card& card, int stream, void* host, uint64_t host_bytes, const Chunk& device,
                   const data_conversion_info& conversion) {
  uint8_t* bytes = static_cast<uint8_t*>(host);
  std::vector<uint32_t> wide(bytes, bytes + host_bytes);
  convert(card, stream, wide.data(), 4 * wide.size(), device, conversion);
  if (conversion.isHostToSen_) return;
  std::transform(wide.begin(), wide.end(), bytes, [](uint32_t value) { return static_cast<uint8_t>(value); });
}

spyre::card::TransferBox box_of(const data_conversion_stride_info& info, bool to_device) {
  check_ranks(info);
  spyre::card::TransferBox box;
  box.size.assign(info.size_.rbegin(), info.size_.rend());
  const std::vector<int64_t>& host = to_device ? info.stride_src_ : info.stride_dst_;
  const std::vector<int64_t>& device = to_device ? info.stride_dst_ : info.stride_src_;
  box.host_stride.assign(host.rbegin(), host.rend());
  box.device_stride.assign(device.rbegin(), device.rend());
  box.host_offset = to_device ? info.offset_src_ : info.offset_dst_;
  box.device_offset = to_device ? info.offset_dst_ : info.offset_src_;
  return box;
}

template <class Integer>
std::vector<std::byte> bytes_of(Integer value) {
  std::vector<std::byte> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

}  // namespace

void convert(Card& card, int stream, void* host, uint64_t host_bytes, const Chunk& device,
             const data_conversion_info& conversion) {
  const bool to_device = conversion.isHostToSen_;
  const auto empty = [](const data_conversion_stride_info& info) {
    return std::find(info.size_.begin(), info.size_.end(), 0) != info.size_.end();
  };
  if (std::all_of(conversion.dcsi_.begin(), conversion.dcsi_.end(), empty)) return;
  if (is_uint8(conversion, host_bytes)) return convert_uint8(card, stream, host, host_bytes, device, conversion);
  const uint64_t address = (device.addr.region_id << SEGMENT_SIZE_BITS) + device.addr.offset;
  if (packed_bits(conversion.dataformat_src_) || packed_bits(conversion.dataformat_dst_))
    return convert_packed(card, stream, host, address, device.size, to_device, conversion);
  spyre::card::BoxTransfer transfer;
  transfer.host = host;
  transfer.host_format = static_cast<int>(to_device ? conversion.dataformat_src_ : conversion.dataformat_dst_);
  transfer.address = address;
  transfer.bytes = device.size;
  transfer.device_format = static_cast<int>(device_format(conversion));
  transfer.whole_storage = true;
  for (const data_conversion_stride_info& info : conversion.dcsi_) transfer.boxes.push_back(box_of(info, to_device));
  to_device ? card.dma_in(transfer, stream) : card.dma_out(transfer, stream);
}

std::vector<std::byte> fill_element(double value, DataFormats format) {
  if (const int bits = packed_bits(format)) {
    const int code = static_cast<int>(packed_code(value, format)) & ((1 << bits) - 1);
    int byte = 0;
    for (int at = 0; at < 8; at += bits) byte |= code << at;
    return {static_cast<std::byte>(byte)};
  }
  switch (format) {
    case DataFormats::SENINT8:
      return bytes_of(static_cast<int8_t>(to_integer(value, -128, 127)));
    case DataFormats::SENINT16:
      return bytes_of(static_cast<int16_t>(to_integer(value, -32768, 32767)));
    case DataFormats::IEEE_INT32:
      return bytes_of(static_cast<int32_t>(to_integer(value, -0x1p31, 0x1p31 - 1)));
    case DataFormats::SENUINT32:
      return bytes_of(static_cast<uint32_t>(to_integer(value, 0, 0x1p32 - 1)));
    case DataFormats::IEEE_INT64:
      return bytes_of(value >= 0x1p63 ? INT64_MAX : to_integer(value, -0x1p63, std::nextafter(0x1p63, 0)));
    case DataFormats::BOOL:
      return bytes_of(static_cast<uint8_t>(value != 0));
    default:
      break;
  }
  const int bytes = whole_bytes(format);
  if (!bytes)
    throw Error("InvalidArgument", "fill: " + EnumsConversion::dataFormatsToString(format) + " cannot be stored");
  std::vector<std::byte> element = bytes_of(spyre::card::encode(static_cast<float>(value), static_cast<int>(format)));
  element.resize(static_cast<size_t>(bytes));
  return element;
}

}  // namespace flex::internal
