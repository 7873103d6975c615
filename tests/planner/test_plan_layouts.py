# SPDX-License-Identifier: Apache-2.0
"""pytest tests/planner/test_plan_layouts.py: where restickifies stand, and that the search never loses to greedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_plan_division import random_graph
from test_planner import tile_graph
from test_random_graphs import bits

from torch_spyre._C import SpyreTensorLayout, get_spyre_tensor_layout
from torch_spyre._inductor.passes import dedup, layouts, pieces, views
from torch_spyre._inductor.planning import layout_rules
from torch_spyre._inductor.planning.layout_rules import from_stl
from torch_spyre._inductor.planning.plan_graph import InputSpec, Layout, PlanGraph
from torch_spyre._inductor.tilegraph.graph import Graph
from torch_spyre.errors import UnsupportedOp


def half(*size: int) -> torch.Tensor:
    return torch.randn(size).to(torch.float16)


def graph_of(fn: Callable[..., torch.Tensor], *args: torch.Tensor) -> PlanGraph:
    inputs = [a.to("spyre") for a in args]
    graph = tile_graph(lambda *x: [fn(*x)], inputs)  # type: ignore[arg-type]
    numbers = [int(name.removeprefix("arg").removesuffix("_1")) for name in graph.inputs]
    return pieces.run(with_layouts(graph, [from_stl(get_spyre_tensor_layout(inputs[i])) for i in numbers]))


def with_layouts(graph: Graph, inputs: Sequence[Layout]) -> PlanGraph:
    """The graph to be planned for inputs that are stored like this."""
    return PlanGraph.of(views.run(dedup.run(graph)), [InputSpec(layout) for layout in inputs])


def copies(graph: PlanGraph) -> list[str]:
    """What is re-laid, in which dtype."""
    return [graph.buffers[n.output.buffer].dtype for n in graph.nodes if n.op == "ReStickifyOpHBM"]


def prices(graph: PlanGraph) -> tuple[float, float, PlanGraph]:
    known: dict[object, float] = {}
    greedy = layouts.price(layout_rules.assign(graph.clone()), known)
    found = layouts.run(graph.clone())
    return greedy, layouts.price(found, known), found


def widened(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return (x.float() * 2).t() * z


def test_a_restickify_moves_above_a_conversion() -> None:
    """Greedy re-lays the fp32 values right before they are used; half the bytes if it happens before they are wide."""
    graph = graph_of(widened, half(512, 1024), torch.randn(1024, 512))
    greedy, best, found = prices(graph)
    assert copies(layout_rules.assign(graph.clone())) == ["float32"]
    assert copies(found) == ["float16"]
    assert best < greedy


def test_choices_are_explained_with_their_prices() -> None:
    _, _, found = prices(graph_of(widened, half(512, 1024), torch.randn(1024, 512)))
    notes = [line for line in layouts.explain(found) if "restickify" in line]
    assert any("above n0_dl16tofp32 -" in line and line.endswith(" us") for line in notes)


@pytest.mark.parametrize("error", [layouts.Rejected, AssertionError, UnsupportedOp])
def test_only_a_rejected_choice_is_passed_over(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other failure under a choice is a defect of the compiler, which must not end in a slower plan and silence."""
    graph = graph_of(widened, half(512, 1024), torch.randn(1024, 512))
    assign = layout_rules.assign

    def failing(graph: PlanGraph, choices: object = None) -> PlanGraph:
        if choices:
            raise error("under a choice")
        return assign(graph)

    monkeypatch.setattr(layouts, "assign", failing)
    if error is layouts.Rejected:
        assert copies(layouts.run(graph)) == ["float32"]
    else:
        with pytest.raises(error, match="under a choice"):
            layouts.run(graph)


def test_readers_share_one_restickify() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x + 1).t()
        return torch.relu(y * w) + torch.exp(y + w)

    _, _, found = prices(graph_of(fn, half(512, 1024), half(1024, 512)))
    assert len(copies(found)) == 1


def test_weights_of_linear_layers_need_none() -> None:
    linear = torch.nn.Linear(512, 1024, bias=False, dtype=torch.float16).to("spyre")
    x = half(64, 512).to("spyre")
    graph = tile_graph(lambda x, w: [torch.nn.functional.silu(x @ w.t())], [x, linear.weight.detach()])  # type: ignore[arg-type]
    stored = dict(zip(sorted(graph.inputs), (x, linear.weight.detach()), strict=True))
    found = [from_stl(get_spyre_tensor_layout(stored[name])) for name in graph.inputs]
    assert copies(layouts.run(with_layouts(graph, found))) == []


@given(st.integers(0, 1 << 20))
@settings(max_examples=8, deadline=None)
def test_the_search_never_loses_to_greedy(seed: int) -> None:
    """Random graphs over inputs whose dims lie in random order."""
    graph, specs = random_graph(seed)
    draw = Random(seed)
    for i, (name, spec) in enumerate(zip(graph.inputs, specs, strict=True)):
        buffer = graph.buffers[name]
        if not spec.offset and buffer.numel == buffer.span:
            order = draw.sample(range(len(buffer.size)), len(buffer.size))
            stl = SpyreTensorLayout(list(buffer.size), list(buffer.stride), getattr(torch, buffer.dtype), order)
            specs[i] = InputSpec(from_stl(stl))
    greedy, best, _ = prices(pieces.run(PlanGraph.of(views.run(dedup.run(graph)), specs)))
    assert best <= greedy


def test_layers_choose_alike() -> None:
    """A long graph is searched on a part of it."""

    def fn(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        total = z
        for i in range(40):
            total = total + widened(x + i, z)
        return total

    graph = graph_of(fn, half(256, 512), torch.randn(512, 256))
    greedy, best, _ = prices(graph)
    assert len(graph.nodes) > layouts._WINDOW and best < greedy


def late(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Nothing to re-lay in the first two hundred nodes."""
    y = x
    for i in range(100):
        y = torch.tanh(y) * (1 + i / 64)
    return widened(y, z)


def test_the_end_of_a_long_graph_is_searched() -> None:
    graph = graph_of(late, half(256, 512), torch.randn(512, 256))
    place = next(i for i, n in enumerate(graph.nodes) if n.op == "dl16tofp32")
    greedy, best, found = prices(graph)
    assert place > layouts._WINDOW and copies(found) == ["float16"] and best < greedy


def test_work_is_bounded_by_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of many sizes: as many nodes are laid out as are allowed, and the plan is still whole."""

    def fn(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        total = z[:1, :1]
        for i in range(1, 40):
            total = total + widened(x[: 3 * i, : 64 + i], z[: 64 + i, : 3 * i]).sum()
        return total

    laid = []
    original = layout_rules.assign

    def counted(graph: PlanGraph, choices: object = None) -> PlanGraph:
        laid.append(len(graph.nodes))
        return original(graph, choices)  # type: ignore[arg-type]

    graph = graph_of(fn, half(130, 128), torch.randn(128, 130))
    monkeypatch.setattr(layouts, "assign", counted)
    monkeypatch.setattr(layouts.Work, "__init__", lambda self, left=800: setattr(self, "left", left))
    found = layouts.run(graph.clone())
    nodes = len(graph.nodes)
    assert nodes > layouts._WINDOW
    assert 800 < sum(laid) <= 800 + layouts._WINDOW + (layouts._WINDOWS + 1) * nodes
    assert all(b.layout for n in found.nodes for b in [found.buffers[n.output.buffer]])


@pytest.mark.parametrize("fn", [widened])
def test_moved_restickifies_give_the_same_bits(fn: Callable[..., torch.Tensor]) -> None:
    x, z = half(130, 70), torch.randn(70, 130)
    torch._dynamo.reset()
    got = torch.compile(fn, dynamic=False)(x.to("spyre"), z.to("spyre"))
    assert torch.equal(bits(got), bits(fn(x.to("spyre"), z.to("spyre"))))
