# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_cli.py

The command spyre-sdsc on files and directories, good and bad.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sdsc_files import write_files
from test_sdsc_bundles import softmax
from test_sdsc_machine_rules import moved
from test_sdsc_ops import CASES

from torch_spyre.sdsc.cli import main


def file(folder: Path, name: str) -> Path:
    path = folder / f"{name.replace(' ', '_')}.json"
    path.write_text(json.dumps(CASES[name].to_json()))
    return path


def test_check_says_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = write_files(tmp_path / "softmax", softmax(True))
    assert main(["check", str(bundle), str(bundle / "bundle.mlir"), str(file(tmp_path, "add"))]) == 0
    out = capsys.readouterr().out
    assert "softmax: ok, 5 ops" in out and "add: ok, 1 op," in out


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = str(write_files(tmp_path / "softmax", softmax(True)))
    (tmp_path / "x.json").write_text("{")
    assert main(["check", "--json", bundle, str(tmp_path / "x.json")]) == 1
    good, bad = json.loads(capsys.readouterr().out)
    assert good["ops"] == 5 and not good["problems"] and bad["error"]["kind"] == "InvalidProgram"
    for words in (["explain"], ["run", "--verify"], ["dump", "json"]):
        assert main([words[0], "--json", *words[1:], bundle]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert found["name"] == "softmax"


def test_check_lists_broken_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = softmax(True)
    files[2] = moved(files[2], 0, 64)
    assert main(["check", str(write_files(tmp_path / "bad", files))]) == 1
    assert "bad: sdsc_2.json: [alignment] Tensor0, core 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "expected an object with one key"),
        ('{"0_add": {}}', "field numWkSlicesPerDim_ is missing"),
        ('{"add": {}}', "is not <index>_<opfunc>"),
    ],
)
def test_bad_files(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text(text)
    for command in ("check", "explain", "run", "dump"):
        assert main([command, str(tmp_path / "x.json")]) == 1
        error = capsys.readouterr().err
        assert "InvalidProgram" in error and message in error
    assert main(["check", str(tmp_path)]) == 1
    assert "Bundle not found" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "nowhere")]) == 2


def test_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(write_files(tmp_path / "softmax", softmax(True)))]) == 0
    out = capsys.readouterr().out
    for part in ("softmax: bundle, 5 ops", "realdiv", "mb/4", "LX+0x2800", "segment1+0x0", "core 3: mb 48..64", "us"):
        assert part in out
    assert main(["explain", "--no-time", str(file(tmp_path, "batchmatmul, K split"))]) == 0
    assert "fragment (a lone SuperDSC)" in capsys.readouterr().out


def test_run_on_given_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (np.random.default_rng(i).standard_normal((64, 256)).astype(np.float32) for i in range(2))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    np.savez(tmp_path / "both.npz", Tensor0=a, Tensor1=b, other=b)
    path = str(file(tmp_path, "add"))
    for inputs in ([str(tmp_path / "a.npy"), str(tmp_path / "b.npy")], [str(tmp_path / "both.npz")]):
        out = str(tmp_path / "out.npz")
        assert main(["run", path, "--output", out, "--verify", "--inputs", *inputs]) == 0
        assert "agrees with NumPy" in capsys.readouterr().out
        np.testing.assert_allclose(np.load(out)["Tensor2"], a + b, atol=0.02)
        assert main(["run", "--verify", "--inputs", *inputs, path]) == 0
        assert main(["run", *(f"--inputs={name}" for name in inputs), path, "--verify"]) == 0
        assert "DIFFERS" not in capsys.readouterr().out
    assert main(["run", path, "--inputs", str(tmp_path / "a.npy")]) == 2
    assert "['Tensor1'] are missing; it takes Tensor0 [64, 256]" in capsys.readouterr().err
    assert main(["run", path, "--inputs", path]) == 2
    assert "no .npy or .npz file" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["run", path, "--inputs"])


def test_run_with_wrong_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "x.npz", Tensor0=np.zeros((3, 4)), Tensor1=np.zeros((64, 256)))
    assert main(["run", str(file(tmp_path, "add")), "--inputs", str(tmp_path / "x.npz")]) == 2
    assert "Tensor0 has shape (3, 4), it must be (64, 256) (mb, out)" in capsys.readouterr().err


def test_run_bundle_with_intermediates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_files(tmp_path / "softmax", softmax(False)))
    assert main(["run", path, "--all", "--verify", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "intermediate 2.Tensor1 64x256" in out and "output 4.Tensor2 64x256" in out


@pytest.mark.parametrize(
    ("form", "part"),
    [("ktir", "ktdp.load"), ("program", "MATMUL"), ("explain", "estimated time"), ("json", "0_batchmatmul")],
)
def test_dump(form: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "--form", form, str(file(tmp_path, "batchmatmul"))]) == 0
    text = capsys.readouterr().out
    assert part.lower() in text.lower()
    assert main(["dump", form, str(file(tmp_path, "batchmatmul"))]) == 0
    assert capsys.readouterr().out == text


def test_fragment_of_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second half of a softmax: its LX operands were left by an earlier bundle."""
    path = str(write_files(tmp_path / "half", softmax(True)[3:]))
    assert main(["check", path]) == 1
    assert "[lx-ownership] Tensor0, core 0" in capsys.readouterr().out
    assert main(["run", "--fragment", "--verify", path]) == 0


def test_sanitizer_and_entry_point(tmp_path: Path) -> None:
    """In a process of its own: the environment decides when the card is loaded."""
    path = str(file(tmp_path, "add"))
    command = [sys.executable, "-m", "torch_spyre.sdsc.cli", "run", "--sanitize", "--verify", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert "agrees with NumPy" in done.stdout
