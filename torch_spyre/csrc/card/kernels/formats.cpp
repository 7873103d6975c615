// SPDX-License-Identifier: Apache-2.0
// encode and decode of card.h: one element, by the rules of the card (not those of a DMA).
#include "convert.h"
#include "spyre/card.h"

namespace spyre::card {

uint32_t encode(float value, int format) {
  std::byte bytes[8] = {};
  portable::store_run(static_cast<Format>(format), bytes, 8, 1, &value);
  uint32_t code;
  __builtin_memcpy(&code, bytes, 4);
  return code;
}

float decode(uint32_t code, int format) {
  std::byte bytes[8] = {};
  __builtin_memcpy(bytes, &code, 4);
  float value;
  portable::load_run(static_cast<Format>(format), bytes, 8, 1, &value);
  return value;
}

}  // namespace spyre::card
