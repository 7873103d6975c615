# SPDX-License-Identifier: Apache-2.0
"""What a profile says about a program: its ops and user lines, its traffic, what bounds it.

All of it is read from the program itself when a profile ends, so that launching costs nothing extra. Programs that
were described stay here under the id that traces show, for the exporter.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from torch_spyre.backend.program.decoder import decode
from torch_spyre.perf.device import Device, load
from torch_spyre.perf.schedule import Step, schedule

_known: dict[str, Described] = {}


@dataclass(frozen=True)
class Described:
    """A program on a described card."""

    id: str
    name: str
    cores: int
    lx_bytes: int
    duration_ns: float
    steps: tuple[Step, ...]

    @property
    def read_bytes(self) -> int:
        return sum(s.read_bytes for s in self.steps)

    @property
    def written_bytes(self) -> int:
        return sum(s.written_bytes for s in self.steps)

    @property
    def macs(self) -> int:
        return sum(s.macs for s in self.steps)

    @property
    def bottleneck(self) -> str:
        shares = totals((s.bottleneck, s.duration) for s in self.steps)
        return max(shares, key=lambda u: shares[u]) if shares else "launch"

    def pt_utilisation(self, device: Device) -> float:
        """Share of the card's fp16 peak."""
        peak = device["cores.count"] * device["pt.macs_fp16"] * device["cores.clock"]
        return self.macs / (peak * self.duration_ns) if self.duration_ns else 0.0


def totals(pairs: object) -> dict[str, float]:
    """Sums by key, in the order of first appearance."""
    result: dict[str, float] = {}
    for key, value in pairs:  # type: ignore[attr-defined]
        result[key] = result.get(key, 0.0) + value
    return result


def describe(binary: bytes, name: str = "") -> Described:
    ident = hashlib.sha256(binary).hexdigest()[:16]
    found = _known.get(ident)
    if found is None:
        program = decode(binary)
        steps = schedule(program)
        found = Described(ident, name, program.cores, program.lx_bytes, float(program.duration_ns), tuple(steps))
        _known[ident] = found
    return found


def known(ident: str) -> Described | None:
    """A program that was described in this process."""
    return _known.get(ident)


def metadata(binary: bytes, name: str) -> list[tuple[str, str]]:
    """(key, value as JSON) for the trace event of a kernel; called by the native profiler."""
    program = describe(binary, name)
    device = load()
    moved = program.read_bytes + program.written_bytes
    ns = max(program.duration_ns, 1.0)
    values = {
        "program": program.id,
        "cores": program.cores,
        "grid": [program.cores, 1, 1],
        "LX bytes per core": program.lx_bytes,
        "bytes read": program.read_bytes,
        "bytes written": program.written_bytes,
        "MACs": program.macs,
        "memory bandwidth (GB/s)": round(moved / ns, 3),
        "PT utilisation": round(program.pt_utilisation(device), 5),
        "bottleneck": program.bottleneck,
        "instructions": len(program.steps),
        "ops": _rounded(totals((s.op, s.duration) for s in program.steps)),
        "lines": _rounded(totals((s.line, s.duration) for s in program.steps if s.line)),
    }
    return [(key, json.dumps(value)) for key, value in values.items()]


def _rounded(shares: dict[str, float]) -> dict[str, int]:
    return {key: round(ns) for key, ns in shares.items()}
