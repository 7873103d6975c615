# SPDX-License-Identifier: Apache-2.0
"""What a caller has to know of a KTIR function: its grid, its arguments, and the views that start from each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xdsl.dialects.builtin import DYNAMIC_INDEX, IndexType, IntegerAttr, IntegerType
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from torch_spyre.constants import CORES
from torch_spyre.errors import InvalidProgram
from torch_spyre.ir.ktir.dialect.memory_ops import ConstructMemoryViewOp
from torch_spyre.ir.ktir.dialect.types import RuntimeArgType
from torch_spyre.ir.ktir.locations import place
from torch_spyre.ir.ktir.memref_arguments import SIZES

Numbers = Mapping[SSAValue, int]


@dataclass(frozen=True)
class Shape:
    """A view with numbers in place of values; offset, sizes and strides count elements."""

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def is_dense(self) -> bool:
        """Row-major without gaps."""
        expected = 1
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def end(self) -> int:
        """One past the last element that it reaches."""
        if 0 in self.sizes:
            return self.offset
        return self.offset + sum((s - 1) * max(t, 0) for s, t in zip(self.sizes, self.strides, strict=True)) + 1


@dataclass(frozen=True)
class View:
    """A `construct_memory_view` of card memory; `argument` is the position of the function argument it starts from."""

    op: ConstructMemoryViewOp
    argument: int | None
    element: str

    def shape(self, numbers: Numbers, base: SSAValue | None = None) -> Shape | None:
        """The view for these scalars, its offset counted from the argument; None if something stays unknown."""
        known = dict(numbers) | ({base: 0} if base is not None else {})
        offset = evaluate(self.op.offset, known)
        sizes = _mixed(self.op.static_sizes.get_values(), self.op.sizes, known)
        strides = _mixed(self.op.static_strides.get_values(), self.op.strides, known)
        if offset is None or sizes is None or strides is None:
            return None
        return Shape(offset, sizes, strides)


@dataclass(frozen=True)
class Argument:
    position: int
    name: str
    type: str
    role: str  # "buffer", "integer" or "float"
    views: tuple[View, ...] = ()
    runtime: RuntimeArgType | None = None

    @property
    def elements(self) -> tuple[str, ...]:
        """Element types of the views, without repetition."""
        return tuple(dict.fromkeys(v.element for v in self.views))


@dataclass
class Function:
    op: FuncOp
    name: str = ""
    grid: tuple[int, ...] = ()
    arguments: tuple[Argument, ...] = ()
    literals: tuple[View, ...] = field(default=())  # global views at addresses without an argument

    def __post_init__(self) -> None:
        self.name = self.op.sym_name.data
        self.grid = grid_of(self.op)
        views = list(_global_views(self.op))
        self.literals = tuple(v for v in views if v.argument is None)
        values = self.op.body.block.args
        self.arguments = tuple(
            _argument(value, name, [v for v in views if v.argument == value.index])
            for value, name in zip(values, _names(values), strict=True)
        )

    @property
    def sizes(self) -> dict[int, tuple[int, int]]:
        """Arguments that are sizes of memref arguments: position -> (position of the memref, dim)."""
        attr: Any = self.op.attributes.get(SIZES)
        found = list(attr.get_values()) if attr is not None else []
        return {a: (b, d) for a, b, d in zip(found[::3], found[1::3], found[2::3], strict=True)}

    @property
    def cores(self) -> int:
        return math.prod(self.grid)

    def argument(self, key: str | int) -> Argument | None:
        """By name, or by position."""
        if isinstance(key, int):
            return self.arguments[key] if 0 <= key < len(self.arguments) else None
        return next((a for a in self.arguments if a.name == key), None)

    def value(self, position: int) -> SSAValue:
        return self.op.body.block.args[position]

    @property
    def signature(self) -> str:
        return f"{self.name}({', '.join(f'{a.name}: {a.type}' for a in self.arguments)})"


def grid_of(function: FuncOp) -> tuple[int, ...]:
    """Sizes of the grid axes; one compute tile if the function does not say."""
    attr: Any = function.attributes.get("grid")
    if attr is None:
        return (1,)
    entries = getattr(attr, "data", None)
    if hasattr(attr, "get_values"):
        sizes = tuple(int(v) for v in attr.get_values())
    elif entries is not None and all(isinstance(e, IntegerAttr) for e in entries):
        sizes = tuple(e.value.data for e in entries)
    else:
        raise InvalidProgram(f"{place(function)}grid {attr} is not a list of integers")
    name = function.sym_name.data
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise InvalidProgram(f"{place(function)}grid {list(sizes)} of {name}: one to three axes of at least one tile")
    if math.prod(sizes) > CORES:
        tiles = math.prod(sizes)
        raise InvalidProgram(
            f"{place(function)}grid {list(sizes)} of {name} has {tiles} tiles; a card has {CORES} cores"
        )
    return sizes


def _global_views(function: FuncOp) -> Any:
    for op in function.walk():
        if isinstance(op, ConstructMemoryViewOp) and not op.memory_space.is_local:
            yield View(op, base_argument(op.offset), str(op.view.type.element_type))


def local_views(function: FuncOp) -> list[View]:
    """The views of scratchpads."""
    ops = (op for op in function.walk() if isinstance(op, ConstructMemoryViewOp) and op.memory_space.is_local)
    return [View(op, None, str(op.view.type.element_type)) for op in ops]


def base_argument(offset: SSAValue) -> int | None:
    """Position of the index argument that an offset is counted from; None for an address that has none."""
    if isinstance(offset, BlockArgument):
        parent = offset.block.parent_op()
        return offset.index if isinstance(parent, FuncOp) and isinstance(offset.type, IndexType) else None
    op = offset.owner
    if isinstance(op, Operation) and op.name in ("arith.addi", "arith.subi"):
        left = base_argument(op.operands[0])
        return left if left is not None or op.name == "arith.subi" else base_argument(op.operands[1])
    if isinstance(op, Operation) and op.name in ("arith.index_cast", "arith.index_castui"):
        return base_argument(op.operands[0])
    return None


def _names(values: Sequence[BlockArgument]) -> list[str]:
    """The names of arguments; one without a name, or with that of another, gets one that nobody has."""
    names = [value.name_hint or "" for value in values]
    for i, name in enumerate(names):
        if not name or name in names[:i]:
            names[i] = f"arg{i}"
            while names.count(names[i]) > 1:
                names[i] += "_"
    return names


def _argument(value: BlockArgument, name: str, views: list[View]) -> Argument:
    type_ = value.type
    if isinstance(type_, RuntimeArgType):
        role = "integer" if isinstance(type_.value_type, IndexType | IntegerType) else "float"
        return Argument(value.index, name, str(type_), role, runtime=type_)
    if isinstance(type_, IndexType) and (views or not value.uses):
        return Argument(value.index, name, "index", "buffer", tuple(views))
    role = "integer" if isinstance(type_, IndexType | IntegerType) else "float"
    return Argument(value.index, name, str(type_), role)


# -- numbers ---------------------------------------------------------------------------------------------------------

_BINARY: dict[str, Any] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divui": lambda a, b: a // b if b else None,
    "arith.divsi": lambda a, b: int(a / b) if b else None,
    "arith.floordivsi": lambda a, b: a // b if b else None,
    "arith.ceildivsi": lambda a, b: -(-a // b) if b else None,
    "arith.ceildivui": lambda a, b: -(-a // b) if b else None,
    "arith.remui": lambda a, b: a % b if b else None,
    "arith.remsi": lambda a, b: a - b * int(a / b) if b else None,
    "arith.minsi": min,
    "arith.minui": min,
    "arith.maxsi": max,
    "arith.maxui": max,
}
_CASTS = ("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci")


def evaluate(value: SSAValue, known: Numbers) -> int | None:
    """A scalar, if it follows from constants and the known values."""
    if value in known:
        return known[value]
    op: Any = value.owner
    if not isinstance(op, Operation):
        return None
    if op.name == "arith.constant":
        attr = op.properties.get("value")
        return attr.value.data if isinstance(attr, IntegerAttr) else None
    if op.name in _CASTS:
        return evaluate(op.operands[0], known)
    if op.name == "ktdp.runtime_arg_extract":
        return _extract(op, known)
    if op.name in _BINARY:
        left, right = (evaluate(operand, known) for operand in op.operands)
        return None if left is None or right is None else _BINARY[op.name](left, right)
    return None


def _extract(op: Any, known: Numbers) -> int | None:
    if op.field.data == "value":
        return known.get(op.argument)
    return int(getattr(op.argument.type, op.field.data).data)


def _mixed(static: Any, dynamic: Any, known: Numbers) -> tuple[int, ...] | None:
    values = iter(dynamic)
    numbers = [evaluate(next(values), known) if entry == DYNAMIC_INDEX else int(entry) for entry in static]
    return None if None in numbers else tuple(n for n in numbers if n is not None)
