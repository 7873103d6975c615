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

/// One launch with everything looked up: host addresses of the arguments, values of the scalars.
struct Launch {
  const Image* image = nullptr;
  const Proof* proof = nullptr;
  std::vector<std::byte*> args;
  std::vector<Scalar> scalars;
};

/// The 32 cores of a card and their scratchpads. One launch at a time. LX holds garbage at the start of a launch.
class Executor {
 public:
  Executor();
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Throws Error(Overflow) if a COPY met a value that does not fit its destination.
  void run(const Launch& launch);

 private:
  std::byte* lx_;  // kCores * kLxBytes, committed when touched
  std::vector<CoreState> cores_;
};

}  // namespace spyre::card
