// SPDX-License-Identifier: Apache-2.0
#include <ostream>

#include "spyrecode-host-functions/sendataconvert/sen_host_ops.h"
#include "util/sendefs/sendefs.h"

namespace {

struct Row {
  DataFormats format;
  const char* name;
  int64_t elements;
};

// The same table as the card's, name by name: a format that only one of the two knows does not compile.
constexpr Row kRows[] = {
#define FORMAT(code, name, bytes, elements) {DataFormats::name, #name, elements},
#include "spyre/formats.def"
#undef FORMAT
};
#define FORMAT(code, name, bytes, elements) static_assert(static_cast<int>(DataFormats::name) == code);
#include "spyre/formats.def"
#undef FORMAT

void numbers(std::ostream& out, const char* name, const std::vector<int64_t>& values) {
  out << '"' << name << "\": [";
  for (size_t i = 0; i < values.size(); ++i) out << (i ? ", " : "") << values[i];
  out << ']';
}

}  // namespace

StickSizeTable::StickSizeTable() {
  for (const Row& row : kRows) (*this)[row.format] = row.elements;
}

StickSizeTable dataFormatToStickSize;

std::string EnumsConversion::dataFormatsToString(DataFormats format) {
  for (const Row& row : kRows)
    if (row.format == format) return row.name;
  return "INVALID";
}

void data_conversion_info::exportJson(std::ostream& out) const {
  out << "{\"dci_dsName_\": \"";
  for (char c : dci_dsName_) {
    if (c == '"' || c == '\\') out << '\\';
    out << (static_cast<unsigned char>(c) < 0x20 ? '?' : c);
  }
  out << "\", \"isHostToSen_\": " << (isHostToSen_ ? "true" : "false") << ", \"dataformat_src_\": \""
      << EnumsConversion::dataFormatsToString(dataformat_src_) << "\", \"dataformat_dst_\": \""
      << EnumsConversion::dataFormatsToString(dataformat_dst_) << "\", ";
  numbers(out, "input_shape_", input_shape_);
  out << ", ";
  numbers(out, "output_shape_", output_shape_);
  out << ", \"dcsi_\": [";
  for (size_t i = 0; i < dcsi_.size(); ++i) {
    out << (i ? ", {" : "{");
    numbers(out, "size_", dcsi_[i].size_);
    out << ", ";
    numbers(out, "stride_src_", dcsi_[i].stride_src_);
    out << ", ";
    numbers(out, "stride_dst_", dcsi_[i].stride_dst_);
    out << ", \"offset_src_\": " << dcsi_[i].offset_src_ << ", \"offset_dst_\": " << dcsi_[i].offset_dst_ << '}';
  }
  out << "]}\n";
}
