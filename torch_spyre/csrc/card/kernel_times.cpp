// SPDX-License-Identifier: Apache-2.0
#include "kernel_times.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace spyre::card {
namespace {

/// A span as it is noted: without strings, which would show in the times.
struct RawSpan {
  const char* kind;  // null: a kernel call
  Op op;
  VOp vop;
  ROp rop;
  Shape shape;
  uint64_t start_ns, end_ns;
};

constexpr size_t kMaxSpans = 1 << 18;  // per thread

using Spans = std::vector<RawSpan>;

std::mutex mutex;
std::map<std::pair<std::string, std::string>, KernelTime> times;  // by kind and shape; guarded by mutex
std::vector<std::shared_ptr<Spans>> spans;                        // by thread; guarded by mutex

std::string kind_of(Op op, VOp vop, ROp rop) {
  std::string kind = op_name(op);
  if (op == Op::VOP) kind += std::string(" ") + vop_name(vop);
  if (op == Op::REDUCE) kind += std::string(" ") + rop_name(rop);
  return kind;
}

std::string text_of(const Shape& shape) {
  std::string extents;
  for (int d = 0; d < shape.rank; ++d) extents += (d ? "x" : "") + std::to_string(shape.extent[d]);
  return extents;
}

void add(const RawSpan& span) {
  thread_local std::shared_ptr<Spans> mine;
  if (!mine) {
    mine = std::make_shared<Spans>();
    mine->reserve(kMaxSpans);
    std::lock_guard lock(mutex);
    spans.push_back(mine);
  }
  if (mine->size() < kMaxSpans) mine->push_back(span);
}

}  // namespace

std::atomic<Profiling> profiling{Profiling::off};

void count_kernel_times(bool on) {
  std::lock_guard lock(mutex);
  times.clear();
  profiling = on ? Profiling::sums : Profiling::off;
}

void record_timeline(bool on) {
  std::lock_guard lock(mutex);
  for (const auto& list : spans) list->clear();
  profiling = on ? Profiling::timeline : Profiling::off;
}

uint64_t wall_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void add_kernel_time(const Instr& i, const Shape& shape, uint64_t ns) {
  std::string extents = text_of(shape);
  std::string kind = kind_of(i.op, i.vop, i.rop);
  std::lock_guard lock(mutex);
  KernelTime& t = times[{kind, extents}];
  t.kind = std::move(kind);
  t.shape = std::move(extents);
  ++t.calls;
  t.ns += ns;
}

void add_call_span(const Instr& i, const Shape& shape, uint64_t start_ns) {
  add({nullptr, i.op, i.vop, i.rop, shape, start_ns, wall_ns()});
}

void add_span(const char* kind, int64_t a, int64_t b, uint64_t start_ns) {
  add({kind, Op::END, {}, {}, Shape{2, {a, b}}, start_ns, wall_ns()});
}

std::vector<KernelTime> kernel_times() {
  std::lock_guard lock(mutex);
  std::vector<KernelTime> list;
  for (const auto& [key, time] : times) list.push_back(time);
  return list;
}

std::vector<TimeSpan> timeline() {
  std::lock_guard lock(mutex);
  std::vector<TimeSpan> list;
  for (size_t t = 0; t < spans.size(); ++t)
    for (const RawSpan& s : *spans[t])
      list.push_back(
          {s.kind ? s.kind : kind_of(s.op, s.vop, s.rop), text_of(s.shape), static_cast<int>(t), s.start_ns, s.end_ns});
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.start_ns < b.start_ns; });
  return list;
}

}  // namespace spyre::card
