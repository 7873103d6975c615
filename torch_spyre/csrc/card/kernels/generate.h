// SPDX-License-Identifier: Apache-2.0
// Kernels without inputs: iota and the random fills.
#pragma once
#include "philox.h"
#include "walk.h"
#include "wide.h"

SPYRE_ISA_BEGIN

void iota(const Shape& shape, const View& out, int64_t start, const DimMap* step) {
  const View* const views[1] = {&out};
  const int last = shape.rank - 1;
  const bool integers = is_integer(out.format);
  for_each_stretch(shape, views, [&](const int64_t* index, std::byte* const* p, const int64_t* stride, int64_t n) {
    int64_t row = start;
    for (int d = 0; d < last; ++d) row += offset_of(step[d], index[d]);
    const DimMap along = last < 0 ? DimMap{} : step[last];
    const int64_t first = last < 0 ? 0 : index[last];
    for (int64_t i = 0; i < n; i += kChunk) {
      const int64_t m = min64(kChunk, n - i);
      std::byte* q = p[0] + i * stride[0];
      alignas(64) float real[kChunk];
      for (int64_t j = 0; j < m; ++j) {
        const int64_t x = row + offset_of(along, first + i + j);
        real[j] = static_cast<float>(x);
        if (integers) write_int(out.format, q + j * stride[0], x);
      }
      if (!integers) store_run(out.format, q, stride[0], m, real);
    }
    return true;
  });
}

/// The words of n elements, numbered `step` apart from `first`: element e has word e % 4 of block e / 4. With
/// `partner`, both elements of a pair get the first word of the pair in `word` and the second in `partner`.
inline void philox_words(uint64_t first, uint64_t step, uint64_t seed, int64_t n, uint32_t* word, uint32_t* partner) {
  PhiloxBlock block = philox(first / 4, seed);
  uint64_t present = first / 4;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t e = first + static_cast<uint64_t>(i) * step;
    if (e / 4 != present) {
      present = e / 4;
      block = philox(present, seed);
    }
    word[i] = block.word[e % 4];
    if (partner) {
      word[i] = block.word[e % 4 & 2];
      partner[i] = block.word[(e % 4) | 1];
    }
  }
}

/// Box-Muller: even elements take the cosine, odd ones the sine of their pair.
inline void normals(const uint32_t* a, const uint32_t* b, uint64_t first, uint64_t step, int64_t n, float* to) {
  alignas(64) float radius[kChunk], turn[kChunk];
  for (int64_t i = 0; i < n; ++i) {
    radius[i] = static_cast<float>((a[i] >> 8) + 1) * 0x1p-24f;  // (0, 1]
    turn[i] = static_cast<float>(b[i] >> 8) * 0x1p-24f;          // [0, 1)
  }
  for (int64_t i = n; i % 8 != 0; ++i) radius[i] = turn[i] = 1.0f;
  for (int64_t i = 0; i < n; i += kWide) {
    const D r = wide_sqrt(-2.0 * wide_log(load_wide(radius + i)));
    const SinCos t = wide_sin_cos(load_wide(turn + i) * (2 * kPi));
    D y = r * t.cos, odd = r * t.sin;
    for (int l = 0; l < kWide; ++l) {
      if ((first + static_cast<uint64_t>(i + l) * step) % 2) y[l] = odd[l];
    }
    store_wide(to + i, y);
  }
}

template <bool kNormal>
void philox_fill(const Shape& shape, const View& out, uint64_t seed, uint64_t offset, const int64_t* element_stride) {
  const View* const views[1] = {&out};
  const int last = shape.rank - 1;
  int64_t number[kMaxDims], size = 1;
  for (int d = last; d >= 0; --d) {
    number[d] = element_stride ? element_stride[d] : size;
    size *= shape.extent[d];
  }
  // 10 bits in SEN169_FP16, so that no number rounds up to 1.
  const bool coarse = out.format == Format::SEN169_FP16;
  for_each_stretch(shape, views, [&](const int64_t* index, std::byte* const* p, const int64_t* stride, int64_t n) {
    uint64_t first = offset;
    for (int d = 0; d <= last; ++d) first += static_cast<uint64_t>(index[d] * number[d]);
    const uint64_t step = last < 0 ? 0 : static_cast<uint64_t>(number[last]);
    for (int64_t i = 0; i < n; i += kChunk) {
      const int64_t m = min64(kChunk, n - i);
      const uint64_t from = first + static_cast<uint64_t>(i) * step;
      uint32_t word[kChunk], partner[kChunk];
      alignas(64) float x[kChunk];
      philox_words(from, step, seed, m, word, kNormal ? partner : nullptr);
      if (kNormal) {
        normals(word, partner, from, step, m, x);
      } else {
        for (int64_t j = 0; j < m; ++j) {
          x[j] = coarse ? static_cast<float>(word[j] >> 22) * 0x1p-10f : static_cast<float>(word[j] >> 8) * 0x1p-24f;
        }
      }
      store_run(out.format, p[0] + i * stride[0], stride[0], m, x);
    }
    return true;
  });
}

void philox_uniform(const Shape& shape, const View& out, uint64_t seed, uint64_t offset,
                    const int64_t* element_stride) {
  philox_fill<false>(shape, out, seed, offset, element_stride);
}
void philox_normal(const Shape& shape, const View& out, uint64_t seed, uint64_t offset, const int64_t* element_stride) {
  philox_fill<true>(shape, out, seed, offset, element_stride);
}

SPYRE_ISA_END
