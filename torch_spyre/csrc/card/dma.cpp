// SPDX-License-Identifier: Apache-2.0
#include "dma.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "access.h"
#include "dma_dims.h"
#include "team.h"

namespace spyre::card {
namespace {

constexpr uint64_t kSharedBytes = 256u << 10;  // from here helper threads pay
constexpr uint64_t kMaxVisits = 1ull << 32;

[[noreturn]] void bad(const std::string& message) { throw Error("InvalidArgument", "DMA: " + message); }

using ViewDim = TransferDim;  // strides of the host tensor and of the device storage's host view

using DeviceDim = LayoutMap::DeviceDim;

void check_tensors(const HostTensor& host, const DeviceTensor& device) {
  size_t rank = host.size.size();
  if (host.stride.size() != rank || device.host_stride.size() != rank)
    bad("size, host strides and device strides have ranks " + std::to_string(rank) + ", " +
        std::to_string(host.stride.size()) + ", " + std::to_string(device.host_stride.size()));
  if (host.format < 0 || host.format > 255 || format_bytes(static_cast<Format>(host.format)) == 0)
    bad("host format " + std::to_string(host.format) + " cannot be stored");
  if (device.format < 0 || device.format > 255 || format_bytes(static_cast<Format>(device.format)) == 0 ||
      format_elems_per_stick(static_cast<Format>(device.format)) == 0)
    bad("device format " + std::to_string(device.format) + " is not stored by this card");
  if (device.device_size.size() != device.stride_map.size()) bad("device_size and stride_map differ in rank");
  if (device.address % kStickBytes)
    bad("device address " + std::to_string(device.address) + " is not 128-byte aligned");
  for (int64_t n : host.size)
    if (n < 0) bad("negative size " + std::to_string(n));
  if (device.host_offset < 0) bad("negative host offset " + std::to_string(device.host_offset));
}

/// Device dims that hold data, in descending order of host stride, and those that replicate it.
struct StorageDims {
  std::vector<DeviceDim> data, replicas;
  uint64_t bytes = 0;
};

StorageDims storage_dims(const DeviceTensor& t) {
  StorageDims dims;
  int64_t reach = 0, step;
  int64_t byte_stride = format_bytes(static_cast<Format>(t.format));
  for (size_t d = t.device_size.size(); d-- > 0;) {
    int64_t extent = t.device_size[d], host_stride = t.stride_map[d];
    if (extent < 1) bad("device_size holds " + std::to_string(extent));
    if (host_stride < -1) bad("stride_map holds " + std::to_string(host_stride));
    if (__builtin_mul_overflow(extent - 1, std::max<int64_t>(host_stride, 0), &step) ||
        __builtin_add_overflow(reach, step, &reach))
      bad("stride_map reaches more than 2^63 host elements");
    if (extent > 1 && host_stride >= 0)
      (host_stride ? dims.data : dims.replicas).push_back({host_stride, extent, byte_stride});
    if (__builtin_mul_overflow(byte_stride, extent, &byte_stride) || static_cast<uint64_t>(byte_stride) > kSegmentBytes)
      bad("the device storage exceeds a 16 GiB segment");
  }
  dims.bytes = static_cast<uint64_t>(byte_stride);
  std::stable_sort(dims.data.begin(), dims.data.end(), [](auto& a, auto& b) { return a.host_stride > b.host_stride; });
  if (dims.data.size() > kMaxDims)
    bad("the layout has " + std::to_string(dims.data.size()) + " device dims; 8 are possible");
  return dims;
}

/// Expresses the device side as one DimMap per dim, which copies faster than a layout. Works when each dim of the view
/// runs along one device dim, or along the lanes and sticks of one stick dim from a stick boundary on.
class DimMapBuilder {
 public:
  DimMapBuilder(const std::vector<DeviceDim>& data, int64_t offset)
      : data_(data), last_(data.size()), reach_(data.size()), owners_(data.size()) {
    for (size_t j = 0; j < data_.size() && ok_; ++j) {
      last_[j] = offset / data_[j].host_stride;
      reach_[j] = last_[j] * data_[j].host_stride;
      offset -= reach_[j];
      ok_ = last_[j] < data_[j].extent;  // or there is no such element, and the sum below may overflow
      if (ok_) base_ += last_[j] * data_[j].byte_stride;
    }
    ok_ = ok_ && offset == 0;
  }

  bool add(const ViewDim& dim, DimMap& map) {
    if (!ok_ || dim.device < 0) return false;
    if (dim.device == 0) return true;
    size_t lane = 0;
    while (lane < data_.size() && data_[lane].host_stride != dim.device) ++lane;
    if (lane == data_.size()) return false;
    ++owners_[lane];
    if (dim.size <= data_[lane].extent - last_[lane]) {
      last_[lane] += dim.size - 1;
      reach_[lane] += (dim.size - 1) * dim.device;
      map.inner = data_[lane].byte_stride;
      return true;
    }
    return add_stick_dim(dim, lane, map);
  }

  /// Each device dim serves one dim of the view, and no carry from finer to coarser device dims occurs in the box.
  bool finish() const {
    int64_t residual = 0;
    for (size_t j = data_.size(); j-- > 0;) {
      if (residual >= data_[j].host_stride || last_[j] >= data_[j].extent) return false;
      if (owners_[j] > 1) return false;
      residual += reach_[j];
    }
    return ok_;
  }
  int64_t base() const { return base_; }

 private:
  bool add_stick_dim(const ViewDim& dim, size_t lane, DimMap& map) {
    int64_t block = data_[lane].extent, stick_stride, reach;
    if (__builtin_mul_overflow(dim.device, block, &stick_stride)) return false;
    size_t stick = 0;
    while (stick < data_.size() && data_[stick].host_stride != stick_stride) ++stick;
    if (stick == data_.size() || last_[lane] != 0) return false;
    if ((dim.size - 1) / block >= data_[stick].extent - last_[stick]) return false;
    if (__builtin_mul_overflow(dim.size - 1, dim.device, &reach)) return false;
    ++owners_[stick];
    last_[lane] = block - 1;
    last_[stick] += (dim.size - 1) / block;
    reach_[lane] = (block - 1) * dim.device;
    reach_[stick] += reach - reach_[lane];
    map = {block, data_[lane].byte_stride, data_[stick].byte_stride};
    return true;
  }

  const std::vector<DeviceDim>& data_;
  std::vector<int64_t> last_;   // greatest coordinate reached along each device dim
  std::vector<int64_t> reach_;  // what that adds to the greatest element offset
  std::vector<int> owners_;
  int64_t base_ = 0;
  bool ok_ = true;
};

bool try_dim_maps(const std::vector<ViewDim>& dims, const StorageDims& storage, int64_t offset, DmaPlan& plan) {
  if (dims.size() + storage.replicas.size() > kMaxDims) return false;
  DimMapBuilder builder(storage.data, offset);
  for (size_t d = 0; d < dims.size(); ++d)
    if (!builder.add(dims[d], plan.device.dim[d] = {})) return false;
  if (!builder.finish()) return false;
  plan.device.base = reinterpret_cast<std::byte*>(plan.storage_address + static_cast<uint64_t>(builder.base()));
  return true;
}

void use_layout(const std::vector<ViewDim>& dims, const StorageDims& storage, int64_t offset, DmaPlan& plan) {
  plan.general = true;
  plan.device.base = reinterpret_cast<std::byte*>(plan.storage_address);
  plan.layout.offset = offset;
  plan.layout.n_device_dims = static_cast<int>(storage.data.size());
  std::copy(storage.data.begin(), storage.data.end(), plan.layout.device);
  for (size_t d = 0; d < dims.size(); ++d) plan.layout.stride[d] = dims[d].device;
  ByteSpan span;
  uint64_t visited = 0;
  if (!layout_span(plan.layout, plan.shape, format_bytes(plan.device.format), static_cast<__int128>(plan.storage_bytes),
                   kMaxVisits, span, visited))
    throw Error("OutOfBounds", "DMA: the view reaches elements that its device layout does not hold (host offset " +
                                   std::to_string(offset) + ")");
}

void set_shape(const std::vector<ViewDim>& dims, DmaPlan& plan) {
  plan.shape.rank = static_cast<int>(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    plan.shape.extent[d] = dims[d].size;
    plan.host.dim[d] = {0, dims[d].host * format_bytes(plan.host.format), 0};
  }
}

}  // namespace

DmaPlan plan_dma(const HostTensor& host, const DeviceTensor& device, bool to_device) {
  check_tensors(host, device);
  DmaPlan plan;
  plan.host.base = static_cast<std::byte*>(host.data);
  plan.host.format = static_cast<Format>(host.format);
  plan.device.format = static_cast<Format>(device.format);
  plan.storage_address = device.address;
  StorageDims storage = storage_dims(device);
  plan.storage_bytes = storage.bytes;

  std::vector<ViewDim> dims;
  int64_t elements = 1;
  for (size_t d = 0; d < host.size.size(); ++d) {
    if (__builtin_mul_overflow(elements, host.size[d], &elements)) bad("the tensor has more than 2^63 elements");
    if (host.size[d] != 1) dims.push_back({host.size[d], host.stride[d], device.host_stride[d]});
  }
  plan.empty = elements == 0;
  if (plan.empty) return plan;
  uint64_t element_bytes = static_cast<uint64_t>(format_bytes(plan.device.format));
  if (__builtin_mul_overflow(static_cast<uint64_t>(elements), element_bytes, &plan.bytes))
    bad("the tensor has more than 2^64 bytes");

  if (!to_device) storage.replicas.clear();
  uint64_t written = plan.bytes;
  for (const DeviceDim& r : storage.replicas)
    if (__builtin_mul_overflow(written, static_cast<uint64_t>(r.extent), &written)) written = ~0ull;
  plan.zero_storage = to_device && device.whole_storage && written < storage.bytes;

  if (dims.size() + storage.replicas.size() > kMaxDims) merge_dims(dims);
  if (dims.size() + storage.replicas.size() > kMaxDims)
    bad("the tensor has " + std::to_string(dims.size()) + " dims that cannot be merged; 8 are possible");
  set_shape(dims, plan);
  if (!try_dim_maps(dims, storage, device.host_offset, plan)) {
    merge_dims(dims);
    set_shape(dims, plan);
    use_layout(dims, storage, device.host_offset, plan);
  }
  for (const DeviceDim& r : storage.replicas) {
    int d = plan.shape.rank++;
    plan.shape.extent[d] = r.extent;
    plan.host.dim[d] = {};
    plan.device.dim[d] = {0, r.byte_stride, 0};
    plan.layout.direct[d] = r.byte_stride;
  }
  return plan;
}

namespace {

/// The copy cut into chunks along one dim, after an optional phase that clears the storage.
class DmaJob final : public Job {
 public:
  DmaJob(const DmaPlan& plan, bool to_device, std::byte* memory, bool share)
      : plan_(plan), to_device_(to_device), memory_(memory), clearing_(plan.zero_storage) {
    if (share) choose_dim(Team::instance().threads() * 4);
  }

  int units() const { return clearing_ ? kClearUnits : chunks_; }

  void run_unit(int unit) override {
    if (clearing_) {
      uint64_t begin = plan_.storage_bytes * unit / kClearUnits, end = plan_.storage_bytes * (unit + 1) / kClearUnits;
      std::memset(memory_ + plan_.storage_address + begin, 0, end - begin);
      return;
    }
    Shape shape = plan_.shape;
    View host = plan_.host, device = plan_.device;
    LayoutMap layout = plan_.layout;
    device.base = memory_ + reinterpret_cast<uintptr_t>(plan_.device.base);
    if (plan_.general) device.layout = &layout;
    if (dim_ >= 0) {
      int64_t begin = step_ * unit, end = std::min(begin + step_, shape.extent[dim_]);
      shape.extent[dim_] = end - begin;
      host.base += begin * host.dim[dim_].inner;
      if (plan_.general) {
        layout.offset += begin * layout.stride[dim_];
        device.base += begin * layout.direct[dim_];
      } else {
        const DimMap& m = device.dim[dim_];
        device.base += m.block ? begin / m.block * m.outer : begin * m.inner;
      }
    }
    bool ok = to_device_ ? copy(shape, device, host) : copy(shape, host, device);
    if (!ok) failed_.store(true, std::memory_order_relaxed);
  }

  int next_phase() override { return std::exchange(clearing_, false) ? chunks_ : 0; }
  bool failed() const { return failed_; }

 private:
  static constexpr int kClearUnits = 16;

  /// The outermost dim with enough steps for all threads, else the one with the most. A step is a whole stick.
  void choose_dim(int64_t wanted) {
    int64_t best = 1;
    for (int d = 0; d < plan_.shape.rank && best < wanted; ++d) {
      int64_t block = plan_.general ? 1 : std::max<int64_t>(1, plan_.device.dim[d].block);
      int64_t steps = (plan_.shape.extent[d] + block - 1) / block;
      if (steps <= best) continue;
      best = steps;
      dim_ = d;
      int64_t chunks = std::min<int64_t>({steps, wanted, kMaxUnits});
      step_ = (steps + chunks - 1) / chunks * block;
    }
    if (dim_ >= 0) chunks_ = static_cast<int>((plan_.shape.extent[dim_] + step_ - 1) / step_);
  }

  const DmaPlan& plan_;
  bool to_device_;
  std::byte* memory_;
  bool clearing_;
  int dim_ = -1;
  int64_t step_ = 0;
  int chunks_ = 1;
  std::atomic<bool> failed_{false};
};

}  // namespace

void run_dma(const DmaPlan& plan, bool to_device, std::byte* memory) {
  if (plan.empty) return;
  bool share = plan.bytes >= kSharedBytes && Team::instance().threads() > 1;
  DmaJob job(plan, to_device, memory, share);
  Team::instance().run(job, job.units(), share);
  if (job.failed())
    throw Error("Overflow",
                std::string(to_device ? "dma_in" : "dma_out") +
                    ": an int64 value lies outside int32, which is how the card stores integers; keep values in "
                    "[-2147483648, 2147483647] or leave the tensor on the host");
}

void for_each_device_run(const DmaPlan& plan, const std::function<void(uint64_t, uint64_t)>& fn) {
  if (plan.zero_storage) return fn(plan.storage_address, plan.storage_address + plan.storage_bytes);
  const uint64_t base = reinterpret_cast<uintptr_t>(plan.device.base);
  const int bytes = format_bytes(plan.device.format);
  auto run = [&](int64_t begin, int64_t end) {
    fn(base + static_cast<uint64_t>(begin), base + static_cast<uint64_t>(end));
  };
  if (plan.general) return for_each_point(plan.layout, plan.shape, [&](int64_t at) { run(at, at + bytes); });
  std::vector<Box> boxes;
  make_boxes({plan.shape.extent, static_cast<size_t>(plan.shape.rank)}, plan.device.dim, bytes, boxes);
  for (const Box& box : boxes) for_each_run(box, static_cast<int64_t>(box.begin), run);
}

}  // namespace spyre::card
