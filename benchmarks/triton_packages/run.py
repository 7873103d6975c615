# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/triton_packages/run.py [--package liger] [--only NAME ...] [--table FILE]

Runs the kernels of packages that others wrote on the card, in the environment of `make test-triton` with these packages
installed. Each is compared with Triton's interpreter on the host and with a formula in float64; the errors are relative
to the largest value of an output. `--table` writes the results into a page (docs/triton-kernels.md); sections of
packages that were not run stay as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
warnings.simplefilter("ignore")
PACKAGES = {
    "examples": "example_kernels",
    "liger": "liger",
    "fla": "fla_ops",
    "conch": "conch_ops",
    "pytorch": "pytorch_kernels",
}


def cases(package: str) -> list[Any]:
    found = importlib.import_module(PACKAGES[package]).CASES
    return list(found)


def made(case: Any) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return list(case.inputs())


def serve(package: str) -> None:
    """The interpreter's process: TRITON_INTERPRET=1 is read when kernels are decorated. Names come in, files go out."""
    import interpreting  # before the package, whose kernels it prepares for
    from case import outputs

    interpreting.prepare()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what kernels print is no answer
    known = {case.name: case for case in cases(package)}
    for request in sys.stdin:
        name, target = request.rstrip("\n").split("\t")
        try:
            torch.save(outputs(known[name].call, made(known[name]), known[name].gradients), target)
            answer = ""
        except Exception as error:
            answer = " ".join(f"{type(error).__name__}: {error}".split())
        print(answer, file=answers, flush=True)


class Interpreter:
    def __init__(self, package: str) -> None:
        command = [sys.executable, __file__, "--package", package, "--serve"]
        self._process = subprocess.Popen(
            command,
            env=dict(os.environ, TRITON_INTERPRET="1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __call__(self, name: str) -> tuple[list[torch.Tensor] | None, str]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            target = f"{folder}/outputs.pt"
            if self._process.poll() is not None:
                return None, f"the interpreter's process ended with {self._process.returncode}"
            print(name, target, sep="\t", file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
            return (None, answer.strip() or "ended") if answer != "\n" else (torch.load(target), "")

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def distance(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The greatest error of an output, relative to its largest value."""
    if len(mine) != len(theirs):
        return float("inf")
    worst = 0.0
    for a, b in zip(mine, theirs, strict=True):
        a, b = a.cpu().double(), b.cpu().double()
        if a.shape != b.shape:
            return float("inf")
        size = b.abs().max().item() if b.numel() else 0.0
        error = (a - b).abs().max().item() if b.numel() else 0.0
        worst = max(worst, error / (size or 1.0) if error == error else float("inf"))
    return worst


def run(interpreter: Interpreter, case: Any, verbose: bool) -> dict[str, Any]:
    from case import outputs

    inputs = made(case)
    row: dict[str, Any] = {"name": case.name, "runs": False, "reason": ""}
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    try:
        expected = outputs(case.formula, wide, case.gradients)
    except Exception as error:
        raise RuntimeError(f"the formula of {case.name} fails") from error
    try:
        placed = [t.to("spyre") for t in inputs]
        found = [t.cpu() for t in outputs(case.call, placed, case.gradients)]
        torch.spyre.synchronize()
        before = card_ns()
        outputs(case.call, placed, case.gradients)
        torch.spyre.synchronize()
        row["time_us"] = (card_ns() - before) / 1e3
    except Exception as error:
        if verbose:
            traceback.print_exc()
        lines = [line for line in str(error).splitlines() if line.strip()]
        last = lines[-1] if type(error).__name__ == "CompilationError" else lines[0] if lines else ""
        row["reason"] = plain(f"{type(error).__name__}: {last}")
        torch.spyre.reset()
        return row
    row["formula"] = distance(found, expected)
    theirs, why = interpreter(case.name)
    row["interpreter"] = None if theirs is None else distance(found, theirs)
    row["reason"] = plain(f"interpreter: {why}") if theirs is None else ""
    row["runs"] = row["formula"] < case.tolerance
    if not row["runs"]:
        row["reason"] = "differs from the formula"
    return row


def plain(reason: str) -> str:
    """Modules instead of the paths of this machine."""
    reason = re.sub(r"\S*/site-packages/([\w/]+)\.py", lambda found: found[1].replace("/", "."), reason)
    return reason.replace("triton.runtime.errors.", "")[:400]


def card_ns() -> int:
    from torch_spyre import _C

    return int(_C.clock_ns(_C.current_device()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", action="append", choices=PACKAGES)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    packages = options.package or list(PACKAGES)
    if options.serve:
        serve(packages[0])
        return
    results: dict[str, list[dict[str, Any]]] = {}
    for package in packages:
        interpreter = Interpreter(package)
        for case in cases(package):
            if options.only and case.name not in options.only:
                continue
            start = time.monotonic()
            row = run(interpreter, case, options.verbose)
            results.setdefault(package, []).append(row)
            print(f"{package} {line(row)}  [{time.monotonic() - start:.0f} s]", flush=True)
        interpreter.close()
    if options.table:
        kept = sections(options.table.read_text()) if options.table.exists() else {}
        kept.update({package: section(package, rows) for package, rows in results.items()})
        options.table.write_text("\n".join([_HEAD, *(kept[p] for p in PACKAGES if p in kept)]))


def line(row: dict[str, Any]) -> str:
    if "formula" not in row:
        return f"{row['name']:30} no    {row['reason']}"
    other = "-" if row["interpreter"] is None else f"{row['interpreter']:.1e}"
    word = "yes" if row["runs"] else "WRONG"
    return f"{row['name']:30} {word:5} {row['formula']:.1e} {other} {row['time_us']:.0f} us {row['reason']}"


def sections(page: str) -> dict[str, str]:
    """What a page says of each package."""
    found = {}
    for part in page.split("\n## ")[1:]:
        package = next((p for p, title in _TITLES.items() if part.startswith(title)), None)
        if package is not None:
            found[package] = f"\n## {part.rstrip()}\n"
    return found


def section(package: str, rows: list[dict[str, Any]]) -> str:
    good = sum(row["runs"] for row in rows)
    text = [f"\n## {_TITLES[package]}: {good} of {len(rows)}\n"]
    text.append("| kernel | runs | error, formula | error, interpreter | card time | |\n|---|---|---|---|---|---|")
    for row in rows:
        reason = row["reason"].replace("|", "/")
        if "formula" not in row:
            text.append(f"| {row['name']} | no | | | | {reason} |")
            continue
        other = "" if row["interpreter"] is None else f"{row['interpreter']:.1e}"
        word = "yes" if row["runs"] else "no"
        text.append(f"| {row['name']} | {word} | {row['formula']:.1e} | {other} | {row['time_us']:.0f} µs | {reason} |")
    return "\n".join(text) + "\n"


_TITLES = {
    "examples": "the kernels of examples/triton_kernels",
    "fla": "fla-core 0.6.0, forward and backward",
    "liger": "liger-kernel 0.8.5, forward and backward",
    "conch": "conch-triton-kernels 1.3",
    "pytorch": "the test kernels of PyTorch 2.13",
}
_HEAD = """# Triton kernels of others

`python benchmarks/triton_packages/run.py --table docs/triton-kernels.md` makes this page, in the environment of
`make test-triton` with Triton 3.8.0 and the packages below and einops installed (`pip install --no-deps`).

Inputs are float32 unless the name says otherwise. The error is the greatest difference of an output or gradient,
relative to the largest value of that output: from a formula of PyTorch in float64, and from Triton's interpreter. The
card time is that of one call with its gradients on the card's clock, copies between layouts and the package's own
operations of PyTorch included. A kernel runs if its error is below 2e-4, for
operations that take float16 only below 2e-2. Of kernels that are tuned, the first
configuration runs. Where the interpreter itself fails, its error is in the last column."""


if __name__ == "__main__":
    main()
