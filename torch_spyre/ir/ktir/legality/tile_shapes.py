# SPDX-License-Identifier: Apache-2.0
"""Access tiles against their sets: the shape of a tile follows from its set and order, where those are constant."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import Operation
from xdsl.ir.affine import AffineDimExpr, AffineMap, AffineSet

from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ir.ktir.dialect.indirect_ops import ConstructIndirectAccessTileOp
from torch_spyre.ir.ktir.dialect.memory_ops import ConstructAccessTileOp, ConstructMemoryViewOp
from torch_spyre.ir.ktir.legality.boxes import box_of
from torch_spyre.ir.ktir.locations import place


def check_tiles(function: Operation, cores: int) -> None:
    for op in function.walk():
        if isinstance(op, ConstructMemoryViewOp):
            _check_space(op, cores)
        elif isinstance(op, ConstructAccessTileOp):
            _check_shape(op, "access_tile_set", op.access_tile_set.data, op.access_tile_order.data)
        elif isinstance(op, ConstructIndirectAccessTileOp):
            _check_shape(op, "variables_space_set", op.variables_space_set.data, op.variables_space_order.data)


def _check_space(op: ConstructMemoryViewOp, cores: int) -> None:
    tile = op.memory_space.tile
    if tile is not None and tile >= cores:
        raise InvalidProgram(
            f"{place(op)}construct_memory_view names compute tile {tile}; the grid has tiles 0 to {cores - 1}"
        )


def _check_shape(op: Any, key: str, points: AffineSet, order: AffineMap) -> None:
    sizes = extents(points)
    positions = [e.position for e in order.results if isinstance(e, AffineDimExpr)]
    if sizes is None or sorted(positions) != list(range(points.num_dims)):
        return
    expected = [sizes[p] for p in positions]
    declared = op.tile.type.get_shape()
    for dim, (size, given) in enumerate(zip(expected, declared, strict=True)):
        if size is None or given == DYNAMIC_INDEX:
            continue
        if size != given:
            name = op.name.removeprefix("ktdp.")
            raise InvalidProgram(
                f"{place(op)}{name}: dim {dim} of the tile has {given} elements, but {key} {points} in the order "
                f"{order} has {size}"
            )


def extents(points: AffineSet) -> list[int | None] | None:
    """Size of each dim of a box, None where it depends on symbols; None if the set is not a box."""
    try:
        box = box_of(points)
    except UnsupportedOp:
        return None
    sizes: list[int | None] = []
    for low, high in box:
        first, last = low.only, high.only
        known = first is not None and last is not None and not first.symbols and not last.symbols
        sizes.append(max(0, last.const - first.const + 1) if known and first and last else None)
    return sizes
