# SPDX-License-Identifier: Apache-2.0
"""Random arguments for a function: tensors of the shapes of its views, index tensors within the tables they index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from xdsl.dialects.builtin import IntAttr

from torch_spyre.backend.program.isa import is_integer_type
from torch_spyre.errors import InvalidArgument
from torch_spyre.ir.ktir.dialect.indirect_ops import ConstructIndirectAccessTileOp
from torch_spyre.ir.ktir.dialect.memory_ops import ConstructMemoryViewOp
from torch_spyre.ir.ktir.signatures import Argument, Function, Shape, View
from torch_spyre.ktir.linear_memory import dtype_of

_DEFAULT_FLOAT = 1.0


def random_arguments(
    module: Any, function: Function, given: Mapping[str, int | float], seed: int
) -> tuple[dict[str, Any], dict[int, torch.Tensor]]:
    """Arguments by name, and tensors for literal addresses. Integer scalars must be given, or have an upper bound."""
    generator = torch.Generator().manual_seed(seed)
    arguments: dict[str, Any] = {}
    numbers: dict[Any, int] = {}
    for argument in function.arguments:
        if argument.role == "integer":
            value = int(given[argument.name]) if argument.name in given else _default_integer(function, argument)
            arguments[argument.name] = value
            numbers[function.value(argument.position)] = value
        elif argument.role == "float":
            arguments[argument.name] = float(given.get(argument.name, _DEFAULT_FLOAT))
    limits = _index_limits(function, numbers)
    for argument in function.arguments:
        if argument.role == "buffer":
            base = function.value(argument.position)
            arguments[argument.name] = _tensor(argument.name, argument.views, numbers, base, limits, generator)
    memory = {}
    for view in function.literals:
        shape = view.shape(numbers)
        if shape is not None and shape.offset not in memory:
            memory[shape.offset] = _tensor("literal", (view,), numbers, None, limits, generator)
    return arguments, memory


def _default_integer(function: Function, argument: Argument) -> int:
    bound = argument.runtime.upperbound if argument.runtime is not None else None
    if isinstance(bound, IntAttr):
        return bound.data
    raise InvalidArgument(f"{function.signature}: give a value for {argument.name} (--set {argument.name}=N)")


def _tensor(
    name: str,
    views: tuple[View, ...],
    numbers: Mapping[Any, int],
    base: Any,
    limits: Mapping[ConstructMemoryViewOp, int],
    generator: torch.Generator,
) -> torch.Tensor:
    shapes = [(v, s) for v in views if (s := v.shape(numbers, base)) is not None]
    if not shapes:
        raise InvalidArgument(f"the views of {name} depend on more than scalars; give tensors through the Python API")
    end = max(s.end for _, s in shapes)
    view, shape = max(shapes, key=lambda pair: pair[1].end)
    size = _size(shape, end, base)
    dtype = dtype_of(view.element)
    if is_integer_type(view.element):
        limit = min((limits[v.op] for v in views if v.op in limits), default=8)
        return torch.randint(0, max(limit, 1), size, generator=generator).to(dtype)
    values = torch.randn(size, generator=generator)
    return values > 0 if dtype is torch.bool else values.to(dtype)


def _size(shape: Shape, end: int, base: Any) -> tuple[int, ...]:
    """The view's own shape if it starts the argument and reaches furthest, else a plain run of elements."""
    return shape.sizes if base is None or (shape.offset == 0 and shape.end == end) else (end,)


def _index_limits(function: Function, numbers: Mapping[Any, int]) -> dict[ConstructMemoryViewOp, int]:
    """For each index view the size of the smallest dim that its values select from."""
    limits: dict[ConstructMemoryViewOp, int] = {}
    for op in function.op.walk():
        if not isinstance(op, ConstructIndirectAccessTileOp):
            continue
        sizes = _sizes(op.base.owner, numbers)
        views = iter(op.indirect)
        for dim, indirect in enumerate(op.is_indirect):
            if indirect:
                view: Any = next(views).owner
                if isinstance(view, ConstructMemoryViewOp) and sizes is not None:
                    limits[view] = min(limits.get(view, sizes[dim]), sizes[dim])
    return limits


def _sizes(op: Any, numbers: Mapping[Any, int]) -> tuple[int, ...] | None:
    if isinstance(op, ConstructMemoryViewOp):
        found = View(op, None, "").shape({**numbers, op.offset: 0})
        return found.sizes if found is not None else None
    return None


def facts(
    before: Mapping[str, Any], after: Mapping[str, Any], memory: Mapping[int, torch.Tensor]
) -> list[dict[str, Any]]:
    """For each tensor what it holds and whether the function changed it; for each scalar its value."""
    found: list[dict[str, Any]] = []
    for name, value in after.items():
        if not isinstance(value, torch.Tensor):
            found.append({"name": name, "value": value})
            continue
        changed = "unchanged" if torch.equal(_bits(before[name]), _bits(value)) else "written"
        found.append({"name": name, **_describe(value), "state": changed})
    return found + [{"name": f"address {address}", **_describe(value)} for address, value in memory.items()]


def line(fact: Mapping[str, Any]) -> str:
    """One of `facts` as text."""
    if "value" in fact:
        return f"{fact['name']} = {fact['value']}"
    text = f"{fact['name']}: {fact['dtype']}{fact['shape']}"
    if "mean" in fact:
        text += f" mean {fact['mean']:.4g} min {fact['min']:.4g} max {fact['max']:.4g}"
        text += f" NaN {fact['nans']}" if fact["nans"] else ""
    return text + (f", {fact['state']}" if "state" in fact else "")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double().nan_to_num(nan=1e300)


def _describe(tensor: torch.Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
    if not tensor.numel():
        return found
    wide = tensor.double()
    ends = {"mean": float(wide.nanmean()), "min": float(wide.min()), "max": float(wide.max())}
    return {**found, **ends, "nans": int(wide.isnan().sum())}
