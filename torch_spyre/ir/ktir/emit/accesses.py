# SPDX-License-Identifier: Apache-2.0
"""Addressing of planned ops as KTIR: views, slices of split dims, access tiles, and constants that all ops share.

Everything here is pure and stands once at the head of the function, so that ops inside `scf.if` can use it too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    FloatAttr,
    IndexType,
    IntegerAttr,
    TensorType,
    i1,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.formats import WORD_BYTES
from torch_spyre.ir.ktir.dialect.affine_text import box_set, identity_map
from torch_spyre.ir.ktir.dialect.arith_ops import CmpiOp
from torch_spyre.ir.ktir.dialect.context import (
    AccessTileType,
    ConstructIndirectAccessTileOp,
    ConstructMemoryViewOp,
    GetComputeTileIdOp,
    MemorySpaceAttr,
)
from torch_spyre.ir.ktir.emit.arithmetic import ELEMENT_TYPES, is_float
from torch_spyre.ir.plan.barriers import coords_of
from torch_spyre.ir.plan.tileops import Coord, Dim, Input, Kernel, LinearOperand, Operand, Space, Tensor, TileOp

INDEX = IndexType()
_SPACES = {space: MemorySpaceAttr(space.value) for space in Space}


@dataclass(frozen=True)
class Slice:
    """A core's part of one iteration dim. `size` is DYNAMIC_INDEX where the parts differ; then `extent` holds it."""

    name: str
    size: int
    offset: SSAValue | None = None
    extent: SSAValue | None = None
    trip: SSAValue | None = None  # where the trip of a tile loop starts in the core's own slice

    def shift(self, tensor: Tensor) -> SSAValue | None:
        """What to add to a subscript: scratchpads count from the start of the slice, or of the trip."""
        if tensor.space is not Space.LX:
            return self.offset
        return None if tensor.chunked else self.trip


@lru_cache(maxsize=4096)
def tensor_type(element: Attribute, shape: tuple[int, ...]) -> TensorType:
    return TensorType(element, shape)


@lru_cache(maxsize=4096)
def _tile_type(shape: tuple[int, ...]) -> AccessTileType:
    return AccessTileType(shape)


@lru_cache(maxsize=4096)
def _name(text: str) -> str:
    name = re.sub(r"\W", "_", text)
    return f"_{name}" if not name or name[0].isdigit() else name


def _float_attr(value: float, element: Any) -> FloatAttr:
    """Like a conversion to fp32, a value out of range becomes infinite."""
    try:
        return FloatAttr(float(value), element)
    except OverflowError:
        return FloatAttr(math.copysign(math.inf, value), element)


def hint(value: SSAValue, name: str) -> SSAValue:
    value.name_hint = _name(name)
    return value


@lru_cache(maxsize=4096)
def subscripts(
    operand: Operand | LinearOperand, variables: tuple[str, ...], shifted: tuple[str, ...]
) -> ArrayAttr[AffineMapAttr]:
    """Maps over (offsets of the `shifted` dims) ++ (variables), one per device dim."""
    position: dict[str, AffineExpr] = {}
    for i, name in enumerate(variables):
        variable = AffineExpr.dimension(len(shifted) + i)
        position[name] = AffineExpr.dimension(shifted.index(name)) + variable if name in shifted else variable
    if isinstance(operand, LinearOperand):
        exprs = _decode(_coordinate(operand.offset, position), operand.host_stride)
    else:
        exprs = [_coordinate(coord, position) for coord in operand.coords]
    inputs = len(shifted) + len(variables)
    return ArrayAttr([AffineMapAttr(AffineMap(inputs, 0, (expr,))) for expr in exprs])


def _coordinate(coord: Coord, position: dict[str, AffineExpr]) -> AffineExpr:
    expr: AffineExpr = AffineExpr.constant(coord.const)
    for term in coord.terms:
        part = position[term.dim]
        part = part // term.div if term.div != 1 else part
        part = part % term.mod if term.mod else part
        expr = expr + part * term.scale
    return expr


def _decode(offset: AffineExpr, host_stride: tuple[int, ...]) -> list[AffineExpr]:
    """Device coordinates of a host offset: the greatest stride takes its quotient and passes on the remainder."""
    result: list[AffineExpr] = [AffineExpr.constant(0)] * len(host_stride)
    for dim in sorted((d for d, s in enumerate(host_stride) if s > 0), key=lambda d: -host_stride[d]):
        stride = host_stride[dim]
        result[dim] = offset // stride if stride > 1 else offset
        offset = offset % stride if stride > 1 else AffineExpr.constant(0)
    return result


def _index_source(table: Operand, coord: Coord, inputs: Sequence[Input]) -> Operand:
    source = inputs[coord.index] if coord.index < len(inputs) else None
    if not isinstance(source, Operand):
        raise InvalidProgram(
            f"table {table.tensor.name}: coordinate by input {coord.index}, which is no tensor operand"
        )
    return source


class Head:
    """The shared head of a function; values are created when first asked for."""

    def __init__(self, kernel: Kernel, block: Block) -> None:
        self.kernel = kernel
        self.block = block
        self._values: dict[object, SSAValue] = {}

    def add(self, op: Operation) -> SSAValue:
        self.block.add_op(op)
        return op.results[0]

    def argument(self, number: int) -> SSAValue:
        """A parameter of the function."""
        return self.block.args[number]

    @property
    def core_id(self) -> SSAValue:
        if "id" not in self._values:
            self._values["id"] = hint(self.add(GetComputeTileIdOp()), "id")
        return self._values["id"]

    def index(self, value: int) -> SSAValue:
        return self.scalar(value, INDEX)

    def scalar(self, value: float, element: Attribute) -> SSAValue:
        key = (repr(value), element)
        if key not in self._values:
            attr = _float_attr(value, element) if is_float(element) else IntegerAttr(int(value), element)  # type: ignore
            self._values[key] = hint(self.add(arith.ConstantOp(attr)), f"c{value}" if element == INDEX else "cst")
        return self._values[key]

    def splat(self, scalar: SSAValue, slices: Sequence[Slice]) -> SSAValue:
        """A tensor over the slices that holds one scalar everywhere."""
        sizes = [s.extent for s in slices if s.extent is not None]
        type_ = tensor_type(scalar.type, tuple(s.size for s in slices))
        key = (scalar, type_, tuple(sizes))
        if key not in self._values:
            self._values[key] = self.add(tensor.SplatOp(scalar, sizes, type_))
        return self._values[key]

    # -- views ---------------------------------------------------------------------------------------------------

    def view(self, buffer: Tensor) -> SSAValue:
        key = (buffer.space, buffer.arg, buffer.base, buffer.device_size, buffer.extent, buffer.format)
        if key not in self._values:
            self._values[key] = self._build_view(buffer)
        return self._values[key]

    def _build_view(self, buffer: Tensor) -> SSAValue:
        element = ELEMENT_TYPES.get(buffer.format)
        if element is None:
            raise UnsupportedOp(
                f"tensor {buffer.name} has format {buffer.format}; use one of {', '.join(ELEMENT_TYPES)}"
            )
        base, rest = divmod(buffer.base, WORD_BYTES[buffer.format])
        if rest:
            raise InvalidProgram(f"tensor {buffer.name}: base {buffer.base} is not a whole number of elements")
        if buffer.space is Space.LX:
            offset = self.index(base)
        elif 0 <= buffer.arg < len(self.kernel.args):
            offset = self.block.args[buffer.arg]
            offset = self._binary(arith.AddiOp, offset, self.index(base)) if base else offset
        else:
            raise InvalidProgram(f"tensor {buffer.name} lies in argument {buffer.arg} of {len(self.kernel.args)}")
        strides = [1] * len(buffer.device_size)
        for i in reversed(range(len(strides) - 1)):
            strides[i] = strides[i + 1] * buffer.device_size[i + 1]
        sizes = buffer.extent or buffer.device_size
        view = ConstructMemoryViewOp.get(offset, sizes, strides, element, _SPACES[buffer.space])
        return hint(self.add(view), f"{buffer.name}_view")

    # -- slices --------------------------------------------------------------------------------------------------

    def _binary(
        self, op: Callable[[SSAValue, SSAValue], Operation], lhs: SSAValue, rhs: SSAValue, name: str = ""
    ) -> SSAValue:
        key = (op, lhs, rhs)
        if key not in self._values:
            self._values[key] = self.add(op(lhs, rhs))
            if name:
                hint(self._values[key], name)
        return self._values[key]

    def slice_index(self, op: TileOp, dim: Dim) -> SSAValue:
        """The slice of a split dim that the executing core works on."""
        stride = 1
        for name in op.core_order:
            if name == dim.name:
                break
            stride *= op.dim(name).slices
        else:
            raise InvalidProgram(f"op {op.name}: split dim {dim.name} is not in core_order {op.core_order}")
        value = self.core_id
        if stride > 1:
            value = self._binary(arith.DivUIOp, value, self.index(stride))
        if stride * dim.slices < self.kernel.cores:
            value = self._binary(arith.RemUIOp, value, self.index(dim.slices), f"{dim.name}_slice")
        return value

    def slice(self, op: TileOp, dim: Dim) -> Slice:
        covered = dim.slices * dim.extent
        if covered < dim.size:
            raise InvalidProgram(
                f"op {op.name}: {dim.slices} slices of {dim.extent} do not cover dim {dim.name} of size {dim.size}"
            )
        if dim.slices == 1:
            return Slice(dim.name, dim.size)
        offset = self._binary(arith.MuliOp, self.slice_index(op, dim), self.index(dim.extent), f"{dim.name}_off")
        if dim.even:
            return Slice(dim.name, dim.extent, offset)
        left = self._binary(arith.SubiOp, self.index(dim.size), offset)
        capped = self._binary(arith.MinSIOp, left, self.index(dim.extent))
        return Slice(
            dim.name, DYNAMIC_INDEX, offset, self._binary(arith.MaxSIOp, capped, self.index(0), f"{dim.name}_ext")
        )

    def less_than(self, value: SSAValue, limit: int) -> SSAValue:
        key = ("ult", value, limit)
        if key not in self._values:
            self._values[key] = self.add(CmpiOp(value, self.index(limit), "ult"))
        return self._values[key]

    def is_zero(self, values: Sequence[SSAValue]) -> SSAValue:
        """Are all of these indices 0?"""
        result: SSAValue | None = None
        for value in values:
            key = ("zero", value)
            if key not in self._values:
                self._values[key] = self.add(CmpiOp(value, self.index(0), "eq"))
            result = self._values[key] if result is None else self._binary(arith.AndIOp, result, self._values[key])
        assert result is not None
        return result

    # -- access tiles --------------------------------------------------------------------------------------------

    def gather_tile(
        self, table: Operand, inputs: Sequence[Input], slices: Sequence[Slice]
    ) -> ConstructIndirectAccessTileOp:
        """The coordinates of a table some of whose device dims are given by index tensors among `inputs`."""
        sources = [_index_source(table, coord, inputs) for coord in table.coords if coord.index >= 0]
        local = {t.space is Space.LX for t in (table.tensor, *(s.tensor for s in sources))}
        split = [s.name for s in slices if s.offset is not None]
        if len(local) > 1 and split:
            raise UnsupportedOp(f"table {table.tensor.name} and its index tensors must lie in one kind of memory")
        operands = (table, *sources)
        used = dict.fromkeys(t.dim for o in operands for coord in o.coords for t in coord.terms)
        by_name = {s.name: s for s in slices}
        shifted = [by_name[n] for n in used if by_name[n].offset is not None and local != {True}]
        variables, moved = tuple(s.name for s in slices), tuple(s.name for s in shifted)
        pending = iter(sources)
        maps = list(subscripts(table, variables, moved).data)
        for d, coord in enumerate(table.coords):
            if coord.index >= 0:
                exprs = [m.data.results[0] for m in subscripts(next(pending), variables, moved)]
                maps[d] = AffineMapAttr(AffineMap(len(moved) + len(variables), 0, tuple(exprs)))
        shape = tuple(s.size for s in slices)
        return ConstructIndirectAccessTileOp.get(
            self.view(table.tensor),
            [s.offset for s in shifted if s.offset is not None],
            [s.extent for s in slices if s.extent is not None],
            ArrayAttr(maps),
            box_set(shape),
            identity_map(len(shape)),
            _tile_type(shape),
            kinds=DenseArrayBase.from_list(i1, [int(c.index >= 0) for c in table.coords]),
            indirect=[self.view(s.tensor) for s in sources],
        )

    def tile(self, operand: Operand | LinearOperand, slices: Sequence[Slice]) -> ConstructIndirectAccessTileOp:
        """The coordinates of an operand, one variable per slice; a scratchpad holds only the core's own slice."""
        used = dict.fromkeys(term.dim for coord in coords_of(operand) for term in coord.terms)  # in order of first use
        by_name = {s.name: s for s in slices}
        unknown = used.keys() - by_name.keys()
        rank = len(operand.host_stride if isinstance(operand, LinearOperand) else operand.coords)
        if unknown or rank != len(operand.tensor.device_size):
            raise InvalidProgram(
                f"tensor {operand.tensor.name}: {rank} coordinates for device size {operand.tensor.device_size}, "
                f"dims not available here: {sorted(unknown) or 'none'}"
            )
        shifts = {name: by_name[name].shift(operand.tensor) for name in used}
        shifted = tuple(name for name, shift in shifts.items() if shift is not None)
        shape = tuple(s.size for s in slices)
        return ConstructIndirectAccessTileOp.get(
            self.view(operand.tensor),
            [shift for shift in shifts.values() if shift is not None],
            [s.extent for s in slices if s.extent is not None],
            subscripts(operand, tuple(s.name for s in slices), shifted),
            box_set(shape),
            identity_map(len(shape)),
            _tile_type(shape),
        )
