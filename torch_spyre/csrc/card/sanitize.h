// SPDX-License-Identifier: Apache-2.0
// What the sanitizer keeps: the switch, the reports, and which card memory was never written.
#pragma once
#include <mutex>

#include "access.h"
#include "program.h"
#include "spyre/sanitizer.h"

namespace spyre::card {

extern std::atomic<Sanitize> sanitize_state;
/// Counts how often it was turned on: what a shadow learned before means nothing afterwards.
extern std::atomic<uint64_t> sanitize_epoch;
inline bool sanitizing() { return sanitize_state.load(std::memory_order_relaxed) != Sanitize::off; }

/// Turns the sanitizer on if SPYRE_SANITIZE says so.
void read_sanitize_variable();

/// A report about an instruction; the message gets the usual head. Returns what was added.
SanitizerReport make_report(const char* kind, const Image& image, uint32_t pc, int core, const std::string& message);
void add_report(const SanitizerReport& report);

/// Card memory that was allocated while the sanitizer was on and not written since. Granularity: a stick, the unit in
/// which memory moves; the padding lanes of a written stick count as written.
class MemoryShadow {
 public:
  void allocated(uint64_t address, uint64_t bytes);
  void freed(uint64_t address);
  void written(uint64_t begin, uint64_t end);
  /// The first unwritten part of the range, or an empty range.
  std::pair<int64_t, int64_t> unwritten(uint64_t begin, uint64_t end);

 private:
  /// Forgets what it knew if the sanitizer was off meanwhile: writes were then not seen.
  void renew();

  std::mutex mutex_;
  uint64_t epoch_ = 0;
  IntervalSet fresh_;
  std::map<uint64_t, uint64_t> sizes_;  // of the allocations it knows
};

}  // namespace spyre::card
