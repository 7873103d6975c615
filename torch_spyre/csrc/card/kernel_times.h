// SPDX-License-Identifier: Apache-2.0
// Host time of kernel calls by kind, for profiles. Off unless asked for; then each call costs two looks at the clock of
// its thread: CPU time, so that other work on the machine does not count.
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

/// Forgets what was counted; counts from now on if `on`.
void count_kernel_times(bool on);
std::vector<KernelTime> kernel_times();

extern std::atomic<bool> counting_kernel_times;
void add_kernel_time(const Instr& i, const Shape& shape, uint64_t ns);

/// Times the kernel call that happens during its life.
class KernelTimer {
 public:
  KernelTimer(const Instr& i, const Shape& shape) : instr_(i), shape_(shape) {
    if (counting_kernel_times.load(std::memory_order_relaxed)) start_ = thread_ns();
  }
  ~KernelTimer() {
    if (start_) add_kernel_time(instr_, shape_, thread_ns() - start_);
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
  uint64_t start_ = 0;
};

}  // namespace spyre::card
