# SPDX-License-Identifier: Apache-2.0
# pytest tests/tools/test_explain.py
"""`spyre explain`: one table by user line, details, JSON and an HTML page, all from the programs that ran."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from processes import run_python

from torch_spyre import explain
from torch_spyre._inductor.planning.plan_graph import Layout
from torch_spyre.charts import ticks_of
from torch_spyre.explain import cli, lines, plan_pictures
from torch_spyre.explain.page import page
from torch_spyre.ir.plan.tileops import Dim

SCRIPT = """import sys, torch
x = torch.randn(256, 512).half().to("spyre")
w = (torch.randn(512, 1024) / 32).half().to("spyre")


@torch.compile
def layer(x, w):
    h = x @ w
    return torch.softmax(h, dim=-1)


print("argv", sys.argv[1:])
layer(x, w)
(x + 1).cpu()
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[lines.Explained]:
    """The script's kernels, compiled in this process."""
    script = tmp_path_factory.mktemp("explain") / "layer.py"
    script.write_text(SCRIPT)
    torch._dynamo.reset()
    before = len(explain.last_kernels())
    assert cli.main(["--eager", str(script), "--flag"]) == 0
    return [lines.explained(record) for record in explain.last_kernels()[before:]]


def compiled(kernels: list[lines.Explained]) -> lines.Explained:
    (found,) = [k for k in kernels if not k.eager]
    return found


def test_lines_add_up_to_the_kernel(kernels: list[lines.Explained]) -> None:
    k = compiled(kernels)
    assert sum(line.ns for line in k.lines) + k.launch_ns == pytest.approx(k.record.program.program.duration_ns)
    assert sum(line.read_bytes for line in k.lines) == k.program.read_bytes
    assert k.program.read_bytes >= 2 * (256 * 512 + 512 * 1024)  # both operands at least once
    assert k.program.written_bytes >= 2 * 256 * 1024
    assert k.lines[0].label == "layer.py:8" and k.lines[0].variable == "h"
    assert k.lines[0].names().startswith("batchmatmul") and k.lines[-1].variable == "returned"


def test_lines_are_those_of_this_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same graph was compiled before, from other lines: PyTorch's caches of graphs would return it with those."""
    script = tmp_path / "layer.py"
    for lines_more in (0, 3):
        script.write_text("# more\n" * lines_more + SCRIPT)
        torch._dynamo.reset()
        assert cli.main([str(script)]) == 0
        assert f"layer.py:{8 + lines_more} " in capsys.readouterr().out
    assert torch._inductor.config.fx_graph_cache and torch._functorch.config.enable_autograd_cache


def test_the_first_kernel_is_planned_as_without_explain(tmp_path: Path) -> None:
    """PyTorch's caches of graphs are off meanwhile; the device's decompositions must be there before."""
    script = tmp_path / "first.py"
    script.write_text(
        "import torch\n"
        "x = torch.randn(33, 200).half().to('spyre')\n"
        "torch.compile(lambda x: torch.nn.functional.gelu(x))(x)\n"
    )
    done = run_python(f"from torch_spyre.explain import cli; cli.main(['--json', {str(script)!r}])")
    assert "gelufwd" in done.stdout and "erf" not in done.stdout


def test_the_table_hides_eager_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "layer.py"
    script.write_text(SCRIPT)
    for options, shown in (([], False), (["--eager"], True)):
        torch._dynamo.reset()
        explain.last_kernels()
        assert cli.main([*options, str(script)]) == 0
        out = capsys.readouterr().out
        assert "argv []" in out and "layer.py:8" in out and "batchmatmul" in out
        assert any(line.startswith("eager_add_Tensor ") for line in out.splitlines()) is shown
        assert "--details" in out and "kernel spyre_kernel" not in out


def test_json_is_all_that_goes_to_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "layer.py"
    script.write_text(SCRIPT)
    torch._dynamo.reset()
    assert cli.main(["--json", str(script), "word"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert "argv ['word']" in err
    kernel = next(k for k in found["kernels"] if "layer.py:8" in str(k))
    assert kernel["us"] == pytest.approx(sum(line["us"] for line in kernel["lines"]) + kernel["launch_us"])
    assert kernel["lines"][0]["source"] == ["h = x @ w"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "which script?"),
        (["none.py"], "no script none.py"),
        (["--nothing", "none.py"], "--nothing"),
        (["--html", "/no/such/folder/page.html", __file__], "no directory /no/such/folder"),
    ],
)
def test_bad_calls(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = cli.main(words)
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("h = x @ w", "h"),
        ("a, b = f(x)", "a, b"),
        ("x += 1", "x"),
        ("self.cache[0] = k", "self.cache[0]"),
        ("y: Tensor = f(x)", "y"),
        ("return x", "returned"),
        ("f(x, dim=1)", ""),
        ("if a == b:", ""),
    ],
)
def test_names_of_lines(source: str, name: str) -> None:
    assert lines.made(source) == name


def test_every_stick_is_found_once() -> None:
    """A (6, 200) tensor: four sticks in a row, the last with padding; device order is by stick column first."""
    layout = Layout((4, 6, 64), (64, 200, 1), "SEN169_FP16")
    found = list(plan_pictures.sticks(layout, (6, 200), (200, 1), 100))
    assert found == [(6 * c + r, r, c) for c in range(4) for r in range(6)]
    few = list(plan_pictures.sticks(layout, (6, 200), (200, 1), 7))
    assert few == found[:7]


def test_cores_and_what_crosses_the_ring(kernels: list[lines.Explained]) -> None:
    dims = (Dim("m", 10, 4, 3), Dim("n", 64))
    parts = [plan_pictures.part_of(dims, ("m",), core) for core in range(5)]
    assert parts == [((0, 3), (0, 64)), ((3, 6), (0, 64)), ((6, 9), (0, 64)), ((9, 10), (0, 64)), None]
    hand_overs = [op for op in compiled(kernels).record.plan.kernel.ops if op.source]
    for op in hand_overs:
        crossing = plan_pictures.transfers(op)
        assert crossing and all(a != b for a, b, _ in crossing)
        assert sum(n for _, _, n in crossing) <= 256 * 1024


def test_the_page_holds_every_picture(kernels: list[lines.Explained]) -> None:
    text = page(kernels, "layer.py")
    for heading in ("Summary", "Where the time goes", "Graph", "Cores", "Scratchpads", "Tensors in card memory"):
        assert f">{heading}</h2>" in text
    assert not re.search(r"(?:src|href)=['\"]?(?:https?:)?//", text), "the page must hold all it needs"
    k = compiled(kernels)
    assert all(node.name in text for node in k.record.plan.graph.nodes)
    assert f"{k.ns / 1e3:.2f}" in text
    assert page([], "empty.py").count("compiled nothing") == 1


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0, 0.8, [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]), (3, 3, [3])],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert ticks_of(low, high) == pytest.approx(ticks)
