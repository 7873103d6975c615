// SPDX-License-Identifier: Apache-2.0
// Host threads that work on one job at a time: the thread that calls run() and, when it pays, helpers.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "prefetch.h"

namespace spyre::card {

/// Work in phases of independent units. Units of one phase run in any order on any thread; a phase starts when all
/// units of the one before are done.
class Job {
 public:
  virtual ~Job() = default;
  /// Must not throw and must not block.
  virtual void run_unit(int unit) = 0;
  /// Called once per phase end, by the thread that finished its last unit: units of the next phase, 0 when done.
  virtual int next_phase() = 0;
  /// What the next phase that threads share will read; called before a phase runs, by the thread that starts it.
  virtual void announce(PrefetchBoard&) const {}
};

constexpr int kMaxUnits = 255;

/// Helpers claim units from a ticket and never hold a phase up: a phase ends when its units are done, no matter which
/// threads have noticed it. So a helper that the host does not schedule costs nothing.
class Team {
 public:
  static Team& instance();

  void set_threads(int n);
  int threads() const { return threads_.load(std::memory_order_relaxed); }

  /// Runs the job to its end. Alone if `share` is false or the helpers are busy with another card.
  void run(Job& job, int units, bool share);

 private:
  Team();
  void help(int index);
  bool claim_and_run(bool leader);
  void publish(int units);
  void ensure_helpers();
  void wait_for_ticket(uint64_t seen, bool leader);

  std::mutex leader_;                 // held while a job runs
  std::atomic<int> threads_;          // including the caller of run()
  std::vector<std::thread> helpers_;  // guarded by leader_
  Job* job_ = nullptr;                // valid while units are claimed
  PrefetchBoard board_;               // for threads that wait
  // Ticket: epoch << 32 | units << 24 | claims of the second half << 12 | claims of the first half. An epoch is one
  // phase of one job; units 0 means no work.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int> remaining_{0};
  alignas(64) std::atomic<uint32_t> helper_wake_{0};
  std::atomic<int> helpers_asleep_{0};
  alignas(64) std::atomic<uint32_t> leader_wake_{0};
  std::atomic<int> leader_asleep_{0};
};

/// Spins for a few microseconds (yielding towards the end) until done() is true. Returns done().
template <class Done>
bool spin_until(Done&& done, int pauses = 256, int yields = 4) {
  for (int i = 0; i < pauses; ++i) {
    if (done()) return true;
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }
  for (int i = 0; i < yields; ++i) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return done();
}

/// Pauses worth spinning on this machine: none when there is nobody to wait for on another CPU.
int spin_pauses();

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen);
void futex_wake(std::atomic<uint32_t>& word, int count);

}  // namespace spyre::card
