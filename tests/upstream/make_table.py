# SPDX-License-Identifier: Apache-2.0
# python tests/upstream/make_table.py [group ...]
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

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]


def run_op(group: str, index: int) -> list[object]:
    import groups
    import table

    warnings.simplefilter("ignore")
    op = groups.infos(group)[index]
    start, rows = time.time(), []
    for dtype in groups.dtypes_of(op):
        rows.append(table.measure(group, op, dtype, "spyre")[0])
    good = sum(row.good for row in rows)
    print(f"{group} {groups.case_name(op)}: {good} of {len(rows)} dtypes, {time.time() - start:.1f} s", flush=True)
    return list(rows)


def main(names: list[str]) -> None:
    os.environ.setdefault("SPYRE_CACHE_DIR", tempfile.mkdtemp(prefix="spyre-table-"))
    os.environ.setdefault("TORCH_LOGS", "-all")
    import groups
    import table

    chosen = names or list(groups.GROUPS)
    rows = [row for row in table.load().values() if row.group not in chosen]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        jobs = [pool.submit(run_op, group, i) for group in chosen for i in range(len(groups.infos(group)))]
        for job in as_completed(jobs):
            rows.extend(job.result())
    table.save(rows)
    print(table.summary(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
