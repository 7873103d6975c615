# SPDX-License-Identifier: Apache-2.0
"""Programs with a size n that varies: each statement must be legal for all values of n that the program is called with.

They are drawn where n is `DRAWN`, a number that nothing else is near; whatever comes out near a multiple of it is
written in terms of n: 211 is n, 425 is 2 * n + 3.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from graph_fuzz_build import Builder
from graph_fuzz_kinds import BUILDERS, KIND_RULES, WideBuilder
from graph_fuzz_program import Input, Program

DRAWN = 211
NEAR = 8


def in_terms_of_n(number: int) -> str:
    times = round(number / DRAWN)
    rest = number - times * DRAWN
    if times == 0 or abs(rest) > NEAR:
        return str(number)
    product = "n" if times == 1 else f"{times} * n"
    if not rest:
        return product if times == 1 else f"({product})"
    return f"({product} {'+' if rest > 0 else '-'} {abs(rest)})"


def rewritten(text: str) -> str:
    return re.sub(r"(?<![\w.])\d+(?![\w.])", lambda m: in_terms_of_n(int(m[0])), text)


class LengthBuilder(WideBuilder):
    """`others` holds the values of all names for each other n."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.lengths = drawn_lengths(self)
        self.others: dict[int, dict[str, Any]] = {n: {} for n in self.lengths}
        self.length = ""

    def start(self) -> None:
        rank = self.random.choices([1, 2, 3, 4], [10, 40, 35, 15])[0]
        size, d = list(self.size(rank)), self.random.randrange(rank)
        size = [min(m, [4000, 130, 24, 8][rank - 1]) for m in size]
        size[d] = DRAWN
        self.add_input(Input("a0", tuple(size), self.float))
        self.length = f"a0.shape[{d}]"

    def pick(self, test: Callable[[torch.Tensor], bool] = lambda x: True) -> str | None:
        """More often than not one whose size follows n."""
        if self.chance(0.7):
            names = [name for name in self.values if self.varies(name) and test(self.values[name])]
            if names:
                return names[-1] if self.chance(0.4) else self.random.choice(names)
        return super().pick(test)

    def varies(self, name: str) -> bool:
        x = self.values[name]
        others = [values[name] for values in self.others.values()]
        return isinstance(x, torch.Tensor) and any(y is not None and y.shape != x.shape for y in others)

    def input(self, size: tuple[int, ...], dtype: Any = None, kind: str = "", scale: float = 1.0) -> str:
        name = super().input(size, dtype, kind, scale)
        drawn = self.inputs.pop()
        word, _, limit = drawn.kind.partition(" ")
        kind = f"{word} {in_terms_of_n(int(limit))}" if limit else word
        self.add_input(dataclasses.replace(drawn, kind=kind, view=rewritten(drawn.view)))
        return name

    def add_input(self, drawn: Input) -> None:
        lengths = tuple(in_terms_of_n(m) for m in drawn.size)
        made = dataclasses.replace(drawn, lengths=lengths)
        self.inputs.append(made)
        for n, values in ((DRAWN, self.values), *self.others.items()):
            x = made.at(n)
            if x.kind == "number":
                values[x.name] = 3
            elif x.kind == "host":
                values[x.name] = torch.ones(x.size, dtype=x.dtype)
            else:
                try:
                    values[x.name] = x.viewed(torch.empty(x.size, dtype=x.dtype, device="meta"))
                except RuntimeError:  # a view that this n is too small for: no statement can use it
                    values[x.name] = None

    def add(self, text: str, *args: str, writes: bool = False) -> str | None:
        if any(a is None for a in args):
            return None
        text = rewritten(text)
        results = {n: self.tried(text.format(*args), n, writes) for n in self.lengths}
        if None in results.values():
            return None
        self.values["n"] = DRAWN
        try:
            name = super().add(text, *args, writes=writes)
        finally:
            del self.values["n"]
        if name is None:
            return None
        outs = [o.rstrip(",") for o in self.steps[-1].outs]
        drawn = [self.values[o].ndim for o in outs]
        if any([x.ndim for x in r or ()] != drawn for r in results.values()):
            self.steps.pop()
            for o in outs:
                del self.values[o]
            return None
        for n, r in results.items():
            self.others[n].update(zip(outs, r or (), strict=True))
        return name

    def tried(self, line: str, n: int, writes: bool) -> list[torch.Tensor] | None:
        space = {"torch": torch, "F": torch.nn.functional, **self.others[n], "n": n}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if writes:
                    exec(line, space)
                    return []
                result = eval(line, space)
        except Exception:
            return None
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        return results if all(self.fits(x) for x in results) else None

    def program(self, drawn: Program) -> Program:
        drawn = super().program(drawn)
        unmarked = min(self.lengths) < 2 or self.chance(0.5)
        first = [] if any(x.name == "a0" for x in drawn.inputs) else self.inputs[:1]
        return dataclasses.replace(
            drawn,
            inputs=(*first, *drawn.inputs),
            length=self.length,
            lengths=self.lengths,
            marked=not unmarked,
            sanitize=False,
            exported=min(self.lengths) > 1 and self.chance(0.15),
        )


def drawn_lengths(b: Builder) -> tuple[int, ...]:
    at, r = b.random.choice([2, 7, 15, 16, 31, 32, 62, 63, 64, 127, 128, 191]), b.random
    lengths = r.choice(
        [
            [at, at + 1, at + 2],
            [at, at + 1],
            [63, 64, 65],
            [r.randint(2, 200), r.randint(2, 200), r.randint(2, 200)],
            [64, 128, 192],
            [r.randint(2, 80), 1, r.randint(2, 140)],
            [1, 2, 3, r.randint(60, 70)],
            [r.randint(2, 40), 0, 65],
        ]
    )
    return tuple(dict.fromkeys(lengths if b.chance(0.6) else r.sample(lengths, len(lengths))))


def any_length(b: Builder, text: str) -> None:
    b.add(text, b.pick(lambda t: t.ndim > 0))


STATEMENTS = """
{0}[-1]
{0}[1:]
{0}[..., -1]
{0}[..., :-1] * 2
{0}[n - 1:] + 1
{0} * n
{0} / n
{0} + torch.arange({0}.shape[-1], device={0}.device)
{0}.masked_fill(torch.arange({0}.shape[0], device={0}.device).view(-1, *[1] * ({0}.ndim - 1)) % 3 == 0, 2)
torch.cat([{0}, {0}[:1]], 0)
torch.cat([{0}, {0}[..., :3]], -1)
{0}.reshape(-1, {0}.shape[-1])
{0}.flatten()
{0}.flatten(0, 1) + 1
{0}.transpose(0, -1)
{0}.transpose(0, -1).contiguous()
{0}.sum(0)
{0}.sum(-1)
{0}.float().mean(-1, keepdim=True)
{0} - {0}.amax(0, keepdim=True)
{0}.float().softmax(-1)
{0}.float().softmax(0)
{0}.cumsum(0)
{0}.flip(0)
{0}.roll(1, 0)
{0}.argmax(-1)
{0}.float().var(0, correction=0)
{0}.mT @ {0}
{0} @ {0}.mT
torch.tril({0})
F.layer_norm({0}.float(), {0}.shape[-1:])
{0}.unsqueeze(0).expand(3, *{0}.shape)
{0}.new_zeros({0}.shape[0]) + 1
torch.stack([{0}, {0}], 1).flatten(1, 2)
{0}.chunk(2, -1)[0]
F.pad({0}, (1, 2))
{0}.repeat(2, *[1] * ({0}.ndim - 1))
{0}[torch.arange(n, device={0}.device) % {0}.shape[0]]
""".split("\n")[1:-1]

KIND_RULES["lengths"] += [(1, lambda b, text=text: any_length(b, text)) for text in STATEMENTS]  # type: ignore[misc]
BUILDERS["lengths"] = LengthBuilder
