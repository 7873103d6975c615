// SPDX-License-Identifier: Apache-2.0
// Transposes of small tiles, the heart of restickify: in rows are contiguous along one dim, out rows along the other.
#pragma once
#include "isa.h"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

SPYRE_ISA_BEGIN

/// out[j][i] = in[i][j] for i < rows, j < columns; strides in bytes from row to row of each side.
template <class T>
void transpose_scalar(std::byte* out, int64_t out_stride, const std::byte* in, int64_t in_stride, int64_t rows,
                      int64_t columns) {
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = 0; i < rows; ++i) {
      __builtin_memcpy(out + j * out_stride + i * static_cast<int64_t>(sizeof(T)),
                       in + i * in_stride + j * static_cast<int64_t>(sizeof(T)), sizeof(T));
    }
  }
}

#if defined(__SSE2__)
SPYRE_INLINE __m128i load_128(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
SPYRE_INLINE void store_128(std::byte* p, __m128i x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x); }

SPYRE_INLINE void transpose_8x8_16bit(std::byte* out, int64_t out_stride, const std::byte* in, int64_t in_stride) {
  __m128i r[8], s[8];
  SPYRE_UNROLL
  for (int i = 0; i < 8; ++i) r[i] = load_128(in + i * in_stride);
  SPYRE_UNROLL
  for (int i = 0; i < 4; ++i) {
    s[2 * i] = _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    s[2 * i + 1] = _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
  SPYRE_UNROLL
  for (int h = 0; h < 2; ++h) {  // columns 4h .. 4h+3
    __m128i a = _mm_unpacklo_epi32(s[h], s[2 + h]), b = _mm_unpackhi_epi32(s[h], s[2 + h]);
    __m128i c = _mm_unpacklo_epi32(s[4 + h], s[6 + h]), d = _mm_unpackhi_epi32(s[4 + h], s[6 + h]);
    store_128(out + (4 * h + 0) * out_stride, _mm_unpacklo_epi64(a, c));
    store_128(out + (4 * h + 1) * out_stride, _mm_unpackhi_epi64(a, c));
    store_128(out + (4 * h + 2) * out_stride, _mm_unpacklo_epi64(b, d));
    store_128(out + (4 * h + 3) * out_stride, _mm_unpackhi_epi64(b, d));
  }
}

SPYRE_INLINE void transpose_4x4_32bit(std::byte* out, int64_t out_stride, const std::byte* in, int64_t in_stride) {
  __m128i a = load_128(in), b = load_128(in + in_stride), c = load_128(in + 2 * in_stride);
  __m128i d = load_128(in + 3 * in_stride);
  __m128i e = _mm_unpacklo_epi32(a, b), f = _mm_unpackhi_epi32(a, b);
  __m128i g = _mm_unpacklo_epi32(c, d), h = _mm_unpackhi_epi32(c, d);
  store_128(out, _mm_unpacklo_epi64(e, g));
  store_128(out + out_stride, _mm_unpackhi_epi64(e, g));
  store_128(out + 2 * out_stride, _mm_unpacklo_epi64(f, h));
  store_128(out + 3 * out_stride, _mm_unpackhi_epi64(f, h));
}
#endif

/// kStep x kStep register blocks, scalar at the edges.
template <class T, int kStep, class Block>
SPYRE_INLINE void transpose_blocks(std::byte* out, int64_t out_stride, const std::byte* in, int64_t in_stride,
                                   int64_t rows, int64_t columns, Block block) {
  constexpr int64_t kBytes = sizeof(T);
  const int64_t r = rows / kStep * kStep, c = columns / kStep * kStep;
  for (int64_t j = 0; j < c; j += kStep) {
    for (int64_t i = 0; i < r; i += kStep) {
      block(out + j * out_stride + i * kBytes, out_stride, in + i * in_stride + j * kBytes, in_stride);
    }
  }
  if (c < columns) transpose_scalar<T>(out + c * out_stride, out_stride, in + c * kBytes, in_stride, rows, columns - c);
  if (r < rows) transpose_scalar<T>(out + r * kBytes, out_stride, in + r * in_stride, in_stride, rows - r, c);
}

inline void transpose(int bytes, std::byte* out, int64_t out_stride, const std::byte* in, int64_t in_stride,
                      int64_t rows, int64_t columns) {
  switch (bytes) {
    case 1:
      return transpose_scalar<uint8_t>(out, out_stride, in, in_stride, rows, columns);
    case 8:
      return transpose_scalar<uint64_t>(out, out_stride, in, in_stride, rows, columns);
#if defined(__SSE2__)
    case 2:
      return transpose_blocks<uint16_t, 8>(out, out_stride, in, in_stride, rows, columns, transpose_8x8_16bit);
    default:
      return transpose_blocks<uint32_t, 4>(out, out_stride, in, in_stride, rows, columns, transpose_4x4_32bit);
#else
    case 2:
      return transpose_scalar<uint16_t>(out, out_stride, in, in_stride, rows, columns);
    default:
      return transpose_scalar<uint32_t>(out, out_stride, in, in_stride, rows, columns);
#endif
  }
}

SPYRE_ISA_END
