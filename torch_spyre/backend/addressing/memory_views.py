# SPDX-License-Identifier: Apache-2.0
"""Views: where the elements of a logical tensor are stored, and which coordinates it has.

Enters: `ktdp.construct_memory_view`, `ktdp.construct_distributed_memory_view`, `memref.subview`. Leaves: a `View`,
which is one or several strided `Part`s, each with the box of coordinates that it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, cast

from xdsl.dialects.builtin import DYNAMIC_INDEX, MemRefType
from xdsl.ir import Operation, SSAValue

from torch_spyre import constants
from torch_spyre.backend.options import Options
from torch_spyre.backend.program.isa import format_bytes, format_of_type, type_name
from torch_spyre.backend.schedule.scalars import Scalars
from torch_spyre.backend.schedule.stream import Stream
from torch_spyre.constants import STICK_BYTES
from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ir.affine import ZERO, Affine, arg_index, is_arg
from torch_spyre.ir.ktir.legality.boxes import box_of

_VIEWS = ("ktdp.construct_memory_view", "ktdp.construct_distributed_memory_view", "memref.subview", "memref.cast")


@dataclass(frozen=True)
class Part:
    """A strided piece of memory. Lengths in bytes; `offset` belongs to coordinate 0 of every dim.

    In launch argument `arg`, or, if that is None, in the scratchpad of core `owner` (None: of the executing core).
    """

    arg: int | None
    offset: Affine
    strides: tuple[int, ...]
    lows: tuple[Affine, ...]
    highs: tuple[Affine, ...]
    owner: int | None = None


@dataclass(frozen=True)
class View:
    parts: tuple[Part, ...]
    sizes: tuple[int | None, ...]  # None: known only at launch
    format: int


def may_overlap(a: View, b: View, stream: Stream) -> bool:
    """True if two views may share bytes. Different launch arguments never do."""
    return any(_parts_overlap(x, a.format, y, b.format, stream) for x in a.parts for y in b.parts)


def _parts_overlap(a: Part, a_format: int, b: Part, b_format: int, stream: Stream) -> bool:
    if a.arg != b.arg:
        return False
    distance = b.offset - a.offset
    low, high = stream.bounds(distance)
    a_low, a_high = reach(a, a_format, stream)
    b_low, b_high = reach(b, b_format, stream)
    if low is None or high is None or None in (a_low, a_high, b_low, b_high):
        return True
    return low + cast(int, b_low) < cast(int, a_high) and cast(int, a_low) < high + cast(int, b_high)


def reach(part: Part, fmt: int, stream: Stream) -> tuple[int | None, int | None]:
    """First and past-the-last byte that a part can touch, relative to its offset; None where there is no bound."""
    low: int | None = 0
    high: int | None = format_bytes(fmt)
    for first, last, stride in zip(part.lows, part.highs, part.strides, strict=True):
        least, greatest = stream.bounds(first)[0], stream.bounds(last)[1]
        if least is not None and greatest is not None and greatest < least:
            return 0, 0
        ends = (least, greatest) if stride >= 0 else (greatest, least)
        if stride == 0:
            continue
        low = None if low is None or ends[0] is None else low + ends[0] * stride
        high = None if high is None or ends[1] is None else high + ends[1] * stride
    return low, high


class Views:
    """Resolves views; remembers what each launch argument and the scratchpad need.

    Addresses without an argument belong to the implicit buffer `memory_arg`, which begins at address 0.
    """

    def __init__(self, stream: Stream, scalars: Scalars, options: Options, memory_arg: int) -> None:
        self._stream = stream
        self._scalars = scalars
        self._options = options
        self._views: dict[SSAValue, View] = {}
        self._used: dict[int, View] = {}
        self.long_parts: list[Part] = []  # those in which a core could reach too far
        self.memory_arg = memory_arg
        self.arg_bytes: dict[int, int] = {}
        self.lx_bytes = 0  # scratchpad that views name

    def view(self, value: SSAValue) -> View:
        if value not in self._views:
            op: Any = value.owner
            name = op.name if isinstance(op, Operation) else "a block argument"
            if name not in _VIEWS:
                raise UnsupportedOp(f"a tile of {name}; tiles are taken of {', '.join(_VIEWS)}")
            if name == _VIEWS[0]:
                self._views[value] = self._memory_view(op)
            elif name == _VIEWS[1]:
                self._views[value] = self._distributed(op)
            elif name == _VIEWS[3]:
                self._views[value] = self.view(op.operands[0])
            else:
                self._views[value] = self._subview(op)
        return self._views[value]

    # -- one memory ------------------------------------------------------------------------------------------------

    def _memory_view(self, op: Any) -> View:
        kind = cast(MemRefType, op.results[0].type)
        element = type_name(kind.element_type)
        if element in ("i64", "si64", "index"):
            raise UnsupportedOp(f"a view of {element}; the card stores 32-bit integers, use i32")
        fmt = format_of_type(element)
        width = format_bytes(fmt)
        (base,), size_values, stride_values = segments(op)
        static = op.properties["static_sizes"].get_values(), op.properties["static_strides"].get_values()
        sizes = [self._form(v) for v in mixed(static[0], size_values)]
        strides = [self._stride(s) for s in mixed(static[1], stride_values)]
        offset = self._scalars.affine(base)
        bases = [(s, c) for s, c in offset.terms if is_arg(s)]
        unit = width
        owner = None
        arg: int | None = None
        space = op.properties["memory_space"]
        if space.is_local:
            owner = space.tile
            if owner is not None and owner >= self._stream.cores:
                raise InvalidProgram(f"a view in the scratchpad of tile {owner}; the grid has {self._stream.cores}")
            if bases:
                raise UnsupportedOp("a ct_local view at an offset that comes from a function argument; use a constant")
        elif bases:
            if len(bases) != 1 or bases[0][1] != 1:
                raise UnsupportedOp(f"a global view at offset {offset}; it must be one index argument plus an offset")
            arg = arg_index(bases[0][0])
            offset = offset - Affine.symbol(bases[0][0])
        else:
            arg = self.memory_arg
            unit = STICK_BYTES if self._options.stick_addresses else width
        lows, highs = self._domain(op, size_values, sizes)
        part = Part(arg, offset * unit, tuple(s * width for s in strides), lows, highs, owner)
        known = tuple(size.const if size.is_const else None for size in sizes)
        return View((part,), known, fmt)

    def _stride(self, stride: int | SSAValue) -> int:
        known = stride if isinstance(stride, int) else self._scalars.constant(stride)
        if known is None:
            raise UnsupportedOp("a view with a stride that is known only at launch; bind the argument when compiling")
        return known

    def _domain(
        self, op: Any, symbols: Sequence[SSAValue], sizes: Sequence[Affine]
    ) -> tuple[tuple[Affine, ...], tuple[Affine, ...]]:
        """The box of the coordinate set; a side that the set leaves open is that of the sizes."""
        lows, highs = [], []
        for (low, high), size in zip(box_of(op.properties["coordinate_set"].data), sizes, strict=True):
            first = low.affine(symbols, self._scalars, False)
            last = high.affine(symbols, self._scalars, True)
            lows.append(ZERO if first is None else first)
            highs.append(size - 1 if last is None else last)
        return tuple(lows), tuple(highs)

    def note_use(self, view: View) -> None:
        """Counts the bytes that accesses of a view may touch."""
        if id(view) not in self._used:
            self._used[id(view)] = view
            for part in view.parts:
                self._note_extent(part, view.format)

    def _note_extent(self, part: Part, fmt: int) -> None:
        first, offset = self._stream.bounds(part.offset)
        low, high = reach(part, fmt, self._stream)
        if offset is None or high is None or first is None or low is None:
            raise UnsupportedOp(
                f"a view at offset {part.offset} whose end is known only at launch; bind the argument when compiling"
            )
        # Within a loop or a branch, which may never run, only bounds are known; what each access reaches is proved when
        # the program is loaded.
        if first + low < 0 and high > low and not self._stream.in_loop and not self._stream.in_branch:
            raise InvalidProgram(f"a view that begins at byte {first + low}, before its buffer")
        if part.arg is None:
            self.lx_bytes = max(self.lx_bytes, offset + high)
            return
        if high - low > constants.MAX_SPAN_BYTES:
            self.long_parts.append(part)
        self.arg_bytes[part.arg] = max(self.arg_bytes.get(part.arg, 0), offset + high)

    # -- several -----------------------------------------------------------------------------------------------------

    def _distributed(self, op: Any) -> View:
        """Coordinate sets of the parts are global: coordinate p of a part's own memory is global p - least p."""
        parts = []
        fmt = 0
        for value in op.parts:
            view = self.view(value)
            if len(view.parts) != 1:
                raise UnsupportedOp("a distributed view of distributed views; list all parts in one")
            (part,) = view.parts
            fmt = view.format
            offset = part.offset
            for low, stride in zip(part.lows, part.strides, strict=True):
                offset = offset - low * stride
            parts.append(replace(part, offset=offset))
        shape = cast(MemRefType, op.view.type).get_shape()
        ends = [self._stream.bounds(self._greatest([p.highs[d] for p in parts]))[1] for d in range(len(shape))]
        for d, (size, end) in enumerate(zip(shape, ends, strict=True)):
            if size != DYNAMIC_INDEX and end is not None and size != end + 1:
                raise InvalidProgram(f"a distributed view of {size} coordinates in dim {d}; its parts end at {end}")
        sizes = tuple(None if end is None else end + 1 for end in ends)
        return View(tuple(parts), sizes, fmt)

    def _greatest(self, forms: list[Affine]) -> Affine:
        total = forms[0]
        for form in forms[1:]:
            total = self._scalars.greatest(total, form)
        return total

    def _subview(self, op: Any) -> View:
        """A box of another view, with coordinates from 0 on; unit dims that the result drops are fixed."""
        base = self.view(op.source)
        if len(base.parts) != 1:
            raise UnsupportedOp("memref.subview of a distributed view; take access tiles of it")
        (part,) = base.parts
        offsets = [self._form(v) for v in mixed(op.static_offsets.get_values(), op.offsets)]
        sizes = [self._form(v) for v in mixed(op.static_sizes.get_values(), op.sizes)]
        steps = [self._stride(v) for v in mixed(op.static_strides.get_values(), op.strides)]
        start = part.offset
        for offset, stride in zip(offsets, part.strides, strict=True):
            start = start + offset * stride
        shape = cast(MemRefType, op.result.type).get_shape()
        kept = kept_dims([s.const if s.is_const else DYNAMIC_INDEX for s in sizes], shape)
        highs = tuple(sizes[d] - 1 for d in kept)
        strides = tuple(part.strides[d] * steps[d] for d in kept)
        made = replace(part, offset=start, strides=strides, lows=(ZERO,) * len(kept), highs=highs)
        known = tuple(sizes[d].const if sizes[d].is_const else None for d in kept)
        return View((made,), known, base.format)

    def _form(self, value: int | SSAValue) -> Affine:
        return Affine(value) if isinstance(value, int) else self._scalars.affine(value)


def segments(op: Any) -> list[list[SSAValue]]:
    """The operands of an operation, group by group. One look at the sizes; the accessors look once per group."""
    operands = list(op.operands)
    groups = []
    for size in op.properties["operandSegmentSizes"].get_values():
        groups.append(operands[:size])
        operands = operands[size:]
    return groups


def mixed(static: Sequence[int], dynamic: Any) -> list[int | SSAValue]:
    values = iter(dynamic)
    return [next(values) if size == DYNAMIC_INDEX else size for size in static]


def kept_dims(sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Dims of `sizes` that a rank-reduced `shape` keeps; dropped ones have size 1."""
    for kept in combinations(range(len(sizes)), len(shape)):
        if [sizes[d] for d in kept] == list(shape) and all(sizes[d] == 1 for d in range(len(sizes)) if d not in kept):
            return list(kept)
    raise InvalidProgram(f"a slice of sizes {list(sizes)} cannot have the shape {list(shape)}")
