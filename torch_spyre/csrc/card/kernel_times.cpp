// SPDX-License-Identifier: Apache-2.0
#include "kernel_times.h"

#include <map>
#include <mutex>
#include <utility>

namespace spyre::card {
namespace {

std::mutex mutex;
std::map<std::pair<std::string, std::string>, KernelTime> times;  // by kind and shape; guarded by mutex

std::string kind_of(const Instr& i) {
  std::string kind = op_name(i.op);
  if (i.op == Op::VOP) kind += std::string(" ") + vop_name(i.vop);
  if (i.op == Op::REDUCE) kind += std::string(" ") + rop_name(i.rop);
  return kind;
}

}  // namespace

std::atomic<bool> counting_kernel_times{false};

void count_kernel_times(bool on) {
  std::lock_guard lock(mutex);
  times.clear();
  counting_kernel_times = on;
}

void add_kernel_time(const Instr& i, const Shape& shape, uint64_t ns) {
  std::string extents;
  for (int d = 0; d < shape.rank; ++d) extents += (d ? "x" : "") + std::to_string(shape.extent[d]);
  std::string kind = kind_of(i);
  std::lock_guard lock(mutex);
  KernelTime& t = times[{kind, extents}];
  t.kind = std::move(kind);
  t.shape = std::move(extents);
  ++t.calls;
  t.ns += ns;
}

std::vector<KernelTime> kernel_times() {
  std::lock_guard lock(mutex);
  std::vector<KernelTime> list;
  for (const auto& [key, time] : times) list.push_back(time);
  return list;
}

}  // namespace spyre::card
