# SPDX-License-Identifier: Apache-2.0
# pytest tests/tools/test_inspect.py
"""Looking inside: every form of every kernel is written out, and reads back as what it says it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_spyre import _C, explain, ktir
from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.planning.plan_graph import InputSpec, Layout
from torch_spyre._inductor.planning.planner import plan
from torch_spyre._inductor.tilegraph.graph import Graph
from torch_spyre.backend.compile import compile_module
from torch_spyre.errors import NotExpressible
from torch_spyre.ir.ktir.emit.kernel_function import emit
from torch_spyre.ir.plan.tileops import Operand, Space
from torch_spyre.logging_config import ARTIFACTS
from torch_spyre.sdsc import read_bundle

FP16 = torch.float16
FILES = {
    "kernel_repro.py",
    "tilegraph.json",
    "tilegraph.txt",
    "explain.txt",
    "kernel.ktir",
    "program.bin",
    "program.txt",
}


def half(*size: int) -> torch.Tensor:
    return torch.randn(size).to(FP16)


def mlp(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.relu(x @ w + b), -1)


def compiled(fn, *args: torch.Tensor) -> torch.Tensor:
    torch._dynamo.reset()
    return torch.compile(fn, dynamic=False)(*(a.to("spyre") for a in args)).cpu()


@pytest.fixture
def dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPYRE_DUMP", str(tmp_path / "dump"))
    return tmp_path / "dump"


def kernels(dump: Path, name: str = "spyre_kernel") -> list[Path]:
    return sorted(p for p in dump.iterdir() if p.name.startswith(name))


def forms(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def test_a_dump_holds_every_form(dump: Path) -> None:
    compiled(mlp, half(33, 100), half(100, 70), half(70))
    (folder,) = kernels(dump)
    assert forms(folder) == {*FILES, "sdsc"}
    assert all((folder / name).stat().st_size for name in FILES)

    graph = Graph.from_json((folder / "tilegraph.json").read_text())
    assert [b.dtype for b in graph.buffers.values() if b.kind == "input"] == ["float16"] * 3
    stored = {*vars(graph.nodes[0]), *(field for b in graph.buffers.values() for field in vars(b))}
    assert not stored & {"layout", "placement", "tiles", "accesses"}, "the stored graph holds no plan"
    assert (folder / "tilegraph.txt").read_text().count("split ") == len(list((folder / "sdsc").glob("*.json")))

    text = (folder / "program.txt").read_text()
    assert _C.Program.load((folder / "program.bin").read_bytes()).disassemble() == text
    assert "MATMUL" in text.upper()


def test_dumped_ktir_reads_back_verifies_and_is_the_program(dump: Path) -> None:
    compiled(mlp, half(33, 100), half(100, 70), half(70))
    (folder,) = kernels(dump)
    text = (folder / "kernel.ktir").read_text()
    module = ktir.parse(text)
    ktir.verify(module)
    assert ktir.print_module(module) == text
    instructions = _C.Program.load(compile_module(module).binary).disassemble()
    dumped = (folder / "program.txt").read_text()
    assert _code(instructions) == _code(dumped)


def _code(disassembly: str) -> list[str]:
    """Instructions alone: the header may hold a duration that only the compiler of a graph estimates."""
    lines = disassembly.splitlines()
    return [line for line in lines if line[:1].isspace() or line[:1].isdigit()]


def test_dumped_superdsc_reads_back(dump: Path) -> None:
    compiled(mlp, half(64, 128), half(128, 192), half(192))
    (folder,) = kernels(dump)
    assert (folder / "sdsc" / "bundle.mlir").is_file()
    for file in (folder / "sdsc").glob("*.json"):
        json.loads(file.read_text())
    kernel = read_bundle(folder / "sdsc", cores=32)
    assert "batchmatmul" in [op.op for op in kernel.ops]


def test_a_kernel_that_superdsc_cannot_say_gives_the_reason(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_spyre.ir.superdsc import writer

    def refuse(kernel, folder) -> None:
        raise NotExpressible("test: no such form")

    monkeypatch.setattr(writer, "write_bundle", refuse)
    compiled(lambda x: x * 3, half(5, 70))
    (folder,) = kernels(dump)
    assert forms(folder) == {*FILES, "sdsc_not_expressible.txt"}
    assert (folder / "sdsc_not_expressible.txt").read_text() == "test: no such form\n"


def test_a_slice_inside_a_stick_is_dumped_too(dump: Path) -> None:
    """Outside SuperDSC's vocabulary or not: one of the two forms is there, never half of one."""
    compiled(lambda x: x[:, 3:50] * 2, half(26, 200))
    (folder,) = kernels(dump)
    assert forms(folder) - FILES in ({"sdsc"}, {"sdsc_not_expressible.txt"})
    ktir.verify(ktir.parse((folder / "kernel.ktir").read_text()))


def test_an_op_of_positions_alone_is_dumped_with_its_reason(dump: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Pooling with padding compares positions with numbers, and SuperDSC has operands in tensors only."""
    compiled(lambda x: torch.nn.functional.avg_pool1d(x, 4, 3, ceil_mode=True), half(2, 6, 18).float())
    (folder,) = kernels(dump)
    assert forms(folder) - FILES == {"sdsc_not_expressible.txt"} and "could not be written" not in caplog.text


def test_a_fault_in_a_printer_does_not_stop_the_program(
    dump: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from torch_spyre.ir.superdsc import writer

    monkeypatch.setattr(writer, "write_bundle", lambda kernel, folder: 1 // 0)
    monkeypatch.setattr(inspect.log, "propagate", True)
    compiled(lambda x: x * 3, half(5, 71))
    assert "the SuperDSC bundle" in caplog.text and "ZeroDivisionError" in caplog.text


def test_eager_operations_are_dumped(dump: Path) -> None:
    _C.clear_eager_cache()
    x = half(21, 70).to("spyre")
    torch.exp(x) + x
    assert kernels(dump, "eager_exp") and kernels(dump, "eager_add")


def test_kernels_of_one_name_get_numbers(dump: Path) -> None:
    for n in (5, 6):
        compiled(lambda x: x * 2, half(n, 70))
    assert [p.name for p in kernels(dump)] == ["spyre_kernel_0_0", "spyre_kernel_0_1"]


def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPYRE_DUMP", raising=False)
    compiled(lambda x: x * 2, half(7, 70))
    assert not list(tmp_path.iterdir())


# Records and the readable block


def test_records_name_ops_layouts_split_places_and_bytes() -> None:
    explain.start()
    try:
        compiled(mlp, half(64, 128), half(128, 192), half(192))
    finally:
        inspect.stop()
    record = explain.last_kernels()[-1]
    text = record.text()
    for needed in (
        "batchmatmul over",
        "split m 64 in",
        "cores 0..",
        "LX+0x",
        "card memory, input",
        "card memory, output",
    ):
        assert needed in text, needed
    assert "as [2, 64, 64] SEN169_FP16" in text  # the layout of x
    assert "test_inspect.py" in text  # the user's line
    read, written, lx = explain.traffic(record.plan.kernel.ops)
    results = [op.output.tensor for op in record.plan.kernel.ops if isinstance(op.output, Operand)]
    stored = [t for t in results if t.space is Space.MEMORY]
    assert len(stored) <= 2 and written == len(stored) * 64 * 192 * 2  # the result, and where splits change
    assert read >= (64 * 128 + 128 * 192 + 192) * 2
    assert f"moves {read:,} bytes from card memory, {written:,} to it, {lx:,} through the scratchpads" in text
    held = [
        op for op in record.plan.kernel.ops if isinstance(op.output, Operand) and op.output.tensor.space is Space.LX
    ]
    assert held and text.count("result stays in the scratchpads") == len(held)


def test_a_record_replans_to_the_same_kernel() -> None:
    explain.start()
    try:
        compiled(mlp, half(33, 100), half(100, 70), half(70))
    finally:
        inspect.stop()
    record = explain.last_kernels()[-1]
    buffers = record.plan.graph.buffers
    graph = Graph.from_json(record.graph_json)
    specs = [InputSpec(Layout(*_plain(buffers[n].layout)), buffers[n].offset) for n in graph.inputs]
    again = plan(graph, specs)
    assert again.kernel == record.plan.kernel
    assert ktir.print_module(emit(again.kernel)) == record.ktir()


def _plain(layout: Layout | None) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    assert layout is not None
    return layout.device_size, layout.stride_map, layout.format


# As a user runs it

SCRIPT = """
import sys
import torch

def fn(x, w):
    return torch.relu(x @ w)

x, w = (torch.randn(s).to(torch.float16).to("spyre") for s in ((33, 100), (100, 70)))
print("argv", sys.argv[1:])
torch.compile(fn, dynamic=False)(x, w)
(x + 1).cpu()
"""


def run(args: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        timeout=1500,
        cwd=folder,
        env={**os.environ, **environment},
    )


def test_explain_runs_a_script(tmp_path: Path) -> None:
    """The second time caches are warm and the script fails at its end: the same kernels are shown."""
    for ending, code in (("", 0), ("raise SystemExit(3)\n", 3)):
        (tmp_path / "script.py").write_text(SCRIPT + ending)
        done = run(["-m", "torch_spyre.explain", "--details", "--eager", "script.py", "--some", "argument"], tmp_path)
        assert done.returncode == code, done.stderr
        assert "argv ['--some', 'argument']" in done.stdout
        blocks = [line for line in done.stdout.splitlines() if line.startswith("kernel ")]
        named = [b.split()[1] for b in blocks if "_copy_from" not in b]  # Inductor copies a scalar or two itself
        assert named == ["spyre_kernel_0:", "eager_add_Tensor:"]
        assert "script.py" in done.stdout and "batchmatmul over" in done.stdout


def test_explain_finds_modules_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "beside.py").write_text("NUMBER = 41\n")
    (tmp_path / "scripts" / "script.py").write_text("import beside\nprint(beside.NUMBER + 1)\n")
    done = run(["-m", "torch_spyre.explain", str(Path("scripts") / "script.py")], tmp_path)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


def test_the_standard_debug_variable_dumps_too(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run(["script.py"], tmp_path, TORCH_COMPILE_DEBUG="1", TORCH_COMPILE_DEBUG_DIR=str(tmp_path / "debug"))
    assert done.returncode == 0, done.stderr
    found = {p.parent.name for p in tmp_path.glob("debug/**/spyre/*/kernel.ktir")}
    assert {"spyre_kernel_0_0", "eager_add_Tensor_0"} <= found


def test_torch_logs_prints_the_forms_by_name(tmp_path: Path) -> None:
    """Also with warm caches: who asks to see a kernel sees it."""
    (tmp_path / "script.py").write_text(SCRIPT)
    caches = {"SPYRE_CACHE_DIR": str(tmp_path / "programs"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    marks = {"spyre_plan": "split m 33 in", "spyre_ktir": "func.func @spyre_kernel_0", "spyre_program": "MATMUL"}
    marks["spyre_tilegraph"] = "graph spyre_kernel_0("
    for asked in ("spyre_plan,spyre_ktir", "spyre_program, spyre_tilegraph"):
        done = run(["script.py"], tmp_path, TORCH_LOGS=asked, **caches)
        assert done.returncode == 0, done.stderr
        for artefact, mark in marks.items():
            assert (mark in done.stderr) == (artefact in asked), artefact
            assert (f"[__{artefact}]" in done.stderr) == (artefact in asked), artefact


def test_torch_logs_lists_the_artefacts_in_its_help() -> None:
    from torch._logging._internal import help_message

    for artefact in ARTIFACTS:
        assert artefact in help_message()
