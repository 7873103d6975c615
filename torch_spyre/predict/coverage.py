# SPDX-License-Identifier: Apache-2.0
"""How much of a prediction the clock was checked on: classes of work, and their error against measurements.

The errors are those of ``spyre-perf validate``, with the shape left out of the fit, and of the published timings of
weight streaming, seven of which took no part in it. ``python -m torch_spyre.predict.coverage`` computes them again.
"""

from __future__ import annotations

import csv
import functools
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from torch_spyre.perf.batches import tile_of
from torch_spyre.perf.calibration import validate
from torch_spyre.perf.calibration.calibrate import leave_one_shape_out
from torch_spyre.perf.calibration.measured_kernels import MEASURED
from torch_spyre.perf.device import load
from torch_spyre.perf.survey import Work

FEW_ROWS = 64  # published timings of weight streaming have up to so many rows, other matmuls more
SENSIBLE = 1.25  # times the best measured split
ERRORS = MEASURED / "errors.csv"
UNCHECKED = "not checked"
UNCHECKED_ERROR = 0.5  # assumed: laws for other work were off by so much where measurements came later


@dataclass(frozen=True)
class ClassError:
    rows: int
    median: float
    mean: float


@functools.cache
def errors() -> dict[str, ClassError]:
    with ERRORS.open() as file:
        return {
            r["class"]: ClassError(int(r["rows"]), float(r["median"]), float(r["mean"])) for r in csv.DictReader(file)
        }


def class_of(work: Work) -> str:
    """The validated class that an instruction belongs to; one that begins with `UNCHECKED` has no measurements."""
    match work.kind:
        case "matmul":
            return _matmul_class(work)
        case "ringsum":
            return "matmul K splits"
        case "reduce" if work.name == "reduce":
            return "reductions"
        case "copy":
            known = {"same": "copy", "restickify": "transpose", "reorder": "transpose", "gapped": "concat"}
            return known[work.pattern]
        case "vop" if work.inputs:
            return _vector_class(work)
    return f"{UNCHECKED}: {work.name}"


def _matmul_class(work: Work) -> str:
    rows = work.box[-3] * max(1, work.cores // max(1, work.inputs[0].cohort))
    if len(work.box) > 3:
        return "batched, shared weight" if tile_of(work, load()).shared_weight else "batched"
    if rows <= FEW_ROWS:
        return "weight streaming"
    if work.ways > 1:
        return "matmul K splits"
    return "matmul 32 cores M/N splits" if work.cores > 16 else "matmul 1-16 cores"


def _vector_class(work: Work) -> str:
    if all(not s.in_memory for s in work.inputs):
        return "chains with LX"
    small = any(0 < s.core_bytes < work.output.core_bytes // 2 for s in work.inputs)
    return "broadcast" if small else "pointwise"


def checked_share(classes: dict[str, float]) -> float:
    """Share of the time that belongs to validated classes."""
    total = sum(classes.values())
    return sum(ns for name, ns in classes.items() if name in errors()) / total if total else 0.0


def expected_error(classes: dict[str, float]) -> float:
    """Of the whole time: the mean absolute error of each class, weighted by time. Errors of kernels do not cancel out:
    a model repeats the same few. Work without measurements counts with `UNCHECKED_ERROR`."""
    total = sum(classes.values())
    known = errors()
    means = ((ns, known[name].mean if name in known else UNCHECKED_ERROR) for name, ns in classes.items())
    return sum(ns * mean for ns, mean in means) / total if total else 0.0


def streaming() -> list[tuple[str, float, float]]:
    """(shape, measured, predicted) microseconds of the published weight streams, planned by our compiler."""
    import torch

    from torch_spyre.predict.measure import empties, time_block  # late: start-up
    from torch_spyre.predict.timing import timing_only  # late: start-up

    class Product(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return x @ w

    found = []
    with (MEASURED / "hbm_bandwidth.csv").open() as file:
        for row in csv.DictReader(file):
            shape = re.match(r"weight stream M=(\d+) (\d+)x(\d+)", row["test"])
            if shape is None:
                continue
            m, k, n = map(int, shape.groups())
            with timing_only():
                timed = time_block(row["test"], Product, functools.partial(empties, "spyre", (m, k), (k, n)))
            found.append((row["test"], float(row["time_us"]), timed.ns / 1e3))
    return found


def few_rows(predictions: Sequence[validate.Prediction]) -> list[validate.Prediction]:
    """Products of few rows among the measured splits, but for splits that no planner would choose."""
    problems: dict[str, list[validate.Prediction]] = {}
    for p in predictions:
        batch, m, _, _ = map(int, p.row.shape.split("x")) if p.row.problem else (0, 0, 0, 0)
        if batch == 1 and m <= FEW_ROWS:
            problems.setdefault(p.row.problem, []).append(p)
    best = {name: min(p.row.micros for p in found) for name, found in problems.items()}
    return [p for found in problems.values() for p in found if p.row.micros <= SENSIBLE * best[p.row.problem]]


def _write() -> None:
    rows = validate.rows_of()
    held_out = leave_one_shape_out(rows, load())
    streams = streaming()
    sizes = [abs(predicted / measured - 1) for _, measured, predicted in streams]
    sizes += [abs(p.error) for p in few_rows(held_out)]
    median, mean = statistics.median(sizes), statistics.fmean(sizes)
    with ERRORS.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("class", "rows", "median", "mean"))
        for e in validate.by_class(held_out):
            out.writerow((e.group, e.rows, f"{e.median:.4f}", f"{e.mean:.4f}"))
        out.writerow(("weight streaming", len(sizes), f"{median:.4f}", f"{mean:.4f}"))
    for label, measured, predicted in streams:
        error = 100 * (predicted / measured - 1)
        print(f"{error:+6.1f} %  measured {measured:7.1f} us  clock {predicted:7.1f} us  {label}")
    print(ERRORS.read_text())


if __name__ == "__main__":
    _write()
