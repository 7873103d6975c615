# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/triton_packages/run.py [--package liger] [--only NAME ...] [--table FILE]

Runs the kernels of packages that others wrote on the card, in the environment of `make test-triton` with these packages
installed. Each is compared with Triton's interpreter on the host and with a formula in float64; the errors are relative
to the largest value of an output. `--table` writes the results into a page (docs/triton-kernels.md); sections of
packages that were not run stay as they are.
"""

from __future__ import annotations

import argparse
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
PACKAGES = ("examples", "liger", "fla", "conch", "pytorch")


def cases(package: str) -> list[Any]:
    found = importlib.import_module(package).CASES
    return list(found)


def made(case: Any) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return list(case.inputs())


def serve(package: str, name: str, target: str) -> None:
    """In the interpreter's process: TRITON_INTERPRET=1 is read when kernels are decorated."""
    from case import outputs

    case = next(c for c in cases(package) if c.name == name)
    torch.save(outputs(case.call, made(case), case.gradients), target)


def interpreted(package: str, name: str) -> tuple[list[torch.Tensor] | None, str]:
    with tempfile.TemporaryDirectory() as folder:
        target = f"{folder}/outputs.pt"
        command = [sys.executable, __file__, "--package", package, "--serve", name, target]
        done = subprocess.run(command, env=dict(os.environ, TRITON_INTERPRET="1"), capture_output=True, text=True)
        if done.returncode:
            return None, (done.stderr.strip().splitlines() or ["failed"])[-1]
        return torch.load(target), ""


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


def run(package: str, case: Any, verbose: bool) -> dict[str, Any]:
    from case import outputs

    inputs = made(case)
    row: dict[str, Any] = {"name": case.name, "runs": False, "reason": ""}
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    expected = outputs(case.formula, wide, case.gradients)
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
        row["reason"] = plain(f"{type(error).__name__}: {lines[0] if lines else ''}")
        torch.spyre.reset()
        return row
    row["formula"] = distance(found, expected)
    theirs, why = interpreted(package, case.name)
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
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    packages = options.package or list(PACKAGES)
    if options.serve:
        serve(packages[0], *options.serve)
        return
    results: dict[str, list[dict[str, Any]]] = {}
    for package in packages:
        for case in cases(package):
            if options.only and case.name not in options.only:
                continue
            start = time.monotonic()
            row = run(package, case, options.verbose)
            results.setdefault(package, []).append(row)
            print(f"{package} {line(row)}  [{time.monotonic() - start:.0f} s]", flush=True)
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
    "examples": "the kernels of `examples/triton_kernels/`",
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
operations of PyTorch included. A kernel runs if its error is below 2e-4. Of kernels that are tuned, the first
configuration runs. Where the interpreter itself fails, its error is in the last column."""


if __name__ == "__main__":
    main()
