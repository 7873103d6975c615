# SPDX-License-Identifier: Apache-2.0
"""pytest tests/tools/test_report.py

`torch_spyre.report()`: graph breaks, host fallbacks and recompiles with their lines, for people and for programs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torch_spyre
from torch_spyre._inductor import planned_sizes
from torch_spyre.ops import fallbacks

HERE = Path(__file__)


def line_of(text: str) -> int:
    """Number of the line of this file that ends in a comment with this text."""
    return next(i for i, line in enumerate(HERE.read_text().splitlines(), 1) if line.endswith(f"# {text}"))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.clear_compilation_metrics()
    torch._dynamo.utils.graph_break_reasons.clear()
    fallbacks.reset()
    planned_sizes.exact_plans.clear()
    yield
    fallbacks.reset()


def half(*size: int) -> torch.Tensor:
    return torch.randn(size).to(torch.float16).to("spyre")


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch._dynamo.graph_break()  # the break
    return y + 1


def hosted(x: torch.Tensor) -> torch.Tensor:
    return x.lgamma() + 1  # the fallback


def test_nothing_to_report() -> None:
    torch.compile(lambda x: x * 2, backend="spyre")(half(4, 64))
    report = torch_spyre.report()
    assert str(report) == "no op fell back to cpu"
    assert report.to_dict() == {"fallbacks": [], "graph_breaks": [], "recompiles": [], "planned_per_size": []}


def test_everything_has_its_line() -> None:
    compiled = torch.compile(broken, backend="spyre", dynamic=False)
    for rows in (4, 5):
        compiled(half(rows, 64))
    for _ in range(3):
        hosted(half(4, 64))
    report = torch_spyre.report()

    (fallback,) = report.fallbacks
    assert (fallback.op, fallback.calls) == ("aten.lgamma.default", 3)
    assert fallback.line == f"{HERE}:{line_of('the fallback')}"
    assert fallback.moved_bytes == 3 * 2 * (4 * 64 * 2)

    (graph_break,) = report.graph_breaks
    assert graph_break.line == f"{HERE}:{line_of('the break')}" and graph_break.count == 2
    assert graph_break.function == "broken" and "\n" not in graph_break.reason
    assert "graph_break" in graph_break.explanation

    assert {r.function for r in report.recompiles} >= {"broken"}
    assert all("size mismatch at index 0. expected 4, actual 5" in r.reason for r in report.recompiles)


def test_it_prints_and_it_is_data() -> None:
    torch.compile(broken, backend="spyre")(half(4, 64))
    hosted(half(4, 64))
    report = torch_spyre.report()
    text = str(report)
    for needed in ("host fallbacks", "aten.lgamma.default", "graph breaks", f"{HERE}:{line_of('the break')}", "why"):
        assert needed in text
    data = json.loads(report.to_json())
    assert data == report.to_dict()
    assert data["fallbacks"][0]["op"] == "aten.lgamma.default" and data["graph_breaks"][0]["function"] == "broken"
    assert [row.op for row in report] == ["aten.lgamma.default"]  # it is the tuple of its fallbacks too


FIRST_OP_UNDER_DYNAMO = """
import torch
from torch._dynamo.utils import get_compilation_metrics

def left_to_python(x):
    with open("/dev/null") as file:
        file.read()
        return torch.sin(x) * 3

x = torch.ones(5, 7, dtype=torch.float16).to("spyre")
torch.compile(lambda x: left_to_python(x).relu(), backend="spyre")(x)
print(*{m.co_filename for m in get_compilation_metrics()})
"""


def test_dynamo_does_not_trace_the_compiler_itself(tmp_path: Path) -> None:
    """The first op of a process runs in a frame that Dynamo gave up, while it still watches all frames below."""
    file = tmp_path / "program.py"
    file.write_text(FIRST_OP_UNDER_DYNAMO)
    env = {**os.environ, "SPYRE_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(file)]
