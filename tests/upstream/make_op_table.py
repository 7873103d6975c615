# SPDX-License-Identifier: Apache-2.0
# python tests/upstream/make_op_table.py [--shard 1/4] [--again] [--minutes 20] [class or op ...]
"""Runs the ops of op_list.py and writes op_table.json; prints the pass rates.

Every finished op is kept in .op_table/, one file each with the messages of its failed samples, so that a stopped run
goes on where it was, shards can run on several machines, and a reason can be worded anew without a run. Names run in
the order given; `--again` forgets what is kept for the ops it runs. `--minutes` measures again what waited longest,
until the time is over: a few such runs measure everything, and rows that did not come up keep what they say.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
KEPT = HERE / ".op_table"


def kept(case: str) -> Path:
    return KEPT / f"{case.replace('/', '_')}.json"


def run_op(kind: str, case: str) -> str:
    import op_list
    import op_table
    import torch
    from groups import case_name

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    op = next(o for o in op_list.infos(kind) if case_name(o) == case)
    start, rows = time.time(), []
    for dtype, mode in op_list.runs(op):
        rows.append(op_table.measure(kind, op, dtype, mode, "spyre"))
    kept(case).write_text(json.dumps([{**asdict(row), "reasons": reasons} for row, reasons in rows]))
    bad = [f"{r.dtype} {r.mode}: {r.gap}" for r, _ in rows if not r.good]
    return f"{kind} {case}: {len(rows) - len(bad)} of {len(rows)} rows, {time.time() - start:.0f} s" + "".join(
        f"\n    {text[:300]}" for text in bad
    )


def _run_case(case: tuple[str, str]) -> str:
    return run_op(*case)


def merge() -> list[Any]:
    """What is kept, over what the table has; rows that op_list.py no longer names go."""
    import op_table

    rows = op_table.load()
    for file in KEPT.glob("*.json"):
        for row in json.loads(file.read_text()):
            reasons = row.pop("reasons")
            made = op_table.Row(**row)
            made.gap = op_table.why(made, reasons)
            rows[made.key] = made
    wanted = op_table.wanted()
    return [row for key, row in rows.items() if key in wanted]


def run_cases(todo: list[tuple[str, str]], jobs: int, minutes: float | None) -> int:
    """Measures ops, `jobs` at a time, until none is left or the time is over. How many were measured."""
    end, started, left = time.monotonic() + 60 * (minutes or math.inf), 0, deque(todo)
    # A fresh process now and then: every compiled graph stays in memory.
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=50) as pool:
        running: list[Any] = []
        while running or left:
            while left and len(running) < jobs and time.monotonic() < end:
                running.append(pool.apply_async(_run_case, (left.popleft(),)))
                started += 1
            if not running:
                break
            for result in [r for r in running if r.ready()]:
                running.remove(result)
                print(result.get(), flush=True)
            time.sleep(0.05)
    return started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shard", default="1/1", help="part of the ops to run, as number/count")
    parser.add_argument("--again", action="store_true", help="run also what is kept")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, help="measure what waited longest, for this time")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    os.environ.setdefault("SPYRE_CACHE_DIR", tempfile.mkdtemp(prefix="spyre-table-"))
    os.environ.setdefault("TORCH_LOGS", "-all")
    import op_list
    import op_table

    KEPT.mkdir(exist_ok=True)
    number, count = map(int, options.shard.split("/"))
    every = op_list.every_case()
    named = [(k, c) for name in options.names for k, c in every if name in (k, c)]
    cases = list(dict.fromkeys(named if options.names else every))[number - 1 :: count]
    if options.minutes is None:
        todo = [(k, c) for k, c in cases if options.again or not kept(c).exists()]
    else:
        todo = sorted(cases, key=lambda case: kept(case[1]).stat().st_mtime if kept(case[1]).exists() else 0)
    before = {key: row.good for key, row in op_table.load().items()}
    done = run_cases(todo, options.jobs, options.minutes)
    rows = merge()
    op_table.save(rows)
    print(op_table.summary(rows))
    worse = sorted(row.key for row in rows if before.get(row.key, False) and not row.good)
    print(*(f"worse: {key}" for key in worse), sep="\n")
    print(f"{done} of {len(todo)} ops measured")
    print(f"{sum(row.good for row in rows) + len(worse)} rows, {len(worse)} failed")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
