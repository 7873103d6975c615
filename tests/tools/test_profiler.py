# SPDX-License-Identifier: Apache-2.0
"""pytest -q tests/tools/test_profiler.py

torch.profiler sees what the device clock booked: kernels, transfers, flows, memory; and the exporter what cores do.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

import torch_spyre.profiler
from torch_spyre import _C
from torch_spyre.backend.program.decoder import decode
from torch_spyre.constants import LX_BYTES
from torch_spyre.perf import schedule
from torch_spyre.perf.device import load
from torch_spyre.perf.timeline import estimate
from torch_spyre.profiler.trace import CORES_PID

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
Events = list[dict[str, Any]]


def fused(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w + x, -1)


@pytest.fixture(scope="module")
def operands() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x, w = (torch.randn(128, 128, dtype=torch.float16).to("spyre") for _ in range(2))
    return x, w


@pytest.fixture(scope="module")
def compiled(operands: tuple[torch.Tensor, torch.Tensor]) -> Callable[..., torch.Tensor]:
    function = torch.compile(fused, dynamic=False)
    function(*operands)
    torch.mm(*operands)
    return function


@pytest.fixture(scope="module")
def recorded(compiled: Any, operands: tuple[torch.Tensor, torch.Tensor], tmp_path_factory: Any) -> tuple[Any, Events]:
    x, w = operands
    with profile(activities=BOTH, profile_memory=True) as prof:
        compiled(x, w)
        with record_function("mine"):
            torch.mm(x, w).cpu()
        torch.ones(64, 64, dtype=torch.float16).to("spyre")
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    prof.export_chrome_trace(str(path))
    return prof, json.loads(path.read_text())["traceEvents"]


def of(events: Events, category: str) -> Events:
    return [e for e in events if e.get("cat") == category and e["ph"] == "X"]


def test_kernels_carry_their_origin(recorded: tuple[Any, Events]) -> None:
    kernels = of(recorded[1], "kernel")
    assert [k["name"] for k in kernels] == ["spyre_kernel_0", "eager_mm"]
    args = kernels[0]["args"]
    assert args["cores"] == args["grid"][0] <= 32
    assert args["bytes read"] >= 2 * 128 * 128 * 2 and args["bytes written"] >= 128 * 128 * 2
    assert args["MACs"] == 128**3
    assert args["bottleneck"] in ("pt", "memory", "draw", "sfp", "lx", "ring", "issue", "exposed")
    assert any(line.startswith(__file__) for line in args["lines"])
    assert any("exp" in op for op in args["ops"])
    assert kernels[1]["args"]["user_line"].startswith(__file__)


def test_durations_are_the_device_clock(compiled: Any, operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    before = _C._card_counters(0)["compute_ns"]
    with profile(activities=BOTH) as prof:
        for _ in range(3):
            compiled(*operands)
        torch.spyre.synchronize()
    spent = _C._card_counters(0)["compute_ns"] - before
    kernels = [e for e in prof.events() if e.device_type == torch.autograd.DeviceType.PrivateUse1]
    assert len(kernels) == 3
    assert sum(e.time_range.elapsed_us() for e in kernels) == pytest.approx(spent / 1e3, rel=1e-3)


def test_a_trace_never_shows_work_before_its_call_or_two_at_once(recorded: tuple[Any, Events]) -> None:
    events = recorded[1]
    calls = {e["args"]["correlation"]: e for e in of(events, "privateuse1_runtime")}
    work = sorted([*of(events, "kernel"), *of(events, "gpu_memcpy")], key=lambda e: e["ts"])
    for e in work:
        assert e["ts"] >= calls[e["args"]["correlation"]]["ts"]
    for a, b in itertools.pairwise(work):  # one stream: in order
        assert b["ts"] >= a["ts"] + a["dur"] - 1e-3


def test_flows_lead_from_calls_to_kernels(recorded: tuple[Any, Events]) -> None:
    events = recorded[1]
    starts = {e["id"] for e in events if e.get("cat") == "ac2g" and e["ph"] == "s"}
    ends = {e["id"] for e in events if e.get("cat") == "ac2g" and e["ph"] == "f"}
    ids = {e["args"]["correlation"] for e in [*of(events, "kernel"), *of(events, "gpu_memcpy")]}
    assert ids <= starts and ids <= ends
    ops = {e["args"]["External id"]: e["name"] for e in of(events, "cpu_op")}
    (mm,) = [k for k in of(events, "kernel") if k["name"] == "eager_mm"]
    assert ops[mm["args"]["External id"]] == "aten::mm"


def test_transfers_have_bytes_and_direction(recorded: tuple[Any, Events]) -> None:
    copies = of(recorded[1], "gpu_memcpy")
    assert [c["name"] for c in copies] == ["Memcpy (DtoH)", "Memcpy (HtoD)"]
    assert [c["args"]["bytes"] for c in copies] == [128 * 128 * 2, 64 * 64 * 2]


def test_memory_is_counted(recorded: tuple[Any, Events]) -> None:
    points = [e["args"]["bytes"] for e in recorded[1] if e["ph"] == "C" and e["name"] == "allocated memory"]
    assert len(points) >= 3 and max(points) > min(points)


def test_averages_attribute_device_time_to_ops(recorded: tuple[Any, Events]) -> None:
    rows = {e.key: e for e in recorded[0].key_averages()}
    assert rows["aten::mm"].device_time_total > 0
    assert "SPYRE" in recorded[0].key_averages().table()


def test_streams_are_tracks(operands: tuple[torch.Tensor, torch.Tensor], tmp_path: Path) -> None:
    x, w = operands
    side = torch.spyre.Stream()
    with profile(activities=BOTH) as prof:
        torch.mm(x, w)
        with side:
            torch.mm(x, w)
        torch.spyre.synchronize()
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    kernels = of(events, "kernel")
    assert {k["tid"] for k in kernels} == {0, side.stream_id}
    first, second = sorted(kernels, key=lambda k: k["ts"])
    assert second["ts"] >= first["ts"] + first["dur"] - 1e-3, "the card runs one program at a time"


def test_nothing_is_recorded_without_a_profile(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    _C._recorded_activities()
    torch.mm(*operands)
    assert _C._recorded_activities() == []


def test_a_profile_of_the_host_alone(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        torch.mm(*operands)
    kinds = {e.device_type for e in prof.events()}
    assert kinds == {torch.autograd.DeviceType.CPU}
    assert any(e.name == "aten::mm" for e in prof.events())


def test_recording_without_torch_profiler(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    _C._record_activities(True)
    torch.mm(*operands)
    _C._record_activities(False)
    ((name, program, device, stream, _, duration, _),) = _C._recorded_activities()
    assert (name, device, stream) == ("eager_mm", 0, 0)
    assert duration == program.duration_ns


def test_the_older_profiler_times_with_markers(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    with torch.autograd.profiler.profile(use_device="spyre", use_kineto=False) as prof:
        torch.mm(*operands)
    rows = {e.key: e for e in prof.key_averages()}
    assert rows["aten::mm"].device_time_total > 0


def test_export_with_cores(compiled: Any, operands: tuple[torch.Tensor, torch.Tensor], tmp_path: Path) -> None:
    with profile(activities=BOTH) as prof:
        compiled(*operands)
    path = tmp_path / "cores.json"
    torch_spyre.profiler.export_chrome_trace(prof, str(path))
    events = json.loads(path.read_text())["traceEvents"]
    (kernel,) = of(events, "kernel")
    lanes = [e for e in events if e["pid"] == CORES_PID and e["ph"] == "X"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["pid"] == CORES_PID and e["name"] == "thread_name"}
    assert {n.split()[-1] for n in names.values()} >= {"load", "PT", "SFP", "store"}
    assert len({n.split()[1] for n in names.values()}) == kernel["args"]["cores"]
    for lane in lanes:
        assert kernel["ts"] <= lane["ts"] and lane["ts"] + lane["dur"] <= kernel["ts"] + kernel["dur"] + 1e-2
    occupied = [e["args"]["bytes"] for e in events if e["name"] == "LX occupancy"]
    assert 0 < max(occupied) <= LX_BYTES and occupied[-1] == 0
    read = [e["args"]["GB/s"] for e in events if e["name"] == "memory read"]
    assert 0 < max(read) < load()["memory.bandwidth"] * 1.2


def test_trace_handler_writes_each_cycle(operands: tuple[torch.Tensor, torch.Tensor], tmp_path: Path) -> None:
    handler = torch_spyre.profiler.trace_handler(str(tmp_path), cores=False)
    plan = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    with profile(activities=BOTH, schedule=plan, on_trace_ready=handler) as prof:
        for _ in range(8):
            torch.mm(*operands)
            prof.step()
    files = list(tmp_path.glob("*.pt.trace.json"))
    assert len(files) == 2
    for file in files:
        assert len(of(json.loads(file.read_text())["traceEvents"], "kernel")) == 2


def test_steps_add_up_to_the_clock(compiled: Any, operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    _C._record_activities(True)
    compiled(*operands)
    _C._record_activities(False)
    program = decode(_C._recorded_activities()[0][1].binary)
    steps = schedule.schedule(program)
    assert steps[-1].start + steps[-1].duration == pytest.approx(estimate(program).duration_ns)
    for step in steps:
        for lane in step.lanes:
            assert step.start <= lane.start and lane.start + lane.duration <= step.start + step.duration + 1e-6
