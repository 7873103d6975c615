// SPDX-License-Identifier: Apache-2.0
// What a ComputeOnHost command computes. The format is private to this SDK's compiler and this library: one entry of
// `vdci` says how many addresses a launch passes.
//
//     {"vdci": {"arguments": {"count": "3"}}, "senConstants": []}
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

class Hcm {
 public:
  /// Throws a std::exception if the text is no hcm; what was imported before stays then.
  void importJsonStr(const std::string& text);

  /// Entries of `vdci`: the number of addresses of each.
  const std::vector<uint64_t>& conversions() const { return conversions_; }
  /// Written behind the addresses.
  const std::vector<int64_t>& constants() const { return constants_; }

 private:
  std::vector<uint64_t> conversions_;
  std::vector<int64_t> constants_;
};
