# SPDX-License-Identifier: Apache-2.0
"""Handlers of structured control flow: guards, counted loops, and what they carry.

Tensors that a loop carries live in scratch and are replaced at the end of every iteration, or in place where nothing
needs the old contents any more. Integers that a loop carries are variables of the scalar unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Block, Operation, SSAValue

from torch_spyre.backend.addressing.access_tiles import Tile
from torch_spyre.backend.addressing.memory_views import mixed
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.assembler import Extent
from torch_spyre.backend.program.isa import IEEE_FP32, Sop, format_of_type
from torch_spyre.backend.schedule.fold import element_name, is_index_type
from torch_spyre.backend.schedule.values import Splat
from torch_spyre.backend.select.bodies import run_body
from torch_spyre.backend.select.reshapes import static_dims, write
from torch_spyre.backend.select.selector import Handler, Selector
from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ir.affine import ZERO, Affine
from torch_spyre.ir.ktir.dialect.contraction_ops import CONTRACTIONS

# -- conditions --------------------------------------------------------------------------------------------------------


def if_(selector: Selector, op: Any) -> None:
    """Both branches write tensor results to one place; integer results are chosen by the condition."""
    condition = selector.scalars.truth(op.operands[0])
    then_region, else_region = op.regions
    places: dict[int, Tile] = {}
    with selector.stream.guard(condition):
        selector.block(then_region.block)
        _write_results(selector, op, then_region.block, places)
    if else_region.blocks and else_region.block.ops.first is not None:
        with selector.stream.guard(-condition - 1):
            selector.block(else_region.block)
            _write_results(selector, op, else_region.block, places)
    for i, result in enumerate(op.results):
        if i in places:
            selector.bind(result, places[i])
        else:
            then, other = (region.block.last_op.operands[i] for region in op.regions)
            _choose(selector, result, condition, then, other)


def _write_results(selector: Selector, op: Any, block: Block, places: dict[int, Tile]) -> None:
    assert block.last_op is not None or not op.results
    for i, result in enumerate(op.results):
        value = block.last_op.operands[i]  # type: ignore[union-attr]
        if is_index_type(result.type):
            selector.scalars.settle(value)
            continue
        if i not in places:
            places[i] = selector.new_scratch(_dims(selector, value), format_of_type(element_name(result)))
        write(selector, value, places[i])


def _choose(selector: Selector, result: SSAValue, condition: Affine, then: SSAValue, other: SSAValue) -> None:
    scalars = selector.scalars
    scalars.bind_form(result, scalars.choose(condition, scalars.form(then), scalars.form(other)))


def _dims(selector: Selector, value: SSAValue) -> tuple[Extent, ...]:
    if not isinstance(value.type, TensorType):
        return ()
    dims = selector.value(value).dims
    return dims if dims is not None else static_dims(selector, value)


# -- loops -------------------------------------------------------------------------------------------------------------


def for_(selector: Selector, op: Any) -> None:
    block = op.regions[0].block
    bounds = [selector.scalars.affine(operand) for operand in op.operands[:3]]
    carried = _Carried(selector, block, list(op.operands[3:]), block.args[1:])
    with ExitStack() as loops:
        selector.scalars.bind(block.args[0], _counter(selector, loops, *bounds))
        carried.enter()
        selector.block(block)
        carried.leave(list(block.last_op.operands))
    carried.bind(op.results)


def _counter(selector: Selector, loops: ExitStack, first: Affine, limit: Affine, step: Affine) -> Affine:
    """Opens a loop and returns its counter. A step that is not constant counts iterations instead."""
    stream = selector.stream
    low, high = stream.bounds(step)
    if high is not None and high <= 0:
        raise InvalidProgram(f"{stream.origin}: a loop with step {step}; steps must be positive")
    if step.is_const:
        return loops.enter_context(stream.loop(first, limit, step.const))
    if low is None or low <= 0:
        raise UnsupportedOp(f"{stream.origin}: a loop whose step may not be positive; bind it when compiling")
    trips = stream.scalar(Sop.FLOORDIV, limit - first + step - 1, step)
    iteration = loops.enter_context(stream.loop(ZERO, trips, 1))
    return first + stream.scalar(Sop.MUL, iteration, step)


class _Carried:
    """Values that a loop passes from one iteration to the next."""

    def __init__(self, selector: Selector, block: Block, inits: Sequence[SSAValue], args: Sequence[SSAValue]) -> None:
        self._selector = selector
        self._block = block
        self._args = args
        self._tiles: dict[int, Tile] = {}
        self._variables: dict[int, Affine] = {}
        stream = selector.stream
        for i, value in enumerate(inits):
            if is_index_type(value.type):
                initial = selector.scalars.form(value)
                self._variables[i] = stream.variable(in_loop=True)
                stream.assign(self._variables[i], initial)
            else:
                wide = selector.options.wide_accumulate and _adds_products(args[i])
                self._tiles[i] = self._hold(value, IEEE_FP32 if wide else format_of_type(element_name(value)))

    def _hold(self, value: SSAValue, fmt: int) -> Tile:
        """A scratch copy of an initial value."""
        tile = self._selector.new_scratch(_dims(self._selector, value), fmt)
        write(self._selector, value, tile)
        return tile

    def enter(self) -> None:
        for i, variable in self._variables.items():
            self._selector.scalars.bind_form(self._args[i], variable)
        terminator = self._block.last_op
        assert terminator is not None
        for i, tile in self._tiles.items():
            self._selector.bind(self._args[i], tile)
            value = terminator.operands[i]
            owner = value.owner
            if isinstance(owner, Operation) and owner.parent_block() is self._block and value.has_one_use():
                if self._selector.folding.is_last_use(self._args[i], owner):
                    self._selector.carried[value] = tile

    def leave(self, yielded: Sequence[SSAValue]) -> None:
        """The values of the next iteration: all are read before any is replaced."""
        selector = self._selector
        sources: dict[int, Tile | Splat] = {}
        for i in self._tiles:
            found = selector.value(yielded[i])
            others = {t.operand.offset for j, t in self._tiles.items() if j != i}
            if isinstance(found, Tile) and found.operand.offset in others:
                found = selector.copied(found)
            sources[i] = found
        for i, found in sources.items():
            tile = self._tiles[i]
            if isinstance(found, Splat):
                selector.fill(tile, yielded[i])
            elif found.operand != tile.operand:
                source = found if found.dims else Tile(found.operand, ())
                selector.emit(asm.CopyInst(tile.dims, tile.operand, source.operand, origin=selector.stream.origin))
        self._step_variables(yielded)

    def _step_variables(self, yielded: Sequence[SSAValue]) -> None:
        stream, scalars = self._selector.stream, self._selector.scalars
        own = {variable.terms[0][0] for variable in self._variables.values()}
        following = {i: scalars.form(yielded[i]) for i in self._variables}
        for i, value in following.items():
            others = own - {self._variables[i].terms[0][0]}
            if any(symbol in others for symbol, _ in value.terms):
                held = stream.variable(in_loop=False)
                stream.assign(held, value)
                following[i] = held
        for i, value in following.items():
            stream.assign(self._variables[i], value)

    def bind(self, results: Sequence[SSAValue]) -> None:
        stream = self._selector.stream
        for i, tile in self._tiles.items():
            wanted = format_of_type(element_name(results[i]))
            if tile.operand.format != wanted and results[i].uses:
                narrow = self._selector.new_scratch(tile.dims, wanted)
                origin = self._selector.stream.origin
                self._selector.emit(asm.CopyInst(tile.dims, narrow.operand, tile.operand, origin=origin))
                tile = narrow
            self._selector.bind(results[i], tile)
        for i, variable in self._variables.items():
            final = stream.variable(in_loop=False)
            stream.assign(final, variable)
            self._selector.scalars.bind_form(results[i], final)


def _adds_products(value: SSAValue) -> bool:
    """True if a carried f16 tensor is nothing but what matrix products add to."""
    if element_name(value) != "f16":
        return False
    names = {op.name for op in CONTRACTIONS}
    return all(use.operation.name in names and use.index == 2 for use in value.uses)


# -- loops over several dims -------------------------------------------------------------------------------------------


def parallel(selector: Selector, op: Any) -> None:
    """scf.parallel: iterations one after the other; scf.reduce combines what they give with the results so far."""
    block = op.regions[0].block
    bounds = [[selector.scalars.affine(v) for v in group] for group in (op.lowerBound, op.upperBound, op.step)]
    inits = list(op.initVals)
    terminator = block.last_op
    reducing = terminator is not None and terminator.name == "scf.reduce" and bool(terminator.operands)
    tiles = []
    for value in inits:
        if is_index_type(value.type):
            raise UnsupportedOp("scf.parallel that reduces integers; reduce tensors or floats")
        tile = selector.new_scratch(_dims(selector, value), format_of_type(element_name(value)))
        write(selector, value, tile)
        tiles.append(tile)
    with ExitStack() as loops:
        for arg, first, limit, step in zip(block.args, *bounds, strict=True):
            selector.scalars.bind(arg, _counter(selector, loops, first, limit, step))
        selector.block(block)
        if reducing:
            _reduce_iteration(selector, terminator, tiles)
    for result, tile in zip(op.results, tiles, strict=True):
        selector.bind(result, tile)


def _reduce_iteration(selector: Selector, terminator: Any, tiles: Sequence[Tile]) -> None:
    for value, region, tile in zip(terminator.operands, terminator.regions, tiles, strict=True):
        left, right = region.block.args
        selector.bind(left, tile)
        selector.bind(right, selector.value(value))
        (combined,) = run_body(selector, region.block, tile.dims)
        write(selector, combined, tile)


def forall(selector: Selector, op: Any) -> None:
    """scf.forall: iterations one after the other, writing slices of the shared outputs in place."""
    block = op.regions[0].block
    dims = len(op.properties["staticLowerBound"].get_values())
    bounds = []
    for static, dynamic in (
        ("staticLowerBound", op.dynamicLowerBound),
        ("staticUpperBound", op.dynamicUpperBound),
        ("staticStep", op.dynamicStep),
    ):
        values = mixed(op.properties[static].get_values(), dynamic)
        bounds.append([Affine(v) if isinstance(v, int) else selector.scalars.affine(v) for v in values])
    outputs = list(op.outputs)
    tiles = []
    for value in outputs:
        tile = selector.new_scratch(_dims(selector, value), format_of_type(element_name(value)))
        write(selector, value, tile)
        tiles.append(tile)
    with ExitStack() as loops:
        for arg, first, limit, step in zip(block.args[:dims], *bounds, strict=True):
            selector.scalars.bind(arg, _counter(selector, loops, first, limit, step))
        for arg, tile in zip(block.args[dims:], tiles, strict=True):
            selector.bind(arg, tile)
        selector.block(block)
    for result, tile in zip(op.results, tiles, strict=True):
        selector.bind(result, tile)


def in_parallel(selector: Selector, op: Any) -> None:
    """scf.forall.in_parallel holds the slices that an iteration writes."""
    selector.block(op.regions[0].block)


HANDLERS: dict[str, Handler] = {
    "scf.if": if_,
    "scf.for": for_,
    "scf.parallel": parallel,
    "scf.forall": forall,
    "scf.forall.in_parallel": in_parallel,
    "scf.reduce": lambda selector, op: None,
    "scf.reduce.return": lambda selector, op: None,
}
