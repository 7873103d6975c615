# SPDX-License-Identifier: Apache-2.0
"""pytest tests/compiler/test_view_offsets.py

A storage offset is a launch argument: one program serves all views of a storage that begin at the same place in a
stick, eager and compiled, for reads and writes. Values are small integers, which every format holds exactly.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from torch_spyre import _C
from torch_spyre._inductor import compile as stages
from torch_spyre._inductor import kernel
from torch_spyre.errors import IndexOutOfRange, InvalidArgument
from torch_spyre.runtime import driver

FP16 = torch.float16
pytestmark = pytest.mark.filterwarnings("error:.*falling back to cpu")
Op = Callable[[torch.Tensor], Any]


def whole(*size: int) -> torch.Tensor:
    return torch.randint(-9, 10, size).to(FP16)


READS: dict[str, tuple[tuple[int, ...], Callable[[Any, int], Any]]] = {
    "row": ((9, 130), lambda x, i: x[i] + 1),
    "two rows": ((9, 130), lambda x, i: x[i] <= x[i + 1]),
    "rows": ((9, 130), lambda x, i: x[i : i + 2].sum(1)),
    "rows from inside a stick": ((9, 200), lambda x, i: -x[i : i + 2, 5:70]),
    "sticks": ((5, 640), lambda x, i: x[:, 64 * i : 64 * i + 64] * 2),
    "element": ((9, 130), lambda x, i: x[i, 77] * 2),
    "one dim": ((700,), lambda x, i: x[64 * i + 3 : 64 * i + 70] - 1),
    "batch": ((9, 3, 70, 20), lambda x, i: x[i].transpose(0, 1).relu()),
    "inner dim": ((3, 9, 70), lambda x, i: x[:, i].amax(-1)),
    "product": ((9, 20, 70), lambda x, i: x[i] @ x[i + 1].t()),
    "table": ((9, 20, 70), lambda x, i: x[i][torch.tensor([3, 0, 19], device=x.device)]),
    "flipped": ((9, 20, 70), lambda x, i: x[i].flip(0)),
    "every other row": ((30, 70), lambda x, i: x[i : i + 9 : 2].cumsum(0)),
    "rows of joined dims": ((2, 5, 4, 70), lambda x, i: -x.view(40, 70)[i // 4 * 4 : i // 4 * 4 + 4]),
}


@pytest.mark.parametrize("name", READS)
def test_one_program_reads_at_all_offsets(name: str, planned: list[str]) -> None:
    size, op = READS[name]
    host = whole(*size)
    x = host.to("spyre")
    for i in range(8):
        assert torch.equal(op(x, i).cpu().float(), op(host.float(), i).float()), i
        if i == 0:
            first = list(planned)
    assert planned == first


WRITES: dict[str, tuple[tuple[int, ...], Callable[[Any, int], Any]]] = {
    "element": ((9, 130), lambda x, i: x[i, 6].add_(1.0)),
    "row": ((9, 130), lambda x, i: x[i].mul_(2)),
    "row from its neighbour": ((9, 130), lambda x, i: x[i].add_(x[i + 1])),
    "row from itself": ((9, 130), lambda x, i: x[i].add_(x[i])),
    "cache": ((2, 3, 9, 80), lambda x, i: x[:, :, i].copy_(x[:, :, 8])),
    "set item": ((2, 3, 9, 80), lambda x, i: x.__setitem__((slice(None), slice(None), i), 3.0)),
    "part of a stick": ((9, 200), lambda x, i: x[i : i + 2, 5:70].neg_()),
    "scatter": ((9, 20, 70), lambda x, i: x[i].index_fill_(0, torch.tensor([2, 19], device=x.device), 5)),
    "out": ((9, 130), lambda x, i: torch.add(x[8], 1, out=x[i])),
}


@pytest.mark.parametrize("name", WRITES)
def test_one_program_writes_at_all_offsets(name: str, planned: list[str]) -> None:
    """And nothing outside the view changes."""
    size, op = WRITES[name]
    for i in range(8):
        host = whole(*size)
        x = host.to("spyre")
        op(x, i), op(host, i)
        assert torch.equal(x.cpu(), host), i
        if i == 0:
            first = list(planned)
    assert planned == first


def test_a_column_has_a_program_for_each_lane(planned: list[str]) -> None:
    host = whole(7, 140)
    x = host.to("spyre")
    for i in (0, 64, 128, 3, 67, 131, 5):
        assert torch.equal((x[:, i] + 1).cpu(), host[:, i] + 1)
    assert len(planned) == 3


@pytest.mark.parametrize("length", [0, 3])
def test_gradients_of_views_share_programs(planned: list[str], length: int) -> None:
    for i in range(5):
        part = slice(i, i + length) if length else i
        x = whole(9, 130).to("spyre").requires_grad_()
        (x[part] * 2).sum().backward()
        want = torch.zeros(9, 130)
        want[part] = 2
        assert x.grad is not None and torch.equal(x.grad.cpu().float(), want)
        if i == 0:
            first = list(planned)
    assert planned == first


@pytest.mark.parametrize(("dynamic", "programs"), [(False, 1), (True, 2)])
def test_compiled_functions_share_programs(planned: list[str], dynamic: bool, programs: int) -> None:
    """With a size that varies: one for the bucket of what begins with its storage, one for all else of this size."""
    host, other = whole(9, 20, 70), whole(20, 70)
    x, y = host.to("spyre"), other.to("spyre")
    torch._dynamo.reset()

    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * 2 + b).relu()

    compiled = torch.compile(fn, dynamic=dynamic)
    for i in range(6):
        assert torch.equal(compiled(x[i], y).cpu(), fn(host[i], other))
    assert planned.count("spyre_kernel_0") == programs


def test_overlapping_writes_are_refused_at_every_offset(planned: list[str]) -> None:
    host = whole(9, 130)
    x = host.to("spyre")
    for i in range(5):
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            x[i : i + 3].add_(x[i + 1 : i + 4])
        x[i : i + 2].add_(x[i + 2 : i + 4])
        host[i : i + 2].add_(host[i + 2 : i + 4])
    assert torch.equal(x.cpu(), host)


def test_what_reaches_past_its_input_is_planned_for_its_offset(planned: list[str]) -> None:
    """A graph that asks for elements of the storage that are not in the view."""
    host = whole(9, 130)
    x = host.to("spyre")
    torch._dynamo.reset()

    def fn(a: torch.Tensor) -> torch.Tensor:
        return a.as_strided((2, 100), (130, 1)) + 1

    compiled = torch.compile(fn, dynamic=False)
    for _ in range(2):
        for i in range(4):
            assert torch.equal(compiled(x[i]).cpu(), host[i : i + 2, :100] + 1), i


def test_a_table_ends_where_its_view_ends() -> None:
    """An index past the view is refused, although the storage goes on."""
    x = whole(9, 20, 70).to("spyre")
    for i in (0, 3, 7):
        with pytest.raises(IndexOutOfRange):
            x[i][torch.tensor([3, 20], device="spyre")].cpu()
        torch.spyre.reset()


def test_a_launch_checks_what_is_left_of_the_storage() -> None:
    """A program that needs all of a storage cannot begin inside it."""
    x = whole(9, 130).to("spyre")
    described = kernel.describe_input(x)
    seen: list[str] = []
    original = kernel._launch_plan

    def keep(graph_json: str, *rest: Any) -> Any:
        seen.append(graph_json)
        return original(graph_json, *rest)

    _C.clear_eager_cache()
    kernel._launch_plan = keep
    try:
        x.neg()
    finally:
        kernel._launch_plan = original
    made = stages.compile_graph(seen[-1], [described], displaced=False)
    launcher = driver.launcher(driver.load(dataclasses.replace(made, displaced=True)))
    launcher(x)
    with pytest.raises(InvalidArgument, match="bytes, the program touches"):
        launcher(x[1:])


def test_views_inside_a_recording_are_replayed() -> None:
    """Two recordings are the same although the memory inside them lies elsewhere."""
    host = whole(9, 130)
    x = host.to("spyre")

    def work() -> torch.Tensor:
        y = x * 2
        return y[3] + x[5]

    work()
    recordings, kept = [], []
    for _ in range(2):
        recording = _C.Recording()
        recording.start()
        kept.append(work())
        recording.stop()
        recordings.append(recording)
    assert recordings[0].same_as(recordings[1])
    x.copy_(host + 1)
    recordings[0].replay()
    torch.spyre.synchronize()
    assert torch.equal(kept[0].cpu(), (host[3] + 1) * 2 + host[5] + 1)


# Any view of any layout


def random_storage(draw: Random) -> tuple[torch.Tensor, torch.Tensor]:
    """The same values on the host and on the card, there with any order of dims."""
    size = [draw.choice([2, 3, 4, 7, 33, 64, 65, 100, 130]) for _ in range(draw.randint(1, 4))]
    while math.prod(size) > 20000:
        size[draw.randrange(len(size))] = draw.randint(2, 4)
    host = whole(*size)
    order = draw.sample(range(len(size)), len(size)) if draw.random() < 0.5 else list(range(len(size)))
    layout = _C.SpyreTensorLayout(size, list(host.stride()), FP16, order)
    card = _C.spyre_empty_with_layout(size, list(host.stride()), FP16, layout)
    card.copy_(host)
    return host, card


def random_windows(draw: Random, size: torch.Size, count: int) -> Iterator[Op]:
    """The same part of a tensor, begun at different places."""
    lengths = [draw.randint(1, n) for n in size]
    steps = [draw.choice([1, 1, 1, 2]) for _ in size]
    dropped = draw.random() < 0.3
    for _ in range(count):
        begins = [draw.randrange(n - length + 1) for n, length in zip(size, lengths, strict=True)]
        part = tuple(slice(b, b + n, s) for b, n, s in zip(begins, lengths, steps, strict=True))
        place = (begins[0], *part[1:]) if dropped else part
        yield lambda x, place=place: x[place]


RANDOM_READS: dict[str, Op] = {
    "neg": lambda x: -x,
    "add": lambda x: x + x,
    "clone": lambda x: x.clone(),
    "compare": lambda x: x <= 2,
    "sum": lambda x: x.float().sum(),
    "amax": lambda x: x.amax(-1) if x.dim() else x.amax(),
    "gather": lambda x: x[torch.tensor([x.shape[0] - 1, 0], device=x.device)] if x.dim() else x + 0,
    "cat": lambda x: torch.cat([x, x]) if x.dim() else x + 0,
}
RANDOM_WRITES: dict[str, Op] = {
    "add_": lambda x: x.add_(1),
    "fill_": lambda x: x.fill_(3),
    "relu_": lambda x: x.relu_(),
    "mul_": lambda x: x.mul_(x),
    "copy_": lambda x: x.copy_(torch.full_like(x, 2)),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([0], device=x.device), 4) if x.dim() else x.fill_(4),
}


def check_random_view(draw: Random) -> None:
    torch.manual_seed(draw.randrange(1 << 30))
    host, card = random_storage(draw)
    name = draw.choice([*RANDOM_READS, *RANDOM_WRITES])
    layout = _C.get_spyre_tensor_layout(card)
    for window in random_windows(draw, host.shape, 3):
        part = window(host)
        note(f"{name} of {list(host.shape)} at {part.storage_offset()}: {part.shape} {part.stride()}, {layout}")
        if name in RANDOM_READS:
            got, want = RANDOM_READS[name](window(card)).cpu(), RANDOM_READS[name](part)
            assert torch.equal(got.float(), want.float())
        else:
            RANDOM_WRITES[name](window(card)), RANDOM_WRITES[name](part)
            host.clamp_(-9, 9), card.clamp_(-9, 9)
            assert torch.equal(card.cpu(), host)


@settings(max_examples=12, derandomize=True, deadline=None, database=None)
@given(st.randoms(use_true_random=True))
def test_random_views(draw: Random) -> None:
    check_random_view(draw)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, database=None)
@given(st.randoms(use_true_random=True))
def test_many_random_views(draw: Random) -> None:
    check_random_view(draw)


# Other processes

SCRIPT = """
import json, sys
import torch
from torch_spyre._inductor import kernel

first, last = map(int, sys.argv[1:])
host = torch.arange(12.0 * 70).reshape(12, 70).remainder(19).to(torch.float16)
x = host.to("spyre")
compiled = torch.compile(lambda a: a * 2 + 1, dynamic=False)
good = True
for i in range(first, last):
    good &= torch.equal((x[i] + 1).cpu(), host[i] + 1)
    good &= torch.equal(compiled(x[i : i + 2]).cpu(), host[i : i + 2] * 2 + 1)
    good &= torch.equal((x[i] <= x[i + 1]).cpu(), host[i] <= host[i + 1])
    x[i, 6].add_(1.0)
    host[i, 6] += 1
good &= torch.equal(x.cpu(), host)
print(json.dumps({"good": good, "planned": "torch_spyre._inductor.planning.planner" in sys.modules}))
"""


def process(folder: Path, first: int, last: int, **environment: str) -> dict[str, Any]:
    caches = {"SPYRE_CACHE_DIR": str(folder / "programs"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(first), str(last)],
        env={**os.environ, **caches, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_another_process_plans_nothing_for_other_offsets(tmp_path: Path) -> None:
    assert process(tmp_path, 0, 3) == {"good": True, "planned": True}
    assert process(tmp_path, 5, 9) == {"good": True, "planned": False}


def test_the_sanitizer_finds_nothing(tmp_path: Path) -> None:
    assert process(tmp_path, 2, 4, SPYRE_SANITIZE="1")["good"]


def test_a_kernel_directory_serves_all_offsets(tmp_path: Path) -> None:
    """Compiled kernels as JobPlans, which check the layouts of their arguments by themselves."""
    assert process(tmp_path, 0, 3, DUMP_SPYRE_CODE="1")["good"]
