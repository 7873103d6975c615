# SPDX-License-Identifier: Apache-2.0
# pytest tests/planner/test_plan_division.py
"""Work division: uneven slices, spans, core counts, K splits, and joint plans that are never worse than greedy ones."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_planner import check_division, check_ownership, tile_graph

from torch_spyre import constants
from torch_spyre._C import SpyreTensorLayout
from torch_spyre._inductor import config
from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.passes import division, layouts, spans
from torch_spyre._inductor.planning.candidates import cut, granularity
from torch_spyre._inductor.planning.cost import NodeCost
from torch_spyre._inductor.planning.layout_rules import from_stl
from torch_spyre._inductor.planning.ownership import REPLICA, holds, part
from torch_spyre._inductor.planning.plan_graph import InputSpec, PlanGraph
from torch_spyre._inductor.planning.planner import Plan, plan
from torch_spyre._inductor.tilegraph.graph import Buffer, Graph, Load, Node
from torch_spyre._inductor.tilegraph.index import Index
from torch_spyre.backend.compile import compile_module
from torch_spyre.ir.ktir.emit.kernel_function import emit
from torch_spyre.ir.plan.tileops import Coord, Dim, Space, Term


def spec(size: tuple[int, ...]) -> InputSpec:
    return InputSpec(from_stl(SpyreTensorLayout(list(size), torch.float16)))


def contiguous(*size: int) -> tuple[int, ...]:
    return tuple(math.prod(size[i + 1 :]) for i in range(len(size)))


def matmul_graph(m: int, k: int, n: int, chain: bool = False) -> Graph:
    """c = a @ b, and relu of it."""
    sizes = {"a": (m, k), "b": (k, n), "c": (m, n), "d": (m, n)}
    kinds = {"a": "input", "b": "input", "c": "temp" if chain else "output", "d": "output"}
    buffers = {x: Buffer(x, "float16", s, contiguous(*s), kinds[x]) for x, s in sizes.items() if chain or x != "d"}
    at = {
        "a": Index((Term("m", k), Term("k", 1))),
        "b": Index((Term("k", n), Term("n", 1))),
        "c": Index((Term("m", n), Term("n", 1))),
    }
    dims = (("m", m), ("n", n), ("k", k))
    mm = Node("mm", "batchmatmul", dims, (Load("a", at["a"]), Load("b", at["b"])), Load("c", at["c"]), ("k",))
    nodes = [mm]
    if chain:
        flat = Index((Term("d0", n), Term("d1", 1)))
        nodes.append(Node("relu", "relufwd", (("d0", m), ("d1", n)), (Load("c", flat),), Load("d", flat)))
    return Graph("g", buffers, nodes, ["a", "b"], ["d" if chain else "c"])


def plan_matmul(m: int, k: int, n: int, chain: bool = False) -> Plan:
    return plan(matmul_graph(m, k, n, chain), [spec((m, k)), spec((k, n))])


def pointwise_graph(*size: int) -> Graph:
    index = Index(tuple(Term(f"d{i}", s) for i, s in enumerate(contiguous(*size))))
    buffers = {x: Buffer(x, "float16", size, contiguous(*size), kind) for x, kind in (("a", "input"), ("b", "output"))}
    dims = tuple((f"d{i}", n) for i, n in enumerate(size))
    return Graph("g", buffers, [Node("n", "neg", dims, (Load("a", index),), Load("b", index))], ["a"], ["b"])


@pytest.mark.parametrize("size, cores", [((67, 100), 32), ((1151, 64), 32), ((33, 64), 31), ((5, 64), 4)])
def test_slices_may_be_uneven(size: tuple[int, int], cores: int) -> None:
    """A prime number of rows still uses the cores: 67 rows are 23 slices, not one."""
    with config.patch(sencores=cores):
        planned = plan(pointwise_graph(*size), [spec(size)])
    check_division(planned, cores)
    (op,) = planned.kernel.ops
    assert op.cores >= min(cores, size[0]) / 2
    assert max(d.extent for d in op.dims if d.name == "d0") <= -(-size[0] // (cores // 2))


@pytest.mark.parametrize("size, grain, slices", [(67, 1, 32), (100, 64, 32), (4096, 64, 7), (1, 1, 32), (640, 64, 3)])
def test_cuts_cover_the_dim_in_whole_sticks(size: int, grain: int, slices: int) -> None:
    _, count, extent = cut(Dim("d", size), grain, slices)
    assert count <= slices and extent % grain == 0
    assert (count - 1) * extent < size <= count * extent


@pytest.mark.parametrize("cores", range(1, 33))
def test_any_number_of_cores(cores: int) -> None:
    with config.patch(sencores=cores):
        planned = plan_matmul(96, 256, 320, chain=True)
        check_division(planned, cores)
        check_ownership(planned, cores)
        assert planned.kernel.cores == cores


def span(planned: Plan) -> int:
    """The largest reach of any core in any tensor of a one-op plan, in bytes."""
    (op,) = planned.kernel.ops
    split = tuple((n, op.dim(n).slices, op.dim(n).extent) for n in op.core_order)
    worst = 0
    for operand in (*op.inputs, op.output):
        device_size = operand.tensor.device_size  # type: ignore[union-attr]
        held = part(operand.coords, {d.name: d.size for d in op.dims}, split)  # type: ignore[union-attr]
        assert held is not None
        strides = [math.prod(device_size[i + 1 :]) for i in range(len(device_size))]
        worst = max(worst, 2 * sum((n - 1) * s for n, s in zip(held.extents, strides, strict=True)))
    return worst


def test_no_core_reaches_further_than_the_span() -> None:
    """1 GiB of rows is cut along its sticks, and a left operand of 512 MiB along k, whatever else would be cheaper."""
    assert span(plan(pointwise_graph(16384, 32768), [spec((16384, 32768))])) <= constants.MAX_SPAN_BYTES
    planned = plan_matmul(1024, 262144, 64)
    assert planned.kernel.ops[0].dim("k").slices > 1
    assert span(planned) <= constants.MAX_SPAN_BYTES


def test_a_slice_of_just_the_span_is_allowed() -> None:
    """32 cores, 8 GiB: each core's sticks end where its 256 MiB do."""
    planned = plan(pointwise_graph(65536, 65536), [spec((65536, 65536))])
    assert planned.kernel.ops[0].dim("d1").slices == 32
    assert compile_module(emit(planned.kernel)).binary


def test_k_of_a_large_matmul_is_done_in_parts() -> None:
    """16384 tokens through a layer of 14336: every row of the left operand spans 448 MiB, and no core could hold fp32
    results of its own."""
    planned = plan_matmul(16384, 14336, 4096)
    products = [op for op in planned.kernel.ops if op.op == "batchmatmul"]
    assert [op.dim("k").size for op in products] == [7168, 7168]
    assert compile_module(emit(planned.kernel)).binary  # which checks the spans


def test_parts_of_k_give_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "MAX_SPAN_BYTES", 64 << 10)
    monkeypatch.setattr(spans, "MOST_K_WAYS", 0)
    torch.manual_seed(0)
    a, b = (torch.randn(size, dtype=torch.float16).to("spyre") for size in ((130, 700), (700, 200)))
    torch._dynamo.reset()
    inspect.start()
    before = len(inspect.records())
    got = torch.compile(torch.matmul, dynamic=False)(a, b).cpu()
    inspect.stop()
    ops = [op.op for r in inspect.records()[before:] for op in r.plan.kernel.ops]
    assert ops.count("batchmatmul") == 3
    want = a.cpu().double() @ b.cpu().double()
    assert ((got.double() - want).abs() <= 2.0**-10 * 1.01 * want.abs() + 1e-4).all()  # one rounding


@pytest.mark.parametrize("shape, cut_k", [((64, 8192, 64), True), ((512, 1024, 2048), False), ((33, 100, 70), False)])
def test_k_is_cut_where_it_pays(shape: tuple[int, int, int], cut_k: bool) -> None:
    planned = plan_matmul(*shape)
    (op,) = planned.kernel.ops
    assert (op.dim("k").slices > 1) == cut_k
    cost = NodeCost(planned.graph, planned.graph.nodes[0])
    chosen = tuple((n, op.dim(n).slices, op.dim(n).extent) for n in op.core_order)
    rows = (cut(Dim("m", shape[0]), 1, 32),)
    assert cost.ns(chosen) <= cost.ns(rows)


@pytest.mark.parametrize("shape", [(128, 4096, 4096), (512, 4096, 4096), (64, 1024, 8192), (2048, 512, 512)])
def test_the_chosen_matmul_split_is_the_cheapest_of_all(shape: tuple[int, int, int]) -> None:
    """The public planner falls back to a split that its own model prices up to 4.8 times worse."""
    planned = plan_matmul(*shape)
    node = planned.graph.nodes[0]
    cost, grains = NodeCost(planned.graph, node), granularity(planned.graph, node)
    chosen = cost.ns(tuple((n, d.slices, d.extent) for n in node.core_order for d in node.tiles if d.name == n))
    m, n, _ = node.tiles
    for rows in (1, 2, 4, 8, 16, 32):
        pieces = [cut(n, grains["n"], 32 // rows), cut(m, 1, rows)]
        assert chosen <= cost.ns(tuple(p for p in pieces if p[1] > 1)) * 1.0001


def test_rows_are_cut_into_whole_panels() -> None:
    """The up projection of a prefill: on the card 4x8 takes 1017 us and 8x4 takes 1534."""
    (product,) = plan_matmul(512, 4096, 12800).kernel.ops
    assert {d.name: d.slices for d in product.dims if d.slices > 1} == {"m": 4, "n": 8}


def random_graph(seed: int) -> tuple[Graph, list[InputSpec]]:
    """A random graph, and how its inputs are stored."""
    from test_random_graphs import draw_program

    program = draw_program(Random(seed), steps=8)
    bases = [torch.empty(i.size, dtype=d) for i, d in zip(program.inputs, program.dtypes, strict=False)]
    inputs = [i.view(x.to("spyre")) for x, i in zip(bases, program.inputs, strict=True)]
    graph = tile_graph(program, inputs)
    specs = []
    for name in graph.inputs:
        number = int(name.removeprefix("arg").removesuffix("_1"))
        layout = from_stl(SpyreTensorLayout(list(bases[number].shape), bases[number].dtype))
        specs.append(InputSpec(layout, inputs[number].storage_offset()))
    return graph, specs


@given(st.integers(0, 1 << 20), st.integers(1, 32))
@settings(max_examples=12, deadline=None)
def test_joint_plans_are_never_worse_than_greedy_ones(seed: int, cores: int) -> None:
    with config.patch(sencores=cores):
        graph = layouts.run(PlanGraph.of(*random_graph(seed)))
    greedy, joint = division.compare(graph)
    assert joint <= greedy


def test_layers_that_repeat_are_planned_alike() -> None:
    """The search remembers what it did for nodes of the same form."""
    sizes = (512, 1024)
    flat = Index((Term("d0", 1024), Term("d1", 1)))
    names = ["a", *(f"t{i}" for i in range(60)), "b"]
    kinds = {"a": "input", "b": "output"}
    buffers = {x: Buffer(x, "float16", sizes, contiguous(*sizes), kinds.get(x, "temp")) for x in names}
    dims = (("d0", 512), ("d1", 1024))
    ops = ("exp", "relufwd", "neg")
    nodes = [
        Node(f"n{i}", ops[i % 3], dims, (Load(x, flat),), Load(y, flat))
        for i, (x, y) in enumerate(itertools.pairwise(names))
    ]
    planned = plan(Graph("g", buffers, nodes, ["a"], ["b"]), [spec(sizes)])
    assert len({tuple((d.name, d.slices, d.extent) for d in op.dims) for op in planned.kernel.ops}) == 1
    assert planned.pool_bytes == 0


def test_a_chain_shares_the_split_of_its_matmul() -> None:
    planned = plan_matmul(512, 1024, 2048, chain=True)
    mm, relu = planned.kernel.ops
    assert mm.output.tensor.space is Space.LX
    assert relu.cores == mm.cores == 32


def test_ownership_knows_replicas() -> None:
    """m in 8 with 4 copies serves a reader of m in 8 and n in 4, in the same core order only."""
    coords = (Coord((Term("m"),)), Coord((Term("k", 1, 1, 64),)))
    sizes = {"m": 64, "k": 64, "n": 256}
    reader = part(coords, sizes, (("n", 4, 64), ("m", 8, 8)))
    good = part(coords, sizes, ((REPLICA, 4, 1), ("m", 8, 8)))
    bad = part(coords, sizes, (("m", 8, 8), (REPLICA, 4, 1)))
    fewer = part(coords, sizes, (("m", 8, 8),))
    assert reader and good and bad and fewer
    assert holds(good, reader)
    assert not holds(bad, reader)
    assert not holds(fewer, reader)
