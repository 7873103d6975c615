// SPDX-License-Identifier: Apache-2.0
// The storage record: what the device knows about one allocation.
//
// It is the context of the storage's DataPtr, so every view, alias and detached tensor finds it. The data pointer
// itself is a token (not a canonical address): host code that dereferences it faults instead of reading something else.
#pragma once
#include <ATen/core/TensorBase.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include <vector>

#include "layout.h"
#include "spyre/card.h"

namespace spyre {

struct StorageRecord {
  c10::DeviceIndex device = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;  // on the card, whole sticks; 0 for an empty storage
  /// Null for a storage that was made without a tensor (torch.load, UntypedStorage): it holds plain host bytes until
  /// the first typed tensor on it is used.
  LayoutPtr layout = nullptr;
  c10::ScalarType host_dtype = c10::ScalarType::Byte;
  /// Host shape the bytes were laid out with: no two of its elements share an address.
  std::vector<int64_t> dma_sizes, dma_strides;
  int64_t span = 0;   // host elements from its first to its last one
  bool dense = true;  // all of them are on the card; false: its rows lie apart, and what is between them is nowhere

  void set_host_shape(c10::IntArrayRef size, c10::IntArrayRef stride);
  card::Buffer buffer() const { return {address, bytes}; }
};

c10::Allocator* allocator();
c10::DeviceAllocator* device_allocator();

/// A DataPtr with its record; `layout` null makes plain bytes.
c10::DataPtr allocate(c10::DeviceIndex device, uint64_t bytes, LayoutPtr layout, c10::ScalarType dtype,
                      c10::IntArrayRef size, c10::IntArrayRef stride);

/// The record behind a DataPtr of this device.
StorageRecord& record_of(const c10::DataPtr& ptr);
/// The record of a spyre tensor, as it is: plain bytes stay plain bytes.
StorageRecord& raw_record_of(const at::TensorBase& tensor);
/// The record of a spyre tensor that is about to be used as a tensor: plain bytes get a layout, a storage whose rows
/// lie apart is laid out flat if the tensor reaches between them. A dtype that would reinterpret encoded bits raises,
/// and so does a tensor that reaches beyond the storage.
StorageRecord& record_of(const at::TensorBase& tensor);

/// Raises, as PyTorch does, unless a tensor of this shape lies inside the storage.
void check_inside(const c10::Storage& storage, c10::ScalarType dtype, c10::IntArrayRef size, c10::IntArrayRef stride,
                  int64_t offset);
/// Grows a storage that ends before a tensor of this shape, as PyTorch does; its host bytes are kept.
void grow_for(const c10::Storage& storage, c10::ScalarType dtype, c10::IntArrayRef size, c10::IntArrayRef stride,
              int64_t offset);

/// Bytes that untyped_storage().nbytes() shows: room for the host bytes even where the card needs fewer.
size_t storage_nbytes(LayoutPtr layout, c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType dtype);

/// A fresh tensor. The layout must fit the size, stride and dtype.
at::Tensor make_tensor(c10::DeviceIndex device, c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType dtype,
                       LayoutPtr layout);
/// A tensor that shares `base`'s storage.
at::Tensor make_view(const at::TensorBase& base, c10::IntArrayRef size, c10::IntArrayRef stride, int64_t offset);

/// Whole storage as host bytes in host order (a CPU uint8 tensor of storage nbytes), and back.
at::Tensor read_host_bytes(const c10::Storage& storage);
void write_host_bytes(const c10::Storage& storage, const at::Tensor& bytes);
/// Makes `target`, a storage of plain bytes, the same as `source`: layout and card bytes. They may be on two cards.
void clone_storage(const c10::Storage& source, const c10::Storage& target);
/// Gives the storage another layout (null: plain bytes), size and dtype, keeping the host bytes it holds.
void relayout_storage(const c10::Storage& storage, LayoutPtr layout, c10::ScalarType dtype, c10::IntArrayRef size,
                      c10::IntArrayRef stride, size_t nbytes);

}  // namespace spyre
