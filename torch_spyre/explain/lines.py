# SPDX-License-Identifier: Apache-2.0
"""What each kernel takes, by the lines of the user's program: time, traffic, bottleneck, cores, variable.

All of it comes from the program that runs: its instructions know the line that they compute and, from the time model,
how long they take.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_spyre._inductor.debug.inspect import KernelRecord
from torch_spyre.perf.schedule import Step
from torch_spyre.profiler.programs import Described, describe

EAGER = "eager_"
_ASSIGNED = re.compile(r"^\s*([A-Za-z_][\w.\[\]'\"]*(?:\s*,\s*[A-Za-z_][\w.]*)*)\s*(?::[^=]*)?[-+*/@&|^%]?=(?!=)")


_PLACE = re.compile(r'"([^"]+)", line (\d+)')


@dataclass
class Line:
    """The instructions of one kernel that stand for the same lines: several where the compiler fused them."""

    places: tuple[tuple[str, int], ...]  # (file, line); empty: no line is known
    ops: dict[str, float] = field(default_factory=dict)  # operation -> nanoseconds
    units: dict[str, float] = field(default_factory=dict)  # bottleneck -> nanoseconds
    read_bytes: int = 0
    written_bytes: int = 0
    cores: int = 0

    @property
    def ns(self) -> float:
        return sum(self.units.values())

    @property
    def bottleneck(self) -> str:
        return max(self.units, key=lambda u: self.units[u]) if self.units else "launch"

    @property
    def source(self) -> list[str]:
        return [linecache.getline(file, number).strip() for file, number in self.places]

    @property
    def variable(self) -> str:
        """What the lines make: the names that they assign, or that they return."""
        return ", ".join(dict.fromkeys(name for line in self.source if (name := made(line))))

    @property
    def label(self) -> str:
        """Names of files without folders, and numbers."""
        files: dict[str, list[str]] = {}
        for file, number in self.places:
            files.setdefault(Path(file).name, []).append(str(number))
        return " ".join(f"{file}:{','.join(numbers)}" for file, numbers in files.items()) or "no line"

    def add(self, step: Step) -> None:
        self.ops[step.op] = self.ops.get(step.op, 0.0) + step.duration
        self.units[step.bottleneck] = self.units.get(step.bottleneck, 0.0) + step.duration
        self.read_bytes += step.read_bytes
        self.written_bytes += step.written_bytes
        self.cores = max(self.cores, step.work.cores)

    def names(self) -> str:
        """The operations without what they stand for."""
        return ", ".join(dict.fromkeys(op.partition(" (")[0] for op in self.ops))


def made(source: str) -> str:
    """The name that a line of a program assigns; "returned" for a return."""
    found = _ASSIGNED.match(source)
    return found[1] if found else "returned" if source.startswith("return ") else ""


@dataclass
class Explained:
    """One kernel: its program as the time model sees it, by line."""

    record: KernelRecord
    program: Described
    lines: list[Line]

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def eager(self) -> bool:
        return self.name.startswith(EAGER)

    @property
    def ns(self) -> float:
        return self.program.duration_ns

    @property
    def launch_ns(self) -> float:
        """What the instructions do not account for."""
        return max(self.ns - sum(line.ns for line in self.lines), 0.0)


def explained(record: KernelRecord) -> Explained:
    """A recorded kernel with its time and traffic by line."""
    program = describe(record.program.binary, record.name)
    found: dict[tuple[tuple[str, int], ...], Line] = {}
    for step in program.steps:
        places = places_of(step)
        found.setdefault(places, Line(places)).add(step)
    return Explained(record, program, list(found.values()))


def origin(step: Step) -> str:
    """What an instruction says about itself: ``kernel: node: aten ops at "file", line n, in function; ...``."""
    return (step.work.inst.origin if step.work.inst is not None else None) or ""


def places_of(step: Step) -> tuple[tuple[str, int], ...]:
    return tuple((file, int(number)) for file, number in _PLACE.findall(origin(step)))


def data(kernels: Sequence[Explained]) -> list[dict[str, Any]]:
    """Kernels as data."""
    return [
        {
            "kernel": k.name,
            "eager": k.eager,
            "us": k.ns / 1e3,
            "launch_us": k.launch_ns / 1e3,
            "bottleneck": k.program.bottleneck,
            "cores": max((line.cores for line in k.lines), default=0),
            "read_bytes": k.program.read_bytes,
            "written_bytes": k.program.written_bytes,
            "lx_bytes_per_core": k.program.lx_bytes,
            "macs": k.program.macs,
            "lines": [_line_data(line) for line in k.lines],
            "plan": k.record.text(),
        }
        for k in kernels
    ]


def _line_data(line: Line) -> dict[str, Any]:
    return {
        "lines": [f"{file}:{number}" for file, number in line.places],
        "source": line.source,
        "variable": line.variable,
        "us": line.ns / 1e3,
        "read_bytes": line.read_bytes,
        "written_bytes": line.written_bytes,
        "bottleneck": line.bottleneck,
        "cores": line.cores,
        "operations": {op: ns / 1e3 for op, ns in line.ops.items()},
    }


HEADER = ("kernel, line", "makes", "operations", "cores", "us", "%", "read", "written", "bottleneck")


def rows(kernels: Sequence[Explained]) -> list[tuple[bool, tuple[str, ...]]]:
    """Cells of the summary: for each kernel its sum, then its lines as the program runs them. True marks a sum."""
    whole = sum(k.ns for k in kernels) or 1.0
    found: list[tuple[bool, tuple[str, ...]]] = []
    for k in kernels:
        cores = str(max((line.cores for line in k.lines), default=0))
        amounts = _amounts(k.ns, whole, k.program.read_bytes, k.program.written_bytes)
        found.append((True, (k.name, "", "", cores, *amounts, k.program.bottleneck)))
        for line in k.lines:
            amounts = _amounts(line.ns, whole, line.read_bytes, line.written_bytes)
            what = (f"  {line.label}", line.variable, line.names(), str(line.cores))
            found.append((False, (*what, *amounts, line.bottleneck)))
        if k.launch_ns > 0.5:
            found.append((False, ("  launch", "", "", "", *_amounts(k.launch_ns, whole, 0, 0), "launch")))
    return found


def _amounts(ns: float, whole: float, read: int, written: int) -> tuple[str, ...]:
    return f"{ns / 1e3:.2f}", f"{100 * ns / whole:.1f}", mega(read), mega(written)


def mega(count: int) -> str:
    return f"{count / 1e6:.3f} MB" if count else "–"


def headline(kernels: Sequence[Explained]) -> str:
    total = sum(k.ns for k in kernels)
    moved = sum(k.program.read_bytes + k.program.written_bytes for k in kernels)
    files = {Path(file).name for k in kernels for line in k.lines for file, _ in line.places}
    where = f" from {', '.join(sorted(files))}" if files else ""
    count = f"{len(kernels)} kernel{'s' * (len(kernels) != 1)}"
    return f"{count}{where}: {total / 1e3:.2f} us on the card, {moved / 1e6:.3f} MB of memory traffic; each run once"
