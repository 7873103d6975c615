// SPDX-License-Identifier: Apache-2.0
// What stands behind flex.hpp, for the libraries of this SDK: the card of the process and its allocations.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "flex/activity.h"
#include "flex/flex.hpp"
#include "flex/job.h"
#include "spyre/card.h"

namespace flex::internal {

/// Memory that the allocator handed out. Of program memory the host keeps the bytes too: a launch needs the job and the
/// addresses in it at once, while the card may still be busy with earlier work of the stream.
class Allocation {
 public:
  Allocation(uint64_t address, uint64_t bytes, MemoryType type) : address(address), bytes(bytes), type(type) {}
  const uint64_t address, bytes;
  const MemoryType type;

  uint64_t end() const { return address + bytes; }
  /// Notes a write; of program memory, forgets the jobs that it changes.
  void wrote(uint64_t offset, std::span<const std::byte> content);
  /// The job at an offset, and the addresses that it finds there for its arguments just now.
  std::shared_ptr<const Job> job(uint64_t offset, std::vector<uint64_t>& addresses);

 private:
  std::mutex mutex_;
  std::vector<std::byte> image_;
  std::map<uint64_t, std::shared_ptr<const Job>> jobs_;  // by offset
};

/// One for each process; never destroyed, since addresses are freed as late as in static destructors.
class Runtime {
 public:
  static Runtime& get();

  RuntimeStatus start(std::shared_ptr<RuntimeContext>* context, int device);
  std::shared_ptr<RuntimeContext> context();
  /// Throws before the start, and in a process that was forked from the one that has the card.
  spyre::card::Card& card();

  CompositeAddress allocate(uint64_t bytes, MemoryType type);
  /// The allocation that an address lies in. Throws InvalidArgument.
  std::shared_ptr<Allocation> find(uint64_t address);
  /// From each address to the end of its allocation.
  void buffers(std::span<const uint64_t> addresses, std::vector<spyre::card::Buffer>& found);

  std::atomic<ActivitySink*> sink{nullptr};

 private:
  Runtime() = default;
  void release(uint64_t address);
  bool forked() const;

  std::mutex start_mutex_;
  std::shared_ptr<RuntimeContext> context_;
  std::atomic<spyre::card::Card*> card_{nullptr};
  pid_t process_ = 0;
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Allocation>> allocations_;  // by address
};

/// The cards that this process may use, by their numbers.
std::vector<int> visible_cards();

uint64_t dmva(const CompositeAddress& address);

/// Lets a profiler hear of what the card does.
void observe_card(spyre::card::Card& card);

/// Shows the card to spyre-smi from now on. The card must not go away.
void publish_status(const spyre::card::Card& card, int device);

/// The code of a number in a format, as bytes to fill memory with.
std::vector<std::byte> fill_element(double value, DataFormats format);

/// A transfer that converts, between host memory of so many bytes and all of a device allocation.
void convert(spyre::card::Card& card, int stream, void* host, uint64_t host_bytes, const Chunk& device,
             const data_conversion_info& conversion);

}  // namespace flex::internal
