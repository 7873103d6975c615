# SPDX-License-Identifier: Apache-2.0
"""pytest tests/tools/test_provenance.py

From a kernel back to the user's line: in every kind of error, in dumps, in explain, in warnings and the report.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._inductor.utils import fresh_cache

import torch_spyre
from torch_spyre import explain, sanitizer
from torch_spyre._inductor.debug import inspect
from torch_spyre.errors import IndexOutOfRange, InvalidProgram, SpyreError, UnsupportedOp
from torch_spyre.ops import fallbacks
from torch_spyre.runtime import driver

# Each function's line is known by its number in this text.
MODEL = """\
import torch

def no_conversion(x):
    y = x + 1
    z = y.to(torch.float64)
    return z * 2

def outside(table, places):
    doubled = table * 2
    rows = doubled[places]
    return rows + 1

def on_the_host(x):
    y = x * 2
    return torch.linalg.svdvals(y) + 1

def chain(x, w):
    hidden = x @ w
    shown = torch.relu(hidden)
    return torch.softmax(shown, -1)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(64, 64)

    def forward(self, x):
        x = self.inner(x)
        return torch.tanh(x)

def roots(x):
    y = x - 5
    return torch.sqrt(y)
"""


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ModuleType]:
    """Inductor's cache would give the lines of whoever compiled the same graph first: each test has its own."""
    file = tmp_path / "user_model.py"
    file.write_text(MODEL)
    spec = importlib.util.spec_from_file_location("user_model", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch._dynamo.reset()
    with fresh_cache():
        yield module


def place(model: ModuleType, line: int, function: str) -> str:
    return f'"{model.__file__}", line {line}, in {function}'


def half(*size: int) -> torch.Tensor:
    return torch.randn(size).to(torch.float16).to("spyre")


@pytest.mark.parametrize("backend", ["spyre", "inductor"])
def test_an_op_that_has_no_device_operation(model: ModuleType, backend: str) -> None:
    with pytest.raises(torch._inductor.exc.InductorError) as failed:
        torch.compile(model.no_conversion, backend=backend)(half(4, 70))
    assert isinstance(failed.value.inner_exception, UnsupportedOp)
    text = str(failed.value)
    assert "UnsupportedOp: conversion of float16 to float64 has no device operation" in text
    assert "prims.convert_element_type.default" in text and place(model, 5, "no_conversion") in text


def test_an_index_out_of_range(model: ModuleType) -> None:
    try:
        with pytest.raises(IndexOutOfRange) as failed:
            torch.compile(model.outside, backend="spyre")(half(10, 64), torch.tensor([1, 44]).to("spyre")).cpu()
    finally:
        torch.spyre.reset()
    text = str(failed.value)
    assert "index 44 lies outside [0, 10)" in text and "(GATHER) on core" in text
    assert "compare the smallest and largest index with the size of the indexed dim" in text
    assert "aten.index.Tensor" in text and place(model, 10, "outside") in text and "spyre_kernel_0" in text


def test_an_error_in_planning_or_assembly(model: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise InvalidProgram("planted: the verifier refuses it")

    monkeypatch.setattr(driver, "build_ktir", refuse)
    with pytest.raises(InvalidProgram) as failed:
        torch.compile(model.chain, backend="spyre")(half(8, 70), half(70, 90))
    text = str(failed.value)
    assert text.startswith("planted: the verifier refuses it")
    assert "from spyre_kernel_0, which computes" in text and place(model, 18, "chain") in text


def test_a_defect_that_the_sanitizer_finds(model: ModuleType) -> None:
    """A NaN on its way: which op made it, asked for by which line."""
    x = torch.zeros(8, 70, dtype=torch.float16).to("spyre")
    sanitizer.clear()
    with sanitizer.sanitize(raise_errors=False), pytest.warns(UserWarning, match="NaN"):
        torch.compile(model.roots, backend="spyre")(x).cpu()
        torch.spyre.synchronize()
        (x + 1).cpu()  # warnings of a launch are given at a later one
    found = [r for r in sanitizer.reports() if r.kind == "NanProduced"]
    sanitizer.clear()
    assert found and found[0].kernel == "spyre_kernel_0"
    assert "aten.sqrt.default" in found[0].origin and place(model, 33, "roots") in found[0].origin
    assert place(model, 33, "roots") in str(found[0])


def test_dumps_and_explain(model: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPYRE_DUMP", str(tmp_path / "dump"))
    explain.start()
    try:
        torch.compile(model.chain, backend="spyre")(half(8, 70), half(70, 90))
    finally:
        inspect.stop()
    lines = [place(model, n, "chain") for n in (18, 20)]
    folder = tmp_path / "dump" / "spyre_kernel_0_0"
    for name in ("tilegraph.txt", "explain.txt", "kernel.ktir", "program.txt", "kernel_repro.py"):
        text = (folder / name).read_text().replace('\\"', '"').replace("\\22", '"')
        assert all(line in text for line in lines), name
    assert all(line in explain.last_kernels()[-1].text() for line in lines)


def test_lines_of_modules_are_the_users(model: ModuleType) -> None:
    """nn.Linear's own code is not where the user looks."""
    net = model.Net().half().to("spyre")
    explain.start()
    try:
        torch.compile(net, backend="spyre")(half(8, 64))
    finally:
        inspect.stop()
    text = explain.last_kernels()[-1].text()
    assert place(model, 28, "forward") in text and place(model, 29, "forward") in text
    assert "linear.py" not in text


def test_lines_of_the_backward_graph(model: ModuleType) -> None:
    net = model.Net().half().to("spyre")
    explain.start()
    try:
        torch.compile(net, backend="spyre")(half(8, 64)).sum().backward()
    finally:
        inspect.stop()
    backward = [r for r in explain.last_kernels() if "aten.mm" in r.text() or "batchmatmul" in r.text()][-1]
    assert place(model, 28, "forward") in backward.text()


@pytest.mark.parametrize("backend", ["spyre", "inductor"])
def test_host_fallbacks_inside_a_graph(model: ModuleType, backend: str) -> None:
    fallbacks.reset()
    with pytest.warns(fallbacks.FallbackWarning) as seen:
        torch.compile(model.on_the_host, backend=backend)(half(6, 5).float())
    (warned,) = (w for w in seen if issubclass(w.category, fallbacks.FallbackWarning))
    assert (warned.filename, warned.lineno) == (model.__file__, 15)
    assert f"{model.__file__}:15" in [row.line for row in torch_spyre.report()]
    fallbacks.reset()


def test_eager_errors_can_be_pinned_to_a_line(tmp_path: Path) -> None:
    """Launches are asynchronous; SPYRE_LAUNCH_BLOCKING=1 raises at the line of the launch, not at the next wait."""
    file = tmp_path / "script.py"
    file.write_text(
        "import torch\n"
        "table = torch.zeros(4, 64).to('spyre')\n"
        "places = torch.tensor([9]).to('spyre')\n"
        "rows = table[places]\n"
        "print('not here')\n"
        "rows.cpu()\n"
    )
    for blocking, line in (("1", 4), ("0", 6)):
        done = subprocess.run(
            [sys.executable, str(file)],
            capture_output=True,
            text=True,
            timeout=1500,
            env={**os.environ, "SPYRE_LAUNCH_BLOCKING": blocking},
        )
        assert done.returncode == 1 and "IndexOutOfRange" in done.stderr
        assert f'script.py", line {line}' in done.stderr, done.stderr
        assert ("not here" in done.stdout) == (blocking == "0")


def test_places_are_added_once() -> None:
    from torch_spyre.errors import first_line, located

    with pytest.raises(SpyreError) as failed, located(lambda: "outer"), located(lambda: "inner"):
        raise InvalidProgram("what happened")
    assert str(failed.value) == "what happened\n  from inner"
    assert first_line(failed.value) == "what happened"
