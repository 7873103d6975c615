# SPDX-License-Identifier: Apache-2.0
"""Timing and tables for the benchmarks: medians of interleaved samples, so that a noisy moment hits all contenders."""

from __future__ import annotations

import json
import operator
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

Action = Callable[[], object]

ROOT = Path(__file__).resolve().parents[1]

# Language models: tokens of a prompt, tokens before the first decoded one, tokens decoded in a row.
PROMPT, CONTEXT, STEPS = 512, 64, 32


def sample(action: Action, calls: int) -> float:
    """Seconds per call, averaged over `calls` calls in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        action()
    return (time.perf_counter() - start) / calls


def calls_for(action: Action, least_s: float) -> int:
    """Calls that together take at least `least_s`, so that the clock's own cost does not show."""
    calls = 1
    while (elapsed := sample(action, calls) * calls) < least_s:
        calls = max(calls * 2, int(calls * least_s / max(elapsed, 1e-9)))
    return calls


def interleaved(actions: Mapping[str, Action], rounds: int = 7, least_s: float = 0.02) -> dict[str, float]:
    """Median seconds per call of each action. Every round samples all of them once, after one warm-up call each."""
    for action in actions.values():
        action()
    calls = {name: calls_for(action, least_s) for name, action in actions.items()}
    samples: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            samples[name].append(sample(action, calls[name]))
    return {name: statistics.median(values) for name, values in samples.items()}


def once_each(actions: list[Action]) -> float:
    """Median seconds of actions that must not repeat, such as compilations."""
    return statistics.median(sample(action, 1) for action in actions)


@dataclass(frozen=True)
class Figure:
    """One line of the result: `value` should be `better` (">=", "<=" or "<") than `target`; None was not measured."""

    name: str
    value: float | None
    unit: str
    better: str
    target: float
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        compare = {">=": operator.ge, "<=": operator.le, "<": operator.lt}[self.better]
        return bool(compare(self.value, self.target))

    def cells(self) -> tuple[str, str, str, str, str]:
        verdict = {True: "met", False: "MISSED", None: "not measured"}[self.met]
        value = "–" if self.value is None else f"{self.value:.3g} {self.unit}"
        return self.name, value, f"{self.better} {self.target:g} {self.unit}", verdict, self.note


def print_table(figures: list[Figure]) -> None:
    rows = [("figure", "measured", "target", "verdict", ""), *(figure.cells() for figure in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for number, row in enumerate(rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths[:4]))


def finish(figures: list[Figure]) -> int:
    """Prints the table; with --strict the exit code tells whether every target was met.

    The file that SPYRE_FIGURES names gets the figures as JSON, for tests/nightly/speed.py.
    """
    print_table(figures)
    if file := os.environ.get("SPYRE_FIGURES"):
        Path(file).write_text(json.dumps([asdict(figure) for figure in figures]))
    return int("--strict" in sys.argv and not all(figure.met for figure in figures))


def machine_line() -> str:
    """What the figures were measured on, and how busy it was."""
    import torch

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((line.split(":", 1)[1].strip() for line in info.open() if line.startswith("model name")), cpu)
    load = os.getloadavg()[0]
    return (
        f"{cpu}, {os.cpu_count()} CPUs, {torch.get_num_threads()} torch threads, load {load:.1f}, "
        f"torch {torch.__version__}, Python {platform.python_version()}"
    )


if __name__ == "__main__":
    print(machine_line())
