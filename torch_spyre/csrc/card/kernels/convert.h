// SPDX-License-Identifier: Apache-2.0
// Number formats in 16-lane vectors, and runs of elements to and from fp32 or int32 buffers.
//
// Enters: a pointer, a format, a byte stride. Leaves: the values. Rules: docs/number-formats.md.
#pragma once
#include "scalar_formats.h"
#include "sen169.h"
#include "small_floats.h"

SPYRE_ISA_BEGIN

constexpr int kChunk = 256;  // elements that go through a buffer at a time

/// As encode_sen169 for values that were IEEE half: a finite one must not come back infinite, so it stops at 0x5DFF.
SPYRE_INLINE I encode_sen169_from_half(F x) {
  I code = encode_sen169(x);
  I magnitude = and_(code, splat_i(0x7FFF));
  M over = eq(magnitude, splat_i(0x5E00));
  return select(over, sub(code, splat_i(1)), code);
}

SPYRE_INLINE I encode_bf16(F x) {
  I u = bits(x);
  I rounded = shr<16>(add(u, add(splat_i(0x7FFF), and_(shr<16>(u), splat_i(1)))));
  return select(unordered(x), splat_i(0x7FC0), rounded);
}

/// Bytes per element of the vector formats. Those of one byte are only loaded.
constexpr int vector_bytes(Format f) {
  if (f == Format::IEEE_FP32 || f == Format::IEEE_INT32) return 4;
  return f == Format::SEN143_FP8 || f == Format::SEN152_FP8 || f == Format::SENINT8 ? 1 : 2;
}

/// 16 elements (or the first n) of a vector format as fp32. kHost: the host rule for SEN169_FP16.
template <Format f, bool kHost = false>
SPYRE_INLINE F load_vector(const void* p, int n = 16) {
  if constexpr (f == Format::IEEE_FP32) {
    const float* q = static_cast<const float*>(p);
    return n == 16 ? load(q) : load_n(q, n);
  } else if constexpr (f == Format::IEEE_INT32) {
    const int32_t* q = static_cast<const int32_t*>(p);
    return from_int(n == 16 ? load_i(q) : load_i_n(q, n));
  } else if constexpr (f == Format::IEEE_FP16) {
    return n == 16 ? load_f16(p) : load_f16_n(p, n);
  } else if constexpr (vector_bytes(f) == 1) {
#if defined(SPYRE_KERNELS_AVX512) || defined(SPYRE_KERNELS_AVX2)
    if (f == Format::SENINT8 && n == 16) return from_int(load_signed_8(p));
#endif
    const I codes = n == 16 ? load_8(p) : load_8_n(p, n);
    if constexpr (f == Format::SEN143_FP8) return decode_small<kE4M3>(codes);
    if constexpr (f == Format::SEN152_FP8) return decode_small<kE5M2>(codes);
    if constexpr (f == Format::SENINT8) return from_int(sar<24>(shl<24>(codes)));
  } else {
    if constexpr (f == Format::SEN169_FP16) {
      if (n == 16) return load_sen169<kHost>(p);
    }
    I codes = n == 16 ? load_16(p) : load_16_n(p, n);
    if constexpr (f == Format::SEN169_FP16) return kHost ? decode_sen169_host(codes) : decode_sen169(codes);
    if constexpr (f == Format::BFLOAT16) return floats(shl<16>(codes));
  }
}

template <Format f, bool kFromHalf = false>
SPYRE_INLINE void store_vector(void* p, F x, int n = 16) {
  if constexpr (f == Format::IEEE_FP32) {
    float* q = static_cast<float*>(p);
    n == 16 ? store(q, canonical(x)) : store_n(q, canonical(x), n);
  } else if constexpr (f == Format::IEEE_INT32) {
    int32_t* q = static_cast<int32_t*>(p);
    n == 16 ? store_i(q, to_int(x)) : store_i_n(q, to_int(x), n);
  } else if constexpr (f == Format::IEEE_FP16) {
    n == 16 ? store_f16(p, canonical(x)) : store_f16_n(p, canonical(x), n);
  } else {
    if constexpr (f == Format::SEN169_FP16 && !kFromHalf) {
      if (n == 16) return store_sen169(p, x);
    }
    I code;
    if constexpr (f == Format::SEN169_FP16) code = kFromHalf ? encode_sen169_from_half(x) : encode_sen169(x);
    if constexpr (f == Format::BFLOAT16) code = encode_bf16(x);
    n == 16 ? store_16(p, code) : store_16_n(p, code, n);
  }
}

/// 32 elements.
template <Format f, bool kHost = false>
SPYRE_INLINE void load_pair(const std::byte* p, F& a, F& b) {
  if constexpr (f == Format::SEN169_FP16) {
    load_sen169<kHost>(p, a, b);
  } else if constexpr (f == Format::SEN143_FP8) {
    load_small_pair<kE4M3>(p, a, b);
  } else if constexpr (f == Format::SEN152_FP8) {
    load_small_pair<kE5M2>(p, a, b);
  } else {
    a = load_vector<f, kHost>(p);
    b = load_vector<f, kHost>(p + 16 * vector_bytes(f));
  }
}
template <Format f, bool kFromHalf = false>
SPYRE_INLINE void store_pair(std::byte* p, F a, F b) {
  if constexpr (f == Format::SEN169_FP16 && !kFromHalf) {
    store_sen169(p, a, b);
  } else {
    store_vector<f, kFromHalf>(p, a);
    store_vector<f, kFromHalf>(p + 16 * vector_bytes(f), b);
  }
}

template <class T>
SPYRE_INLINE void gather_elements(void* to, const std::byte* p, int64_t stride, int64_t n) {
  for (int64_t i = 0; i < n; ++i) __builtin_memcpy(static_cast<T*>(to) + i, p + i * stride, sizeof(T));
}
template <class T>
SPYRE_INLINE void scatter_elements(std::byte* p, int64_t stride, const void* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) __builtin_memcpy(p + i * stride, static_cast<const T*>(from) + i, sizeof(T));
}

template <Format f, bool kHost = false>
void load_run_vector(const std::byte* p, int64_t stride, int64_t n, float* to) {
  constexpr int kBytes = vector_bytes(f);
  if (stride == kBytes) {
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
      F a, b;
      load_pair<f, kHost>(p + i * kBytes, a, b);
      store(to + i, a);
      store(to + i + 16, b);
    }
    for (; i + 16 <= n; i += 16) store(to + i, load_vector<f, kHost>(p + i * kBytes));
    if (i < n) store_n(to + i, load_vector<f, kHost>(p + i * kBytes, static_cast<int>(n - i)), static_cast<int>(n - i));
    return;
  }
  int32_t raw[16] = {};
  for (int64_t i = 0; i < n; i += 16) {
    int m = static_cast<int>(min64(16, n - i));
    if (kBytes == 4) gather_elements<int32_t>(raw, p + i * stride, stride, m);
    if (kBytes == 2) gather_elements<int16_t>(raw, p + i * stride, stride, m);
    if (kBytes == 1) gather_elements<int8_t>(raw, p + i * stride, stride, m);
    store_n(to + i, load_vector<f, kHost>(raw), m);
  }
}

template <Format f, bool kFromHalf = false>
void store_run_vector(std::byte* p, int64_t stride, int64_t n, const float* from) {
  constexpr int kBytes = vector_bytes(f);
  if (stride == kBytes) {
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) store_pair<f, kFromHalf>(p + i * kBytes, load(from + i), load(from + i + 16));
    for (; i + 16 <= n; i += 16) store_vector<f, kFromHalf>(p + i * kBytes, load(from + i));
    if (i < n) {
      int m = static_cast<int>(n - i);
      store_vector<f, kFromHalf>(p + i * kBytes, load_n(from + i, m), m);
    }
    return;
  }
  int32_t raw[16];
  for (int64_t i = 0; i < n; i += 16) {
    int m = static_cast<int>(min64(16, n - i));
    store_vector<f, kFromHalf>(raw, load_n(from + i, m));
    if (kBytes == 4) scatter_elements<int32_t>(p + i * stride, stride, raw, m);
    if (kBytes == 2) scatter_elements<int16_t>(p + i * stride, stride, raw, m);
  }
}

/// n elements of any format, `stride` bytes apart, as fp32.
inline void load_run(Format f, const std::byte* p, int64_t stride, int64_t n, float* to) {
  switch (f) {
    case Format::SEN169_FP16:
      return load_run_vector<Format::SEN169_FP16>(p, stride, n, to);
    case Format::IEEE_FP32:
      return load_run_vector<Format::IEEE_FP32>(p, stride, n, to);
    case Format::IEEE_FP16:
      return load_run_vector<Format::IEEE_FP16>(p, stride, n, to);
    case Format::BFLOAT16:
      return load_run_vector<Format::BFLOAT16>(p, stride, n, to);
    case Format::IEEE_INT32:
      return load_run_vector<Format::IEEE_INT32>(p, stride, n, to);
    case Format::SEN143_FP8:
      return load_run_vector<Format::SEN143_FP8>(p, stride, n, to);
    case Format::SEN152_FP8:
      return load_run_vector<Format::SEN152_FP8>(p, stride, n, to);
    case Format::SENINT8:
      return load_run_vector<Format::SENINT8>(p, stride, n, to);
    default:
      for (int64_t i = 0; i < n; ++i) to[i] = read_float(f, p + i * stride);
  }
}

inline void store_run(Format f, std::byte* p, int64_t stride, int64_t n, const float* from) {
  switch (f) {
    case Format::SEN169_FP16:
      return store_run_vector<Format::SEN169_FP16>(p, stride, n, from);
    case Format::IEEE_FP32:
      return store_run_vector<Format::IEEE_FP32>(p, stride, n, from);
    case Format::IEEE_FP16:
      return store_run_vector<Format::IEEE_FP16>(p, stride, n, from);
    case Format::BFLOAT16:
      return store_run_vector<Format::BFLOAT16>(p, stride, n, from);
    case Format::IEEE_INT32:
      return store_run_vector<Format::IEEE_INT32>(p, stride, n, from);
    default:
      for (int64_t i = 0; i < n; ++i) write_float(f, p + i * stride, from[i]);
  }
}

/// The same through int32 (integer arithmetic): floats truncate and saturate, wide integers saturate.
inline void load_run_int(Format f, const std::byte* p, int64_t stride, int64_t n, int32_t* to) {
  if (f == Format::IEEE_INT32 && stride == 4) {
    __builtin_memcpy(to, p, static_cast<size_t>(n) * 4);
    return;
  }
  if (is_integer(f)) {
    for (int64_t i = 0; i < n; ++i) {
      to[i] = static_cast<int32_t>(clamp64(read_int(f, p + i * stride), INT32_MIN, INT32_MAX));
    }
    return;
  }
  alignas(64) float t[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t m = min64(kChunk, n - i);
    load_run(f, p + i * stride, stride, m, t);
    for (int64_t j = 0; j < m; j += 16) {
      const int lanes = static_cast<int>(min64(16, m - j));
      const I x = to_int(load_n(t + j, lanes));
      lanes == 16 ? store_i(to + i + j, x) : store_i_n(to + i + j, x, lanes);
    }
  }
}

inline void store_run_int(Format f, std::byte* p, int64_t stride, int64_t n, const int32_t* from) {
  if (f == Format::IEEE_INT32 && stride == 4) {
    __builtin_memcpy(p, from, static_cast<size_t>(n) * 4);
    return;
  }
  if (is_integer(f)) {
    for (int64_t i = 0; i < n; ++i) write_int(f, p + i * stride, from[i]);
    return;
  }
  alignas(64) float t[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t m = min64(kChunk, n - i);
    for (int64_t j = 0; j < m; j += 16) {
      const int lanes = static_cast<int>(min64(16, m - j));
      store(t + j, from_int(lanes == 16 ? load_i(from + i + j) : load_i_n(from + i + j, lanes)));
    }
    store_run(f, p + i * stride, stride, m, t);
  }
}

SPYRE_ISA_END
