# SPDX-License-Identifier: Apache-2.0
# pytest tests/planner/test_random_graphs.py
"""Random graphs of pointwise ops, reductions, matmuls and views: within the propagated bound, and equal to eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from oracle import Bounded

from torch_spyre._inductor import config

SIZES = [1, 2, 3, 5, 7, 16, 31, 64, 65, 100, 128, 130]
MAX_ELEMENTS = 40_000
COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
}


@dataclass(frozen=True)
class Step:
    """One operation: on tensors, and on bounded values. `text` is what a failing example prints."""

    text: str
    args: tuple[int, ...]
    run: Callable[..., Any]
    check: Callable[..., Bounded]


@dataclass(frozen=True)
class Input:
    """A tensor on the card, and the view of it that the graph receives."""

    size: tuple[int, ...]
    text: str = ""
    view: Callable[[torch.Tensor], torch.Tensor] = lambda x: x
    scale: float = 1.0


@dataclass
class Program:
    """Inputs, steps, and the values to return."""

    inputs: list[Input] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)  # of all values: inputs, then steps
    dtypes: list[torch.dtype] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for step in self.steps:
            values.append(step.run(*(values[i] for i in step.args)))
        return tuple(values[i] for i in self.returned)

    def expected(self, hosts: list[torch.Tensor]) -> list[Bounded]:
        values = [viewed(i.view, Bounded.of(x)) for x, i in zip(hosts, self.inputs, strict=True)]
        for step in self.steps:
            values.append(step.check(*(values[i] for i in step.args)))
        return [values[i] for i in self.returned]

    def __repr__(self) -> str:
        lines = [f"v{i} = {self.dtypes[i]}{list(x.size)}{x.text}" for i, x in enumerate(self.inputs)]
        for k, s in enumerate(self.steps):
            i = len(self.inputs) + k
            lines.append(f"v{i} = {s.text}({', '.join(f'v{a}' for a in s.args)})  # {list(self.shapes[i])}")
        return "\n".join([*lines, f"return {', '.join(f'v{i}' for i in self.returned)}"])


def viewed(view: Callable[[torch.Tensor], torch.Tensor], x: Bounded) -> Bounded:
    value, error = (view(torch.from_numpy(np.array(part, order="C"))).numpy() for part in (x.value, x.error))
    return Bounded(value, error, x.dtype)


def cast(x: Bounded, dtype: torch.dtype) -> Bounded:
    converted = Bounded(x.value, x.error, dtype)
    return converted if dtype == torch.float32 or x.dtype != torch.float32 else converted.store()


def pair(op: Callable[[Bounded, Bounded], Bounded], dtype: torch.dtype) -> Callable[[Bounded, Bounded], Bounded]:
    """A binary operation in the dtype that the operands promote to."""
    return lambda x, y: op(cast(x, dtype), cast(y, dtype)).store()


def larger(x: Bounded, y: Bounded) -> Bounded:
    return Bounded(np.maximum(x.value, y.value), np.maximum(x.error, y.error), x.dtype)


def choose(mask: Bounded, x: Bounded, y: Bounded, dtype: torch.dtype) -> Bounded:
    x, y, yes = cast(x, dtype), cast(y, dtype), mask.value > 0
    return Bounded(np.where(yes, x.value, y.value), np.where(yes, x.error, y.error), dtype)


# Views. Each returns (text, function) or None if the shape does not allow it.


def draw_view(draw: Random, shape: tuple[int, ...]) -> tuple[str, Callable[[torch.Tensor], torch.Tensor]] | None:
    rank = len(shape)
    kind = draw.choice(["permute", "slice", "select", "reshape", "flatten", "unsqueeze", "expand", "split"])
    if kind == "unsqueeze" and rank < 4:
        at = draw.randint(0, rank)
        return f".unsqueeze({at})", lambda x: x.unsqueeze(at)
    if rank == 0:
        return None
    dim = draw.randint(0, rank - 1)
    n = shape[dim]
    if kind == "permute":
        order = draw.sample(range(rank), rank)
        return f".permute({list(order)})", lambda x: x.permute(*order)
    if kind == "slice" and n > 1:
        start, step = draw.randint(0, n - 1), draw.choice([1, 1, 1, 2, 3])
        stop = draw.randint(start + 1, n)
        index = (slice(None),) * dim + (slice(start, stop, step),)
        return f"[dim {dim}, {start}:{stop}:{step}]", lambda x: x[index]
    if kind == "select":
        at = draw.randint(0, n - 1)
        return f".select({dim}, {at})", lambda x: x.select(dim, at)
    if kind == "reshape" and rank > 1:
        return ".reshape(-1)", lambda x: x.reshape(-1)
    if kind == "flatten" and dim + 1 < rank:
        return f".flatten({dim}, {dim + 1})", lambda x: x.flatten(dim, dim + 1)
    if kind == "split" and rank < 4 and n > 1:
        inner = draw.choice([d for d in range(2, n + 1) if n % d == 0])
        size = (*shape[:dim], n // inner, inner, *shape[dim + 1 :])
        return f".reshape({list(size)})", lambda x: x.reshape(size)
    if kind == "expand" and n == 1:
        size = (*shape[:dim], 3, *shape[dim + 1 :])
        return f".expand({list(size)})", lambda x: x.expand(size)
    return None


class Builder:
    """Draws a program step by step; `add` drops a step whose result would be too large."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.program = Program()

    def input(self, size: tuple[int, ...], dtype: torch.dtype = torch.float16, plain: bool = False) -> int:
        p = self.program
        view = None if plain or self.draw.randint(0, 2) else draw_view(self.draw, size)
        text, function = view or ("", lambda x: x)
        p.inputs.append(Input(size, text, function))
        p.shapes.append(tuple(function(torch.empty(size)).shape))
        p.dtypes.append(dtype)
        return len(p.shapes) - 1

    def add(self, text: str, args: tuple[int, ...], run: Callable[..., Any], check: Callable[..., Bounded]) -> int:
        p = self.program
        metas = [torch.empty(p.shapes[i], dtype=p.dtypes[i], device="meta") for i in args]
        result = run(*metas)
        if result.numel() > MAX_ELEMENTS:
            return args[0]
        p.steps.append(Step(text, args, run, check))
        p.shapes.append(tuple(result.shape))
        p.dtypes.append(result.dtype)
        return len(p.shapes) - 1

    def pick(self) -> int:
        """The newest value more often than not, so that graphs grow deep."""
        last = len(self.program.shapes) - 1
        return last if self.draw.random() < 0.6 else self.draw.randint(0, last)

    def partner(self, i: int) -> int:
        """A value that broadcasts with value i: itself, another one that happens to, or one made from a reduction."""
        shapes = self.program.shapes
        fits = [k for k in range(len(shapes)) if broadcasts(shapes[i], shapes[k])]
        return self.draw.choice(fits)

    def step(self) -> None:
        kinds = ["unary", "scalar", "binary", "where", "reduce", "view", "view", "matmul", "softmax", "cast"]
        getattr(self, self.draw.choice(kinds))(self.pick())

    def unary(self, i: int) -> None:
        table: dict[str, tuple[Callable[..., Any], Callable[[Bounded], Bounded]]] = {
            "relu": (torch.relu, lambda x: x.relu()),
            "neg": (torch.neg, lambda x: Bounded(-x.value, x.error, x.dtype)),
            "exp(min(x, 1))": (lambda x: torch.exp(x.clamp(max=1.0)), lambda x: capped(x).exp().store()),
        }
        name = self.draw.choice(sorted(table))
        self.add(name, (i,), *table[name])

    def scalar(self, i: int) -> None:
        c = self.draw.choice([0.1, 2.0, -3.0, 1.0, 0.0])
        table: dict[str, tuple[Callable[..., Any], Callable[[Bounded], Bounded]]] = {
            f"x * {c}": (lambda x: x * c, lambda x: (x * c).store()),
            f"x + {c}": (lambda x: x + c, lambda x: (x + c).store()),
            f"{c} - x": (lambda x: c - x, lambda x: (Bounded(-x.value, x.error, x.dtype) + c).store()),
            f"x / {c or 3.0}": (lambda x: x / (c or 3.0), lambda x: over(x, c or 3.0)),
        }
        name = self.draw.choice(sorted(table))
        self.add(name, (i,), *table[name])

    def dtype_of(self, *values: int) -> torch.dtype:
        p = self.program
        return torch.result_type(*(torch.empty(p.shapes[i], dtype=p.dtypes[i], device="meta") for i in values))

    def binary(self, i: int) -> None:
        table: dict[str, tuple[Callable[..., Any], Callable[[Bounded, Bounded], Bounded]]] = {
            "add": (torch.add, lambda x, y: x + y),
            "sub": (torch.sub, lambda x, y: x - y),
            "mul": (torch.mul, lambda x, y: x * y),
            "maximum": (torch.maximum, larger),
        }
        name = self.draw.choice(sorted(table))
        k = self.partner(i)
        run, check = table[name]
        self.add(name, (i, k), run, pair(check, self.dtype_of(i, k)))

    def where(self, i: int) -> None:
        """Conditions are on inputs only: those are exact, so that both sides take the same branch."""
        shapes = self.program.shapes
        masks = [k for k in range(len(self.program.inputs)) if broadcasts(shapes[i], shapes[k])]
        if not masks:
            return
        mask = self.draw.choice(masks)
        other = self.partner(mask)
        if broadcasts(shapes[i], shapes[other]):
            dtype = self.dtype_of(i, other)
            check = lambda m, x, y: choose(m, x, y, dtype)  # noqa: E731
            self.add("where(>0)", (mask, i, other), lambda m, x, y: torch.where(m > 0, x, y), check)

    def reduce(self, i: int) -> None:
        rank = len(self.program.shapes[i])
        if not rank:
            return
        dims = tuple(sorted(self.draw.sample(range(rank), self.draw.randint(1, rank))))
        keep = self.draw.random() < 0.5
        if self.draw.random() < 0.5:
            self.add(f"sum({dims}, {keep})", (i,), lambda x: x.sum(dims, keepdim=keep), lambda x: total(x, dims, keep))
        else:
            self.add(f"amax({dims}, {keep})", (i,), lambda x: x.amax(dims, keepdim=keep), lambda x: peak(x, dims, keep))

    def view(self, i: int) -> None:
        view = draw_view(self.draw, self.program.shapes[i])
        if view is not None:
            text, function = view
            self.add(text, (i,), function, lambda x: viewed(function, x))

    def matmul(self, i: int) -> None:
        shape = self.program.shapes[i]
        if len(shape) < 2 or self.program.dtypes[i] != torch.float16:
            return
        other = self.draw.choice(["self", "weight", "transposed weight"])
        if other == "self":
            self.add("x @ x.mT", (i,), lambda x: x @ x.mT, lambda x: (x @ viewed(lambda t: t.mT, x)).store())
            return
        n, k = self.draw.choice(SIZES), shape[-1]
        if math.prod(shape[:-1]) * n > MAX_ELEMENTS:
            return
        at = self.weight((k, n) if other == "weight" else (n, k), k**-0.5)
        i, w = i + (i >= at), at
        if other == "weight":
            self.add("matmul", (i, w), torch.matmul, lambda x, w: (x @ w).store())
        else:
            self.add(
                "linear", (i, w), torch.nn.functional.linear, lambda x, w: (x @ viewed(lambda t: t.t(), w)).store()
            )

    def weight(self, size: tuple[int, ...], scale: float) -> int:
        """One more input. Inputs come first in the numbering, so all steps move up by one."""
        p = self.program
        p.inputs.append(Input(size, scale=scale))
        at = len(p.inputs) - 1
        p.shapes.insert(at, size)
        p.dtypes.insert(at, torch.float16)
        p.steps = [Step(s.text, tuple(a + (a >= at) for a in s.args), s.run, s.check) for s in p.steps]
        return at

    def softmax(self, i: int) -> None:
        rank = len(self.program.shapes[i])
        if rank and self.program.dtypes[i] == torch.float16:
            dim = self.draw.randint(0, rank - 1)
            self.add(f"softmax({dim})", (i,), lambda x: torch.softmax(x, dim), lambda x: soft(x, dim))

    def cast(self, i: int) -> None:
        dtype = self.draw.choice([torch.float16, torch.float32])
        self.add(f"to({dtype})", (i,), lambda x: x.to(dtype), lambda x: cast(x, dtype))


def broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(m == n or m == 1 or n == 1 for m, n in zip(a[::-1], b[::-1], strict=False))


def capped(x: Bounded) -> Bounded:
    return Bounded(np.minimum(x.value, 1.0), x.error, x.dtype)


def over(x: Bounded, c: float) -> Bounded:
    return (x / c).store()


def total(x: Bounded, dims: tuple[int, ...], keep: bool) -> Bounded:
    from oracle import sum_error

    error = x.error.sum(axis=dims, keepdims=keep) + sum_error(np.abs(x.value) + x.error, dims, keep)
    return Bounded(x.value.sum(axis=dims, keepdims=keep), error, x.dtype).store()


def peak(x: Bounded, dims: tuple[int, ...], keep: bool) -> Bounded:
    return Bounded(x.value.max(axis=dims, keepdims=keep), x.error.max(axis=dims, keepdims=keep), x.dtype)


def soft(x: Bounded, dim: int) -> Bounded:
    """fp32 inside: a change of the inputs by e changes every weight by at most a factor exp(2e)."""
    exact = torch.softmax(torch.from_numpy(x.value), dim).numpy()
    spread = np.expm1(np.minimum(2 * x.error.max(axis=dim, keepdims=True), 50.0))
    own = (x.value.shape[dim] + 16) * 2.0**-23
    return Bounded(exact, exact * (spread + own * (1 + spread)), x.dtype).store()


def draw_program(draw: Random, steps: int) -> Program:
    builder = Builder(draw)
    size: tuple[int, ...] = ()
    for _ in range(draw.randint(1, 4)):
        n = draw.choice(SIZES)
        size = (*size, n if math.prod(size) * n <= MAX_ELEMENTS else 2)
    builder.input(size, draw.choice([torch.float16, torch.float16, torch.float16, torch.float32]))
    if draw.random() < 0.5:
        builder.input(size)
    for _ in range(draw.randint(1, steps)):
        builder.step()
    program = builder.program
    read = {a for step in program.steps for a in step.args}
    unread = [i for i in range(len(program.shapes)) if i not in read]
    program.returned = [*unread, draw.randint(0, len(program.shapes) - 1)]  # the last may repeat another
    return program


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.cpu().contiguous().view(torch.int16 if x.dtype == torch.float16 else torch.int32)


def run(program: Program, **knobs: Any) -> None:
    """Checks one program; with knobs, also that planning under them gives the same bits."""
    note(f"{program!r}\n{knobs}")
    torch.manual_seed(len(program.steps))
    hosts = [(torch.randn(i.size) * i.scale).to(d) for i, d in zip(program.inputs, program.dtypes, strict=False)]
    inputs = [i.view(x.to("spyre")) for x, i in zip(hosts, program.inputs, strict=True)]
    eager = program(*inputs)
    torch._dynamo.reset()
    compiled = torch.compile(program.__call__, dynamic=False)(*inputs)
    for one, two, want in zip(eager, compiled, program.expected(hosts), strict=True):
        assert one.shape == two.shape and one.dtype == two.dtype
        want.check(two.cpu())
        assert torch.equal(bits(one), bits(two)), f"compiled differs from eager:\n{program!r}"
    if knobs:
        torch._dynamo.reset()
        with config.patch(**knobs):
            again = torch.compile(program.__call__, dynamic=False)(*inputs)
        assert all(torch.equal(bits(one), bits(two)) for one, two in zip(compiled, again, strict=True)), knobs


@settings(max_examples=40, derandomize=True, **COMMON)
@given(st.randoms(use_true_random=True))
def test_random_graphs(draw: Random) -> None:
    run(draw_program(draw, steps=8))


@pytest.mark.slow
@settings(max_examples=300, **COMMON)
@given(st.randoms(use_true_random=True))
def test_many_random_graphs(draw: Random) -> None:
    program = draw_program(draw, steps=16)
    run(program, sencores=draw.choice([1, 2, 3, 7, 16, 31]), lx_planning=draw.random() < 0.5)


# Cases that random graphs cannot reach: state, changing sizes, and patterns that Inductor rewrites.


def half(*size: int) -> torch.Tensor:
    return torch.randn(size).to(torch.float16)


def both(fn: Callable[..., Any], *hosts: torch.Tensor) -> list[torch.Tensor]:
    """Results of eager and compiled code, which must be the same bits, with what became of the inputs."""
    results = []
    torch._dynamo.reset()
    for run in (fn, torch.compile(fn, dynamic=False)):
        inputs = [x.to("spyre") for x in hosts]
        got = run(*inputs)
        results.append([bits(x) for x in (*(got if isinstance(got, tuple) else (got,)), *inputs)])
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)
    return [x.cpu() for x in (got if isinstance(got, tuple) else (got,))]


def assign(a, b):
    c = a + b
    c[3:9] = b[1:7]
    c[:, 7] = 0
    c[1::3, ::2] *= 3
    return c, c @ b.t()


def assign_and_compute_again(a, b):
    c = a * 2
    c[2:5] = 7
    return c, a * 2 + 1


def read_write_read(a, b):
    c = a * b
    first = c[:, 3:50].sum(0)
    c[4] = a.sum(0)
    second = c[:, 3:50].sum(0)
    c.mul_(2)
    return first, second, c[:, 3:50].t() @ b


def views_of_views(a, b):
    c = a + 1
    v = c[2:20]
    v.mul_(2)
    w = v[:, 3:9]
    w.add_(b[:18, 3:9])
    return c, v, w


def inputs_in_place(a, b):
    a[3:5].mul_(2)
    a.t().add_(b.t())
    b[:, 10:20] = a[:, 20:30]
    return a * 2, b


def aliased_results(a, b):
    c = a + b
    return c, c, c.t(), c[3:], c.reshape(-1), a


@pytest.mark.parametrize(
    "fn", [assign, assign_and_compute_again, read_write_read, views_of_views, inputs_in_place, aliased_results]
)
def test_in_place_and_aliases(fn: Callable[..., Any]) -> None:
    a, b = (torch.randint(-3, 4, (26, 200)).to(torch.float16) for _ in range(2))  # small integers: exact until rounded
    got = both(fn, a, b)
    want = fn(a.double(), b.double())
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=2.0**-9, atol=0.0)


def reshaped_slice(x):
    return x.permute(3, 1, 0, 2).reshape(-1)[5:3000] * 2


def reshaped_across(x):
    return x.permute(3, 1, 0, 2).reshape(10, -1).t() * 2


def reshaped_rows(x):
    return torch.softmax(x[:, 3:100].permute(3, 1, 0, 2).reshape(97, -1), -1)


def expanded_flat(x):
    return x.amax(2, keepdim=True).expand(7, 130, 2, 2).reshape(-1).amax(0)


@pytest.mark.parametrize("fn", [reshaped_slice, reshaped_across, reshaped_rows, expanded_flat])
def test_digits_of_sums(fn: Callable[..., Any]) -> None:
    """Views of views whose index divides a sum of loop dims."""
    x = half(7, 130, 2, 2)
    (got,) = both(fn, x)
    torch.testing.assert_close(got.double(), fn(x.double()), rtol=2.0**-8, atol=2.0**-12)


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / 8.0, -1) @ v


def scaled_attention(q, k, v):
    return torch.softmax((q @ k.transpose(-2, -1)) * 0.125, -1).matmul(v)


def divisions(q, k, v):
    return (q / 3).float() / 7.0 / 0.1, q / (k * k + 1)


def means(q, k, v):
    return q.mean(-1), (q - q.mean(-1, keepdim=True)) * torch.rsqrt((q * q).mean(-1, keepdim=True) + 1e-5)


@pytest.mark.parametrize("fn", [attention, scaled_attention, divisions, means])
def test_what_inductor_would_rewrite_stays_as_written(fn: Callable[..., Any]) -> None:
    both(fn, half(2, 4, 33, 64), half(2, 4, 33, 64), half(2, 4, 33, 64))


def test_sizes_and_numbers_may_change() -> None:
    """Without dynamic=False Dynamo makes a size symbolic when it changes: the graph is specialised, and stays right."""
    torch._dynamo.reset()

    def fn(x: torch.Tensor, w: torch.Tensor, s: float) -> torch.Tensor:
        return torch.softmax((x @ w).reshape(-1, 2, 15) * s + x.shape[0], -1)

    compiled = torch.compile(fn)
    w = half(70, 30).to("spyre")
    for n, s in ((5, 2.0), (6, 2.5), (7, 3), (6, 2.5), (5, 4), (9, 0.5)):
        x = half(n, 70).to("spyre")
        assert torch.equal(bits(fn(x, w, s)), bits(compiled(x, w, s)))
    torch._dynamo.reset()


def test_empty_tensors() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.t() @ x + 1, x @ x.t(), x * 2, x.sum(0), x.sum(1), torch.softmax(x, -1)

    got = both(fn, torch.empty(0, 5, dtype=torch.float16))
    assert [tuple(x.shape) for x in got] == [(5, 5), (0, 0), (0, 5), (5,), (0,), (0, 5)]
    assert (got[0] == 1).all() and not got[3].any()
