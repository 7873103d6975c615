// SPDX-License-Identifier: Apache-2.0
#include "scheduled_job.h"

#include <new>

#include "kernel_times.h"

namespace spyre::card {

ScheduledJob::ScheduledJob(const Launch& launch, const Schedule& schedule, std::byte* lx)
    : launch_(launch), image_(*launch.image), schedule_(schedule), lx_(lx), scalar_bits_(scalar_bits(launch)) {}

void ScheduledJob::run_unit(int unit) {
  const Schedule::Unit& u = schedule_.units[schedule_.stages[stage_].first_unit + static_cast<uint32_t>(unit)];
  const SpanTimer timer("unit", static_cast<int64_t>(stage_), unit);
  uint32_t last_phase = UINT32_MAX;  // a failure ends the launch with its phase
  for (uint32_t c = u.first_call; c < u.end_call; ++c) {
    const KernelCall& call = schedule_.calls[c];
    if (call.phase > last_phase) return;
    if (!run_call(call)) last_phase = call.phase;
  }
}

int ScheduledJob::next_phase() {
  if (failure_.any() || ++stage_ == schedule_.stages.size()) return 0;
  return schedule_.stages[stage_].units();
}

void ScheduledJob::announce(PrefetchBoard& board) const {
  std::array<PrefetchBoard::Span, PrefetchBoard::kMaxSpans> spans;
  size_t n = 0;
  for (size_t s = stage_ + 1; s < schedule_.stages.size() && n == 0; ++s) {
    const Schedule::Stage& stage = schedule_.stages[s];
    for (uint32_t w = stage.first_weight; w < stage.end_weight && n < spans.size(); ++w) {
      const Schedule::Weight& weight = schedule_.weights[w];
      spans[n++] = {launch_.args[weight.arg] + weight.offset, static_cast<size_t>(weight.bytes)};
    }
  }
  board.announce({spans.data(), n});
}

bool ScheduledJob::run_call(const KernelCall& call) {
  const Instr& instr = image_.instrs[call.pc];
  Operands views;
  for (uint32_t k = 0; k < call.n_operands; ++k) {
    const Place& place = schedule_.places[call.first_operand + k];
    views.set(k, schedule_.views[call.first_operand + k]);
    views[k].base = address(place);
    if (place.layout >= 0) views[k].layout = &schedule_.layouts[place.layout];
  }
  std::optional<Failure> failure;
  try {
    failure = run_kernel(image_, instr, call.shape, call.reduced_mask, call.start, views.data(), call.n_operands);
  } catch (const std::bad_alloc&) {
    failure = out_of_working_memory();
  }
  if (!failure) return true;
  failure_.note({call.core, call.pc, failure->kind, failure->message});
  return false;
}

std::byte* ScheduledJob::address(const Place& place) {
  switch (place.space) {
    case Space::MEM:
      return launch_.args[place.index] + place.offset;
    case Space::LX:
      return lx_ + place.offset;
    case Space::CONST:
      return const_cast<std::byte*>(image_.constants.data()) + place.offset;
    case Space::SCALAR:
      return reinterpret_cast<std::byte*>(&scalar_bits_[place.index]);
    default:  // an immediate
      return reinterpret_cast<std::byte*>(place.offset);
  }
}

}  // namespace spyre::card
