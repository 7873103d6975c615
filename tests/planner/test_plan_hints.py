# SPDX-License-Identifier: Apache-2.0
# pytest tests/planner/test_plan_hints.py
"""Hints: named dims reach the nodes, splits and tile loops are as asked, nonsense is refused, knobs turn them off."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from torch_spyre._inductor import config
from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.hints import clear_tensor_dims, declare_tensor_dim, name_tensor_dims, spyre_hint
from torch_spyre._inductor.planning.planner import Plan
from torch_spyre.errors import InvalidArgument


@pytest.fixture
def operands() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for name, size in (("M", 512), ("K", 1024), ("N", 2048)):
        declare_tensor_dim(name, size)
    torch.manual_seed(2)
    x, w = torch.randn(512, 1024).to(torch.float16), (torch.randn(1024, 2048) / 32).to(torch.float16)
    yield name_tensor_dims(x.to("spyre"), ["M", "K"]), name_tensor_dims(w.to("spyre"), ["K", "N"])
    clear_tensor_dims()


def run(fn: Callable[..., torch.Tensor], *args: torch.Tensor) -> tuple[torch.Tensor, Plan]:
    torch._dynamo.reset()
    before = len(inspect.records())
    inspect.start()
    try:
        result = torch.compile(fn, dynamic=False)(*args).cpu()
    finally:
        inspect.stop()
    return result, inspect.records()[before:][-1].plan


def slices(plan: Plan, op: str) -> dict[str, int]:
    found = next(o for o in plan.kernel.ops if o.op == op)
    return {d.name: d.slices for d in found.dims if d.slices > 1}


def test_work_division_is_as_asked(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with spyre_hint(work_div={"M": 2, "N": 4}):
            y = x @ w
        with spyre_hint(work_div={"M": 3}):
            return torch.relu(y)

    got, plan = run(fn, *operands)
    assert slices(plan, "batchmatmul") == {"m": 2, "n": 4}
    assert slices(plan, "relufwd") == {"d0": 3}
    plain, other = run(lambda x, w: torch.relu(x @ w), *operands)
    assert torch.equal(got, plain)
    assert slices(other, "batchmatmul") != {"m": 2, "n": 4}


def test_k_split_by_hint_stays_within_a_rounding(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with spyre_hint(work_div={"M": 4, "K": 4, "N": 2}):
            return x @ w

    got, plan = run(fn, *operands)
    assert slices(plan, "batchmatmul") == {"m": 4, "k": 4, "n": 2}
    want = operands[0].cpu().double() @ operands[1].cpu().double()
    assert (got.double() - want).abs().max() <= 2 * 2**-10 * want.abs().max()


def test_inner_hints_win(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with spyre_hint(work_div={"M": 2}), spyre_hint(work_div={"M": 8}):
            return x @ w

    _, plan = run(fn, *operands)
    assert slices(plan, "batchmatmul") == {"m": 8}


def test_tile_loops_are_as_asked(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with spyre_hint(tiles={"M": 4}):
            return torch.softmax(x, -1)

    got, plan = run(fn, *operands)
    assert [loop.trips for loop in plan.kernel.loops] == [4]
    plain, flat = run(lambda x, w: torch.softmax(x, -1), *operands)
    assert not flat.kernel.loops
    assert torch.equal(got, plain)


def test_of_nested_tile_loops_the_outermost_that_can_be_runs(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    def both(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with spyre_hint(tiles={"M": 4}), spyre_hint(tiles={"K": 2}):
            return torch.relu(x) + 1

    def inner(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with spyre_hint(tiles={"K": 2}), spyre_hint(tiles={"M": 4}):
            return torch.softmax(x, -1)

    got, plan = run(both, *operands)
    assert [loop.trips for loop in plan.kernel.loops] == [4]
    assert torch.equal(got, run(lambda x, w: torch.relu(x) + 1, *operands)[0])
    got, plan = run(inner, *operands)  # a softmax cannot be cut along the dim that it sums
    assert 4 in [loop.trips for loop in plan.kernel.loops]
    assert torch.equal(got, run(lambda x, w: torch.softmax(x, -1), *operands)[0])


def test_named_dims_of_what_has_no_operands(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with spyre_hint(named_dims=["M", "N"], work_div={"M": 4, "N": 2}):
            return torch.full((512, 2048), 3.0, dtype=torch.float16, device="spyre")

    got, plan = run(fn, *operands)
    assert got.unique().tolist() == [3.0]
    assert sorted(d.slices for d in plan.kernel.ops[-1].dims if d.slices > 1) == [2, 4]


def test_named_dims_of_another_rank_change_nothing(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with spyre_hint(named_dims=["M"], work_div={"M": 3}):
            return torch.full((512, 2048), 3.0, dtype=torch.float16, device="spyre")

    got, plan = run(fn, *operands)
    assert got.unique().tolist() == [3.0]
    assert 3 not in [d.slices for d in plan.kernel.ops[-1].dims]


def test_hints_can_be_ignored(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with spyre_hint(work_div={"M": 2, "K": 2}):
            return x @ w

    with config.patch(ignore_work_division_hints=True):
        _, plan = run(fn, *operands)
    assert slices(plan, "batchmatmul") != {"m": 2, "k": 2}


def test_a_split_over_too_many_cores_is_refused(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with spyre_hint(work_div={"M": 16, "N": 4}):
            return x @ w

    with pytest.raises(InvalidArgument, match="64 cores"):
        run(fn, *operands)


def test_nonsense_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least 1"):
        spyre_hint(work_div={"M": True})
    with pytest.raises(InvalidArgument, match="use one of"):
        spyre_hint(cores={"M": 2})
    with pytest.raises(InvalidArgument, match="a list with the name"):
        spyre_hint(named_dims="MN")
    with pytest.raises(InvalidArgument, match="the same name"):
        spyre_hint(named_dims=["M", "M"])
    with pytest.raises(InvalidArgument, match="by the names of dims"):
        spyre_hint(tiles=["M"])
    with pytest.raises(InvalidArgument, match="one dim"):
        spyre_hint(tiles={"M": 2, "N": 2})
    with pytest.raises(InvalidArgument, match="not declared"):
        name_tensor_dims(torch.ones(3), ["unknown"])
    declare_tensor_dim("rows", 4)
    try:
        with pytest.raises(InvalidArgument, match="declared with size 4"):
            declare_tensor_dim("rows", 5)
        with pytest.raises(InvalidArgument, match="the tensor has 3"):
            name_tensor_dims(torch.ones(3), ["rows"])
        with pytest.raises(InvalidArgument, match="name every dim"):
            name_tensor_dims(torch.ones(4, 4), ["rows"])
    finally:
        clear_tensor_dims()
