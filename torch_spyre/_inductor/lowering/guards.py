# SPDX-License-Identifier: Apache-2.0
"""Entries in Inductor's global tables that act on tensors of this device only and pass everything else on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


def overloads(op: Any) -> Iterator[Any]:
    """The op itself and each of its overloads that has a lowering."""
    every = [op, *(getattr(op, name) for name in op.overloads())] if hasattr(op, "overloads") else [op]
    return (overload for overload in every if overload in lowerings)


def guarded(op: Any) -> Callable[[Lowering], Lowering]:
    """Registers a lowering for tensors on spyre in front of the present one."""

    def register(ours: Lowering) -> Lowering:
        for overload in overloads(op):
            previous = lowerings[overload]

            def lower(*args: Any, _previous: Lowering = previous, **kwargs: Any) -> Any:
                here = on_spyre(args) or on_spyre(tuple(kwargs.values()))
                return (ours if here else _previous)(*args, **kwargs)

            lowerings[overload] = lower
            REGISTERED.add(overload)
        return ours

    return register


def wrapped(op: Any, around: Callable[[Lowering], Lowering]) -> None:
    """Replaces, for tensors on spyre, each lowering of op by `around` of it."""
    for overload in overloads(op):
        previous = lowerings[overload]

        def lower(*args: Any, _previous: Lowering = previous, **kwargs: Any) -> Any:
            here = on_spyre(args) or on_spyre(tuple(kwargs.values()))
            return (around(_previous) if here else _previous)(*args, **kwargs)

        lowerings[overload] = lower
