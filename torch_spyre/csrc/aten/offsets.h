// SPDX-License-Identifier: Apache-2.0
// Storage offsets as launch arguments: what of an offset moves the address of an argument, and what the program knows.
//
// A program reads an offset as device coordinates, digit by digit, the largest host stride first. A view that begins
// one step further along a device dim touches the same places one pitch further, as long as no element of it carries
// into the next dim. So whole steps become bytes that the launch adds to the address; the position within a stick, and
// every digit that such a carry may reach, stay with the program.
#pragma once
#include <c10/util/ArrayRef.h>

#include <vector>

#include "layout.h"

namespace spyre {

struct ViewStart {
  int64_t offset;  // for which the program is planned, in host elements
  uint64_t bytes;  // whole sticks, which the launch adds to the address
};

/// Views of equal size, stride, layout and `ViewStart::offset` share a program.
ViewStart view_start(const SpyreTensorLayout& layout, c10::IntArrayRef size, c10::IntArrayRef stride, int64_t offset);

/// Device coordinates along each dim, from 0 on, that a view touches; whole sticks.
std::vector<int64_t> view_extents(const SpyreTensorLayout& layout, c10::IntArrayRef size, c10::IntArrayRef stride,
                                  int64_t offset);

}  // namespace spyre
