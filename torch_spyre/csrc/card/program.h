// SPDX-License-Identifier: Apache-2.0
// A program in memory: the records of docs/program-format.md, with variable-length parts in shared pools.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "spyre/card.h"

namespace spyre::card {

enum class Op : uint16_t {
  END = 0,
  BARRIER = 1,
  LOOP = 2,
  ENDLOOP = 3,
  IF = 4,
  ENDIF = 5,
  SOP = 6,
  VOP = 16,
  REDUCE = 17,
  MATMUL = 18,
  COPY = 19,
  RINGSUM = 20,
  GATHER = 21,
  SCATTER = 22,
  IOTA = 23,
  SCAN = 24,
  ARGREDUCE = 25,
  SORT = 26,
};
enum class SOp : uint8_t { add, sub, mul, floordiv, mod, min, max };
enum class Space : uint8_t { MEM = 1, LX = 2, LX_REMOTE = 3, CONST = 4, SCALAR = 5, IMM = 6 };

constexpr uint8_t kRead = 1, kWrite = 2;
constexpr uint32_t kNoOrigin = 0xFFFFFFFF;
constexpr uint16_t kAccumulate = 1;  // REDUCE, MATMUL: the output is also the initial value; SCATTER: adds
constexpr int kTapsShift = 1;        // MATMUL: these two bits count the dims of k but the last one
constexpr uint16_t kTaps = 3 << kTapsShift;
constexpr uint16_t kMasked = 2;                  // GATHER, SCATTER: an index out of range reads 0 or writes nothing
constexpr uint8_t kDescending = 1, kStable = 2;  // order of a SORT

struct Term {
  uint16_t reg;
  int64_t coef;
};

/// constant + sum of terms[first .. first+n).
struct Affine {
  int64_t constant = 0;
  uint32_t first = 0;
  uint32_t n = 0;
};

struct Extent {
  Affine value;
  int64_t cap = 0;
};

/// Layout map of a COPY operand; `offset` is resolved per core.
struct Layout {
  Affine offset;
  LayoutMap map;
};

struct Operand {
  Space space = Space::IMM;
  Format format = Format::INVALID;
  uint16_t index = 0;   // argument or launch scalar
  int32_t layout = -1;  // index of a Layout, or -1: maps[first_map + dim]
  uint32_t first_map = 0;
  uint32_t bits = 0;  // immediate
  Affine core, offset;

  bool addressed() const { return space != Space::SCALAR && space != Space::IMM; }
};

/// How an index operand of a GATHER or SCATTER addresses the table.
struct Index {
  DimMap along;
  int64_t limit;
};

struct Instr {
  Op op = Op::END;
  uint16_t flags = 0;
  uint32_t origin = kNoOrigin;

  // Control. LOOP: reg, a = first, b = limit, step. IF: a. SOP: reg, a, b. RINGSUM: a = first core, step.
  // IOTA: a = start. SORT: step = elements kept.
  uint32_t partner = 0;  // the other end of a LOOP or IF
  uint16_t reg = 0;
  SOp sop = SOp::add;
  Affine a, b;
  int64_t step = 0;

  // Tile instructions. Operands: the outputs first; GATHER: out, table, indices; SCATTER: table, in, indices.
  uint8_t rank = 0;
  uint8_t n_operands = 0;
  uint32_t first_dim = 0;
  uint32_t first_operand = 0;
  VOp vop = VOp::identity;
  ROp rop = ROp::sum;
  Compute compute = Compute::f32;
  uint32_t reduced_mask = 0;
  uint32_t ring_cores = 0;
  uint8_t n_outputs = 1;
  uint8_t outputs = 1;       // ARGREDUCE: bit 0 index, bit 1 value; SORT: bit 0 value, bit 1 index
  uint8_t dim = 0;           // of SCAN, ARGREDUCE and SORT
  uint8_t order = 0;         // of SORT
  uint32_t first_index = 0;  // in Image::indices
  uint32_t first_step = 0;   // of IOTA, in Image::maps

  bool tile() const { return op >= Op::VOP; }
  bool accumulates() const { return flags & kAccumulate; }
  int taps() const { return op == Op::MATMUL ? (flags & kTaps) >> kTapsShift : 0; }
  bool masked() const { return flags & kMasked; }
  bool indexed() const { return op == Op::GATHER || op == Op::SCATTER; }
  int table_operand() const { return op == Op::GATHER ? 1 : 0; }
  int n_indices() const { return indexed() ? n_operands - 2 : 0; }
};

struct Argument {
  uint8_t access;
  uint64_t bytes;
};

struct Image {
  std::vector<Argument> args;
  std::vector<uint8_t> scalar_is_float;
  uint32_t n_int_scalars = 0;
  uint32_t registers = 0;
  uint32_t cores = 0;
  uint32_t lx_bytes = 0;
  uint64_t duration_ns = 0;  // of one launch, on the device clock
  std::vector<std::string> strings;
  std::vector<std::byte> constants;

  std::vector<Instr> instrs;
  std::vector<Term> terms;
  std::vector<Extent> extents;
  std::vector<DimMap> maps;
  std::vector<Layout> layouts;
  std::vector<Operand> operands;
  std::vector<Index> indices;

  std::span<const Operand> operands_of(const Instr& i) const {
    return {operands.data() + i.first_operand, i.n_operands};
  }
  const char* origin_of(const Instr& i) const { return i.origin == kNoOrigin ? "" : strings[i.origin].c_str(); }
};

const char* op_name(Op op);
const char* vop_name(VOp op);
const char* rop_name(ROp op);

/// "instruction 7 (COPY) on core 3, from <origin>: ", the head of every message about a running program.
std::string describe(const Image& image, uint32_t pc, int core);

/// Checks structure only: every length, index and nesting.
Image decode_program(std::span<const std::byte> binary);
std::string disassemble_image(const Image& image);

class ScheduleSlot;

/// What one launch does, found by dry-running its scalar part.
struct Proof {
  Counters counters;  // of one launch; launches and DMA stay 0
  uint64_t phases = 1;
  uint64_t work = 0;                       // element operations of all cores, to decide whether helper threads pay
  std::shared_ptr<ScheduleSlot> schedule;  // its kernel calls, once it runs often
};

/// Proves bounds, scratchpad ownership and definition before use for one tuple of integer launch scalars.
Proof prove(const Image& image, std::span<const int64_t> int_scalars);

class ProgramImpl final : public Program {
 public:
  ProgramImpl(Image image, std::span<const std::byte> binary);
  int n_args() const override { return static_cast<int>(image_.args.size()); }
  int n_scalars() const override { return static_cast<int>(image_.scalar_is_float.size()); }
  uint64_t arg_bytes(int i) const override { return image_.args.at(i).bytes; }
  uint64_t duration_ns() const override { return image_.duration_ns; }
  uint64_t work() const override { return constant_proof_ ? constant_proof_->work : 0; }
  bool proved(std::span<const Scalar> scalars) const override;
  void prove(std::span<const Scalar> scalars) const override { proof_for(scalars); }
  std::string disassemble() const override { return disassemble_image(image_); }
  std::span<const std::byte> binary() const override { return binary_; }

  const Image& image() const { return image_; }
  /// The proof for these launch scalars; computed once per distinct tuple of the integers that address or count. Those
  /// that are only operands do not matter to it.
  std::shared_ptr<const Proof> proof_for(std::span<const Scalar> scalars) const;

 private:
  std::vector<int64_t> proof_key(std::span<const Scalar> scalars) const;

  Image image_;
  std::vector<std::byte> binary_;
  std::vector<bool> scalar_matters_;             // by integer launch scalar: does the scalar part read it?
  std::shared_ptr<const Proof> constant_proof_;  // when none matters
  mutable std::mutex mutex_;
  mutable std::map<std::vector<int64_t>, std::shared_ptr<const Proof>> proofs_;
};

}  // namespace spyre::card
