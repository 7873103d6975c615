# SPDX-License-Identifier: Apache-2.0
"""A random graph as data: inputs, statements on named values, what is returned, and under which knobs it runs."""

from __future__ import annotations

import linecache
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Input:
    """A tensor on the card, filled as `kind` says, and the view of it that the program receives."""

    name: str
    size: tuple[int, ...]
    dtype: torch.dtype
    kind: str = "normal"  # normal, integers, positive, mask, index <n>, order <n>, number (a Python number), host
    view: str = ""  # an expression in x
    scale: float = 1.0

    def make(self, generator: torch.Generator) -> torch.Tensor:
        kind, _, limit = self.kind.partition(" ")
        if kind == "index":
            values = torch.randint(0, int(limit), self.size, generator=generator)
        elif kind == "order":
            values = torch.randperm(int(limit), generator=generator)[: self.size[0]]
        elif kind == "mask":
            values = torch.randint(0, 2, self.size, generator=generator)
        elif kind == "integers" or self.dtype not in FLOATS:
            values = torch.randint(-9, 10, self.size, generator=generator)
        else:
            values = torch.randn(self.size, generator=generator) * self.scale
        return (values.abs() + 0.25 if kind == "positive" else values).to(self.dtype)

    def viewed(self, x: torch.Tensor) -> torch.Tensor:
        return eval(self.view, {"torch": torch, "x": x}) if self.view else x

    def __str__(self) -> str:
        view = f", x -> {self.view}" if self.view else ""
        return f"{self.name}: {str(self.dtype)[6:]}{list(self.size)} {self.kind}{view}"


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

    def source(self) -> str:
        lines = [f"def fn({', '.join(x.name for x in self.inputs)}):"]
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
        flags += ["sanitizer"] * self.sanitize + ["backward"] * self.backward
        return "\n".join([*lines, f"# {', '.join(flags) or 'default knobs'}", self.source()])

    def live(self, bases: list[torch.Tensor]) -> list[Any]:
        return [
            x.viewed(base) if x.kind != "number" else base.item() for x, base in zip(self.inputs, bases, strict=True)
        ]

    def needs_gradient(self, x: Input) -> bool:
        return self.backward and x.dtype in FLOATS and x.kind not in ("number", "host")

    def accepted(self) -> bool:
        """Whether PyTorch takes it, shapes and dtypes only."""
        bases = [
            torch.empty(x.size, dtype=x.dtype, device="cpu" if x.kind in ("number", "host") else "meta")
            for x in self.inputs
        ]
        bases = [b.fill_(1) if b.device.type == "cpu" else b for b in bases]
        for base, x in zip(bases, self.inputs, strict=True):
            base.requires_grad_(self.needs_gradient(x))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results = self.function()(*self.live(bases))
                leaves = [b for b in bases if b.requires_grad]
                if self.backward:
                    ends = [r for r in results if r.requires_grad]
                    return bool(ends) and bool(
                        torch.autograd.grad(ends, leaves, [torch.ones_like(r) for r in ends], allow_unused=True)
                    )
        except Exception:
            return False
        return True
