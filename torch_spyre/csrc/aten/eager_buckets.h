// SPDX-License-Identifier: Apache-2.0
// Programs of eager ops that serve a bucket of sizes: one size of the call, n, varies, and all that depends on it
// (other sizes, strides, layouts, launch scalars) is a polynomial in n.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "launch.h"
#include "storage.h"

namespace spyre {

/// c0 + c1 n + c2 n² + …, modulo 2⁶⁴: sizes that wrap are no size of a tensor, and no tensor matches them.
struct Polynomial {
  c10::SmallVector<int64_t, 3> coefficients;
  int64_t operator()(int64_t n) const {
    uint64_t value = 0;
    for (size_t i = coefficients.size(); i-- > 0;)
      value = value * static_cast<uint64_t>(n) + static_cast<uint64_t>(coefficients[i]);
    return static_cast<int64_t>(value);
  }
};
using Polynomials = std::vector<Polynomial>;

/// A storage layout whose strides depend on n; its extents hold the largest n of the bucket.
struct RoomyLayout {
  std::vector<int64_t> device_size;
  Polynomials stride_map;
  DataFormats format = DataFormats::INVALID;

  LayoutPtr at(int64_t n) const;
  /// Is `layout` this one for `n`? Dims of extent 1 may have any stride.
  bool is(const SpyreTensorLayout& layout, int64_t n) const;
  /// Is it the same with shorter extents, so that its sticks can be copied to where they have room?
  bool has_room_for(const SpyreTensorLayout& layout, int64_t n) const;
};

/// A tensor that is stored with too little room for the program.
struct Move {
  int tensor;
  LayoutPtr layout;
  bool in_place;  // the program writes the tensor: its storage gets the room, else a copy of it
};

/// A launch scalar: a quotient of polynomials in n.
struct Ratio {
  Polynomial above, below;
};

/// What a tensor of the call must be like.
struct BucketTensor {
  bool on_card = false;  // false: a number
  Polynomials size, stride;
  int64_t offset = 0;
  bool used = false, written = false;
  LayoutPtr fixed = nullptr;  // the layout of a tensor that does not vary; null: `roomy`
  RoomyLayout roomy;
};

struct BucketResult {
  Polynomials size, stride;
  c10::ScalarType dtype = c10::ScalarType::Half;
  RoomyLayout layout;
};

/// A program for all n from `low` to `high`.
struct BucketPlan {
  LaunchPlan launch;  // without its outputs
  std::vector<int> inputs;
  std::vector<Binding> outputs;
  int tensor = 0, dim = 0;  // where n is read
  int64_t low = 0, high = 0;
  std::vector<BucketTensor> tensors;
  std::vector<BucketResult> results;
  std::vector<Ratio> numbers;

  /// Raises InvalidArgument unless n is read from one of the tensors.
  void check() const;
  /// n, and what has to be moved first; nothing if the program does not serve these tensors (null: a number).
  std::optional<int64_t> matches(std::span<const at::Tensor* const> tensors, std::vector<Move>& moves) const;
  /// The launch for one n.
  std::shared_ptr<const LaunchPlan> launch_for(int64_t n) const;
  std::vector<Operand> numbers_for(int64_t n) const;
};

/// The tensor, or a copy of it, on a storage laid out by `move.layout`.
at::Tensor with_room(const at::Tensor& tensor, const Move& move);

}  // namespace spyre
