// SPDX-License-Identifier: Apache-2.0
// Whether stored values are numbers: NaN and saturated elements of a run of bytes.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/kernels.h"
#include "spyre/card.h"

namespace spyre::card {

/// What a set of values contains. Saturated: infinite, or the largest magnitude of a format without infinities.
struct Health {
  bool nan = false, saturated = false;
  uint64_t nan_at = 0, saturated_at = 0;  // address of the first one

  void found_nan(uint64_t at) {
    if (!nan) nan_at = at;
    nan = true;
  }
  void found_saturated(uint64_t at) {
    if (!saturated) saturated_at = at;
    saturated = true;
  }
};

enum class ByteHealth : uint8_t { number, nan, saturated };

/// Health of the 256 codes of an 8-bit float.
inline std::array<ByteHealth, 256> byte_health(Format f) {
  std::array<ByteHealth, 256> table{};
  float largest = 0;
  for (uint32_t c = 0; c < 256; ++c) {
    float v = std::fabs(decode(c, static_cast<int>(f)));
    if (!std::isnan(v) && v > largest) largest = v;
  }
  for (uint32_t c = 0; c < 256; ++c) {
    float v = std::fabs(decode(c, static_cast<int>(f)));
    table[c] = std::isnan(v) ? ByteHealth::nan : v == largest ? ByteHealth::saturated : ByteHealth::number;
  }
  return table;
}

/// Looks at elements of T in a run: `bad` holds for few codes, `nan` tells which of those are NaN.
template <class T, class Bad, class Nan>
void scan_words(const std::byte* p, int64_t bytes, uint64_t address, Health& health, const Bad& bad, const Nan& nan) {
  constexpr int64_t size = sizeof(T), block = 64;
  for (int64_t at = 0; at < bytes; at += block * size) {
    T code[block] = {};  // 0 is a number in every format
    std::memcpy(code, p + at, static_cast<size_t>(std::min(bytes - at, block * size)));
    bool any = false;
    for (T c : code) any |= bad(c);
    if (!any) continue;
    for (int64_t k = 0; k < block; ++k) {
      if (!bad(code[k])) continue;
      const uint64_t where = address + static_cast<uint64_t>(at + k * size);
      nan(code[k]) ? health.found_nan(where) : health.found_saturated(where);
    }
    if (health.nan && health.saturated) return;
  }
}

/// Adds the health of a run of elements to `health`; integers are always numbers.
inline void scan_run(Format f, const std::byte* p, int64_t bytes, uint64_t address, Health& health) {
  static const auto fp8_143 = byte_health(Format::SEN143_FP8), fp8_152 = byte_health(Format::SEN152_FP8);
  switch (f) {
    case Format::SEN169_FP16:
      return scan_words<uint16_t>(
          p, bytes, address, health, [](uint16_t c) { return (c & 0x7FFF) >= 0x7FFE; },
          [](uint16_t c) { return (c & 0x7FFF) == 0x7FFF; });
    case Format::IEEE_FP32:
      return scan_words<uint32_t>(
          p, bytes, address, health, [](uint32_t c) { return (c & 0x7F800000) == 0x7F800000; },
          [](uint32_t c) { return (c & 0x7FFFFF) != 0; });
    case Format::IEEE_FP16:
      return scan_words<uint16_t>(
          p, bytes, address, health, [](uint16_t c) { return (c & 0x7C00) == 0x7C00; },
          [](uint16_t c) { return (c & 0x3FF) != 0; });
    case Format::SEN143_FP8:
    case Format::SEN152_FP8: {
      const auto& table = f == Format::SEN143_FP8 ? fp8_143 : fp8_152;
      return scan_words<uint8_t>(
          p, bytes, address, health, [&](uint8_t c) { return table[c] != ByteHealth::number; },
          [&](uint8_t c) { return table[c] == ByteHealth::nan; });
    }
    default:
      return;
  }
}

}  // namespace spyre::card
