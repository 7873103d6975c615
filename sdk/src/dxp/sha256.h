// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4).
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace spyre::sdk {

class Sha256 {
 public:
  void add(std::string_view bytes);
  /// Adds a text and where it ends, so that two texts do not run together.
  void add_part(std::string_view bytes) {
    add(std::to_string(bytes.size()) + ":");
    add(bytes);
  }
  /// 64 hexadecimal digits. Ends the computation.
  std::string hex();

 private:
  void block(const unsigned char* bytes);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string pending_;
  uint64_t bytes_ = 0;
};

}  // namespace spyre::sdk
