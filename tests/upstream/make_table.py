# SPDX-License-Identifier: Apache-2.0
# python tests/upstream/make_table.py [group or op ...]
"""Runs every op and dtype of the groups and writes op_groups.json; prints the pass rates."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]


def run_op(group: str, index: int) -> list[Any]:
    import groups
    import table

    warnings.simplefilter("ignore")
    op = groups.infos(group)[index]
    start, rows = time.time(), []
    for dtype in groups.dtypes_of(op):
        rows.append(table.measure(group, op, dtype, "spyre")[0])
    good = sum(row.good for row in rows)
    print(f"{group} {groups.case_name(op)}: {good} of {len(rows)} dtypes, {time.time() - start:.1f} s", flush=True)
    return rows


def main(names: list[str]) -> None:
    os.environ.setdefault("SPYRE_CACHE_DIR", tempfile.mkdtemp(prefix="spyre-table-"))
    os.environ.setdefault("TORCH_LOGS", "-all")
    import groups
    import table

    rows = table.load()
    cases = [(group, i, op) for group in groups.GROUPS for i, op in enumerate(groups.infos(group))]
    chosen = [(group, i) for group, i, op in cases if not names or {group, op.name} & set(names)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        jobs = [pool.submit(run_op, *case) for case in chosen]
        for job in as_completed(jobs):
            rows |= {(row.op, row.dtype): row for row in job.result()}
            table.save(list(rows.values()))  # at once: a stopped run keeps what it has
    print(table.summary(list(rows.values())))


if __name__ == "__main__":
    main(sys.argv[1:])
