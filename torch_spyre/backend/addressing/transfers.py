# SPDX-License-Identifier: Apache-2.0
"""Moves: the pieces of an access tile to and from scratch.

Loads and stores that instructions cannot do in place come here: tiles that their coordinate set cuts, tiles over
several parts of a distributed view, gathers and scatters, and scratchpads of other cores.
"""

from __future__ import annotations

from dataclasses import replace

from xdsl.ir import SSAValue

from torch_spyre.backend.addressing.access_tiles import Access, Piece, Tile
from torch_spyre.backend.addressing.subscripts import Index
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.assembler import DimMap, LayoutMap, Operand
from torch_spyre.backend.program.instructions import IndexOperand
from torch_spyre.backend.program.isa import IEEE_INT32, MAX_INDICES, Compute, Sop, Space
from torch_spyre.backend.schedule.values import Splat, clobbers, embed, is_linear, sub_box
from torch_spyre.backend.select.selector import Selector
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.affine import CORE_ID, ZERO, Affine


def fetch(selector: Selector, access: Access, masked: bool = False) -> Tile:
    """The tile in scratch; what is outside the coordinate set is 0."""
    tile = selector.new_scratch(access.dims, access.view.format)
    if not access.complete:
        zero = selector.number(0, access.view.format)
        selector.emit(selector.vop("identity", zero[1], tile.dims, tile.operand, (zero[0],)))
    for piece in reversed(access.pieces):  # where parts overlap, the first one counts
        _fetch_piece(selector, piece, replace(tile.operand, offset=sub_box(tile.operand, piece.start).offset), masked)
    return tile


def _fetch_piece(selector: Selector, piece: Piece, out: Operand, masked: bool) -> None:
    origin = selector.stream.origin
    if piece.indices:
        indices = _index_operands(selector, piece)
        selector.emit(asm.GatherInst(piece.dims, out, piece.operand, indices, masked, origin=origin))
    elif piece.owner is None:
        selector.emit(asm.CopyInst(piece.dims, out, piece.operand, origin=origin))
    else:
        _fetch_remote(selector, piece, out)


def _plain(operand: Operand) -> Operand:
    if isinstance(operand.maps, LayoutMap):
        raise UnsupportedOp("an accumulating store whose subscripts do not separate; store to a plain tensor first")
    return operand


def _index_operands(selector: Selector, piece: Piece) -> tuple[IndexOperand, ...]:
    found: list[IndexOperand] = []
    for index in piece.indices:
        if index.counts is not None:
            found += _digits(selector, index, piece)
        else:
            found.append(_index_operand(selector, index, len(piece.dims)))
    if len(found) > MAX_INDICES:
        raise UnsupportedOp(f"a gather or scatter that takes {len(found)} indices; an instruction has {MAX_INDICES}")
    return tuple(found)


def _index_operand(selector: Selector, index: Index, rank: int) -> IndexOperand:
    if index.symbol is not None:
        operand = embed(selector.data_tile(index.symbol).operand, (), rank)
    else:
        tile = index.access.tile
        if tile is None or isinstance(tile.operand.maps, LayoutMap):
            tile = fetch(selector, index.access)
        operand = tile.operand
    return IndexOperand(operand, DimMap(index.along), index.limit)


def _digits(selector: Selector, index: Index, piece: Piece) -> list[IndexOperand]:
    """A sum that counts elements, and the bytes of its digits: one index for the two lowest, one for each above."""
    counts, levels = index.counts, list(index.levels)
    assert counts is not None
    positions = [variable for variable, _ in counts.terms]
    dims = tuple(piece.dims[p] for p in positions)
    value = selector.new_scratch(dims, IEEE_INT32).operand
    steps = tuple(DimMap(coefficient) for _, coefficient in counts.terms)
    selector.emit(asm.IotaInst(dims, value, counts.offset, steps, origin=selector.stream.origin))
    found = []
    limit = index.limit
    while len(levels) > 2:
        start, stride = levels.pop()
        high, value = _divided(selector, value, start, dims)
        found.append(IndexOperand(embed(high, positions, len(piece.dims)), DimMap(stride), -(-limit // start)))
        limit = start
    inner = levels[0][1]
    along = DimMap(inner) if len(levels) == 1 else DimMap(inner, *levels[1])
    return [*found, IndexOperand(embed(value, positions, len(piece.dims)), along, limit)]


def _divided(selector: Selector, value: Operand, divisor: int, dims: tuple[asm.Extent, ...]) -> tuple[Operand, Operand]:
    """Quotient and remainder of numbers that are not negative."""
    number = selector.number(divisor, IEEE_INT32)[0]
    quotient, below, rest = (selector.new_scratch(dims, IEEE_INT32).operand for _ in range(3))
    for name, out, inputs in (
        ("div", quotient, (value, number)),
        ("mul", below, (quotient, number)),
        ("sub", rest, (value, below)),
    ):
        selector.emit(selector.vop(name, Compute.I32, dims, out, inputs))
    return quotient, rest


def _fetch_remote(selector: Selector, piece: Piece, out: Operand) -> None:
    """From the scratchpad of a named core: over the ring, except on that core itself."""
    stream = selector.stream
    owner = piece.owner
    assert owner is not None
    active = stream.active_cores()
    local = asm.CopyInst(piece.dims, out, piece.operand, origin=stream.origin)
    if active == [owner]:
        selector.emit(local)
        return
    selector.before_remote_read()
    distance = stream.scalar(Sop.MAX, CORE_ID - owner, Affine(owner) - CORE_ID)
    with stream.guard(-distance):
        selector.emit(local)
    remote = replace(piece.operand, space=Space.LX_REMOTE, core=Affine(owner))
    with stream.guard(distance - 1):
        selector.emit(asm.CopyInst(piece.dims, out, remote, origin=stream.origin))
    selector.after_remote_read()


# -- stores ------------------------------------------------------------------------------------------------------------


def put(selector: Selector, value: SSAValue, access: Access, accumulate: bool, masked: bool) -> None:
    """Writes a tensor value to the pieces of a tile; what is outside the coordinate set is dropped."""
    found = selector.value(value)
    needs_data = accumulate or any(piece.indices for piece in access.pieces)
    if isinstance(found, Splat) and not needs_data:
        for piece in access.pieces:
            _on_owner(selector, piece, lambda p=piece: selector.fill(Tile(p.operand, p.dims), value))
        return
    source = selector.tile(value, access.dims)
    moved = any(first != ZERO for piece in access.pieces for first in piece.start)
    scatters = any(piece.indices for piece in access.pieces)
    overlaps = any(
        clobbers(piece.operand, [source.operand], piece.dims, selector.stream, not scatters) for piece in access.pieces
    )
    if overlaps or (moved and not is_linear(source.operand)) or isinstance(source.operand.maps, LayoutMap):
        source = selector.copied(source)
    for piece in access.pieces:
        part = replace(source.operand, offset=sub_box(source.operand, piece.start).offset) if moved else source.operand
        _on_owner(selector, piece, lambda p=piece, s=part: _put_piece(selector, p, s, accumulate, masked))


def _put_piece(selector: Selector, piece: Piece, source: Operand, accumulate: bool, masked: bool) -> None:
    origin = selector.stream.origin
    if piece.indices:
        indices = _index_operands(selector, piece)
        selector.emit(asm.ScatterInst(piece.dims, piece.operand, source, indices, accumulate, masked, origin=origin))
    elif accumulate:
        compute = Compute.I32 if selector.is_integer(piece.operand.format) else Compute.F32
        target = _plain(piece.operand)
        selector.emit(selector.vop("add", compute, piece.dims, target, (target, source)))
    else:
        selector.emit(asm.CopyInst(piece.dims, piece.operand, source, origin=origin))


def _on_owner(selector: Selector, piece: Piece, emit: object) -> None:
    """Runs `emit` where the piece may be written: a scratchpad is written by its own core only."""
    stream = selector.stream
    if piece.operand.space is Space.LX:
        selector.note_local_store()
    owner = piece.owner
    if owner is None:
        emit()  # type: ignore[operator]
        return
    active = stream.active_cores()
    for core in range(stream.cores) if active is None else active:
        sizes = [stream.bounds_on(extent.affine, core)[1] for extent in piece.dims]
        if core != owner and all(size is None or size > 0 for size in sizes):
            raise UnsupportedOp(
                f"{stream.origin}: core {core} stores into the scratchpad of tile {owner}; let tile {owner} load the "
                "data instead, or guard the store by the tile id"
            )
    distance = stream.scalar(Sop.MAX, CORE_ID - owner, Affine(owner) - CORE_ID)
    with stream.guard(-distance):
        emit()  # type: ignore[operator]
