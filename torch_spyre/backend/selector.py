# SPDX-License-Identifier: Apache-2.0
"""Select: walks a function and turns every tensor operation into tile instructions.

The walk keeps, for each tensor value, where its elements are (`Tile`) or what all of them equal (`Splat`). What an
operation becomes is decided by handlers, one table per kind of operation (`memory`, `elementwise`, `contractions`,
`phases`, `control`); they use the services here to read inputs and to place results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Operation, SSAValue

from torch_spyre.backend import assembler as asm
from torch_spyre.backend.access import Accesses, Tile
from torch_spyre.backend.assembler import DimMap, Extent, LayoutMap, Operand
from torch_spyre.backend.fold import Folding, Sink, is_scalar_code
from torch_spyre.backend.isa import (
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
from torch_spyre.backend.numbers import float_bits, round_to_type
from torch_spyre.backend.scalars import Scalars
from torch_spyre.backend.scratch import Scratch
from torch_spyre.backend.stream import Stream
from torch_spyre.backend.values import Splat, Value, clobbers, embed, inputs_of, outputs_of
from torch_spyre.errors import UnsupportedOp

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


class Selector:
    def __init__(self, stream: Stream, scalars: Scalars, accesses: Accesses, kernel: str) -> None:
        self.stream = stream
        self.scalars = scalars
        self.accesses = accesses
        self.kernel = kernel
        self.scratch = Scratch()
        self.constants = bytearray()
        self.arg_access: dict[int, Access] = {}
        self.launch_scalars: dict[SSAValue, int] = {}
        self.eager_barriers = False  # end the phase right after every ring read, so that partials can be reused
        self.futures: dict[SSAValue, Tile] = {}  # partials that other cores read
        self.pending: dict[SSAValue, Callable[[Tile], None]] = {}  # values that are computed when they are stored
        self._values: dict[SSAValue, Value] = {}
        self._done: set[Operation] = set()
        self._handlers: dict[str, Handler] = {}
        self.folding: Folding

    def register(self, handlers: dict[str, Handler]) -> None:
        self._handlers.update(handlers)

    # -- walking ---------------------------------------------------------------------------------------------------

    def run(self, body: Block) -> None:
        self.folding = Folding(body, self.accesses.view_of_tile)
        self.block(body)

    def block(self, block: Block) -> None:
        origins = _origins(block)
        for op, origin in zip(block.ops, origins, strict=True):
            if op not in self._done and not is_scalar_code(op):
                handler = self._handlers.get(op.name)
                if handler is None:
                    raise UnsupportedOp(f"{op.name} in kernel {self.kernel} has no instruction on this card")
                self.stream.origin = f"{self.kernel}: {origin or op.name}"
                handler(self, op)

    def mark_done(self, *ops: Operation) -> None:
        self._done.update(ops)

    # -- values ----------------------------------------------------------------------------------------------------

    def bind(self, value: SSAValue, to: Value) -> None:
        self._values[value] = to

    def value(self, value: SSAValue) -> Value:
        found = self._values.get(value)
        if found is None:
            raise UnsupportedOp(f"kernel {self.kernel} uses a {value.type} that no supported operation defines")
        return found

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
        if splat.value is None:
            raise UnsupportedOp(f"an operation of kernel {self.kernel} reads a tensor.empty; fill it first")
        bits = int(splat.value) & 0xFFFFFFFF if integer else float_bits(round_to_type(splat.value, splat.element))
        return Operand(Space.IMM, fmt, bits=bits)

    def new_scratch(self, dims: tuple[Extent, ...], fmt: int) -> Tile:
        """Room in LX for a dense tile."""
        size = format_bytes(fmt)
        strides = []
        for extent in reversed(dims):
            strides.append(DimMap(size))
            size *= max(extent.cap, 1)
        return Tile(Operand(Space.LX, fmt, self.scratch.new(size), tuple(reversed(strides))), dims)

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
        fmt = format_of_type(sink.element)
        target = None if sink.store is None else self.accesses.tile(sink.store.operands[1])
        direct = (
            target is not None
            and target.operand.format == fmt
            and not isinstance(target.operand.maps, LayoutMap)
            and not clobbers(embed(target.operand, positions, len(box)), inputs, box, self.stream, element_for_element)
        )
        if target is not None and direct:
            tile = target
        else:
            tile = self.new_scratch(tuple(box[p] for p in positions), fmt)
        out = embed(tile.operand, positions, len(box))
        if before is not None:
            self.emit(before(out))
        self.emit(make(out))
        self.bind(sink.value, tile)
        if target is not None and sink.store is not None:
            self.mark_done(sink.store)
            if not direct:
                self.emit(asm.CopyInst(target.dims, target.operand, tile.operand, origin=self.stream.origin))

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

    def emit(self, inst: asm.Instruction) -> None:
        """Appends an instruction and notes which launch arguments it touches."""
        for operands, access in ((outputs_of(inst), Access.WRITE), (inputs_of(inst), Access.READ)):
            for operand in operands:
                if operand.space is Space.MEM:
                    self.arg_access[operand.index] = self.arg_access.get(operand.index, Access(0)) | access
        self.stream.emit(inst)
