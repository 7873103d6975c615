# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ktir/test_ktir_cli.py: spyre-ktir checks, runs, times and dumps files, and says what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torch_spyre import ktir
from torch_spyre.ktir.cli import main

FOLDER = Path(__file__).parents[1] / "support" / "ktir"
FILES = sorted(FOLDER.glob("*.mlir"))


def path(name: str) -> str:
    return str(FOLDER / f"{name}.mlir")


def test_check_takes_every_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--set", "n=300", *map(str, FILES)]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == len(FILES)
    assert "vector_add.mlir: vector_add(a: index, b: index, c: index) on 32 tiles: " in out
    assert all(line.startswith("note: ") and "A9" in line for line in err.splitlines())


def test_check_reports_each_bad_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.mlir"
    bad.write_text("func.func @k() attributes {grid = [40]} {\n  return\n}\n")
    assert main(["check", str(bad), path("vector_add")]) == 1
    capsys.readouterr()
    assert main(["check", str(bad), path("vector_add"), str(tmp_path / "none.mlir")]) == 2
    out, err = capsys.readouterr()
    assert "vector_add(a: index" in out
    assert f"{bad}: InvalidProgram: {bad}:1:1: grid [40] of k has 40 tiles; a card has 32 cores" in err
    assert "none.mlir: InvalidArgument: cannot read KTIR file" in err


def test_strict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--strict", path("ring_reduce_older")]) == 1
    assert "is not the dialect; the lenient mode accepts it" in capsys.readouterr().err


def test_run_with_random_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", path("indexed_add"), "--seed", "3"]) == 0
    first = capsys.readouterr().out
    assert "out: float16[2, 32, 8, 128] mean " in first and first.count("unchanged") == 3
    main(["run", path("indexed_add"), "--seed", "3"])
    assert capsys.readouterr().out == first
    main(["run", path("indexed_add"), "--seed", "4"])
    assert capsys.readouterr().out != first


def test_run_takes_sizes_and_literal_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", path("vector_add_dynamic")]) == 2
    assert "give a value for n (--set n=N)" in capsys.readouterr().err
    assert main(["run", path("vector_add_dynamic"), "-s", "n=100"]) == 0
    assert "c: float32[100]" in capsys.readouterr().out
    assert main(["run", path("literal_add")]) == 0
    assert "address 18432: float16[96, 64]" in capsys.readouterr().out
    assert main(["run", path("vector_add"), "-s", "n=1"]) == 2
    assert "has no such scalar" in capsys.readouterr().err


def test_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["time", path("softmax_rows"), "-n", "3"]) == 0
    out = capsys.readouterr().out
    assert " us, bound by " in out and "this machine: median " in out and "compiled in " in out


def test_dump(capsys: pytest.CaptureFixture[str]) -> None:
    main(["dump", path("ring_reduce")])
    text = capsys.readouterr().out
    assert ktir.load(text).text == text
    for form in (["--form", "program"], ["program"]):
        main(["dump", *form, path("vector_add")])
        assert "add.f32 [128]" in capsys.readouterr().out
    main(["dump", path("vector_add"), "--form", "explain"])
    assert capsys.readouterr().out.startswith("function vector_add: grid [32], 32 compute tiles")


@pytest.mark.parametrize("words", [["dump", "ktir"], ["dump", "--form", "json", "x"], ["dump"], ["check"], []])
def test_incomplete_calls(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage: spyre-ktir" in capsys.readouterr().err


def test_the_command_itself() -> None:
    command = [sys.executable, "-m", "torch_spyre.ktir.cli", "check", path("vector_add")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert found.returncode == 0, found.stderr
    assert "instructions" in found.stdout
