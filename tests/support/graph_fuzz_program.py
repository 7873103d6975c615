# SPDX-License-Identifier: Apache-2.0
"""A random graph as data: inputs, statements on named values, what is returned, and under which knobs it runs."""

from __future__ import annotations

import dataclasses
import linecache
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2fnuz)


def unique(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(x): x for x in tensors}.values())


@dataclass(frozen=True)
class Input:
    """A tensor on the card, filled as `kind` says, and the view of it that the program receives."""

    name: str
    size: tuple[int, ...]
    dtype: torch.dtype
    kind: str = "normal"  # normal, integers, positive, mask, index <n>, order <n>, number (a Python number), host
    view: str = ""  # an expression in x
    scale: float = 1.0
    of: str = ""  # the input whose tensor this one is a view of; it has none of its own
    lengths: tuple[str, ...] = ()  # the size, as expressions in n

    @property
    def on_card(self) -> bool:
        return self.kind not in ("number", "host")

    def at(self, n: int) -> Input:
        """The same input where n has this value."""
        size = tuple(eval(length, {"n": n}) for length in self.lengths) if self.lengths else self.size
        kind = re.sub(r"\bn\b", str(n), self.kind)
        kind = kind if " " not in kind else f"{kind.split()[0]} {eval(kind.split(maxsplit=1)[1])}"
        return dataclasses.replace(self, size=size, kind=kind, view=re.sub(r"\bn\b", str(n), self.view), lengths=())

    def make(self, generator: torch.Generator) -> torch.Tensor:
        kind, _, limit = self.kind.partition(" ")
        if kind == "index":
            values = torch.randint(0, int(limit), self.size, generator=generator)
        elif kind == "order":
            values = torch.randperm(int(limit), generator=generator)[: self.size[0]]
        elif kind == "mask":
            values = torch.randint(0, 2, self.size, generator=generator)
        elif kind == "integers" or (self.dtype not in FLOATS and self.dtype not in FP8):
            values = torch.randint(0 if self.dtype == torch.uint8 else -9, 10, self.size, generator=generator)
        else:
            values = torch.randn(self.size, generator=generator) * self.scale
        return (values.abs() + 0.25 if kind == "positive" else values).to(self.dtype)

    def viewed(self, x: torch.Tensor) -> torch.Tensor:
        return eval(self.view, {"torch": torch, "x": x}) if self.view else x

    def __str__(self) -> str:
        view = f", x -> {self.view}" if self.view else ""
        size = f"[{', '.join(self.lengths)}]" if self.lengths else str(list(self.size))
        return f"{self.name}: {f'of {self.of}' if self.of else f'{str(self.dtype)[6:]}{size} {self.kind}'}{view}"


@dataclass(frozen=True)
class Step:
    """One statement: `text` has {0}, {1}, … for the values named in `args`."""

    text: str
    args: tuple[str, ...]
    outs: tuple[str, ...] = ()

    def line(self) -> str:
        call = self.text.format(*self.args)
        return f"{', '.join(self.outs)} = {call}" if self.outs else call


@dataclass(frozen=True)
class Program:
    inputs: tuple[Input, ...] = ()
    steps: tuple[Step, ...] = ()
    returned: tuple[str, ...] = ()
    backward: bool = False
    knobs: dict[str, Any] = field(default_factory=dict)
    sanitize: bool = False
    data_seed: int = 0
    length: str = ""  # what n is, as an expression in the inputs
    lengths: tuple[int, ...] = ()  # values of n that it is called with
    marked: bool = False  # varying dims are marked, else dynamic=True
    exported: bool = False
    eager_only: bool = False

    def at(self, n: int) -> Program:
        return dataclasses.replace(self, inputs=tuple(x.at(n) for x in self.inputs))

    def source(self) -> str:
        lines = [f"def fn({', '.join(x.name for x in self.inputs)}):"]
        lines += [f"    n = {self.length}"] if self.length else []
        lines += [f"    {s.line()}" for s in self.steps]
        return "\n".join([*lines, f"    return ({', '.join(self.returned)},)", ""])

    def function(self) -> Any:
        source = self.source()
        name = f"<graph {abs(hash(source))}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        exec(compile(source, name, "exec"), space)
        return space["fn"]

    def __str__(self) -> str:
        lines = [f"# {x}" for x in self.inputs]
        flags = [f"{k}={v}" for k, v in self.knobs.items()]
        flags += ["sanitizer"] * self.sanitize + ["backward"] * self.backward + ["exported"] * self.exported
        flags += ["eager only"] * self.eager_only
        flags += [f"n is {list(self.lengths)}{', marked' * self.marked}"] if self.lengths else []
        return "\n".join([*lines, f"# {', '.join(flags) or 'default knobs'}", self.source()])

    def bases(self, generator: torch.Generator | None, device: str) -> list[torch.Tensor]:
        """A tensor for each input, of ones without a generator; a view of another input has its tensor."""
        made: dict[str, torch.Tensor] = {}
        for x in self.inputs:
            if x.of:
                made[x.name] = made[x.of]
                continue
            on_host = x.kind in ("number", "host")
            values = torch.ones(x.size, dtype=x.dtype) if generator is None else x.make(generator)
            made[x.name] = values if on_host else values.to(device).requires_grad_(self.needs_gradient(x))
        return list(made.values())

    def live(self, bases: list[torch.Tensor]) -> list[Any]:
        return [
            x.viewed(base) if x.kind != "number" else base.item() for x, base in zip(self.inputs, bases, strict=True)
        ]

    def needs_gradient(self, x: Input) -> bool:
        return self.backward and x.dtype in FLOATS and x.kind not in ("number", "host") and not x.of

    def accepted(self) -> bool:
        """Whether PyTorch takes it, shapes and dtypes only."""
        if self.lengths:
            return all(dataclasses.replace(self.at(n), lengths=()).accepted() for n in self.lengths)
        try:
            bases = self.bases(None, "meta")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results = self.function()(*self.live(bases))
                leaves = unique(b for b in bases if b.requires_grad)
                if self.backward:
                    ends = [r for r in results if r.requires_grad]
                    return bool(ends) and bool(
                        torch.autograd.grad(ends, leaves, [torch.ones_like(r) for r in ends], allow_unused=True)
                    )
        except Exception:
            return False
        return True
