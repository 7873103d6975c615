// SPDX-License-Identifier: Apache-2.0
// Number formats by name, and the way DeepTools code reports an error.
#pragma once
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

/// The numbers are a choice: they are the codes that the software card uses.
enum class DataFormats : int {
  SEN169_FP16 = 0,
  IEEE_FP32 = 1,
  INVALID = 2,
  SEN143_FP8 = 3,
  SEN152_FP8 = 4,
  SEN153_FP9 = 5,
  SENINT2 = 6,
  SENINT4 = 7,
  SENINT8 = 8,
  SENINT16 = 9,
  SENINT24 = 10,
  IEEE_INT64 = 11,
  IEEE_INT32 = 12,
  SENUINT32 = 13,
  SENUINT2 = 14,
  IEEE_FP16 = 15,
  BOOL = 16,
  BFLOAT16 = 17,
  SEN18F_FP24 = 18,
};

/// Elements per 128-byte stick, 0 for formats that card memory does not hold. Looks like a map; a table of fixed size
/// behind it may be read by several threads, which a map that inserts what it lacks may not.
class StickSizeTable {
 public:
  StickSizeTable();
  int64_t& operator[](DataFormats format) {
    const size_t code = static_cast<size_t>(format);
    return elements_[code < kFormats ? code : static_cast<size_t>(DataFormats::INVALID)];
  }
  int64_t at(DataFormats format) const { return const_cast<StickSizeTable&>(*this)[format]; }

 private:
  static constexpr size_t kFormats = 19;
  int64_t elements_[kFormats];
};
extern StickSizeTable dataFormatToStickSize;

struct EnumsConversion {
  /// The name of the enumerator; INVALID for a number that is none.
  static std::string dataFormatsToString(DataFormats format);
};

namespace sendefs {
[[noreturn]] inline void fail(const std::string& text) { throw std::runtime_error(text); }
}  // namespace sendefs

/// Throws a std::runtime_error. `text` may be anything that a stream takes.
#define DT_ERROR(text)                \
  do {                                \
    std::ostringstream dt_error_;     \
    dt_error_ << text;                \
    ::sendefs::fail(dt_error_.str()); \
  } while (false)
