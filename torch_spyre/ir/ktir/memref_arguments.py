# SPDX-License-Identifier: Apache-2.0
"""Function arguments of memref type: each is a base address with a view of the memref's shape at it.

The dialect passes addresses and makes views of them. A memref says both at once, so it is rewritten to that pair. A
size that the type leaves open becomes an argument behind the others, which a caller need not give: the tensor has it.
"""

from __future__ import annotations

from typing import Any, cast

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    DenseArrayBase,
    IndexType,
    IntAttr,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    NoneAttr,
    StridedLayoutAttr,
    i64,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineMap

from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ir.ktir.dialect.affine_text import box_set
from torch_spyre.ir.ktir.dialect.memory_ops import ConstructMemoryViewOp
from torch_spyre.ir.ktir.dialect.types import GLOBAL, MemorySpaceAttr
from torch_spyre.ir.ktir.locations import place

INDEX = IndexType()

SIZES = "memref_sizes"  # attribute of a function: triples (argument, the argument whose size it is, the dim)


def rewrite(module: ModuleOp) -> None:
    for function in module.body.block.ops:
        if not isinstance(function, FuncOp) or not function.body.blocks:
            continue
        values = [arg for arg in function.body.block.args if isinstance(arg.type, MemRefType)]
        sizes: list[int] = []
        for arg in values:
            sizes += _to_view(function, arg)
        if values:
            function.update_function_type()  # type: ignore[no-untyped-call]
        if sizes:
            function.attributes[SIZES] = DenseArrayBase.from_list(i64, sizes)


def _to_view(function: FuncOp, arg: BlockArgument) -> list[int]:
    """Gives the sizes that are not in the type, as entries of the attribute."""
    kind = cast(MemRefType, arg.type)
    what = f"{place(function)}argument {arg.index} of {function.sym_name.data} has type {kind}"
    space = kind.memory_space
    if isinstance(space, MemorySpaceAttr) and space.is_local:
        raise InvalidProgram(f"{what}; arguments are in card memory, what a scratchpad holds is given as lx= to a run")
    block = function.body.block
    shape = list(kind.get_shape())
    given: dict[int, SSAValue] = {}
    for d in (d for d, size in enumerate(shape) if size == DYNAMIC_INDEX):
        given[d] = block.insert_arg(INDEX, len(block.args))
        cast(Any, given[d])._name = f"{arg.name_hint or f'arg{arg.index}'}_size{d}"
    made: list[Operation] = []
    strides = _strides(kind, shape, given, made, what)
    static_strides = [s if isinstance(s, int) else DYNAMIC_INDEX for s in strides]
    view = ConstructMemoryViewOp.build(
        operands=[arg, list(given.values()), [s for s in strides if isinstance(s, SSAValue)]],
        result_types=[kind],
        properties={
            "static_sizes": DenseArrayBase.from_list(i64, shape),
            "static_strides": DenseArrayBase.from_list(i64, static_strides),
            "coordinate_set": box_set(tuple(shape)),
            "memory_space": MemorySpaceAttr(GLOBAL),
        },
    )
    arg.replace_all_uses_with(view.view)
    view.operands[0] = arg
    cast(Any, arg)._type = INDEX
    first = block.first_op
    for op in (*made, view):
        op.location = function.location
        if first is None:
            block.add_op(op)
        else:
            block.insert_op_before(op, first)
    return [n for d, size in given.items() for n in (cast(BlockArgument, size).index, arg.index, d)]


def _strides(
    kind: MemRefType, shape: list[int], given: dict[int, SSAValue], made: list[Operation], what: str
) -> list[int | SSAValue]:
    """Numbers, or products of sizes, whose operations are in `made`."""
    layout = kind.layout
    identity = AffineMapAttr(AffineMap.identity(len(shape)))
    if isinstance(layout, NoneAttr) or layout == identity:
        strides: list[int | SSAValue] = [1] * len(shape)
        for d in range(len(shape) - 2, -1, -1):
            strides[d] = _product(strides[d + 1], given.get(d + 1, shape[d + 1]), made)
        return strides
    if isinstance(layout, StridedLayoutAttr) and layout.get_offset() == 0:
        found = [s.data for s in layout.strides.data if isinstance(s, IntAttr)]
        if len(found) == len(shape):
            return list(found)
    raise UnsupportedOp(f"{what}, whose layout is not made of constant strides from offset 0")


def _product(a: int | SSAValue, b: int | SSAValue, made: list[Operation]) -> int | SSAValue:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 1 or b == 1:
        return b if a == 1 else a
    operands = []
    for value in (a, b):
        if isinstance(value, int):
            made.append(arith.ConstantOp(IntegerAttr(value, INDEX)))
            value = made[-1].results[0]
        operands.append(value)
    made.append(arith.MuliOp(operands[0], operands[1]))
    return made[-1].results[0]
