// SPDX-License-Identifier: Apache-2.0
// A launch by its schedule, as work for host threads.
#pragma once
#include <vector>

#include "exec.h"
#include "program_job.h"
#include "schedule.h"
#include "team.h"

namespace spyre::card {

class ScheduledJob final : public Job {
 public:
  ScheduledJob(const Launch& launch, const Schedule& schedule, std::byte* lx);

  void run_unit(int unit) override;
  int next_phase() override;
  void announce(PrefetchBoard& board) const override;
  void throw_failure() const { failure_.raise(image_); }

 private:
  bool run_call(const KernelCall& call);
  std::byte* address(const Place& place);

  const Launch& launch_;
  const Image& image_;
  const Schedule& schedule_;
  std::byte* lx_;
  std::vector<uint32_t> scalar_bits_;
  size_t stage_ = 0;
  FirstFailure failure_;
};

}  // namespace spyre::card
