# SPDX-License-Identifier: Apache-2.0
"""The static timeline of a program: how long each phase takes on the described card, and what bounds it.

`survey` walks the program once; the laws of `memory.py` and `matmul.py` and the unit rates price what it found. Inside
a phase memory, the vector units and the LX ports overlap; matmuls, which own the array and the streams, do not overlap
with other instructions; phases follow one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_spyre.backend.program.assembler import Program
from torch_spyre.backend.program.isa import Space
from torch_spyre.perf import bandwidth, matmul
from torch_spyre.perf.device import Device, load
from torch_spyre.perf.survey import Survey, Work, survey

_SLOW = frozenset({"exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "div", "gelu"})


@dataclass(frozen=True)
class Timeline:
    """What `estimate` found. Times in nanoseconds."""

    duration_ns: float
    phases: tuple[tuple[float, str], ...]  # (duration, bottleneck)
    read_bytes: int
    written_bytes: int

    @property
    def bottleneck(self) -> str:
        total: dict[str, float] = {}
        for ns, unit in self.phases:
            total[unit] = total.get(unit, 0.0) + ns
        return max(total, key=lambda u: total[u]) if total else "launch"


def estimate(program: Program, scalars: Sequence[int] = (), device: Device | None = None) -> Timeline:
    """Time of one launch with the given integer launch scalars."""
    return price(survey(program, scalars), device or load())


def price(found: Survey, device: Device) -> Timeline:
    """Time of a surveyed program on a described card."""
    rows = []
    for works, trips in bodies(found.phases):
        times = phase_times(works, device, trips)
        unit = max(times, key=lambda u: times[u]) if times else "launch"
        rows.append((combine(times, device), unit))
    duration = device["launch.device"] * 1e3 + sum(ns for ns, _ in rows)
    return Timeline(duration, tuple(rows), found.read_bytes, found.written_bytes)


def bodies(phases: Sequence[list[Work]]) -> list[tuple[list[Work], int]]:
    """Phases, with equal neighbours (the trips of a tile loop) joined: (instructions of all trips, trips)."""
    found: list[tuple[list[Work], int]] = []
    last = None
    for works in phases:
        signature = [(w.kind, w.name, w.box, w.output.space) for w in works]
        if found and signature == last and works:
            joined, trips = found[-1]
            found[-1] = (joined + works, trips + 1)
        else:
            found.append((works, 1))
        last = signature
    return found


def combine(times: dict[str, float], device: Device) -> float:
    """Memory and vector units overlap, less well the closer they are; matmuls, ring, exposed work and issue add up."""
    power = device["sfp.overlap"]
    moved = max(times.get("memory", 0.0), times.get("draw", 0.0))
    worked = max(times.get("sfp", 0.0), times.get("lx", 0.0))
    longest = max(moved, worked)
    overlap = longest * (1 + (min(moved, worked) / longest) ** power) ** (1 / power) if longest else 0.0
    return overlap + sum(times.get(u, 0.0) for u in ("pt", "ring", "exposed", "issue"))


def phase_times(works: Sequence[Work], device: Device, trips: int = 1) -> dict[str, float]:
    """Nanoseconds each resource needs for the instructions between two barriers, or for all trips of a tile loop."""
    if not works:
        return {}
    others = [w for w in works if w.kind != "matmul"]
    times = {"issue": device["launch.loop_trip"] * 1e3 * len(works)}
    times["pt"] = sum(matmul.total(matmul.price(w, device)) for w in works if w.kind == "matmul")
    times["ring"] = sum(_ring(w, device) for w in others)
    if others:
        times["memory"] = bandwidth.traffic(others, device)
        times["draw"] = bandwidth.draw(others, device)
        times["sfp"] = sum(_vector(w, device) for w in others)
        port = device["cores.lx_port"] * device["cores.clock"]
        times["lx"] = sum(s.core_bytes for w in others for s in (*w.inputs, w.output) if s.space is Space.LX) / port
        if trips > 1:
            # Each trip loads, computes and stores; the next trip's loads hide only a part of the computing.
            times["exposed"] = device["sfp.exposed"] * min(times["sfp"], times["memory"])
    return times


def _ring(work: Work, device: Device) -> float:
    if work.kind == "ringsum":
        return matmul.ring(work, device)
    remote = sum(s.core_bytes for s in work.inputs if s.space is Space.LX_REMOTE)
    return remote / device["ring.bandwidth"]


def _vector(work: Work, device: Device) -> float:
    """Nanoseconds on the vector units of the busiest core."""
    if work.kind in ("ringsum", "store"):
        return 0.0
    rate = device[_rate(work)]
    if all(s.space is not Space.MEM for s in work.inputs):
        rate *= device["sfp.lx_speedup"]
    return work.points / rate


def _rate(work: Work) -> str:
    if work.kind == "reduce":
        return "sfp.reduce"
    if work.kind == "copy":
        return "sfp.copy" if work.pattern == "same" else "sfp.restickify"
    if work.kind == "gather":
        return "sfp.copy"
    if work.name in _SLOW:
        return "sfp.transcendental"
    if len(work.inputs) <= 1:
        return "sfp.unary"
    full = [s for s in work.inputs if s.core_bytes >= work.output.core_bytes]
    return "sfp.simple" if len(full) > 1 else "sfp.resident"
