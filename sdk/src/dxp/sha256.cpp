// SPDX-License-Identifier: Apache-2.0
#include "dxp/sha256.h"

#include <bit>

namespace spyre::sdk {
namespace {

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

}  // namespace

void Sha256::add(std::string_view bytes) {
  bytes_ += bytes.size();
  if (!pending_.empty()) {
    const size_t taken = std::min(bytes.size(), 64 - pending_.size());
    pending_ += bytes.substr(0, taken);
    bytes.remove_prefix(taken);
    if (pending_.size() < 64) return;
    block(reinterpret_cast<const unsigned char*>(pending_.data()));
    pending_.clear();
  }
  for (; bytes.size() >= 64; bytes.remove_prefix(64)) block(reinterpret_cast<const unsigned char*>(bytes.data()));
  pending_ = bytes;
}

std::string Sha256::hex() {
  const uint64_t bits = bytes_ * 8;
  std::string tail(1, '\x80');
  while ((pending_.size() + tail.size()) % 64 != 56) tail += '\0';
  for (int i = 7; i >= 0; --i) tail += static_cast<char>(bits >> (8 * i));
  add(tail);
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint32_t word : state_)
    for (int i = 28; i >= 0; i -= 4) text += kDigits[word >> i & 15];
  return text;
}

void Sha256::block(const unsigned char* p) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i, p += 4) w[i] = uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3];
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  std::array<uint32_t, 8> s = state_;
  for (int i = 0; i < 64; ++i) {
    const uint32_t big1 = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
    const uint32_t t1 = s[7] + big1 + ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRound[i] + w[i];
    const uint32_t big0 = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
    const uint32_t t2 = big0 + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
  }
  for (int i = 0; i < 8; ++i) state_[i] += s[i];
}

}  // namespace spyre::sdk
