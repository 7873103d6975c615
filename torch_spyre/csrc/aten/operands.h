// SPDX-License-Identifier: Apache-2.0
// The tensors of an op call: which of them it writes, on which devices they are, which share memory.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>

namespace spyre {

std::string op_name(const c10::OperatorHandle& op);

[[noreturn]] void mixed_devices(const c10::OperatorHandle& op, c10::DeviceIndex device, const at::Tensor& foreign);

/// How the operands of a call share the memory that it writes: a word for each pair, none for almost every call.
/// `written` is an argument that the op changes though its schema does not say so. Raises if the call would write to
/// another device than the card.
c10::SmallVector<int64_t, 4> shared_memory(const c10::OperatorHandle& op, const torch::jit::Stack& stack, int written);

/// Replaces operands that share memory with what the call writes by copies: a program writes a result while other cores
/// still read.
void copy_shared(const c10::OperatorHandle& op, torch::jit::Stack* stack, int written);

}  // namespace spyre
