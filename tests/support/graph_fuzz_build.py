# SPDX-License-Identifier: Apache-2.0
"""Draws a random graph from a seed: `draw_program(seed)`.

A rule (graph_fuzz_ops.py, graph_fuzz_moves.py) draws one or a few statements; PyTorch itself says, on tensors without
data, whether a statement is legal and what comes out. A rule that finds no operand, or that PyTorch refuses, adds
nothing.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from graph_fuzz_program import FLOATS, Input, Program, Step

HALF, FLOAT, BRAIN = torch.float16, torch.float32, torch.bfloat16
INTS = (torch.int32, torch.int64)
SIZES = [1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 63, 64, 65, 100, 127, 128, 130, 192, 256, 511]
MAX_RANK = 5

Rule = Callable[["Builder"], Any]
WIDE = 100_000  # the first seed whose program may have statements of the other lists as well
RULES: list[tuple[float, Rule]] = []
MOVE_RULES: list[tuple[float, Rule]] = []
WIDE_RULES: list[tuple[float, Rule]] = []


def into(rules: list[tuple[float, Rule]]) -> Callable[[float], Callable[[Rule], Rule]]:
    def weighted(weight: float) -> Callable[[Rule], Rule]:
        def add(function: Rule) -> Rule:
            rules.append((weight, function))
            return function

        return add

    return weighted


rule, move_rule, wide_rule = into(RULES), into(MOVE_RULES), into(WIDE_RULES)


class Builder:
    """A program in the making. `values` holds a tensor without data for every name."""

    max_rank = MAX_RANK
    dtypes: tuple[torch.dtype, ...] = (*FLOATS, *INTS, torch.bool)

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.inputs: list[Input] = []
        self.steps: list[Step] = []
        self.values: dict[str, Any] = {}
        self.mutable = self.random.random() < 0.4  # whether this program writes in place
        self.most = self.random.choices([4_000, 30_000, 300_000], [30, 65, 5])[0]
        self.float = self.random.choices([HALF, FLOAT, BRAIN], [70, 15, 15])[0]
        self.mixed = self.random.random() < 0.25

    # Drawing.

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def pick(self, test: Callable[[torch.Tensor], bool] = lambda x: True) -> str | None:
        """A value that fits, a recent one more often than not, so that graphs grow deep."""
        names = [
            n for n, x in self.values.items() if isinstance(x, torch.Tensor) and x.device.type == "meta" and test(x)
        ]
        if not names:
            return None
        return names[-1] if self.chance(0.45) else self.random.choice(names[-6:] if self.chance(0.6) else names)

    def floating(self, rank: int = 0) -> str | None:
        return self.pick(lambda x: x.dtype in FLOATS and x.ndim >= rank)

    def partner(self, name: str, test: Callable[[torch.Tensor], bool] = lambda x: True) -> str:
        """A value that broadcasts with `name`: another one, a reduced one, a new input, or itself."""
        x = self.values[name]
        found = self.pick(lambda y: broadcasts(x.shape, y.shape) and test(y) and (self.mixed or y.dtype == x.dtype))
        if found is not None and (found != name or self.chance(0.2)):
            return found
        size = tuple(1 if self.chance(0.3) else n for n in x.shape)
        size = size[self.random.randint(0, len(size)) :] if self.chance(0.3) else size
        return self.input(size, x.dtype)

    def dim(self, name: str) -> int:
        rank = self.values[name].ndim
        at = self.random.randrange(rank)
        return at - rank if self.chance(0.5) else at

    def input(self, size: tuple[int, ...], dtype: torch.dtype | None = None, kind: str = "", scale: float = 1.0) -> str:
        """A new input of this size; now and then a view of a larger or transposed tensor."""
        dtype = dtype or self.float
        if not kind:
            kind = self.random.choices(["normal", "integers"], [75, 25])[0] if dtype in FLOATS else "integers"
            kind = "mask" if dtype == torch.bool else kind
        base, view = (
            self.input_view(tuple(size)) if kind.split()[0] not in ("order", "number", "host") else (tuple(size), "")
        )
        made = Input(f"a{len(self.inputs)}", base, dtype, kind, view, scale)
        self.inputs.append(made)
        if kind == "number":
            self.values[made.name] = 3
        elif kind == "host":
            self.values[made.name] = torch.ones(size, dtype=dtype)
        else:
            self.values[made.name] = made.viewed(torch.empty(base, dtype=dtype, device="meta"))
        return made.name

    def input_view(self, size: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
        if not size or self.chance(0.7):
            return size, ""
        d = self.random.randrange(len(size))
        options = [
            ((*size[:d], size[d] + 7, *size[d + 1 :]), f"x.narrow({d}, {self.random.randint(0, 7)}, {size[d]})"),
            ((*size[:d], size[d] * 2, *size[d + 1 :]), f"x[{':, ' * d}::2]"),
            ((*size[:d], 3, *size[d:]), f"x.select({d}, {self.random.randint(0, 2)})"),
            ((math.prod(size),), f"x.view({list(size)})"),
        ]
        if len(size) > 1:
            order = self.random.sample(range(len(size)), len(size))
            options += [(tuple(size[order.index(i)] for i in range(len(size))), f"x.permute({order})")] * 2
        if size[d] == 1 or self.chance(0.1):
            options.append(((*size[:d], 1, *size[d + 1 :]), f"x.expand({list(size)})"))
        return self.random.choice(options)

    # Adding.

    def add(self, text: str, *args: str, writes: bool = False) -> str | None:
        """One statement; the name of its (last) result, or None if PyTorch refuses it or it grows too large."""
        if any(a is None for a in args):
            return None
        space = {"torch": torch, "F": torch.nn.functional, **self.values}
        line = text.format(*args)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if writes:
                    exec(line, space)
                    result: Any = ()
                else:
                    result = eval(line, space)
        except Exception:
            return None
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        if not all(self.fits(x) for x in results) or (not results and not writes):
            return None
        first = len(self.values)
        outs = tuple(f"v{first + i}" for i in range(len(results)))
        tail = "," if len(outs) == 1 and isinstance(result, (tuple, list)) else ""
        self.values.update(zip(outs, results, strict=True))
        self.steps.append(Step(text, args, tuple(f"{o}{tail}" for o in outs) if tail else outs))
        return outs[self.random.randrange(len(outs))] if outs else args[0]

    def fits(self, x: Any) -> bool:
        return (
            isinstance(x, torch.Tensor)
            and x.device.type == "meta"
            and x.numel() <= 2 * self.most
            and x.ndim <= self.max_rank
            and x.dtype in self.dtypes
        )

    def size(self, rank: int | None = None) -> tuple[int, ...]:
        rank = rank if rank is not None else self.random.choices([0, 1, 2, 3, 4], [3, 15, 40, 30, 12])[0]
        size: tuple[int, ...] = ()
        for _ in range(rank):
            n = 0 if self.chance(0.008) else self.random.choice(SIZES)
            size = (*size, n if math.prod(size) * n <= self.most else self.random.choice([1, 2, 3]))
        return tuple(self.random.sample(size, len(size)))


def broadcasts(a: Any, b: Any) -> bool:
    return all(m == n or m == 1 or n == 1 for m, n in zip(tuple(a)[::-1], tuple(b)[::-1], strict=False))


def draw_program(seed: int) -> Program:
    import graph_fuzz_kinds
    import graph_fuzz_ops  # noqa: F401  the rules

    if seed >= WIDE:
        return graph_fuzz_kinds.draw_wide(seed)
    b = Builder(seed)
    b.input(b.size())
    weights = [w for w, _ in RULES]
    for _ in range(b.random.choices([2, 4, 8, 16, 30], [25, 35, 25, 10, 5])[0]):
        b.random.choices(RULES, weights)[0][1](b)
    if not b.steps:
        b.add("torch.neg({0})", b.input((3, 65)))
    return finished(b, seed)


def finished(b: Builder, seed: int) -> Program:
    read = {a for s in b.steps for a in s.args}
    made = [o.rstrip(",") for s in b.steps for o in s.outs]
    returned = [n for n in made if n not in read] or made[-1:] or [b.steps[-1].args[0]]
    tensors = [n for n, x in b.values.items() if isinstance(x, torch.Tensor) and x.device.type == "meta"]
    returned += b.random.sample(tensors, min(len(tensors), b.random.choices([0, 1, 2], [60, 30, 10])[0]))
    knobs: dict[str, Any] = {}
    if b.chance(0.4):
        knobs = {"sencores": b.random.choice([1, 2, 3, 4, 7, 8, 16, 31])}
        knobs |= b.random.choice([{}, {"lx_planning": False}, {"dxp_lx_frac_avail": b.random.choice([0.0, 0.9, 0.99])}])
    sanitize = b.chance(0.1) and b.most <= 30_000
    used = {a for s in b.steps for a in s.args} | set(returned)
    inputs = tuple(x for x in b.inputs if x.name in used)
    program = Program(inputs, tuple(b.steps), tuple(returned), False, knobs, sanitize, seed)
    if b.chance(0.3):
        with_backward = dataclasses.replace(program, backward=True)
        if with_backward.accepted():
            return with_backward
    return program
