// SPDX-License-Identifier: Apache-2.0
// What a copy between host and card does with each element. All numbers count elements; the innermost dim comes first.
#pragma once
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "util/sendefs/sendefs.h"

/// For each index i below size_: destination[offset_dst_ + sum(i * stride_dst_)] = source[offset_src_ + sum(i *
/// stride_src_)].
struct data_conversion_stride_info {
  std::vector<int64_t> size_, stride_src_, stride_dst_;
  int64_t offset_src_ = 0, offset_dst_ = 0;
};

struct data_conversion_info {
  std::string dci_dsName_;
  bool isHostToSen_ = false;
  DataFormats dataformat_src_ = DataFormats::INVALID, dataformat_dst_ = DataFormats::INVALID;
  std::vector<data_conversion_stride_info> dcsi_;  // the first covers whole tiles, the others what is left of them
  std::vector<int64_t> input_shape_, output_shape_;

  void exportJson(std::ostream& out) const;
};
