// SPDX-License-Identifier: Apache-2.0
#include "exec.h"

#include <sys/mman.h>

#include "kernel_times.h"
#include "program_job.h"
#include "scheduled_job.h"
#include "team.h"

namespace spyre::card {
namespace {

constexpr uint64_t kSharedWork = 16384;  // element operations per phase from which helper threads pay

}  // namespace

Executor::Executor() : cores_(kCores) {
  void* p =
      mmap(nullptr, kCores * kLxPitch, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw Error("OutOfMemory", "cannot reserve 64 MiB for the scratchpads of a card");
  lx_ = static_cast<std::byte*>(p);
  // Scratchpads exceed the host's caches: the host prefetches across huge pages. Where it has none, this call fails
  // without harm.
  madvise(lx_, kCores * kLxPitch, MADV_HUGEPAGE);
}

Executor::~Executor() { munmap(lx_, kCores * kLxPitch); }

void Executor::run(const Launch& launch) {
  if (const Schedule* schedule = launch.proof->schedule->get(*launch.image, launch.scalars)) {
    if (schedule->stages.empty()) return;
    const SpanTimer timer("launch", static_cast<int64_t>(schedule->stages.size()),
                          static_cast<int64_t>(schedule->calls.size()));
    ScheduledJob job(launch, *schedule, lx_);
    Team::instance().run(job, schedule->stages[0].units(), schedule->shared);
    return job.throw_failure();
  }
  ProgramJob job(launch, lx_, cores_);
  const Proof& proof = *launch.proof;
  int cores = static_cast<int>(launch.image->cores);
  Team::instance().run(job, cores, cores > 1 && proof.work / proof.phases >= kSharedWork);
  job.throw_failure();
}

}  // namespace spyre::card
