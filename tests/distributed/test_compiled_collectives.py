# SPDX-License-Identifier: Apache-2.0
"""pytest tests/distributed/test_compiled_collectives.py: collectives inside compiled graphs.

Values are small whole numbers, which every format of the card adds without rounding: results are compared bit by bit
with what one process makes of all ranks' inputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from ranks import Ranks

BACKENDS = ("inductor", "spyre")
ROWS, COLUMNS = 12, 80  # rows that 2, 3 and 4 ranks share evenly, columns that do not fill their sticks


def given(rank: int, rows: int = ROWS, columns: int = COLUMNS) -> torch.Tensor:
    """The input of a rank."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-8, 9, (rows, columns), generator=generator).to(torch.float16)


def call(name: str, x: torch.Tensor) -> torch.Tensor:
    """A functional collective, by its name here."""
    group = dist.group.WORLD
    kind, _, how = name.partition(" ")
    if kind == "all_reduce":
        return fc.all_reduce(x, how, group)
    if kind == "all_gather":
        return fc.all_gather_tensor(x, int(how), group)
    if kind == "reduce_scatter":
        return fc.reduce_scatter_tensor(x, "sum", int(how), group)
    if kind == "broadcast":
        return fc.broadcast(x, int(how), group)
    assert kind == "all_to_all"
    return fc.all_to_all_single(x, None, None, group)


def in_place(name: str, x: torch.Tensor) -> torch.Tensor:
    """The same by calls that write into tensors."""
    kind, _, how = name.partition(" ")
    n = dist.get_world_size()
    if kind == "all_reduce":
        dist.all_reduce(x, op=getattr(dist.ReduceOp, how.upper()))
        return x
    if kind == "all_gather":
        out = x.new_empty((n * x.shape[0], x.shape[1]))
        dist.all_gather_into_tensor(out, x)
        return out
    if kind == "reduce_scatter":
        out = x.new_empty((x.shape[0] // n, x.shape[1]))
        dist.reduce_scatter_tensor(out, x)
        return out
    assert kind == "all_to_all"
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out


FUNCTIONAL = ("all_reduce sum", "all_reduce max", "all_reduce min", "all_reduce product", "all_gather 0",
              "all_gather 1", "reduce_scatter 0", "reduce_scatter 1", "broadcast 1", "all_to_all")  # fmt: skip
IN_PLACE = ("all_reduce sum", "all_reduce max", "all_gather 0", "reduce_scatter 0", "all_to_all")


def expected(name: str, inputs: list[torch.Tensor], rank: int) -> torch.Tensor:
    """What a rank gets, from the inputs of all, in float64."""
    kind, _, how = name.partition(" ")
    stacked = torch.stack(inputs).double()
    n = len(inputs)
    if kind == "all_reduce":
        return {"sum": stacked.sum(0), "max": stacked.amax(0), "min": stacked.amin(0), "product": stacked.prod(0)}[how]
    if kind == "all_gather":
        return torch.cat([*stacked], int(how))
    if kind == "reduce_scatter":
        return stacked.sum(0).chunk(n, int(how))[rank]
    if kind == "broadcast":
        return stacked[int(how)]
    return torch.cat([x.chunk(n)[rank] for x in stacked])


def run_compiled(names: tuple[str, ...], backend: str, how: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """By name: the result plus one, what went into the collective, and the input, after the call."""
    collective = {"functional": call, "in place": in_place}[how]
    x = given(dist.get_rank()).to("spyre")
    results = {}
    for name in names:
        torch._dynamo.reset()

        @torch.compile(fullgraph=True, backend=backend)
        def step(x: torch.Tensor, name: str = name) -> tuple[torch.Tensor, torch.Tensor]:
            doubled = x * 2
            return collective(name, doubled) + 1, doubled

        results[name] = tuple(t.cpu() for t in (*step(x), x))
    return results


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ["functional", "in place"])
def test_equal_to_one_process(ranks: Ranks, backend: str, how: str) -> None:
    names = FUNCTIONAL if how == "functional" else IN_PLACE
    found = ranks.run(2, run_compiled, names, backend, how)
    inputs = [given(r) for r in range(2)]
    for rank, results in enumerate(found):
        for name in names:
            made, doubled, x = results[name]
            want = expected(name, [2 * i for i in inputs], rank) + 1
            assert torch.equal(made.double(), want), (rank, name)
            assert torch.equal(x, inputs[rank]), (rank, name)
            if how == "functional" or not name.startswith("all_reduce"):
                assert torch.equal(doubled, 2 * inputs[rank]), (rank, name)


def run_sizes(sizes: list[int], backend: str) -> tuple[list[torch.Tensor], int]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    @torch.compile(fullgraph=True, dynamic=True, backend=backend)
    def step(x: torch.Tensor) -> torch.Tensor:
        total = fc.all_reduce(x * 2, "sum", dist.group.WORLD)
        return fc.all_gather_tensor(total + 1, 0, dist.group.WORLD)

    made = [step(given(dist.get_rank(), rows).to("spyre")).cpu() for rows in sizes]
    return made, torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_vary_are_one_graph(ranks: Ranks, backend: str) -> None:
    sizes = [3, 70, 5, 9]
    for made, graphs in ranks.run(2, run_sizes, sizes, backend):
        assert graphs == 1
        for rows, result in zip(sizes, made, strict=True):
            total = sum(2 * given(r, rows).double() for r in range(2)) + 1
            assert torch.equal(result.double(), torch.cat([total, total])), rows


Step = Callable[[torch.Tensor, torch.Tensor], Any]


def overlapping(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A sum over ranks, and products that do not need it."""
    total = fc.all_reduce(x @ w, "sum", dist.group.WORLD)
    other = (x @ w.t()).relu() @ w
    return total + other


def two_sums(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Two collectives under way at the same time, each needed by something of its own."""
    first = fc.all_reduce(x @ w, "sum", dist.group.WORLD)
    second = fc.all_gather_tensor(x * 2, 0, dist.group.WORLD)
    return (first @ w).relu() + second[: x.shape[0]]


def little_work(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Work that does not need the sum, but is shorter than a launch."""
    total = fc.all_reduce(x @ w, "sum", dist.group.WORLD)
    w.add_(1)
    return total + 1


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """As in a block of a model that is split over cards: nothing to do until a sum is there."""
    hidden = x + fc.all_reduce(torch.relu(x @ w), "sum", dist.group.WORLD)
    return hidden + fc.all_reduce((hidden * 2) @ w, "sum", dist.group.WORLD)


def calls_of(step: Step) -> tuple[list[str], int]:
    """What the host code of a compiled step calls, in order, and the launches that a call of it makes."""
    from torch._inductor.utils import run_and_get_code

    from torch_spyre import _C

    torch._dynamo.reset()
    x, w = given(dist.get_rank(), 64, 64).to("spyre"), given(9, 64, 64).to("spyre")
    compiled = torch.compile(step, fullgraph=True)
    _, sources = run_and_get_code(compiled, x, w)
    wanted = r"^\s*(?:.* = )?(spyre_kernel_\d+\(|torch\.ops\._c10d_functional\.\w+)"
    found = re.findall(wanted, sources[-1].split("def call(")[1], re.MULTILINE)

    def counted() -> int:
        torch.spyre.synchronize()
        return int(_C._card_counters(torch.spyre.current_device())["launches"])

    before = counted()
    compiled(x, w)
    launches = counted() - before
    short = {"wait_tensor": "wait"}
    names = ["launch" if name.endswith("(") else name.rsplit(".", 1)[1].removesuffix("_") for name in found]
    return [short.get(name, name) for name in names], launches


@pytest.mark.parametrize(
    ("step", "calls"),
    [
        (overlapping, ["launch", "all_reduce", "launch", "wait", "launch"]),
        (chain, ["launch", "all_reduce", "wait", "launch", "all_reduce", "wait", "launch"]),
        (two_sums, ["launch", "all_reduce", "all_gather_into_tensor", "wait", "launch", "wait", "launch"]),
        (little_work, ["launch", "all_reduce", "wait", "launch"]),
    ],
)
def test_waits_are_late_and_segments_are_launches(ranks: Ranks, step: Step, calls: list[str]) -> None:
    for found, launches in ranks.run(2, calls_of, step):
        assert found == calls
        assert launches == calls.count("launch")


def clock_ms(steps: list[Step]) -> list[float]:
    """The time of each compiled step on the device clock, from a moment at which all ranks are there."""
    x, w = given(0, 256, 256).to("spyre"), given(9, 256, 256).to("spyre")
    times = []
    for step in steps:
        torch._dynamo.reset()
        compiled = torch.compile(step, fullgraph=True)
        compiled(x, w)
        dist.all_reduce(torch.ones(1, device="spyre"))
        begin, end = torch.spyre.Event(enable_timing=True), torch.spyre.Event(enable_timing=True)
        begin.record()
        compiled(x, w)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return times


def only_sum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return fc.all_reduce(x @ w, "sum", dist.group.WORLD) + 1


def only_products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w.t()).relu() @ w


def test_the_clock_shows_overlap(ranks: Ranks) -> None:
    for both, exchange, products in ranks.run(2, clock_ms, [overlapping, only_sum, only_products]):
        assert both < exchange + products, (both, exchange, products)
        assert both < exchange + 0.5 * products, (both, exchange, products)
