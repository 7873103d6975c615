// SPDX-License-Identifier: Apache-2.0
#include "exec.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/kernels.h"
#include "team.h"

namespace spyre::card {
namespace {

constexpr uint64_t kSharedWork = 16384;  // element operations per phase from which helper threads pay

/// All cores of one launch as a job: a unit is one core, a phase ends at a BARRIER.
class ProgramJob final : public Job {
 public:
  ProgramJob(const Launch& launch, std::byte* lx, std::vector<CoreState>& cores)
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

  void run_unit(int unit) override {
    CoreState& core = cores_[unit];
    FastArith arith;
    for (const Instr* i = &advance(image_, core, arith); i->tile(); i = &advance(image_, core, arith)) {
      run_tile(core, *i);
      ++core.pc;
    }
  }

  int next_phase() override {
    if (image_.instrs[cores_[0].pc].op == Op::END || failed_.load(std::memory_order_relaxed) >= 0) return 0;
    for (uint32_t c = 0; c < image_.cores; ++c) ++cores_[c].pc;
    return static_cast<int>(image_.cores);
  }

  /// Index of a COPY that met a value outside its destination's range, or -1.
  int64_t failed() const { return failed_; }

 private:
  void run_tile(const CoreState& core, const Instr& i) {
    FastArith arith;
    Shape shape;
    if (!resolve_shape(image_, i, core, arith, shape)) return;
    auto operands = image_.operands_of(i);
    LayoutMap layouts[2];
    View views[4];
    for (size_t k = 0; k < operands.size(); ++k) views[k] = resolve(operands[k], core, i.rank, &layouts[k & 1]);
    switch (i.op) {
      case Op::VOP:
        return vector_op(i.vop, i.compute, shape, views[0], views + 1, static_cast<int>(operands.size()) - 1);
      case Op::REDUCE:
        return reduce(i.rop, i.compute, shape, i.reduced_mask, i.accumulates(), views[0], views[1]);
      case Op::MATMUL:
        return matmul(shape, i.accumulates(), views[0], views[1], views[2]);
      case Op::COPY:
        if (!copy(shape, views[0], views[1])) failed_ = &i - image_.instrs.data();
        return;
      case Op::RINGSUM:
        return ring_sum(core, i, operands[1], shape, views[0], views[1]);
      default:
        return;
    }
  }

  void ring_sum(const CoreState& core, const Instr& i, const Operand& in, const Shape& shape, const View& out,
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

  View resolve(const Operand& o, const CoreState& core, int rank, LayoutMap* layout) const {
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

  std::byte* base_of(const Operand& o, const CoreState& core, FastArith& arith) const {
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

  std::byte* lx_of(int64_t core) const { return lx_ + core * static_cast<int64_t>(kLxBytes); }

  const Launch& launch_;
  const Image& image_;
  std::byte* lx_;
  std::vector<CoreState>& cores_;
  std::vector<uint32_t> scalar_bits_;
  std::atomic<int64_t> failed_{-1};
};

}  // namespace

Executor::Executor() : cores_(kCores) {
  void* p =
      mmap(nullptr, kCores * kLxBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw Error("OutOfMemory", "cannot reserve 64 MiB for the scratchpads of a card");
  lx_ = static_cast<std::byte*>(p);
}

Executor::~Executor() { munmap(lx_, kCores * kLxBytes); }

void Executor::run(const Launch& launch) {
  ProgramJob job(launch, lx_, cores_);
  const Proof& proof = *launch.proof;
  int cores = static_cast<int>(launch.image->cores);
  Team::instance().run(job, cores, cores > 1 && proof.work / proof.phases >= kSharedWork);
  if (job.failed() >= 0) {
    const Instr& i = launch.image->instrs[job.failed()];
    throw Error("Overflow", "instruction " + std::to_string(job.failed()) + " (" + op_name(i.op) + ") " +
                                launch.image->origin_of(i) + ": a value does not fit the format it is stored in");
  }
}

}  // namespace spyre::card
