# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_jobplan.py

The kernel launch contract: SpyreCode directories, preparation, launches, host computation, and every refusal.
"""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bad_files import endless, fifo, nested
from test_device_launch import FP32, N, memory

from torch_spyre import _C, runtime
from torch_spyre.backend.program import assembler as a
from torch_spyre.backend.program.isa import VOPS, Access, Compute, ScalarKind, Space
from torch_spyre.errors import InvalidArgument, InvalidProgram, UnsupportedOp
from torch_spyre.runtime import cache, jobplan, spyrecode
from torch_spyre.runtime.spyrecode import PROGRAM_BASE

BASE = str(PROGRAM_BASE)
LAYOUT = ((1, N), (N, 1), "IEEE_FP32", 0)


def binary(op: str, inputs: int, scalars: int = 0) -> bytes:
    """args: inputs..., output. The scalars are further operands."""
    operands = [memory(i) for i in range(inputs)] + [a.Operand(Space.SCALAR, FP32, index=i) for i in range(scalars)]
    body = a.VopInst(VOPS[op].code, Compute.F32, (a.Extent.of(N),), memory(inputs), tuple(operands), origin=op)
    args = [a.ProgramArg(Access.READ, 128)] * inputs + [a.ProgramArg(Access.WRITE, 128)]
    kinds = [ScalarKind.FP32] * scalars
    return a.ProgramBuilder(a.Program(args, kinds, 1, 1, 0, b"", [body, a.EndInst()])).build()


def kernel(op: str = "add", inputs: int = 2, scalars: int = 0) -> cache.CachedKernel:
    bindings = (*(("input", i) for i in range(inputs)), ("output", 0))
    layout = _C.SpyreTensorLayout([N], torch.float32)
    device_size, stride_map = tuple(layout.device_size), tuple(layout.stride_map)
    output = cache.OutputSpec((N,), (1,), "float32", device_size, stride_map, "IEEE_FP32")
    tensors = ((device_size, stride_map, "IEEE_FP32", 0),) * inputs
    numbers = tuple((inputs + i, "f") for i in range(scalars))
    return cache.CachedKernel(
        op, binary(op, inputs, scalars), bindings, numbers, (output,), 0, tensors + ((),) * scalars
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cache.write(tmp_path, kernel())
    return tmp_path


@pytest.fixture
def pair() -> list[torch.Tensor]:
    return [torch.arange(float(N)).to("spyre"), torch.full((N,), 0.5).to("spyre")]


def rewrite(folder: Path, change: Any) -> Path:
    """Changes the parsed spyrecode.json of a directory."""
    plan = json.loads((folder / "spyrecode.json").read_text())
    change(plan)
    (folder / "spyrecode.json").write_text(json.dumps(plan))
    return folder


def command(name: str, **properties: Any) -> dict[str, Any]:
    return {"command": name, "properties": properties}


HOST: dict[str, Any] = {
    "ohandle": "out",
    "size": "64",
    "ishape": ["2"],
    "ihandle": "",
    "hcm": {"vdci": {}, "senConstants": ["7", "-1"]},
}


def steps(*commands: dict[str, Any], size: int = 1024) -> dict[str, Any]:
    """A plan with some memory beside the program."""
    plan = spyrecode.program_plan(len(kernel().program))
    plan["JobPreparationPlan"][0]["properties"]["size"] = str(size)
    plan["JobExecPlan"] = list(commands)
    return plan


def test_directory_holds_the_contract(folder: Path) -> None:
    """Decimal strings, Allocate then InitTransfer, pointers in segment 7."""
    size = len(kernel().program)
    assert json.loads((folder / "spyrecode.json").read_text()) == {
        "JobPreparationPlan": [
            command("Allocate", size=str(-(-size // 128) * 128)),
            command("InitTransfer", init_bin_file="program.bin", dev_ptr="120259084288", size=str(size)),
        ],
        "JobExecPlan": [command("ComputeOnDevice", job_bin_ptr="120259084288")],
    }
    assert cache.read(folder) == kernel()


def test_prepare_and_launch(folder: Path, pair: list[torch.Tensor]) -> None:
    plan = runtime.prepare_kernel(str(folder))
    assert (plan.num_steps(), plan.get_step_type(0)) == (1, "Compute")
    assert plan.job_allocation_size() % 128 == 0
    size = plan.job_allocation_size()
    assert repr(plan) == f"<JobPlan steps=1 job_allocation_size={size} expected_inputs=2 pinned_buffers=0>"
    (z,) = runtime.launch_jobplan(plan, pair)
    assert torch.equal(z.cpu(), torch.arange(float(N)) + 0.5)


def test_launch_into_given_outputs(folder: Path, pair: list[torch.Tensor]) -> None:
    plan = runtime.prepare_kernel(folder)
    out = torch.zeros(N).to("spyre")
    (returned,) = runtime.launch_jobplan(plan, [*pair, out])
    assert returned is out
    assert torch.equal(out.cpu(), torch.arange(float(N)) + 0.5)


def test_launch_scalars(tmp_path: Path, pair: list[torch.Tensor]) -> None:
    cache.write(tmp_path, kernel("mul", 1, scalars=1))
    plan = runtime.prepare_kernel(tmp_path)
    (z,) = runtime.launch_jobplan(plan, [pair[0], 3.0])
    assert torch.equal(z.cpu(), torch.arange(float(N)) * 3)


def test_names_of_the_extension(folder: Path, pair: list[torch.Tensor]) -> None:
    plan = _C.prepare_kernel(str(folder), stream=torch.spyre.Stream())  # type: ignore[attr-defined]
    assert isinstance(plan, _C.JobPlan)  # type: ignore[attr-defined]
    (z,) = _C.launch_jobplan(plan, pair)  # type: ignore[attr-defined]
    assert torch.equal(z.cpu(), torch.arange(float(N)) + 0.5)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = _C.no_such_name  # type: ignore[attr-defined]


def test_job_memory_is_the_cards(folder: Path) -> None:
    before = torch.spyre.memory_allocated()
    plan = runtime.prepare_kernel(folder)
    assert torch.spyre.memory_allocated() - before == plan.job_allocation_size()
    del plan
    assert torch.spyre.memory_allocated() == before


def test_cache_entries_are_spyrecode(fresh_caches: Path) -> None:
    x, y = torch.randn(64, 128).half().to("spyre"), torch.randn(64, 128).half().to("spyre")
    want = torch.compile(lambda a, b: (a * b + a).relu())(x, y).cpu()
    entries = [p.parent for p in fresh_caches.rglob("spyrecode.json")]
    (entry,) = [e for e in entries if not cache.read(e).name.startswith("eager_")]
    plan = runtime.prepare_kernel(entry)
    (z,) = runtime.launch_jobplan(plan, [x, y])
    assert torch.equal(z.cpu(), want)
    with pytest.raises(InvalidArgument, match="argument 1 has layout"):
        runtime.launch_jobplan(plan, [x, y.t().contiguous()])


# -- launch_kernel


def test_launch_kernel_loads_once(folder: Path, pair: list[torch.Tensor]) -> None:
    jobplan.clear()
    for _ in range(2):
        (z,) = runtime.launch_kernel(str(folder), pair)
        assert torch.equal(z.cpu(), torch.arange(float(N)) + 0.5)
    assert len(jobplan._plans) == 1
    jobplan.clear()


def test_launch_kernel_compiles_a_bundle(tmp_path: Path) -> None:
    from torch_spyre._inductor.debug import inspect

    x, y = torch.randn(64, 128).half().to("spyre"), torch.randn(64, 128).half().to("spyre")
    inspect.start()
    try:
        count = len(inspect.records())
        want = torch.compile(lambda a, b: a * b, dynamic=False)(x, y)
        record = next(r for r in inspect.records()[count:] if r.name.startswith("spyre_kernel"))
    finally:
        inspect.stop()
    from torch_spyre.sdsc import write_bundle

    write_bundle(record.plan.kernel, tmp_path / "bundle")
    out = torch.zeros_like(x)
    torch.spyre.synchronize()
    before = _C.clock_ns()
    runtime.launch_kernel(tmp_path / "bundle", [x, y, out])
    torch.spyre.synchronize()
    assert _C.clock_ns() - before >= record.program.program.duration_ns > 0, (
        "a bundle takes its time on the card's clock"
    )
    assert torch.equal(out.cpu(), want.cpu())


def test_launch_kernel_without_a_bundle(tmp_path: Path, pair: list[torch.Tensor]) -> None:
    with pytest.raises(RuntimeError, match=r"Bundle not found: .*bundle\.mlir"):
        runtime.launch_kernel(tmp_path, pair)


# -- host computation and transfers


def prepared(folder: Path, *commands: dict[str, Any]) -> Any:
    (folder / "spyrecode.json").write_text(json.dumps(steps(*commands)))
    return runtime.prepare_kernel(folder)


def test_host_compute_puts_addresses_and_constants_on_the_card(folder: Path, pair: list[torch.Tensor]) -> None:
    """HostCompute -> H2D -> Compute, then the bytes come back."""
    beside = str(PROGRAM_BASE + 512)
    job = prepared(
        folder,
        command("ComputeOnHost", **HOST),
        command("DataTransfer", dirn="false", host_handle="out", dev_ptr=beside, size="64"),
        command("ComputeOnDevice", job_bin_ptr=BASE),
    )
    assert [job.get_step_type(i) for i in range(3)] == ["HostCompute", "H2D", "Compute"]
    assert "pinned_buffers=1" in repr(job)
    (z,) = runtime.launch_jobplan(job, pair)
    assert torch.equal(z.cpu(), torch.arange(float(N)) + 0.5)
    on_card = job._bytes_at(PROGRAM_BASE + 512, 64).cpu().numpy().tobytes()
    addresses = [x.untyped_storage().data_ptr() & ((1 << 40) - 1) for x in pair]
    assert struct.unpack("<8q", on_card) == (*addresses, 7, -1, 0, 0, 0, 0)


def test_pinned_buffer_as_input(folder: Path, pair: list[torch.Tensor]) -> None:
    """D2H -> HostCompute on the buffer -> H2D: the program's first bytes arrive beside it."""
    beside = str(PROGRAM_BASE + 512)
    copied: dict[str, Any] = {**HOST, "ihandle": "in", "ishape": ["16"], "size": "16", "hcm": {}}
    job = prepared(
        folder,
        command("DataTransfer", dirn="true", host_handle="in", dev_ptr=BASE, size="16"),
        command("ComputeOnHost", **copied),
        command("DataTransfer", dirn="false", host_handle="out", dev_ptr=beside, size="16"),
    )
    runtime.launch_jobplan(job, pair)
    assert job.get_step_type(0) == "D2H"
    assert job._bytes_at(PROGRAM_BASE + 512, 16).cpu().numpy().tobytes() == kernel().program[:16]


def test_a_corrected_program_is_what_runs(folder: Path, pair: list[torch.Tensor]) -> None:
    """The add on disk is overwritten on the card by a mul: the result is the product."""
    (folder / "mul.bin").write_bytes(binary("mul", 2))
    size = len(kernel().program)
    assert size == len(binary("mul", 2))
    plan = steps(
        command("DataTransfer", dirn="true", host_handle="fix", dev_ptr=str(PROGRAM_BASE + 512), size=str(size)),
        command("DataTransfer", dirn="false", host_handle="fix", dev_ptr=BASE, size=str(size)),
        command("ComputeOnDevice", job_bin_ptr=BASE),
    )
    load = {"init_bin_file": "mul.bin", "dev_ptr": str(PROGRAM_BASE + 512), "size": str(size)}
    plan["JobPreparationPlan"].append(command("InitTransfer", **load))
    (folder / "spyrecode.json").write_text(json.dumps(plan))
    (z,) = runtime.launch_jobplan(runtime.prepare_kernel(folder), pair)
    assert torch.equal(z.cpu(), torch.arange(float(N)) * 0.5)


def test_host_compute_limits(folder: Path, pair: list[torch.Tensor]) -> None:
    def job(**changes: Any) -> Any:
        beside = str(PROGRAM_BASE + 512)
        return prepared(
            folder,
            command("ComputeOnHost", **{**HOST, **changes}),
            command("DataTransfer", dirn="false", host_handle="out", dev_ptr=beside, size="16"),
            command("ComputeOnDevice", job_bin_ptr=BASE),
        )

    with pytest.raises(InvalidArgument, match="makes 32 bytes; 'out' has 16"):
        runtime.launch_jobplan(job(size="16"), pair)
    with pytest.raises(InvalidArgument, match=r"ishape \[3\], but there are 2 tensors"):
        runtime.launch_jobplan(job(ishape=["3"]), pair)
    with pytest.raises(UnsupportedOp, match="data conversion"):
        runtime.launch_jobplan(job(hcm={"vdci": {"a": 1}}), pair)
    runtime.launch_jobplan(job(ishape=["0"], size="16"), pair)


# -- refusals


def test_missing_directory_and_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="SpyreCode directory does not exist"):
        runtime.prepare_kernel(tmp_path / "nowhere")
    with pytest.raises(RuntimeError, match=r"spyrecode\.json not found"):
        runtime.prepare_kernel(tmp_path)


@pytest.mark.parametrize("missing", ["ohandle", "size", "ishape", "ihandle", "hcm"])
def test_host_compute_misses_a_property(missing: str) -> None:
    host = {k: v for k, v in HOST.items() if k != missing}
    text = f"Failed to parse SpyreCode command: ComputeOnHost command missing '{missing}' property"
    with pytest.raises(RuntimeError, match=text):
        spyrecode.parse(steps(command("ComputeOnHost", **host)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ishape": "2"}, "ComputeOnHost 'ishape' must be an array"),
        ({"ishape": [2]}, "ComputeOnHost 'ishape' elements must be strings"),
        ({"ishape": ["x"]}, "decimal strings"),
        ({"ihandle": "nobody"}, "ihandle 'nobody' not found in pinned buffer map"),
        ({"hcm": "text"}, "'hcm' must be an object"),
        ({"size": 64}, "'size' must be a decimal string"),
    ],
)
def test_host_compute_is_wrong(change: dict[str, Any], text: str) -> None:
    with pytest.raises(RuntimeError, match=f"Failed to parse SpyreCode command: .*{text}"):
        spyrecode.parse(steps(command("ComputeOnHost", **{**HOST, **change})))


H2D = {"dirn": "false", "host_handle": "out", "dev_ptr": BASE, "size": "16"}


@pytest.mark.parametrize(
    ("commands", "text"),
    [
        ([command("DataTransfer", **H2D)], "host_handle 'out' not found in pinned buffer map"),
        ([command("DataTransfer", **{**H2D, "dirn": "up"})], "'dirn' must be"),
        ([command("DataTransfer", **{**H2D, "dirn": "true", "dev_ptr": "128"})], "outside segment 7"),
        ([command("ComputeOnDevice", job_bin_ptr="0")], "outside segment 7"),
        ([command("ComputeOnDevice")], "ComputeOnDevice command missing 'job_bin_ptr' property"),
        ([command("Dance")], "unknown command 'Dance'"),
        (["ComputeOnDevice"], "a command is"),
        ([command("ComputeOnHost", **HOST)], "after HostCompute come H2D"),
        ([command("ComputeOnHost", **HOST), command("DataTransfer", **H2D)], "after HostCompute come H2D"),
        ([command("ComputeOnHost", **HOST), command("DataTransfer", **{**H2D, "size": "65"})], "65 bytes from 'out'"),
    ],
)
def test_steps_are_wrong(commands: list[Any], text: str) -> None:
    with pytest.raises(InvalidProgram, match=f"Failed to parse SpyreCode command: .*{text}"):
        spyrecode.parse(steps(*commands))


def _without_transfer(plan: Any) -> None:
    del plan["JobPreparationPlan"][1:]


def _allocate_late(plan: Any) -> None:
    plan["JobPreparationPlan"].reverse()


def _two_allocations(plan: Any) -> None:
    plan["JobPreparationPlan"].append(copy.deepcopy(plan["JobPreparationPlan"][0]))


def _too_small(plan: Any) -> None:
    plan["JobPreparationPlan"][0]["properties"]["size"] = "128"


def _foreign_file(plan: Any) -> None:
    plan["JobPreparationPlan"][1]["properties"]["init_bin_file"] = "../program.bin"


def _no_exec(plan: Any) -> None:
    del plan["JobExecPlan"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_without_transfer, "has 1 commands"),
        (_allocate_late, "first command must be Allocate"),
        (_two_allocations, "only InitTransfer may follow"),
        (_too_small, "leave the job's 128 bytes"),
        (_foreign_file, "must be a file of the SpyreCode directory"),
        (_no_exec, "no list 'JobExecPlan'"),
    ],
)
def test_preparation_is_wrong(folder: Path, change: Any, text: str) -> None:
    with pytest.raises(InvalidProgram, match=text):
        runtime.prepare_kernel(rewrite(folder, change))


def test_damaged_files(folder: Path, pair: list[torch.Tensor]) -> None:
    (folder / "spyrecode.json").write_text("{")
    with pytest.raises(InvalidProgram, match="is not JSON"):
        runtime.prepare_kernel(folder)
    cache.write(folder, kernel())
    program = (folder / "program.bin").read_bytes()
    (folder / "program.bin").write_bytes(program[:-1] + b"?")
    with pytest.raises(InvalidProgram, match="is damaged: its checksum"):
        runtime.prepare_kernel(folder)
    (folder / "program.bin").unlink()
    (folder / "kernel.json").unlink()
    with pytest.raises(InvalidProgram, match=r"cannot read .*program\.bin"):
        runtime.prepare_kernel(folder)


@pytest.mark.parametrize("name", ["kernel.json", "program.bin", "spyrecode.json"])
@pytest.mark.parametrize("spoil", [fifo, nested, endless])
def test_files_that_kill_or_hang_a_reader(folder: Path, name: str, spoil: Callable[[Path], None]) -> None:
    spoil(folder / name)
    with pytest.raises(InvalidProgram):
        runtime.prepare_kernel(folder)
    if name == "program.bin" and spoil is not nested:  # without kernel.json any bytes can be transferred
        (folder / "kernel.json").unlink()
        with pytest.raises(InvalidProgram):
            runtime.prepare_kernel(folder)


def test_numbers_out_of_reason(folder: Path, pair: list[torch.Tensor]) -> None:
    digits = "9" * 100_000
    with pytest.raises(InvalidProgram, match="decimal string of up to 19 digits"):
        runtime.prepare_kernel(rewrite(folder, lambda p: p["JobPreparationPlan"][0]["properties"].update(size=digits)))
    for change, text in (
        ({"size": str(1 << 60)}, "exceeds a segment"),
        ({"ishape": [digits]}, "decimal strings"),
    ):
        with pytest.raises(InvalidProgram, match=text):
            spyrecode.parse(steps(command("ComputeOnHost", **(HOST | change))))
    for constants in ([str(1 << 70)], ["x"], [None], 3):
        with pytest.raises(InvalidProgram, match="senConstants"):
            jobplan._constants({"senConstants": constants})


def test_a_kernel_that_names_what_does_not_exist(folder: Path) -> None:
    """Its checksum matches: somebody wrote it so."""
    found = kernel()
    output = replace(found.outputs[0], dtype="no_such_dtype")
    cache.write(folder, replace(found, outputs=(output,)))
    with pytest.raises(InvalidProgram, match="damaged"):
        runtime.prepare_kernel(folder)


def test_foreign_job_of_1024_bytes(tmp_path: Path, pair: list[torch.Tensor]) -> None:
    """A directory by somebody else prepares; that it holds no program of this card shows when it is launched."""
    (tmp_path / "init.bin").write_bytes(bytes(1024))
    plan = steps(command("ComputeOnDevice", job_bin_ptr=BASE))
    plan["JobPreparationPlan"][1]["properties"].update(init_bin_file="init.bin", size="1024")
    (tmp_path / "spyrecode.json").write_text(json.dumps(plan))
    job = runtime.prepare_kernel(tmp_path)
    assert job.job_allocation_size() == 1024
    with pytest.raises(InvalidProgram):
        runtime.launch_jobplan(job, pair)


def test_launch_refuses_arguments(folder: Path, pair: list[torch.Tensor]) -> None:
    plan = runtime.prepare_kernel(folder)
    with pytest.raises(RuntimeError, match="SpyreStream::launch: argument 1 must be on Spyre device"):
        runtime.launch_jobplan(plan, [pair[0], pair[1].cpu()])
    with pytest.raises(InvalidArgument, match="1 arguments; it takes 2 inputs, or 2 inputs and 1 outputs"):
        runtime.launch_jobplan(plan, pair[:1])
    with pytest.raises(InvalidArgument, match="output 2 must have size"):
        runtime.launch_jobplan(plan, [*pair, torch.zeros(2 * N).to("spyre")])
    with pytest.raises(InvalidArgument, match="argument 0 has layout"):
        runtime.launch_jobplan(plan, [torch.zeros(2 * N).to("spyre")[N:], pair[1]])


@pytest.mark.parametrize("index", [-1, 1])
def test_step_index(folder: Path, index: int) -> None:
    with pytest.raises(RuntimeError, match="Step index out of range"):
        runtime.prepare_kernel(folder).get_step_type(index)
