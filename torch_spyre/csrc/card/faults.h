// SPDX-License-Identifier: Apache-2.0
// Faults on demand, so that tests can see what a failure leaves behind.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

#include "spyre/card.h"

namespace spyre::card {

class Faults {
 public:
  /// The n-th next `strike` for this fault returns true. 0 disarms it.
  void arm(Fault fault, int64_t nth) {
    if (nth < 0) throw Error("InvalidArgument", "inject_fault: nth counts from 1, got " + std::to_string(nth));
    left_[static_cast<int>(fault)] = nth;
  }
  bool strike(Fault fault) {
    auto& left = left_[static_cast<int>(fault)];
    return left.load(std::memory_order_relaxed) > 0 && left.fetch_sub(1) == 1;
  }
  void disarm() {
    for (auto& left : left_) left = 0;
  }

 private:
  std::array<std::atomic<int64_t>, 4> left_{};
};

}  // namespace spyre::card
