# SPDX-License-Identifier: Apache-2.0
"""Scratch allocation: temporaries get LX addresses above the planned area, by liveness.

A temporary lives from its first to its last mention; one that is mentioned both outside and inside a loop lives to the
end of the loop; one that other cores read lives on to the next barrier, before which they may not be done.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.assembler import Instruction, Operand
from torch_spyre.backend.program.isa import Space
from torch_spyre.backend.schedule.values import inputs_of, map_operands, outputs_of
from torch_spyre.constants import STICK_BYTES
from torch_spyre.ir.affine import Affine, is_scratch, scratch_symbol


class Scratch:
    """Temporaries of a program under construction."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def new(self, size: int) -> Affine:
        """The base of a new temporary, as a symbol that `assign` replaces by an address."""
        self.sizes.append(-(-size // STICK_BYTES) * STICK_BYTES)
        return Affine.symbol(scratch_symbol(len(self.sizes) - 1))


@dataclass
class _Life:
    symbol: int
    size: int
    first: int
    last: int
    remote: int = -1  # last read by another core


def assign(instructions: list[Instruction], scratch: Scratch, base: int) -> tuple[list[Instruction], int]:
    """Replaces scratch symbols by addresses from `base` on; returns the instructions and the end of the area."""
    if not scratch.sizes:
        return instructions, base
    base = -(-base // STICK_BYTES) * STICK_BYTES
    lives = _lives(instructions, scratch)
    addresses: dict[int, int] = {}
    active: list[_Life] = []
    end = base
    for life in sorted(lives, key=lambda x: x.first):
        active = sorted((a for a in active if a.last >= life.first), key=lambda a: addresses[a.symbol])
        address = base
        for other in active:
            if address + life.size <= addresses[other.symbol]:
                break
            address = max(address, addresses[other.symbol] + other.size)
        addresses[life.symbol] = address
        active.append(life)
        end = max(end, address + life.size)
    return [_resolve(inst, addresses) for inst in instructions], end


def fullest(instructions: list[Instruction], scratch: Scratch) -> str:
    """Where the largest temporary comes from, of those that are alive together when most of the area is taken."""
    lives = _lives(instructions, scratch)
    alive = [[x for x in lives if x.first <= life.first <= x.last] for life in lives]
    crowd = max(alive, key=lambda group: sum(x.size for x in group), default=[])
    largest = max(crowd, key=lambda x: x.size, default=None)
    return "" if largest is None else instructions[largest.first].origin or ""


def _lives(instructions: list[Instruction], scratch: Scratch) -> list[_Life]:
    lives: dict[int, _Life] = {}
    for index, inst in enumerate(instructions):
        for operand in (*outputs_of(inst), *inputs_of(inst)):
            for symbol in (s for s, _ in operand.offset.terms if is_scratch(s)):
                number = scratch_symbol(0) - symbol
                life = lives.setdefault(symbol, _Life(symbol, scratch.sizes[number], index, index))
                life.last = index
                if operand.space is Space.LX_REMOTE:
                    life.remote = index
    loops = _loops(instructions)
    barriers = [i for i, inst in enumerate(instructions) if isinstance(inst, asm.BarrierInst)]
    for life in lives.values():
        for start, stop in loops:
            if life.first < start < life.last < stop:
                life.last = stop
        if life.remote >= 0:
            after = bisect_left(barriers, life.remote)
            life.last = max(life.last, barriers[after] if after < len(barriers) else len(instructions))
    return list(lives.values())


def _loops(instructions: list[Instruction]) -> list[tuple[int, int]]:
    """Loops from the innermost out, so that lives that one loop extends are seen by the loops around it."""
    open_loops: list[int] = []
    loops: list[tuple[int, int]] = []
    for index, inst in enumerate(instructions):
        if isinstance(inst, asm.LoopInst):
            open_loops.append(index)
        elif isinstance(inst, asm.EndLoopInst):
            loops.append((open_loops.pop(), index))
    return loops


def _resolve(inst: Instruction, addresses: dict[int, int]) -> Instruction:
    return map_operands(inst, lambda operand: _resolve_operand(operand, addresses))


def _resolve_operand(operand: Operand, addresses: dict[int, int]) -> Operand:
    if not any(is_scratch(s) for s, _ in operand.offset.terms):
        return operand
    return replace(operand, offset=operand.offset.substitute(addresses))
