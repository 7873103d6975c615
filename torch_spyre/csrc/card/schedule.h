// SPDX-License-Identifier: Apache-2.0
// A launch worked out in advance. Registers, loops and branches depend on the core and the integer launch scalars only,
// so all kernel calls of a program, with their shapes and the places of their operands, are known before it runs.
//
// Phases with little work become one unit that one host thread runs, and neighbours among them join, so that no thread
// waits for another there. In such a unit one call stands for the cores that do the same at evenly spaced addresses. In
// phases with much work a unit is one core, or some whose products join because they share their second operand, or one
// product of few rows, in the order of memory. No core sees another within a phase, so none of this changes a value.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "program.h"

namespace spyre::card {

/// Where an operand begins: bytes from the argument, the scratchpads, the constants; or a scalar or an immediate.
struct Place {
  Space space = Space::IMM;
  uint16_t index = 0;   // argument or launch scalar
  int32_t layout = -1;  // in Schedule::layouts
  int64_t offset = 0;
};

/// One kernel call, for one core or for several.
struct KernelCall {
  uint32_t pc = 0;
  uint32_t phase = 0;
  int32_t core = 0;  // the lowest
  uint32_t reduced_mask = 0;
  int64_t start = 0;  // of an IOTA
  Shape shape;
  uint32_t first_operand = 0;  // in Schedule::places and views
  uint32_t n_operands = 0;     // a RINGSUM has one per source core
};

struct Schedule {
  struct Unit {
    uint32_t first_call, end_call;
  };
  struct Stage {
    uint32_t first_unit, end_unit;
    uint32_t first_weight = 0, end_weight = 0;
    int units() const { return static_cast<int>(end_unit - first_unit); }
  };
  /// Bytes of an argument that the products of a shared stage read, each once.
  struct Weight {
    uint16_t arg;
    int64_t offset, bytes;
  };

  std::vector<KernelCall> calls;
  std::vector<Place> places;
  std::vector<View> views;  // without base and layout
  std::vector<LayoutMap> layouts;
  std::vector<Unit> units;
  std::vector<Stage> stages;
  std::vector<Weight> weights;
  bool shared = false;  // some stage has work for several threads
};

/// The scratchpad of core c begins at c * kLxPitch. Not a power of two: the same offset on all cores would then fall
/// into the same few lines of the host's caches.
constexpr int64_t kLxPitch = static_cast<int64_t>(kLxBytes) + 5 * 4096 + 2 * 64;

/// Null if the program makes too many calls to be written down.
std::unique_ptr<const Schedule> make_schedule(const Image& image, std::span<const int64_t> int_scalars);

/// The schedule of one proof, made when it has run once: much code runs only once.
class ScheduleSlot {
 public:
  const Schedule* get(const Image& image, std::span<const Scalar> scalars);

 private:
  std::mutex mutex_;
  int launches_ = 0;
  std::unique_ptr<const Schedule> schedule_;
};

}  // namespace spyre::card
