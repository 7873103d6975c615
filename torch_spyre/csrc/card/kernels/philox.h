// SPDX-License-Identifier: Apache-2.0
// Random words by number: whoever computes an element, and in whatever order, gets the same word.
#pragma once
#include "isa.h"

SPYRE_ISA_BEGIN

struct PhiloxBlock {
  uint32_t word[4];
};

/// Philox4x32 with 10 rounds (Salmon et al., 2011): counter (block, 0), key seed.
inline PhiloxBlock philox(uint64_t block, uint64_t seed) {
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Element e of a key has word e % 4 of block e / 4. Neighbours with one key share a block.
inline void philox_by_number(const int32_t* const* in, int32_t* out, int64_t n) {
  PhiloxBlock block{};
  uint64_t present = ~uint64_t{0}, key = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t e = static_cast<uint32_t>(in[0][i]);
    const uint64_t own = static_cast<uint32_t>(in[1][i]) | uint64_t{static_cast<uint32_t>(in[2][i])} << 32;
    if (e / 4 != present || own != key) {
      present = e / 4;
      key = own;
      block = philox(present, key);
    }
    out[i] = static_cast<int32_t>(block.word[e % 4]);
  }
}

SPYRE_ISA_END
