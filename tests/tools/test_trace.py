# SPDX-License-Identifier: Apache-2.0
"""pytest -q tests/tools/test_trace.py

spyre-trace: tables, pictures and comparisons of traces; Holistic Trace Analysis and IBM's acelyzer read them.
"""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import torch_spyre.profiler
from torch_spyre.errors import InvalidArgument
from torch_spyre.perf.device import load
from torch_spyre.profiler import cli, summary, trace
from torch_spyre.profiler.convert import convert
from torch_spyre.profiler.trace import Kernel

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


@pytest.fixture(scope="module")
def file(tmp_path_factory: Any) -> str:
    """Three matmuls of one shape, one softmax, one transfer back, with lanes of all cores."""
    x = torch.randn(256, 256, dtype=torch.float16).to("spyre")
    torch.softmax(torch.mm(x, x), -1)
    with profile(activities=BOTH, profile_memory=True) as prof:
        for _ in range(3):
            y = torch.mm(x, x)
        torch.softmax(y, -1).cpu()
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    torch_spyre.profiler.export_chrome_trace(prof, str(path))
    return str(path)


def test_read(file: str) -> None:
    t = trace.read(file)
    assert [k.name for k in t.kernels].count("eager_mm") == 3
    assert [x.direction for x in t.transfers] == ["DtoH"]
    assert t.transfers[0].bytes == 256 * 256 * 2
    assert t.busy_ns <= t.span_ns
    assert t.memory and t.lx
    first = min(k.start_ns for k in t.kernels)
    assert all(first <= ns <= first + t.span_ns for ns, _ in t.lx)


def test_gzip_and_bad_files(file: str, tmp_path: Path) -> None:
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(Path(file).read_bytes()))
    assert len(trace.read(packed).kernels) == len(trace.read(file).kernels)
    with pytest.raises(InvalidArgument, match="no such trace"):
        trace.read(tmp_path / "absent.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InvalidArgument, match="not a Chrome trace"):
        trace.read(tmp_path / "bad.json")
    (tmp_path / "empty.json").write_text('{"traceEvents": []}')
    with pytest.raises(InvalidArgument, match="no events of the device"):
        trace.read(tmp_path / "empty.json")
    assert cli.main(["summary", str(tmp_path / "bad.json")]) == 2


def test_tables_add_up(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    t = trace.read(file)
    for of in (Kernel.ops, Kernel.lines):
        total = sum(ns for _, _, ns in summary.shares(t, of))
        assert total == pytest.approx(t.busy_ns, rel=1e-3)
    assert sum(x.ns for x in summary.by_kernel(t)) == pytest.approx(t.busy_ns)
    assert cli.main(["summary", file]) == 0
    text = capsys.readouterr().out
    for word in ("eager_mm", "batchmatmul (mm)", "PT %", "bottleneck", "GB/s", Path(__file__).name, "DtoH"):
        assert word in text


def test_compare(file: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = json.loads(Path(file).read_text())
    for e in data["traceEvents"]:
        if e.get("cat") == "kernel" and e["name"] == "eager_mm":
            e["args"]["device_duration_ns"] *= 2
    slower = tmp_path / "slower.json"
    slower.write_text(json.dumps(data))
    assert cli.main(["compare", file, str(slower)]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert rows["eager_mm"].endswith("2.000x")
    assert rows["eager__softmax"].endswith("1.000x")
    assert not rows["total"].endswith("1.000x")


def test_json_has_what_the_tables_have(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["summary", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    whole = trace.read(file)
    assert sum(k["us"] for k in found["kernels"]) == pytest.approx(sum(k.duration_ns for k in whole.kernels) / 1e3)
    assert {"eager_mm", "eager__softmax"} <= {k["name"] for k in found["kernels"]} and found["lines"]
    assert cli.main(["compare", file, file, "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both["before"] == both["after"]


def test_plot_is_well_formed(file: str, tmp_path: Path) -> None:
    output = tmp_path / "t.html"
    assert cli.main(["plot", file, "-o", str(output)]) == 0
    text = output.read_text()
    pictures = text.split("<svg")[1:]
    assert len(pictures) == 3
    for picture in pictures:
        root = xml.fromstring("<svg" + picture.split("</svg>")[0] + "</svg>")
        width, height = (float(root.attrib[k]) for k in ("width", "height"))
        for shape in root.iter():
            x, y = (float(shape.attrib.get(k, shape.attrib.get(f"c{k}", 0))) for k in ("x", "y"))
            assert 0 <= x <= width and 0 <= y <= height
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "the page stands alone"
    assert "roofline" in text.lower() and "LX occupancy" in text


def test_holistic_trace_analysis_reads_it(file: str, tmp_path: Path) -> None:
    pytest.importorskip("hta.trace_analysis", reason="pip install HolisticTraceAnalysis")
    from hta.trace_analysis import TraceAnalysis

    target = tmp_path / "hta.json"
    convert(file, str(target), "hta")
    analysis = TraceAnalysis(trace_files={0: target.name}, trace_dir=str(tmp_path))
    kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
    assert set(kinds["kernel_type"]) == {"COMPUTATION", "MEMORY"}
    assert {"eager_mm", "eager__softmax"} <= set(kernels["name"])
    breakdown = analysis.get_temporal_breakdown(visualize=False)
    busy = trace.read(file).busy_ns / 1e3
    assert float(breakdown["compute_time(us)"].iloc[0]) == pytest.approx(busy, abs=10)  # it rounds inwards to us
    launches = analysis.get_cuda_kernel_launch_stats(visualize=False)[0]
    assert len(launches) == 5 and (launches["launch_delay"] >= 0).all()


def test_acelyzer_reads_it(file: str, tmp_path: Path) -> None:
    pytest.importorskip("aiu_trace_analyzer", reason="pip install aiu-trace-analyzer")
    convert(file, str(tmp_path / "aiu.json"), "acelyzer")
    options = ["-i", "aiu.json", "-o", "out.json", "-c", ".", "-D", "1"]
    done = subprocess.run(
        [sys.executable, "-c", "from acelyzer.acelyzer import main; main()", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    with (tmp_path / "out_summary.csv").open() as f:
        lines = [line.split("\t") for line in f][1:]
    found = {cells[-1].strip(): (int(cells[2]), float(cells[1])) for cells in lines}
    mm = next(k for k in summary.by_kernel(trace.read(file)) if k.name == "eager_mm")
    assert found["eager_mm Cmpt Exec"] == (3, pytest.approx(mm.ns / 1e3, abs=0.01))
    with (tmp_path / "out_categories.csv").open() as f:
        rows = {r["Category"]: r for r in csv.DictReader(f)}
    ours = summary.pt_utilisation(mm.macs, trace.read(file).busy_ns, load())
    assert float(rows["Total"]["PT_Util"]) == pytest.approx(ours, rel=0.02)


def test_unknown_dialect(file: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="known are acelyzer, hta"):
        convert(file, str(tmp_path / "x.json"), "perf")
