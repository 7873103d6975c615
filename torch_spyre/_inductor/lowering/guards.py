# SPDX-License-Identifier: Apache-2.0
"""Entries in Inductor's table of lowerings that act on tensors of this device only and pass everything else on.

No other file writes to that table, except through Inductor's `register_lowering` for ops that had no entry. It cannot
put an entry in front of another one: for an op it would also enter the overloads that have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.lowering import lowerings

from torch_spyre.constants import DEVICE_NAME

Lowering = Callable[..., Any]
REGISTERED: set[Any] = set()  # overloads that have a lowering of this device


def on_spyre(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return any(on_spyre(item) for item in x)
    device = x.get_device() if isinstance(x, ir.TensorBox) else getattr(x, "device", None)
    return isinstance(device, torch.device) and device.type == DEVICE_NAME


def _takes_spyre(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return on_spyre(args) or on_spyre(tuple(kwargs.values()))


def makes_spyre(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """For ops that make a tensor of numbers: is it made on spyre?"""
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == DEVICE_NAME


def overloads(op: Any) -> Iterator[Any]:
    """The op itself and each of its overloads that has a lowering."""
    every = [op, *(getattr(op, name) for name in op.overloads())] if hasattr(op, "overloads") else [op]
    return (overload for overload in every if overload in lowerings)


def guarded(op: Any) -> Callable[[Lowering], Lowering]:
    """Registers a lowering for tensors on spyre in front of the present one."""

    def register(ours: Lowering) -> Lowering:
        wrapped(op, lambda _: ours)
        REGISTERED.update(overloads(op))
        return ours

    return register


def wrapped(
    op: Any,
    around: Callable[[Lowering], Lowering],
    here: Callable[[tuple[Any, ...], Mapping[str, Any]], bool] = _takes_spyre,
) -> None:
    """Replaces, for calls that are `here`, each lowering of op by `around` of it."""
    for overload in overloads(op):
        lowerings[overload] = _before(lowerings[overload], around, here)


def _before(
    previous: Lowering,
    around: Callable[[Lowering], Lowering],
    here: Callable[[tuple[Any, ...], Mapping[str, Any]], bool],
) -> Lowering:
    def lower(*args: Any, **kwargs: Any) -> Any:
        return (around(previous) if here(args, kwargs) else previous)(*args, **kwargs)

    return lower
