// SPDX-License-Identifier: Apache-2.0
#include "program_job.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "kernel_times.h"
#include "kernels/kernels.h"

namespace spyre::card {

std::vector<uint32_t> scalar_bits(const Launch& launch) {
  std::vector<uint32_t> bits(launch.scalars.size());
  for (size_t s = 0; s < bits.size(); ++s) {
    if (launch.image->scalar_is_float[s])
      std::memcpy(&bits[s], &launch.scalars[s].f, 4);
    else
      bits[s] = static_cast<uint32_t>(launch.scalars[s].i);
  }
  return bits;
}

ProgramJob::ProgramJob(const Launch& launch, std::byte* lx, std::vector<CoreState>& cores)
    : launch_(launch), image_(*launch.image), lx_(lx), cores_(cores), scalar_bits_(scalar_bits(launch)) {
  std::vector<int64_t> ints;
  for (size_t s = 0; s < launch.scalars.size(); ++s)
    if (!image_.scalar_is_float[s]) ints.push_back(launch.scalars[s].i);
  for (uint32_t c = 0; c < image_.cores; ++c) cores_[c].reset(image_, static_cast<int>(c), ints);
}

void ProgramJob::run_unit(int unit) {
  CoreState& core = cores_[unit];
  FastArith arith;
  try {
    for (const Instr* i = &advance(image_, core, arith); i->tile(); i = &advance(image_, core, arith)) {
      run_tile(core, *i);
      ++core.pc;
    }
  } catch (const std::bad_alloc&) {
    fail(core, out_of_working_memory().kind, out_of_working_memory().message);
  }
}

int ProgramJob::next_phase() {
  if (image_.instrs[cores_[0].pc].op == Op::END || failure_.any()) return 0;
  for (uint32_t c = 0; c < image_.cores; ++c) ++cores_[c].pc;
  return static_cast<int>(image_.cores);
}

void ProgramJob::run_tile(const CoreState& core, const Instr& i) {
  FastArith arith;
  Shape shape;
  if (!resolve_shape(image_, i, core, arith, shape)) return;
  auto operands = image_.operands_of(i);
  LayoutMap layouts[2];
  Operands views;
  size_t n = operands.size();
  for (size_t k = 0; k < n; ++k) views.set(k, resolve(operands[k], core, i.rank, &layouts[k & 1]));
  if (i.op == Op::RINGSUM) n = ring_sources(core, i, operands[1], views);
  const int64_t start = i.op == Op::IOTA ? evaluate(image_, i.a, core, arith) : 0;
  auto failure = run_kernel(image_, i, shape, i.reduced_mask, start, views.data(), n);
  if (failure) fail(core, failure->kind, failure->message);
}

/// Expands views[1] into the sources of a RINGSUM; returns the number of operands.
size_t ProgramJob::ring_sources(const CoreState& core, const Instr& i, const Operand& in, Operands& views) const {
  FastArith arith;
  int64_t owner = evaluate(image_, i.a, core, arith);
  const int64_t offset = evaluate(image_, in.offset, core, arith);
  for (uint32_t k = 0; k < i.ring_cores; ++k, owner += i.step) {
    if (k > 0) views.set(1 + k, views[1]);
    views[1 + k].base = lx_of(owner) + offset;
  }
  return 1 + i.ring_cores;
}

namespace {

/// Where a table has less than the extent of its dim, a program computes the values that are checked here: of an index
/// that is outside, the same with its sign bit set. The origin of the instruction says the bounds.
std::string out_of_range(const BadIndex& bad) {
  constexpr int64_t kSign = int64_t{1} << 31;
  if (bad.value < -(kSign >> 1)) return "index " + std::to_string(bad.value + kSign) + " lies outside";
  if (bad.value < 0) return "index " + std::to_string(bad.value) + " lies below 0";
  return "index " + std::to_string(bad.value) + " lies outside [0, " + std::to_string(bad.limit) + ")";
}

std::optional<Failure> move_indexed(const Image& image, const Instr& i, const Shape& shape, const View* views) {
  TableIndex indices[kMaxIndices];
  int n = i.n_indices();
  for (int k = 0; k < n; ++k) {
    const Index& index = image.indices[i.first_index + k];
    indices[k] = {views[2 + k], index.along, index.limit};
  }
  BadIndex bad{};
  bool ok = i.op == Op::GATHER ? gather(shape, views[0], views[1], indices, n, i.masked(), &bad)
                               : scatter(shape, views[0], views[1], indices, n, i.accumulates(), i.masked(), &bad);
  if (ok) return std::nullopt;
  return Failure{0, 0, "IndexOutOfRange", out_of_range(bad)};
}

}  // namespace

std::optional<Failure> run_kernel(const Image& image, const Instr& i, const Shape& shape, uint32_t reduced_mask,
                                  int64_t start, const View* views, size_t n) {
  const KernelTimer timer(i, shape);
  const int inputs = static_cast<int>(n) - 1;
  switch (i.op) {
    case Op::VOP:
      vector_op(i.vop, i.compute, shape, views[0], views + 1, inputs);
      break;
    case Op::REDUCE:
      reduce(i.rop, i.compute, shape, reduced_mask, i.accumulates(), views[0], views[1]);
      break;
    case Op::MATMUL:
      matmul(shape, i.accumulates(), i.taps(), views[0], views[1], views[2]);
      break;
    case Op::COPY:
      if (!copy(shape, views[0], views[1]))
        return Failure{0, 0, "Overflow", "a value does not fit the format it is stored in"};
      break;
    case Op::RINGSUM:
      sum_views(shape, views[0], views + 1, inputs);
      break;
    case Op::GATHER:
    case Op::SCATTER:
      return move_indexed(image, i, shape, views);
    case Op::IOTA:
      iota(shape, views[0], start, &image.maps[i.first_step]);
      break;
    case Op::SCAN:
      scan(i.rop, i.compute, shape, i.dim, views[0], views[1]);
      break;
    case Op::ARGREDUCE:
      arg_reduce(i.rop, shape, i.dim, i.outputs & 1 ? &views[0] : nullptr,
                 i.outputs & 2 ? &views[i.n_outputs - 1] : nullptr, views[i.n_outputs]);
      break;
    case Op::SORT:
      sort(shape, i.dim, i.order & kDescending, i.order & kStable, i.step, i.outputs & 1 ? &views[0] : nullptr,
           i.outputs & 2 ? &views[i.n_outputs - 1] : nullptr, views[i.n_outputs]);
      break;
    default:
      break;
  }
  return std::nullopt;
}

void ProgramJob::fail(const CoreState& core, const char* kind, const std::string& message) {
  failure_.note({core.core, core.pc, kind, message});
}

namespace {

/// A condition is a GATHER from a table of one element, at 1 where it does not hold. Its origin ends in
/// ": check failed: <kind>: <text>", which says what that means.
void raise_check(const std::string& where) {
  constexpr std::string_view mark = ": check failed: ", end = ": ";
  const size_t at = where.rfind(mark);
  if (at == std::string::npos) return;
  const std::string rest = where.substr(at + mark.size(), where.size() - at - mark.size() - end.size());
  for (const char* kind : {"Overflow", "ZeroDivision", "InvalidArgument", "AssertionFailed"}) {
    const std::string head = kind + std::string(end);
    if (rest.starts_with(head)) throw Error(kind, where.substr(0, at) + std::string(end) + rest.substr(head.size()));
  }
}

}  // namespace

void FirstFailure::note(const Failure& failure) {
  std::lock_guard lock(mutex_);
  if (failure_ && failure_->core <= failure.core) return;
  failure_ = failure;
  any_ = true;
}

void FirstFailure::raise(const Image& image) const {
  if (!failure_) return;
  const std::string where = describe(image, failure_->pc, failure_->core);
  if (failure_->kind == std::string_view("IndexOutOfRange")) raise_check(where);
  throw Error(failure_->kind, where + failure_->message);
}

View ProgramJob::resolve(const Operand& o, const CoreState& core, int rank, LayoutMap* layout) const {
  FastArith arith;
  View v;
  v.format = o.format;
  if (!o.addressed()) {
    const uint32_t* bits = o.space == Space::IMM ? &o.bits : &scalar_bits_[o.index];
    v.base = reinterpret_cast<std::byte*>(const_cast<uint32_t*>(bits));
    return v;
  }
  v.base = base_of(o, core, arith) + evaluate(image_, o.offset, core, arith);
  if (o.layout >= 0) {
    *layout = image_.layouts[o.layout].map;
    layout->offset = evaluate(image_, image_.layouts[o.layout].offset, core, arith);
    v.layout = layout;
  } else {
    std::copy_n(image_.maps.data() + o.first_map, rank, v.dim);
  }
  return v;
}

std::byte* ProgramJob::base_of(const Operand& o, const CoreState& core, FastArith& arith) const {
  switch (o.space) {
    case Space::MEM:
      return launch_.args[o.index];
    case Space::LX:
      return lx_of(core.core);
    // RINGSUM ignores the core field, which may then name no core at all: ring_sum sets the base.
    case Space::LX_REMOTE:
      return lx_of(std::clamp<int64_t>(evaluate(image_, o.core, core, arith), 0, kCores - 1));
    default:
      return const_cast<std::byte*>(image_.constants.data());
  }
}

}  // namespace spyre::card
