# SPDX-License-Identifier: Apache-2.0
"""The work in a program, without prices: one record for each tile instruction, grouped into phases.

A survey does not depend on the device description, so one survey serves many what-if prices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from torch_spyre.backend.program.assembler import (
    ArgReduceInst,
    CopyInst,
    DimMap,
    Extent,
    GatherInst,
    IndexOperand,
    Instruction,
    IotaInst,
    MatmulInst,
    Operand,
    Program,
    ReduceInst,
    RingSumInst,
    ScanInst,
    ScatterInst,
    SortInst,
    VopInst,
)
from torch_spyre.backend.program.isa import VOP_NAMES, Space
from torch_spyre.ir.affine import Affine
from torch_spyre.perf.requests import UNKNOWN_DIM, Stream, Streams
from torch_spyre.perf.walk import Registers, Value, extents, walk

LANES = "lanes"  # a product of single columns, which the vector unit sums with batches in its lanes


@dataclass(frozen=True, slots=True)
class Work:
    """One tile instruction on all its cores."""

    kind: str  # vop, reduce (and other work along a dim), copy, gather, matmul, ringsum; store: a second output
    name: str  # operation of a vop, else the instruction
    cores: int
    points: int  # iteration points of the busiest core
    inputs: tuple[Stream, ...]
    output: Stream
    box: tuple[int, ...]  # extents of the busiest core
    format: int
    ways: int = 1  # ringsum: cores that are summed; matmul: k slices whose partial results meet in a ringsum
    dirty: int = 0  # input bytes that this launch wrote before
    pattern: str = "same"  # copy: how source and destination orders differ, see _pattern
    inst: Instruction | None = field(default=None, compare=False, repr=False)  # where it comes from


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
        for one in (work, *_second_output(inst, work, registers, active, streams)):
            found.phases[phase].append(one)
            found.read_bytes += sum(s.total for s in one.inputs if s.in_memory)
            if one.output.in_memory:
                found.written_bytes += one.output.core_bytes * one.cores
                written.add(one.output.arg)
    return found


def _partial_sums(instructions: Sequence[Instruction]) -> dict[Affine, int]:
    """LX offsets whose contents are summed over the ring, and over how many cores."""
    return {i.input.offset: i.count for i in instructions if isinstance(i, RingSumInst)}


def operands_of(inst: Instruction) -> tuple[str, str, Operand, tuple[Operand, ...]] | None:
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
    return _indexed_operands(inst)


def _indexed_operands(inst: Instruction) -> tuple[str, str, Operand, tuple[Operand, ...]] | None:
    match inst:
        case GatherInst():
            table = _reached(inst.table, inst.indices)
            return "gather", "gather", inst.out, (table, *(index.operand for index in inst.indices))
        case ScatterInst():
            table = _reached(inst.table, inst.indices)
            inputs = (inst.source, *(index.operand for index in inst.indices))
            return "gather", "scatter", table, (*inputs, table) if inst.accumulate else inputs
        case IotaInst():
            return "vop", "iota", inst.out, ()
        case ScanInst():
            return "reduce", "scan", inst.out, (inst.source,)
        case ArgReduceInst() | SortInst():
            out = inst.out_value or inst.out_index
            assert out is not None
            return "reduce", "sort" if isinstance(inst, SortInst) else "argreduce", out, (inst.source,)
    return None


def _reached(table: Operand, indices: Sequence[IndexOperand]) -> Operand:
    """The table as an operand that touches what the indices name: an entry along every dim in which one moves."""
    maps = list(cast(tuple[DimMap, ...], table.maps))
    offset = table.offset
    for index in indices:
        if not index.operand.maps:
            continue
        offset = offset + index.operand.offset  # cores with other indices reach other entries
        for dim, m in enumerate(cast(tuple[DimMap, ...], index.operand.maps)):
            if (m.inner or m.outer) and not (maps[dim].inner or maps[dim].outer):
                maps[dim] = index.along
    return dataclasses.replace(table, maps=tuple(maps), offset=offset)


def _output_dims(inst: Instruction, dims: tuple[Extent, ...]) -> tuple[Extent, ...]:
    if not isinstance(inst, SortInst):
        return dims
    return tuple(Extent.of(inst.k) if d == inst.dim else extent for d, extent in enumerate(dims))


def _passes(inst: Instruction) -> int:
    """How often the vector unit goes over the points: a sort merges runs that double."""
    return max(1, (inst.dims[inst.dim].cap - 1).bit_length()) if isinstance(inst, SortInst) else 1


def _work(
    inst: Instruction,
    registers: Registers,
    active: np.ndarray,
    partial: dict[Affine, int],
    written: set[int],
    streams: Streams,
) -> Work | None:
    parts = operands_of(inst)
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
    taps = inst.taps if isinstance(inst, MatmulInst) else 0
    batch = len(sizes) - 3 - taps if kind == "matmul" else 0
    out_dims = _output_dims(inst, dims)
    out_sizes = sizes if out_dims is dims else extents(out_dims, registers)
    output = streams.of(out, out_dims, out_sizes, registers, active, batch)
    inputs = tuple(streams.of(o, dims, sizes, registers, active, batch) for o in operands)
    ways = inst.count if isinstance(inst, RingSumInst) else 1
    if isinstance(inst, MatmulInst) and out.space is Space.LX:
        ways = partial.get(out.offset, 1)
    busiest = int(points[active].max()) if isinstance(points, np.ndarray) else points
    box = tuple(int(s[active].max()) if isinstance(s, np.ndarray) else s for s in sizes)
    work = Work(
        kind,
        name,
        int(active.sum()),
        busiest * _passes(inst),
        inputs,
        output,
        box,
        operands[0].format if operands else out.format,
        ways,
        sum(s.total for s in inputs if s.in_memory and s.arg in written),
        _pattern(inputs[0], output) if kind == "copy" else "same",
        inst,
    )
    if isinstance(inst, MatmulInst) and taps:
        maps = cast(tuple[DimMap, ...], inst.b.maps)
        return over_windows(work, 1 + taps, [not (m.inner or m.outer) for m in maps[:batch]])
    return work


def over_windows(work: Work, summed: int, shared: Sequence[bool]) -> Work:
    """A product that sums over `summed` dims, the last of its box: they are one k. Batches that share the right operand
    are rows. Windows overlap, and an element of the left operand is loaded once for all of them."""
    *batch, m, n = work.box[:-summed]
    together = math.prod(size for size, same in zip(batch, shared, strict=True) if same)
    apart = math.prod(batch) // together
    taps = math.prod(work.box[-summed:-1])
    a, b = work.inputs
    left = dataclasses.replace(a, core_bytes=-(-a.core_bytes // taps), total=-(-a.total // taps))
    box = (*((apart,) if apart > 1 else ()), together * m, n, taps * work.box[-1])
    return dataclasses.replace(work, name=LANES if n == 1 else work.name, box=box, inputs=(left, b))


def _second_output(
    inst: Instruction, work: Work, registers: Registers, active: np.ndarray, streams: Streams
) -> list[Work]:
    """The indices that an instruction writes next to its values: a store that costs the vector unit nothing more."""
    if not isinstance(inst, ArgReduceInst | SortInst) or inst.out_index is None or inst.out_value is None:
        return []
    dims = _output_dims(inst, inst.dims)
    output = streams.of(inst.out_index, dims, extents(dims, registers), registers, active)
    return [Work("store", work.name, work.cores, 0, (), output, work.box, inst.out_index.format)]


def _pattern(source: Stream, target: Stream) -> str:
    """restickify: another dim is in the sticks; reorder: sticks follow another dim; gapped: only the pitch grows."""
    orders = source.order, target.order
    if not (source.in_memory and target.in_memory) or not all(orders) or UNKNOWN_DIM in orders[0] + orders[1]:
        return "same"
    if source.order[0] != target.order[0]:
        return "restickify"
    if min(map(len, orders)) > 1 and source.order[1] != target.order[1]:
        return "reorder"
    gap = target.pitch > max(target.run, source.pitch)
    return "gapped" if gap and source.order == target.order else "same"
