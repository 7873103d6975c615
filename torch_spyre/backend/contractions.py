# SPDX-License-Identifier: Apache-2.0
"""Handlers of operations that combine elements: reductions, matrix products, linalg.generic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap

from torch_spyre.backend import assembler as asm
from torch_spyre.backend.access import Tile
from torch_spyre.backend.affine import Affine
from torch_spyre.backend.assembler import Extent, Operand
from torch_spyre.backend.elementwise import VECTOR_OPS, apply
from torch_spyre.backend.fold import element_name
from torch_spyre.backend.isa import IEEE_FP32, IEEE_INT32, Compute, Rop, Space, is_integer_type
from torch_spyre.backend.numbers import float_bits, round_to_type
from torch_spyre.backend.selector import Handler, Selector
from torch_spyre.backend.values import Splat, embed
from torch_spyre.errors import UnsupportedOp

_COMBINERS: dict[str, Rop] = {
    "arith.addf": Rop.SUM,
    "arith.addi": Rop.SUM,
    "arith.maximumf": Rop.MAX,
    "arith.maxsi": Rop.MAX,
    "arith.minimumf": Rop.MIN,
    "arith.minsi": Rop.MIN,
    "arith.mulf": Rop.PROD,
    "arith.muli": Rop.PROD,
}
_NEUTRAL: dict[Rop, tuple[float, int]] = {
    Rop.SUM: (0.0, 0),
    Rop.MAX: (-math.inf, -(1 << 31)),
    Rop.MIN: (math.inf, (1 << 31) - 1),
    Rop.PROD: (1.0, 1),
}


def combiner_of(region: Any) -> Rop:
    """The reduction that a two-argument region computes."""
    ops = [op for op in region.block.ops if op.name not in ("linalg.yield", "ktdp.yield_reduced")]
    if len(ops) == 1 and ops[0].name in _COMBINERS:
        return _COMBINERS[ops[0].name]
    raise UnsupportedOp(f"combiner {[op.name for op in ops]}; the card reduces with {', '.join(_COMBINERS)}")


def is_neutral(value: object, rop: Rop, element: str) -> bool:
    """True if a reduction may start without this initial value. An undefined one counts as neutral."""
    if not isinstance(value, Splat) or value.scalar is not None:
        return False
    if value.value is None:
        return True
    neutral = _NEUTRAL[rop][1 if is_integer_type(element) else 0]
    return value.value == neutral or round_to_type(value.value, element) == round_to_type(neutral, element)


def neutral_operand(rop: Rop, element: str) -> Operand:
    number, integer = _NEUTRAL[rop]
    if is_integer_type(element):
        return Operand(Space.IMM, IEEE_INT32, bits=integer & 0xFFFFFFFF)
    return Operand(Space.IMM, IEEE_FP32, bits=float_bits(number))


def reduce(selector: Selector, op: Any) -> None:
    """linalg.reduce with one input."""
    if len(op.operands) != 2:
        raise UnsupportedOp(f"linalg.reduce of {len(op.operands) // 2} inputs at once; reduce one after the other")
    reduced = set(op.properties["dimensions"].get_values())
    _reduce(selector, op.operands[0], op.operands[1], op.results[0], reduced, combiner_of(op.regions[0]))


def _reduce(
    selector: Selector, source: SSAValue, init: SSAValue, result: SSAValue, reduced: set[int], rop: Rop
) -> None:
    element = element_name(source)
    tile = selector.tile(source)
    box = tile.dims
    kept = [d for d in range(len(box)) if d not in reduced]
    compute = Compute.I32 if is_integer_type(element) else Compute.F32
    operand = embed(tile.operand, range(len(box)), len(box))
    start = selector.value(init)
    accumulate = not is_neutral(start, rop, element)
    mask = sum(1 << d for d in reduced)
    origin = selector.stream.origin

    def make(out: Operand) -> asm.Instruction:
        return asm.ReduceInst(rop, compute, mask, box, out, operand, accumulate, origin=origin)

    before = None
    if accumulate:
        before = _initialise(selector, init, box, kept)
    elif _may_be_empty(selector, [box[d] for d in reduced]):
        before = _fill_neutral(selector, rop, element, box, kept)
    selector.result(result, box, make, [operand], positions=kept, before=before)


def _may_be_empty(selector: Selector, extents: Sequence[Extent]) -> bool:
    """True if some core may have nothing to combine: its instruction then does nothing, not even write."""
    leasts = [selector.stream.least(extent.affine) for extent in extents]
    return any(least is None or least <= 0 for least in leasts)


def _outer_box(box: tuple[Extent, ...], kept: Sequence[int]) -> tuple[Extent, ...]:
    """The box with one point along the dims that are combined."""
    return tuple(extent if d in kept else Extent.of(1) for d, extent in enumerate(box))


def _fill_neutral(selector: Selector, rop: Rop, element: str, box: tuple[Extent, ...], kept: Sequence[int]) -> Any:
    compute = Compute.I32 if is_integer_type(element) else Compute.F32
    neutral = neutral_operand(rop, element)
    return lambda out: selector.vop("identity", compute, _outer_box(box, kept), out, (neutral,))


def _initialise(selector: Selector, init: SSAValue, box: tuple[Extent, ...], kept: Sequence[int]) -> Any:
    compute = Compute.I32 if is_integer_type(element_name(init)) else Compute.F32
    start = selector.input(init, kept, len(box))
    return lambda out: selector.vop("identity", compute, _outer_box(box, kept), out, (start,))


# -- matrix products -------------------------------------------------------------------------------------------------


def matmul(selector: Selector, op: Any) -> None:
    """linalg.matmul and linalg.batch_matmul."""
    a, b, init = op.operands
    rank = len(a.type.get_shape())
    batch = list(range(rank - 2))
    m, n, k = rank - 2, rank - 1, rank
    _contract(selector, op.results[0], (a, b, init), ([*batch, m, k], [*batch, k, n], [*batch, m, n]), rank + 1)


def _contract(
    selector: Selector,
    result: SSAValue,
    values: tuple[SSAValue, SSAValue, SSAValue],
    positions: tuple[list[int], list[int], list[int]],
    rank: int,
) -> None:
    """c = a @ b, all dims given by their positions in (batch…, m, n, k)."""
    a, b, init = values
    tiles = [selector.tile(a), selector.tile(b)]
    box = _box(tiles, positions[:2], rank)
    operands = [embed(tile.operand, p, rank) for tile, p in zip(tiles, positions[:2], strict=True)]
    element = element_name(result)
    accumulate = not is_neutral(selector.value(init), Rop.SUM, element)
    origin = selector.stream.origin

    def make(out: Operand) -> asm.Instruction:
        return asm.MatmulInst(box, out, operands[0], operands[1], accumulate, origin=origin)

    kept = positions[2]
    before = None
    sink = None
    if accumulate:
        before = _initialise(selector, init, box, kept)
        # The initial value is read back from c, which therefore keeps the accumulator's type.
        sink = selector.folding.unfolded(result)
    elif _may_be_empty(selector, [box[-1]]):
        before = _fill_neutral(selector, Rop.SUM, element, box, kept)
    selector.result(result, box, make, operands, positions=kept, before=before, sink=sink)


def _box(tiles: Sequence[Tile], positions: Sequence[Sequence[int]], rank: int) -> tuple[Extent, ...]:
    box = [Extent(Affine(1), 1)] * rank
    for tile, places in zip(tiles, positions, strict=True):
        for extent, place in zip(tile.dims, places, strict=True):
            box[place] = extent
    return tuple(box)


# -- linalg.generic --------------------------------------------------------------------------------------------------


def generic(selector: Selector, op: Any) -> None:
    """Element-wise bodies, reductions of one input, and contractions of two."""
    maps = [_projection(attr.data) for attr in op.properties["indexing_maps"].data]
    iterators = [str(attr.data.value) for attr in op.properties["iterator_types"].data]
    reduced = {d for d, kind in enumerate(iterators) if kind == "reduction"}
    if len(op.results) != 1:
        raise UnsupportedOp(f"linalg.generic with {len(op.results)} results; split it")
    if not reduced:
        _generic_elementwise(selector, op, maps, len(iterators))
    elif len(op.operands) == 2 and maps[0] == list(range(len(iterators))):
        _reduce(selector, op.operands[0], op.operands[1], op.results[0], reduced, combiner_of(op.regions[0]))
    elif len(op.operands) == 3 and len(reduced) == 1 and _is_product_sum(op):
        _generic_contraction(selector, op, maps, next(iter(reduced)), len(iterators))
    else:
        raise UnsupportedOp("linalg.generic that is not element-wise, a reduction of one input or a matrix product")


def _projection(indexing: AffineMap) -> list[int]:
    dims = [expr.position for expr in indexing.results if isinstance(expr, AffineDimExpr)]
    if len(dims) != len(indexing.results):
        raise UnsupportedOp(f"linalg.generic with indexing map {indexing}; each result must be a dim")
    return dims


def _generic_elementwise(selector: Selector, op: Any, maps: list[list[int]], rank: int) -> None:
    block = op.regions[0].block
    if maps[-1] != list(range(rank)):
        raise UnsupportedOp("linalg.generic whose output is permuted; transpose it afterwards")
    values = list(op.operands)
    box = [Extent.of(1)] * rank
    for value, places in zip(values, maps, strict=True):
        for extent, place in zip(selector.value(value).dims or (), places, strict=False):
            box[place] = extent
    dims = tuple(box)
    for value, places, arg in zip(values, maps, block.args, strict=True):
        found = selector.value(value)
        if isinstance(found, Splat):
            selector.bind(arg, found)
        else:
            selector.bind(arg, Tile(embed(selector.tile(value).operand, places, rank), dims))
    *body, terminator = block.ops
    yielded = terminator.operands[0]
    for inner in body:
        if inner.name not in VECTOR_OPS:
            raise UnsupportedOp(f"{inner.name} inside linalg.generic; known are {', '.join(VECTOR_OPS)}")
        # The operation whose result is the result of the whole writes where that goes.
        last = inner.results[0] is yielded and yielded.has_one_use()
        sink = selector.folding.sink(op.results[0]) if last else selector.folding.unfolded(inner.results[0])
        apply(selector, VECTOR_OPS[inner.name], list(inner.operands), inner.results[0], dims, sink)
        if last:
            return
    selector.bind(op.results[0], selector.value(yielded))


def _is_product_sum(op: Any) -> bool:
    names = [o.name for o in op.regions[0].block.ops if o.name not in ("arith.extf", "arith.extsi")]
    return names in (["arith.mulf", "arith.addf", "linalg.yield"], ["arith.muli", "arith.addi", "linalg.yield"])


def _generic_contraction(selector: Selector, op: Any, maps: list[list[int]], k: int, rank: int) -> None:
    a, b, c = (set(m) for m in maps)
    rows, columns = sorted(a & c - b), sorted(b & c - a)
    batch = sorted(a & b & c)
    if len(rows) > 1 or len(columns) > 1 or len(batch) + len(rows) + len(columns) + 1 != rank:
        raise UnsupportedOp("a contraction with more than one row, column or summed dim; collapse them")
    order = [*batch, *(rows or [-1]), *(columns or [-2]), k]
    place = {dim: i for i, dim in enumerate(order)}
    first, second, out = ([place[d] for d in m] for m in maps)
    _contract(selector, op.results[0], tuple(op.operands), (first, second, out), len(order))


HANDLERS: dict[str, Handler] = {
    "linalg.reduce": reduce,
    "linalg.matmul": matmul,
    "linalg.batch_matmul": matmul,
    "linalg.generic": generic,
}
