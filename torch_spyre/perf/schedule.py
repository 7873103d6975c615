# SPDX-License-Identifier: Apache-2.0
"""The static timeline, instruction by instruction: when each starts, what its units do, what is in LX meanwhile.

The clock prices a phase as a whole, because its instructions share memory. Here its duration is divided among them in
proportion to what each would take alone. The cores of one instruction are treated alike: the clock knows the busiest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch_spyre.backend.program.instructions import Operand, Program
from torch_spyre.backend.program.isa import ScalarKind, Space
from torch_spyre.ir.affine import Affine
from torch_spyre.perf import bandwidth, matmul, timeline
from torch_spyre.perf.device import Device, load
from torch_spyre.perf.survey import Survey, Work, operands_of, survey

UNITS = ("load", "PT", "SFP", "ring", "store")
_ORIGIN = re.compile(  # kernel: node: aten ops at "file", line n, in function
    r'^(?:[^:" ]*: )?(?:(?P<node>\w+): )?(?P<ops>[^"]*?) ?(?:at "(?P<file>[^"]+)", line (?P<line>\d+).*)?$'
)


@dataclass(frozen=True)
class Lane:
    """A unit at work; times in nanoseconds since the launch."""

    unit: str
    start: float
    duration: float


@dataclass(frozen=True)
class Step:
    """One tile instruction on all its cores."""

    work: Work
    start: float
    duration: float
    bottleneck: str
    lanes: tuple[Lane, ...]
    lx_bytes: int  # of one core, live while it runs

    @property
    def op(self) -> str:
        """The aten ops it stands for, or the instruction's own name."""
        return split_origin(self.work)[0]

    @property
    def line(self) -> str:
        """file:line of the user, or nothing."""
        return split_origin(self.work)[1]

    @property
    def macs(self) -> int:
        return self.work.points * self.work.cores if self.work.kind == "matmul" else 0

    @property
    def read_bytes(self) -> int:
        return sum(s.total for s in self.work.inputs if s.in_memory)

    @property
    def written_bytes(self) -> int:
        return self.work.output.core_bytes * self.work.cores if self.work.output.in_memory else 0


def split_origin(work: Work) -> tuple[str, str]:
    """(the operation and the aten ops it belongs to, file:line) of an instruction."""
    origin = (work.inst.origin if work.inst is not None else None) or ""
    found = _ORIGIN.match(origin)
    if found is None:
        return work.name, ""
    line = f"{found['file']}:{found['line']}" if found["file"] else ""
    name = re.sub(r"^n\d+_", "", found["node"] or "") or work.name
    aten = dict.fromkeys(op.strip().removeprefix("aten.").split(".")[0] for op in found["ops"].split(",") if op.strip())
    return f"{name} ({', '.join(aten)})" if aten else name, line


def integer_scalars(program: Program) -> list[int]:
    """Values for the launch scalars: they are operands and never bound a loop, so any will do."""
    return [1] * program.scalars.count(ScalarKind.INTEGER)


def schedule(program: Program, device: Device | None = None) -> list[Step]:
    return steps(survey(program, integer_scalars(program)), device or load())


def steps(found: Survey, device: Device) -> list[Step]:
    """All instructions in order, one after another; their durations and the launch add up to the program's."""
    result: list[Step] = []
    now = device["launch.device"] * 1e3
    occupied = iter(_occupancy([w for works in found.phases for w in works]))
    for works, trips in timeline.bodies(found.phases):
        total = timeline.combine(timeline.phase_times(works, device, trips), device)
        alone = [timeline.phase_times([w], device) for w in works]
        costs = [timeline.combine(times, device) for times in alone]
        whole = sum(costs)
        for work, times, cost in zip(works, alone, costs, strict=True):
            duration = total * cost / whole if whole else 0.0
            unit, lanes = _bottleneck(work, times, device), _lanes(work, now, duration, device)
            result.append(Step(work, now, duration, unit, lanes, next(occupied)))
            now += duration
    return result


def _bottleneck(work: Work, times: dict[str, float], device: Device) -> str:
    """The unit that takes longest; a matmul is bound by the array or by what feeds it."""
    unit = max(times, key=lambda u: times[u]) if times else "issue"
    if unit != "pt":
        return unit
    costs = matmul.price(work, device)
    return "pt" if costs["pt"] >= matmul.total(costs) / 2 and costs["pt"] > costs["memory"] else "memory"


def _lanes(work: Work, start: float, duration: float, device: Device) -> tuple[Lane, ...]:
    """What each unit does inside the instruction: loads begin with it, stores end with it."""
    busy = _matmul_units(work, device) if work.kind == "matmul" else _other_units(work, device)
    end = start + duration
    lanes = []
    for unit in UNITS:
        length = min(busy.get(unit, 0.0), duration)
        if length <= 0:
            continue
        first = start if unit == "load" else end - length if unit == "store" else start + (duration - length) / 2
        lanes.append(Lane(unit, first, length))
    return tuple(lanes)


def _matmul_units(work: Work, device: Device) -> dict[str, float]:
    costs = matmul.price(work, device)
    return {"load": costs["memory"] + costs["fill"], "PT": costs["pt"], "store": costs["write"]}


def _other_units(work: Work, device: Device) -> dict[str, float]:
    times = timeline.phase_times([work], device)
    read = sum(s.total for s in work.inputs if s.in_memory)
    written = work.output.core_bytes * work.cores if work.output.in_memory else 0
    moving = max(bandwidth.traffic([work], device), bandwidth.draw([work], device)) if read or written else 0.0
    share = read / (read + written) if read or written else 0.0
    return {"load": moving * share, "store": moving * (1 - share), "SFP": times["sfp"], "ring": times["ring"]}


def _occupancy(works: Sequence[Work]) -> list[int]:
    """LX bytes of one core that are live during each instruction: from the first write of a region to its last use."""
    regions: dict[tuple[Affine, int], list[int]] = {}
    for i, work in enumerate(works):
        for operand, size in _lx_operands(work):
            regions.setdefault((operand.offset, size), []).append(i)
    live = [0] * len(works)
    for (_, size), uses in regions.items():
        for i in range(uses[0], uses[-1] + 1):
            live[i] += size
    return live


def _lx_operands(work: Work) -> list[tuple[Operand, int]]:
    parts = operands_of(work.inst) if work.inst is not None else None
    if parts is None or work.kind == "store":  # the second output of an instruction that was seen before
        return []
    pairs = zip((parts[2], *parts[3]), (work.output, *work.inputs), strict=True)
    return [(o, s.core_bytes) for o, s in pairs if o.space is Space.LX]
