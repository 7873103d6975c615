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

FILES = tuple(
    MEASURED / f"{name}.csv"
    for name in ("non_matmul", "matmul", "granite_matmul_splits", "sdsc_timed", "weight_layouts", "onchip_handoff")
)
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
    "thereof cut along M only",
    "matmul K splits",
    "thereof K cut by 8 and more",
    "matmul, split assumed",
    "weight layouts",
    "batched",
    "thereof attention, other splits",
    "thereof attention, K splits",
    "batched, shared weight",
    "batched, split assumed",
    "two products in one program",
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
    return [Prediction(row, price(work, row.on(device)).duration_ns / 1e3) for row, work in found if work is not None]


def by_class(predictions: Iterable[Prediction]) -> list[ClassError]:
    groups: dict[str, list[Prediction]] = defaultdict(list)
    for p in predictions:
        for group in (p.row.group, *p.row.also):
            groups[group].append(p)
    known = [g for g in ORDER if g in groups]
    table = []
    for group in known + sorted(set(groups) - set(known)):
        errors = [p.error for p in groups[group]]
        sizes = [abs(e) for e in errors]
        worst = max(groups[group], key=lambda p: abs(p.error))
        median, mean = statistics.median(sizes), statistics.fmean(sizes)
        table.append(ClassError(group, len(errors), median, mean, statistics.fmean(errors), worst))
    return table


@dataclass(frozen=True)
class Choice:
    """How well the model chooses among the measured splits of the same products."""

    problems: int
    regret: float  # measured time of the split it would choose, over that of the best one
    worst: float
    rank: float  # Spearman's correlation of predicted and measured times


def choices(predictions: Iterable[Prediction], kind: str = "") -> Choice:
    """`kind`: only the products of that kind, see `KINDS`."""
    problems: dict[str, list[Prediction]] = defaultdict(list)
    for p in predictions:
        if p.row.problem and kind in ("", _kind(p.row)):
            problems[p.row.problem].append(p)
    several = [c for c in problems.values() if len({p.row.label for p in c}) > 1]
    if not several:
        return Choice(0, 1.0, 1.0, 1.0)
    ratios = [min(c, key=lambda p: p.micros).row.micros / min(p.row.micros for p in c) for c in several]
    ranks = [_spearman(c) for c in several]
    return Choice(len(several), statistics.fmean(ratios), max(ratios), statistics.fmean(ranks))


KINDS = ("2-D products", "batched products", "attention products")


def _kind(row: Row) -> str:
    if row.group not in ("batched", "batched, shared weight"):
        return KINDS[0]
    return KINDS[2] if row.also else KINDS[1]


def _spearman(predictions: Sequence[Prediction]) -> float:
    measured = _ranks([p.row.micros for p in predictions])
    predicted = _ranks([p.micros for p in predictions])
    return statistics.correlation(measured, predicted) if len(set(measured)) > 1 < len(set(predicted)) else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Ties get their mean rank."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]


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
    """The table, how well the model chooses matmul splits, and what was not predicted."""
    parts = [table(predictions, held_out)]
    lines = []
    for kind in KINDS:
        seen, unseen = choices(predictions, kind), choices(held_out, kind)
        if seen.problems:
            left = (
                f" | {unseen.regret:.3f} | {unseen.worst:.3f} | {unseen.rank:.2f} |" if held_out else " | – | – | – |"
            )
            lines.append(f"| {kind} | {seen.problems} | {seen.regret:.3f} | {seen.worst:.3f} | {seen.rank:.2f}{left}")
    if lines:
        head = "| choice of split | problems | regret | worst | rank | shape left out: regret | worst | rank |"
        parts.append("\n".join((head, "|---|---:|---:|---:|---:|---:|---:|---:|", *lines)))
    skipped: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.build is None:
            skipped[row.group] += 1
        elif surveyed(row) is None:
            skipped[f"that do not compile ({row.group})"] += 1
    if skipped:
        parts.append("Not predicted: " + ", ".join(f"{n} rows {g}" for g, n in sorted(skipped.items())) + ".")
    return "\n\n".join(parts)
