// SPDX-License-Identifier: Apache-2.0
// One launch as work for host threads: a unit is one core, a phase ends at a BARRIER.
#pragma once
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "exec.h"
#include "team.h"

namespace spyre::card {

constexpr int kMaxOperands = 2 + kMaxIndices;

struct Failure {
  int core;
  uint32_t pc;
  const char* kind;
  std::string message;
};

class ProgramJob final : public Job {
 public:
  ProgramJob(const Launch& launch, std::byte* lx, std::vector<CoreState>& cores);

  void run_unit(int unit) override;
  int next_phase() override;

  /// What went wrong, on the lowest core of the first phase in which something did.
  const std::optional<Failure>& failure() const { return failure_; }
  void throw_failure() const;

  // The pieces of run_unit, for runs that look at every instruction.
  CoreState& core(int c) { return cores_[c]; }
  void run_tile(const CoreState& core, const Instr& i);
  /// The operand as a kernel takes it; a layout map goes to *layout.
  View resolve(const Operand& o, const CoreState& core, int rank, LayoutMap* layout) const;
  std::byte* lx_of(int64_t core) const { return lx_ + core * static_cast<int64_t>(kLxBytes); }
  void fail(const CoreState& core, const char* kind, const std::string& message);

 private:
  void ring_sum(const CoreState& core, const Instr& i, const Operand& in, const Shape& shape, const View& out,
                const View& source);
  void move_indexed(const CoreState& core, const Instr& i, const Shape& shape, const View* views);
  std::byte* base_of(const Operand& o, const CoreState& core, FastArith& arith) const;

  const Launch& launch_;
  const Image& image_;
  std::byte* lx_;
  std::vector<CoreState>& cores_;
  std::vector<uint32_t> scalar_bits_;
  std::atomic<bool> failed_{false};
  std::mutex failure_mutex_;
  std::optional<Failure> failure_;
};

}  // namespace spyre::card
