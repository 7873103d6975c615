// SPDX-License-Identifier: Apache-2.0
// Dims of a transfer, and which of them are one.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace spyre::card {

/// Elements along a dim, and its strides on both sides.
struct TransferDim {
  int64_t size, host, device;
};

/// Joins neighbouring dims that both sides traverse as one.
inline void merge_dims(std::vector<TransferDim>& dims) {
  std::vector<TransferDim> merged;
  for (const TransferDim& d : dims) {
    int64_t host, device;
    if (!merged.empty() && !__builtin_mul_overflow(d.host, d.size, &host) && merged.back().host == host &&
        !__builtin_mul_overflow(d.device, d.size, &device) && merged.back().device == device)
      merged.back() = {merged.back().size * d.size, d.host, d.device};
    else
      merged.push_back(d);
  }
  dims = std::move(merged);
}

}  // namespace spyre::card
