// SPDX-License-Identifier: Apache-2.0
// The scalar unit: registers, loops and branches of one core. The executor and the prover run the same code; they
// differ in the arithmetic, which the prover checks.
#pragma once
#include <cstdint>
#include <vector>

#include "program.h"

namespace spyre::card {

/// A core as a resumable state machine.
struct alignas(64) CoreState {
  uint32_t pc = 0;
  int core = 0;
  std::vector<int64_t> regs;
  std::vector<int64_t> limits;  // of the open loops, evaluated once at entry

  void reset(const Image& image, int id, std::span<const int64_t> int_scalars) {
    pc = 0;
    core = id;
    limits.clear();
    regs.assign(image.registers, 0);
    regs[0] = id;
    for (size_t i = 0; i < int_scalars.size(); ++i) regs[1 + i] = int_scalars[i];
  }
};

/// Wrapping arithmetic without checks, for programs that have been proved.
struct FastArith {
  int64_t add(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
  int64_t sub(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
  }
  int64_t mul(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  }
  void positive(int64_t) {}
  int64_t read(const CoreState& s, uint16_t reg) { return s.regs[reg]; }
  void write(CoreState& s, uint16_t reg, int64_t value) { s.regs[reg] = value; }
  void step(const CoreState&) {}
};

template <class Arith>
int64_t evaluate(const Image& image, const Affine& affine, const CoreState& s, Arith& arith) {
  int64_t value = affine.constant;
  for (uint32_t t = affine.first; t < affine.first + affine.n; ++t)
    value = arith.add(value, arith.mul(arith.read(s, image.terms[t].reg), image.terms[t].coef));
  return value;
}

template <class Arith>
int64_t scalar_op(SOp op, int64_t a, int64_t b, Arith& arith) {
  switch (op) {
    case SOp::add:
      return arith.add(a, b);
    case SOp::sub:
      return arith.sub(a, b);
    case SOp::mul:
      return arith.mul(a, b);
    case SOp::floordiv:
      arith.positive(b);
      return a / b - (a % b < 0);
    case SOp::mod:
      arith.positive(b);
      return a % b + (a % b < 0 ? b : 0);
    case SOp::min:
      return a < b ? a : b;
    case SOp::max:
      return a > b ? a : b;
  }
  return 0;
}

/// Runs control instructions until a tile instruction, a BARRIER or the END is next, and returns it. The caller
/// performs it and moves pc past it.
template <class Arith>
const Instr& advance(const Image& image, CoreState& s, Arith& arith) {
  for (;;) {
    const Instr& i = image.instrs[s.pc];
    arith.step(s);
    switch (i.op) {
      case Op::LOOP: {
        int64_t first = evaluate(image, i.a, s, arith), limit = evaluate(image, i.b, s, arith);
        arith.write(s, i.reg, first);
        if (first < limit) {
          s.limits.push_back(limit);
          ++s.pc;
        } else {
          s.pc = i.partner + 1;
        }
        break;
      }
      case Op::ENDLOOP: {
        const Instr& loop = image.instrs[i.partner];
        int64_t next = arith.add(arith.read(s, loop.reg), loop.step);
        arith.write(s, loop.reg, next);
        if (next < s.limits.back()) {
          s.pc = i.partner + 1;
        } else {
          s.limits.pop_back();
          ++s.pc;
        }
        break;
      }
      case Op::IF:
        s.pc = evaluate(image, i.a, s, arith) >= 0 ? s.pc + 1 : i.partner + 1;
        break;
      case Op::ENDIF:
        ++s.pc;
        break;
      case Op::SOP: {
        int64_t a = evaluate(image, i.a, s, arith), b = evaluate(image, i.b, s, arith);
        arith.write(s, i.reg, scalar_op(i.sop, a, b, arith));
        ++s.pc;
        break;
      }
      default:
        return i;
    }
  }
}

/// Iteration box of a tile instruction. Returns false if some extent is 0: the instruction then does nothing.
template <class Arith>
bool resolve_shape(const Image& image, const Instr& i, const CoreState& s, Arith& arith, Shape& shape) {
  shape.rank = i.rank;
  bool any = true;
  for (int d = 0; d < i.rank; ++d) {
    const Extent& e = image.extents[i.first_dim + d];
    int64_t value = std::min(e.cap, evaluate(image, e.value, s, arith));
    shape.extent[d] = std::max<int64_t>(value, 0);
    any &= value > 0;
  }
  return any;
}

}  // namespace spyre::card
