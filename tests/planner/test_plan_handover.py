# SPDX-License-Identifier: Apache-2.0
"""pytest tests/planner/test_plan_handover.py: slices that change hands over the ring, and dims walked in pieces.

Who gives what to whom against a plain model of both splits; plans that use it are sound, priced below the way through
memory, and give the bits of plans that do not.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_plan_division import contiguous, plan_matmul, spec
from test_planner import check_placement
from torch.nn import functional

from torch_spyre import _C, knobs
from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.passes import handover, residency
from torch_spyre._inductor.planning.planner import plan
from torch_spyre._inductor.tilegraph.graph import Buffer, Graph, Load, Node
from torch_spyre._inductor.tilegraph.index import Index
from torch_spyre.backend.compile import compile_module
from torch_spyre.ir.ktir.emit.kernel_function import emit
from torch_spyre.ir.plan.handover_groups import Digit, Groups, groups
from torch_spyre.ir.plan.tileops import Dim, Term

SIZES = (16, 24)


@st.composite
def splits(draw: st.DrawFn) -> tuple[list[Dim], list[str]]:
    ways = [draw(st.sampled_from([1, 2, 4, 8])) for _ in SIZES]
    dims = [Dim(f"d{i}", n, w, n // w if w > 1 else 0) for i, (n, w) in enumerate(zip(SIZES, ways, strict=True))]
    return dims, draw(st.permutations([d.name for d in dims if d.slices > 1]))


def held(dims: list[Dim], order: list[str], core: int, whole: np.ndarray) -> np.ndarray:
    """A core's slice of an array."""
    where = {d.name: 0 for d in dims}
    for name in order:
        core, where[name] = divmod(core, next(d.slices for d in dims if d.name == name))
    return whole[tuple(slice(where[d.name] * d.extent, (where[d.name] + 1) * d.extent) for d in dims)]


def number(found: Groups, digits: tuple[Digit, ...], core: int) -> tuple[int, ...]:
    return tuple(d.cell(core) for d in digits)


def delivered(found: Groups, parts: list[np.ndarray], core: int, shape: tuple[int, ...]) -> np.ndarray:
    """What a consumer gets, by the rules of KTIR: its slice of each producer's value, by position, side by side."""
    group = number(found, found.consumers, core)
    members = [c for c in range(found.cores) if number(found, found.producers, c) == group]
    mates = [c for c in range(found.cores) if number(found, found.consumers, c) == group]
    cut = np.unravel_index(mates.index(core), [found.consumers[d].finer for d in found.split]) if found.split else ()
    result = np.full(shape, -1)
    for k, member in enumerate(members):
        piece = parts[member]
        for d, at in zip(found.split, cut, strict=True):
            step = piece.shape[d] // found.consumers[d].finer
            piece = np.take(piece, range(at * step, (at + 1) * step), axis=d)
        place = np.unravel_index(k, [found.producers[d].finer for d in found.concat]) if found.concat else ()
        start = dict(zip(found.concat, place, strict=True))
        box = tuple(slice(start.get(d, 0) * n, (start.get(d, 0) + 1) * n) for d, n in enumerate(piece.shape))
        result[box] = piece
    return result


@given(splits(), splits())
@settings(max_examples=100, deadline=None)
def test_every_core_gets_its_new_slice(coming: tuple[list[Dim], list[str]], going: tuple[list[Dim], list[str]]) -> None:
    found = groups(*coming, *going)
    cores = math.prod(d.slices for d in coming[0])
    if found is None:
        return
    assert cores == math.prod(d.slices for d in going[0])
    whole = np.arange(math.prod(SIZES)).reshape(SIZES)
    parts = [held(*coming, core, whole) for core in range(cores)]
    for core in range(cores):
        want = held(*going, core, whole)
        assert np.array_equal(delivered(found, parts, core, want.shape), want)


def test_rows_and_columns_to_rows() -> None:
    """8 x 4 tiles become 32 slices of rows, whichever digit is faster; the other way round too."""
    tiles, rows = [Dim("m", 512, 8, 64), Dim("n", 256, 4, 64)], [Dim("m", 512, 32, 16), Dim("n", 256)]
    there = groups(tiles, ["n", "m"], rows, ["m"])
    assert there is not None and (there.split, there.concat, there.pieces) == ((0,), (1,), 4)
    back = groups(rows, ["m"], tiles, ["n", "m"])
    assert back is not None and (back.split, back.concat) == ((1,), (0,))
    copies = groups(rows, ["m"], [Dim("m", 512, 8, 64), Dim("n", 256), Dim("rep", 4, 4, 1)], ["rep", "m"])
    assert copies is not None and copies.split == () and copies.pieces == 4
    assert groups(tiles, ["n", "m"], [Dim("m", 512, 16, 32), Dim("n", 256)], ["m"]) is None  # fewer cores


def matmul_and_norm(m: int, k: int, n: int) -> Graph:
    """c = a @ b; s = c.sum(-1); d = c - s."""
    sizes = {"a": (m, k), "b": (k, n), "c": (m, n), "s": (m,), "d": (m, n)}
    kinds = {"a": "input", "b": "input", "c": "temp", "s": "temp", "d": "output"}
    buffers = {x: Buffer(x, "float16", s, contiguous(*s), kinds[x]) for x, s in sizes.items()}
    left, right = Index((Term("m", k), Term("k", 1))), Index((Term("k", n), Term("n", 1)))
    out, flat = Index((Term("m", n), Term("n", 1))), Index((Term("d0", n), Term("d1", 1)))
    operands = (Load("a", left), Load("b", right))
    dims, row = (("d0", m), ("d1", n)), Load("s", Index((Term("d0", 1),)))
    nodes = [
        Node("mm", "batchmatmul", (("m", m), ("n", n), ("k", k)), operands, Load("c", out), ("k",)),
        Node("sum", "sum", dims, (Load("c", flat),), row, ("d1",)),
        Node("sub", "sub", dims, (Load("c", flat), row), Load("d", flat)),
    ]
    return Graph("g", buffers, nodes, ["a", "b"], ["d"])


def test_a_row_reduction_after_a_matmul_takes_the_ring() -> None:
    planned = plan(matmul_and_norm(512, 4096, 4096), [spec((512, 4096)), spec((4096, 4096))])
    moves = [op for op in planned.kernel.ops if op.op == handover.OP]
    assert len(moves) == 1 and planned.graph.buffers["c"].placement == "lx"
    check_placement(planned)
    _C.Program.load(compile_module(emit(planned.kernel)).binary)  # proves who owns what
    note = next(line for line in residency.explain(planned.graph) if line.startswith("handover:"))
    ring, memory = (float(part.split()[0]) for part in note.split("ring: ")[1].split("by memory "))
    assert ring < memory


def test_a_ring_that_is_slow_is_not_used() -> None:
    """All prices come from the device description."""
    from torch_spyre.perf.device import Device, assume, load

    real = load()
    constants = dict(real.constants)
    constants["ring.bandwidth"] = type(constants["ring.bandwidth"])(0.1, "GB/s/core", "what if", "L")
    with assume(Device("slow ring", "", constants)):
        planned = plan(matmul_and_norm(512, 4096, 4096), [spec((512, 4096)), spec((4096, 4096))])
    assert planned.graph.buffers["c"].placement == "memory"


def compiled(fn: object, *args: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
    torch._dynamo.reset()
    inspect.start()
    before = len(inspect.records())
    try:
        result = torch.compile(fn, dynamic=False)(*args).cpu()  # type: ignore[operator]
    finally:
        inspect.stop()
    return result, [op.op for r in inspect.records()[before:] for op in r.plan.kernel.ops]


def test_handed_over_values_are_the_same_bits() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(256, 1024, dtype=torch.float16), torch.randn(1024, 2048, dtype=torch.float16) / 32

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x @ w, (2048,))

    got, ops = compiled(fn, x.to("spyre"), w.to("spyre"))
    assert handover.OP in ops
    with knobs.patch(lx_planning=False):
        plain, others = compiled(fn, x.to("spyre"), w.to("spyre"))
    assert handover.OP not in others
    assert torch.equal(got, plain)
    torch.testing.assert_close(got.double(), fn(x.double(), w.double()), rtol=2.0**-7, atol=2.0**-7)


@pytest.mark.parametrize("rows", [128, 100])
def test_attention_with_shared_keys_stays_in_lx(rows: int) -> None:
    """Query heads that share a key are one dim of heads x rows, the mask has rows: all walk it as two dims."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, rows, 64, dtype=torch.float16) for heads in (8, 2, 2))
    mask = torch.zeros(rows, rows, dtype=torch.float16).masked_fill(torch.ones(rows, rows).triu(1) > 0, -1e4)

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    inspect.start()
    before = len(inspect.records())
    torch._dynamo.reset()
    got = torch.compile(fn, dynamic=False)(*(x.to("spyre") for x in (q, k, v, mask))).cpu()
    inspect.stop()
    torch.testing.assert_close(
        got.double(), fn(q.double(), k.double(), v.double(), mask.double()), rtol=2.0**-6, atol=2.0**-8
    )
    planned = next(r.plan for r in reversed(inspect.records()[before:]) if not r.name.startswith("eager"))
    scores = [b for b in planned.graph.buffers.values() if b.kind == "temp" and b.numel == 8 * rows * rows]
    assert scores and all(b.placement == "lx" for b in scores)


def test_plans_of_a_small_matmul_are_unchanged() -> None:
    """Where writer and readers agree nothing moves."""
    assert not any(op.op == handover.OP for op in plan_matmul(96, 256, 320, chain=True).kernel.ops)
