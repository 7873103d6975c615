# SPDX-License-Identifier: Apache-2.0
"""Select: walks a function and turns every tensor operation into tile instructions.

The walk keeps, for each tensor value, where its elements are (`Tile`) or what all of them equal (`Splat`). What an
operation becomes is decided by handlers, one table per kind of operation (`memory`, `elementwise`, `contractions`,
`phases`, `control`); they use the services here to read inputs and to place results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xdsl.dialects.builtin import IntegerType, StringAttr, TensorType
from xdsl.ir import Block, Operation, SSAValue

from torch_spyre.backend.addressing.access_tiles import Accesses, Tile
from torch_spyre.backend.options import DEFAULT, Options
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.assembler import DimMap, Extent, LayoutMap, Operand
from torch_spyre.backend.program.isa import (
    FORMAT_BY_CODE,
    IEEE_FP32,
    IEEE_INT32,
    VOPS,
    Access,
    Compute,
    Space,
    format_bytes,
    format_of_type,
    is_integer_type,
)
from torch_spyre.backend.program.numbers import float_bits, round_to_type
from torch_spyre.backend.schedule.fewer_dims import dim_to_loop_over, fewer_dims, in_loop
from torch_spyre.backend.schedule.fold import Folding, Sink, element_name, is_index_type, is_number_type, is_scalar_code
from torch_spyre.backend.schedule.scalars import Scalars
from torch_spyre.backend.schedule.scratch import Scratch
from torch_spyre.backend.schedule.stream import Stream
from torch_spyre.backend.schedule.values import Splat, Value, clobbers, embed, inputs_of, is_linear, outputs_of
from torch_spyre.errors import SpyreError, UnsupportedOp
from torch_spyre.ir.affine import ZERO, Affine, data_symbol, is_data
from torch_spyre.ir.ktir.locations import place

Handler = Callable[["Selector", Any], None]
MakeInstruction = Callable[[Operand], asm.Instruction]


def _origins(block: Block) -> list[str | None]:
    """Where each operation comes from: its own `origin` attribute, or that of the next operation that has one."""
    origins: list[str | None] = []
    current: str | None = None
    for op in reversed(list(block.ops)):
        for inner in op.walk():
            attr = inner.attributes.get("origin")
            if isinstance(attr, StringAttr):
                current = attr.data
                break
        origins.append(current)
    return origins[::-1]


@dataclass(frozen=True)
class Redirect:
    """The place of an outer result that code in a body writes: `positions` are its dims in the body's box."""

    sink: Sink
    positions: tuple[int, ...]


def _located(error: SpyreError, op: Operation) -> SpyreError | None:
    """The error with the place of the innermost operation in front, if that was read from text."""
    where = place(op)
    if not where or getattr(error, "located", False):
        return None
    located = type(error)(f"{where}{error}")
    located.located = True  # type: ignore[attr-defined]
    return located


class Selector:
    def __init__(
        self, stream: Stream, scalars: Scalars, accesses: Accesses, kernel: str, options: Options = DEFAULT
    ) -> None:
        self.stream = stream
        self.scalars = scalars
        self.accesses = accesses
        self.kernel = kernel
        self.options = options
        self.scratch = Scratch()
        self.constants = bytearray()
        self.arg_access: dict[int, Access] = {}
        self.launch_scalars: dict[SSAValue, int] = {}
        self.eager_barriers = False  # end the phase right after every ring read, so that partials can be reused
        self.spare_scratch = False  # write results to memory that are usually put together in scratch
        self.futures: dict[SSAValue, list[Tile]] = {}  # partials that other cores read
        self.pending: dict[SSAValue, Callable[[Tile], None]] = {}  # values that are computed when they are stored
        self.context: tuple[Extent, ...] = ()  # box of the scalar code that is being run, () outside linalg bodies
        self.in_body = False
        self.redirects: dict[SSAValue, Redirect] = {}
        self.carried: dict[SSAValue, Tile] = {}  # loop-carried tensors that may be updated in place, by what is yielded
        self._data: list[Tile] = []  # integers that are data, by data symbol
        self._local_stores = False  # a named scratchpad was written since the last barrier
        self._remote_reads = False  # another core's scratchpad was read since then
        self._values: dict[SSAValue, Value] = {}
        self._done: set[Operation] = set()
        self._handlers: dict[str, Handler] = {}
        self.folding: Folding

    def register(self, handlers: dict[str, Handler]) -> None:
        self._handlers.update(handlers)

    # -- walking ---------------------------------------------------------------------------------------------------

    def run(self, body: Block) -> None:
        self.folding = Folding(body, self.accesses.view_of_tile, self.stream)
        self.block(body)

    def block(self, block: Block) -> None:
        origins = _origins(block)
        for op, origin in zip(block.ops, origins, strict=True):
            if op in self._done:
                continue
            if is_scalar_code(op) and not self._runs_as_data(op):
                continue
            self.stream.origin = f"{self.kernel}: {origin or op.name}"
            self.handle(op)

    def _runs_as_data(self, op: Operation) -> bool:
        """True for scalar code that gives instructions: floats, and integers that come from tensors."""
        result = op.results[0]
        if op.name == "arith.constant" or not is_number_type(result.type):
            return False
        if is_index_type(result.type) and not self._is_data(op):
            self._settle(op)
            return False
        return bool(result.uses)

    def handle(self, op: Operation) -> None:
        handler = self._handlers.get(op.name)
        try:
            if handler is None:
                raise UnsupportedOp(f"{op.name} in kernel {self.kernel} has no instruction on this card")
            handler(self, op)
        except SpyreError as error:
            located = _located(error, op)
            if located is None:
                raise
            raise located from error
        if op.results and not self.in_body and is_scalar_code(op) and is_index_type(op.results[0].type):
            if self.has_value(op.results[0]):
                self._name_data(op.results[0])

    def _settle(self, op: Operation) -> None:
        """Evaluates scalar code that depends on a variable where it stands; other code waits until it is asked for."""
        if not self.stream.has_variables:
            return
        for result in op.results:
            if any(self.stream.depends_on_variable(self.scalars.known(v)) for v in op.operands):
                self.scalars.settle(result)

    def _is_data(self, op: Operation) -> bool:
        """True if an integer is read from a tensor, or computed from such in a way that an index cannot be."""
        if op.name in ("tensor.extract", "tensor.dim", "memref.dim"):
            return True
        if any(is_number_type(v.type) and not is_index_type(v.type) for v in op.operands):
            return True
        if not self._data or not any(is_data(s) for v in op.operands for s, _ in self.scalars.known(v).terms):
            return False
        try:
            self.scalars.settle(op.results[0])
        except UnsupportedOp:
            return True
        return False

    def _name_data(self, result: SSAValue) -> None:
        tile = self.tile(result)
        if tile.view is not None:  # what is in memory may change before the index is used
            tile = self.copied(tile)
        self._data.append(tile)
        self.scalars.bind(result, Affine.symbol(data_symbol(len(self._data) - 1)))

    def data_tile(self, symbol: int) -> Tile:
        return self._data[data_symbol(0) - symbol]

    def carried_operands(self) -> list[Operand]:
        return [tile.operand for tile in self.carried.values()]

    def is_done(self, op: Operation) -> bool:
        return op in self._done

    def has_value(self, value: SSAValue) -> bool:
        return value in self._values

    def forget(self, value: SSAValue) -> None:
        """Code that runs several times binds its results anew."""
        self._values.pop(value, None)

    def mark_done(self, *ops: Operation) -> None:
        self._done.update(ops)

    # -- values ----------------------------------------------------------------------------------------------------

    def bind(self, value: SSAValue, to: Value) -> None:
        self._values[value] = to

    def value(self, value: SSAValue) -> Value:
        found = self._values.get(value)
        if found is not None:
            return found
        if not isinstance(value.type, TensorType):
            return self._scalar_value(value)
        raise UnsupportedOp(f"kernel {self.kernel} uses a {value.type} that no supported operation defines")

    def _scalar_value(self, value: SSAValue) -> Value:
        """A constant, a launch scalar, or an index as data."""
        if value in self.launch_scalars:
            return Splat(element_name(value), scalar=self.launch_scalars[value])
        owner = value.owner
        if isinstance(owner, Operation) and owner.name == "arith.constant":
            attr: Any = owner.properties["value"]
            return Splat(element_name(value), attr.value.data)
        if not is_index_type(value.type):
            raise UnsupportedOp(f"kernel {self.kernel} uses scalar {value}, which no supported operation defines")
        if isinstance(value.type, IntegerType) and value.type.width.data == 1:
            return self.index_data(self.scalars.choose(self.scalars.truth(value), Affine(1), ZERO), "i1")
        return self.index_data(self.scalars.affine(value), "i32")

    def index_data(self, index: Affine, element: str) -> Value:
        """An affine form as a number in scratch."""
        data = [(s, c) for s, c in index.terms if is_data(s)]
        rest = index
        for symbol, coefficient in data:
            rest = rest - Affine.symbol(symbol, coefficient)
        if index.is_const:
            return Splat(element, index.const)
        total = self.new_scratch((), format_of_type(element))
        self.emit(asm.IotaInst((), total.operand, rest, (), origin=self.stream.origin))
        for symbol, coefficient in data:
            factor = Operand(Space.IMM, IEEE_INT32, bits=coefficient & 0xFFFFFFFF)
            scaled = self.new_scratch((), IEEE_INT32)
            inputs = (self.data_tile(symbol).operand, factor)
            self.emit(self.vop("mul", Compute.I32, (), scaled.operand, inputs))
            self.emit(self.vop("add", Compute.I32, (), total.operand, (total.operand, scaled.operand)))
        return total

    def tile(self, value: SSAValue, dims: tuple[Extent, ...] | None = None) -> Tile:
        """The value with an address; a splat is written to scratch, if `dims` are known.

        The scratch holds for this use only: another use may run on cores that the present guards keep out.
        """
        found = self.value(value)
        if isinstance(found, Tile):
            return found
        dims = dims or found.dims
        if dims is None:
            raise UnsupportedOp(f"a constant tensor of type {value.type} is used where data is needed")
        tile = self.new_scratch(dims, format_of_type(found.element))
        self.fill(tile, value)
        return tile

    def input(self, value: SSAValue, positions: Sequence[int], rank: int) -> Operand:
        """`value` as an input of an instruction of `rank` dims, its own dims standing at `positions`."""
        found = self.value(value)
        if isinstance(found, Splat):
            return self._splat_operand(value, found, rank)
        return embed(self.tile(value).operand, positions, rank)

    def _splat_operand(self, value: SSAValue, splat: Splat, rank: int) -> Operand:
        integer = is_integer_type(splat.element)
        fmt = IEEE_INT32 if integer else IEEE_FP32
        if splat.scalar is not None:
            scalar = Operand(Space.SCALAR, fmt, index=splat.scalar)
            if integer or splat.element == "f32":
                return scalar
            # A launch scalar is fp32; as a value of a narrower type it is rounded once.
            rounded = self.new_scratch((), format_of_type(splat.element)).operand
            self.emit(self.vop("identity", Compute.F32, (), rounded, (scalar,)))
            return replace(rounded, maps=(DimMap(),) * rank)
        number = splat.value
        if number is None:
            number = math.nan if self.options.poison_empty and not integer else 0
        bits = int(number) & 0xFFFFFFFF if integer else float_bits(round_to_type(number, splat.element))
        return Operand(Space.IMM, fmt, bits=bits)

    @staticmethod
    def number(value: int, fmt: int) -> tuple[Operand, Compute]:
        """A small integer as an immediate for values of a format, and the type to compute in."""
        if Selector.is_integer(fmt):
            return Operand(Space.IMM, IEEE_INT32, bits=value & 0xFFFFFFFF), Compute.I32
        return Operand(Space.IMM, IEEE_FP32, bits=float_bits(value)), Compute.F32

    @staticmethod
    def is_integer(fmt: int) -> bool:
        return FORMAT_BY_CODE[fmt].name in ("IEEE_INT32", "SENINT16", "SENINT8")

    def new_scratch(self, dims: tuple[Extent, ...], fmt: int) -> Tile:
        """Room in LX for a dense tile."""
        size = format_bytes(fmt)
        strides = []
        for extent in reversed(dims):
            strides.append(DimMap(size))
            size *= max(extent.cap, 1)
        return Tile(Operand(Space.LX, fmt, self.scratch.new(size), tuple(reversed(strides))), dims)

    def copied(self, tile: Tile) -> Tile:
        """A dense copy in scratch."""
        copy = self.new_scratch(tile.dims, tile.operand.format)
        self.emit(asm.CopyInst(tile.dims, copy.operand, tile.operand, origin=self.stream.origin))
        return copy

    def linear(self, tile: Tile) -> Tile:
        """The tile with one stride per dim, copied if need be."""
        return tile if is_linear(tile.operand) else self.copied(tile)

    def dims_for(self, values: Sequence[SSAValue], result: SSAValue) -> tuple[Extent, ...]:
        """Extents of a result that has one element per element of `values`."""
        kind = result.type
        if not isinstance(kind, TensorType):
            return self.context
        dims = self.dims_of([v for v in values if isinstance(v.type, TensorType)])
        if dims is not None:
            return dims
        if any(size < 0 for size in kind.get_shape()):
            raise UnsupportedOp(f"an operation on constants alone gives {kind}; its extents are not known")
        return tuple(Extent.of(size) for size in kind.get_shape())

    def dims_of(self, values: Sequence[SSAValue]) -> tuple[Extent, ...] | None:
        """Extents of the first value that knows them."""
        return next((found.dims for found in map(self.value, values) if found.dims is not None), None)

    # -- results ---------------------------------------------------------------------------------------------------

    def result(
        self,
        result: SSAValue,
        box: tuple[Extent, ...],
        make: MakeInstruction,
        inputs: Sequence[Operand] = (),
        *,
        positions: Sequence[int] | None = None,
        element_for_element: bool = False,
        before: MakeInstruction | None = None,
        sink: Sink | None = None,
    ) -> None:
        """Places a result and emits the instruction that `make` gives for its output operand.

        The instruction iterates over `box`; the result's dims are those at `positions`. `before` makes an instruction
        on the same output that has to come first.
        """
        sink = sink or self.folding.sink(result)
        if positions is None:
            positions = range(len(box))
        self.mark_done(*sink.folded)
        redirect = self.redirects.pop(sink.value, None)
        if redirect is not None:
            sink, positions = redirect.sink, redirect.positions
            self.mark_done(*sink.folded)
        fmt = format_of_type(sink.element)
        access = None if sink.store is None else self.accesses.access(sink.store.operands[1])
        target = None if access is None else access.tile
        if target is None or "accumulate" in sink.store.attributes:  # type: ignore[union-attr]
            sink, target = replace(sink, store=None), None
        direct = (
            target is not None
            and target.operand.format == fmt
            and not isinstance(target.operand.maps, LayoutMap)
            and not self._spoils(target, positions, box, inputs, element_for_element, before)
        )
        if target is not None and direct:
            tile = target
            if target.operand.space is Space.LX:
                self.note_local_store()
        else:
            dims = tuple(box[p] for p in positions)
            own = self.carried.get(sink.value)
            fits = own is not None and own.operand.format == fmt and own.dims == dims
            if own is None or not fits or self._spoils(own, positions, box, inputs, element_for_element, before):
                own = self.new_scratch(dims, fmt)
            tile = own
        out = embed(tile.operand, positions, len(box))
        if before is not None:
            first = before(out)
            if not (isinstance(first, asm.VopInst) and first.inputs == (out,)):  # the initial value is there already
                self.emit(first)
        self.emit(make(out))
        self.bind(sink.value, tile)
        if target is not None and sink.store is not None:
            self.mark_done(sink.store)
            if not direct:
                self.emit(asm.CopyInst(target.dims, target.operand, tile.operand, origin=self.stream.origin))

    def _spoils(
        self,
        tile: Tile,
        positions: Sequence[int],
        box: tuple[Extent, ...],
        inputs: Sequence[Operand],
        element_for_element: bool,
        before: MakeInstruction | None,
    ) -> bool:
        """True if a result written to the tile may change what the instruction still has to read."""
        out = embed(tile.operand, positions, len(box))
        if clobbers(out, inputs, box, self.stream, element_for_element):
            return True
        return before is not None and clobbers(out, inputs_of(before(out)), box, self.stream, True)

    def vop(
        self, name: str, compute: Compute, dims: tuple[Extent, ...], out: Operand, inputs: tuple[Operand, ...]
    ) -> asm.VopInst:
        return asm.VopInst(VOPS[name].code, compute, dims, out, inputs, origin=self.stream.origin)

    def fill(self, tile: Tile, value: SSAValue) -> None:
        """Writes a splat to a tile."""
        splat = self.value(value)
        assert isinstance(splat, Splat)
        compute = Compute.I32 if is_integer_type(splat.element) else Compute.F32
        source = self._splat_operand(value, splat, len(tile.dims))
        self.emit(self.vop("identity", compute, tile.dims, tile.operand, (source,)))

    # -- phases ----------------------------------------------------------------------------------------------------

    def barrier(self) -> None:
        self.stream.barrier()
        self._local_stores = self._remote_reads = False

    def note_local_store(self) -> None:
        """Called before a named scratchpad is written."""
        if self._remote_reads:
            self.barrier()
        self._local_stores = True

    def before_remote_read(self) -> None:
        if self._local_stores or self.stream.in_loop:
            self.barrier()

    def after_remote_read(self) -> None:
        self._remote_reads = True
        if self.stream.in_loop:
            self.barrier()

    def emit(self, inst: asm.Instruction) -> None:
        """Appends an instruction and notes which launch arguments it touches."""
        for operands, access in ((outputs_of(inst), Access.WRITE), (inputs_of(inst), Access.READ)):
            for operand in operands:
                if operand.space is Space.MEM:
                    self.arg_access[operand.index] = self.arg_access.get(operand.index, Access(0)) | access
        self._emit_looped(fewer_dims(inst))

    def _emit_looped(self, inst: Any) -> None:
        at = dim_to_loop_over(inst)
        if at is None:
            self.stream.emit(inst)
            return
        with self.stream.loop(ZERO, inst.dims[at].affine, 1) as counter:
            self._emit_looped(in_loop(inst, at, counter))
