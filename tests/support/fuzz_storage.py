# SPDX-License-Identifier: Apache-2.0
# python tests/support/fuzz_storage.py --cases 2000
# python tests/sanitized.py address tests/support/fuzz_storage.py --cases 100000    (or: make test-asan)
"""Random shapes, views, layouts, checkpoints and native calls, sensible and absurd ones.

A case is made from its number alone, so that ``--case N`` repeats it. What the CPU accepts must give the same shape,
the same values and the same neighbours on the card; what it refuses must raise an error; nothing may crash. Cases run
in child processes: one that dies is reported with the case that it was in.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import math
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

KINDS: dict[str, int] = {"views": 46, "factories": 6, "layouts": 20, "checkpoints": 20, "calls": 8}
CHUNK = 5000  # cases of one process


def case_kind(draw: random.Random) -> str:
    return draw.choices(list(KINDS), list(KINDS.values()))[0]


def runners() -> dict[str, Callable[[random.Random], str]]:
    import fuzz_calls
    import fuzz_checkpoints
    import fuzz_layouts
    import fuzz_views

    return {
        "views": fuzz_views.run_views,
        "factories": fuzz_views.run_factories,
        "layouts": fuzz_layouts.run,
        "checkpoints": fuzz_checkpoints.run,
        "calls": fuzz_calls.run,
    }


def run_case(number: int, seed: int = 0) -> tuple[str, str]:
    """Kind and outcome of one case; raises if the card does not do what the CPU does."""
    draw = random.Random(f"{seed}/{number}")
    kind = case_kind(draw)
    return kind, runners()[kind](draw)


def run_range(first: int, last: int, seed: int, place: int | None = None) -> Counter[tuple[str, str]]:
    """Runs the cases one after the other; the number of each is written to the file `place` before it begins."""
    counts: Counter[tuple[str, str]] = Counter()
    for number in range(first, last):
        if place is not None:
            os.pwrite(place, f"{number:12d}".encode(), 0)
        try:
            counts[run_case(number, seed)] += 1
        except Exception:
            print(f"case {number} (seed {seed}):", traceback.format_exc(), file=sys.stderr, flush=True)
            counts["wrong", "failed"] += 1
    return counts


def child(first: int, last: int, seed: int, place: str) -> int:
    faulthandler.enable()
    with open(place, "r+b") as file:
        counts = run_range(first, last, seed, file.fileno())
    for (kind, outcome), n in sorted(counts.items()):
        print(f"count {kind} {outcome} {n}")
    return 1 if counts["wrong", "failed"] else 0


def run_child(first: int, last: int, seed: int) -> tuple[Counter[tuple[str, str]], list[str], int]:
    """Counts, failures and the first case that has not been run."""
    with tempfile.NamedTemporaryFile() as place:
        place.write(b" " * 12)
        place.flush()
        command = [sys.executable, __file__, "--child", str(first), str(last), place.name, "--seed", str(seed)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        reached = Path(place.name).read_text().strip()
    counts: Counter[tuple[str, str]] = Counter()
    for line in done.stdout.splitlines():
        word, *rest = line.split()
        if word == "count":
            counts[rest[0], rest[1]] += int(rest[2])
    if counts or not reached:
        why = [] if done.returncode == 0 else [f"cases {first} to {last}: exit code {done.returncode}"]
        return counts, why, last
    return counts, [f"case {reached} (seed {seed}) ended its process: exit code {done.returncode}"], int(reached) + 1


def run_all(cases: int, first: int, seed: int, minutes: float) -> int:
    counts: Counter[tuple[str, str]] = Counter()
    failures: list[str] = []
    begin, end, start = first, first + cases, time.monotonic()
    while begin < end and time.monotonic() - start < minutes * 60:
        found, failed, begin = run_child(begin, min(begin + CHUNK, end), seed)
        counts += found
        failures += failed
        seconds = time.monotonic() - start
        print(f"{begin - first} of {cases} cases, {len(failures)} failures, {seconds:.0f} s", flush=True)
    for (kind, outcome), n in sorted(counts.items()):
        print(f"  {kind:12} {outcome:12} {n:8}")
    print(*failures, sep="\n")
    print(f"{begin - first} cases, {len(failures)} failed")
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--minutes", type=float, help="instead of a number of cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="runs this one here")
    parser.add_argument("--child", nargs=3, metavar=("FIRST", "LAST", "FILE"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    if chosen.child:
        return child(int(chosen.child[0]), int(chosen.child[1]), chosen.seed, chosen.child[2])
    if chosen.case is not None:
        import fuzz_calls

        fuzz_calls.show = functools.partial(print, flush=True)
        print(*run_case(chosen.case, chosen.seed))
        return 0
    cases = chosen.cases if chosen.minutes is None else 10**9
    return run_all(cases, chosen.first, chosen.seed, chosen.minutes or math.inf)


if __name__ == "__main__":
    sys.exit(main())
