// SPDX-License-Identifier: Apache-2.0
// The arithmetic of collectives on runs of elements in the card's format.
#pragma once
#include <cstddef>
#include <span>

#include "kernels/kernels.h"
#include "spyre/links.h"

namespace spyre::card {

/// What to combine, and as what.
struct Arithmetic {
  Combine combine;
  Format format;
  Meaning meaning;
};

/// Throws InvalidArgument if values of this format cannot be combined so.
void check_arithmetic(const Arithmetic& a);

/// out = parts[0] op parts[1] op ..., one rounding per step; an average divides at the end. `out` may be one of the
/// parts.
void combine_parts(const Arithmetic& a, std::span<std::byte> out, std::span<const std::byte* const> parts);

}  // namespace spyre::card
