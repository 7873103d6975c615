# SPDX-License-Identifier: Apache-2.0
"""Scalar code inside linalg and tensor operations, run on whole boxes: linalg.generic, linalg.map, tensor.generate.

The arguments of a body are bound to tiles over the iteration box, and each scalar operation in it becomes a vector
operation over that box. The operation that computes what the body yields writes straight to where the result goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
)

from torch_spyre.backend.addressing.access_tiles import Tile
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.assembler import DimMap, Extent
from torch_spyre.backend.program.isa import IEEE_INT32, Sop, format_of_type
from torch_spyre.backend.schedule.fold import element_name
from torch_spyre.backend.schedule.values import Splat, Value, embed
from torch_spyre.backend.select.reshapes import write
from torch_spyre.backend.select.selector import Handler, Redirect, Selector
from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ir.affine import ZERO, Affine
from torch_spyre.ir.ktir.dialect.linalg_ops import NAMED

Dims = tuple[Extent, ...]


# -- indexing maps -----------------------------------------------------------------------------------------------------


def linear_expr(expr: AffineExpr) -> tuple[int, dict[int, int]] | None:
    """Constant and coefficient per dim, or None if the expression is not linear."""
    match expr:
        case AffineConstantExpr(value=value):
            return value, {}
        case AffineDimExpr(position=position):
            return 0, {position: 1}
        case AffineBinaryOpExpr(kind=AffineBinaryOpKind.Add, lhs=lhs, rhs=rhs):
            left, right = linear_expr(lhs), linear_expr(rhs)
            if left is None or right is None:
                return None
            terms = dict(left[1])
            for dim, factor in right[1].items():
                terms[dim] = terms.get(dim, 0) + factor
            return left[0] + right[0], terms
        case AffineBinaryOpExpr(kind=AffineBinaryOpKind.Mul, lhs=lhs, rhs=AffineConstantExpr(value=value)):
            inner = linear_expr(lhs)
            return None if inner is None else (inner[0] * value, {d: f * value for d, f in inner[1].items()})
    return None


def projection(indexing: AffineMap) -> list[int] | None:
    """The dims that a map lists, if it does no more than that and lists none twice."""
    dims = [expr.position for expr in indexing.results if isinstance(expr, AffineDimExpr)]
    return dims if len(dims) == len(indexing.results) == len(set(dims)) else None


def box_of_maps(selector: Selector, values: Sequence[SSAValue], maps: Sequence[AffineMap], rank: int) -> Dims:
    """Extents of the iteration dims, from the operands that name them alone."""
    box: list[Extent | None] = [None] * rank
    for value, indexing in zip(values, maps, strict=True):
        dims = selector.dims_for([value], value)
        for extent, expr in zip(dims, indexing.results, strict=True):
            if isinstance(expr, AffineDimExpr) and (box[expr.position] is None or not extent.is_const):
                box[expr.position] = extent
    if any(extent is None for extent in box):
        raise InvalidProgram(f"{selector.stream.origin}: an iteration dim that no operand names alone")
    return tuple(extent for extent in box if extent is not None)


def spread(selector: Selector, value: SSAValue, indexing: AffineMap, box: Dims) -> Value:
    """An operand as a tile over the iteration box."""
    found = selector.value(value)
    if isinstance(found, Splat):
        return replace(found, dims=box)
    rank = len(box)
    dims = projection(indexing)
    if dims is not None:
        return Tile(embed(found.operand, dims, rank), box)
    tile = selector.linear(found)
    offset = tile.operand.offset
    strides = [0] * rank
    for expr, dim_map in zip(indexing.results, tile.operand.maps, strict=True):  # type: ignore[arg-type]
        linear = linear_expr(expr)
        if linear is None:
            raise UnsupportedOp(f"{selector.stream.origin}: indexing map {indexing}; its results must be linear")
        offset = offset + linear[0] * dim_map.inner
        for dim, factor in linear[1].items():
            strides[dim] += factor * dim_map.inner
    return Tile(replace(tile.operand, offset=offset, maps=tuple(map(DimMap, strides))), box)


# -- running a body ----------------------------------------------------------------------------------------------------


def run_body(selector: Selector, block: Block, box: Dims, skip: Sequence[Operation] = ()) -> list[SSAValue]:
    """Runs scalar code over a box; returns what its terminator yields."""
    outer = selector.context, selector.in_body
    selector.context, selector.in_body = box, True
    for op in block.ops:
        if op is block.last_op or op in skip or op.name == "arith.constant" or selector.is_done(op):
            continue
        if op.name == "linalg.index":
            selector.bind(op.results[0], iota(selector, op.properties["dim"].value.data, box))
        elif op.regions:
            raise UnsupportedOp(f"{op.name} inside the body of a linalg operation; use arith.select")
        else:
            selector.handle(op)
    selector.context, selector.in_body = outer
    assert block.last_op is not None
    return list(block.last_op.operands)


def iota(selector: Selector, dim: int, box: Dims) -> Tile:
    """The coordinate along one dim, as a tile that only moves along that dim."""
    dims = (box[dim],)
    tile = selector.new_scratch(dims, IEEE_INT32)
    selector.emit(asm.IotaInst(dims, tile.operand, ZERO, (DimMap(1),), origin=selector.stream.origin))
    return Tile(embed(tile.operand, [dim], len(box)), box)


def deliver(
    selector: Selector, results: Sequence[SSAValue], yielded: Sequence[SSAValue], maps: Sequence[AffineMap], box: Dims
) -> None:
    """Binds results that the body did not already write where they go."""
    for result, value, indexing in zip(results, yielded, maps, strict=True):
        waiting = selector.redirects.pop(value, None) is not None
        # What was written behind a conversion has no value of its own: nobody else reads it.
        if not waiting and (selector.has_value(result) or not selector.has_value(value)):
            continue
        order = projection(indexing)
        assert order is not None
        dims = tuple(box[d] for d in order)
        found = selector.value(value)
        if isinstance(found, Splat):
            selector.bind(result, replace(found, dims=dims))
        else:
            wide = embed(found.operand, range(len(box)), len(box))
            maps_of = tuple(wide.maps[d] for d in order)  # type: ignore[index]
            selector.bind(result, Tile(replace(wide, maps=maps_of), dims))


def redirect_results(
    selector: Selector, results: Sequence[SSAValue], block: Block, maps: Sequence[AffineMap], box: Dims
) -> None:
    """Lets the operations that compute the yielded values write to the results' places."""
    assert block.last_op is not None
    for result, value, indexing in zip(results, block.last_op.operands, maps, strict=True):
        selector.forget(result)
        order = projection(indexing)
        if order is None or sorted(order) != list(range(len(box))):
            raise UnsupportedOp(
                f"{selector.stream.origin}: an output at {indexing}; outputs list each parallel dim once"
            )
        inside = isinstance(value.owner, Operation) and value.owner.parent_block() is block
        if inside and value.has_one_use() and element_name(value) == element_name(result):
            selector.redirects[value] = Redirect(selector.folding.sink(result), tuple(order))


def _iterators(op: Any) -> list[str]:
    return [str(attr.data.value) for attr in op.properties["iterator_types"].data]


def _maps(op: Any) -> list[AffineMap]:
    return [attr.data for attr in op.properties["indexing_maps"].data]


def elementwise_generic(selector: Selector, op: Any) -> None:
    """linalg.generic without reductions."""
    maps = _maps(op)
    values = list(op.operands)
    box = box_of_maps(selector, values, maps, len(_iterators(op)))
    block = op.regions[0].block
    for value, indexing, arg in zip(values, maps, block.args, strict=True):
        if arg.uses:
            selector.bind(arg, spread(selector, value, indexing, box))
    outputs = maps[len(values) - len(op.results) :]
    redirect_results(selector, op.results, block, outputs, box)
    yielded = run_body(selector, block, box)
    deliver(selector, op.results, yielded, outputs, box)


def map_(selector: Selector, op: Any) -> None:
    """linalg.map, and named operations with such a body: corresponding elements of the inputs."""
    values = list(op.operands)
    box = selector.dims_for(values, values[-1])
    block = op.regions[0].block
    identity = AffineMap.identity(len(box))
    for value, arg in zip(values, block.args, strict=False):
        selector.bind(arg, spread(selector, value, identity, box))
    redirect_results(selector, op.results, block, [identity], box)
    deliver(selector, op.results, run_body(selector, block, box), [identity], box)


def generate(selector: Selector, op: Any) -> None:
    """tensor.generate: a body over coordinates."""
    result = op.results[0]
    shape = result.type.get_shape()
    sizes = iter(op.operands)
    box = tuple(selector.scalars.extent(next(sizes)) if s < 0 else Extent.of(s) for s in shape)
    block = op.regions[0].block
    for dim, arg in enumerate(block.args):
        if arg.uses:
            selector.bind(arg, iota(selector, dim, box))
    identity = AffineMap.identity(len(box))
    redirect_results(selector, op.results, block, [identity], box)
    deliver(selector, op.results, run_body(selector, block, box), [identity], box)


# -- step by step ------------------------------------------------------------------------------------------------------


def fold_steps(
    selector: Selector,
    inputs: Sequence[SSAValue],
    inits: Sequence[SSAValue],
    results: Sequence[SSAValue],
    maps: Sequence[AffineMap],
    reduced: Sequence[int],
    block: Block,
    rank: int,
) -> None:
    """Any reduction body, one step after the other along the reduced dims, with its accumulators in scratch."""
    values = [*inputs, *inits]
    box = box_of_maps(selector, values, maps, rank)
    wide = [spread(selector, v, m, box) for v, m in zip(inputs, maps, strict=False)]
    kept = [d for d in range(rank) if d not in reduced]
    inner = tuple(box[d] for d in kept)
    accumulators = []
    for init, indexing in zip(inits, maps[len(inputs) :], strict=True):
        order = projection(indexing)
        if order is None or sorted(order) != kept:
            raise UnsupportedOp(f"{selector.stream.origin}: a reduction into {indexing}")
        dims = tuple(box[d] for d in order)
        tile = selector.new_scratch(dims, format_of_type(element_name(init)))
        write(selector, init, tile)
        accumulators.append((tile, [kept.index(d) for d in order]))
    with ExitStack() as loops:
        counters = {}
        for d in reduced:
            limit = selector.stream.scalar(Sop.MIN, box[d].affine, Affine(box[d].cap))
            counters[d] = loops.enter_context(selector.stream.loop(ZERO, limit, 1))
        _bind_step(selector, wide, block, counters, kept, inner)
        for arg, (tile, places) in zip(block.args[len(inputs) :], accumulators, strict=True):
            selector.bind(arg, Tile(embed(tile.operand, places, len(inner)), inner))
        yielded = run_body(selector, block, inner)
        held = [_settled(selector, value, inner) for value in yielded]
        for value, (tile, places) in zip(held, accumulators, strict=True):
            out = embed(tile.operand, places, len(inner))
            selector.emit(asm.CopyInst(inner, out, value, origin=selector.stream.origin))
    for result, (tile, _) in zip(results, accumulators, strict=True):
        selector.bind(result, tile)


def _bind_step(
    selector: Selector, wide: Sequence[Value], block: Block, counters: dict[int, Affine], kept: list[int], inner: Dims
) -> None:
    """The slice of every input at the present step."""
    for value, arg in zip(wide, block.args, strict=False):
        if isinstance(value, Splat):
            selector.bind(arg, replace(value, dims=inner))
            continue
        tile = selector.linear(value)
        offset = tile.operand.offset
        maps: Any = tile.operand.maps
        for d, counter in counters.items():
            offset = offset + counter * maps[d].inner
        selector.bind(arg, Tile(replace(tile.operand, offset=offset, maps=tuple(maps[d] for d in kept)), inner))


def _settled(selector: Selector, value: SSAValue, inner: Dims) -> asm.Operand:
    """A yielded value in scratch of its own, so that accumulators can change one after the other."""
    found = selector.value(value)
    if isinstance(found, Tile) and isinstance(value.owner, Operation):
        return embed(found.operand, range(len(inner)), len(inner))
    tile = selector.new_scratch(inner, format_of_type(element_name(value)))
    write(selector, value, tile)
    return tile.operand


def reduction_generic(selector: Selector, op: Any) -> None:
    maps, iterators = _maps(op), _iterators(op)
    reduced = [d for d, kind in enumerate(iterators) if kind != "parallel"]
    count = len(op.operands) - len(op.results)
    fold_steps(
        selector,
        list(op.operands)[:count],
        list(op.operands)[count:],
        op.results,
        maps,
        reduced,
        op.regions[0].block,
        len(iterators),
    )


HANDLERS: dict[str, Handler] = {
    **{f"linalg.{name}": map_ for name in NAMED},
    "linalg.map": map_,
    "tensor.generate": generate,
}
