# SPDX-License-Identifier: Apache-2.0
"""Decompositions in the tables of Inductor, where they decline tensors of any other device."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._inductor import decomposition, lowering

from torch_spyre import _C
from torch_spyre._inductor.lowering.guards import REGISTERED
from torch_spyre._inductor.lowering.whole_functions import WHOLE
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.decompositions import varlen_attention
from torch_spyre.decompositions.collected import TABLE, Decomposition, keep
from torch_spyre.decompositions.user_rules import RULES


def _leaves(values: Any) -> Iterator[Any]:
    for x in values:
        if isinstance(x, (list, tuple)):
            yield from _leaves(x)
        else:
            yield x


def _here(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    for x in _leaves((*args, *kwargs.values())):
        device = x.device if isinstance(x, torch.Tensor) else x
        if isinstance(device, torch.device) and device.type == DEVICE_NAME:
            return True
    return False


def _guarded(ours: Decomposition, previous: Decomposition | None) -> Decomposition:
    @functools.wraps(ours)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        here = _here(args, kwargs)
        if here and ours is keep:
            return NotImplemented
        result = ours(*args, **kwargs) if here else NotImplemented
        return previous(*args, **kwargs) if result is NotImplemented and previous is not None else result

    return decompose


def _of_pytorch() -> dict[Any, Decomposition]:
    """PyTorch's own decompositions of ops that Inductor hands to the device's kernels, which this device has not."""

    def missing(op: Any) -> bool:
        return (
            op not in REGISTERED
            and op not in decomposition.decompositions
            and (op not in lowering.lowerings or op in lowering.fallbacks)
        )

    return {op: fn for op, fn in decomposition_table.items() if missing(op)}


def _enter(entries: Mapping[Any, Decomposition]) -> None:
    # The second is a cached union of the first with decompositions of random numbers.
    for table in (decomposition.decompositions, decomposition.fast_random_decomps()):
        for op, ours in entries.items():
            table[op] = _guarded(ours, table.get(op))


def register() -> None:
    """Enters the table; called once, when the device is registered with Inductor."""
    _enter({**_of_pytorch(), **dict.fromkeys(WHOLE, keep), **TABLE, **varlen_attention.in_graphs()})


def register_spyre_decomposition(ops: Any) -> Callable[[Decomposition], Decomposition]:
    """A decorator: on the card these ops are what the function makes of them, eager and compiled. It returns
    NotImplemented for a call that it does not mean, which is then taken as before. Eager calls of an op that PyTorch
    itself cuts into others before it asks a device (CompositeImplicitAutograd) arrive as those."""
    importlib.import_module("torch_spyre._inductor.registration")  # late: start-up

    wanted = ops if isinstance(ops, (list, tuple)) else [ops]
    overloads = [o for op in wanted for o in ([op] if not hasattr(op, "overloads") else _every(op))]

    def enter(function: Decomposition) -> Decomposition:
        _enter(dict.fromkeys(overloads, function))
        for op in overloads:
            if not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
                _C._take_eagerly(op.name())
        RULES.append(f"{overloads} {function.__module__}.{function.__qualname__} {_text_of(function)}")
        _C.clear_eager_cache()
        return function

    return enter


def _text_of(function: Any) -> str:
    """Text that differs when a later process defines another function under the same name."""
    code = inspect.unwrap(function).__code__
    return f"{code.co_code.hex()} {code.co_names} {[c for c in code.co_consts if not inspect.iscode(c)]}"


def _every(packet: Any) -> list[Any]:
    return [getattr(packet, name) for name in packet.overloads()]
