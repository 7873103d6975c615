// SPDX-License-Identifier: Apache-2.0
// The proof of docs/program-format.md: a dry run of the scalar part for every core and loop iteration, phase by phase.
// It checks what each tile instruction would touch and, on the way, counts it; running the program then needs neither
// checks nor counters.
#include <algorithm>
#include <string>
#include <vector>

#include "access.h"
#include "lx_proof.h"
#include "program.h"
#include "sanitize.h"
#include "scalar.h"
#include "schedule.h"

namespace spyre::card {
namespace {

// Scalar instructions, tile instructions, LX runs and further boxes of memory operands, of all cores.
constexpr uint64_t kMaxSteps = 50'000'000;
constexpr uint32_t kTermsPerStep = 16;  // of affine forms
constexpr uint64_t kMaxPoints = 1ull << 48;
constexpr uint64_t kMaxWork = 1ull << 42;         // element operations of one launch
constexpr int64_t kMaxSorted = int64_t{1} << 24;  // elements of one sorted line, which are held in host memory

class Prover {
 public:
  Prover(const Image& image, std::span<const int64_t> int_scalars)
      : image_(image),
        cores_(image.cores),
        lx_(
            image, [this](uint64_t steps, Location at) { spend(steps, at); },
            [this](const char* kind, Location at, const std::string& message) { fail(kind, at, message); }) {
    for (uint32_t c = 0; c < image.cores; ++c) {
      Core& core = cores_[c];
      core.state.reset(image, static_cast<int>(c), int_scalars);
      core.defined.assign(image.registers, 0);
      std::fill_n(core.defined.begin(), 1 + int_scalars.size(), 1);
    }
  }

  Proof run() {
    while (!run_phase()) ++proof_.phases;
    proof_.schedule = std::make_shared<ScheduleSlot>();
    return proof_;
  }

 private:
  struct Core {
    CoreState state;
    std::vector<uint8_t> defined;
  };

  /// Scalar arithmetic that refuses overflow, undefined registers and endless loops.
  struct CheckedArith {
    Prover& prover;
    Core& core;

    int64_t add(int64_t a, int64_t b) {
      if (__builtin_add_overflow(a, b, &a)) overflow();
      return a;
    }
    int64_t sub(int64_t a, int64_t b) {
      if (__builtin_sub_overflow(a, b, &a)) overflow();
      return a;
    }
    int64_t mul(int64_t a, int64_t b) {
      if (__builtin_mul_overflow(a, b, &a)) overflow();
      return a;
    }
    [[noreturn]] void overflow() { prover.fail("InvalidProgram", where(), "scalar arithmetic overflows 64 bits"); }
    void positive(int64_t b) {
      if (b <= 0)
        prover.fail("InvalidProgram", where(), "floordiv and mod need a positive divisor, not " + std::to_string(b));
    }
    int64_t read(const CoreState& s, uint16_t reg) {
      if (++prover.terms_ % kTermsPerStep == 0) prover.spend(1, where());
      if (!core.defined[reg])
        prover.fail("InvalidProgram", where(), "register " + std::to_string(reg) + " is read before it is set");
      return s.regs[reg];
    }
    void write(CoreState& s, uint16_t reg, int64_t value) {
      s.regs[reg] = value;
      core.defined[reg] = 1;
    }
    void step(const CoreState&) { prover.spend(1, where()); }
    Location where() const { return {core.state.core, core.state.pc}; }
  };

  /// Runs every core to its next BARRIER or END. Returns true at END.
  bool run_phase() {
    for (Core& core : cores_) {
      CheckedArith arith{*this, core};
      const Instr* i = &advance(image_, core.state, arith);
      while (i->tile()) {
        check_tile(core, *i, arith);
        ++core.state.pc;
        i = &advance(image_, core.state, arith);
      }
      if (core.state.pc != cores_[0].state.pc)
        fail("InvalidProgram", {core.state.core, core.state.pc},
             "reaches another BARRIER than core 0 (instruction " + std::to_string(cores_[0].state.pc) +
                 "): a LOOP around a BARRIER needs the same trip count on every core");
    }
    lx_.end_phase({0, cores_[0].state.pc});
    if (image_.instrs[cores_[0].state.pc].op == Op::END) return true;
    for (Core& core : cores_) ++core.state.pc;
    return false;
  }

  void check_tile(Core& core, const Instr& i, CheckedArith& arith) {
    Shape shape;
    if (!resolve_shape(image_, i, core.state, arith, shape)) return;
    uint64_t n = points(shape);
    if (n > kMaxPoints) fail("InvalidProgram", arith.where(), "an iteration box of more than 2^48 points");
    if (i.op == Op::IOTA) check_numbers(core, i, shape, arith);
    if (i.op == Op::SORT) check_sort(i, shape, arith.where());
    auto operands = image_.operands_of(i);
    for (size_t k = i.n_outputs; k < operands.size(); ++k) {
      if (i.op == Op::RINGSUM)
        check_ring(core, i, shape, arith);
      else
        check_operand(core, i, k, shape, arith, kRead);
    }
    if (i.op == Op::SORT) shape.extent[i.dim] = i.step;
    for (int k = 0; k < i.n_outputs; ++k) check_operand(core, i, k, shape, arith, output_access(i, operands[k]));
    ++proof_.counters.instructions;
    proof_.work += i.op == Op::MATMUL ? n / 16 + 1 : n;
    if (proof_.work > kMaxWork)
      fail("InvalidProgram", arith.where(), "the launch does more than 2^42 element operations; split it");
  }

  /// A SCATTER leaves most of its table as it is, so scratchpad tables must hold values before.
  static int output_access(const Instr& i, const Operand& o) {
    bool keeps = i.accumulates() || (i.op == Op::SCATTER && o.space == Space::LX);
    return keeps ? kRead | kWrite : kWrite;
  }

  /// IOTA: no number may leave 62 bits.
  void check_numbers(const Core& core, const Instr& i, const Shape& shape, CheckedArith& arith) {
    __int128 start = evaluate(image_, i.a, core.state, arith), reach = start < 0 ? -start : start;
    for (int d = 0; d < shape.rank; ++d) {
      const DimMap& m = image_.maps[i.first_step + d];
      int64_t last = shape.extent[d] - 1;
      reach += static_cast<__int128>(m.block ? std::min(last, m.block - 1) : last) * std::abs(m.inner);
      if (m.block) reach += static_cast<__int128>(last / m.block) * std::abs(m.outer);
    }
    if (reach >> 62) fail("InvalidProgram", arith.where(), "a number of the IOTA exceeds 62 bits");
  }

  void check_sort(const Instr& i, const Shape& shape, Location at) {
    int64_t n = shape.extent[i.dim];
    if (n > kMaxSorted) fail("InvalidProgram", at, "sorts " + std::to_string(n) + " elements at once; at most 2^24");
    if (i.step > n)
      fail("InvalidProgram", at, "keeps " + std::to_string(i.step) + " of " + std::to_string(n) + " sorted elements");
  }

  void check_ring(Core& core, const Instr& i, const Shape& shape, CheckedArith& arith) {
    int64_t owner = evaluate(image_, i.a, core.state, arith);
    for (uint32_t k = 0; k < i.ring_cores; ++k, owner = arith.add(owner, i.step))
      check_operand(core, i, 1, shape, arith, kRead, &owner);
  }

  void check_operand(Core& core, const Instr& i, size_t k, const Shape& shape, CheckedArith& arith, int access,
                     const int64_t* ring_owner = nullptr) {
    const Operand& o = image_.operands_of(i)[k];
    if (!o.addressed()) return;
    int64_t owner = core.state.core;
    if (o.space == Space::LX_REMOTE) {
      owner = ring_owner ? *ring_owner : evaluate(image_, o.core, core.state, arith);
      if (owner < 0 || owner >= image_.cores)
        fail("OutOfBounds", arith.where(),
             "reads the LX of core " + std::to_string(owner) + ", but " + std::to_string(image_.cores) + " cores run");
    }
    int64_t offset = evaluate(image_, o.offset, core.state, arith);
    int bytes = format_bytes(o.format);
    if (offset % bytes)
      fail("InvalidProgram", arith.where(),
           "byte offset " + std::to_string(offset) + " is not a multiple of the element");
    if (o.layout >= 0)
      check_layout(o, shape, arith, access, owner, offset);
    else
      check_boxes(core, i, k, shape, arith, access, owner, offset);
    count(i, k, shape, access, owner != core.state.core);
  }

  void check_boxes(Core& core, const Instr& i, size_t k, const Shape& shape, CheckedArith& arith, int access,
                   int64_t owner, int64_t offset) {
    const Operand& o = image_.operands_of(i)[k];
    const DimMap* maps = &image_.maps[o.first_map];
    if (i.indexed() && static_cast<int>(k) == i.table_operand())
      make_table_boxes(i, shape, maps, format_bytes(o.format));
    else
      make_boxes({shape.extent, static_cast<size_t>(shape.rank)}, maps, format_bytes(o.format), boxes_);
    spend(boxes_.size() - 1, arith.where());
    for (const Box& box : boxes_) {
      check_bounds(o, box.span(), offset, arith.where());
      if (in_lx(o)) touch_lx(o, area_of(box, offset), arith.where(), access, owner);
    }
  }

  /// A table is reached at every value that its indices may have.
  void make_table_boxes(const Instr& i, const Shape& shape, const DimMap* maps, int element_bytes) {
    int64_t extents[kMaxAxes];
    DimMap reach[kMaxAxes];
    std::copy_n(shape.extent, shape.rank, extents);
    std::copy_n(maps, shape.rank, reach);
    int n = i.n_indices();
    for (int k = 0; k < n; ++k) {
      extents[shape.rank + k] = image_.indices[i.first_index + k].limit;
      reach[shape.rank + k] = image_.indices[i.first_index + k].along;
    }
    make_boxes({extents, static_cast<size_t>(shape.rank + n)}, reach, element_bytes, boxes_);
  }

  void check_layout(const Operand& o, const Shape& shape, CheckedArith& arith, int access, int64_t owner,
                    int64_t offset) {
    LayoutMap map = image_.layouts[o.layout].map;
    map.offset = evaluate(image_, image_.layouts[o.layout].offset, arith.core.state, arith);
    const Area area = area_of(o.layout, map, shape, offset, format_bytes(o.format));
    ByteSpan span;
    uint64_t visited = 0;
    __int128 limit = static_cast<__int128>(limit_of(o)) - offset;
    bool inside = layout_span(map, shape, format_bytes(o.format), limit, kMaxSteps - steps_, span, visited);
    spend(visited, arith.where());
    if (!inside) fail("OutOfBounds", arith.where(), "addresses an element outside the layout of its tensor");
    check_bounds(o, span, offset, arith.where());
    if (in_lx(o)) touch_lx(o, area, arith.where(), access, owner);
  }

  static bool in_lx(const Operand& o) { return o.space == Space::LX || o.space == Space::LX_REMOTE; }

  void touch_lx(const Operand& o, const Area& area, Location at, int access, int64_t owner) {
    if (o.space == Space::LX_REMOTE)
      lx_.read_remote(at, static_cast<int>(owner), area);
    else
      lx_.touch(at, area, access);
  }

  uint64_t limit_of(const Operand& o) const {
    if (o.space == Space::MEM) return image_.args[o.index].bytes;
    return o.space == Space::CONST ? image_.constants.size() : image_.lx_bytes;
  }

  void check_bounds(const Operand& o, const ByteSpan& span, int64_t offset, Location at) {
    uint64_t limit = limit_of(o);
    __int128 begin = span.begin + offset, end = span.end + offset;
    if (begin >= 0 && end <= static_cast<__int128>(limit)) return;
    std::string what = o.space == Space::MEM     ? "argument " + std::to_string(o.index)
                       : o.space == Space::CONST ? "the constants"
                                                 : "LX";
    fail("OutOfBounds", at,
         "touches bytes [" + text(begin) + ", " + text(end) + ") of " + what + ", which has " + std::to_string(limit));
  }

  bool moves(const Operand& o, int dim) const {
    if (!o.addressed()) return false;
    if (o.layout >= 0) return image_.layouts[o.layout].map.stride[dim] != 0;
    const DimMap& m = image_.maps[o.first_map + dim];
    return m.inner != 0 || m.outer != 0;
  }

  /// Bytes of one operand; of a table those that the indices name, equal ones counted again.
  void count(const Instr& i, size_t k, const Shape& shape, int access, bool remote) {
    auto operands = image_.operands_of(i);
    const Operand& o = operands[k];
    bool table = i.indexed() && static_cast<int>(k) == i.table_operand();
    uint64_t bytes = format_bytes(o.format);
    for (int d = 0; d < shape.rank; ++d) {
      bool moved = moves(o, d);
      for (size_t index = 2; table && index < operands.size(); ++index) moved |= moves(operands[index], d);
      if (moved) bytes *= static_cast<uint64_t>(shape.extent[d]);
    }
    Counters& c = proof_.counters;
    if (o.space == Space::LX_REMOTE) {
      (remote ? c.ring_bytes : c.lx_read_bytes) += bytes;
      return;
    }
    if (o.space == Space::CONST) return;
    bool memory = o.space == Space::MEM;
    if (access & kRead) (memory ? c.memory_read_bytes : c.lx_read_bytes) += bytes;
    if (access & kWrite) (memory ? c.memory_write_bytes : c.lx_write_bytes) += bytes;
  }

  void spend(uint64_t steps, Location at) {
    if (steps > kMaxSteps - steps_)
      fail("InvalidProgram", at, "the proof needs more than 50 million steps; use fewer, larger tiles");
    steps_ += steps;
  }

  static std::string text(__int128 value) {
    if (value > INT64_MAX || value < INT64_MIN) return value > 0 ? "> 2^63" : "< -2^63";
    return std::to_string(static_cast<int64_t>(value));
  }

  [[noreturn]] void fail(const char* kind, Location at, const std::string& message) const {
    if (sanitizing()) add_report(make_report(kind, image_, at.pc, at.core, message));
    throw Error(kind, describe(image_, at.pc, at.core) + message);
  }

  const Image& image_;
  std::vector<Core> cores_;
  LxProof lx_;
  std::vector<Box> boxes_;
  Proof proof_;
  uint64_t steps_ = 0;
  uint32_t terms_ = 0;
};

}  // namespace

Proof prove(const Image& image, std::span<const int64_t> int_scalars) { return Prover(image, int_scalars).run(); }

}  // namespace spyre::card
