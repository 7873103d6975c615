// SPDX-License-Identifier: Apache-2.0
// Element by element conversions of the formats that need no speed: fp8, small integers, int64, bool.
#pragma once
#include "isa.h"

SPYRE_ISA_BEGIN

SPYRE_INLINE float float_of(uint32_t u) {
  float x;
  __builtin_memcpy(&x, &u, 4);
  return x;
}
SPYRE_INLINE uint32_t bits_of(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  return u;
}

/// An 8-bit float with gradual underflow, no infinity, saturating, round to nearest even.
struct SmallFloat {
  int mantissa_bits, bias;
  uint32_t largest, nan;
  bool negative_zero;
};
constexpr SmallFloat kE4M3{3, 7, 0x7E, 0x7F, true};    // SEN143_FP8: as float8_e4m3fn, largest 448
constexpr SmallFloat kE5M2{2, 16, 0x7F, 0x80, false};  // SEN152_FP8: as float8_e5m2fnuz, largest 57344

inline float small_decode(const SmallFloat& f, uint32_t code) {
  if (code == f.nan || (f.negative_zero && (code & 0x7F) == f.nan)) return float_of(0x7FC00000u);
  uint32_t magnitude = code & 0x7F, sign = (code & 0x80u) << 24;
  uint32_t exponent = magnitude >> f.mantissa_bits;
  float x;
  if (exponent == 0) {
    x = static_cast<float>(magnitude) * float_of(static_cast<uint32_t>(127 + 1 - f.bias - f.mantissa_bits) << 23);
  } else {
    x = float_of((magnitude << (23 - f.mantissa_bits)) + (static_cast<uint32_t>(127 - f.bias) << 23));
  }
  return float_of(bits_of(x) | sign);
}

inline uint32_t small_encode(const SmallFloat& f, float x) {
  uint32_t u = bits_of(x), sign = (u >> 24) & 0x80u, m = u & 0x7FFFFFFFu;
  if (m > 0x7F800000u) return f.nan;
  uint32_t code;
  if (m < static_cast<uint32_t>(128 - f.bias) << 23) {
    // Below the smallest normal: scale the unit in the last place to 1, round by adding 2^23.
    float scaled = float_of(m) * float_of(static_cast<uint32_t>(127 + f.bias - 1 + f.mantissa_bits) << 23);
    code = bits_of(scaled + 8388608.0f) & 0x7FFFFFu;
  } else {
    int shift = 23 - f.mantissa_bits;
    uint32_t rounded = m + (1u << (shift - 1)) - 1u + ((m >> shift) & 1u);
    code = (rounded >> shift) - (static_cast<uint32_t>(127 - f.bias) << f.mantissa_bits);
    if (code > f.largest) code = f.largest;
  }
  return code == 0 && !f.negative_zero ? 0 : code | sign;
}

/// Truncates toward zero and saturates to [low, high]; NaN -> 0. The bounds are exact in double.
SPYRE_INLINE int64_t saturate(float x, double low, double high) {
  double d = static_cast<double>(x);
  if (!(d == d)) return 0;
  return d <= low ? static_cast<int64_t>(low) : d >= high ? static_cast<int64_t>(high) : static_cast<int64_t>(d);
}
inline int64_t to_int64(float x) {
  return x >= 0x1p63f ? INT64_MAX : saturate(x, -0x1p63, 0x1p62 * 1.9999998807907104);
}
SPYRE_INLINE int64_t clamp64(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

template <class T>
SPYRE_INLINE T read_as(const std::byte* p) {
  T x;
  __builtin_memcpy(&x, p, sizeof(T));
  return x;
}
template <class T>
SPYRE_INLINE void write_as(std::byte* p, T x) {
  __builtin_memcpy(p, &x, sizeof(T));
}

/// One element of a slow format as fp32.
inline float read_float(Format f, const std::byte* p) {
  switch (f) {
    case Format::SEN143_FP8:
      return small_decode(kE4M3, read_as<uint8_t>(p));
    case Format::SEN152_FP8:
      return small_decode(kE5M2, read_as<uint8_t>(p));
    case Format::SENINT8:
      return static_cast<float>(read_as<int8_t>(p));
    case Format::SENINT16:
      return static_cast<float>(read_as<int16_t>(p));
    case Format::SENUINT32:
      return static_cast<float>(read_as<uint32_t>(p));
    case Format::IEEE_INT64:
      return static_cast<float>(read_as<int64_t>(p));
    case Format::BOOL:
      return read_as<uint8_t>(p) ? 1.0f : 0.0f;
    default:
      return 0.0f;
  }
}

inline void write_float(Format f, std::byte* p, float x) {
  switch (f) {
    case Format::SEN143_FP8:
      write_as(p, static_cast<uint8_t>(small_encode(kE4M3, x)));
      break;
    case Format::SEN152_FP8:
      write_as(p, static_cast<uint8_t>(small_encode(kE5M2, x)));
      break;
    case Format::SENINT8:
      write_as(p, static_cast<int8_t>(saturate(x, -128.0, 127.0)));
      break;
    case Format::SENINT16:
      write_as(p, static_cast<int16_t>(saturate(x, -32768.0, 32767.0)));
      break;
    case Format::SENUINT32:
      write_as(p, static_cast<uint32_t>(saturate(x, 0.0, 4294967295.0)));
      break;
    case Format::IEEE_INT64:
      write_as(p, to_int64(x));
      break;
    case Format::BOOL:
      write_as(p, static_cast<uint8_t>(x == 0.0f ? 0 : 1));
      break;
    default:
      break;
  }
}

constexpr bool is_integer(Format f) {
  return f == Format::SENINT8 || f == Format::SENINT16 || f == Format::SENUINT32 || f == Format::IEEE_INT64 ||
         f == Format::IEEE_INT32 || f == Format::BOOL;
}

inline int64_t read_int(Format f, const std::byte* p) {
  switch (f) {
    case Format::SENINT8:
      return read_as<int8_t>(p);
    case Format::SENINT16:
      return read_as<int16_t>(p);
    case Format::SENUINT32:
      return read_as<uint32_t>(p);
    case Format::IEEE_INT32:
      return read_as<int32_t>(p);
    case Format::IEEE_INT64:
      return read_as<int64_t>(p);
    case Format::BOOL:
      return read_as<uint8_t>(p) ? 1 : 0;
    default:
      return 0;
  }
}

inline void write_int(Format f, std::byte* p, int64_t x) {
  switch (f) {
    case Format::SENINT8:
      write_as(p, static_cast<int8_t>(clamp64(x, -128, 127)));
      break;
    case Format::SENINT16:
      write_as(p, static_cast<int16_t>(clamp64(x, -32768, 32767)));
      break;
    case Format::SENUINT32:
      write_as(p, static_cast<uint32_t>(clamp64(x, 0, UINT32_MAX)));
      break;
    case Format::IEEE_INT32:
      write_as(p, static_cast<int32_t>(clamp64(x, INT32_MIN, INT32_MAX)));
      break;
    case Format::IEEE_INT64:
      write_as(p, x);
      break;
    case Format::BOOL:
      write_as(p, static_cast<uint8_t>(x ? 1 : 0));
      break;
    default:
      break;
  }
}

SPYRE_ISA_END
