// SPDX-License-Identifier: Apache-2.0
// What torch.profiler sees of the device. While a profile runs, every launch and transfer is recorded with the host
// call that made it; while none runs, a call costs the test of one flag.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "spyre/card.h"

namespace spyre::profiler {

extern std::atomic<bool> recording;

/// One launch or transfer: the host call, and what the device clock booked for it.
struct Event {
  card::Activity activity;
  int device = 0;
  std::string name;       // of the kernel
  std::string user_line;  // innermost Python line outside of torch
  int64_t host_begin_ns = 0, host_end_ns = 0;
  int64_t shown_ns = 0;        // where the trace shows the start of the activity; see Timeline
  int32_t thread = 0;          // that Kineto knows the caller by
  uint64_t op = 0, scope = 0;  // correlation of the op and of the user's annotation around the call
};

/// A total of allocated bytes.
struct MemoryPoint {
  int device;
  int64_t time_ns;
  uint64_t bytes;
};

/// Lives around a call that launches or transfers; gives the events booked meanwhile on this thread their host side.
class Call {
 public:
  explicit Call(const std::string* name) {
    if (recording.load(std::memory_order_relaxed)) begin(name);
  }
  ~Call() {
    if (active_) end();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  void begin(const std::string* name);
  void end();
  bool active_ = false;
  size_t first_ = 0;
};

/// Starts recording on all open cards, and on those opened meanwhile.
void start();
void stop();
/// Everything recorded since `start`, in the order of submission.
std::vector<Event> take_events();
std::vector<MemoryPoint> take_memory();

void card_opened(int device, card::Card& card);
void memory_changed(int device, uint64_t total);
inline void note_memory(int device, uint64_t total) {
  if (recording.load(std::memory_order_relaxed)) memory_changed(device, total);
}

/// Ops and annotations that are open on this thread.
void push_op(uint64_t id);
void pop_op();
void push_scope(uint64_t id);
void pop_scope();

int64_t host_now_ns();

}  // namespace spyre::profiler
