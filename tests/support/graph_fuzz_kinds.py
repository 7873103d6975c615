# SPDX-License-Identifier: Apache-2.0
"""The kinds of programs of the seeds from `graph_fuzz_build.WIDE` on: `seed % 8` tells which (`KINDS`).

plain     all statements: those that compute, those that move, more of both
lengths   a size that varies: called with several, compiled once (graph_fuzz_lengths.py)
small     int8, uint8, int16 and fp8 beside the others
rank      six to eight dims, sizes 0 and 1
strided   inputs with strides and offsets of their own: gaps, stride 0, overlaps, channels_last
aliased   inputs that share memory, writes through views, results that are views of inputs
exported  `torch.export`, then run and compiled

From `PARTS` on, `seed % 3` tells which of three more (graph_fuzz_parts.py).
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from typing import Any

import torch
from graph_fuzz_build import INTS, MOVE_RULES, RULES, WIDE_RULES, Builder, Rule, finished, into
from graph_fuzz_program import FLOATS, FP8, Input, Program

KINDS = ["plain", "lengths", "small", "rank", "strided", "aliased", "lengths", "exported"]
PARTS = 200_000  # the first seed of the kinds that combine sizes that vary with shared memory
PARTS_KINDS = ["parts", "shared", "sizes"]
TINY = (torch.int8, torch.uint8, torch.int16)
RULE_MODULES = ["graph_fuzz_ops", "graph_fuzz_moves", "graph_fuzz_wide", "graph_fuzz_lengths", "graph_fuzz_parts"]
KIND_RULES: dict[str, list[tuple[float, Rule]]] = {kind: [] for kind in KINDS}


def kind_of(seed: int) -> str:
    kinds = KINDS if seed < PARTS else PARTS_KINDS
    return kinds[seed % len(kinds)]


def draw_wide(seed: int) -> Program:
    for name in RULE_MODULES:
        importlib.import_module(name)
    kind = kind_of(seed)
    b = BUILDERS.get(kind, WideBuilder)(seed)
    b.start()
    common = RULES + MOVE_RULES + WIDE_RULES
    for _ in range(b.random.choices([1, 3, 5, 8, 14, 24], [15, 30, 30, 15, 8, 2])[0]):
        rules = KIND_RULES[kind] if KIND_RULES[kind] and b.chance(0.5) else common
        b.random.choices(rules, [w for w, _ in rules])[0][1](b)
    if not b.steps:
        b.add("torch.neg({0})", b.input((3, 65)))
    return b.program(finished(b, seed))


class WideBuilder(Builder):
    def start(self) -> None:
        self.input(self.size())

    def program(self, drawn: Program) -> Program:
        """Knobs over their whole range."""
        if not drawn.knobs:
            return drawn
        knobs: dict[str, Any] = {"sencores": self.random.randint(1, 32)}
        part = self.random.choice([0.0, 0.1, 0.5, 0.8, 0.95, 0.99])
        knobs |= self.random.choice([{}, {"lx_planning": False}, {"dxp_lx_frac_avail": part}])
        return dataclasses.replace(drawn, knobs=knobs)


# Small types.


class SmallBuilder(WideBuilder):
    dtypes = (*FLOATS, *INTS, torch.bool, *TINY, *FP8)

    def start(self) -> None:
        self.mixed = True
        self.input(self.size(), self.random.choice([None, *TINY, torch.float8_e4m3fn]))


small_rule = into(KIND_RULES["small"])
SMALL_UNARY = """
-{0}
{0}.abs()
~{0}
{0} + 100
{0} * 7
{0} // 3
{0} % 5
{0} << 1
{0} >> 1
{0} & 12
{0} ^ 85
{0}.clamp(0, 4)
{0} / 3
{0} * 0.5
{0}.sum(-1)
{0}.amax(-1)
{0}.argmin(-1)
{0}.float().mean(-1)
torch.where({0} > 2, {0}, 1)
{0}.to(torch.int32).cumsum(-1)
torch.sort({0}, dim=-1, stable=True)
{0} == 3
{0}.logical_not()
{0}.sign()
""".split("\n")[1:-1]
SMALL_BINARY = ["+", "-", "*", "&", "|", "^", "<", ">=", "==", "!="]


def tiny(b: Builder) -> str:
    return b.pick(lambda t: t.dtype in TINY) or b.input(b.size(), b.random.choice(TINY))


@small_rule(6)
def small_integers(b: Builder) -> None:
    x = tiny(b)
    if b.chance(0.6):
        b.add(b.random.choice(SMALL_UNARY), x)
    else:
        y = b.partner(x, lambda t: t.dtype in (*TINY, *INTS, torch.bool))
        b.add(f"{{0}} {b.random.choice(SMALL_BINARY)} {{1}}", x, y)


@small_rule(4)
def to_small(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype not in FP8)
    if x is not None:
        low, high, to = b.random.choice([(-120, 120, "int8"), (0, 250, "uint8"), (-300, 300, "int16")])
        text = f"{{0}}.clamp({low}, {high})" if b.values[x].dtype in FLOATS else "{0}"
        b.add(f"{text}.to(torch.{to})", x)


@small_rule(3)
def from_small(b: Builder) -> None:
    to = b.random.choice(["float16", "float32", "bfloat16", "int32", "int64", "bool", "int8", "uint8"])
    b.add(f"{{0}}.to(torch.{to})", tiny(b))


@small_rule(5)
def fp8(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype in FP8)
    if x is None or b.chance(0.4):
        to = b.random.choice(["float8_e4m3fn", "float8_e4m3fn", "float8_e5m2fnuz"])
        x = b.add(f"({{0}} * {b.random.choice([1, 20, 300, 0.001])}).to(torch.{to})", b.floating())
    moves = ["", ".transpose(0, -1)", ".flatten()", "[..., 1:]", ".contiguous()", ".unsqueeze(0)"]
    if x is not None:
        y = b.add(f"{{0}}{b.random.choice(moves)}.to(torch.{b.random.choice(['float16', 'float32', 'bfloat16'])})", x)
        if y is not None and b.chance(0.5):
            b.add(b.random.choice(["{0}.sum(-1)", "{0} * 0.5", "{0} + {0}.amax()"]), y)


@small_rule(4)
def scaled_product(b: Builder) -> None:
    m, k, n = b.random.choice([16, 32, 80]), b.random.choice([16, 64, 128, 208]), b.random.choice([16, 64, 144])
    x = b.add("{0}.to(torch.float8_e4m3fn)", b.input((m, k)))
    w = b.input((n, k), torch.float8_e4m3fn, "normal", k**-0.5)
    rows = b.chance(0.4)
    scales = [b.input(size if rows else (), torch.float32, "positive") for size in ((m, 1), (1, n))]
    out = b.random.choice(["float16", "bfloat16", "float32"])
    b.add(f"torch._scaled_mm({{0}}, {{1}}.t(), {{2}}, {{3}}, out_dtype=torch.{out})", x, w, *scales)


@small_rule(3)
def quantised_weight(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype in FLOATS and t.ndim > 1 and 0 < t.shape[-1] < 300)
    if x is not None:
        k, dtype = b.values[x].shape[-1], b.values[x].dtype
        n = b.random.choice([3, 64, 65, 130])
        w, scale = b.input((n, k), torch.int8), b.input((n, 1), dtype, "positive", 0.1)
        b.add(f"F.linear({{0}}, {{1}}.to({dtype}) * {{2}})", x, w, scale)


# Many dims.


class RankBuilder(WideBuilder):
    max_rank = 8

    def start(self) -> None:
        self.input(self.size(self.random.choice([6, 7, 8])))

    def size(self, rank: int | None = None) -> tuple[int, ...]:
        rank = rank if rank is not None else self.random.choices([0, 1, 2, 3, 5, 6, 7], [2, 8, 20, 20, 20, 20, 10])[0]
        size = [self.random.choices([0, 1, 2, 3, 4, 5], [1, 30, 35, 15, 12, 7])[0] for _ in range(rank)]
        if rank and self.chance(0.6):
            size[self.random.randrange(rank)] = self.random.choice([31, 33, 63, 64, 65, 70])
        while math.prod(size) > self.most:
            size[size.index(max(size))] = 2
        return tuple(size)


rank_rule = into(KIND_RULES["rank"])


@rank_rule(5)
def raised(b: Builder) -> None:
    x = b.pick(lambda t: t.numel() > 1)
    if x is None:
        return
    size = list(b.values[x].shape)
    for _ in range(3):
        d = b.random.randrange(len(size)) if size else 0
        cuts = [i for i in range(2, size[d]) if size[d] % i == 0] if size else []
        if cuts and b.chance(0.7):
            inner = b.random.choice(cuts)
            size[d : d + 1] = [size[d] // inner, inner]
        else:
            size.insert(d, 1)
    b.add(f"{{0}}.reshape({size})", x)


@rank_rule(5)
def many_dims(b: Builder) -> None:
    x = b.pick(lambda t: t.ndim >= 5)
    if x is None:
        x = b.input(b.size(7))
    rank = b.values[x].ndim
    order = b.random.sample(range(rank), rank)
    dims = sorted(b.random.sample(range(rank), b.random.randint(1, rank)))
    text = b.random.choice(
        [
            f"{{0}}.permute({order})",
            f"{{0}}.permute({order}).contiguous()",
            f"{{0}}.permute({order}) + 1",
            f"{{0}}.sum({dims})",
            f"{{0}}.amax({dims}, keepdim=True)",
            f"{{0}} - {{0}}.float().mean({dims}, keepdim=True)",
            f"{{0}}.flip({dims})",
            f"{{0}}.softmax({dims[0]})" if b.values[x].dtype in FLOATS else "{0}.flatten(1, -2)",
            f"torch.cat([{{0}}, {{0}}], {dims[0]})",
            f"{{0}}.cumsum({dims[-1]})",
            f"{{0}}.select({dims[0]}, -1)",
            f"{{0}}.unflatten({dims[0]}, (-1, 1))",
            "{0}.flatten(2, 4) * 2",
            "{0}.mT @ {0}",
            "{0}.expand(3, *{0}.shape)",
            "{0}.repeat(2, *[1] * {0}.ndim)",
            "{0}.squeeze()",
            "torch.where({0} > 0, {0}, {0}.flip(0))",
        ]
    )
    b.add(text, x)


# Strides.


class StridedBuilder(WideBuilder):
    def input_view(self, size: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
        if not size or self.chance(0.15):
            return size, ""
        n, at = math.prod(size), self.random.choice([1, 3, 31, 32, 63, 64, 65, 100])
        packed = [math.prod(size[i + 1 :]) for i in range(len(size))]
        row = size[-1] + self.random.choice([1, 3, 59])
        gaps = [math.prod(size[i + 1 : -1]) * row for i in range(len(size) - 1)] + [1]
        order = self.random.sample(range(len(size)), len(size))
        shuffled = [math.prod(size[j] for j in order[order.index(i) + 1 :]) for i in range(len(size))]
        options = [
            ((n + at,), f"x[{at}:].view({list(size)})"),
            ((n + at,), f"x.as_strided({list(size)}, {packed}, {at})"),
            ((reach(size, gaps) + at,), f"x.as_strided({list(size)}, {gaps}, {at})"),
            ((reach(size, shuffled) + at,), f"x.as_strided({list(size)}, {shuffled}, {at})"),
            ((2, *size), "x[1]"),
            ((*size, 2), "x[..., 1]"),
        ]
        d = self.random.randrange(len(size))
        held = [0 if i == d else math.prod(m for j, m in enumerate(size) if j > i and j != d) for i in range(len(size))]
        options.append(((reach(size, held) + at,), f"x.as_strided({list(size)}, {held}, {at})"))
        if len(size) > 1 and size[-1] > 1:  # rows that overlap by all but one
            windows = [*[math.prod(size[i + 1 : -1]) for i in range(len(size) - 1)], 1]
            options.append(((reach(size, windows),), f"x.as_strided({list(size)}, {windows}, 0)"))
        if len(size) == 4:
            options += [((size[0], *size[2:], size[1]), "x.permute(0, 3, 1, 2)")] * 6
        return super().input_view(size) if self.chance(0.25) else self.random.choice(options)

    def size(self, rank: int | None = None) -> tuple[int, ...]:
        return super().size(4 if rank is None and self.chance(0.4) else rank)


def reach(size: tuple[int, ...], strides: list[int]) -> int:
    """Elements of a storage that holds this view."""
    return 1 + sum(max(n - 1, 0) * s for n, s in zip(size, strides, strict=True))


strided_rule = into(KIND_RULES["strided"])


@strided_rule(4)
def strides_change(b: Builder) -> None:
    x = b.pick(lambda t: t.ndim > 0)
    rank = b.values[x].ndim if x is not None else 0
    texts = [
        "{0}.contiguous()",
        "{0} + 1",
        "{0}.clone()",
        "torch.empty_like({0}).copy_({0})",
        "{0}.to(torch.float32)",
        "{0}.transpose(0, -1) * 2",
        "{0}.mT.contiguous().mT - 1",
        "torch.ones_like({0}) + {0}",
    ]
    if rank == 4:
        texts += [
            "F.max_pool2d({0}, 2)",
            "F.avg_pool2d({0}, 2, 1)",
            "F.interpolate({0}, scale_factor=2)",
            "{0}.mean((2, 3), keepdim=True) - {0}",
        ]
    b.add(b.random.choice(texts), x)


# Shared memory.


class AliasedBuilder(WideBuilder):
    def start(self) -> None:
        self.mutable = True
        self.input(self.size(self.random.choice([1, 2, 2, 3])))

    def program(self, drawn: Program) -> Program:
        """With the inputs whose memory others see, also where no statement names them."""
        names = {name for x in drawn.inputs for name in (x.name, x.of)}
        inputs = tuple(x for x in self.inputs if x.name in names)
        return dataclasses.replace(super().program(drawn), inputs=inputs)


aliased_rule = into(KIND_RULES["aliased"])
THROUGH_VIEWS = """
{0}[1:].add_(1)
{0}[:-1].copy_({0}[1:].clone())
{0}[::2].mul_(2)
{0}[-1].fill_(3)
{0}.view(-1)[::2].neg_()
{0}.reshape(-1)[:5].zero_()
{0}.t().mul_(2)
{0}.transpose(0, -1).sub_(1)
{0}.mT[0].add_({0}.mT[1])
{0}.diagonal().fill_(2)
{0}[..., 0].copy_({0}[..., -1])
{0}[..., 1:3] = 0
{0}[0] = {0}[-1]
{0}[1:, 1:] += 1
{0}.unsqueeze(0).add_({0})
{0}.squeeze().clamp_(-1, 1)
{0}.narrow(0, 0, 1).add_({0}.sum())
{0}.select(-1, 0).div_(2)
{0}.flatten().add_(1)
{0}.unfold(0, 2, 2).mul_(2)
{0}.movedim(0, -1).neg_()
{0}.split(2)[0].add_(1)
{0}.as_strided((2,), (1,), 1).fill_(5)
torch.add({0}, 1, out={0})
torch.mul({0}, 2, out={0})
torch.neg({0}[1:], out={0}[1:])
""".split("\n")[1:-1]


def is_writable(t: torch.Tensor) -> bool:
    return t.numel() > 0 and not torch._debug_has_internal_overlap(t)


@aliased_rule(6)
def through_a_view(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype in FLOATS and t.ndim > 0 and is_writable(t))
    b.add(b.random.choice(THROUGH_VIEWS), x, writes=True)


@aliased_rule(3)
def another_name(b: Builder) -> None:
    """An input that is a view of the memory of another one, or that very tensor."""
    origins = [x for x in b.inputs if x.on_card and not x.of and x.view == "" and math.prod(x.size) > 1]
    if not origins or b.steps:  # what was written before is another input's as well
        return
    x = b.random.choice(origins)
    views = ["", "x[1:]", "x[:-1]", "x.t()", "x.view(-1)", "x[::2]", "x[-1]", "x.transpose(0, -1)", "x.detach()"]
    view = b.random.choice(views)
    made = Input(f"a{len(b.inputs)}", x.size, x.dtype, x.kind, view, x.scale, of=x.name)
    try:
        b.values[made.name] = made.viewed(b.values[x.name])
    except Exception:
        return
    b.inputs.append(made)


@aliased_rule(3)
def a_view_to_return(b: Builder) -> None:
    x = b.pick(lambda t: t.ndim > 0 and t.numel() > 0)
    b.add(b.random.choice(["{0}[1:]", "{0}.mT", "{0}.view(-1)", "{0}.unsqueeze(1)", "{0}[..., :1]", "{0}.detach()"]), x)


@aliased_rule(3)
def operands_in_place(b: Builder) -> None:
    x = b.pick(lambda t: t.dtype in FLOATS and is_writable(t))
    if x is not None:
        y = b.pick(lambda t: t.dtype in FLOATS and t.shape == b.values[x].shape)
        texts = ["{0}.add_({1})", "{0}.mul_({1}.sigmoid())", "{0}.copy_({1})", "{0}.addcmul_({1}, {1})"]
        b.add(b.random.choice(texts), x, y, writes=True)


# Exported graphs.


class ExportedBuilder(WideBuilder):
    def input(self, size: tuple[int, ...], dtype: Any = None, kind: str = "", scale: float = 1.0) -> str:
        """Export takes numbers for constants: a tensor without dims instead."""
        return super().input(size, dtype, "" if kind in ("number", "host") else kind, scale)

    def program(self, drawn: Program) -> Program:
        return dataclasses.replace(super().program(drawn), exported=True)


BUILDERS: dict[str, type[WideBuilder]] = {
    "small": SmallBuilder,
    "rank": RankBuilder,
    "strided": StridedBuilder,
    "aliased": AliasedBuilder,
    "exported": ExportedBuilder,
}
