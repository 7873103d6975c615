// SPDX-License-Identifier: Apache-2.0
// Tensors as collectives see them: a dtype and a shape for people, an address for the card.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "flex/flex.hpp"

namespace spyre_comms {

enum class TensorDataTypeEnum {
  dt_undef,
  boolean,
  string,
  float8,
  float16,
  float32,
  float64,
  float128,
  float256,
  decimal32,
  decimal64,
  decimal128,
  bfloat16,
  int1,
  int2,
  int4,
  int8,
  int16,
  int32,
  int64,
  uint1,
  uint2,
  uint4,
  uint8,
  uint16,
  uint32,
  uint64,
  qint1,
  qint2,
  qint4,
  qint8,
  qint16,
  qint32,
  qint64,
  quint1,
  quint2,
  quint4,
  quint8,
  quint16,
  quint32,
  quint64,
  complex64,
  complex128,
  sen_fp8,
  sen_fp16,
  sen_int1,
  sen_int2,
  sen_int4,
  sen_int8,
  sen_int16,
  sen_int24,
  sen_int32,
  sen_uint1,
  sen_uint2,
  sen_uint4,
  sen_uint8,
  sen_uint16,
  sen_uint24,
  sen_uint32,
};

class TensorShape {
 public:
  TensorShape() = default;
  TensorShape(std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {}
  const std::vector<int64_t>& sizes() const { return sizes_; }

 private:
  std::vector<int64_t> sizes_;
};

class TensorInfo {
 public:
  TensorInfo() = default;
  TensorInfo(TensorDataTypeEnum type, TensorShape shape) : type_(type), shape_(std::move(shape)) {}
  TensorDataTypeEnum type() const { return type_; }
  const TensorShape& shape() const { return shape_; }

 private:
  TensorDataTypeEnum type_ = TensorDataTypeEnum::dt_undef;
  TensorShape shape_;
};

/// What is moved is all of the device memory at the address: a shape may be the logical one or that of the padded
/// buffer, and only the memory is the same in both cases. Sums read it as SEN169_FP16.
class Tensor {
 public:
  Tensor() = default;
  Tensor(TensorInfo info) : info_(std::move(info)) {}
  /// `handle` is the caller's own; nothing reads through it.
  Tensor(TensorInfo info, void* handle) : info_(std::move(info)), handle_(handle) {}

  /// The address must live until the collective is done.
  void SetSpyreDeviceAddressBorrowed(const flex::CompositeAddress* address) { address_ = address; }

  const TensorInfo& info() const { return info_; }
  void* handle() const { return handle_; }
  const flex::CompositeAddress* address() const { return address_; }

 private:
  TensorInfo info_;
  void* handle_ = nullptr;
  const flex::CompositeAddress* address_ = nullptr;
};

}  // namespace spyre_comms
