# SPDX-License-Identifier: Apache-2.0
# pytest tests/tools/test_command_line.py
"""The command `spyre`: every subcommand has help with an example, a version, and an answer to bad input that is no
traceback; what ``--json`` prints parses."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from torch_spyre import __version__, command_line, ktir
from torch_spyre.cli import commands, completion, doctor, serve, spyre
from torch_spyre.errors import InvalidArgument

NAMES = list(commands.commands())
# Words that cannot be right, and what the answer names.
BAD = {
    "doctor": (["--nothing"], "--nothing"),
    "smi": (["dmon", "-d", "0"], "not a positive number"),
    "chat": (["--device", "cuda", "Hello"], "the choices are spyre, spyre:N and cpu"),
    "explain": (["no-such-script.py"], "no script no-such-script.py"),
    "ktir": (["check", "no-such-file.mlir"], "cannot read KTIR file"),
    "sdsc": (["check", "no-such-folder"], "no-such-folder"),
    "trace": (["summary", "no-such-trace.json"], "no-such-trace.json"),
    "predict": (["no-such-model"], "known are"),
    "numerics": (["no-such-model"], "no model 'no-such-model'"),
    "perf": (["devices", "no-such-device"], "no-such-device"),
    "serve": (["some-model"], "make serve"),
    "sdk": (["run", "--checkout", "/no/such/folder", "--sdk", "/none", "--", "true"], "/no/such/folder"),
    "completion": (["csh"], "csh"),
}


def call(words: list[str]) -> int:
    try:
        return spyre.main(words)
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.parametrize("name", NAMES)
def test_help_has_an_example_and_the_version_is_told(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"usage: spyre {name}" in out and "example" in out and f"\n  spyre {name} " in out
    assert call([name, "--version"]) == 0
    assert capsys.readouterr().out.strip() == f"torch_spyre {__version__}"


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_gets_a_message(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "serve" and importlib.util.find_spec("vllm"):
        pytest.skip("the serving package is installed")
    words, problem = BAD[name]
    assert call([name, *words]) == 2
    out, err = capsys.readouterr()
    assert problem in err and "Traceback" not in err + out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["smi", "dmon", "-c", "-1"], "'-1' is not a whole number of at least 1"),
        (["ktir", "time", "EXAMPLE", "-n", "0"], "'0' is not a whole number of at least 1"),
        (["chat", "--tokens", "0", "Hello"], "'0' is not a whole number of at least 1"),
        (["predict", "smollm2-135m", "--set", "memory.bandwidht=3"], "did you mean memory.bandwidth?"),
        (["predict", "smollm2-135m", "--sweep", "nothing=1"], "write batch=1,2,4"),
        (["ktir", "dump", "EXAMPLE", "--form", "other"], "invalid choice: 'other'"),
        (["ktir", "run", "EXAMPLE", "--set", "q=3"], "has no such scalar"),
        (["explain", "--html", "/no/such/folder/x.html", __file__], "no directory /no/such/folder"),
        (["explain", str(Path(__file__).parent)], "without __main__.py"),
        (["predict", "smollm2-135m", "--plot", "/no/such/folder/x.html"], "no directory /no/such/folder"),
        (["numerics", "smollm2", "--plot", "/no/such/folder/x.html"], "no directory /no/such/folder"),
        (["trace", "plot", "trace.json", "-o", "/no/such/folder/x.html"], "no directory /no/such/folder"),
        (["trace", "merge", "trace.json", "-o", "/"], "/ is a directory; name a file"),
        (["sdsc", "run", "bundle", "--output", "/no/such/folder/x.npz"], "no directory /no/such/folder"),
        (["smi", "dmon", "-d", "soon"], "soon is not a positive number"),
        (["ktri"], "there is no command 'ktri'; did you mean ktir? `spyre --help` lists the commands"),
        (["nothing"], "there is no command 'nothing'; `spyre --help` lists the commands"),
        (["trace", "summary", __file__], "is not a Chrome trace"),
        (["perf", "validate", "no-such.csv"], "spyre perf: no-such.csv: No such file or directory"),
    ],
)
def test_options_that_cannot_be_right(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call([str(ktir.example("softmax")) if word == "EXAMPLE" else word for word in words]) == 2
    out, err = capsys.readouterr()
    assert problem in err and "Traceback" not in err + out


def test_the_list_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in NAMES)
    assert call([]) == 2
    assert call(["--version"]) == 0
    capsys.readouterr()
    assert call(["ktri"]) == 2
    assert "did you mean ktir?" in capsys.readouterr().err


def test_old_names_and_the_new_one_speak_of_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    for main, prog in ((spyre.main, "spyre ktir"), (None, "spyre-ktir")):
        from torch_spyre.ktir.cli import main as old

        with pytest.raises(SystemExit):
            main(["ktir", "dump"]) if main else old(["dump"])
        assert f"usage: {prog} dump" in capsys.readouterr().err


def test_no_torch_for_what_needs_none() -> None:
    code = "import sys; from torch_spyre.cli import spyre; spyre.main(['--help']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr


def test_another_package_brings_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "brought_command.py").write_text("def main(words):\n    print(words)\n    return 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint("serve", "brought_command", commands.GROUP), EntryPoint("more", "brought_command", "")]
    monkeypatch.setattr(commands, "entry_points", lambda group: points)
    assert call(["serve", "model", "--port", "1"]) == 7
    assert capsys.readouterr().out == "['model', '--port', '1']\n"
    assert "of the package brought_command" in commands.commands()["more"].text


def test_serve_starts_vllm_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Done:
        returncode = 3

    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(serve.subprocess, "run", lambda words: started.append(words) or Done())
    assert serve.main(["model", "--port", "1"]) == 3
    assert started[0][1:] == ["-m", "vllm.entrypoints.cli.main", "serve", "model", "--port", "1"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["kt"], ["ktir"]),
        (["ktir", "du"], ["dump"]),
        (["ktir", "dump", "--form", ""], ["explain", "ktir", "program"]),
        (["ktir", "dump", "--se"], ["--set"]),
        (["chat", "--dev"], ["--device"]),
        (["none", ""], []),
    ],
)
def test_completion(words: list[str], found: list[str]) -> None:
    assert completion.candidates(words) == found


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["completion", "bash"]) == 0
    script = tmp_path / "completion"
    script.write_text(capsys.readouterr().out)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "spyre").write_text(f'#!/bin/sh\nexec {sys.executable} -m torch_spyre.cli.spyre "$@"\n')
    (bin_ / "spyre").chmod(0o755)
    ask = f". {script}; COMP_WORDS=(spyre ktir du); COMP_CWORD=2; _spyre; echo ${{COMPREPLY[@]}}"
    path = f"{bin_}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", ask], capture_output=True, text=True, timeout=1500, env={**os.environ, "PATH": path}
    )
    assert done.stdout.strip() == "dump", done.stderr


def test_doctor_tries_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in found["checks"]}
    assert found["ok"] and {"torch", "extension", "eager op", "compiled graph", "KTIR file"} <= set(rows)
    assert {row["state"] for row in rows.values()} <= {"ok", "note"}


def test_doctor_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> str:
        raise AssertionError("the card says 1, the CPU 2")

    monkeypatch.setattr(doctor, "_op", fails)
    monkeypatch.setenv("SENCORES", "99")
    assert call(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "wrong  eager op" in out and "SENCORES" in out and "checks found something wrong" in out


@pytest.mark.parametrize(
    "words",
    [
        ["smi", "--json"],
        ["perf", "devices", "--json"],
        ["predict", "--list", "--json"],
        ["numerics", "--list", "--json"],
        ["ktir", "example", "--json"],
        ["ktir", "check", "EXAMPLE", "--json"],
        ["ktir", "run", "EXAMPLE", "--json"],
        ["ktir", "time", "EXAMPLE", "-n", "1", "--json"],
        ["ktir", "dump", "EXAMPLE", "--json"],
    ],
)
def test_json_parses(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call([str(ktir.example("softmax")) if word == "EXAMPLE" else word for word in words]) == 0
    assert json.loads(capsys.readouterr().out) is not None


def test_json_names_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.mlir").write_text("func.func @k() attributes {grid = [40]} {\n  return\n}\n")
    assert call(["ktir", "check", "--json", str(ktir.example("softmax")), str(tmp_path / "bad.mlir")]) == 1
    good, bad = json.loads(capsys.readouterr().out)
    assert good["functions"][0]["function"] == "softmax"
    assert bad["error"]["kind"] == "InvalidProgram" and "40 tiles" in bad["error"]["message"]


def test_examples_have_names() -> None:
    with pytest.raises(InvalidArgument, match="matmul, softmax, vector_add"):
        ktir.example("conv")


def test_examples_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["ktir", "example"]) == 0
    assert capsys.readouterr().out.split() == ktir.examples()
    assert call(["ktir", "example", "softmax"]) == 0
    assert capsys.readouterr().out == ktir.example("softmax").read_text()
    assert call(["ktir", "example", "conv"]) == 2
    assert "no KTIR example 'conv'" in capsys.readouterr().err


def test_numbers_that_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    command_line.print_json({"a": float("nan"), "b": [1, (2.5, float("inf"))], 3: Path("x")})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1, [2.5, None]], "3": "x"}


def test_a_reader_that_has_enough() -> None:
    """`spyre ... | head` ends without a traceback."""
    program = "import sys\nfrom torch_spyre.cli import spyre\nsys.exit(spyre.main(['perf', 'devices', '--json']))"
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" -c "$1" | head -c 1 > /dev/null', sys.executable, program],
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert "Traceback" not in done.stderr
