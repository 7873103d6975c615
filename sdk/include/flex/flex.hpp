// SPDX-License-Identifier: Apache-2.0
// The runtime: one card for each process, its memory, its streams, and what can be launched on them.
//
// Errors are std::exceptions whose text begins with their kind (OutOfMemory, InvalidArgument, DeviceLost, ...). An
// error of work that runs later sticks to its stream: query, synchronize and every launch on it throw it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "spyrecode-host-functions/sendataconvert/sen_host_ops.h"
#include "util/sendefs/sendefs.h"

namespace flex {

// Card memory has eight segments; compiled jobs are written as if they lay at the start of the last one.
inline constexpr uint64_t SEGMENT_SIZE_BITS = 34;
inline constexpr uint64_t SEGMENT_SIZE = uint64_t{1} << SEGMENT_SIZE_BITS;
inline constexpr uint64_t PROG_SEGMENT = 7;
inline constexpr uint64_t PROG_OFFSET_BASE = PROG_SEGMENT << SEGMENT_SIZE_BITS;

inline constexpr uint64_t dmvaToSegmentId(uint64_t dmva) { return dmva >> SEGMENT_SIZE_BITS; }

namespace aiupti {
/// Carries the longest name that a profile shows of a kernel, with its end.
struct AIUpti_ActivityCB {
  char name[128];
};
}  // namespace aiupti

// Memory

struct LogicalAddress {
  LogicalAddress() = default;
  LogicalAddress(uint64_t region, uint64_t offset_in_it) : region_id(region), offset(offset_in_it) {}
  uint64_t region_id = 0;  // a segment of card memory
  uint64_t offset = 0;
};

struct Chunk {
  Chunk() = default;
  Chunk(LogicalAddress address, uint64_t bytes, uint64_t domain) : addr(address), domain_id(domain), size(bytes) {}
  LogicalAddress addr;
  uint64_t domain_id = 0;
  uint64_t size = 0;
};

/// Where something lies on the card: here always one chunk. One that the allocator made owns its memory; one made from
/// a chunk is a view. A moved-from address owns nothing, has no chunks, and still says the size it had, so that whoever
/// counts bytes takes away what was added.
class CompositeAddress {
 public:
  CompositeAddress() = default;
  CompositeAddress(const Chunk& chunk) : chunks_{chunk}, total_size_(chunk.size) {}
  CompositeAddress(const Chunk& chunk, std::shared_ptr<void> owner)
      : chunks_{chunk}, total_size_(chunk.size), owner_(std::move(owner)) {}
  CompositeAddress(CompositeAddress&&) = default;
  CompositeAddress& operator=(CompositeAddress&&) = default;
  CompositeAddress(const CompositeAddress&) = delete;
  CompositeAddress& operator=(const CompositeAddress&) = delete;

  const std::vector<Chunk>& chunks() const { return chunks_; }
  uint64_t total_size() const { return total_size_; }

 private:
  std::vector<Chunk> chunks_;
  uint64_t total_size_ = 0;
  std::shared_ptr<void> owner_;  // its end frees the memory, also after the runtime has been let go
};
std::ostream& operator<<(std::ostream& out, const CompositeAddress& address);

enum class PlacementPolicy { Bind };
enum class MemoryType { Tensor, Program };

struct AllocationDirective {
  AllocationDirective(PlacementPolicy policy_, std::vector<uint64_t> domains_, std::optional<uint64_t> hint_,
                      MemoryType type_)
      : policy(policy_), domains(std::move(domains_)), hint(hint_), type(type_) {}
  template <class Domains>
  AllocationDirective(PlacementPolicy policy_, const Domains& domains_, std::optional<uint64_t> hint_, MemoryType type_)
      : AllocationDirective(policy_, std::vector<uint64_t>(domains_.begin(), domains_.end()), hint_, type_) {}
  PlacementPolicy policy;
  std::vector<uint64_t> domains;
  std::optional<uint64_t> hint;
  MemoryType type;
};

class FlexAllocator {
 public:
  using MemoryPressureCallback = void (*)(std::unique_lock<std::mutex>&);

  /// At least one byte, rounded up to whole sticks of 128. When there is no room, the callback is called, with the lock
  /// of this allocator, and the allocation is tried once more; then OutOfMemory is thrown. Memory may be given back
  /// inside the callback, whether or not it has opened the lock.
  CompositeAddress allocate(size_t bytes, const AllocationDirective& directive);
  /// The card's own address.
  uint64_t compositeAddressToDmva(const CompositeAddress& address) const;
  void registerMemoryPressureCallback(MemoryPressureCallback callback);

 private:
  std::mutex mutex_;
  MemoryPressureCallback callback_ = nullptr;
};

// Operations. Parameters may be destroyed when the launch has returned.

struct DmaParams {
  virtual ~DmaParams() = default;
  bool pipeline_barrier = true;
  /// Kept until the transfer is done, then called with null and destroyed.
  std::function<void(void*)> callback;
};

struct ComputeParams {
  virtual ~ComputeParams() = default;
  bool pipeline_barrier = true;
};

struct HostCallbackParams {
  virtual ~HostCallbackParams() = default;
};

/// `bytes` is what the host has. All of it is moved, unless a conversion says what is.
DmaParams* createDmaParams(void* host, size_t bytes, bool to_device, const CompositeAddress* address,
                           std::shared_ptr<data_conversion_info> conversion = {});
void destroyDmaParams(DmaParams* params);
/// The job at `bootstrap_offset` of the program's memory. Without tensors it finds their addresses in its own memory.
ComputeParams* createComputeParams(const CompositeAddress* program, std::vector<const CompositeAddress*> tensors,
                                   std::string name, uint64_t bootstrap_offset);
void destroyComputeParams(ComputeParams* params);
/// With `pipeline_barrier`, the callback runs after everything launched before it.
HostCallbackParams* createHostCallbackParams(std::function<void(void*)> callback, void* argument,
                                             bool pipeline_barrier);
void destroyHostCallbackParams(HostCallbackParams* params);

enum class RuntimeStreamPriority { NORMAL, HIGH };

/// Operations of one stream run in order. Lives as long as the process.
class RuntimeStream {
 public:
  /// Returns when the host memory may be used again. Without a conversion: raw bytes.
  void launchOperationH2D(DmaParams* params);
  /// Returns when the host memory holds the result.
  void launchOperationD2H(DmaParams* params);
  /// Returns at once.
  void launchOperationCompute(ComputeParams* params);
  /// Calls it in this thread; what it throws comes out.
  void launchOperationHostCallback(HostCallbackParams* params);
  /// Fills all of the address with the code of `value` in `format`. Returns at once.
  void fillAsync(const CompositeAddress* address, double value, DataFormats format, bool use_dmai);

  void synchronize();
  /// True if nothing is under way.
  bool query();
  /// An error sticks to the stream.
  bool needsShutdown();

  RuntimeStream(int card_stream, RuntimeStreamPriority priority) : card_stream_(card_stream), priority_(priority) {}
  RuntimeStream(const RuntimeStream&) = delete;
  RuntimeStream& operator=(const RuntimeStream&) = delete;
  int cardStream() const { return card_stream_; }
  RuntimeStreamPriority priority() const { return priority_; }

 private:
  const int card_stream_;
  const RuntimeStreamPriority priority_;
};

class RuntimeContext {
 public:
  RuntimeStream* getDefaultStream();
  /// Owned by the context. The card has 32 streams of each priority: the 33rd shares the first one's, and so on.
  RuntimeStream* createStream(RuntimeStreamPriority priority);
  std::shared_ptr<FlexAllocator> getAllocator();
  bool hasStreamError();
  int deviceId() const { return device_; }

  explicit RuntimeContext(int device) : device_(device), allocator_(std::make_shared<FlexAllocator>()) {}

 private:
  const int device_;
  std::shared_ptr<FlexAllocator> allocator_;
  std::mutex mutex_;
  RuntimeStream default_stream_{0, RuntimeStreamPriority::NORMAL};
  std::vector<std::unique_ptr<RuntimeStream>> streams_;
  int created_[2] = {0, 0};  // by priority
};

/// What starting the runtime came to.
struct RuntimeStatus {
  bool ok = false;
  std::string text;
};
std::ostream& operator<<(std::ostream& out, const RuntimeStatus& status);

/// Opens the card of this process. A null context, and the reason, if there is no such card, if the process has another
/// one, or if it was forked from one that has a card. The same device again gives the same context.
RuntimeStatus initializeRuntime(std::shared_ptr<RuntimeContext>* context, int logical_device_id);
/// Null before the runtime is started.
std::shared_ptr<RuntimeContext> getFlexRuntimeContext();
/// Reads AIU_WORLD_SIZE, SPYRE_DEVICES and FLEX_DEVICE, opens nothing, throws nothing.
int getNumDevices();

}  // namespace flex
