// SPDX-License-Identifier: Apache-2.0
#include "operands.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/clone.h>

#include <algorithm>

#include "device.h"

namespace spyre {
namespace {

using torch::jit::Stack;
using Tensors = c10::SmallVector<at::Tensor, 4>;

bool is_target(const c10::Argument& argument, size_t i, int written) {
  const auto* alias = argument.alias_info();
  return static_cast<int>(i) == written || (alias && alias->isWrite());
}

template <typename Visit>
void each_tensor(const c10::IValue& v, const Visit& visit) {
  if (v.isTensor()) {
    if (v.toTensor().defined()) visit(v.toTensor());
  } else if (v.isList()) {
    for (const auto& item : v.toListRef()) each_tensor(item, visit);
  }
}

/// Tensors that the call writes.
Tensors targets_of(const c10::OperatorHandle& op, const Stack& stack, int written) {
  const auto& arguments = op.schema().arguments();
  const auto base = stack.size() - arguments.size();
  Tensors targets;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (is_target(arguments[i], i, written))
      each_tensor(stack[base + i], [&](const at::Tensor& t) { targets.push_back(t); });
  return targets;
}

bool shares(const at::Tensor& t, const Tensors& targets) {
  return t.defined() && t.is_privateuseone() &&
         std::any_of(targets.begin(), targets.end(), [&](const at::Tensor& target) { return t.is_alias_of(target); });
}

[[noreturn]] void written_elsewhere(const c10::OperatorHandle& op, const Stack& stack, const at::Tensor& target) {
  c10::DeviceIndex device = 0;
  for (auto it = stack.end() - static_cast<int64_t>(op.schema().arguments().size()); it != stack.end(); ++it)
    each_tensor(*it, [&](const at::Tensor& t) {
      if (t.is_privateuseone()) device = t.device().index();
    });
  mixed_devices(op, device, target);
}

}  // namespace

std::string op_name(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

void mixed_devices(const c10::OperatorHandle& op, c10::DeviceIndex device, const at::Tensor& foreign) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
              spyre_device(device), " and ", foreign.device(), "! (", op_name(op), "; move them with .to(device))");
}

c10::SmallVector<int64_t, 4> shared_memory(const c10::OperatorHandle& op, const Stack& stack, int written) {
  c10::SmallVector<int64_t, 4> words;
  const auto targets = targets_of(op, stack, written);
  for (const auto& target : targets)
    if (!target.is_privateuseone()) written_elsewhere(op, stack, target);
  if (targets.empty()) return words;
  const auto& arguments = op.schema().arguments();
  const auto base = stack.size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_target(arguments[i], i, written)) continue;
    each_tensor(stack[base + i], [&](const at::Tensor& t) {
      for (const auto& target : targets)
        if (t.is_alias_of(target))
          words.push_back(static_cast<int64_t>(i) << 8 | static_cast<int64_t>(at::get_overlap_status(target, t)));
    });
  }
  return words;
}

void copy_shared(const c10::OperatorHandle& op, Stack* stack, int written) {
  const auto& arguments = op.schema().arguments();
  const auto base = stack->size() - arguments.size();
  const auto targets = targets_of(op, *stack, written);
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto& value = (*stack)[base + i];
    if (is_target(arguments[i], i, written)) continue;
    if (value.isTensor() && shares(value.toTensor(), targets)) value = value.toTensor().clone();
    if (!value.isTensorList() && !value.isOptionalTensorList()) continue;
    auto copies = value.toList().copy();
    for (size_t k = 0; k < copies.size(); ++k) {
      const c10::IValue item = copies.get(k);
      if (item.isTensor() && shares(item.toTensor(), targets)) copies.set(k, item.toTensor().clone());
    }
    value = std::move(copies);
  }
}

}  // namespace spyre
