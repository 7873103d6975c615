# SPDX-License-Identifier: Apache-2.0
"""What host threads did during launches of the card, stage by stage: the report of `llm_profile.py --timeline`.

A stage is work between two waits of the threads for each other: one unit that one thread runs, or several that threads
share. Quartiles over all launches of a kind, as other work on the machine shows in some of them.
"""

from __future__ import annotations

import bisect
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_spyre import _card

Span = tuple[str, str, int, int, int]  # kind, shape or numbers, thread, start and end in nanoseconds


@dataclass
class Stage:
    """Figures of one stage, one per launch, in microseconds."""

    units: int = 0
    wall: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    wait: list[float] = field(default_factory=list)  # from the end of the stage before to its first unit
    both: int = 0  # launches in which several threads took part
    kinds: Counter[str] = field(default_factory=Counter)


def record(step: Callable[[], Any], count: int) -> list[list[Span]]:
    steps = []
    torch.spyre.synchronize()
    for _ in range(count):
        _card.record_timeline(True)
        step()
        torch.spyre.synchronize()
        steps.append(_card.timeline())
    _card.record_timeline(False)
    return steps


def first_quartile(values: list[float]) -> float:
    return statistics.quantiles(values, n=4)[0] if len(values) > 1 else values[0]


def launches(spans: list[Span]) -> Iterator[tuple[Span, list[Span]]]:
    """Each launch by a schedule with what happened during it."""
    found = [s for s in spans if s[0] == "launch"]
    starts = [s[3] for s in spans]
    for launch in found:
        yield launch, spans[bisect.bisect_left(starts, launch[3]) : bisect.bisect_right(starts, launch[4])]


def stages(steps: list[list[Span]]) -> dict[str, dict[int, Stage]]:
    """By the numbers of the launch (stages x calls), by stage."""
    kinds: dict[str, dict[int, Stage]] = defaultdict(lambda: defaultdict(Stage))
    for spans in steps:
        for launch, inside in launches(spans):
            by_stage: dict[int, list[Span]] = defaultdict(list)
            for span in inside:
                if span[0] == "unit":
                    by_stage[int(span[1].split("x")[0])].append(span)
            before = launch[3]
            for number, units in sorted(by_stage.items()):
                start, end = min(u[3] for u in units), max(u[4] for u in units)
                stage = kinds[launch[1]][number]
                stage.units = len(units)
                stage.wall.append((end - start) / 1e3)
                stage.busy.append(sum(u[4] - u[3] for u in units) / 1e3)
                stage.wait.append(max(start - before, 0) / 1e3)
                stage.both += len({u[2] for u in units}) > 1
                calls = [s for s in inside if s[0] not in ("unit", "launch") and start <= s[3] < end]
                stage.kinds.update(f"{s[0]} {s[1]}" if s[0] == "MATMUL" else s[0] for s in calls)
                before = end
    return kinds


def report(step: Callable[[], Any], count: int) -> None:
    steps = record(step, count)
    by_kind = stages(steps)
    order = sorted(by_kind, key=lambda kind: -sum(sum(s.wall) for s in by_kind[kind].values()))
    for kind in order[:3]:
        times = len(by_kind[kind][0].wall)
        print(
            f"\nlaunches of {kind.replace('x', ' stages, ')} calls: {times / count:.0f} per step; first quartiles in us"
        )
        print(f"{'stage':>5}{'units':>7}{'wall':>9}{'busy':>9}{'wait':>7}{'shared':>8}  calls")
        for number, stage in sorted(by_kind[kind].items()):
            wall, busy, wait = (first_quartile(v) for v in (stage.wall, stage.busy, stage.wait))
            kinds = ", ".join(f"{n / times:.0f} {name}" for name, n in stage.kinds.most_common(4))
            shared = f"{stage.both / times:.0%}" if stage.units > 1 else ""
            print(f"{number:>5}{stage.units:>7}{wall:>9.1f}{busy:>9.1f}{wait:>7.1f}{shared:>8}  {kinds}")
