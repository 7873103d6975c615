// SPDX-License-Identifier: Apache-2.0
// One launch as work for host threads: a unit is one core, a phase ends at a BARRIER.
#pragma once
#include <atomic>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "exec.h"
#include "schedule.h"
#include "team.h"

namespace spyre::card {

constexpr int kMaxOperands = 1 + kCores;  // of a RINGSUM

/// Room for the operands of one call; nothing is cleared, most calls have three.
class Operands {
 public:
  void set(size_t k, const View& view) { new (room_ + k * sizeof(View)) View(view); }
  View* data() { return std::launder(reinterpret_cast<View*>(room_)); }
  View& operator[](size_t k) { return data()[k]; }

 private:
  alignas(View) std::byte room_[kMaxOperands * sizeof(View)];
};

struct Failure {
  int core;
  uint32_t pc;
  const char* kind;
  std::string message;
};

/// The failure of the lowest core, noted by any thread.
class FirstFailure {
 public:
  void note(const Failure& failure);
  bool any() const { return any_.load(std::memory_order_relaxed); }
  const std::optional<Failure>& get() const { return failure_; }
  void raise(const Image& image) const;

 private:
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::optional<Failure> failure_;
};

/// Bits of the launch scalars as the kernels read them.
std::vector<uint32_t> scalar_bits(const Launch& launch);

/// Calls the kernel of a tile instruction on resolved operands; `start` is that of an IOTA. A RINGSUM has one operand
/// per source core. Returns the failure, without its place, if there is one.
std::optional<Failure> run_kernel(const Image& image, const Instr& i, const Shape& shape, uint32_t reduced_mask,
                                  int64_t start, const View* views, size_t n);

/// When a kernel runs out of memory on the host.
inline Failure out_of_working_memory() {
  return {0, 0, "OutOfMemory", "the host has no working memory for the instruction; use smaller tiles"};
}

class ProgramJob final : public Job {
 public:
  ProgramJob(const Launch& launch, std::byte* lx, std::vector<CoreState>& cores);

  void run_unit(int unit) override;
  int next_phase() override;

  /// What went wrong, on the lowest core of the first phase in which something did.
  const std::optional<Failure>& failure() const { return failure_.get(); }
  void throw_failure() const { failure_.raise(image_); }

  // The pieces of run_unit, for runs that look at every instruction.
  CoreState& core(int c) { return cores_[c]; }
  void run_tile(const CoreState& core, const Instr& i);
  /// The operand as a kernel takes it; a layout map goes to *layout.
  View resolve(const Operand& o, const CoreState& core, int rank, LayoutMap* layout) const;
  std::byte* lx_of(int64_t core) const { return lx_ + core * kLxPitch; }
  void fail(const CoreState& core, const char* kind, const std::string& message);

 private:
  size_t ring_sources(const CoreState& core, const Instr& i, const Operand& in, Operands& views) const;
  std::byte* base_of(const Operand& o, const CoreState& core, FastArith& arith) const;

  const Launch& launch_;
  const Image& image_;
  std::byte* lx_;
  std::vector<CoreState>& cores_;
  std::vector<uint32_t> scalar_bits_;
  FirstFailure failure_;
};

}  // namespace spyre::card
