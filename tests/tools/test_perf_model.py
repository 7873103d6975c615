# SPDX-License-Identifier: Apache-2.0
# pytest tests/tools/test_perf_model.py
"""The clock: deterministic, monotonic, cheap, honest about its descriptions, and nothing hard-coded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from effort import python_calls

from torch_spyre import knobs
from torch_spyre._inductor.planning.plan_options import PlanOptions
from torch_spyre.backend.compile import compile_module
from torch_spyre.backend.program.assembler import Program
from torch_spyre.errors import InvalidArgument
from torch_spyre.ir.ktir.emit import kernel_function
from torch_spyre.ir.plan.tileops import Kernel
from torch_spyre.perf import device as devices
from torch_spyre.perf.calibration import plans
from torch_spyre.perf.cli import main
from torch_spyre.perf.survey import survey
from torch_spyre.perf.timeline import estimate, price

KERNELS: dict[str, Callable[[], Kernel]] = {
    "add": lambda: plans.pointwise("add", 1024, 1024, 16, 2),
    "broadcast": lambda: plans.pointwise("add", 1024, 1024, 16, 2, "r"),
    "reduce": lambda: plans.row_reduce("sum", 1024, 1024, 16),
    "transpose": lambda: plans.transpose(1024, 1024, 16),
    "swap_outer": lambda: plans.swap_outer(256, 8, 512, 16),
    "concat": lambda: plans.concat(1024, 1024, 0, 16),
    "softmax": lambda: plans.softmax(1024, 512, 2, 16, True),
    "matmul": lambda: plans.matmul(1, 512, 512, 512, (1, 4, 4, 1), 16),
    "split_k": lambda: plans.matmul(1, 512, 512, 512, (1, 4, 2, 2), 16),
    "batched": lambda: plans.matmul(4, 256, 256, 256, (1, 4, 4, 1), 16),
}


def program(kernel: Kernel) -> Program:
    return compile_module(kernel_function.emit(kernel)).program


@pytest.fixture(scope="module")
def programs() -> dict[str, Program]:
    return {name: program(build()) for name, build in KERNELS.items()}


@pytest.mark.parametrize("name", KERNELS)
def test_same_program_same_time(programs: dict[str, Program], name: str) -> None:
    again = program(KERNELS[name]())
    assert estimate(programs[name]) == estimate(again)


@pytest.mark.parametrize("name", KERNELS)
def test_more_bandwidth_is_never_slower(programs: dict[str, Program], name: str) -> None:
    found = survey(programs[name])
    spyre = devices.load()
    times = []
    for factor in (0.5, 1.0, 2.0):
        changed = spyre.with_values(
            memory__bandwidth=spyre["memory.bandwidth"] * factor,
            memory__write_bandwidth=spyre["memory.write_bandwidth"] * factor,
            memory__half_read=spyre["memory.half_read"] * factor,
            memory__half_read_matmul=spyre["memory.half_read_matmul"] * factor,
            memory__half_write=spyre["memory.half_write"] * factor,
        )
        times.append(price(found, changed).duration_ns)
    assert times[0] >= times[1] >= times[2]
    assert times[0] > times[2]


@pytest.mark.parametrize("name", KERNELS)
def test_the_smaller_card_is_slower(programs: dict[str, Program], name: str) -> None:
    found = survey(programs[name])
    assert price(found, devices.load("half_spyre")).duration_ns > price(found, devices.load()).duration_ns


def test_lx_share_moves_bad_splits_and_not_good_ones() -> None:
    good = survey(program(plans.matmul(1, 2048, 2048, 2048, (1, 8, 4, 1), 32)))
    bad = survey(program(plans.matmul(1, 8192, 2048, 2048, (1, 32, 1, 1), 32)))
    spyre = devices.load()
    wide = spyre.with_values(cores__lx_fraction=0.8)
    assert price(bad, wide).duration_ns < 0.7 * price(bad, spyre).duration_ns
    assert price(good, wide).duration_ns > 0.8 * price(good, spyre).duration_ns


def micros(kernel: Kernel) -> float:
    return estimate(program(kernel)).duration_ns / 1e3


@pytest.mark.parametrize(
    ("rows", "split", "least", "most"), [(512, (1, 4, 8, 1), 1.5, 2.1), (1, (1, 1, 32, 1), 1.8, 3)]
)
def test_weights_whose_rows_are_contiguous_are_slow(
    rows: int, split: tuple[int, ...], least: float, most: float
) -> None:
    """On the card 1587 us instead of 899 at 512 rows, 1835 instead of some 700 at one."""
    columns, by_rows = (plans.matmul(1, rows, 4096, 12800, split, 32, weight_rows=r) for r in (False, True))
    assert least <= micros(by_rows) / micros(columns) <= most


def test_half_of_the_cores_stream_a_shared_weight_as_fast_as_all() -> None:
    half, all_cores = (plans.matmul(1, 64, 4096, 12800, (1, 4, n, 1), 4 * n) for n in (4, 8))
    assert micros(half) == pytest.approx(micros(all_cores), rel=0.03)


def test_two_halves_of_memory() -> None:
    times = {c: estimate(program(plans.row_reduce("sum", 2048, 8192, c))).duration_ns for c in (8, 16, 32)}
    assert times[8] == pytest.approx(times[16], rel=0.05)
    assert times[32] < 0.6 * times[16]


def test_estimate_grows_with_the_ops_and_not_faster() -> None:
    few, many = (program(plans.chain(count + 1, 1024, 1024, 32, False)) for count in (10, 100))
    assert python_calls(lambda: estimate(many)) < 15 * python_calls(lambda: estimate(few))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cores", "not a TOML file"),
        ("[cores]\ncount = 32", "write { value, unit, source, confidence }"),
        ('[cores]\ncount = { value = 32, unit = "cores" }', "cores.count lacks source, confidence"),
        ('[cores]\ncount = { value = "x", unit = "u", source = "s", confidence = "H" }', "a positive number"),
        ('[cores]\ncount = { value = 0, unit = "u", source = "s", confidence = "H" }', "a positive number"),
        ('[cores]\ncount = { value = 1, unit = "u", source = "s", confidence = "sure" }', "use one of H, M, L"),
    ],
)
def test_bad_descriptions_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message.replace("{", r"\{").replace("}", r"\}")):
        devices.parse(text)


def test_unknown_names_are_errors() -> None:
    with pytest.raises(InvalidArgument, match="known are half_spyre, spyre"):
        devices.load("spyre9")
    with pytest.raises(InvalidArgument, match=r"no constant memory\.colour"):
        devices.load()["memory.colour"]
    with pytest.raises(InvalidArgument, match=r"no constant memory\.colour"):
        devices.load().with_values(memory__colour=1.0)


def test_devices_command_lists_every_constant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    listed = capsys.readouterr().out
    assert "half_spyre: made-up card" in listed
    for name in devices.load().constants:
        assert listed.count(f"  {name} ") == 2
    assert main(["devices", "nothing"]) == 2


def test_planner_and_clock_share_the_lx_fraction() -> None:
    """The knob sets up the real card; a card that is assumed says it itself."""
    assert devices.load()["cores.lx_fraction"] == devices.load("spyre")["cores.lx_fraction"]
    with knobs.patch(dxp_lx_frac_avail=0.5):
        assert devices.load()["cores.lx_fraction"] == PlanOptions.from_knobs().lx_share == 0.5
        assert devices.load("spyre")["cores.lx_fraction"] == 0.2
        with devices.assume(devices.load("spyre").with_values(cores__lx_fraction=0.75, cores__lx=2.0**20)):
            assert devices.load()["cores.lx_fraction"] == 0.75
            assert PlanOptions.from_knobs().room == (1 << 20) // 4
