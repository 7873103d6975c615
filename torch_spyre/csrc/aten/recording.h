// SPDX-License-Identifier: Apache-2.0
// Launches of one thread, written down while they are made, to be made again without the code that made them.
//
// A replay touches the same memory: everything bound is kept alive by the recording. Exchanges with other cards, and
// the waits for them, are written down in their place between the launches. What a replay could not repeat, a transfer
// or a draw of random numbers, spoils the recording. Two recordings of the same code are the same if they launch the
// same programs on the same outside memory, and on inside memory that was allocated in the same order.
#pragma once
#include <c10/core/Storage.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "launch.h"

namespace spyre {

class Recording {
 public:
  /// The one that writes down what this thread launches; null if none does.
  static Recording* active();
  /// Notes that this thread did what cannot be repeated; nothing without an active recording.
  static void spoil_active(const char* reason);

  Recording() = default;
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording();
  void start();
  void stop();

  /// Memory that the thread allocated.
  void allocated(uint64_t address) { numbers_[address] = next_number_++; }
  /// Working memory of a launch. Launches run one after another: all of them share it.
  card::Buffer pool(c10::DeviceIndex device, uint64_t bytes);
  void hold(const at::Tensor& tensor);
  /// `displacements` say how far into its memory each buffer begins.
  void launched(c10::DeviceIndex device, const LaunchPlan& plan, std::span<const card::Buffer> buffers,
                std::span<const uint64_t> displacements, std::span<const card::Scalar> scalars);
  /// Something else that `again` repeats, on the current stream. `what` is the same where the same is done to memory
  /// that begins at these addresses.
  void did(c10::DeviceIndex device, std::string what, std::span<const uint64_t> addresses, std::function<void()> again);
  /// What was begun, and must be waited for before the recording ends, is known by its number.
  uint64_t begun() { return unfinished_.emplace(++begun_), begun_; }
  void finished(uint64_t number) { unfinished_.erase(number); }
  uint64_t id() const { return id_; }
  void spoil(const std::string& reason);

  /// Why it cannot be replayed; empty if it can.
  const std::string& spoiled() const { return spoiled_; }
  /// Launches in it.
  size_t size() const;
  bool same_as(const Recording& other) const;
  /// Makes all launches on the current stream.
  void replay() const;

 private:
  /// Outside memory by its address, inside memory by the number of its allocation.
  struct Origin {
    bool inside;
    uint64_t value, displacement;
    bool operator==(const Origin&) const = default;
  };
  struct Launch {
    std::shared_ptr<const card::Program> program;
    std::string name;
    std::vector<card::Buffer> buffers;
    std::vector<card::Scalar> scalars;
    std::vector<Origin> origins;
    std::function<void()> again;  // in place of a launch; `name` says what
    bool operator==(const Launch& other) const;
  };
  Origin origin_of(uint64_t address, uint64_t displacement) const;
  void check_stream(c10::DeviceIndex device);

  /// Where the thread on which it was started finds it; it may be destroyed on another one.
  std::shared_ptr<std::atomic<Recording*>> slot_;
  c10::DeviceIndex device_ = -1;
  int stream_ = 0;
  std::vector<Launch> launches_;
  std::string spoiled_;
  uint64_t id_ = 0, begun_ = 0;
  std::unordered_set<uint64_t> unfinished_;
  std::unordered_map<uint64_t, uint64_t> numbers_;
  uint64_t next_number_ = 0;
  std::unordered_set<const c10::StorageImpl*> held_;
  std::vector<c10::Storage> storages_;
  std::vector<c10::DataPtr> pools_;
};

}  // namespace spyre
