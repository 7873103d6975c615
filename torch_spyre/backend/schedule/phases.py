# SPDX-License-Identifier: Apache-2.0
"""Phases: cores exchange data between barriers.

Producers write their partials to scratch, a barrier ends the phase, and consumers read over the ring. All deliveries
are one exchange: consumer c takes from each of its producers a box of the partial (the whole, or the part at c's
position), and puts it into its result (at the producer's position), or folds it. An exchange whose results nobody uses
is the barrier alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from xdsl.ir import SSAValue

from torch_spyre.backend.addressing.access_tiles import Tile
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.assembler import Extent, LayoutMap, Operand
from torch_spyre.backend.program.isa import Compute, Rop, Space, format_of_type
from torch_spyre.backend.schedule.fold import element_name
from torch_spyre.backend.schedule.values import Splat, is_linear, sub_box
from torch_spyre.backend.select.contractions import combiner_of, is_neutral
from torch_spyre.backend.select.exchange import Exchange, exchange_of, first_producer, guard_of, producers_of, table_of
from torch_spyre.backend.select.reshapes import write
from torch_spyre.backend.select.selector import Handler, Selector
from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ir.affine import ZERO, Affine

_VECTOR = {Rop.SUM: "add", Rop.MAX: "maximum", Rop.MIN: "minimum", Rop.PROD: "mul"}


@dataclass(frozen=True)
class Delivery:
    """`split`: a consumer takes the part at its own position along these dims. `concat`: parts are put side by side."""

    split: tuple[int, ...] = ()
    concat: tuple[int, ...] = ()
    combine: bool = False


def produce(selector: Selector, op: Any) -> None:
    """Runs the region on the producers and puts what it yields where other cores can read it."""
    (delivery,) = (use.operation for use in op.future.uses)
    if not any(result.uses for result in delivery.results):
        return
    stream = selector.stream
    block = op.body.block
    groups = producers_of(op, stream.cores)
    group_of = {core: group for group, cores in groups.items() for core in cores}
    if block.args[0].uses:
        period = max(len(cores) for cores in groups.values())
        selector.scalars.bind(block.args[0], table_of(stream, group_of, period))
    work = [inner for inner in block.ops if inner is not block.last_op]
    if work:
        with stream.guard(guard_of(stream, sorted(group_of))):
            selector.block(block)
            selector.futures[op.future] = [_publish(selector, value) for value in block.last_op.operands]
    else:
        selector.futures[op.future] = [_publish(selector, value) for value in block.last_op.operands]


def _publish(selector: Selector, value: SSAValue) -> Tile:
    """The value in scratch, where nothing overwrites it before the exchange is over."""
    tile = selector.tile(value)
    private = tile.operand.space is Space.LX and tile.view is None and is_linear(tile.operand)
    return tile if private and tile.operand not in selector.carried_operands() else selector.copied(tile)


# -- deliveries --------------------------------------------------------------------------------------------------------


def reduce(selector: Selector, op: Any) -> None:
    """Partials are combined in ascending core order."""
    if any(result.uses for result in op.results):
        _check_identity(selector, op)
    _deliver(selector, op, Delivery(combine=True))


def _check_identity(selector: Selector, op: Any) -> None:
    """The card starts from the first partial, so the identity has to be neutral; unknown combiners are trusted."""
    if len(op.results) == 1 and _known_combiner(op) is not None:
        rop = combiner_of(op.combiner)
        if not is_neutral(selector.value(op.identity[0]), rop, element_name(op.results[0])):
            raise UnsupportedOp(f"{op.name} with an identity that is not neutral for its combiner (R11)")


def consume(selector: Selector, op: Any) -> None:
    """Consumers get the value of their one producer."""
    _deliver(selector, op, Delivery())


def gather(selector: Selector, op: Any) -> None:
    _deliver(selector, op, Delivery(concat=_dims(op, "gather_dimensions")))


def scatter(selector: Selector, op: Any) -> None:
    _deliver(selector, op, Delivery(split=_dims(op, "scatter_dimensions")))


def all_to_all(selector: Selector, op: Any) -> None:
    _deliver(selector, op, Delivery(_dims(op, "split_dimensions"), _dims(op, "concat_dimensions")))


def reduce_scatter(selector: Selector, op: Any) -> None:
    if any(result.uses for result in op.results):
        _check_identity(selector, op)
    _deliver(selector, op, Delivery(split=_dims(op, "scatter_dimensions"), combine=True))


def _dims(op: Any, name: str) -> tuple[int, ...]:
    attr = op.properties.get(name) or op.attributes.get(name)
    if attr is None:
        raise InvalidProgram(f"{op.name} without {name}")
    return tuple(attr.get_values()) if hasattr(attr, "get_values") else tuple(v.value.data for v in attr.data)


def _known_combiner(op: Any) -> Rop | None:
    try:
        return combiner_of(op.combiner)
    except UnsupportedOp:
        return None


def _deliver(selector: Selector, op: Any, delivery: Delivery) -> None:
    selector.barrier()
    if not any(result.uses for result in op.results):
        return
    stream = selector.stream
    partials = selector.futures[op.future]
    exchange = exchange_of(op, op.future.owner, stream.cores)
    if not delivery.combine and not delivery.concat and exchange.count != 1:
        raise InvalidProgram(f"{op.name} from {exchange.count} producers; each consumer takes from exactly one (R8)")
    rop = _known_combiner(op) if delivery.combine and len(partials) == 1 else None
    plain = delivery == Delivery() or (delivery == Delivery(combine=True) and rop is not None)
    if len(partials) == 1 and plain:
        _deliver_one(selector, op.results[0], exchange, rop, partials[0])
        return
    places = [_Boxes(selector, op, delivery, exchange, i) for i in range(len(partials))]
    with stream.guard(guard_of(stream, sorted(exchange.sources))):
        if delivery.combine:
            targets = _fold(selector, op, exchange, partials, places, rop)
        else:
            targets = [
                _collect(selector, exchange, partial, box) for partial, box in zip(partials, places, strict=True)
            ]
    _after_ring(selector)
    for result, tile in zip(op.results, targets, strict=True):
        selector.bind(result, tile)


def _after_ring(selector: Selector) -> None:
    if selector.eager_barriers or selector.stream.in_loop:
        selector.barrier()  # before anybody writes the partials again


def _deliver_one(selector: Selector, result: SSAValue, exchange: Exchange, rop: Rop | None, partial: Tile) -> None:
    """A whole partial, or a fold by one vector operation: goes straight to the store of the result, if it has one."""
    sink = selector.folding.sink(result, anywhere=True)

    def write_to(target: Tile) -> None:
        with selector.stream.guard(guard_of(selector.stream, sorted(exchange.sources))):
            _read_ring(selector, exchange, rop, partial, target)
        _after_ring(selector)

    selector.mark_done(*sink.folded)
    if sink.store is not None:
        selector.pending[sink.value] = write_to
        return
    tile = selector.new_scratch(partial.dims, format_of_type(sink.element))
    write_to(tile)
    selector.bind(sink.value, tile)


# -- boxes -------------------------------------------------------------------------------------------------------------


class _Boxes:
    """Which box of a partial a consumer takes, and where the k-th one goes in its result."""

    def __init__(self, selector: Selector, op: Any, delivery: Delivery, exchange: Exchange, role: int) -> None:
        self._stream = selector.stream
        self._positions = exchange.positions
        partial = op.future.type.partials.data[role].get_shape()
        result = op.results[role].type.get_shape()
        self.split, self.concat = delivery.split, delivery.concat
        if any(size < 0 for size in (*partial, *result)):
            raise UnsupportedOp(f"{op.name} of tensors whose sizes are known only at launch")
        own = [partial[d] // self._ways(op, exchange, partial, result, d) for d in range(len(partial))]
        self.part = tuple(Extent.of(size) for size in own)
        self.whole = tuple(Extent.of(size) for size in result)
        self._split_ways = [partial[d] // own[d] for d in self.split]
        self._concat_ways = [result[d] // own[d] for d in self.concat]
        for d, (size, total) in enumerate(zip(own, result, strict=True)):
            if size != total and d not in self.concat:
                raise InvalidProgram(f"{op.name}: dim {d} of the result is {total}, each part has {size}")
        for count, ways in (
            (len(set(exchange.positions.values())), self._split_ways),
            (exchange.count, self._concat_ways),
        ):
            if ways and math.prod(ways) != count:
                raise InvalidProgram(f"{op.name}: {math.prod(ways)} parts for {count} tiles (R9, R12)")

    def _ways(self, op: Any, exchange: Exchange, partial: Sequence[int], result: Sequence[int], d: int) -> int:
        """Parts along a dim of the partial."""
        if d not in self.split:
            return 1
        count = len(set(exchange.positions.values()))
        ways = partial[d] // result[d] if len(self.split) > 1 or d not in self.concat else count
        if d in self.concat and len(self.split) == 1:
            ways = count
        if ways < 1 or partial[d] % ways:
            raise InvalidProgram(f"{op.name}: dim {d} of {partial[d]} does not split {ways} ways (R9)")
        return ways

    def taken(self) -> list[Affine]:
        """Where in a partial the executing consumer's part begins."""
        start = [ZERO] * len(self.part)
        below = 1
        for d, ways in zip(reversed(self.split), reversed(self._split_ways), strict=True):
            table = {core: position // below % ways for core, position in self._positions.items()}
            start[d] = table_of(self._stream, table, len(self._positions)) * self.part[d].cap
            below *= ways
        return start

    def put(self, k: int) -> list[Affine]:
        """Where in the result the part of the k-th producer goes."""
        start = [ZERO] * len(self.part)
        below = 1
        for d, ways in zip(reversed(self.concat), reversed(self._concat_ways), strict=True):
            start[d] = Affine(k // below % ways * self.part[d].cap)
            below *= ways
        return start


def _fetch(selector: Selector, exchange: Exchange, k: int, partial: Tile, box: _Boxes, out: Operand) -> None:
    """The part of the k-th producer, over the ring."""
    stream = selector.stream
    core = table_of(stream, exchange.sources_at(k), exchange.count)
    remote = replace(sub_box(partial.operand, box.taken()), space=Space.LX_REMOTE, core=core)
    with stream.guard(guard_of(stream, exchange.consumers_of(k))):
        selector.emit(asm.CopyInst(box.part, out, remote, origin=stream.origin))


def _collect(selector: Selector, exchange: Exchange, partial: Tile, box: _Boxes) -> Tile:
    target = selector.new_scratch(box.whole, partial.operand.format)
    for k in range(exchange.count):
        _fetch(selector, exchange, k, partial, box, sub_box(target.operand, box.put(k)))
    return target


def _fold(
    selector: Selector, op: Any, exchange: Exchange, partials: Sequence[Tile], boxes: Sequence[_Boxes], rop: Rop | None
) -> list[Tile]:
    """Combines one producer after the other with the region of the delivery."""
    totals = []
    for partial, box in zip(partials, boxes, strict=True):
        total = selector.new_scratch(box.part, partial.operand.format)
        _fetch(selector, exchange, 0, partial, box, total.operand)
        totals.append(total)
    for k in range(1, exchange.count):
        fetched = [selector.new_scratch(box.part, p.operand.format) for p, box in zip(partials, boxes, strict=True)]
        for partial, box, tile in zip(partials, boxes, fetched, strict=True):
            _fetch(selector, exchange, k, partial, box, tile.operand)
        with selector.stream.guard(guard_of(selector.stream, exchange.consumers_of(k))):
            _combine(selector, op, totals, fetched, rop)
    return totals


def _combine(selector: Selector, op: Any, totals: Sequence[Tile], fetched: Sequence[Tile], rop: Rop | None) -> None:
    if rop is not None:
        compute = Compute.I32 if selector.is_integer(totals[0].operand.format) else Compute.F32
        inputs = (totals[0].operand, fetched[0].operand)
        selector.emit(selector.vop(_VECTOR[rop], compute, totals[0].dims, totals[0].operand, inputs))
        return
    block = op.combiner.block
    for arg, tile in zip(block.args, (*totals, *fetched), strict=True):
        selector.bind(arg, tile)
    selector.block(block)
    values = [selector.value(v) for v in block.last_op.operands]
    held = [v if isinstance(v, Splat) or i == 0 else selector.copied(v) for i, v in enumerate(values)]
    for value, tile, given in zip(held, totals, block.last_op.operands, strict=True):
        if isinstance(value, Splat):
            write(selector, given, tile)
        else:
            selector.emit(asm.CopyInst(tile.dims, tile.operand, value.operand, origin=selector.stream.origin))


# -- one vector operation ----------------------------------------------------------------------------------------------


def _read_ring(selector: Selector, exchange: Exchange, rop: Rop | None, partial: Tile, target: Tile) -> None:
    stream = selector.stream
    remote = replace(partial.operand, space=Space.LX_REMOTE)
    origin = stream.origin
    step = exchange.step
    integer = selector.is_integer(partial.operand.format)
    if rop is Rop.SUM and step is not None and not integer and not isinstance(target.operand.maps, LayoutMap):
        first = first_producer(stream, exchange)
        dims = partial.dims
        selector.emit(asm.RingSumInst(exchange.count, first, step, dims, target.operand, remote, origin=origin))
        return
    if integer and partial.operand.format != target.operand.format:
        raise UnsupportedOp("an integer exchange that converts its result; convert it after the exchange")
    if exchange.count == 1 or rop is None:
        source = replace(remote, core=first_producer(stream, exchange))
        selector.emit(asm.CopyInst(partial.dims, target.operand, source, origin=origin))
        return
    _fold_ring(selector, exchange, rop, partial, target)


def _fold_ring(selector: Selector, exchange: Exchange, rop: Rop, partial: Tile, target: Tile) -> None:
    """Fetches one partial after the other and combines them; the last step writes the target."""
    stream = selector.stream
    origin = stream.origin
    dims = partial.dims
    remote = replace(partial.operand, space=Space.LX_REMOTE)
    compute = Compute.I32 if selector.is_integer(partial.operand.format) else Compute.F32
    total = selector.new_scratch(dims, partial.operand.format)
    first = first_producer(stream, exchange)
    selector.emit(asm.CopyInst(dims, total.operand, replace(remote, core=first), origin=origin))
    even = len({len(s) for s in exchange.sources.values()}) == 1
    offsets = {tuple(core - s[0] for core in s) for s in exchange.sources.values()}
    direct = even and not isinstance(target.operand.maps, LayoutMap)
    for k in range(1, exchange.count):
        fetched = selector.new_scratch(dims, partial.operand.format)
        same = len(offsets) == 1
        core = first + next(iter(offsets))[k] if same else table_of(stream, exchange.sources_at(k), exchange.count)
        out = target.operand if direct and k == exchange.count - 1 else total.operand
        with stream.guard(guard_of(stream, exchange.consumers_of(k)) if not even else Affine(0)):
            selector.emit(asm.CopyInst(dims, fetched.operand, replace(remote, core=core), origin=origin))
            selector.emit(selector.vop(_VECTOR[rop], compute, dims, out, (total.operand, fetched.operand)))
    if not direct:
        selector.emit(asm.CopyInst(target.dims, target.operand, total.operand, origin=origin))


HANDLERS: dict[str, Handler] = {
    "ktdp.inter_tile_produce": produce,
    "ktdp.inter_tile_reduce": reduce,
    "ktdp.inter_tile_consume": consume,
    "ktdp.inter_tile_gather": gather,
    "ktdp.inter_tile_scatter": scatter,
    "ktdp.inter_tile_all_to_all": all_to_all,
    "ktdp.inter_tile_reduce_scatter": reduce_scatter,
    "ktdp.yield_partial": lambda selector, op: None,
    "ktdp.yield_reduced": lambda selector, op: None,
}
