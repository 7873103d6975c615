// SPDX-License-Identifier: Apache-2.0
// Host time of kernel calls, for profiles: sums by kind, or a timeline. Off unless asked for; sums then cost each call
// two looks at the clock of its thread: CPU time, so that other work on the machine does not count.
#pragma once
#include <atomic>
#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include "program.h"

namespace spyre::card {

struct KernelTime {
  std::string kind;   // "MATMUL", "VOP add", "REDUCE max"
  std::string shape;  // "1x64x576"
  uint64_t calls = 0;
  uint64_t ns = 0;
};

/// Something that a host thread did, in nanoseconds of the wall clock: a kernel call, a "unit" of a launch by its
/// schedule (stage x unit), or such a "launch" (stages x calls).
struct TimeSpan {
  std::string kind;
  std::string shape;
  int thread = 0;
  uint64_t start_ns = 0, end_ns = 0;
};

/// Forgets what was counted; counts from now on if `on`.
void count_kernel_times(bool on);
std::vector<KernelTime> kernel_times();

/// The same for the timeline. Neither may change while launches run.
void record_timeline(bool on);
std::vector<TimeSpan> timeline();

enum class Profiling : uint8_t { off, sums, timeline };
extern std::atomic<Profiling> profiling;

inline bool records_timeline() { return profiling.load(std::memory_order_relaxed) == Profiling::timeline; }
uint64_t wall_ns();
void add_kernel_time(const Instr& i, const Shape& shape, uint64_t ns);
void add_call_span(const Instr& i, const Shape& shape, uint64_t start_ns);
/// `kind` must last; the numbers become the shape.
void add_span(const char* kind, int64_t a, int64_t b, uint64_t start_ns);

/// Times the kernel call that happens during its life.
class KernelTimer {
 public:
  KernelTimer(const Instr& i, const Shape& shape)
      : instr_(i), shape_(shape), profiling_(profiling.load(std::memory_order_relaxed)) {
    if (profiling_ != Profiling::off) [[unlikely]]
      start_ = profiling_ == Profiling::sums ? thread_ns() : wall_ns();
  }
  ~KernelTimer() {
    if (profiling_ == Profiling::off) [[likely]]
      return;
    profiling_ == Profiling::sums ? add_kernel_time(instr_, shape_, thread_ns() - start_)
                                  : add_call_span(instr_, shape_, start_);
  }
  KernelTimer(const KernelTimer&) = delete;
  KernelTimer& operator=(const KernelTimer&) = delete;

 private:
  static uint64_t thread_ns() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  }

  const Instr& instr_;
  const Shape& shape_;
  const Profiling profiling_;
  uint64_t start_ = 0;
};

/// Puts what happens during its life on the timeline.
class SpanTimer {
 public:
  SpanTimer(const char* kind, int64_t a, int64_t b) : kind_(kind), a_(a), b_(b) {
    if (records_timeline()) [[unlikely]]
      start_ = wall_ns();
  }
  ~SpanTimer() {
    if (start_) [[unlikely]]
      add_span(kind_, a_, b_, start_);
  }
  SpanTimer(const SpanTimer&) = delete;
  SpanTimer& operator=(const SpanTimer&) = delete;

 private:
  const char* kind_;
  int64_t a_, b_;
  uint64_t start_ = 0;
};

}  // namespace spyre::card
