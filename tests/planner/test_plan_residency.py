# SPDX-License-Identifier: Apache-2.0
# pytest tests/planner/test_plan_residency.py
"""What stays in the scratchpads: chains touch memory once by the card's counters, in place, staged, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_planner import check_ownership, check_placement
from torch.nn import functional

from torch_spyre import _C
from torch_spyre._inductor import config
from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.planning.placement import Request, place
from torch_spyre._inductor.planning.planner import Plan, explain
from torch_spyre.constants import LX_BYTES
from torch_spyre.ir.plan.barriers import barriers_before
from torch_spyre.ir.plan.tileops import Space


def half(*size: int) -> torch.Tensor:
    return torch.randn(*size).to(torch.float16)


def measure(fn: Callable[..., torch.Tensor], *args: torch.Tensor) -> tuple[int, int, torch.Tensor, Plan]:
    """Memory bytes read and written by the second call, its result, and the checked plan."""
    torch._dynamo.reset()
    torch.manual_seed(5)
    on_card = [a.to("spyre") for a in args]
    before = len(inspect.records())
    inspect.start()
    try:
        compiled = torch.compile(fn, dynamic=False)
        compiled(*on_card)
    finally:
        inspect.stop()
    torch.spyre.synchronize()
    start = _C._card_counters(0)
    result = compiled(*on_card)
    torch.spyre.synchronize()
    end = _C._card_counters(0)
    plan = inspect.records()[before:][-1].plan
    check_ownership(plan, plan.kernel.cores)
    check_placement(plan)
    read, written = (end[k] - start[k] for k in ("memory_read_bytes", "memory_write_bytes"))
    return read, written, result.cpu(), plan


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], w, b)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, x.shape[-1:], w)


ONCE = [
    (lambda x: torch.softmax(x, -1), [(512, 1024)]),
    (lambda x: torch.softmax(x, 0), [(1024, 512)]),
    (lambda x: torch.softmax(x, -1), [(67, 100)]),
    (layer_norm, [(151, 8192), (8192,), (8192,)]),
    (rms_norm, [(512, 4096), (4096,)]),
]


@pytest.mark.parametrize("fn, sizes", ONCE)
def test_norms_touch_memory_once(fn: Callable[..., torch.Tensor], sizes: list[tuple[int, ...]]) -> None:
    args = [half(*s) for s in sizes]
    read, written, got, plan = measure(fn, *args)
    tensor, rows = args[0].numel() * 2, sum(a.numel() * 2 for a in args[1:])
    assert written <= tensor + 2 * rows  # weights may be converted to fp32 once for all cores
    assert read <= tensor + (2 * plan.kernel.cores + 1) * rows  # each core needs the whole row of weights
    want = fn(*(a.double() for a in args))
    assert (got.double() - want).abs().max() <= 6 * 2**-10 * want.abs().max()


def test_an_input_that_is_read_twice_is_staged() -> None:
    x = half(2048, 512)
    read, written, got, plan = measure(lambda x: torch.relu(x * 2) + x, x)
    assert (read, written) == (x.numel() * 2, x.numel() * 2)
    assert any("staging:" in line for line in explain(plan.graph))
    assert (got.double() - (torch.relu(x.double() * 2) + x.double())).abs().max() <= 2 * 2**-10 * got.abs().max()


def test_elementwise_results_take_the_place_of_dead_operands() -> None:
    x = half(1024, 2048)
    _, _, _, plan = measure(lambda x: torch.tanh(torch.exp(torch.relu(x * 2) - 1) + 1), x)
    temps = [b for b in plan.graph.buffers.values() if b.placement == "lx"]
    assert len(temps) == 5 and len({b.address for b in temps}) == 1


def test_the_pool_is_shared_by_dead_operands_too() -> None:
    """Six elementwise operations through memory need one tensor of it, and keep their bits."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.exp(torch.relu(x * 2) - 1) + 1)

    x = half(256, 512)
    with config.patch(lx_planning=False):
        _, _, got, plan = measure(fn, x)
    assert plan.pool_bytes == x.numel() * 2
    _, _, other, _ = measure(fn, x)
    assert torch.equal(got, other)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_the_back_end_has_its_share_of_lx(share: float) -> None:
    """DXP_LX_FRAC_AVAIL is what the back end gets: no planned tensor reaches into it, and what fits no more spills."""
    x = half(2048, 2048)
    with config.patch(dxp_lx_frac_avail=share):
        _, _, got, plan = measure(lambda x: torch.softmax(x, -1), x)
        assert plan.kernel.lx_scratch_base <= LX_BYTES * (1 - share)
    assert (share == 1.0) == (plan.kernel.lx_scratch_base == 0)
    want = torch.softmax(x.double(), -1)
    assert (got.double() - want).abs().max() <= 6 * 2**-10 * want.abs().max()


def test_in_place_needs_a_parent_that_dies() -> None:
    parent = Request("a", 256, 0, 1)
    assert place([parent, Request("b", 256, 1, 2, "a")], 4096)[0]["b"] == 0
    assert place([parent, Request("b", 512, 1, 2, "a")], 4096)[0]["b"] == 256
    assert place([Request("a", 256, 0, 2), Request("b", 256, 1, 2, "a")], 4096)[0]["b"] == 256


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.transpose(-1, -2)) * 0.125, -1) @ v


def test_scores_of_a_head_stay_in_lx() -> None:
    """Eight heads of 256 x 256: no scores in memory."""
    args = [half(8, 256, 64) for _ in range(3)]
    _, _, got, plan = measure(attention, *args)
    in_memory = [b for b in plan.graph.buffers.values() if b.kind == "temp" and b.placement == "memory"]
    assert not any(b.numel >= 8 * 256 * 256 for b in in_memory)
    want = attention(*(a.double() for a in args))
    assert (got.double() - want).abs().max() <= 8 * 2**-10 * want.abs().max()


def test_long_attention_runs_in_a_tile_loop_and_keeps_its_bits() -> None:
    """Scores of 4 MiB for each core do not fit; chunks of rows do, with both matmuls inside the loop."""
    args = [half(2, 1024, 64) for _ in range(3)]
    with config.patch(sencores=4):
        _, written, got, plan = measure(attention, *args)
    (loop,) = plan.kernel.loops
    assert {"batchmatmul", "exp"} <= {op.op for op in plan.kernel.ops[loop.begin : loop.end]}
    assert written <= 3 * args[0].numel() * 2
    with config.patch(sencores=4, lx_planning=False):
        _, _, plain, flat = measure(attention, *args)
    assert not flat.kernel.loops
    assert torch.equal(got, plain)


@pytest.mark.parametrize("rows, cores", [(1151, 32), (75, 2), (40, 1), (33, 32)])
def test_uneven_chunks(rows: int, cores: int) -> None:
    """Rows that neither cores nor trips divide."""
    args = [half(rows, 8192), half(8192), half(8192)]
    with config.patch(sencores=cores):
        _, written, got, plan = measure(layer_norm, *args)
    assert written <= args[0].numel() * 2 + 2 * 4 * 8192  # the weights as fp32 at most
    assert bool(plan.kernel.loops) == (rows / cores > 30)
    want = layer_norm(*(a.double() for a in args))
    assert (got.double() - want).abs().max() <= 6 * 2**-10 * want.abs().max()


def test_the_back_end_keeps_its_share() -> None:
    args = [half(256, 8192), half(8192), half(8192)]
    for fraction in (0.2, 0.6):
        with config.patch(dxp_lx_frac_avail=fraction, sencores=8):
            _, _, _, plan = measure(layer_norm, *args)
        assert plan.kernel.lx_scratch_base <= (2 << 20) * (1 - fraction)


def test_tile_loops_need_no_barrier_inside() -> None:
    args = [half(2, 1024, 64) for _ in range(3)]
    with config.patch(sencores=4):
        _, _, _, plan = measure(attention, *args)
    for loop in plan.kernel.loops:
        assert not any(barriers_before(plan.kernel)[loop.begin + 1 : loop.end])
        chunked = [op.output.tensor for op in plan.kernel.ops[loop.begin : loop.end] if op.output.tensor.chunked]
        assert chunked and all(t.space is Space.LX for t in chunked)


def test_a_loop_does_not_overwrite_what_it_still_reads() -> None:
    """In place: the input is also where the result goes, so reading and writing it share no loop."""
    x = half(64, 8192)

    def fn(x: torch.Tensor) -> torch.Tensor:
        x.copy_(torch.softmax(x, -1) + x.amax(-1, keepdim=True))
        return x * 2

    with config.patch(sencores=1):
        torch._dynamo.reset()
        on_card = x.to("spyre")
        got = torch.compile(fn, dynamic=False)(on_card).cpu()
    want = torch.softmax(x.double(), -1) + x.double().amax(-1, keepdim=True)
    assert (got.double() - 2 * want).abs().max() <= 6 * 2**-10 * 2 * want.abs().max()
    assert (on_card.cpu().double() - want).abs().max() <= 6 * 2**-10 * want.abs().max()


def test_gate_and_up_meet_in_lx() -> None:
    """silu(x @ g) * (x @ u): both products and the activation share one split."""
    x, g, u = half(128, 256), half(256, 1024), half(256, 1024)
    _, written, got, _ = measure(lambda x, g, u: functional.silu(x @ g) * (x @ u), x, g, u)
    assert written == got.numel() * 2


def test_rows_that_two_writers_leave_between_them_are_not_held() -> None:
    """The halves of a cat are cut alike, so a core holds rows of each; a slice across both needs the rows between."""

    def product(x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x, x * 2], 1)[:, 1 : x.shape[1] + 1]
        return y @ y.transpose(1, 2)

    x = torch.randint(-3, 4, (2, 20, 40)).to(torch.float16)
    _, _, result, _ = measure(product, x)
    torch.testing.assert_close(result.double(), product(x.double()), rtol=2**-9, atol=0)
