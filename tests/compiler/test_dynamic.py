# SPDX-License-Identifier: Apache-2.0
# pytest tests/compiler/test_dynamic.py
"""Dynamic sizes: one graph for all of them, few programs, and the bits of a compilation for each size."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend

import torch_spyre
from torch_spyre import knobs
from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.dynamic import launcher
from torch_spyre._inductor.dynamic.space import Sizes
from torch_spyre._inductor.dynamic.specialise import specialise
from torch_spyre.errors import InvalidProgram
from torch_spyre.runtime import driver

FP16 = torch.float16
Make = Callable[[int], torch.Tensor]


def half(*size: int) -> torch.Tensor:
    return torch.randn(size).to(FP16)


def poison() -> None:
    """Memory that is handed out next holds NaN and large integers."""
    for n in (1 << 12, 1 << 15, 1 << 18):
        [torch.full((n,), float("nan"), dtype=FP16).to("spyre") for _ in range(4)]


@contextmanager
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[launcher.DynamicKernel]]:
    """The kernels with symbolic sizes that are made inside."""
    made: list[launcher.DynamicKernel] = []
    create = launcher.DynamicKernel.__init__

    def noted(self: launcher.DynamicKernel, recipe_json: str) -> None:
        create(self, recipe_json)
        made.append(self)

    with monkeypatch.context() as m:
        m.setattr(launcher.DynamicKernel, "__init__", noted)
        yield made


def static(fn: Callable[..., Any], args: Sequence[torch.Tensor]) -> Any:
    """What a compilation for just these sizes gives."""
    torch._dynamo.reset()
    return torch.compile(fn, dynamic=False)(*(a.to("spyre") for a in args))


def check(
    fn: Callable[..., Any], makes: Sequence[Make], sizes: Sequence[int], marked: Sequence[int] | None = None
) -> None:
    """Equal to static compilations for each size; the first compilation serves all. `marked`: the dim of each input."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(fn, backend=counter, dynamic=True if marked is None else None)
    calls = [[make(n) for make in makes] for n in sizes]
    results = []
    for args in calls:
        poison()
        device = [a.to("spyre") for a in args]
        for x, dim in zip(device, marked or (), strict=False):
            if dim >= 0:
                torch._dynamo.mark_dynamic(x, dim)
        result = compiled(*device)
        results.append([r.cpu() for r in (result if isinstance(result, tuple) else (result,))])
    assert counter.frame_count == 1
    for n, args, got in zip(sizes, calls, results, strict=True):
        wanted = static(fn, args)
        for g, w in zip(got, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            torch.testing.assert_close(g, w.cpu(), rtol=0, atol=0, equal_nan=True, msg=lambda m, n=n: f"size {n}: {m}")


X = (lambda n: half(3, n, 70),)
ROWS = (lambda n: half(3, n),)
SHARED: dict[str, tuple[Callable[..., Any], Sequence[Make]]] = {
    "pointwise": (lambda x: torch.relu(x) + 1, X),
    "softmax": (lambda x: torch.softmax(x, -1), ROWS),
    "softmax of rows": (lambda x: torch.softmax(x, 1), X),
    "mean": (lambda x: x.mean(1), X),
    "variance": (lambda x: x.float().var(1), X),
    "largest": (lambda x: (x.amax(1), x.amin(1), x.argmax(1), x.argmin(1)), X),
    "integers": (lambda x: (x * 10).int().sum(1), X),
    "any, all": (lambda x: ((x > 1).any(1), (x > -3).all(1), (x * 0.1 + 1).prod(1)), X),
    "running sum": (lambda x: x.cumsum(1), X),
    "matmul rows": (lambda x, w: x @ w, (*X, lambda n: half(70, 130))),
    "matmul columns": (lambda x, w: x @ w, (lambda n: half(3, 70), lambda n: half(70, n))),
    "matmul inner": (lambda x, w: x @ w, (lambda n: half(3, n), lambda n: half(n, 130))),
    "layer norm": (lambda x: F.layer_norm(x, (70,)), X),
    "cat": (lambda x, y: torch.cat([x, y], 1), (*X, lambda n: half(3, 2, 70))),
    "cat of two": (lambda x, y: torch.cat([x, y], 1) * 2, X * 2),
    "cat of parts": (lambda x: torch.cat([x, x[:, 1:], x[:, 2:]], 1), ROWS),
    "last row": (lambda x: x[:, -1] * 2, X),
    "neighbours": (lambda x: x[:, 1:] - x[:, :-1], X),
    "tail": (lambda x: x[:, -3:].sum(1), X),
    "backwards": (lambda x: x.flip(1), X),
    "positions": (lambda x: x + torch.arange(x.shape[1], device=x.device), ROWS),
    "triangle": (lambda x: torch.tril(x @ x.transpose(1, 2), -1), X),
    "joined": (lambda x: torch.relu(x.reshape(-1, 70)).sum(-1), X),
    "apart": (lambda x: x.view(3, -1, 2, 35).transpose(1, 2).sum(-1), X),
    "expanded": (lambda x: x[:, None].expand(-1, 4, -1, -1) * 2, X),
    "transposed": (lambda x: x.transpose(1, 2).contiguous() + 1, X),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        (lambda n: half(2, 4, n, 32), lambda n: half(2, 2, n, 32), lambda n: half(2, 2, n, 32)),
    ),
    "lookup": (lambda i, w: F.embedding(i, w).sum(1), (lambda n: torch.randint(0, 50, (2, n)), lambda n: half(50, 70))),
}
DIMS = {"matmul columns": (-1, 1), "matmul inner": (1, 0), "attention": (2, 2, 2), "cat of two": (1, 1)}


SOME = (
    "softmax", "mean", "largest", "running sum", "matmul inner", "cat", "cat of two", "last row", "backwards", "joined",
    "attention", "lookup",
)  # fmt: skip


@pytest.mark.parametrize("name", [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in SHARED])
def test_equals_static(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One program serves all sizes of a bucket."""
    fn, makes = SHARED[name]
    dims = DIMS.get(name, (1, *(-1 for _ in makes[1:])))
    with kernels(monkeypatch) as made:
        check(fn, makes, (20, 31, 40), dims)
    assert made and not any(k.reasons for k in made), [k.reasons for k in made]
    assert all(len(k.variants) <= 3 for k in made), [list(k.variants) for k in made]


@pytest.mark.parametrize("name", ["joined", *(pytest.param(n, marks=pytest.mark.slow) for n in ("softmax", "cat"))])
def test_all_dims_symbolic(name: str) -> None:
    check(*SHARED[name], (5, 64, 65))


EXACT: dict[str, tuple[Callable[..., Any], Sequence[Make]]] = {
    "mean of all": (lambda x: x.float().mean(), ROWS),  # the order of its sum depends on the size
    "sort": (lambda x: torch.sort(x, 1)[0], ROWS),
    "padding": (lambda x: F.pad(x, (1, 2)), ROWS),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not proved right for a bucket is planned for each size, and says why."""
    fn, makes = EXACT[name]
    with kernels(monkeypatch) as made:
        check(fn, makes, (20, 31), (1,))
    assert all(k.reasons for k in made)
    rows = [row for row in torch_spyre.report().planned_per_size if row.reason in made[0].reasons.values()]
    assert rows and str(rows[0].reason) in str(torch_spyre.report())


def test_without_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    with knobs.patch(dynamic_buckets=False), kernels(monkeypatch) as made:
        check(*SHARED["softmax"], (20, 31), (1,))
    assert made and not any(k.variants for k in made)


def test_two_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.linear(x, w), 1).sum(0)

    torch._dynamo.reset()
    compiled, w = torch.compile(fn), half(60, 70)
    calls = []
    with torch._dynamo.config.patch(error_on_recompile=True), kernels(monkeypatch) as made:
        for b, n in ((3, 20), (5, 31), (17, 32)):
            x = half(b, n, 70)
            device = x.to("spyre")
            torch._dynamo.mark_dynamic(device, 0)
            torch._dynamo.mark_dynamic(device, 1)
            calls.append((x, compiled(device, w.to("spyre")).cpu()))
    called = [k for k in made if k.reasons or k.variants]  # a graph may be loaded from Inductor's cache a second time
    assert [(k.reasons, len(k.variants)) for k in called] == [({}, 2)] * len(called) and called
    for x, got in calls:
        assert torch.equal(got, static(fn, (x, w)).cpu())


def test_small_sizes_have_graphs_of_their_own() -> None:
    fn = torch.compile(lambda x: torch.cat([x, x + 1], 0).sum(0), dynamic=True)
    torch._dynamo.reset()
    for n in (1, 2, 3, 40):
        x = half(n, 70)
        assert torch.equal(fn(x.to("spyre")).cpu(), static(lambda x: torch.cat([x, x + 1], 0).sum(0), (x,)).cpu())


def test_written_in_place() -> None:
    """An input that is changed stays where it is."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x.sum(1)

    torch._dynamo.reset()
    compiled = torch.compile(fn, dynamic=True)
    for n in (20, 31, 70):
        x, y = half(3, n, 70), half(3, n, 70)
        device, other = x.to("spyre"), x.to("spyre")
        got = compiled(device, y.to("spyre"))
        wanted = torch.compile(fn, dynamic=False)(other, y.to("spyre"))
        assert torch.equal(got.cpu(), wanted.cpu()) and torch.equal(device.cpu(), other.cpu())


def test_export() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x @ x.transpose(1, 2), -1)[:, -1]

    example = half(2, 20, 64).to("spyre")
    exported = torch.export.export(Model(), (example,), dynamic_shapes=({1: torch.export.Dim("n", min=2, max=512)},))
    torch._dynamo.reset()
    compiled = torch.compile(exported.module(), dynamic=True)
    for n in (20, 33, 100):
        x = half(2, n, 64)
        assert torch.equal(compiled(x.to("spyre")).cpu(), static(Model(), (x,)).cpu())


def test_views_and_roomy_inputs() -> None:
    """Inputs that are views, results of other kernels, or expanded give the same."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, 1) * 2

    torch._dynamo.reset()
    compiled = torch.compile(fn, dynamic=True)
    base = half(3, 33, 70)
    whole = base.to("spyre")
    views = (lambda t: t[:, 2:], lambda t: t.transpose(0, 1), lambda t: t[:1].expand(4, -1, -1))
    for view in views:
        wanted = static(fn, (view(base).contiguous(),)).cpu()
        torch.testing.assert_close(compiled(view(whole)).cpu(), wanted, rtol=0, atol=0)
    twice = compiled(compiled(whole))
    torch.testing.assert_close(twice.cpu(), static(fn, (static(fn, (base,)).cpu(),)).cpu(), rtol=0, atol=0)


class Attention(torch.nn.Module):
    """A decoder's attention with a cache that grows by concatenation, as transformers' DynamicCache does."""

    def __init__(self, width: int = 64, heads: int = 4, shared: int = 2, size: int = 32) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, size
        self.norm = torch.nn.RMSNorm(width)
        self.q = torch.nn.Linear(width, heads * size, bias=False)
        self.kv = torch.nn.Linear(width, 2 * shared * size, bias=False)
        self.out = torch.nn.Linear(heads * size, width, bias=False)

    def forward(self, x: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.norm(x)
        q = self.q(y).view(1, -1, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(y).view(1, -1, 2, self.shared, self.size).transpose(1, 3).unbind(2)
        key, value = torch.cat([key, k], 2), torch.cat([value, v], 2)
        weighted = F.scaled_dot_product_attention(q, key, value, enable_gqa=True)
        return x + self.out(weighted.transpose(1, 2).flatten(2)), key, value


@torch.no_grad()
def test_decoding_plans_a_handful_of_programs() -> None:
    """200 steps: one graph, a few programs, and at sampled steps the bits of a compilation for that very size."""
    torch._dynamo.reset()
    model = Attention().to(FP16).to("spyre")
    compiled = torch.compile(model)
    key, value = (half(1, 2, 5, 32).to("spyre") for _ in range(2))
    samples = []
    inspect.start()
    before = len(inspect.records())
    try:
        with torch._dynamo.config.patch(error_on_recompile=True):
            for step in range(200):
                x = half(1, 1, 64).to("spyre")
                torch._dynamo.mark_dynamic(key, 2)
                torch._dynamo.mark_dynamic(value, 2)
                inputs = (x, key, value)
                result, key, value = compiled(*inputs)
                if step in (0, 12, 199):
                    samples.append(([t.cpu() for t in inputs], [t.cpu() for t in (result, key, value)]))
        plans = inspect.records()[before:]
    finally:
        inspect.stop()
    assert key.shape == (1, 2, 205, 32)
    assert len([p for p in plans if p.name.startswith("spyre_kernel")]) <= 13
    assert len(plans) <= 16  # with the copies of the first keys and values
    for inputs, got in samples:
        assert all(torch.equal(g, w.cpu()) for g, w in zip(got, static(model, inputs), strict=True))


def test_found_in_the_cache_again(monkeypatch: pytest.MonkeyPatch, fresh_caches: Any) -> None:
    """Another process plays nothing, plans nothing: it finds the programs by recipe, bucket and layouts."""
    fn, makes = SHARED["mean"]
    args = [make(20).to("spyre") for make in makes]
    torch._dynamo.reset()
    with kernels(monkeypatch) as made:
        wanted = torch.compile(fn, dynamic=True)(*args).cpu()
    again = launcher.DynamicKernel(made[0].json)

    def refuse(*_: Any) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr("torch_spyre._inductor.compile.compile_graph", refuse)
    monkeypatch.setattr("torch_spyre._inductor.dynamic.specialise.specialise", refuse)
    sizes = next(iter(made[0].calls))
    assert torch.equal(again(*args, *sizes)[0].cpu(), wanted)


def alike(graph_json: str) -> str:
    """A graph with its kernel and buffers numbered in the order of the graph."""
    graph = json.loads(graph_json)
    for i, name in enumerate([graph["name"], *graph["buffers"]]):
        graph_json = graph_json.replace(f'"{name}"', f'"#{i}"')
    return graph_json


ALIKE = ("softmax", "mean", "largest", "matmul inner", "cat of parts", "last row", "joined", "apart", "lookup")


@pytest.mark.parametrize("name", ALIKE)
def test_exact_sizes_give_the_graph_of_a_static_compilation(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fn, makes = SHARED[name]
    args = [make(20) for make in makes]
    torch._dynamo.reset()
    with kernels(monkeypatch) as made:
        torch.compile(fn, dynamic=True)(*(a.to("spyre") for a in args))
    inspect.start()
    first = len(inspect.records())
    static(fn, args)
    wanted = [alike(record.graph_json) for record in inspect.records()[first:]]
    inspect.stop()
    for kernel, graph_json in zip(made, wanted, strict=True):
        (sizes,) = kernel.calls
        found = specialise(kernel.recipe, Sizes(dict(zip(kernel.recipe.symbols, sizes, strict=True))))
        assert alike(found.graph.to_json()) == graph_json and not found.scalars


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_program_that_launches_may_not_move_is_made_again(
    monkeypatch: pytest.MonkeyPatch, fresh_caches: Any, dynamic: bool
) -> None:
    """The card refuses a program that may begin elsewhere in its inputs: it gets one for the offset at hand."""
    accept, refused = driver.accept, []

    def refuse(entry: Any, made: Any) -> Any:
        if made.displaced:
            refused.append(made.name)
            raise InvalidProgram("it reaches past its argument")
        return accept(entry, made)

    monkeypatch.setattr(driver, "accept", refuse)
    rows = torch.randint(-32, 32, (5, 70)).to(FP16) / 4  # exact in every format
    torch._dynamo.reset()
    with knobs.patch(dynamic_buckets=False):
        found = torch.compile(lambda x: x.sort(-1)[0] * 2, dynamic=dynamic)(rows.to("spyre")[2:])
    assert refused and torch.equal(found.cpu(), rows[2:].sort(-1)[0] * 2)


def test_the_root_of_a_size() -> None:
    """A number of the host in float64, which the graph computes with."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        root = float(x.size(0)) ** 0.5
        return x * root**3 / (1 / root)

    for rows in (16, 25):
        x = torch.arange(rows * 3.0).reshape(rows, 3)
        got = torch.compile(scaled, dynamic=True)(x.to("spyre")).cpu()
        torch.testing.assert_close(got, scaled(x), rtol=1e-6, atol=0)
