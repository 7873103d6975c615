// SPDX-License-Identifier: Apache-2.0
// The sanitizer: launches that are checked while they run. One switch and one list of reports for the whole process.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace spyre::card {

/// One defect. Errors are also thrown (unless set_sanitize said otherwise), warnings are only collected.
struct SanitizerReport {
  std::string kind;  // RaceDetected, UninitializedRead, OutOfBounds, ..., NanProduced, Saturated, FormatMismatch, ...
  bool warning = false;
  std::string kernel;  // the part of the origin before its first colon
  std::string origin;
  uint32_t instruction = 0;
  std::string op;
  int core = 0;
  std::string space;            // "memory", "LX" or empty
  uint64_t begin = 0, end = 0;  // bytes: card addresses, or offsets in the core's LX
  std::string message;          // all of the above in words
};

enum class Sanitize : uint8_t { off, report, raise };

/// Launches and transfers submitted from now on are checked; they then block, so that an error reaches the caller. The
/// environment variable SPYRE_SANITIZE turns it on when a card is opened.
void set_sanitize(Sanitize mode);
Sanitize sanitize_mode();

/// At most kMaxSanitizerReports are kept, the oldest ones.
constexpr size_t kMaxSanitizerReports = 1000;
std::vector<SanitizerReport> sanitizer_reports();
void clear_sanitizer_reports();
/// Messages of the warnings (but DeadWrite) that no call of this function has returned yet.
std::vector<std::string> new_sanitizer_warnings();

}  // namespace spyre::card
