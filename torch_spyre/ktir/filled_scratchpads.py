# SPDX-License-Identifier: Apache-2.0
"""Scratchpads that a caller fills before a launch: `Module.run(..., lx={address: tensor})`.

A program of the card starts with empty scratchpads. So what the caller gives becomes an argument more of the function,
which then begins with a load of it and a store to the scratchpad, and ends with the way back where it has stored there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from torch_spyre.errors import InvalidArgument
from torch_spyre.ir.ktir.signatures import Function, Shape, View, local_views
from torch_spyre.ir.ktir.text import parse
from torch_spyre.ktir.linear_memory import row_major
from torch_spyre.ktir.literal_memory import byte_range, written_views
from torch_spyre.ktir.move_text import move

INDEX = IndexType()


@dataclass(frozen=True)
class Filling:
    """A view of scratchpads at `shape.offset`, with a tensor for each tile or one for all; `back`: it is stored to."""

    element: str
    shape: Shape
    per_tile: bool
    back: bool


def fillings(
    function: Function, tensors: Mapping[int, Any], known: Mapping[Any, int]
) -> tuple[tuple[Filling, ...], list[Any]]:
    """What is filled, and the tensors in that order."""
    views = [(v, s) for v in local_views(function.op) if (s := v.shape(known)) is not None]
    written = written_views(function)
    found = []
    for address, tensor in tensors.items():
        view, shape, per_tile = _view_at(address, tuple(tensor.shape), views, function.cores)
        here = byte_range(view, shape, False)
        back = any(byte_range(v, s, False).meets(here) for v, s in views if v.op in written)
        found.append(Filling(view.element, shape, per_tile, back and (per_tile or function.cores == 1)))
    return tuple(found), list(tensors.values())


def _view_at(
    address: int, given: tuple[int, ...], views: Sequence[tuple[View, Shape]], tiles: int
) -> tuple[View, Shape, bool]:
    here = [(v, s) for v, s in views if s.offset == address]
    for view, shape in here:
        if given == (tiles, *shape.sizes) or given == shape.sizes:
            return view, shape, given != shape.sizes
    if here:
        sizes = [list(s.sizes) for _, s in here]
        raise InvalidArgument(
            f"lx[{address}]: a tensor of shape {list(given)}; the view there has shape {sizes[0]}: give that for all "
            f"tiles, or {[tiles, *sizes[0]]} with one part per tile"
        )
    raise InvalidArgument(
        f"lx[{address}]: no ct_local view of the function starts there; the views start at "
        f"{sorted({s.offset for _, s in views})}"
    )


def filled(module: ModuleOp, name: str, found: Sequence[Filling], grid: Sequence[int], axis0_fastest: bool) -> ModuleOp:
    """A copy of the module whose function takes one more address per filling and starts with its content in place."""
    copy = module.clone()
    function = next(op for op in copy.body.block.ops if isinstance(op, FuncOp) and op.sym_name.data == name)
    block = function.body.block
    first, last = block.first_op, block.last_op
    assert first is not None and last is not None
    for i, filling in enumerate(found):
        base = block.insert_arg(INDEX, len(block.args))
        base.name_hint = f"lx{i}"
        _insert(_moves(filling, grid, axis0_fastest, True), base, first)
        if filling.back:
            _insert(_moves(filling, grid, axis0_fastest, False), base, last)
    function.update_function_type()  # type: ignore[no-untyped-call]
    return copy


def _insert(moves: ModuleOp, base: SSAValue, before: Operation) -> None:
    """The operations of a function of one argument, in front of an operation."""
    (function,) = moves.body.block.ops
    body = function.regions[0].block
    body.args[0].replace_all_uses_with(base)
    block = before.parent_block()
    assert block is not None
    for op in list(body.ops)[:-1]:
        op.detach()  # type: ignore[no-untyped-call]
        block.insert_op_before(op, before)


def _moves(filling: Filling, grid: Sequence[int], axis0_fastest: bool, to_scratchpad: bool) -> ModuleOp:
    """A function that moves one filling, for its operations."""
    shape = filling.shape.sizes
    ids = ", ".join(f"%id{axis}" for axis in range(len(grid)))
    lines = [
        f"func.func @fill(%base: index) attributes {{grid = {list(grid)}}} {{",
        f"{ids} = ktdp.get_compute_tile_id : {', '.join(['index'] * len(grid))}",
        f"%address = arith.constant {filling.shape.offset} : index",
        f"%count = arith.constant {math.prod(shape) if filling.per_tile else 0} : index",
        *_flat_id(grid, axis0_fastest),
        "%offset = arith.muli %flat, %count : index",
        "%start = arith.addi %base, %offset : index",
    ]
    strides = filling.shape.strides
    moved = move("%start", row_major(shape), "%address", strides, "ct_local", shape, filling.element, to_scratchpad)
    return parse("\n  ".join(lines) + f"{moved}  return\n}}\n", "<lx>")


def _flat_id(grid: Sequence[int], axis0_fastest: bool) -> list[str]:
    """Lines that compute %flat from the ids along the axes."""
    axes = list(range(len(grid)))
    slowest_first = axes[::-1] if axis0_fastest else axes
    lines = ["%flat0 = arith.constant 0 : index"]
    for step, axis in enumerate(slowest_first):
        result = "flat" if step == len(axes) - 1 else f"flat{step + 1}"
        lines += [
            f"%size{step} = arith.constant {grid[axis]} : index",
            f"%higher{step} = arith.muli %flat{step}, %size{step} : index",
            f"%{result} = arith.addi %higher{step}, %id{axis} : index",
        ]
    return lines
