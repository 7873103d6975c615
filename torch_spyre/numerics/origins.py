# SPDX-License-Identifier: Apache-2.0
"""The op in which a NaN or an overflow begins: its result has some, its inputs have none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

KINDS = ("NaN", "overflow")


@dataclass(frozen=True)
class Origin:
    kind: str  # NaN or overflow
    module: str  # the innermost module that ran
    op: str
    count: int  # values
    inputs: tuple[float, ...]  # largest magnitude of each floating-point input

    def __str__(self) -> str:
        sizes = ", ".join(f"{x:.4g}" for x in self.inputs)
        return f"{self.kind} begins in {self.module}, {self.op}: {self.count} values; inputs up to {sizes}"


def find(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], kind: str, name: str = "") -> Origin | None:
    """Runs the module once more, eagerly and op by op."""
    watch = _Watch(kind)
    with torch.no_grad(), _names(module, name, watch.path), watch:
        module(*args, **kwargs)
    return watch.origin


class _Watch(TorchDispatchMode):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.path: list[str] = []
        self.origin: Origin | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Before the call: an op in place overwrites its input.
        inputs = [self._look(x) for x in tree_leaves((args, kwargs)) if _floating(x)] if self.origin is None else []
        result = func(*args, **kwargs)
        if self.origin is not None or not inputs or any(count for count, _ in inputs) or _asks_for_it(args, kwargs):
            return result
        count = sum(self._look(x)[0] for x in tree_leaves(result) if _floating(x))
        if count:
            place = self.path[-1] if self.path else "the model"
            self.origin = Origin(self.kind, place, str(func), count, tuple(size for _, size in inputs))
        return result

    def _look(self, x: Tensor) -> tuple[int, float]:
        """How many values are of the kind, and the largest magnitude."""
        values = x.detach().float().cpu()
        bad = torch.isnan(values) if self.kind == "NaN" else torch.isinf(values)
        good = values[torch.isfinite(values)].abs()
        return int(bad.sum()), float(good.max()) if len(good) else 0.0


def _floating(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.numel() > 0


def _asks_for_it(args: Any, kwargs: Any) -> bool:
    """A mask fills with infinity on purpose."""
    return any(isinstance(x, float) and not math.isfinite(x) for x in tree_leaves((args, kwargs)))


@contextmanager
def _names(module: nn.Module, name: str, path: list[str]) -> Iterator[None]:
    """Keeps the names of the modules that run, innermost last."""
    handles = []
    for inner, part in module.named_modules():
        full = ".".join(x for x in (name, inner) if x) or type(module).__name__
        handles.append(part.register_forward_pre_hook(lambda m, a, full=full: path.append(full)))
        handles.append(part.register_forward_hook(lambda m, a, o: path.pop() and None))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
