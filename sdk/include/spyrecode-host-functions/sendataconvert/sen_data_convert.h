// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <bit>
#include <cstdint>

namespace deeptools {

/// The same bits as another type of the same size.
template <class To, class From>
To BinaryConvert(const From& from) {
  return std::bit_cast<To>(from);
}

/// The SEN169_FP16 code (1-6-9) of a value, rounded as the card rounds.
uint32_t FloatToFp16Bin(float value);

}  // namespace deeptools
