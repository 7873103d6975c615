# SPDX-License-Identifier: Apache-2.0
"""Time of programs with long loops: the timeline walks every trip, so only some trips of a long loop are walked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch_spyre.backend.program.instructions import EndLoopInst, Instruction, LoopInst, Program
from torch_spyre.backend.program.isa import ScalarKind
from torch_spyre.perf.timeline import Timeline, estimate

BUDGET = 5_000  # instructions that are walked at most, where loops have known bounds


def duration_ns(program: Program) -> int:
    """What one launch adds to the device clock. A loop that a launch scalar bounds counts as one trip."""
    return round(price(program, [1] * program.scalars.count(ScalarKind.INTEGER)).duration_ns)


def price(program: Program, scalars: Sequence[int] = ()) -> Timeline:
    """Time of one launch. Beyond the budget the outer loops are cut short and the result is scaled up."""
    executed = _executed(program.instructions)
    if executed <= BUDGET:
        return estimate(program, scalars)
    short = replace(program, instructions=_shortened(program.instructions, BUDGET / executed))
    factor = executed / _executed(short.instructions)
    found = estimate(short, scalars)
    return Timeline(
        found.duration_ns * factor,
        tuple((ns * factor, unit) for ns, unit in found.phases),
        round(found.read_bytes * factor),
        round(found.written_bytes * factor),
    )


def _trips(loop: LoopInst) -> int:
    """Trips of a loop with constant bounds; 1 where they depend on registers."""
    distance = loop.limit - loop.first
    return max(0, -(-distance.const // loop.step)) if distance.is_const else 1


def _executed(instructions: Sequence[Instruction]) -> int:
    total, factors = 0, [1]
    for inst in instructions:
        total += factors[-1]
        if isinstance(inst, LoopInst):
            factors.append(factors[-1] * _trips(inst))
        elif isinstance(inst, EndLoopInst):
            factors.pop()
    return total


def _shortened(instructions: Sequence[Instruction], share: float) -> list[Instruction]:
    """The outermost loops with that share of their trips, at least one; what is left to cut is cut inside them."""
    shortened: list[Instruction] = []
    shares = [share]
    for inst in instructions:
        if isinstance(inst, LoopInst):
            trips = _trips(inst)
            kept = max(1, round(trips * shares[-1])) if trips else 0
            if kept < trips:
                inst = replace(inst, limit=inst.first + kept * inst.step)
            shares.append(min(1.0, shares[-1] * trips / kept) if kept else 1.0)
        elif isinstance(inst, EndLoopInst):
            shares.pop()
        shortened.append(inst)
    return shortened
