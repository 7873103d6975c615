// SPDX-License-Identifier: Apache-2.0
// What the runtime tells a profiler. Times are nanoseconds of the system clock.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace flex::internal {

inline uint64_t host_now_ns() {
  using namespace std::chrono;
  return static_cast<uint64_t>(duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count());
}

/// A call of the runtime.
enum class ApiCall : uint8_t { launch_compute, transfer_in, transfer_out, fill, allocate, wait };

/// Something the card did.
struct CardWork {
  enum class Kind : uint8_t { compute, copy_in, copy_out, fill } kind;
  int stream = 0;
  uint64_t queued_ns = 0;    // when the call began
  uint64_t duration_ns = 0;  // on the card's clock
  uint64_t bytes = 0;
  std::string name;  // of a kernel
};

/// Called in the thread that does it. `correlation` is the same for a call and for what it made the card do.
class ActivitySink {
 public:
  virtual ~ActivitySink() = default;
  virtual void called(ApiCall call, uint64_t start_ns, uint64_t end_ns, uint32_t correlation) = 0;
  virtual void worked(const CardWork& work, uint32_t correlation) = 0;
  virtual void memory(bool allocated, uint64_t address, uint64_t bytes, uint64_t start_ns, uint32_t correlation) = 0;
};

}  // namespace flex::internal
