# SPDX-License-Identifier: Apache-2.0
# python tests/nightly/sampled_tests.py --minutes 30 [--marker slow] [path ...]
"""Runs slow tests for a given time: first those that failed last time, then those that never ran, then the oldest.

What each did, and when, is kept in `.nightly/slow_tests.json`, so that a few nights run all of them. The last line says
how many there are and how many have never run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import history

ROOT = Path(__file__).resolve().parents[2]
KEPT = history.FOLDER / "slow_tests.json"
BATCH_SECONDS = 240  # of expected work in one call of pytest
UNKNOWN_SECONDS = 8.0  # expected of a test that never ran
FIRST = {"failed": 0, "never": 1}


@dataclass
class Kept:
    outcome: str = "never"  # passed, failed, skipped
    seconds: float = UNKNOWN_SECONDS
    when: float = 0.0


def collected(marker: str, paths: list[str]) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marker, *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    ids = [line for line in done.stdout.splitlines() if "::" in line]
    if not ids:
        raise SystemExit(f"no tests:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return ids


def spread(ids: list[str]) -> list[str]:
    """The same ids, files taking turns: a file with thousands of cases does not hold up the others."""
    turns: dict[str, int] = {}
    order = []
    for number, test in enumerate(ids):
        file = test.split("::")[0]
        turns[file] = turns.get(file, -1) + 1
        order.append((turns[file], number, test))
    return [test for _, _, test in sorted(order)]


def by_need(ids: list[str], kept: dict[str, Kept]) -> list[str]:
    def need(test: str) -> tuple[int, float]:
        known = kept.get(test, Kept())
        return FIRST.get(known.outcome, 2), known.when

    return sorted(spread(ids), key=need)


def batches(ids: list[str], kept: dict[str, Kept]) -> Iterator[list[str]]:
    """Tests that together take some minutes; two run at a time."""
    batch: list[str] = []
    seconds = 0.0
    for test in ids:
        batch.append(test)
        seconds += kept.get(test, Kept()).seconds / 2
        if seconds >= BATCH_SECONDS or len(batch) >= 400:
            yield batch
            batch, seconds = [], 0.0
    if batch:
        yield batch


def run(batch: list[str], seconds: float) -> dict[str, Kept]:
    """What the tests of a batch did; those that did not finish in time are missing."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-n", "2", f"--junitxml={report}", "-o", "junit_family=xunit1"]
        # pytest ends by itself at the next test, and writes the report.
        words += [f"--session-timeout={max(60, int(seconds))}", *batch]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        if not report.exists():
            raise SystemExit(f"pytest gave no report:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        found = dict(results(report))
        if any(kept.outcome == "failed" for kept in found.values()):
            print(done.stdout[-20000:], flush=True)
        return found


def results(report: Path) -> Iterator[tuple[str, Kept]]:
    for case in ElementTree.parse(report).iter("testcase"):
        module, name = case.get("classname", ""), case.get("name", "")
        file = case.get("file") or module.replace(".", "/") + ".py"
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        yield f"{file}::{name}", Kept(outcome, float(case.get("time", 0)), time.time())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--marker", default="slow")
    parser.add_argument("paths", nargs="*", default=["tests"])
    options = parser.parse_args()
    end = time.monotonic() + options.minutes * 60
    kept = {k: Kept(**v) for k, v in json.loads(KEPT.read_text()).items()} if KEPT.exists() else {}
    ids = collected(options.marker, options.paths)
    tonight: dict[str, Kept] = {}
    for batch in batches(by_need(ids, kept), kept):
        left = end - time.monotonic()
        if left < 30:
            break
        tonight |= run(batch, left)
        kept = {test: known for test, known in (kept | tonight).items() if test in set(ids)}
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps({test: asdict(known) for test, known in kept.items()}, indent=0))
        print(f"{len(tonight)} of {len(ids)} run", flush=True)
    failed = [test for test, known in tonight.items() if known.outcome == "failed"]
    print(*failed, sep="\n")
    print(f"{len(ids)} tests are {options.marker}, {sum(test not in kept for test in ids)} of them never ran here")
    print(f"{len(tonight)} cases, {len(failed)} failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
