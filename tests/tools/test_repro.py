# SPDX-License-Identifier: Apache-2.0
"""pytest tests/tools/test_repro.py

Reproducers: the file of a kernel, run alone in a fresh process, does what the kernel did, and finds what is wrong.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torch_spyre import _C, explain, repro
from torch_spyre._inductor import compile as stages
from torch_spyre._inductor import kernel
from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.tilegraph.evaluate import evaluate
from torch_spyre._inductor.tilegraph.graph import Graph
from torch_spyre.errors import IndexOutOfRange, InvalidProgram

FP16 = torch.float16


def half(*size: int) -> torch.Tensor:
    return torch.randn(size).to(FP16)


def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.relu(x @ w + b), -1)


def lookup(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return table[places] * 2


def compiled(fn: Callable[..., Any], *args: torch.Tensor) -> Any:
    torch._dynamo.reset()
    return torch.compile(fn, backend="spyre", dynamic=False)(*(a.to("spyre") for a in args))


@pytest.fixture
def dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPYRE_DUMP", str(tmp_path / "dump"))
    return tmp_path / "dump"


def script(dump: Path) -> Path:
    (found,) = dump.glob("spyre_kernel_*/kernel_repro.py")
    return found


def run(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As a user runs it: from elsewhere, without the variables of the first run."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPYRE_DUMP")}
    command = [sys.executable, str(file), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1500, cwd=file.parents[2], env=environment)


def replay(file: Path, *arguments: str) -> int:
    """The same in this process, which costs no import of torch; what it prints goes to capsys."""
    held = runpy.run_path(str(file), run_name="not main")
    return repro.main(str(file), *(held[k] for k in ("GRAPH", "INPUTS", "KNOBS", "KTIR")), [*arguments, "--repeat=0"])


def test_the_file_alone_rebuilds_runs_and_agrees(dump: Path) -> None:
    compiled(block, half(35, 102), half(102, 71), half(71))  # sizes of its own: the cache would name others' lines
    file = script(dump)
    for other in file.parent.iterdir():
        if other != file and other.is_file():
            other.unlink()
    done = run(file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "random, seed 0" in done.stdout and "card and reference agree" in done.stdout
    assert re.search(r"time of one launch: [\d.,]+ us on the device clock, [\d.,]+ us here", done.stdout)
    assert "plan differs" not in done.stdout
    assert "test_repro.py" in file.read_text(), "the user's lines are in the file"


def test_a_wrong_kernel_is_found(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """KTIR with another operation in it has the same arguments and other results."""
    compiled(lambda x, y: x * 2 + y, half(9, 70), half(9, 70))
    file = script(dump)
    text = (file.parent / "kernel.ktir").read_text()
    assert "arith.addf" in text
    wrong = tmp_path / "wrong.ktir"
    wrong.write_text(text.replace("arith.addf", "arith.subf"))
    assert replay(file, "--ktir", str(wrong)) == 1
    text = capsys.readouterr().out
    assert "MISMATCH" in text and "elements differ by more than" in text
    assert replay(file, "--dumped") == 0 and "card and reference agree" in capsys.readouterr().out


def test_saved_inputs_are_those_of_the_last_launch(
    dump: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPYRE_DUMP_INPUTS", "1")
    x, y = half(9, 70), half(9, 70)
    torch._dynamo.reset()
    fn = torch.compile(lambda v: v * 3, backend="spyre", dynamic=False)
    for value in (x, y):
        fn(value.to("spyre"))
    file = script(dump)
    (saved,) = torch.load(file.parent / repro.VALUES)
    assert torch.equal(saved, y.to("spyre").cpu())
    assert replay(file) == 0 and str(file.parent / repro.VALUES) in capsys.readouterr().out


def test_an_error_of_the_card_names_its_reproducer(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reproducer with the saved values fails in the same way; with random ones, which fit, it does not."""
    monkeypatch.setenv("SPYRE_DUMP_INPUTS", "1")
    try:
        with pytest.raises(IndexOutOfRange) as failed:
            compiled(lookup, half(10, 64), torch.tensor([1, 50, 2], dtype=torch.int32)).cpu()
    finally:
        torch.spyre.reset()
    file = script(dump)
    assert f"reproducer: python {file}" in str(failed.value)
    try:
        with pytest.raises(IndexOutOfRange, match=r"index 50 lies outside \[0, 10\)"):
            replay(file)
    finally:
        torch.spyre.reset()
    assert replay(file, "--random") == 0


def test_without_a_dump_the_error_says_how_to_get_one() -> None:
    try:
        with pytest.raises(IndexOutOfRange, match=r"run again with SPYRE_DUMP=<directory>"):
            compiled(lambda t, i: t[i] - 3, half(10, 64), torch.tensor([1, 60, 2], dtype=torch.int32)).cpu()
    finally:
        torch.spyre.reset()


def broken(*_: Any, **__: Any) -> Any:
    raise InvalidProgram("planted: the plan is wrong")


def test_a_kernel_that_does_not_compile_has_one_too(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, pytest.raises(InvalidProgram, match="planted") as failed:
        patched.setattr(stages, "plan", broken)
        compiled(block, half(37, 103), half(103, 73), half(73))
    file = script(dump)
    assert f"reproducer: python {file}" in str(failed.value)
    assert "test_repro.py" in str(failed.value)  # the line that it computes
    assert "planted" in (file.parent / "error.txt").read_text()
    assert replay(file) == 0  # without the planted fault


def test_unexpected_errors_carry_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: Any) -> Any:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(stages, "plan", crash)
    with pytest.raises(ZeroDivisionError) as failed:
        compiled(lambda x: x * 5, half(4, 64))
    assert "SPYRE_DUMP" in "".join(failed.value.__notes__)


# The reference


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    scores = torch.softmax(q @ k.transpose(-1, -2) / 8, -1)
    mixed = scores @ v
    return torch.nn.functional.layer_norm(mixed, (64,)), torch.topk(mixed, 5)[1], mixed.cumsum(1), mixed.argmax(-1)


def update(table: torch.Tensor, places: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    table.index_add_(0, places, rows)
    table[places] = table[places].sin()
    return table.std(0)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "attention": (attention, lambda: [half(2, 33, 64) for _ in range(3)]),
    "mutation": (update, lambda: [half(12, 70), torch.tensor([3, 1, 7]), half(3, 70)]),
    "integers": (lambda x, y: (x // 3) * y + (x % 5).cumsum(-1), lambda: [torch.randint(-99, 99, (7, 33))] * 2),
    "broadcast": (lambda x: (x[:, None] - x[None]).abs().amin(-1), lambda: [half(20, 30).float()]),
    "views": (lambda x: torch.cat([x[:, 3:50].t(), x.flip(0)[:, :47].t()], 1) * 2, lambda: [half(26, 200)]),
    "random": (lambda x: torch.nn.functional.dropout(x, 0.25) + torch.rand_like(x), lambda: [half(9, 70)]),
    "truth": (lambda x, y: torch.where((x > y) & (x < 1), x, y).any(0), lambda: [half(9, 130), half(9, 130)]),
}


@pytest.mark.parametrize("name", CASES)
def test_card_and_reference_agree(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel as it ran, with its real inputs, and rebuilt from what a reproducer holds."""
    fn, make = CASES[name]
    kernels = recorded(fn, make(), monkeypatch)
    assert kernels
    for graph_json, described, _ in kernels:
        assert repro.main("kernel_repro.py", graph_json, described, {}, None, ["--repeat", "0"]) == 0
    assert "MISMATCH" not in capsys.readouterr().out


def recorded(fn: Any, args: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, list[Any]]]:
    """(graph, layouts, values) of each kernel that a compiled call plans."""
    seen: list[tuple[str, Any, list[Any]]] = []
    original = kernel.launch_plan

    def planning(graph_json: str, inputs: Any) -> Any:
        values = [x.cpu() if isinstance(x, torch.Tensor) else x for x in inputs]
        seen.append((graph_json, [kernel.describe_input(x) for x in inputs], values))
        return original(graph_json, inputs)

    monkeypatch.setattr(kernel, "launch_plan", planning)
    compiled(fn, *args)
    return [entry for entry in seen if "spyre_kernel" in entry[0]]


def test_the_reference_follows_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against PyTorch in float64, with no card in between: the graph means what the user wrote."""
    x, w, b = half(33, 100), half(100, 70), half(70)
    ((graph_json, _, values),) = recorded(block, [x, w, b], monkeypatch)
    (got,) = evaluate(Graph.from_json(graph_json), [v.double().numpy() for v in values], rounded=False).values()
    want = block(*(v.to("spyre").cpu().double() for v in (x, w, b)))
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-12)


def test_inputs_keep_layout_offset_and_strides() -> None:
    x = half(5, 10, 200).to("spyre")
    for view in (x, x[1:3, 2:5, 3:50], x.transpose(0, 2), x[:, :1].expand(5, 7, 200)):
        described = kernel.describe_input(view)
        buffer = repro_buffer(view)
        again = repro.on_card(buffer, described, view.cpu())
        assert kernel.describe_input(again) == described
        assert (again.shape, again.stride()) == (view.shape, view.stride())
        assert torch.equal(again.cpu(), view.cpu())


def repro_buffer(view: torch.Tensor) -> Any:
    from torch_spyre._inductor.tilegraph.graph import Buffer

    return Buffer("x", "float16", tuple(view.shape), tuple(view.stride()), "input")


def test_eager_operations_have_reproducers(dump: Path) -> None:
    _C.clear_eager_cache()
    x = half(21, 70).to("spyre")
    torch.exp(x[2:])
    (file,) = dump.glob("eager_exp_0/kernel_repro.py")
    assert replay(file) == 0


def test_records_are_kept_beside_a_dump(dump: Path) -> None:
    explain.start()
    try:
        compiled(lambda x: x * 7, half(5, 70))
    finally:
        inspect.stop()
    assert explain.last_kernels()[-1].ktir() == (script(dump).parent / "kernel.ktir").read_text()
