// SPDX-License-Identifier: Apache-2.0
#include "sanitize.h"

#include <algorithm>
#include <cstdlib>

#include "spyre/card.h"

namespace spyre::card {
namespace {

struct Reports {
  std::mutex mutex;
  std::vector<SanitizerReport> list;
  size_t warned = 0;  // reports whose warnings have been handed out
};

Reports& reports() {
  static Reports instance;
  return instance;
}

bool is_true(const std::string& text) {
  std::string word;
  for (char c : text) word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* yes : {"1", "true", "on", "yes"})
    if (word == yes) return true;
  for (const char* no : {"", "0", "false", "off", "no"})
    if (word == no) return false;
  throw Error("InvalidArgument", "invalid SPYRE_SANITIZE value " + text + ": legal values are 0 or 1");
}

}  // namespace

std::atomic<Sanitize> sanitize_state{Sanitize::off};

std::atomic<uint64_t> sanitize_epoch{0};

void set_sanitize(Sanitize mode) {
  if (sanitize_state.exchange(mode) == Sanitize::off && mode != Sanitize::off) ++sanitize_epoch;
}
Sanitize sanitize_mode() { return sanitize_state; }

void read_sanitize_variable() {
  const char* text = std::getenv("SPYRE_SANITIZE");
  if (text && is_true(text) && !sanitizing()) set_sanitize(Sanitize::raise);
}

std::vector<SanitizerReport> sanitizer_reports() {
  std::lock_guard lock(reports().mutex);
  return reports().list;
}

void clear_sanitizer_reports() {
  std::lock_guard lock(reports().mutex);
  reports().list.clear();
  reports().warned = 0;
}

std::vector<std::string> new_sanitizer_warnings() {
  Reports& r = reports();
  std::lock_guard lock(r.mutex);
  std::vector<std::string> messages;
  for (; r.warned < r.list.size(); ++r.warned) {
    const SanitizerReport& report = r.list[r.warned];
    // A value that nobody reads is more often dead code than a defect.
    if (report.warning && report.kind != "DeadWrite") messages.push_back(report.kind + ": " + report.message);
  }
  return messages;
}

SanitizerReport make_report(const char* kind, const Image& image, uint32_t pc, int core, const std::string& message) {
  SanitizerReport r;
  const Instr& i = image.instrs[pc];
  r.kind = kind;
  r.origin = image.origin_of(i);
  r.kernel = r.origin.substr(0, std::min(r.origin.find(": "), r.origin.size()));
  r.instruction = pc;
  r.op = i.op == Op::VOP ? vop_name(i.vop) : op_name(i.op);
  r.core = core;
  r.message = describe(image, pc, core) + message;
  return r;
}

void add_report(const SanitizerReport& report) {
  Reports& r = reports();
  std::lock_guard lock(r.mutex);
  if (r.list.size() < kMaxSanitizerReports) r.list.push_back(report);
}

void MemoryShadow::renew() {
  uint64_t now = sanitize_epoch.load();
  if (epoch_ == now) return;
  epoch_ = now;
  fresh_.clear();
  sizes_.clear();
}

void MemoryShadow::allocated(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  renew();
  sizes_[address] = bytes;
  fresh_.add(static_cast<int64_t>(address), static_cast<int64_t>(address + bytes));
}

void MemoryShadow::freed(uint64_t address) {
  std::lock_guard lock(mutex_);
  renew();
  auto found = sizes_.find(address);
  if (found == sizes_.end()) return;
  fresh_.remove(static_cast<int64_t>(address), static_cast<int64_t>(address + found->second));
  sizes_.erase(found);
}

void MemoryShadow::written(uint64_t begin, uint64_t end) {
  constexpr int64_t stick = kStickBytes;
  std::lock_guard lock(mutex_);
  renew();
  fresh_.remove(static_cast<int64_t>(begin) / stick * stick, (static_cast<int64_t>(end) + stick - 1) / stick * stick);
}

std::pair<int64_t, int64_t> MemoryShadow::unwritten(uint64_t begin, uint64_t end) {
  std::lock_guard lock(mutex_);
  renew();
  return fresh_.first_overlap(static_cast<int64_t>(begin), static_cast<int64_t>(end));
}

}  // namespace spyre::card
