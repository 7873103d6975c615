# SPDX-License-Identifier: Apache-2.0
"""The kinds of the seeds from `graph_fuzz_kinds.PARTS` on: sizes that vary, of tensors that are parts of others.

parts    inputs are parts of larger tensors: offsets, gaps, orders of dims, some of which follow n; writes into them
shared   in addition, inputs that share memory
sizes    either, called eagerly with more sizes, so that programs for buckets of sizes serve them

Whatever lies around what a statement writes must stay: `graph_fuzz_oracle.Lockstep` looks at each write of the eager
run, and `graph_fuzz_check.same` at the whole tensors, whose parts the program has seen, after the compiled one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from graph_fuzz_build import Builder, into
from graph_fuzz_kinds import BUILDERS, KIND_RULES, is_writable, through_a_view
from graph_fuzz_lengths import DRAWN, STATEMENTS, LengthBuilder, any_length, in_terms_of_n
from graph_fuzz_program import FLOATS, Input, Program

FIXED = 300  # longer than n ever is, with room at both ends


class PartsBuilder(LengthBuilder):
    def start(self) -> None:
        self.mutable = True
        rank = self.random.choices([1, 2, 3], [30, 45, 25])[0]
        size, d = list(self.size(rank)), self.random.randrange(rank)
        size = [min(m, [4000, 130, 24][rank - 1]) for m in size]
        size[d] = DRAWN
        self.input(tuple(size), self.float, "normal")
        self.length = f"a0.shape[{d}]"

    def input(self, size: tuple[int, ...], dtype: Any = None, kind: str = "", scale: float = 1.0) -> str:
        kind = kind or ("integers" if dtype not in (None, *FLOATS) else "normal")
        if not size or kind != "normal" or self.chance(0.2):
            return super().input(size, dtype, kind, scale)
        lengths, view = self.part(size)
        name = f"a{len(self.inputs)}"
        self.add_input(Input(name, at_drawn(lengths), dtype or self.float, kind, view, scale), lengths)
        return name

    def add_input(self, drawn: Input, lengths: tuple[str, ...] = ()) -> None:
        super().add_input(drawn)
        if not lengths or self.inputs[-1].lengths == lengths:
            return
        made = dataclasses.replace(self.inputs.pop(), lengths=lengths, view=drawn.view)
        self.inputs.append(made)
        for n, values in ((DRAWN, self.values), *self.others.items()):
            values[made.name] = seen(made, n)

    def part(self, size: tuple[int, ...]) -> tuple[tuple[str, ...], str]:
        """The size of a tensor, and which part of it is of the given size, in terms of n."""
        n = [in_terms_of_n(m) for m in size]
        d, r = self.random.randrange(len(size)), self.random
        start, many = r.randint(0, 8), r.choice([1, 31, 64, 65, 80])
        order = r.sample(range(len(size)), len(size))
        row = f"({n[-1]} + {r.choice([1, 3, 59])})"
        strides = [" * ".join([*n[i + 1 : -1], row]) for i in range(len(n) - 1)] + ["1"]

        def with_dim(*dim: str) -> tuple[str, ...]:
            return (*n[:d], *dim, *n[d + 1 :])

        def text(of: list[str]) -> str:
            return f"[{', '.join(of)}]"

        options = [
            (with_dim(f"({n[d]} + 8)"), f"x.narrow({d}, {start}, {n[d]})"),
            (with_dim(f"({n[d]} + {many})"), f"x.narrow({d}, {many}, {n[d]})"),
            (with_dim(f"(2 * {n[d]} + 3)"), f"x.narrow({d}, {n[d]} // 2, {n[d]})"),
            (with_dim(f"(2 * {n[d]})"), f"x[{':, ' * d}{start % 2}::2]"),
            (with_dim("3", n[d]), f"x.select({d}, {start % 3})"),
            ((" * ".join(n) + f" + {many}",), f"x[{many}:].view({text(n)})"),
            (
                (f"{' * '.join(n[:-1] or ['1'])} * {row} + {start}",),
                f"x.as_strided({text(n)}, {text(strides)}, {start})",
            ),
            (tuple(n[order.index(i)] for i in range(len(n))), f"x.permute({order})"),
            (tuple(f"({m} + 5)" for m in n), f"x[{', '.join(f'{start % 5}:{start % 5} + {m}' for m in n)}]"),
        ]
        if size[d] == DRAWN:
            options += [(with_dim(str(FIXED)), f"x.narrow({d}, {start * 10}, n)")] * 3
        return r.choice(options)

    def program(self, drawn: Program) -> Program:
        names = {"a0"} | {name for x in drawn.inputs for name in (x.name, x.of)}
        inputs = tuple(x for x in self.inputs if x.name in names)
        return dataclasses.replace(super().program(drawn), inputs=inputs)


class SizesBuilder(PartsBuilder):
    """Called with more sizes, some of them twice: before there is a program for their bucket, and after."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        at, r = self.random.choice([2, 3, 7, 13, 20, 30, 60, 62, 120, 126, 180]), self.random
        by = r.choice([1, 1, 1, 2, 5])
        self.lengths = tuple(at + i * by for i in range(4))
        self.others = {n: {} for n in self.lengths}

    def program(self, drawn: Program) -> Program:
        return dataclasses.replace(
            super().program(drawn), lengths=(*self.lengths, *self.lengths[:2]), eager_only=True, exported=False
        )


def at_drawn(lengths: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(eval(m, {"n": DRAWN}) for m in lengths)


def seen(made: Input, n: int) -> torch.Tensor | None:
    x = made.at(n)
    try:
        return x.viewed(torch.empty(x.size, dtype=x.dtype, device="meta"))
    except (RuntimeError, IndexError):  # this n is too small for it
        return None


KIND_RULES |= {"parts": [], "shared": [], "sizes": []}
BUILDERS |= {"parts": PartsBuilder, "shared": PartsBuilder, "sizes": SizesBuilder}

WRITES = """
{0}[n // 2:].add_(1)
{0}[:n // 2].mul_(2)
{0}[..., n // 2:].fill_(3)
{0}[..., :-1].neg_()
{0}[1:].mul_({0}[:-1].clone())
{0}.narrow(0, {0}.shape[0] // 3, {0}.shape[0] // 2).sub_(1)
{0}[::2] = {0}[::2] * 2
{0}[-1] = {0}[0]
{0}[..., -1] = 4
{0}[n // 2 - 1:n // 2 + 1] *= 2
{0}.masked_fill_({0} > 0, -1)
{0}[{0} > 1] = 0
{0}.index_fill_(0, torch.arange({0}.shape[0] // 2, device={0}.device), 1)
{0}.index_add_(0, torch.arange({0}.shape[0], device={0}.device), {0}.clone())
{0}.index_copy_(0, torch.arange({0}.shape[0] - 1, device={0}.device), {0}[1:].clone())
{0}[torch.arange({0}.shape[0] // 2, device={0}.device) * 2] = 7
{0}.scatter_(0, torch.zeros_like({0}[:1], dtype=torch.int64), 5)
{0}.zero_()
{0}.copy_({0}.flip(0))
{0}.copy_({0} + {0}.amax())
{0}.copy_({0}[:1])
{0}.add_({0}.amin(0))
{0}.clamp_(-1, 1)
{0}.tril_()
{0}.sigmoid_()
{0}.floor_()
F.relu_({0})
{0}.cumsum_(0)
{0}.addcmul_({0}, {0}, value=0.5)
torch.mul({0}, 2, out={0})
torch.add({0}[1:], 1, out={0}[1:])
torch.neg({0}, out={0}.transpose(0, -1).transpose(0, -1))
torch.sum({0}.clone(), 0, out={0}[0])
torch.amax({0}.clone(), -1, out={0}[..., 0])
torch.where({0} > 0, {0}, 1, out={0})
{0}.transpose(0, -1).copy_({0}.transpose(0, -1) * 2)
{0}.transpose(0, -1)[1:].add_(1)
{0}.view(-1)[n // 2:].add_(1)
{0}.view(-1)[1:n].zero_()
{0}.as_strided((n // 2 + 1,), (1,), {0}.storage_offset()).fill_(5)
{0}.select(-1, {0}.shape[-1] // 2).add_(1)
{0}.split({0}.shape[0] // 2 + 1)[0].mul_(3)
{0}.chunk(2, -1)[1].add_(1)
{0}.diagonal().add_(1)
{0}.unfold(0, 2, 2).mul_(2)
""".split("\n")[1:-1]

INTO = """
{0}.narrow({d}, {s}, {m}).copy_({1})
{0}.narrow({d}, {s}, {m}).add_({1})
{0}.narrow({d}, {s}, {m}).mul_({1}.sigmoid())
torch.mul({1}, 2, out={0}.narrow({d}, {s}, {m}))
{0}.index_copy_({d}, torch.arange({m}, device={1}.device) + {s}, {1})
{0}.index_add_({d}, torch.arange({m}, device={1}.device) + {s}, {1})
{0}.narrow({d}, {s}, {m}).copy_({1} * 2); {0}.narrow({d}, {m}, 3).zero_()
{0}.clone().slice_scatter({1}, {d}, {s}, {s} + {m})
torch.cat([{1}, {0}.narrow({d}, {m}, {0}.shape[{d}] - {m})], {d})
torch.cat([{0}.narrow({d}, {m}, {0}.shape[{d}] - {m}), {1}], {d})
{0}.narrow({d}, {m}, {0}.shape[{d}] - {m}).float().sum({d})
{0}.narrow({d}, {m}, {0}.shape[{d}] - {m}).flatten()
{0}.narrow({d}, {m}, {0}.shape[{d}] - {m}).add_(1)
{0}.copy_(torch.cat([{1}, {0}.narrow({d}, {m}, {0}.shape[{d}] - {m})], {d}))
torch.cat([{0}.narrow({d}, 0, {s}), {1}, {0}.narrow({d}, {m}, 5)], {d})
""".split("\n")[1:-1]

AGAIN = """
x
x.detach()
x[1:]
x[:-1]
x[::2]
x[-1]
x[..., 1:]
x.t()
x.view(-1)
x.view(-1)[n // 2:]
x.view(-1)[:n]
x.transpose(0, -1)
x.narrow(0, 2, n)
x.narrow(-1, 1, n)
x[n // 2:]
""".split("\n")[1:-1]

for_parts, for_shared, for_sizes = (into(KIND_RULES[kind]) for kind in ("parts", "shared", "sizes"))


def writable(b: Builder) -> str | None:
    return b.pick(lambda t: t.dtype in FLOATS and t.ndim > 0 and is_writable(t))


@for_parts(8)
@for_shared(6)
@for_sizes(8)
def written(b: Builder) -> None:
    b.add(b.random.choice(WRITES), writable(b), writes=True)


@for_parts(2)
@for_shared(4)
@for_sizes(3)
def written_by_another(b: Builder) -> None:
    x = writable(b)
    if x is not None:
        y = b.partner(x, lambda t: t.dtype in FLOATS)
        text = b.random.choice(
            ["{0}.add_({1})", "{0}.copy_({1})", "{0}.mul_({1}.sigmoid())", "torch.add({0}, {1}, out={0})"]
        )
        b.add(text, x, y, writes=True)


@for_parts(4)
@for_shared(3)
@for_sizes(4)
def into_a_longer_one(b: Builder) -> None:
    """As many rows as n says go into a tensor that is longer, and often of one size for every n."""
    x = b.pick(lambda t: t.dtype in FLOATS and t.ndim > 0 and t.numel() > 0 and DRAWN in t.shape)
    if x is None:
        return
    size = list(b.values[x].shape)
    d = size.index(DRAWN)
    size[d] = b.random.choice([FIXED, FIXED, DRAWN + 8])
    target = b.input(tuple(size), b.values[x].dtype, "normal")
    text = b.random.choice(INTO).replace("{d}", str(d)).replace("{m}", f"{{1}}.shape[{d}]")
    text = text.replace("{s}", str(b.random.choice([0, 1, 3, 8] if size[d] < FIXED else [0, 1, 5, 31, 64])))
    b.add(text, target, x, writes="_(" in text or "out=" in text)
    if b.chance(0.4):
        b.add(b.random.choice(["{0}.float().sum(0)", "{0} * 2", "{0}[..., 1:]", "{0}.amax(-1)"]), target)


for_parts(2)(through_a_view)
for_shared(2)(through_a_view)


@for_shared(6)
@for_sizes(2)
def the_same_memory(b: Builder) -> None:
    origins = [x for x in b.inputs if x.on_card and not x.of and len(x.size) > 0 and x.dtype in FLOATS]
    if not origins or not isinstance(b, PartsBuilder):
        return
    x = b.random.choice(origins)
    view = b.random.choice([*AGAIN, x.view or "x"])
    made = dataclasses.replace(x, name=f"a{len(b.inputs)}", view=view, of=x.name)
    views = {n: seen(made, n) for n in (DRAWN, *b.lengths)}
    if None in views.values():
        return
    b.inputs.append(made)
    for n, values in ((DRAWN, b.values), *b.others.items()):
        values[made.name] = views[n]


@for_parts(6)
@for_shared(4)
@for_sizes(6)
def of_any_length(b: Builder) -> None:
    any_length(b, b.random.choice(STATEMENTS))
