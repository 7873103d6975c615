# SPDX-License-Identifier: Apache-2.0
# pytest tests/planner/test_planner.py
"""Every plan is sound, element by element: coverage, sticks, device coordinates, LX ownership, placement."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from test_random_graphs import COMMON, Program, draw_program
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from torch_spyre._C import SpyreTensorLayout
from torch_spyre._inductor import config, planning
from torch_spyre._inductor.passes.coordinates import rewrite_index
from torch_spyre._inductor.planning.layout_rules import from_stl
from torch_spyre._inductor.planning.ownership import REPLICA
from torch_spyre._inductor.planning.placement import Request, live_ranges, place
from torch_spyre._inductor.planning.plan_graph import InputSpec
from torch_spyre._inductor.planning.planner import Plan, plan
from torch_spyre._inductor.tilegraph.graph import Graph, Node
from torch_spyre._inductor.tilegraph.index import BASE, evaluate, from_sympy, split_base
from torch_spyre.constants import LX_BYTES, STICK_BYTES
from torch_spyre.errors import InvalidArgument, UnsupportedOp
from torch_spyre.ir.plan.tileops import Access, Coord, Dim, Operand, Space, TileOp

Array = np.ndarray[Any, np.dtype[Any]]


def tile_graph(program: Program, inputs: list[torch.Tensor]) -> Graph:
    """The TileGraph of a function, through Inductor's lowering but without Dynamo and without running anything."""
    from torch._inductor import config as inductor_config
    from torch._inductor import ir
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from torch_spyre._inductor import registration  # noqa: F401  (registers lowerings)
    from torch_spyre._inductor.codegen import graph_buffer
    from torch_spyre._inductor.tilegraph.build import Builder

    with FakeTensorMode() as mode:
        fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in inputs]
        # A last operation of its own makes every result a new tensor, not a view.
        traced = make_fx(lambda *x: [v + 1 for v in program(*x)], decomposition_table=select_decomp_table())(*fakes)
    lowering = GraphLowering(traced, example_inputs=fakes)
    with V.set_graph_handler(lowering), V.set_fake_mode(mode):
        with inductor_config.patch(comprehensive_padding=False):
            lowering.run(*fakes)
        builder = Builder("random", graph_buffer)
        for operation in lowering.operations:
            assert isinstance(operation, ir.ComputedBuffer)
            builder.add_computed(operation)
        graph = builder.graph([builder.returned(v) for v in lowering.graph_outputs])
    assert Graph.from_json(graph.to_json()) == graph
    return graph


@pytest.mark.parametrize("text", ['{"_":"Buffer","gone":1}', '{"_":"Unknown"}', "[]", "{"])
def test_text_that_is_no_graph_is_refused_by_name(text: str) -> None:
    """For instance a reproducer that another version wrote."""
    with pytest.raises(InvalidArgument, match="TileGraph"):
        Graph.from_json(text)


def random_plan(draw: Random) -> Plan:
    """A random graph over inputs in random layouts, planned under random knobs."""
    program = draw_program(draw, steps=8)
    bases = [torch.empty(i.size, dtype=d) for i, d in zip(program.inputs, program.dtypes, strict=False)]
    inputs = [i.view(x.to("spyre")) for x, i in zip(bases, program.inputs, strict=True)]
    graph = tile_graph(program, inputs)
    specs = []
    for name in graph.inputs:
        number = int(name.removeprefix("arg").removesuffix("_1"))
        base = bases[number]
        order = draw.sample(range(base.dim()), base.dim())
        layout = SpyreTensorLayout(list(base.shape), list(base.stride()), base.dtype, order)
        specs.append(InputSpec(from_stl(layout), inputs[number].storage_offset()))
    knobs = {"sencores": draw.choice([1, 2, 3, 7, 8, 31, 32, 32, 32]), "lx_planning": draw.random() < 0.8}
    with config.patch(**knobs):
        return plan(graph, specs)


# Iteration points as arrays


def grid(dims: tuple[Dim, ...], spans: dict[str, tuple[int, int]]) -> dict[str, Array]:
    """Value of every dim at every point of a box, as broadcastable arrays."""
    axes = np.meshgrid(*(np.arange(*spans[d.name]) for d in dims), indexing="ij", sparse=True)
    return {d.name: axis for d, axis in zip(dims, axes, strict=True)}


def value_of(coord: Coord, point: dict[str, Array]) -> Array:
    total: Any = np.int64(coord.const)
    for t in coord.terms:
        digit = point[t.dim] // t.div
        total = total + t.scale * (digit % t.mod if t.mod else digit)
    return np.asarray(total)


def flat(coords: tuple[Coord, ...], point: dict[str, Array], size: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Row-major element number of the access at every point; asserts that it lies inside."""
    number: Any = np.int64(0)
    for coord, n in zip(coords, size, strict=True):
        at = value_of(coord, point)
        assert at.min() >= 0 and at.max() < n, f"coordinate {coord} reaches {at.max()} of {n}"
        number = number * n + at
    return np.broadcast_to(number, shape).reshape(-1)


def whole(dims: tuple[Dim, ...]) -> dict[str, tuple[int, int]]:
    return {d.name: (0, d.size) for d in dims}


def core_span(op: TileOp, core: int, trip: int = 0) -> dict[str, tuple[int, int]] | None:
    """The slice (or the trip's part of it) of every dim that a core works on; None if it has no work."""
    spans = whole(op.dims)
    for name in op.core_order:
        dim = op.dim(name)
        core, index = divmod(core, dim.slices)
        spans[name] = (index * dim.extent, min((index + 1) * dim.extent, dim.size))
    for dim in op.dims:
        if dim.chunk:
            start, end = spans[dim.name]
            spans[dim.name] = (min(start + trip * dim.chunk, end), min(start + (trip + 1) * dim.chunk, end))
    empty = any(start >= end for start, end in spans.values())
    return spans if core == 0 and not empty else None


# Checks


def check_division(planned: Plan, cores: int) -> None:
    for op in planned.kernel.ops:
        assert op.cores <= cores
        assert sorted(op.core_order) == sorted(d.name for d in op.dims if d.slices > 1)
        for d in op.dims:
            assert d.extent * d.slices >= d.size > d.extent * (d.slices - 1), f"{op.name}: {d} does not cover its dim"
        for operand in (*op.inputs, op.output):
            if isinstance(operand, Operand):
                lane = operand.tensor.device_size[-1]
                for t in operand.coords[-1].terms:
                    dim = op.dim(t.dim)
                    assert dim.slices == 1 or dim.extent % lane == 0, f"{op.name}: {dim} cuts a stick of {lane}"


def check_coordinates(planned: Plan) -> None:
    """Device coordinates address the host element that the graph means, and no result element is written twice."""
    graph = planned.graph
    for node, op in zip(graph.nodes, planned.kernel.ops, strict=True):
        point = grid(op.dims, whole(op.dims))
        shape = tuple(d.size for d in op.dims)
        for load, coords in zip((*node.loads(), node.output), node.accesses, strict=True):
            buffer = graph.buffers[load.buffer]
            if not coords or buffer.layout is None:
                continue
            flat(coords, point, buffer.layout.device_size, shape)
            host: Any = 0
            for coord, stride in zip(coords, buffer.layout.stride_map, strict=True):
                host = host + max(stride, 0) * value_of(coord, point)
            want = value_of(rewrite_index(node, load.index.shifted(buffer.offset)), point)
            assert np.array_equal(np.broadcast_to(host, shape), np.broadcast_to(want, shape)), (node.name, load.buffer)
        if any(d.name == REPLICA for d in op.dims):
            assert op.output.tensor.space is Space.LX, f"{node.name}: several cores write the same memory"
        kept = [d for d in op.dims if d.name not in op.reduced and d.name != REPLICA]
        written = value_of(rewrite_index(node, node.output.index), grid(tuple(kept), whole(tuple(kept))))
        assert np.unique(written).size == math.prod(d.size for d in kept), f"{node.name} writes an element twice"


def schedule(planned: Plan) -> Iterator[tuple[TileOp, Node, int]]:
    """Every op as it runs: (op, node, trip of its tile loop)."""
    pairs = list(zip(planned.kernel.ops, planned.graph.nodes, strict=True))
    loops = {loop.begin: loop for loop in planned.kernel.loops}
    i = 0
    while i < len(pairs):
        loop = loops.get(i)
        end, trips = (loop.end, loop.trips) if loop else (i + 1, 1)
        for trip in range(trips):
            yield from ((op, node, trip) for op, node in pairs[i:end])
        i = end


def check_ownership(planned: Plan, cores: int) -> None:
    """What a core reads from its scratchpad is what it wrote there itself, at the same address."""
    for core in range(cores):
        held: dict[str, Array] = {}  # LX tensor -> global element at each local address, -1 where nothing was written
        last: dict[str, int] = {}
        for op, node, trip in schedule(planned):
            spans = core_span(op, core, trip)
            if spans is None:
                continue
            values = [*node.loads(), node.output]
            operands = [o for o in op.inputs if isinstance(o, Operand)] + [op.output]
            names = {o.tensor.name: o for o in operands if isinstance(o, Operand)}
            for load in values:
                operand = names.get(load.buffer)
                if operand is None or operand.tensor.space is not Space.LX:
                    continue
                seen, here = op, spans
                if op.source and load is not node.output:  # a hand-over reads what its core has of the other split
                    seen = replace(op, dims=op.source, core_order=op.source_order)
                    here = core_span(seen, core) or {}
                elements, addresses = lx_accesses(seen, operand, here, planned.graph.buffers[load.buffer].layout, trip)
                if load is node.output:
                    fresh = operand.tensor.chunked and last.get(load.buffer) != trip
                    if load.buffer not in held or fresh:
                        held[load.buffer] = np.full(operand.tensor.elements, -1)
                    last[load.buffer] = trip
                    held[load.buffer][addresses] = elements
                else:
                    assert load.buffer in held, f"{op.name} reads {load.buffer} on core {core}, which never wrote it"
                    assert np.array_equal(held[load.buffer][addresses], elements), (
                        f"{op.name}, core {core}: {load.buffer}"
                    )


def lx_accesses(
    op: TileOp, operand: Operand, spans: dict[str, tuple[int, int]], layout: Any, trip: int
) -> tuple[Array, Array]:
    """(global elements, local addresses) that a core touches: local subscripts count from the start of the slice, or
    of the trip for a tensor that holds one trip's part."""
    shape = tuple(spans[d.name][1] - spans[d.name][0] for d in op.dims)
    first = {d.name: 0 if operand.tensor.chunked else trip * d.chunk for d in op.dims}
    local = {name: (first[name], first[name] + end - start) for name, (start, end) in spans.items()}
    elements = flat(operand.coords, grid(op.dims, spans), layout.device_size, shape)
    return elements, flat(operand.coords, grid(op.dims, local), operand.tensor.device_size, shape)


def check_placement(planned: Plan) -> None:
    graph, kernel = planned.graph, planned.kernel
    ranges = live_ranges(graph.nodes, {b.name for b in graph.buffers.values() if b.chunked})
    writers = {n.output.buffer: n for n in graph.nodes}
    lx, pool = [], []
    for b in graph.buffers.values():
        if b.kind != "temp" or b.layout is None:
            continue
        size = math.prod(b.local_size[:-1]) * STICK_BYTES if b.placement == "lx" else b.layout.bytes
        (lx if b.placement == "lx" else pool).append((b.name, b.address, b.address + size, *ranges[b.name]))
    for area in (lx, pool):
        for (a, a0, a1, first_a, last_a), (b, b0, b1, first_b, last_b) in itertools.combinations(area, 2):
            if (a0, a1) == (b0, b1) and (last_a == first_b or last_b == first_a):
                heir, parent = (b, a) if last_a == first_b else (a, b)
                node = writers[heir]
                same = [c for v, c in zip(node.loads(), node.accesses, strict=False) if v.buffer == parent]
                if same and all(c == node.accesses[-1] for c in same) and not node.reduced:
                    continue  # elementwise, in place
            together = first_a <= last_b and first_b <= last_a
            assert not together or a1 <= b0 or b1 <= a0, f"{a} and {b} are alive together and overlap"
    assert all(end <= LX_BYTES * 0.8 for _, _, end, _, _ in lx)
    assert all(start % STICK_BYTES == 0 for _, start, _, _, _ in (*lx, *pool))
    assert kernel.lx_scratch_base >= max((end for _, _, end, _, _ in lx), default=0)
    pools = [a for a in kernel.args if a.role == "pool"]
    assert [a.bytes for a in pools] == ([max(end for _, _, end, _, _ in pool)] if pool else [])


def check_arguments(planned: Plan) -> None:
    """Inputs are only read, results are only written (or read back), and each argument has its layout's bytes, or as
    many as the view needs that an input is."""
    for arg, (role, _) in zip(planned.kernel.args, planned.bindings, strict=True):
        assert arg.role == role
        assert arg.access & Access.WRITE or role == "input"
        if role != "pool":
            layout = planned.graph.buffers[arg.name].layout
            assert layout is not None and arg.bytes <= layout.bytes
            assert arg.bytes == layout.bytes or (role == "input" and planned.displaced)
    for op in planned.kernel.ops:
        point, shape = grid(op.dims, whole(op.dims)), tuple(d.size for d in op.dims)
        for operand in (*op.inputs, op.output):
            if isinstance(operand, Operand) and operand.tensor.space is Space.MEMORY and not operand.tensor.base:
                last = flat(operand.coords, point, operand.tensor.device_size, shape).max()
                sticks = last // operand.tensor.device_size[-1] + 1
                assert sticks * STICK_BYTES <= planned.kernel.args[operand.tensor.arg].bytes


@settings(max_examples=60, derandomize=True, **COMMON)
@given(st.randoms(use_true_random=True))
def test_random_plans_are_sound(draw: Random) -> None:
    check(draw)


@pytest.mark.slow
@settings(max_examples=600, **COMMON)
@given(st.randoms(use_true_random=True))
def test_many_random_plans_are_sound(draw: Random) -> None:
    check(draw)


def check(draw: Random) -> None:
    planned = random_plan(draw)
    note(f"{planned.kernel.cores} cores\n{planned.graph.text()}")
    cores = planned.kernel.cores
    check_division(planned, cores)
    check_coordinates(planned)
    check_ownership(planned, cores)
    check_placement(planned)
    check_arguments(planned)


def test_planning_is_deterministic() -> None:
    for seed in range(5):
        assert random_plan(Random(seed)).kernel == random_plan(Random(seed)).kernel


REQUESTS = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 9), st.integers(0, 9)), max_size=12)


@given(REQUESTS, st.sampled_from([0, 1024, 4096, 1 << 20]))
def test_placement_keeps_live_ranges_apart(requests: list[tuple[int, int, int]], capacity: int) -> None:
    wanted = [Request(str(i), n, min(a, b), max(a, b)) for i, (n, a, b) in enumerate(requests)]
    addresses, extent = place(wanted, capacity)
    assert extent <= capacity
    placed = [r for r in wanted if r.name in addresses]
    for a, b in itertools.combinations(placed, 2):
        if a.first <= b.last and b.first <= a.last:
            lo, hi = sorted((a, b), key=lambda r: addresses[r.name])
            assert addresses[lo.name] + lo.bytes <= addresses[hi.name]
    if capacity >= sum(r.bytes + STICK_BYTES for r in wanted):
        assert len(placed) == len(wanted)


def symbols(*names: str) -> Iterator[sympy.Symbol]:
    return (sympy.Symbol(n, integer=True, nonnegative=True) for n in names)


@pytest.mark.parametrize("seed", range(20))
def test_digits_of_a_sum_are_split_off(seed: int) -> None:
    """``f(g(dims))``: f over all values of g, then g, is the original index at every point."""
    draw = Random(seed)
    d0, d1 = symbols("d0", "d1")
    inner, outer = draw.choice([2, 5, 14]), draw.choice([3, 7, 10])
    sizes = {"d0": draw.randint(2, 9), "d1": draw.randint(2, 9), "d2": 4}
    base = draw.randint(0, 5) + d0 + draw.randint(1, 30) * d1
    index = 1000 * FloorDiv(base, inner * outer) + 3 * ModularIndexing(base, 1, inner)
    index = index + 50 * ModularIndexing(base, inner, outer) + 7 * next(symbols("d2"))
    found = split_base(index, sizes)
    assert found is not None
    whole_index, dims, position = found
    assert dims[BASE] % (inner * outer) == 0
    for a, b, c in itertools.product(*(range(sizes[d]) for d in ("d0", "d1", "d2"))):
        point = {"d0": a, "d1": b, "d2": c}
        at = evaluate(position.terms, position.const, point)
        assert 0 <= at < dims[BASE]
        got = evaluate(whole_index.terms, whole_index.const, {**point, BASE: at})
        assert got == index.subs({d0: a, d1: b, next(symbols("d2")): c})
    assert split_base(d0 + 2 * d1, sizes) is None
    assert from_sympy(d0 + 2 * d1, sizes).const == 0


def test_a_digit_of_a_digit() -> None:
    (d,) = symbols("d")
    nested = ModularIndexing(ModularIndexing(d, 1, 130), 1, 65, evaluate=False)
    index = from_sympy(3 * nested, {"d": 1000})
    assert [evaluate(index.terms, index.const, {"d": v}) for v in range(1000)] == [
        3 * (v % 130 % 65) for v in range(1000)
    ]
    with pytest.raises(UnsupportedOp, match="not affine"):
        from_sympy(ModularIndexing(ModularIndexing(d, 1, 130), 1, 64, evaluate=False), {"d": 1000})


def test_a_node_may_only_keep_what_its_own_core_wrote() -> None:
    """A reduction over rows after a split by rows must go through memory; a chain over the same rows must not."""
    from torch_spyre._inductor.debug import inspect

    def chain(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2) + x

    def crossing(x: torch.Tensor) -> torch.Tensor:
        y = x - x.amax(0, keepdim=True)
        return y - y.amax(1, keepdim=True)

    placements = []
    for fn in (chain, crossing):
        inspect.start()
        before = len(inspect.records())
        torch._dynamo.reset()
        torch.compile(fn, dynamic=False)(torch.randn(2048, 2048).to(torch.float16).to("spyre"))
        inspect.stop()
        record = inspect.records()[before:][-1]  # the ones before it are eager copies
        check_ownership(record.plan, record.plan.kernel.cores)
        placements.append({b.placement for b in record.plan.graph.buffers.values() if b.kind == "temp"})
    assert placements[0] == {"lx"}
    assert "memory" in placements[1]


def test_node_text_and_explain_name_every_decision() -> None:
    from torch_spyre._inductor.planning.planner import explain

    planned = random_plan(Random(3))
    text = planned.graph.text()
    lines = explain(planned.graph)
    for node in planned.graph.nodes:
        assert isinstance(node, Node) and node.name in text
        assert any(node.name in line for line in lines)
    assert any(line.startswith("division:") for line in lines)


def test_passes_read_their_options_not_the_knobs() -> None:
    """A plan is a function of what is given to it: a knob that is read half-way could be another one by then."""
    folder = Path(planning.__file__).parent.parent
    files = [*folder.glob("passes/*.py"), *folder.glob("planning/*.py"), folder / "compile.py"]
    reading = [f.name for f in files if re.search(r"\bknobs\.|import knobs|_inductor import config", f.read_text())]
    assert reading == ["plan_options.py"]
