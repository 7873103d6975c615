// SPDX-License-Identifier: Apache-2.0
#include "program_job.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "kernels/kernels.h"

namespace spyre::card {

ProgramJob::ProgramJob(const Launch& launch, std::byte* lx, std::vector<CoreState>& cores)
    : launch_(launch), image_(*launch.image), lx_(lx), cores_(cores) {
  std::vector<int64_t> ints;
  scalar_bits_.resize(launch.scalars.size());
  for (size_t s = 0; s < launch.scalars.size(); ++s) {
    bool is_float = image_.scalar_is_float[s];
    if (!is_float) ints.push_back(launch.scalars[s].i);
    if (is_float)
      std::memcpy(&scalar_bits_[s], &launch.scalars[s].f, 4);
    else
      scalar_bits_[s] = static_cast<uint32_t>(launch.scalars[s].i);
  }
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
    fail(core, "OutOfMemory", "the host has no working memory for the instruction; use smaller tiles");
  }
}

int ProgramJob::next_phase() {
  if (image_.instrs[cores_[0].pc].op == Op::END || failed_.load(std::memory_order_relaxed)) return 0;
  for (uint32_t c = 0; c < image_.cores; ++c) ++cores_[c].pc;
  return static_cast<int>(image_.cores);
}

void ProgramJob::run_tile(const CoreState& core, const Instr& i) {
  FastArith arith;
  Shape shape;
  if (!resolve_shape(image_, i, core, arith, shape)) return;
  auto operands = image_.operands_of(i);
  LayoutMap layouts[2];
  View views[kMaxOperands];
  for (size_t k = 0; k < operands.size(); ++k) views[k] = resolve(operands[k], core, i.rank, &layouts[k & 1]);
  switch (i.op) {
    case Op::VOP:
      return vector_op(i.vop, i.compute, shape, views[0], views + 1, static_cast<int>(operands.size()) - 1);
    case Op::REDUCE:
      return reduce(i.rop, i.compute, shape, i.reduced_mask, i.accumulates(), views[0], views[1]);
    case Op::MATMUL:
      return matmul(shape, i.accumulates(), views[0], views[1], views[2]);
    case Op::COPY:
      if (!copy(shape, views[0], views[1])) fail(core, "Overflow", "a value does not fit the format it is stored in");
      return;
    case Op::RINGSUM:
      return ring_sum(core, i, operands[1], shape, views[0], views[1]);
    case Op::GATHER:
    case Op::SCATTER:
      return move_indexed(core, i, shape, views);
    case Op::IOTA:
      return iota(shape, views[0], evaluate(image_, i.a, core, arith), &image_.maps[i.first_step]);
    case Op::SCAN:
      return scan(i.rop, i.compute, shape, i.dim, views[0], views[1]);
    case Op::ARGREDUCE:
      return arg_reduce(i.rop, shape, i.dim, i.outputs & 1 ? &views[0] : nullptr,
                        i.outputs & 2 ? &views[i.n_outputs - 1] : nullptr, views[i.n_outputs]);
    case Op::SORT:
      return sort(shape, i.dim, i.order & kDescending, i.order & kStable, i.step, i.outputs & 1 ? &views[0] : nullptr,
                  i.outputs & 2 ? &views[i.n_outputs - 1] : nullptr, views[i.n_outputs]);
    default:
      return;
  }
}

void ProgramJob::move_indexed(const CoreState& core, const Instr& i, const Shape& shape, const View* views) {
  TableIndex indices[kMaxIndices];
  int n = i.n_indices();
  for (int k = 0; k < n; ++k) {
    const Index& index = image_.indices[i.first_index + k];
    indices[k] = {views[2 + k], index.along, index.limit};
  }
  BadIndex bad{};
  bool ok = i.op == Op::GATHER ? gather(shape, views[0], views[1], indices, n, i.masked(), &bad)
                               : scatter(shape, views[0], views[1], indices, n, i.accumulates(), i.masked(), &bad);
  if (!ok)
    fail(core, "IndexOutOfRange",
         "index " + std::to_string(bad.value) + " lies outside [0, " + std::to_string(bad.limit) + ")");
}

void ProgramJob::fail(const CoreState& core, const char* kind, const std::string& message) {
  std::lock_guard lock(failure_mutex_);
  if (failure_ && failure_->core <= core.core) return;
  failure_ = {core.core, core.pc, kind, message};
  failed_ = true;
}

void ProgramJob::throw_failure() const {
  if (failure_) throw Error(failure_->kind, describe(image_, failure_->pc, failure_->core) + failure_->message);
}

void ProgramJob::ring_sum(const CoreState& core, const Instr& i, const Operand& in, const Shape& shape, const View& out,
                          const View& source) {
  FastArith arith;
  int64_t owner = evaluate(image_, i.a, core, arith);
  int64_t offset = evaluate(image_, in.offset, core, arith);
  View views[kCores];
  for (uint32_t k = 0; k < i.ring_cores; ++k, owner += i.step) {
    views[k] = source;
    views[k].base = lx_of(owner) + offset;
  }
  sum_views(shape, out, views, static_cast<int>(i.ring_cores));
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
