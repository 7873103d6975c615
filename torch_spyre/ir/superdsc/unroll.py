# SPDX-License-Identifier: Apache-2.0
"""Tile loops without loops: each trip as ops of its own, because a SuperDSC names whole slices.

A dim of `slices` slices of `tile` elements, worked on in chunks, becomes two dims: one that counts slices, split over
the cores, and one that counts the elements of a chunk. Trip t starts ``t * chunk`` elements into each slice.
"""

from __future__ import annotations

from dataclasses import replace

from torch_spyre.errors import NotExpressible
from torch_spyre.ir.plan.tileops import Coord, Dim, Input, Kernel, Operand, Term, TileOp

MAX_OPS = 1024


def without_loops(kernel: Kernel) -> Kernel:
    """NotExpressible if chunks do not divide evenly or there would be too many ops."""
    if not kernel.loops:
        return kernel
    ops: list[TileOp] = []
    loops = {loop.begin: loop for loop in kernel.loops}
    at = 0
    while at < len(kernel.ops):
        loop = loops.get(at)
        if loop is None:
            ops.append(kernel.ops[at])
            at += 1
            continue
        for trip in range(loop.trips):
            ops += [_trip(op, trip) for op in kernel.ops[loop.begin : loop.end]]
        at = loop.end
        if len(ops) > MAX_OPS:
            raise NotExpressible(f"{kernel.name}: a tile loop that is more than {MAX_OPS} files without the loop")
    return replace(kernel, ops=tuple(ops), loops=())


def _trip(op: TileOp, trip: int) -> TileOp:
    """One trip of an op; the last of several chunked dims counts fastest."""
    for dim in reversed([d for d in op.dims if d.chunk]):
        trip, chunk = divmod(trip, -(-dim.extent // dim.chunk))
        op = _one_chunk(op, dim, chunk)
    return op


def _one_chunk(op: TileOp, dim: Dim, chunk: int) -> TileOp:
    start = chunk * dim.chunk
    count = min(dim.chunk, dim.extent - start)
    if count <= 0 or not dim.even or dim.name in op.reduced or dim.name == op.along:
        raise NotExpressible(f"op {op.name}: a tile loop over dim {dim.name}, whose slices are not alike")
    change = _Change(dim, f"{dim.name}.slice", start)
    dims: list[Dim] = []
    for d in op.dims:
        dims += [Dim(change.outer, d.slices, d.slices, 1), Dim(d.name, count)] if d is dim else [d]
    output = change.operand(op.output)
    assert isinstance(output, Operand)
    return replace(
        op,
        dims=tuple(dims),
        inputs=tuple(change.operand(x) for x in op.inputs),
        output=output,
        core_order=tuple(change.outer if d == dim.name else d for d in op.core_order),
    )


class _Change:
    """Rewrites coordinates over a chunked dim as those over its slices and one trip's elements."""

    def __init__(self, dim: Dim, outer: str, start: int) -> None:
        self.dim, self.outer, self.start = dim, outer, start

    def operand(self, source: Input) -> Input:
        if not isinstance(source, Operand):
            return source
        tensor = source.tensor
        first = 0 if tensor.chunked else self.start
        coords = tuple(self._coord(c, first) for c in source.coords)
        return Operand(replace(tensor, chunked=False), coords)

    def _coord(self, coord: Coord, first: int) -> Coord:
        terms: list[Term] = []
        const = coord.const
        for term in coord.terms:
            if term.dim != self.dim.name:
                terms.append(term)
                continue
            unit = term.div if not term.mod else term.div * term.mod
            if first % unit or self.dim.extent % unit:
                raise NotExpressible(f"a tile loop cuts dim {self.dim.name} inside units of {unit}")
            terms.append(term)
            if not term.mod:
                const += term.scale * (first // term.div)
                # In LX, where each core has its own slice, this term stays at 0; it still says that cores differ.
                terms.append(Term(self.outer, term.scale * (self.dim.extent // term.div)))
        return replace(coord, terms=tuple(terms), const=const)
