# SPDX-License-Identifier: Apache-2.0
"""Blocks on the clock: compile a module, launch it once without arithmetic, and look at the programs it became."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torch_spyre import _C
from torch_spyre.errors import UnsupportedOp
from torch_spyre.perf.device import load
from torch_spyre.perf.schedule import Step
from torch_spyre.predict import coverage
from torch_spyre.profiler import programs


@dataclass(frozen=True)
class Timed:
    """What one call of a block does on the card. Times in nanoseconds."""

    name: str
    ns: float
    launches: int
    transfers: int  # more than none: a part ran on the host
    read_bytes: int
    written_bytes: int
    macs: int
    units: dict[str, float]  # nanoseconds by bottleneck
    classes: dict[str, float]  # nanoseconds by validated class
    plans: tuple[str, ...]  # one line for each matmul, in order
    peak_bytes: int  # most memory allocated beyond weights and inputs

    @property
    def bottleneck(self) -> str:
        return max(self.units, key=lambda u: self.units[u]) if self.units else "launch"

    @property
    def bandwidth(self) -> float:
        """GB/s."""
        return (self.read_bytes + self.written_bytes) / self.ns if self.ns else 0.0

    def utilisation(self) -> float:
        """Of the array's peak."""
        device = load()
        peak = device["cores.count"] * device["pt.macs_fp16"] * device["cores.clock"]
        return self.macs / (peak * self.ns) if self.ns else 0.0


def time_block(name: str, make: Callable[[], nn.Module], inputs: Callable[[], Sequence[Any]]) -> Timed:
    """Compiles the block and times one call. The card must be in timing-only mode."""
    torch._dynamo.reset()  # every block is a new one to Dynamo: no limit of recompilations
    module, args = make(), [a for a in inputs()]
    compiled = torch.compile(module, dynamic=False)
    with torch.no_grad():
        try:
            compiled(*args)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            raise UnsupportedOp(f"block {name!r} does not compile: {error.inner_exception}") from error
        torch.spyre.reset_peak_memory_stats()
        before = torch.spyre.memory_allocated()
        _C._record_activities(True)
        try:
            compiled(*args)
            torch.spyre.synchronize()
        finally:
            _C._record_activities(False)
    return _timed(name, _C._recorded_activities(), torch.spyre.max_memory_allocated() - before)


def _timed(name: str, activities: Sequence[Any], peak_bytes: int) -> Timed:
    launches = [(kernel, program, ns) for kernel, program, _, _, _, ns, _ in activities if program is not None]
    described = [programs.describe(program.binary, kernel) for kernel, program, _ in launches]
    steps = [s for d in described for s in d.steps]
    return Timed(
        name,
        float(sum(ns for _, _, ns in launches)),
        len(launches),
        len(activities) - len(launches),
        sum(s.read_bytes for s in steps),
        sum(s.written_bytes for s in steps),
        sum(s.macs for s in steps),
        programs.totals((s.bottleneck, s.duration) for s in steps),
        programs.totals((coverage.class_of(s.work), s.duration) for s in steps),
        _plans(steps),
        peak_bytes,
    )


def _plans(steps: Sequence[Step]) -> tuple[str, ...]:
    """One line for each matmul; the trips of a tile loop, which need not follow one another, count as one."""
    found: dict[str, list[Step]] = {}
    for s in steps:
        if s.work.kind == "matmul":
            origin = s.work.inst.origin if s.work.inst is not None else None
            found.setdefault(origin or s.op, []).append(s)
    return tuple(_plan(trips) for trips in found.values())


def _plan(trips: Sequence[Step]) -> str:
    """The part of one core in a matmul."""
    w = trips[0].work
    *batch, m, n, k = w.box
    split = f", k in {w.ways}" if w.ways > 1 else ""
    sizes = f"{math.prod(batch)}x{m}x{n}x{k}" if batch else f"{m}x{n}x{k}"
    loop = f", {len(trips)} trips" if len(trips) > 1 else ""
    total = sum(s.duration for s in trips)
    return f"{w.cores} cores x {sizes}{split}{loop}: {total / 1e3:.1f} us ({trips[0].bottleneck})"


def empties(device: str, *sizes: tuple[int, ...]) -> list[Tensor]:
    return [torch.empty(size, dtype=torch.float16, device=device) for size in sizes]


def indices(device: str, *size: int) -> Tensor:
    return torch.empty(size, dtype=torch.int32, device=device)
