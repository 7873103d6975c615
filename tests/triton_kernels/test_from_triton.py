# SPDX-License-Identifier: Apache-2.0
# make test-triton, or in its environment: pytest tests/triton_kernels/test_from_triton.py
"""spyre-ktir from-triton prints KTIR that the other commands take."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_spyre import ktir
from torch_spyre.ktir.cli import main

ADD = ["from-triton", "feature_kernels:add", *(f"--type={name}=*fp16" for name in ("x", "y", "out")), "-t", "n=i32"]
SIZES = ["-s", "n=1000", "-c", "BLOCK=64", "-g", "16"]


def test_prints_ktir(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*ADD, *SIZES]) == 0
    text = capsys.readouterr().out
    assert "feature_kernels.py" in text  # the lines of the kernel
    (function,) = ktir.load(text).functions.values()
    assert [argument.role for argument in function.arguments] == ["buffer"] * 3 and function.cores == 16
    file = tmp_path / "add.mlir"
    file.write_text(text)
    assert main(["check", str(file)]) == 0 and main(["time", str(file), "-n", "1"]) == 0


def test_prints_every_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ADD, *SIZES, "--passes"]) == 0
    text = capsys.readouterr().out
    assert text.index("// after ttir") < text.index("// after programs") < text.index("// after tile-accesses")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["from-triton", "feature_kernels"], "write module:kernel"),
        (["from-triton", "feature_kernels:nothing"], "nothing"),
        (["from-triton", "feature_kernels:tl"], "no kernel"),
        ([*ADD[:3], *SIZES], "no type for y, out, n"),
        ([*ADD, "-c", "BLOCK=64"], "--set n=NUMBER"),
    ],
)
def test_bad_arguments(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    assert words in capsys.readouterr().err
