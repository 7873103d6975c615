// SPDX-License-Identifier: Apache-2.0
// Eager ops: every op without a kernel of its own is planned by the Python compiler, once for a signature or for a
// bucket of sizes, and launched from C++ afterwards.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <vector>

#include "eager_buckets.h"

namespace spyre {

/// How an op call maps to a launch. Indices name the tensors of the call in order, lists flattened, undefined skipped;
/// the inputs -1, -2 are the two words of a first random key, -3 and -4 those of a second one, and so on.
struct EagerPlan {
  std::shared_ptr<const LaunchPlan> launch;
  std::vector<int> inputs;
  /// What each returned tensor is: an output of the launch, or a tensor of the call.
  std::vector<Binding> outputs;
  std::vector<Operand> numbers;  // inputs of the launch behind those of the call
  std::vector<Move> moves;       // before the launch
};

/// Runs `op` on the arguments at the end of the stack and leaves its results there. `written` is an argument that the
/// op changes though its schema does not say so.
void run_eager(const c10::OperatorHandle& op, torch::jit::Stack* stack, int written = -1);

}  // namespace spyre
