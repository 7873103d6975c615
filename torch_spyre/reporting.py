# SPDX-License-Identifier: Apache-2.0
"""``torch_spyre.report()``: what did not run as one graph on the card, and which line of the program asked for it.

Host fallbacks are counted by `ops/fallbacks.py`; graph breaks and recompiles are Dynamo's own records, of all devices,
since the process started or `torch._dynamo.reset()`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch_spyre._inductor.planned_sizes import exact_plans
from torch_spyre.ops import fallbacks


@dataclass(frozen=True)
class GraphBreak:
    """A place where Dynamo ended a graph. `reason` is its first line, `explanation` all it has to say."""

    line: str  # file:line
    function: str
    reason: str
    explanation: str
    count: int = 1


@dataclass(frozen=True)
class Recompile:
    """A function that was compiled again, and the guard that failed."""

    line: str  # file:line where the function begins
    function: str
    reason: str
    count: int = 1


@dataclass(frozen=True)
class PlannedPerSize:
    """A kernel with dynamic sizes that has no program for a bucket of sizes: each combination of them is planned."""

    kernel: str
    origin: str  # its first operation
    reason: str
    count: int = 1


class Report(tuple[fallbacks.Fallback, ...]):
    """The host fallbacks by falling traffic, with `graph_breaks`, `recompiles` and `planned_per_size`; prints as
    tables."""

    graph_breaks: tuple[GraphBreak, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    planned_per_size: tuple[PlannedPerSize, ...] = ()

    @property
    def fallbacks(self) -> tuple[fallbacks.Fallback, ...]:
        return tuple(self)

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "fallbacks": [asdict(row) for row in self],
            "graph_breaks": [asdict(row) for row in self.graph_breaks],
            "recompiles": [asdict(row) for row in self.recompiles],
            "planned_per_size": [asdict(row) for row in self.planned_per_size],
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        parts = ["no op fell back to cpu"]
        if self:
            calls = [(r.op, str(r.calls), f"{r.moved_bytes:,}", r.line, r.reason) for r in self]
            parts = [_table("host fallbacks", ("op", "calls", "bytes moved", "first called at", "why"), calls)]
        if self.graph_breaks:
            breaks = [(g.line, g.function, str(g.count), g.reason) for g in self.graph_breaks]
            parts.append(_table("graph breaks", ("at", "in", "times", "why"), breaks))
        if self.recompiles:
            again = [(r.line, r.function, str(r.count), r.reason) for r in self.recompiles]
            parts.append(_table("recompiles", ("of the function at", "name", "times", "why"), again))
        if self.planned_per_size:
            sizes = [(p.kernel, p.origin, str(p.count), p.reason) for p in self.planned_per_size]
            parts.append(_table("dynamic sizes planned one by one", ("kernel", "begins with", "plans", "why"), sizes))
        return "\n\n".join(parts)


def report() -> Report:
    made = Report(fallbacks.report())
    if "torch._dynamo" in sys.modules:
        made.graph_breaks = tuple(_graph_breaks())
        made.recompiles = tuple(_recompiles())
    made.planned_per_size = tuple(PlannedPerSize(*kernel, count) for kernel, count in exact_plans.items())
    return made


def _graph_breaks() -> Iterable[GraphBreak]:
    from torch._dynamo.utils import graph_break_reasons

    found: Counter[tuple[str, str, str, str]] = Counter()
    for broken in graph_break_reasons:
        frame = broken.user_stack[-1] if broken.user_stack else None
        line, function = (f"{frame.filename}:{frame.lineno}", frame.name) if frame else ("unknown", "")
        found[line, function, broken.reason.strip().partition("\n")[0], broken.reason.strip()] += 1
    return (GraphBreak(*place, count) for place, count in found.items())


def _recompiles() -> Iterable[Recompile]:
    from torch._dynamo.utils import get_compilation_metrics

    found: Counter[tuple[str, str, str]] = Counter()
    for done in get_compilation_metrics():
        if done.recompile_reason:
            line = f"{done.co_filename}:{done.co_firstlineno}"
            found[line, done.co_name or "", _guard(done.recompile_reason)] += 1
    return (Recompile(*place, count) for place, count in found.items())


def _guard(reason: str) -> str:
    """Dynamo's reason in one line, without the number of the compilation whose guard failed."""
    return " ".join(reason.split()).partition(": ")[2] or reason


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need, numbers to the right, the last as long as it is."""
    lines = [tuple(heads), *map(tuple, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads) - 1)]
    numbers = [all(row[i].replace(",", "").isdigit() for row in rows) for i in range(len(heads) - 1)]

    def padded(line: Sequence[str]) -> str:
        cells = [c.rjust(w) if n else c.ljust(w) for c, w, n in zip(line, widths, numbers, strict=False)]
        return "  " + "  ".join([*cells, line[-1]])

    return "\n".join([title, *map(padded, lines)])
