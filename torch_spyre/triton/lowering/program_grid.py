# SPDX-License-Identifier: Apache-2.0
"""The grid of programs on the cores of the card.

Programs are numbered with the first axis fastest and dealt to the cores in ascending order: core c runs programs c,
c + 32, c + 64, … Launch pointers become base addresses; integers are known, so that only floats remain scalars.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, FunctionType, IndexType, IntegerAttr, IntegerType, ModuleOp, i64
from xdsl.dialects.func import FuncOp
from xdsl.dialects.scf import YieldOp
from xdsl.ir import Attribute, Block, Region, SSAValue

from torch_spyre.constants import CORES
from torch_spyre.ir.ktir.dialect.context import ForOp
from torch_spyre.triton.lowering import locks, splice
from torch_spyre.triton.lowering.known_integers import the_function
from torch_spyre.triton.lowering.ttir_ops import BaseOp, PointerType

_AXES = "xyz"

Lengths = Sequence[int | None] | None


def run(
    module: ModuleOp,
    grid: tuple[int, int, int],
    one_core: bool,
    shared: tuple[tuple[int, int, int], ...] = (),
    lengths: Lengths = None,
) -> None:
    """Wraps the kernel in the loop over its programs, and names every program's ids."""
    function = the_function(module)
    total = math.prod(grid)
    cores = 1 if one_core else max(1, min(CORES, total))
    function.attributes["grid"] = ArrayAttr([IntegerAttr(cores, i64)])
    for name in ("noinline", locks.ORDERED):
        function.attributes.pop(name, None)
    function.properties.pop("arg_attrs", None)
    function.properties.pop("sym_visibility", None)
    _declare(function, {pointer: (first, distance) for pointer, first, distance in shared}, lengths)
    block = function.body.block
    end: Any = block.last_op
    (core,) = splice.before(block.first_op, "%core = ktdp.get_compute_tile_id : index", {})  # type: ignore[arg-type]
    ids = [op for op in function.walk() if op.name == "tt.get_program_id"]
    number = core if total <= cores else _loop(block, core, total, cores, end)
    for op in ids:
        splice.instead(op, _id(_AXES.index(op.attributes["axis"].data), grid), {"program": number})  # type: ignore[attr-defined]


def _declare(function: FuncOp, shared: dict[int, tuple[int, int]], lengths: Lengths) -> None:
    """Integers are constants by now; a pointer counts from its own base address, or from one whose memory it shares."""
    block = function.body.block
    bases: list[SSAValue] = []
    pointers = []
    for argument in tuple(block.args):
        if isinstance(argument.type, IntegerType):
            block.erase_arg(argument)
        elif isinstance(argument.type, PointerType):
            base = block.insert_arg(IndexType(), argument.index)
            base.name_hint = argument.name_hint
            bases.append(base)
            pointers.append(argument)
    for i, argument in enumerate(pointers):
        first, distance = shared.get(i, (i, 0))
        where: dict[str, Attribute] = {"start": IntegerAttr(distance, i64)}
        length = lengths[first] if lengths is not None else None
        if length is not None:
            where["length"] = IntegerAttr(length, i64)
        pointer = BaseOp.made([bases[first]], [argument.type], where)
        block.insert_op_before(pointer, block.first_op)  # type: ignore[arg-type]
        argument.replace_all_uses_with(pointer.results[0])
        block.erase_arg(argument)
    function.properties["function_type"] = FunctionType.from_lists([a.type for a in block.args], [])


def _loop(block: Block, core: SSAValue, total: int, step: int, end: Any) -> SSAValue:
    body = Block(arg_types=[IndexType()])
    first = core.owner
    for op in list(block.ops):
        if op is not first and op is not end:
            op.detach()  # type: ignore[no-untyped-call]
            body.add_op(op)
    body.add_op(YieldOp())
    text = f"%total = arith.constant {total} : index\n%step = arith.constant {step} : index"
    splice.before(end, text, {})
    limit, stride = end.prev_op.prev_op.results[0], end.prev_op.results[0]
    made = ForOp(core, limit, stride, [], Region(body))
    made.location = end.location
    block.insert_op_before(made, end)
    body.args[0].name_hint = "program"
    return body.args[0]


def _id(axis: int, grid: tuple[int, int, int]) -> str:
    """The coordinate of a program on one axis of the grid."""
    below = math.prod(grid[:axis])
    lines, value = [], "%program"
    if grid[axis] == 1:
        return "%id = arith.constant 0 : i32"
    if below > 1:
        lines += [f"%below = arith.constant {below} : index", f"%row = arith.divsi {value}, %below : index"]
        value = "%row"
    if math.prod(grid[axis + 1 :]) > 1:
        lines += [f"%size = arith.constant {grid[axis]} : index", f"%rest = arith.remsi {value}, %size : index"]
        value = "%rest"
    return "\n".join([*lines, f"%id = arith.index_cast {value} : index to i32"])
