// SPDX-License-Identifier: Apache-2.0
#include "team.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <string>

#include "spyre/card.h"

namespace spyre::card {
namespace {

constexpr int kUnitsShift = 24, kEpochShift = 32;
constexpr uint64_t kEpoch = 1ull << kEpochShift;
constexpr int kHalfShift[] = {0, 12};
int units_of(uint64_t ticket) { return static_cast<int>(ticket >> kUnitsShift & 0xFF); }
int claims_of(uint64_t ticket, int half) { return static_cast<int>(ticket >> kHalfShift[half] & 0xFFF); }
int units_of_half(uint64_t ticket, int half) {
  return half == 0 ? units_of(ticket) / 2 : units_of(ticket) - units_of(ticket) / 2;
}
bool half_has_work(uint64_t ticket, int half) { return claims_of(ticket, half) < units_of_half(ticket, half); }
bool has_work(uint64_t ticket) { return half_has_work(ticket, 0) || half_has_work(ticket, 1); }

constexpr int kMaxThreads = 256;

int hardware_threads() { return static_cast<int>(std::thread::hardware_concurrency()); }

/// Processes of this host that work together, as launchers say it.
int local_ranks() {
  const char* text = std::getenv("LOCAL_WORLD_SIZE");
  return text ? std::atoi(text) : 1;
}

int default_threads() {
  if (const char* text = std::getenv("SPYRE_HOST_THREADS")) {
    char* end = nullptr;
    long n = std::strtol(text, &end, 10);
    if (end == text || *end != '\0' || n < 0 || n > kMaxThreads)
      throw Error("InvalidArgument",
                  std::string("SPYRE_HOST_THREADS is '") + text + "'; give 0 (hardware threads) to 256");
    if (n > 0) return static_cast<int>(n);
  }
  const int share = hardware_threads() / std::max(1, local_ranks());
  return std::clamp(share, 1, kMaxThreads);
}

}  // namespace

int spin_pauses() {
  // Some 50 us: the longest that one thread works alone between shared work.
  static const int pauses = hardware_threads() > 1 && local_ranks() <= hardware_threads() ? 2000 : 0;
  return pauses;
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

Team::Team() : threads_(default_threads()) {}

Team& Team::instance() {
  static Team* team = new Team;  // never destroyed: helpers sleep on it until the process ends
  return *team;
}

void Team::set_threads(int n) {
  if (n < 1 || n > kMaxThreads) throw Error("InvalidArgument", "host threads must be 1..256, not " + std::to_string(n));
  std::lock_guard lock(leader_);
  threads_ = n;
  publish(0);  // a new epoch: every helper looks at threads_ again
  helper_wake_.fetch_add(1);
  futex_wake(helper_wake_, INT_MAX);
  while (static_cast<int>(helpers_.size()) > n - 1) {
    helpers_.back().join();
    helpers_.pop_back();
  }
}

void Team::ensure_helpers() {
  while (static_cast<int>(helpers_.size()) < threads() - 1) {
    int index = static_cast<int>(helpers_.size());
    helpers_.emplace_back([this, index] { help(index); });
  }
}

void Team::run(Job& job, int units, bool share) {
  std::unique_lock lock(leader_, std::defer_lock);
  if (units == 0) return;
  if (!share || threads() == 1 || !lock.try_lock()) {
    for (; units; units = job.next_phase())
      for (int u = 0; u < units; ++u) job.run_unit(u);
    return;
  }
  ensure_helpers();
  job_ = &job;
  job.announce(board_);
  remaining_.store(units, std::memory_order_relaxed);
  publish(units);
  for (;;) {
    if (claim_and_run(true)) continue;
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    if (units_of(ticket) == 0) return;
    if (!has_work(ticket)) wait_for_ticket(ticket, true);
  }
}

/// Publishes a phase. With 0 units the job is over and must not be touched any more.
void Team::publish(int units) {
  uint64_t epoch = (ticket_.load(std::memory_order_relaxed) / kEpoch + 1) * kEpoch;
  ticket_.store(epoch | static_cast<uint64_t>(units) << kUnitsShift, std::memory_order_seq_cst);
  if (leader_asleep_.load(std::memory_order_seq_cst)) {
    leader_wake_.fetch_add(1);
    futex_wake(leader_wake_, 1);
  }
  if (units > 1 && helpers_asleep_.load(std::memory_order_seq_cst)) {
    helper_wake_.fetch_add(1);
    futex_wake(helper_wake_, INT_MAX);
  }
}

/// The leader begins with the first half, helpers with the second, as units in a row read memory in a row.
bool Team::claim_and_run(bool leader) {
  uint64_t ticket = ticket_.load(std::memory_order_relaxed);
  if (!has_work(ticket)) return false;
  const int own = leader ? 0 : 1, half = half_has_work(ticket, own) ? own : 1 - own;
  ticket = ticket_.fetch_add(1ull << kHalfShift[half], std::memory_order_acq_rel);
  if (!half_has_work(ticket, half)) return has_work(ticket);
  // A claimed unit keeps the phase, and so the job, alive until it is counted below.
  Job& job = *job_;
  job.run_unit(claims_of(ticket, half) + (half == 1 ? units_of_half(ticket, 0) : 0));
  if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    int units = job.next_phase();
    if (units) job.announce(board_);
    for (; units == 1; units = job.next_phase()) job.run_unit(0);  // nobody could help
    if (units) job.announce(board_);
    remaining_.store(units, std::memory_order_relaxed);
    publish(units);
  }
  return true;
}

void Team::wait_for_ticket(uint64_t seen, bool leader) {
  auto changed = [&] { return ticket_.load(std::memory_order_acquire) / kEpoch != seen / kEpoch; };
  while (!changed() && board_.help(leader)) {
  }
  if (spin_until(changed, spin_pauses())) return;
  std::atomic<uint32_t>& word = leader ? leader_wake_ : helper_wake_;
  std::atomic<int>& asleep = leader ? leader_asleep_ : helpers_asleep_;
  uint32_t wake = word.load();
  asleep.fetch_add(1, std::memory_order_seq_cst);
  if (ticket_.load(std::memory_order_seq_cst) / kEpoch == seen / kEpoch) futex_wait(word, wake);
  asleep.fetch_sub(1, std::memory_order_seq_cst);
}

void Team::help(int index) {
  for (;;) {
    if (claim_and_run(false)) continue;
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    if (index >= threads() - 1) return;
    if (!has_work(ticket)) wait_for_ticket(ticket, false);
  }
}

void set_host_threads(int n) { Team::instance().set_threads(n); }
int host_threads() { return Team::instance().threads(); }

}  // namespace spyre::card
