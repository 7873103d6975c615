// SPDX-License-Identifier: Apache-2.0
// Transfers by strides, and fills: what a transfer is when nobody knows the layout of the device storage any more.
#include <algorithm>
#include <cstring>
#include <utility>

#include "dma.h"
#include "dma_dims.h"
#include "team.h"

namespace spyre::card {
namespace {

constexpr size_t kMaxPlans = 4096;
constexpr uint64_t kSharedBytes = 256u << 10;  // from here helper threads pay
constexpr uint64_t kPatternBytes = 4096;

[[noreturn]] void bad(const std::string& message) { throw Error("InvalidArgument", "DMA: " + message); }

using BoxDim = TransferDim;  // strides in elements

int checked_bytes(int format, const char* side) {
  const int bytes = format >= 0 && format <= 255 ? format_bytes(static_cast<Format>(format)) : 0;
  if (!bytes) bad(std::string(side) + " format " + std::to_string(format) + " has no whole bytes");
  return bytes;
}

/// Dims that both sides move along, coarse ones first. A dim along which the target stands still is one write.
std::vector<BoxDim> box_dims(const TransferBox& box, bool to_device) {
  const size_t rank = box.size.size();
  if (box.host_stride.size() != rank || box.device_stride.size() != rank)
    bad("size, host strides and device strides of a box have ranks " + std::to_string(rank) + ", " +
        std::to_string(box.host_stride.size()) + ", " + std::to_string(box.device_stride.size()));
  std::vector<BoxDim> dims;
  for (size_t d = 0; d < rank; ++d) {
    if (box.size[d] < 0) bad("a box has size " + std::to_string(box.size[d]));
    const BoxDim dim{box.size[d], box.host_stride[d], box.device_stride[d]};
    if (dim.size == 0 || (dim.size > 1 && (to_device ? dim.device : dim.host) != 0)) dims.push_back(dim);
  }
  auto coarse = [](const BoxDim& a, const BoxDim& b) { return std::abs(a.device) > std::abs(b.device); };
  std::stable_sort(dims.begin(), dims.end(), coarse);
  merge_dims(dims);
  return dims;
}

/// Elements of the box; throws if it leaves the `limit` elements of the device storage.
int64_t check_reach(const TransferBox& box, const std::vector<BoxDim>& dims, int64_t limit) {
  __int128 lowest = box.device_offset, highest = box.device_offset, elements = 1;
  for (const BoxDim& d : dims) {
    elements *= d.size;
    const __int128 reach = static_cast<__int128>(d.size - 1) * d.device;
    (reach < 0 ? lowest : highest) += reach;
    if (elements == 0) return 0;
    if (elements > INT64_MAX) bad("a box has more than 2^63 elements");
  }
  if (lowest < 0 || highest >= limit)
    throw Error("OutOfBounds", "DMA: a box reaches device elements " + std::to_string(static_cast<int64_t>(lowest)) +
                                   ".." + std::to_string(static_cast<int64_t>(highest)) + " of a storage that has " +
                                   std::to_string(limit));
  return static_cast<int64_t>(elements);
}

class BoxPlanner {
 public:
  BoxPlanner(const BoxTransfer& transfer, bool to_device)
      : transfer_(transfer),
        to_device_(to_device),
        host_bytes_(checked_bytes(transfer.host_format, "host")),
        device_bytes_(checked_bytes(transfer.device_format, "device")) {
    if (transfer.address % kStickBytes)
      bad("device address " + std::to_string(transfer.address) + " is not 128-byte aligned");
  }

  void add(const TransferBox& box) {
    const std::vector<BoxDim> dims = box_dims(box, to_device_);
    if (check_reach(box, dims, static_cast<int64_t>(transfer_.bytes / device_bytes_)) == 0) return;
    split(dims, box.host_offset, box.device_offset);
  }

  std::vector<DmaPlan> finish() {
    uint64_t moved = 0;
    for (const DmaPlan& plan : plans_) moved += plan.bytes;
    if (!plans_.empty()) plans_.front().zero_storage = to_device_ && transfer_.whole_storage && moved < transfer_.bytes;
    return std::move(plans_);
  }

 private:
  void split(const std::vector<BoxDim>& dims, int64_t host, int64_t device) {
    if (dims.size() <= kMaxDims) return plan(dims, host, device);
    const std::vector<BoxDim> rest(dims.begin() + 1, dims.end());
    for (int64_t i = 0; i < dims[0].size; ++i) split(rest, host + i * dims[0].host, device + i * dims[0].device);
  }

  void plan(const std::vector<BoxDim>& dims, int64_t host, int64_t device) {
    if (plans_.size() == kMaxPlans)
      bad("boxes with more than 8 dims that do not merge need more than " + std::to_string(kMaxPlans) + " copies");
    DmaPlan plan;
    plan.host.base = static_cast<std::byte*>(transfer_.host) + host * host_bytes_;
    plan.host.format = static_cast<Format>(transfer_.host_format);
    plan.device.base = reinterpret_cast<std::byte*>(transfer_.address + static_cast<uint64_t>(device * device_bytes_));
    plan.device.format = static_cast<Format>(transfer_.device_format);
    plan.storage_address = transfer_.address;
    plan.storage_bytes = transfer_.bytes;
    plan.bytes = static_cast<uint64_t>(device_bytes_);
    for (const BoxDim& d : dims) {
      const int i = plan.shape.rank++;
      plan.shape.extent[i] = d.size;
      plan.host.dim[i] = {0, d.host * host_bytes_, 0};
      plan.device.dim[i] = {0, d.device * device_bytes_, 0};
      plan.bytes *= static_cast<uint64_t>(d.size);
    }
    plans_.push_back(plan);
  }

  const BoxTransfer& transfer_;
  bool to_device_;
  int64_t host_bytes_, device_bytes_;
  std::vector<DmaPlan> plans_;
};

/// Copies of a block that holds whole elements, a page at a time.
class FillJob final : public Job {
 public:
  FillJob(std::byte* begin, uint64_t bytes, std::span<const std::byte> element) : begin_(begin), bytes_(bytes) {
    for (uint64_t i = 0; i < kPatternBytes; ++i) pattern_[i] = element[i % element.size()];
  }
  int units() const { return static_cast<int>(std::min<uint64_t>(16, (bytes_ + kPatternBytes - 1) / kPatternBytes)); }
  void run_unit(int unit) override {
    const uint64_t blocks = (bytes_ + kPatternBytes - 1) / kPatternBytes, n = static_cast<uint64_t>(units());
    const uint64_t end = std::min(bytes_, blocks * (unit + 1) / n * kPatternBytes);
    for (uint64_t at = blocks * unit / n * kPatternBytes; at < end; at += kPatternBytes)
      std::memcpy(begin_ + at, pattern_, std::min(kPatternBytes, end - at));
  }
  int next_phase() override { return 0; }

 private:
  std::byte* begin_;
  uint64_t bytes_;
  std::byte pattern_[kPatternBytes];
};

}  // namespace

std::vector<DmaPlan> plan_boxes(const BoxTransfer& transfer, bool to_device) {
  BoxPlanner planner(transfer, to_device);
  for (const TransferBox& box : transfer.boxes) planner.add(box);
  return planner.finish();
}

void run_fill(std::byte* begin, uint64_t bytes, std::span<const std::byte> element) {
  FillJob job(begin, bytes, element);
  Team::instance().run(job, job.units(), bytes >= kSharedBytes && Team::instance().threads() > 1);
}

}  // namespace spyre::card
