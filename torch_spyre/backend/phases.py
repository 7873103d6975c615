# SPDX-License-Identifier: Apache-2.0
"""Phases: cores exchange data between barriers.

Producers write their partial to scratch, a barrier ends the phase, and consumers read the partials of their group over
the ring. An exchange whose result nobody uses is the barrier alone. Groups are enumerated: a program knows its cores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch_spyre.backend import assembler as asm
from torch_spyre.backend.access import Tile
from torch_spyre.backend.affine import CORE_ID, Affine
from torch_spyre.backend.assembler import LayoutMap, Operand
from torch_spyre.backend.boxes import members
from torch_spyre.backend.contractions import combiner_of, is_neutral
from torch_spyre.backend.fold import element_name
from torch_spyre.backend.isa import Compute, Rop, Sop, Space, format_of_type
from torch_spyre.backend.selector import Handler, Selector
from torch_spyre.backend.stream import Stream
from torch_spyre.errors import UnsupportedOp

_VECTOR = {Rop.SUM: "add", Rop.MAX: "maximum", Rop.MIN: "minimum", Rop.PROD: "mul"}


@dataclass(frozen=True)
class Exchange:
    """Who gets what from whom: consumer core -> first producer, and where the producers of a group lie from there."""

    first_producer: dict[int, int]
    offsets: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.offsets)

    @property
    def step(self) -> int | None:
        """The distance of producers, if they are evenly spaced."""
        steps = {b - a for a, b in pairwise(self.offsets)} or {1}
        return steps.pop() if len(steps) == 1 else None


def _exchange(op: Any, produce: Any, cores: int) -> Exchange:
    """Evaluates the producer and consumer sets of every group."""
    if op.producer_dependency_per_consumer is not None:
        raise UnsupportedOp(f"{op.name} with producer_dependency_per_consumer; without it every producer counts")
    tiles = range(cores)
    # A group has at least one core, so there are no more groups than cores.
    groups = members(produce.future.type.groups.data, tiles)
    first_producer: dict[int, int] = {}
    shapes: set[tuple[int, ...]] = set()
    for group in groups:
        producers = members(produce.producer_tiles_per_group.data, tiles, [group])
        consumers = members(op.consumer_tiles_per_group.data, tiles, [group])
        if not producers:
            raise UnsupportedOp(f"group {group} of {op.name} has no producers")
        shapes.add(tuple(core - producers[0] for core in producers))
        for consumer in consumers:
            if consumer in first_producer:
                raise UnsupportedOp(f"core {consumer} consumes in two groups of one {op.name}")
            first_producer[consumer] = producers[0]
    if len(shapes) != 1:
        raise UnsupportedOp(f"groups of unequal shape; producers relative to the first: {sorted(shapes)}")
    return Exchange(first_producer, shapes.pop())


def produce(selector: Selector, op: Any) -> None:
    """Runs the region and puts what it yields where other cores can read it."""
    (delivery,) = (use.operation for use in op.future.uses)
    if not any(result.uses for result in delivery.results):
        return
    block = op.body.block
    if block.args[0].uses:
        raise UnsupportedOp("ktdp.inter_tile_produce that uses its group id; compute it from the tile id")
    selector.block(block)
    values = list(block.last_op.operands)
    if len(values) != 1:
        raise UnsupportedOp(f"ktdp.inter_tile_produce of {len(values)} partials at once; produce one after the other")
    tile = selector.tile(values[0])
    if tile.operand.space is not Space.LX or tile.view is not None:
        copy = selector.new_scratch(tile.dims, tile.operand.format)
        selector.emit(asm.CopyInst(tile.dims, copy.operand, tile.operand, origin=selector.stream.origin))
        tile = copy
    selector.futures[op.future] = tile


def _deliver(selector: Selector, op: Any, rop: Rop | None) -> None:
    selector.stream.barrier()
    (result,) = op.results
    if not result.uses:
        return
    partial = selector.futures[op.future]
    exchange = _exchange(op, op.future.owner, selector.stream.cores)
    sink = selector.folding.sink(result, anywhere=True)

    def write(target: Tile) -> None:
        with selector.stream.guard(_consumer_guard(selector.stream, exchange)):
            _read_ring(selector, exchange, rop, partial, target)
        if selector.eager_barriers or selector.stream.in_loop:
            selector.stream.barrier()  # before anybody writes the partials again

    if sink.store is not None:
        selector.mark_done(*sink.folded)
        selector.pending[sink.value] = write
        return
    selector.mark_done(*sink.folded)
    tile = selector.new_scratch(partial.dims, format_of_type(sink.element))
    write(tile)
    selector.bind(sink.value, tile)


def reduce(selector: Selector, op: Any) -> None:
    """Partials are combined in ascending core order."""
    rop = combiner_of(op.combiner)
    if op.results[0].uses and not is_neutral(selector.value(op.identity[0]), rop, element_name(op.results[0])):
        raise UnsupportedOp("ktdp.inter_tile_reduce with an identity that is not neutral for its combiner")
    _deliver(selector, op, rop)


def consume(selector: Selector, op: Any) -> None:
    """Consumers get the value of the one producer of their group."""
    _deliver(selector, op, None)


# -- reading the ring --------------------------------------------------------------------------------------------------


def _read_ring(selector: Selector, exchange: Exchange, rop: Rop | None, partial: Tile, target: Tile) -> None:
    stream = selector.stream
    first = _first_producer(stream, exchange)
    remote = replace(partial.operand, space=Space.LX_REMOTE)
    dims = partial.dims
    origin = stream.origin
    step = exchange.step
    plain = not _is_integer(partial) and not isinstance(target.operand.maps, LayoutMap)
    if rop is Rop.SUM and step is not None and plain:
        selector.emit(asm.RingSumInst(exchange.count, first, step, dims, target.operand, remote, origin=origin))
        return
    if _is_integer(partial) and partial.operand.format != target.operand.format:
        raise UnsupportedOp("an integer exchange that converts its result; convert it after the exchange")
    if rop is None and exchange.count != 1:
        raise UnsupportedOp(f"ktdp.inter_tile_consume from {exchange.count} producers; each group needs exactly one")
    _fold_ring(selector, exchange, rop, first, remote, Tile(partial.operand, dims), target)


def _is_integer(tile: Tile) -> bool:
    return tile.operand.format in {format_of_type(t) for t in ("i32", "i16", "i8")}


def _fold_ring(
    selector: Selector, exchange: Exchange, rop: Rop | None, first: Affine, remote: Operand, like: Tile, target: Tile
) -> None:
    """Fetches one partial after the other and combines them; the last step writes the target."""
    origin = selector.stream.origin
    if exchange.count == 1 or rop is None:
        source = replace(remote, core=first)
        selector.emit(asm.CopyInst(like.dims, target.operand, source, origin=origin))
        return
    compute = Compute.I32 if _is_integer(like) else Compute.F32
    total = selector.new_scratch(like.dims, like.operand.format)
    selector.emit(asm.CopyInst(like.dims, total.operand, replace(remote, core=first), origin=origin))
    direct = not isinstance(target.operand.maps, LayoutMap)
    for offset in exchange.offsets[1:]:
        fetched = selector.new_scratch(like.dims, like.operand.format)
        selector.emit(asm.CopyInst(like.dims, fetched.operand, replace(remote, core=first + offset), origin=origin))
        out = target.operand if direct and offset == exchange.offsets[-1] else total.operand
        selector.emit(selector.vop(_VECTOR[rop], compute, like.dims, out, (total.operand, fetched.operand)))
    if not direct:
        selector.emit(asm.CopyInst(target.dims, target.operand, total.operand, origin=origin))


# -- functions of the core id ------------------------------------------------------------------------------------------


def _consumer_guard(stream: Stream, exchange: Exchange) -> Affine:
    """At or above 0 on consumers; always, where only consumers come anyway."""
    active = stream.active_cores()
    if active is not None and set(active) <= set(exchange.first_producer):
        return Affine(0)
    wanted = [1 if core in exchange.first_producer else 0 for core in range(stream.cores)]
    consumers = sorted(exchange.first_producer)
    step = consumers[1] - consumers[0] if len(consumers) > 1 else stream.cores
    # Consumers at even distances up to the last core: compare the remainder.
    remainder = stream.scalar(Sop.MOD, CORE_ID, Affine(step))
    distance = remainder - consumers[0] % step
    regular = stream.scalar(Sop.MIN, -stream.scalar(Sop.MAX, distance, -distance), Affine(consumers[-1]) - CORE_ID)
    known = stream.values(regular)
    if known is not None and [int(v >= 0) for v in known] == wanted:
        return regular
    return _step_function(stream, wanted) - 1


def _first_producer(stream: Stream, exchange: Exchange) -> Affine:
    """The first producer of a consumer's group, right on consumers only."""
    count, step = exchange.count, exchange.step or 1
    candidates: list[Callable[[], Affine]] = [
        lambda: CORE_ID,
        lambda: Affine(next(iter(exchange.first_producer.values()))),
        lambda: CORE_ID - stream.scalar(Sop.MOD, CORE_ID, Affine(count * step)),
        lambda: (
            CORE_ID - stream.scalar(Sop.MOD, stream.scalar(Sop.FLOORDIV, CORE_ID, Affine(step)), Affine(count)) * step
        ),
    ]
    for make in candidates:
        candidate = make()
        known = stream.values(candidate)
        if known is not None and all(known[core] == first for core, first in exchange.first_producer.items()):
            return candidate
    table = [exchange.first_producer.get(core, 0) for core in range(stream.cores)]
    return _step_function(stream, table)


def _step_function(stream: Stream, table: list[int]) -> Affine:
    """Any function of the core id, as a sum of steps."""
    total = Affine(table[0])
    for core in range(1, len(table)):
        change = table[core] - table[core - 1]
        if change:
            reached = stream.scalar(Sop.MAX, CORE_ID - (core - 1), Affine(0))
            total = total + stream.scalar(Sop.MIN, reached, Affine(1)) * change
    return total


HANDLERS: dict[str, Handler] = {
    "ktdp.inter_tile_produce": produce,
    "ktdp.inter_tile_reduce": reduce,
    "ktdp.inter_tile_consume": consume,
    "ktdp.yield_partial": lambda selector, op: None,
}
