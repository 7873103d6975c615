# SPDX-License-Identifier: Apache-2.0
"""Error of the model against measurements: per class, in sample and with the shape left out of the fit."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_spyre.perf.calibration.measured_kernels import MEASURED, Row, load, surveyed
from torch_spyre.perf.device import Device
from torch_spyre.perf.timeline import price

FILES = (MEASURED / "non_matmul.csv", MEASURED / "matmul.csv")
ORDER = (
    "pointwise",
    "broadcast",
    "copy",
    "transpose",
    "concat",
    "reductions",
    "column sums",
    "softmax",
    "chains with LX",
    "chains without LX",
    "matmul 1-16 cores",
    "matmul 32 cores M/N splits",
    "matmul K splits",
    "matmul, split assumed",
    "batched",
    "batched, shared weight",
    "batched, split assumed",
)


@dataclass(frozen=True)
class Prediction:
    row: Row
    micros: float

    @property
    def error(self) -> float:
        """Signed relative error."""
        return self.micros / self.row.micros - 1


@dataclass(frozen=True)
class ClassError:
    group: str
    rows: int
    median: float
    mean: float
    bias: float
    worst: Prediction


def rows_of(paths: Iterable[str | Path] = ()) -> list[Row]:
    return [row for path in (tuple(paths) or FILES) for row in load(path)]


def predict(rows: Sequence[Row], device: Device) -> list[Prediction]:
    """Predictions of the rows that say how they were divided over the cores."""
    found = ((row, surveyed(row)) for row in rows)
    return [Prediction(row, price(work, device).duration_ns / 1e3) for row, work in found if work is not None]


def by_class(predictions: Iterable[Prediction]) -> list[ClassError]:
    groups: dict[str, list[Prediction]] = defaultdict(list)
    for p in predictions:
        groups[p.row.group].append(p)
    known = [g for g in ORDER if g in groups]
    table = []
    for group in known + sorted(set(groups) - set(known)):
        errors = [p.error for p in groups[group]]
        sizes = [abs(e) for e in errors]
        worst = max(groups[group], key=lambda p: abs(p.error))
        median, mean = statistics.median(sizes), statistics.fmean(sizes)
        table.append(ClassError(group, len(errors), median, mean, statistics.fmean(errors), worst))
    return table


def regret(predictions: Iterable[Prediction]) -> tuple[float, float, int]:
    """Measured time of the split the model would choose, over that of the best one: (mean, worst, problems)."""
    problems: dict[str, list[Prediction]] = defaultdict(list)
    for p in predictions:
        if p.row.problem:
            problems[p.row.problem].append(p)
    ratios = []
    for choices in problems.values():
        if len({c.row.label for c in choices}) < 2:
            continue
        chosen = min(choices, key=lambda c: c.micros)
        ratios.append(chosen.row.micros / min(c.row.micros for c in choices))
    return (statistics.fmean(ratios), max(ratios), len(ratios)) if ratios else (1.0, 1.0, 0)


def table(predictions: Sequence[Prediction], held_out: Sequence[Prediction] = ()) -> str:
    """The error table as Markdown; `held_out` are predictions with constants fitted without the row's shape."""
    left_out = {e.group: e for e in by_class(held_out)}
    lines = [
        "| class | rows | median % | mean % | bias % | worst % | worst row | shape left out: median % | mean % |",
        "|---|---:|---:|---:|---:|---:|---|---:|---:|",
    ]
    for e in by_class(predictions):
        cv = left_out.get(e.group)
        tail = f"{100 * cv.median:.1f} | {100 * cv.mean:.1f} |" if cv else "– | – |"
        lines.append(
            f"| {e.group} | {e.rows} | {100 * e.median:.1f} | {100 * e.mean:.1f} | {100 * e.bias:+.1f} | "
            f"{100 * e.worst.error:+.0f} | {' '.join(e.worst.row.label.split())} | {tail}"
        )
    return "\n".join(lines)


def report(rows: Sequence[Row], predictions: Sequence[Prediction], held_out: Sequence[Prediction] = ()) -> str:
    """The table, the regret of choosing matmul splits by the model, and what was not predicted."""
    parts = [table(predictions, held_out)]
    mean, worst, problems = regret(p for p in predictions)
    if problems:
        parts.append(f"Matmul split regret: {mean:.3f}x mean, {worst:.3f}x worst, {problems} problems.")
    skipped: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.build is None:
            skipped[row.group] += 1
        elif surveyed(row) is None:
            skipped[f"that do not compile ({row.group})"] += 1
    if skipped:
        parts.append("Not predicted: " + ", ".join(f"{n} rows {g}" for g, n in sorted(skipped.items())) + ".")
    return "\n\n".join(parts)
