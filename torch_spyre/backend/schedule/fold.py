# SPDX-License-Identifier: Apache-2.0
"""Fold: which loads, conversions and stores disappear into the instruction that uses or computes the value.

A load is read in place by the instructions that use it, unless memory it reads may be written before the last of them;
a result goes straight to the tile it is stored to, unless something between the two could notice. Both questions are
answered here, on positions of operations in the function.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import IndexType, IntegerType, TensorType, _FloatType
from xdsl.ir import Block, Operation, SSAValue

from torch_spyre.backend.addressing.memory_views import View, may_overlap
from torch_spyre.backend.program.isa import type_name
from torch_spyre.backend.schedule.stream import Stream
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.ktir.dialect.spyreop import DF16Type
from torch_spyre.ir.ktir.dialect.types import RuntimeArgType

# Operations that only rename the elements of their operand: whoever uses the result reads the operand.
_ALIASES = {
    "arith.extf",
    "arith.cmpf",
    "arith.cmpi",
    "arith.uitofp",
    "arith.sitofp",
    "arith.extsi",
    "linalg.broadcast",
    "linalg.transpose",
    "arith.bitcast",
    "arith.index_cast",
    "arith.index_castui",
    "arith.extui",
    "arith.trunci",
    "tensor.cast",
    "tensor.collapse_shape",
    "tensor.expand_shape",
    "tensor.extract",
    "tensor.extract_slice",
    "tensor.reshape",
    "tensor.splat",
    "linalg.fill",
    "scf.for",
    "scf.if",
}
# Operations that may stand between the computation of a value and its store without any instruction of their own.
_SILENT_PREFIXES = ("ktdp.construct", "ktdp.get_compute_tile_id", "tensor.empty", "tensor.splat", "arith.constant")
_BARRIERS = {
    "ktdp.inter_tile_reduce",
    "ktdp.inter_tile_consume",
    "ktdp.inter_tile_gather",
    "ktdp.inter_tile_scatter",
    "ktdp.inter_tile_all_to_all",
    "ktdp.inter_tile_reduce_scatter",
}


@dataclass(frozen=True)
class Sink:
    """Where a result goes: its element type after the folded conversions, and the store that takes it, if any."""

    element: str
    value: SSAValue
    folded: tuple[Operation, ...] = ()
    store: Operation | None = None


def element_name(value: SSAValue) -> str:
    """Element type of a tensor or scalar value, as printed."""
    kind: Any = value.type
    return type_name(kind.element_type if isinstance(kind, TensorType) else kind)


def is_scalar_code(op: Operation) -> bool:
    return bool(op.results) and not any(isinstance(r.type, TensorType) for r in op.results) and not op.regions


def is_index_type(kind: object) -> bool:
    return isinstance(kind, IndexType | IntegerType | RuntimeArgType)


def is_number_type(kind: object) -> bool:
    return is_index_type(kind) or isinstance(kind, _FloatType | DF16Type)


class Folding:
    """Positions and memory effects of one function. `view_of` gives the view under an access tile."""

    def __init__(self, body: Block, view_of: Callable[[SSAValue], View], stream: Stream) -> None:
        self._view_of = view_of
        self._stream = stream
        self._position: dict[Operation, int] = {}
        self._end: dict[Operation, int] = {}  # position past the last operation inside
        self._writers: list[Operation] = []
        self._number(body)
        self._writer_positions = [self._position[op] for op in self._writers]

    def _number(self, block: Block) -> None:
        for op in block.ops:
            self._position[op] = len(self._position)
            if op.name == "ktdp.store" or op.name in _BARRIERS:
                self._writers.append(op)
            if op.name != "ktdp.construct_indirect_access_tile":
                for region in op.regions:
                    for inner in region.blocks:
                        self._number(inner)
            self._end[op] = len(self._position)

    # -- loads -----------------------------------------------------------------------------------------------------

    def reads_in_place(self, load: Operation) -> bool:
        """True if nothing may change the loaded bytes before their last use."""
        start = self._position[load]
        last = max((self._use_position(load, user) for user in self._users(load.results[0])), default=start)
        view = self._view_of(load.operands[0])
        between = self._writers[bisect_right(self._writer_positions, start) : bisect_left(self._writer_positions, last)]
        return not any(self._may_change(writer, view) for writer in between)

    def _users(self, value: SSAValue) -> Iterator[Operation]:
        for use in value.uses:
            yield use.operation
            if use.operation.name in _ALIASES:
                for result in use.operation.results:
                    yield from self._users(result)

    def _use_position(self, definition: Operation, user: Operation) -> int:
        """Position of a use; inside a loop that the definition is not in, the end of the loop."""
        position = self._position[user]
        parent = user.parent_op()
        while parent is not None and parent in self._position and not parent.is_ancestor(definition):
            if parent.name in ("scf.for", "scf.forall", "scf.parallel"):
                position = self._end[parent]
            parent = parent.parent_op()
        return position

    def is_last_use(self, value: SSAValue, op: Operation) -> bool:
        """True if nothing after `op` reads the value, also under another name."""
        limit = self._position[op]
        return all(self._use_position(op, user) <= limit for user in self._users(value))

    def _may_change(self, writer: Operation, view: View) -> bool:
        if writer.name != "ktdp.store":
            return any(part.arg is not None for part in view.parts)  # a barrier may let other cores write memory
        try:
            written = self._view_of(writer.operands[1])
        except UnsupportedOp:  # it starts from the counter of a loop that has not been opened yet
            return True
        return may_overlap(written, view, self._stream)

    # -- results ---------------------------------------------------------------------------------------------------

    def sink(self, value: SSAValue, anywhere: bool = False) -> Sink:
        """Follows single uses to a store. With `anywhere` the value is only computed when its store is reached.

        Otherwise the store happens when the value is computed, so nothing in between may notice.
        """
        folded: list[Operation] = []
        sink = Sink(element_name(value), value)
        while (use := value.get_unique_use()) is not None:
            op = use.operation
            # A value of type f32 is not rounded before it is narrowed; others have been, and a second rounding shows.
            narrows = op.name == "arith.truncf" and element_name(value) == "f32"
            if narrows or (op.name == "arith.uitofp" and element_name(value) == "i1"):
                folded.append(op)
                value = op.results[0]
                sink = Sink(element_name(value), value, tuple(folded))
                continue
            stored = op.name == "ktdp.store" and use.index == 0
            if stored and (self._only_guards(sink, folded, op) if anywhere else self._clear_path(sink, folded, op)):
                return Sink(sink.element, value, tuple(folded), op)
            break
        return sink

    def unfolded(self, value: SSAValue) -> Sink:
        """No folding: the value stands alone, in its own type."""
        return Sink(element_name(value), value)

    @staticmethod
    def _only_guards(sink: Sink, folded: list[Operation], store: Operation) -> bool:
        """True if the store runs at most once for each time the value is defined."""
        block = _definition(sink, folded).parent_block()
        at: Operation | None = store
        while at is not None and at.parent_block() is not block:
            at = at.parent_op()
            if at is not None and at.name != "scf.if":
                return False
        return at is not None

    def _clear_path(self, sink: Sink, folded: list[Operation], store: Operation) -> bool:
        """True if no instruction that could notice is between the definition of the value and the store."""
        origin = _definition(sink, folded)
        if origin.parent_block() is not store.parent_block():
            return False
        op = origin.next_op
        while op is not None and op is not store:
            silent = op in folded or is_scalar_code(op) or op.name.startswith(_SILENT_PREFIXES)
            if op.name == "ktdp.load":
                views = self._view_of(op.operands[0]), self._view_of(store.operands[1])
                silent = not may_overlap(*views, self._stream)
            if not silent:
                return False
            op = op.next_op
        return op is store


def _definition(sink: Sink, folded: list[Operation]) -> Operation:
    owner = folded[0].operands[0].owner if folded else sink.value.owner
    assert isinstance(owner, Operation)  # only results of operations have sinks
    return owner
