// SPDX-License-Identifier: Apache-2.0
// Layouts: how the elements of a host tensor lie in the sticks of card memory.
//
// Enters: host sizes, strides, dtype and a dim order. Leaves: an interned SpyreTensorLayout.
// Holds: the table of interned layouts; equal layouts share one pointer for the life of the process, so that launch
// keys compare one word per tensor.
#pragma once
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <vector>

namespace spyre {

enum class DataFormats : int {
#define FORMAT(code, name, bytes, elems) name = code,
#include "spyre/formats.def"
#undef FORMAT
};

enum class ElementArrangement : int { STANDARD = 0, DL16_TO_FP32 = 1, QFP8CH = 2, EXX2 = 3 };

constexpr int64_t kStickBytes = 128;

/// A code of the table, which any integer can be cast to.
bool is_format(int64_t code);
const char* format_name(DataFormats format);
/// Bytes of one element; 0 for formats that this card never stores.
int64_t element_bytes(DataFormats format);
/// Elements per 128-byte stick; 0 for formats without stick geometry.
int64_t elems_per_stick(DataFormats format);
/// Format of the dtype on the host side of a DMA; INVALID if the device has no such dtype.
DataFormats host_format(c10::ScalarType dtype);
/// Format of the dtype in card memory; INVALID if the device has no such dtype.
DataFormats device_format(c10::ScalarType dtype);
bool is_supported(c10::ScalarType dtype);
/// Throws UnsupportedOp `Spyre backend does not support dtype <X>`; warns once that int64 is stored as int32.
void check_supported(c10::ScalarType dtype);

void warn_int64_downcast();
bool downcast_warning();
void set_downcast_warning(bool on);

/// Device memory is row-major over device_size; host_offset = dot(device_coord, stride_map), in elements.
/// stride_map is -1 where a device dim has no host counterpart.
struct SpyreTensorLayout {
  std::vector<int64_t> device_size;
  std::vector<int64_t> stride_map;
  DataFormats device_dtype = DataFormats::INVALID;
  ElementArrangement element_arrangement = ElementArrangement::STANDARD;

  bool operator==(const SpyreTensorLayout&) const = default;
  size_t hash() const;
  std::string repr() const;
  /// Whole sticks: 128 bytes for each point of device_size without its last dim.
  int64_t device_bytes() const;
};

using LayoutPtr = const SpyreTensorLayout*;

/// Why it is no layout, null if it is one: ranks that differ, a negative extent, a stride below -1, an unknown format,
/// or sizes in bytes and host elements that no int64 holds.
const char* defect_of(const SpyreTensorLayout& layout);

/// The one pointer for this value. Raises InvalidArgument if it is no layout, so that whoever has a pointer to one need
/// not look again.
LayoutPtr intern(SpyreTensorLayout layout);

/// The general rule: dim_order lists host dims, the last one becomes the stick dim; a trailing -1 makes it sparse.
SpyreTensorLayout make_layout(c10::IntArrayRef host_size, c10::IntArrayRef host_strides, c10::ScalarType dtype,
                              c10::IntArrayRef dim_order,
                              ElementArrangement arrangement = ElementArrangement::STANDARD);
/// Row-major strides and identity order.
SpyreTensorLayout make_layout(c10::IntArrayRef host_size, c10::ScalarType dtype);

/// Layout of a fresh tensor with these strides. Strides under which two elements share an address, or whose dims
/// interleave, cannot be decoded dim by dim; such a tensor is laid out flat over the range it spans.
LayoutPtr layout_for_strided(c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType dtype);

/// Do two elements share an address, or the ranges of two dims interleave?
bool interleaves(c10::IntArrayRef size, c10::IntArrayRef stride);

// Arithmetic on sizes and strides, which may come from anywhere: what no int64 holds raises PyTorch's own errors.

/// Elements from the first to the last one a strided tensor can reach; 0 if it is empty.
int64_t host_span(c10::IntArrayRef size, c10::IntArrayRef stride);
/// Bytes up to the last element of a view at `offset`; 0 if it is empty.
int64_t host_bytes(c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType dtype, int64_t offset = 0);
/// A tensor that is given such a size would be left half changed.
void check_numel(c10::IntArrayRef size);
std::vector<int64_t> contiguous_strides(c10::IntArrayRef size);

}  // namespace spyre
