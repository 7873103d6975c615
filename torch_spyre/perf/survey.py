# SPDX-License-Identifier: Apache-2.0
"""The work in a program, without prices: one record for each tile instruction, grouped into phases.

A survey does not depend on the device description, so one survey serves many what-if prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from torch_spyre.backend.affine import Affine
from torch_spyre.backend.assembler import (
    CopyInst,
    Extent,
    Instruction,
    MatmulInst,
    Operand,
    Program,
    ReduceInst,
    RingSumInst,
    VopInst,
)
from torch_spyre.backend.isa import VOP_NAMES, Space
from torch_spyre.perf.access import UNKNOWN_DIM, Stream, Streams
from torch_spyre.perf.walk import Registers, Value, extents, walk


@dataclass(frozen=True, slots=True)
class Work:
    """One tile instruction on all its cores."""

    kind: str  # vop, reduce, copy, matmul, ringsum
    name: str  # operation of a vop, else the kind
    cores: int
    points: int  # iteration points of the busiest core
    inputs: tuple[Stream, ...]
    output: Stream
    box: tuple[int, ...]  # extents of the busiest core
    format: int
    ways: int = 1  # ringsum: cores that are summed; matmul: k slices whose partial results meet in a ringsum
    dirty: int = 0  # input bytes that this launch wrote before
    pattern: str = "same"  # copy: how source and destination orders differ, see _pattern


@dataclass
class Survey:
    cores: int
    phases: list[list[Work]] = field(default_factory=list)
    read_bytes: int = 0
    written_bytes: int = 0


def survey(program: Program, scalars: Sequence[int] = ()) -> Survey:
    """Walks the program once for all cores."""
    found = Survey(program.cores, [[]])
    partial = _partial_sums(program.instructions)
    written: set[int] = set()
    streams = Streams()
    for phase, inst, registers, active in walk(program, scalars):
        while len(found.phases) <= phase:
            found.phases.append([])
        work = _work(inst, registers, active, partial, written, streams)
        if work is None:
            continue
        found.phases[phase].append(work)
        found.read_bytes += sum(s.total for s in work.inputs if s.in_memory)
        if work.output.in_memory:
            found.written_bytes += work.output.core_bytes * work.cores
            written.add(work.output.arg)
    return found


def _partial_sums(instructions: Sequence[Instruction]) -> dict[Affine, int]:
    """LX offsets whose contents are summed over the ring, and over how many cores."""
    return {i.input.offset: i.count for i in instructions if isinstance(i, RingSumInst)}


def _operands(inst: Instruction) -> tuple[str, str, Operand, tuple[Operand, ...]] | None:
    match inst:
        case MatmulInst():
            return "matmul", "matmul", inst.c, (inst.a, inst.b)
        case VopInst():
            return "vop", VOP_NAMES[inst.op], inst.out, inst.inputs
        case ReduceInst():
            return "reduce", "reduce", inst.out, (inst.input,)
        case CopyInst():
            return "copy", "copy", inst.out, (inst.input,)
        case RingSumInst():
            return "ringsum", "ringsum", inst.out, (inst.input,)
    return None


def _work(
    inst: Instruction,
    registers: Registers,
    active: np.ndarray,
    partial: dict[Affine, int],
    written: set[int],
    streams: Streams,
) -> Work | None:
    parts = _operands(inst)
    if parts is None:
        return None
    kind, name, out, operands = parts
    dims: tuple[Extent, ...] = inst.dims  # type: ignore[attr-defined]
    sizes = extents(dims, registers)
    points: Value = 1
    for size in sizes:
        points = points * size
    if isinstance(points, np.ndarray):
        active = active & (points > 0)
    elif points == 0:
        return None
    if not active.any():
        return None
    batch = len(sizes) - 3 if kind == "matmul" else 0
    output = streams.of(out, dims, sizes, registers, active, batch)
    inputs = tuple(streams.of(o, dims, sizes, registers, active, batch) for o in operands)
    ways = inst.count if isinstance(inst, RingSumInst) else 1
    if isinstance(inst, MatmulInst) and out.space is Space.LX:
        ways = partial.get(out.offset, 1)
    busiest = int(points[active].max()) if isinstance(points, np.ndarray) else points
    box = tuple(int(s[active].max()) if isinstance(s, np.ndarray) else s for s in sizes)
    return Work(
        kind,
        name,
        int(active.sum()),
        busiest,
        inputs,
        output,
        box,
        operands[0].format if operands else out.format,
        ways,
        sum(s.total for s in inputs if s.in_memory and s.arg in written),
        _pattern(inputs[0], output) if kind == "copy" else "same",
    )


def _pattern(source: Stream, target: Stream) -> str:
    """restickify: another dim lies in the sticks; reorder: sticks follow another dim; gapped: only the pitch grows."""
    orders = source.order, target.order
    if not (source.in_memory and target.in_memory) or not all(orders) or UNKNOWN_DIM in orders[0] + orders[1]:
        return "same"
    if source.order[0] != target.order[0]:
        return "restickify"
    if min(map(len, orders)) > 1 and source.order[1] != target.order[1]:
        return "reorder"
    gap = target.pitch > max(target.run, source.pitch)
    return "gapped" if gap and source.order == target.order else "same"
