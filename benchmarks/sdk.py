# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/sdk.py [--strict]: what stands in for the closed parts, in time.

Building the SDK from nothing, compiling a bundle of ten ops with dxp_standalone (new, and from its cache), a launch
through libflex, and copies that convert, against `clone()` of the same host bytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from common import ROOT, Figure, finish, interleaved, machine_line, once_each

from torch_spyre.ir.superdsc.bundle import read_bundle
from torch_spyre.ir.superdsc.writer import bundle_files

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "support")]
import sdk_client  # noqa: E402
from sdsc_files import rows, sdsc, write_files  # noqa: E402

MEGABYTES, ROUNDS = 64, 7
SIZES, SPLIT = {"mb": 64, "out": 512}, {"mb": 4}
TENSOR_BYTES = 64 * 512 * 2


def bundle_of(count: int, constant: int, folder: Path) -> Path:
    """`count` ops, each on what the one before wrote; `constant` makes it differ from every other one."""
    files = [sdsc("add", SIZES, [rows(0), rows(1), rows(2)], SPLIT)]
    for i in range(1, count):
        at, before = TENSOR_BYTES * (i + constant), TENSOR_BYTES * (i - 1 + constant if i > 1 else 0)
        files.append(sdsc("add", SIZES, [rows(0), rows(2, at=before), rows(2, at=at)], SPLIT))
    target = folder / f"bundle_{count}_{constant}"
    target.mkdir()
    made = bundle_files(read_bundle(write_files(folder / f"literal_{count}_{constant}", files)), symbolic=True)
    for name, text in made.items():
        (target / name).write_text(text)
    return target


def compile_seconds(sdk: sdk_client.Sdk, bundles: list[Path]) -> float:
    def one(bundle: Path) -> None:
        done = sdk.compile(bundle)
        assert done.returncode == 0, done.stderr

    return once_each([lambda bundle=bundle: one(bundle) for bundle in bundles])


def build_seconds(folder: Path) -> float:
    """From nothing: the card's library too, and no object from a compiler cache."""
    command = ["make", "-C", str(ROOT / "sdk"), f"-j{os.cpu_count()}", f"BUILD={folder}", "NEWER=yes"]
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "CCACHE_DISABLE": "1"})
    return time.perf_counter() - begin


def printed_seconds(text: str) -> dict[str, float]:
    return {name: float(seconds) for name, seconds in (line.split() for line in text.splitlines())}


def main() -> int:
    print(machine_line())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        built = build_seconds(folder / "sdk")
        sdk = sdk_client.build(folder)
        compile_seconds(sdk, [bundle_of(1, 0, folder)])  # starts the server
        bundles = [bundle_of(10, constant, folder) for constant in range(ROUNDS)]
        new = compile_seconds(sdk, bundles)
        for bundle in bundles:
            shutil.rmtree(bundle / "spyreCodeDir")
        cached = compile_seconds(sdk, bundles)
        one = bundle_of(1, 1, folder)
        compile_seconds(sdk, [one])
        launch = printed_seconds(sdk.client("time_launches", one / "spyreCodeDir", 3, TENSOR_BYTES, 500))["launch"]
        # The two by turns: a noisy moment hits both.
        host, ratios = torch.zeros(MEGABYTES << 20, dtype=torch.uint8), list[dict[str, float]]()
        for _ in range(3):
            clone = interleaved({"clone": host.clone}, ROUNDS)["clone"]
            copies = printed_seconds(sdk.client("time_copies", MEGABYTES, ROUNDS))
            ratios.append({name: clone / seconds for name, seconds in copies.items()})
    figures = [
        Figure("build of the SDK", built, "s", "<=", 90),
        Figure("dxp_standalone, new bundle of ten ops", new * 1e3, "ms", "<=", 400),
        Figure("dxp_standalone, cached", cached * 1e3, "ms", "<=", 30),
        Figure("launch through libflex, host time", launch * 1e6, "us", "<=", 20),
    ]
    for name in ratios[0]:
        middle = sorted(ratio[name] for ratio in ratios)[1]
        figures.append(Figure(f"copy of {MEGABYTES} MB, {name}", middle, "x clone()", ">=", 0.3))
    return finish(figures)


if __name__ == "__main__":
    sys.exit(main())
