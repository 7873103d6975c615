// SPDX-License-Identifier: Apache-2.0
#include "combine.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace spyre::card {
namespace {

constexpr int64_t kBlock = 4096;  // elements: parts and result of a block stay in the first cache

bool is_whole(Format f) {
  return f == Format::IEEE_INT32 || f == Format::SENINT8 || f == Format::SENINT16 || f == Format::SENUINT32;
}

VOp op_of(const Arithmetic& a) {
  if (a.meaning == Meaning::booleans) {
    switch (a.combine) {
      case Combine::product:
      case Combine::min:
      case Combine::bit_and:
        return VOp::minimum;
      case Combine::bit_xor:
        return VOp::ne;
      default:
        return VOp::maximum;
    }
  }
  switch (a.combine) {
    case Combine::sum:
    case Combine::average:
      return VOp::add;
    case Combine::product:
      return VOp::mul;
    case Combine::min:
      return VOp::minimum;
    case Combine::max:
      return VOp::maximum;
    case Combine::bit_and:
      return VOp::bit_and;
    case Combine::bit_or:
      return VOp::bit_or;
    case Combine::bit_xor:
      return VOp::bit_xor;
  }
  return VOp::add;
}

View run(Format f, const std::byte* p) {
  View view;
  view.base = const_cast<std::byte*>(p);
  view.format = f;
  view.dim[0] = {0, format_bytes(f), 0};
  return view;
}

/// out = a op b.
void step(VOp op, Format f, int64_t n, std::byte* out, const View& a, const View& b) {
  Shape shape{1, {n}};
  const View in[2] = {a, b};
  vector_op(op, is_whole(f) ? Compute::i32 : Compute::f32, shape, run(f, out), in, 2);
}

/// Sums and products of narrow whole numbers wrap around, as they do in programs; a store of the vector unit saturates.
template <class T>
void wrapping_step(bool multiplies, int64_t n, std::byte* out, const std::byte* part) {
  auto* a = reinterpret_cast<T*>(out);
  const auto* b = reinterpret_cast<const T*>(part);
  for (int64_t i = 0; i < n; ++i) {
    const auto x = static_cast<uint32_t>(a[i]), y = static_cast<uint32_t>(b[i]);
    a[i] = static_cast<T>(multiplies ? x * y : x + y);
  }
}

/// block = block op part.
void add_part(const Arithmetic& a, VOp op, int64_t n, std::byte* block, const std::byte* part) {
  const bool wraps = op == VOp::add || op == VOp::mul;
  if (wraps && a.format == Format::SENINT8) return wrapping_step<int8_t>(op == VOp::mul, n, block, part);
  if (wraps && a.format == Format::SENINT16) return wrapping_step<int16_t>(op == VOp::mul, n, block, part);
  step(op, a.format, n, block, run(a.format, block), run(a.format, part));
}

View constant(Format f, int value, float& slot) {
  View view;
  view.format = is_whole(f) ? Format::IEEE_INT32 : Format::IEEE_FP32;
  if (is_whole(f))
    std::memcpy(&slot, &value, sizeof(value));
  else
    slot = static_cast<float>(value);
  view.base = reinterpret_cast<std::byte*>(&slot);
  return view;
}

}  // namespace

void check_arithmetic(const Arithmetic& a) {
  const bool bits = a.combine == Combine::bit_and || a.combine == Combine::bit_or || a.combine == Combine::bit_xor;
  if (bits && !is_whole(a.format) && a.meaning != Meaning::booleans)
    throw Error("InvalidArgument", std::string("a collective combines bits (") + name_of(a.combine) +
                                       ") of whole numbers and booleans only, not of " + format_name(a.format));
  if (a.combine == Combine::average && a.meaning == Meaning::booleans)
    throw Error("InvalidArgument", "a collective cannot average booleans; use MAX, MIN or SUM, which is their or");
}

void combine_parts(const Arithmetic& a, std::span<std::byte> out, std::span<const std::byte* const> parts) {
  const int64_t size = format_bytes(a.format), n = static_cast<int64_t>(out.size()) / size;
  const VOp op = op_of(a);
  float count_slot, mask_slot;
  const View count = constant(a.format, static_cast<int>(parts.size()), count_slot);
  const View mask = constant(a.format, 255, mask_slot);
  std::vector<std::byte> block(static_cast<size_t>(std::min(n, kBlock) * size));
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t m = std::min(kBlock, n - at);
    const auto part = [&](size_t r) { return parts[r] + at * size; };
    std::memcpy(block.data(), part(0), static_cast<size_t>(m * size));
    for (size_t r = 1; r < parts.size(); ++r) {
      add_part(a, op, m, block.data(), part(r));
      if (a.meaning == Meaning::bytes) step(VOp::bit_and, a.format, m, block.data(), run(a.format, block.data()), mask);
    }
    if (a.combine == Combine::average) step(VOp::div, a.format, m, block.data(), run(a.format, block.data()), count);
    std::memcpy(out.data() + at * size, block.data(), static_cast<size_t>(m * size));
  }
}

}  // namespace spyre::card
