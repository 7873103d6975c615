// SPDX-License-Identifier: Apache-2.0
// Untrusted bytes: a checked cursor, the checksum and the test for UTF-8.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "spyre/card.h"

namespace spyre::card {

[[noreturn]] inline void bad(const std::string& message) { throw Error("InvalidProgram", message); }

inline uint32_t crc32(std::span<const std::byte> bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
      t[i] = c;
    }
    return t;
  }();
  uint32_t crc = 0xFFFFFFFFu;
  for (std::byte b : bytes) crc = table[(crc ^ static_cast<uint32_t>(b)) & 255] ^ (crc >> 8);
  return ~crc;
}

inline bool valid_utf8(std::string_view s) {
  for (size_t i = 0; i < s.size();) {
    auto c = static_cast<unsigned char>(s[i]);
    size_t n = c < 0x80 ? 1 : c >= 0xC2 && c < 0xE0 ? 2 : c >= 0xE0 && c < 0xF0 ? 3 : c >= 0xF0 && c < 0xF5 ? 4 : 0;
    if (n == 0 || i + n > s.size()) return false;
    for (size_t k = 1; k < n; ++k)
      if ((static_cast<unsigned char>(s[i + k]) & 0xC0) != 0x80) return false;
    auto second = n > 1 ? static_cast<unsigned char>(s[i + 1]) : 0;
    bool overlong = (c == 0xE0 && second < 0xA0) || (c == 0xF0 && second < 0x90);
    bool outside = (c == 0xED && second >= 0xA0) || (c == 0xF4 && second >= 0x90);
    if (overlong || outside) return false;
    i += n;
  }
  return true;
}

/// A cursor that refuses to leave its bytes.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T get() {
    if (bytes_.size() < sizeof(T)) bad("the binary ends in the middle of a field");
    T value;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  std::span<const std::byte> take(size_t n) {
    if (bytes_.size() < n) bad("a length of " + std::to_string(n) + " bytes exceeds what is left of the binary");
    auto part = bytes_.first(n);
    bytes_ = bytes_.subspan(n);
    return part;
  }
  /// A count of records of at least `least` bytes each.
  uint32_t count(size_t least) {
    uint32_t n = get<uint32_t>();
    if (n > bytes_.size() / least)
      bad("a count of " + std::to_string(n) + " records exceeds what is left of the binary");
    return n;
  }
  bool empty() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace spyre::card
