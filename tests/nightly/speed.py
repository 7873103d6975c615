# SPDX-License-Identifier: Apache-2.0
# python tests/nightly/speed.py BASE [--minutes 10] [benchmark ...]
"""Runs benchmarks on BASE and on the working tree by turns, and flags what became slower.

Wall times of two nights say little on a shared machine, so both sides run in one night, one after the other, twice.
A figure is flagged if it is worse than BASE's by a quarter in both rounds. `.nightly/speed.jsonl` keeps the figures.
The environment of BASE is that of `make replay`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import history

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "replay"))
import replay  # noqa: E402

QUICK = ("runtime", "skeleton", "compile_time", "card")  # each takes a minute or less
WORSE = 1.25
ROUNDS = 2
KEPT = history.FOLDER / "speed.jsonl"


def figures(python: Path, benchmark: str) -> dict[str, dict[str, Any]] | None:
    """Figures by name; None if the benchmark does not run on that commit."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "figures.json"
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        env |= {"SPYRE_FIGURES": str(result), "SPYRE_CACHE_DIR": f"{folder}/programs"}
        command = [str(python), str(ROOT / "benchmarks" / f"{benchmark}.py")]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        if not result.exists():
            print(f"{benchmark} on {python}: {(done.stderr or done.stdout)[-500:]}")
            return None
        return {figure["name"]: figure for figure in json.loads(result.read_text())}


def worse(base: dict[str, Any], head: dict[str, Any]) -> float:
    """How many times worse a figure became; below 1 it became better."""
    if not base["value"] or not head["value"]:
        return 1.0
    ratio = head["value"] / base["value"]
    return 1 / ratio if head["better"] == ">=" else ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("benchmarks", nargs="*", default=QUICK)
    options = parser.parse_args()
    end = time.monotonic() + options.minutes * 60
    commit = replay.git("rev-parse", "--short=12", f"{options.base}^{{commit}}")
    sides = {"base": replay.environment(commit), "head": Path(sys.executable)}
    flagged, compared = [], 0
    for benchmark in options.benchmarks:
        rounds: list[dict[str, Any]] = []
        for _ in range(ROUNDS):
            if time.monotonic() > end:
                break
            rounds.append({side: figures(python, benchmark) for side, python in sides.items()})
        if len(rounds) < ROUNDS or not all(r["head"] and r["base"] for r in rounds):
            print(f"{benchmark}: not compared")
            continue
        with KEPT.open("a") as file:
            file.write(
                json.dumps({"commit": replay.git("rev-parse", "HEAD"), "base": commit, "figures": rounds}) + "\n"
            )
        for name in rounds[0]["head"]:
            if not all(name in r["base"] for r in rounds):
                continue
            compared += 1
            ratios = [worse(r["base"][name], r["head"][name]) for r in rounds]
            mark = "SLOWER" if min(ratios) > WORSE else ""
            print(f"{benchmark:14} {name:60} {' '.join(f'{ratio:5.2f}' for ratio in ratios)}  {mark}")
            flagged += [f"{benchmark}: {name}"] if mark else []
    print(f"{compared} cases, {len(flagged)} failed")
    return int(bool(flagged))


if __name__ == "__main__":
    sys.exit(main())
