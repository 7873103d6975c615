# SPDX-License-Identifier: Apache-2.0
# pytest tests/planner/test_large_ops.py -m slow
"""Every operator at sizes beyond the span of a core, on 1, 7 and 32 cores: planned, compiled, loaded and timed.

Nothing is computed and no memory is committed (timing-only mode). `make test` runs a sample.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from large_calls import FORMS, calls, new, shape

from torch_spyre._inductor import compile as compiler
from torch_spyre._inductor import config
from torch_spyre._inductor.planning.plan_graph import InputSpec
from torch_spyre._inductor.planning.plan_options import PlanOptions
from torch_spyre._inductor.planning.planner import Plan
from torch_spyre._inductor.tilegraph.graph import Graph
from torch_spyre.predict import timing_only

MIB = 1 << 20
SIZES = {"300 MiB": 300 * MIB, "1 GiB": 1024 * MIB}
CORES = (1, 7, 32)
CALLS = calls()
CASES = [(name, size, cores, form) for name in CALLS for size in SIZES for cores in CORES for form in FORMS]
SAMPLE = random.Random(1).sample(CASES, 12)

Sizes = list[tuple[int, ...]]
NAMED: dict[str, tuple[Callable[..., object], Sizes]] = {
    "masked_scatter": (lambda x, y: x.masked_scatter(x > y, y), [(1, 855, 5120)] * 2),
    "attention of 4096": (F.scaled_dot_product_attention, [(1, 32, 4096, 128)] * 3),
    "attention of 8 x 1024": (F.scaled_dot_product_attention, [(8, 32, 1024, 128)] * 3),
    "bmm": (torch.bmm, [(32, 1, 2880), (32, 2880, 2880)]),
    "sum": (lambda x: x.sum(1), [(32, 2048, 4096)]),
    "softmax": (lambda x: x.softmax(1), [(32, 2048, 4096)]),
    "cumsum": (lambda x: x.cumsum(1), [(32, 2048, 4096)]),
    "amax": (lambda x: x.amax((1, 2)), [(32, 2048, 4096)]),
    "transpose": (lambda x: x.transpose(0, 1).contiguous(), [(32, 2048, 4096)]),
    "linear": (F.linear, [(32, 2048, 4096), (4096, 4096), (4096,)]),
    "t": (lambda x: x.t().contiguous(), [(49159, 4096)]),
    "groups": (lambda x: x.float().view(32, 32, -1) - 1, [(32, 64, 224, 224)]),
    "group_norm": (lambda x: F.group_norm(x.float(), 32), [(32, 64, 224, 224)]),
    "weight of 800 MiB": (F.linear, [(64, 32768), (12800, 32768)]),
    "weight of 384 MiB": (F.linear, [(64, 4096), (49152, 4096), (49152,)]),
    "long sort": (lambda x: x.sort(), [(600_000,)]),
    "longer sort": (lambda x: x.sort(), [(17_000_000,)]),
    "longest topk": (lambda x: x.topk(5), [(150_000_000,)]),
    "repeat": (lambda x: x.float().repeat(2, 1)[7:] + 1, [(20000, 513)]),
    "flip": (lambda x: x.flip(1), [(65536, 2048)]),
    "roll": (lambda x: x.roll(3, 1), [(65536, 2048)]),
}  # fmt: skip


@pytest.mark.parametrize("compiled, cores", [(False, 1), (False, 32), (True, 32)])
@pytest.mark.parametrize("name", NAMED)
def test_ordinary_calls_of_large_tensors(name: str, compiled: bool, cores: int) -> None:
    with timing_only(), config.patch(sencores=cores):
        torch._dynamo.reset()
        f, sizes = NAMED[name]
        (torch.compile(f, dynamic=False) if compiled else f)(*(new(*size) for size in sizes))
        torch.spyre.synchronize()


def masked(x: torch.Tensor) -> torch.Tensor:
    return x.masked_scatter(x > x, x)


def check(name: str, size: str, cores: int, form: str) -> None:
    dtype = torch.float32 if (len(name) + cores) % 3 == 0 else torch.float16
    elements = SIZES[size] // dtype.itemsize
    with timing_only(), config.patch(sencores=cores):
        CALLS[name](shape(form, elements), dtype)
        torch.spyre.synchronize()


@pytest.mark.parametrize("name, size, cores, form", SAMPLE)
def test_a_sample_of_operators(name: str, size: str, cores: int, form: str) -> None:
    check(name, size, cores, form)


@pytest.mark.parametrize(
    "call, size, cores, tries",
    [
        (lambda x: x.sort(), (16_900_000,), 32, [(True, 0.2), (True, 0.4)]),
        (
            lambda x: x.masked_scatter(x > x, x),
            (1, 856, 5120),
            1,
            [(True, 0.2), (False, 0.2), (False, 1.0), (False, 1.0)],
        ),
    ],
    ids=["a larger share holds it", "no share holds it"],
)
def test_a_larger_share_is_tried_only_where_it_can_hold_the_scratch(
    call: Callable[..., object],
    size: tuple[int, ...],
    cores: int,
    tries: list[tuple[bool, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where no temporary is in LX already, a larger share changes nothing: the node is done in parts."""
    asked: list[tuple[str, bool, float]] = []
    original = compiler.plan

    def recorded(graph: Graph, specs: Sequence[InputSpec], displaced: bool, options: PlanOptions) -> Plan:
        asked.append((graph.name, options.keeps_in_lx, options.lx_share))
        return original(graph, specs, displaced, options)

    monkeypatch.setattr(compiler, "plan", recorded)
    with timing_only(), config.patch(sencores=cores):
        call(new(*size))
        torch.spyre.synchronize()
    repeated = [kept for name, *kept in asked if [n for n, *_ in asked].count(name) > 1]
    assert repeated == [list(t) for t in tries]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CALLS)
def test_every_operator(name: str, size: str, cores: int, form: str) -> None:
    check(name, size, cores, form)
