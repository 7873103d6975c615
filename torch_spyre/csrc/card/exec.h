// SPDX-License-Identifier: Apache-2.0
// The executor: runs a proved program on the cores of one card.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "program.h"
#include "scalar.h"

namespace spyre::card {

class MemoryShadow;

/// One launch with everything looked up: host addresses of the arguments, values of the scalars.
struct Launch {
  const Image* image = nullptr;
  const Proof* proof = nullptr;
  std::vector<std::byte*> args;
  std::vector<Scalar> scalars;
  MemoryShadow* shadow = nullptr;     // set: the launch is checked while it runs
  const std::byte* memory = nullptr;  // host address of card address 0, with a shadow
};

/// The 32 cores of a card and their scratchpads. One launch at a time. LX holds garbage at the start of a launch.
class Executor {
 public:
  Executor();
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Throws Error(Overflow) if a COPY met a value that does not fit its destination, Error(IndexOutOfRange) if a GATHER
  /// or SCATTER met an index outside its table.
  void run(const Launch& launch);
  /// The same, one core after the other, with every access checked: see sanitized_run.cpp.
  void run_sanitized(const Launch& launch);

 private:
  std::byte* lx_;  // kCores * kLxPitch, committed when touched
  std::vector<CoreState> cores_;
};

}  // namespace spyre::card
