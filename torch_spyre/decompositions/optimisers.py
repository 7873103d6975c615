# SPDX-License-Identifier: Apache-2.0
"""Steps of optimisers: the ops that they consist of, and the fused ones on lists of tensors.

Their numbers change from step to step (a schedule, a correction of the bias), so they are launch scalars: the C++
dispatcher passes each float of these ops as a 0-d tensor (`numbers_at_launch` in csrc/aten/eager.cpp), and here it
arrives as one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten
# The formula, and how the op names its number.
_FORMULAS: dict[str, tuple[Callable[..., Any], str]] = {
    "add": (lambda x, y, alpha: x + y * alpha, "alpha"),
    "sub": (lambda x, y, alpha: x - y * alpha, "alpha"),
    "addcdiv": (lambda x, a, b, value: x + value * (a / b), "value"),
    "addcmul": (lambda x, a, b, value: x + value * (a * b), "value"),
    "lerp": (lambda x, end, weight: x + weight * (end - x), "weight"),
}
_OVERLOADS = {"add": "Tensor", "sub": "Tensor", "lerp": "Scalar"}


def _wide(x: Any) -> Any:
    """Steps are computed in fp32, as PyTorch does, and rounded once."""
    return x.to(torch.float32) if isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.bfloat16) else x


def _promoted(x: Any, operands: Sequence[Any]) -> torch.dtype:
    return functools.reduce(torch.promote_types, (torch.result_type(x, t) for t in operands))


def _with_number(op: Any, formula: Callable[..., Any], number: str) -> Callable[..., Any]:
    in_place = op._schema.name.endswith("_")

    def call(x: Any, *operands: Any, **named: Any) -> Any:
        given = named[number] if number in named else operands[-1]
        if not isinstance(given, torch.Tensor):  # a whole number, which is part of the plan
            return op(x, *operands, **named)
        operands = operands if number in named else operands[:-1]
        if not any(t.is_floating_point() for t in (x, *operands)):
            raise RuntimeError(f"For integral input tensors, argument {number} must not be a floating point number.")
        result = formula(_wide(x), *map(_wide, operands), given)
        if in_place:
            return x.copy_(result)
        return result.to(_promoted(x, operands))

    return call


def _in_graph(formula: Callable[..., Any], number: str) -> Callable[..., Any]:
    """The same where the number is a constant, in compiled graphs: 16-bit floats are rounded once here too."""

    def call(x: Any, *operands: Any, **named: Any) -> Any:
        given = operands[-1] if number == "weight" else named.get(number, 1)
        operands = operands[:-1] if number == "weight" else operands
        tensors = [t for t in (x, *operands) if isinstance(t, torch.Tensor)]
        if (number == "alpha" and given == 1) or not any(_wide(t) is not t for t in tensors):
            return NotImplemented
        result = formula(_wide(x), *map(_wide, operands), given)
        return result.to(_promoted(x, operands))

    return call


class _Step:
    """What every fused step does around its own formula."""

    def __init__(self, lr: Any, maximize: bool, grad_scale: Any = None, found_inf: Any = None) -> None:
        self.lr, self.maximize, self.grad_scale, self.found_inf = lr, maximize, grad_scale, found_inf

    def gradient(self, grad: Any) -> Any:
        wide = _wide(grad)
        if self.grad_scale is not None:
            wide = wide / self.grad_scale
            grad.copy_(wide)
        return -wide if self.maximize else wide

    def write(self, target: Any, value: Any) -> None:
        if self.found_inf is not None:  # a step with an infinite gradient is left out
            value = torch.where(self.found_inf == 1, _wide(target), value)
        target.copy_(value)


def _sgd(
    params: Any, grads: Any, buffers: Any, *, weight_decay: Any, momentum: Any, lr: Any, dampening: Any,
    nesterov: bool, maximize: bool, is_first_step: bool, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    step = _Step(lr, maximize, grad_scale, found_inf)
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        p = _wide(param)
        g = step.gradient(grad) + weight_decay * p
        if buffers:
            held = g if is_first_step else momentum * _wide(buffers[i]) + (1 - dampening) * g
            step.write(buffers[i], held)
            g = g + momentum * held if nesterov else held
        step.write(param, p - lr * g)


def _adam(decoupled: bool) -> Callable[..., None]:
    def call(
        params: Any, grads: Any, means: Any, squares: Any, largest: Any, steps: Any, *, lr: Any, beta1: Any, beta2: Any,
        weight_decay: Any, eps: Any, amsgrad: bool, maximize: bool, grad_scale: Any = None, found_inf: Any = None,
    ) -> None:  # fmt: skip
        step = _Step(lr, maximize, grad_scale, found_inf)
        for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
            p, g = _wide(param), step.gradient(grad)
            if decoupled:
                p = p - lr * weight_decay * p
            else:
                g = g + weight_decay * p
            mean = _wide(means[i]) + (1 - beta1) * (g - _wide(means[i]))
            square = beta2 * _wide(squares[i]) + (1 - beta2) * g * g
            step.write(means[i], mean)
            step.write(squares[i], square)
            if amsgrad:
                square = torch.maximum(_wide(largest[i]), square)
                step.write(largest[i], square)
            first, second = (1 - torch.pow(beta, steps[i]) for beta in (beta1, beta2))
            step.write(param, p - lr / first * mean / (square.sqrt() / second.sqrt() + eps))

    return call


def _adagrad(
    params: Any, grads: Any, sums: Any, steps: Any, *, lr: Any, lr_decay: Any, weight_decay: Any, eps: Any,
    maximize: bool, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    step = _Step(lr, maximize, grad_scale, found_inf)
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        p = _wide(param)
        g = step.gradient(grad) + weight_decay * p
        total = _wide(sums[i]) + g * g
        step.write(sums[i], total)
        step.write(param, p - lr / (1 + (steps[i] - 1) * lr_decay) * g / (total.sqrt() + eps))


def _table() -> dict[Any, Callable[..., Any]]:
    table: dict[Any, Callable[..., Any]] = {}
    for name, (formula, number) in _FORMULAS.items():
        for packet in (getattr(aten, name), getattr(aten, f"{name}_")):
            op = getattr(packet, _OVERLOADS.get(name, "default"))
            table[op] = _with_number(op, formula, number)
    fused = {
        "_fused_sgd_": _sgd,
        "_fused_adam_": _adam(False),
        "_fused_adamw_": _adam(True),
        "_fused_adagrad_": _adagrad,
    }
    for name, step in fused.items():
        packet = getattr(aten, name)
        table |= {packet.default: step, packet.tensor_lr: step}
    return table


TABLE = _table()
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    getattr(getattr(aten, name), _OVERLOADS.get(name, "default")): _in_graph(formula, number)
    for name, (formula, number) in _FORMULAS.items()
}


def with_tensors(op: Any, flat: list[Any]) -> list[Any]:
    """The arguments of a call as the dispatcher counts them: each float of these ops is a 0-d tensor."""
    if op not in TABLE:
        return flat
    return [torch.tensor(x, dtype=torch.float32) if isinstance(x, float) else x for x in flat]
