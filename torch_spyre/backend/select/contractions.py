# SPDX-License-Identifier: Apache-2.0
"""Handlers of operations that combine elements: reductions, matrix products, linalg.generic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from torch_spyre.backend.addressing.access_tiles import Tile
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.assembler import Extent, Operand
from torch_spyre.backend.program.isa import (
    IEEE_FP32,
    IEEE_INT32,
    MAX_TAPS,
    Compute,
    Rop,
    Space,
    format_of_type,
    is_integer_type,
)
from torch_spyre.backend.program.numbers import float_bits, round_to_type
from torch_spyre.backend.schedule.fold import Sink, element_name
from torch_spyre.backend.schedule.values import Splat, embed
from torch_spyre.backend.select import bodies
from torch_spyre.backend.select.bodies import projection
from torch_spyre.backend.select.elementwise import NARROW_BITS
from torch_spyre.backend.select.selector import Handler, Selector
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.affine import Affine
from torch_spyre.ir.ktir.dialect.contraction_ops import CONTRACTIONS
from torch_spyre.optable import OPS, Row

_REDUCTIONS: dict[Rop, Row] = {rop: OPS[rop.name.lower()] for rop in Rop}
COMBINERS: dict[str, Rop] = {
    spelling: rop for rop, row in _REDUCTIONS.items() for spelling in OPS[row.combine].spellings
}
_NAN_FREE: dict[str, Rop] = {"arith.maxnumf": Rop.MAX, "arith.minnumf": Rop.MIN}


def combiner_of(region: Any) -> Rop:
    """The reduction that a two-argument region computes."""
    ops = [op for op in region.block.ops if op.name not in ("linalg.yield", "ktdp.yield_reduced")]
    if len(ops) == 1 and ops[0].name in COMBINERS:
        return COMBINERS[ops[0].name]
    raise UnsupportedOp(f"combiner {[op.name for op in ops]}; the card reduces with {', '.join(COMBINERS)}")


def is_neutral(value: object, rop: Rop, element: str) -> bool:
    """True if a reduction may start without this initial value. An undefined one counts as neutral."""
    if not isinstance(value, Splat) or value.scalar is not None:
        return False
    if value.value is None:
        return True
    neutral = _REDUCTIONS[rop].neutral[1 if is_integer_type(element) else 0]
    return value.value == neutral or round_to_type(value.value, element) == round_to_type(neutral, element)


def neutral_operand(rop: Rop, element: str) -> Operand:
    number, integer = _REDUCTIONS[rop].neutral
    if is_integer_type(element):
        return Operand(Space.IMM, IEEE_INT32, bits=integer & 0xFFFFFFFF)
    return Operand(Space.IMM, IEEE_FP32, bits=float_bits(number))


def _is_instruction(combiner: Any) -> bool:
    """True if the card reduces with this. It stores sums and products of narrow integers without wrapping them."""
    if combiner.name not in COMBINERS:
        return False
    wraps = combiner.name in ("arith.addi", "arith.muli")
    return not (wraps and element_name(combiner.results[0]) in ("i1", *NARROW_BITS))


def reduce(selector: Selector, op: Any) -> None:
    """linalg.reduce. A body that is not one of the card's reductions runs step by step."""
    reduced = sorted(op.properties["dimensions"].get_values())
    count = len(op.operands) // 2
    block = op.regions[0].block
    names = [inner.name for inner in block.ops]
    plain = count == 1 and len(names) == 2 and _is_instruction(block.first_op)
    if plain and set(block.first_op.operands) == set(block.args):
        _reduce(selector, op.operands[0], op.operands[1], op.results[0], set(reduced), COMBINERS[names[0]])
        return
    if count == 1 and len(names) == 2 and names[0] in _NAN_FREE and set(block.first_op.operands) == set(block.args):
        _reduce_numbers(selector, op, set(reduced), _NAN_FREE[names[0]])
        return
    rank = len(op.operands[0].type.get_shape())
    kept = [AffineExpr.dimension(d) for d in range(rank) if d not in reduced]
    maps = [AffineMap.identity(rank)] * count + [AffineMap(rank, 0, tuple(kept))] * count
    inputs, inits = list(op.operands)[:count], list(op.operands)[count:]
    bodies.fold_steps(selector, inputs, inits, op.results, maps, reduced, block, rank)


def _reduce_numbers(selector: Selector, op: Any, reduced: set[int], rop: Rop) -> None:
    """maxnumf and minnumf: NaN never wins, so it is replaced by what never wins against a number."""
    source, init = op.operands
    tile = selector.tile(source)
    box = tile.dims
    operand = embed(tile.operand, range(len(box)), len(box))
    is_nan = selector.new_scratch(box, format_of_type("i1")).operand
    selector.emit(selector.vop("isnan", Compute.F32, box, is_nan, (operand,)))
    numbers = selector.new_scratch(box, tile.operand.format).operand
    least = neutral_operand(rop, "f32")
    selector.emit(selector.vop("select", Compute.F32, box, numbers, (is_nan, least, operand)))
    kept = [d for d in range(len(box)) if d not in reduced]
    _reduce_box(selector, numbers, box, init, op.results[0], kept, rop, element_name(source))


def _reduce(
    selector: Selector, source: SSAValue, init: SSAValue, result: SSAValue, reduced: set[int], rop: Rop
) -> None:
    tile = selector.tile(source)
    box = tile.dims
    kept = [d for d in range(len(box)) if d not in reduced]
    operand = embed(tile.operand, range(len(box)), len(box))
    _reduce_box(selector, operand, box, init, result, kept, rop, element_name(source))


def _reduce_box(
    selector: Selector,
    operand: Operand,
    box: tuple[Extent, ...],
    init: SSAValue,
    result: SSAValue,
    kept: Sequence[int],
    rop: Rop,
    element: str,
) -> None:
    compute = Compute.I32 if is_integer_type(element) else Compute.F32
    accumulate = not is_neutral(selector.value(init), rop, element)
    reduced = [d for d in range(len(box)) if d not in kept]
    mask = sum(1 << d for d in reduced)
    origin = selector.stream.origin

    def make(out: Operand) -> asm.Instruction:
        return asm.ReduceInst(rop, compute, mask, box, out, operand, accumulate, origin=origin)

    before = None
    sink = None
    if accumulate:
        before = _initialise(selector, init, box, kept)
        sink = selector.folding.unfolded(result)  # the initial value passes through the output, in its own type
    elif _may_be_empty(selector, [box[d] for d in reduced]):
        before = _fill_neutral(selector, rop, element, box, kept)
    selector.result(result, box, make, [operand], positions=kept, before=before, sink=sink)


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
    """The named products: linalg.matmul, batch_matmul, matvec, vecmat, dot and their transposed forms."""
    maps = [projection(attr.data) for attr in op.properties["indexing_maps"].data]
    if None in maps or not _contraction(selector, op, maps, {op.properties["indexing_maps"].data[0].data.num_dims - 1}):
        raise UnsupportedOp(f"{op.name} with indexing maps that are not a matrix product")


def _contract(
    selector: Selector,
    result: SSAValue,
    values: tuple[SSAValue, SSAValue, SSAValue],
    positions: tuple[list[int], list[int], list[int]],
    rank: int,
    taps: int,
) -> None:
    """c = a @ b, all dims given by their positions in (batch…, m, n, k), where k is `taps` dims and a last one."""
    a, b, init = values
    tiles = [selector.tile(a), selector.tile(b)]
    box = _box(tiles, positions[:2], rank)
    operands = [embed(tile.operand, p, rank) for tile, p in zip(tiles, positions[:2], strict=True)]
    element = element_name(result)
    kept = positions[2]
    start = selector.value(init)
    poisoned = selector.options.poison_empty and isinstance(start, Splat) and start.undefined
    if is_neutral(start, Rop.SUM, element) and not poisoned:
        empty = _may_be_empty(selector, box[-1 - taps :])
        before = _fill_neutral(selector, Rop.SUM, element, box, kept) if empty else None
        make = _product(selector, box, operands, False, taps)
        selector.result(result, box, make, operands, positions=kept, before=before)
    elif element == "f32" or _is_wide(selector, start):
        # The initial value is read back from c, which therefore keeps the accumulator's type.
        sink = Sink("f32", result)
        make, before = _product(selector, box, operands, True, taps), _initialise(selector, init, box, kept)
        selector.result(result, box, make, operands, positions=kept, before=before, sink=sink)
    else:
        _add_product(selector, result, box, operands, init, kept, taps)


def _is_wide(selector: Selector, start: object) -> bool:
    """True for an f16 sum that a loop carries in fp32."""
    if not selector.options.wide_accumulate or not isinstance(start, Tile):
        return False
    return start.operand.space is Space.LX and start.operand.format == IEEE_FP32


def _product(
    selector: Selector, box: tuple[Extent, ...], operands: Sequence[Operand], accumulate: bool, taps: int
) -> Any:
    origin = selector.stream.origin
    return lambda out: asm.MatmulInst(box, out, operands[0], operands[1], accumulate, taps, origin=origin)


def _add_product(
    selector: Selector,
    result: SSAValue,
    box: tuple[Extent, ...],
    operands: Sequence[Operand],
    init: SSAValue,
    kept: Sequence[int],
    taps: int,
) -> None:
    """An initial value that is not fp32: floats accumulate in fp32 from it on, integers are added at the end."""
    dims = tuple(box[d] for d in kept)
    rank = len(dims)
    if is_integer_type(element_name(result)):
        total = selector.new_scratch(dims, IEEE_INT32).operand
        wide = embed(total, kept, len(box))
        if _may_be_empty(selector, box[-1 - taps :]):
            selector.emit(_fill_neutral(selector, Rop.SUM, element_name(result), box, kept)(wide))
        selector.emit(_product(selector, box, operands, False, taps)(wide))
        inputs: tuple[Operand, ...] = (selector.input(init, range(rank), rank), total)
        name, compute = "add", Compute.I32
    else:
        total = selector.new_scratch(dims, IEEE_FP32).operand
        wide = embed(total, kept, len(box))
        selector.emit(_initialise(selector, init, box, kept)(wide))
        selector.emit(_product(selector, box, operands, True, taps)(wide))
        inputs, name, compute = (total,), "identity", Compute.F32
    selector.result(
        result, dims, lambda out: selector.vop(name, compute, dims, out, inputs), inputs, element_for_element=True
    )


def _box(tiles: Sequence[Tile], positions: Sequence[Sequence[int]], rank: int) -> tuple[Extent, ...]:
    box = [Extent(Affine(1), 1)] * rank
    for tile, places in zip(tiles, positions, strict=True):
        for extent, place in zip(tile.dims, places, strict=True):
            box[place] = extent
    return tuple(box)


# -- linalg.generic --------------------------------------------------------------------------------------------------


def generic(selector: Selector, op: Any) -> None:
    """Element-wise bodies, reductions, and contractions of two inputs."""
    maps = [projection(attr.data) for attr in op.properties["indexing_maps"].data]
    iterators = [str(attr.data.value) for attr in op.properties["iterator_types"].data]
    reduced = {d for d, kind in enumerate(iterators) if kind != "parallel"}
    if not reduced:
        bodies.elementwise_generic(selector, op)
        return
    product = None not in maps and len(op.operands) == 3 and _is_product_sum(op.regions[0].block)
    if product and _contraction(selector, op, maps, reduced):
        return
    if not _reduction(selector, op, reduced, len(iterators)):
        bodies.reduction_generic(selector, op)


def _is_product_sum(block: Any) -> bool:
    """True for ``yield out + left * right``, with widened inputs or not."""
    add = block.last_op.operands[0].owner
    if getattr(add, "name", "") not in ("arith.addf", "arith.addi") or block.args[2] not in add.operands:
        return False
    mul = next((v.owner for v in add.operands if v is not block.args[2]), None)
    if getattr(mul, "name", "") not in ("arith.mulf", "arith.muli"):
        return False
    factors = [_unwidened(v) for v in mul.operands]  # type: ignore[union-attr]
    # A product of whole numbers as floats is not one of the array, which sums integers.
    if all(is_integer_type(element_name(v)) for v in factors) and not is_integer_type(element_name(block.args[2])):
        return False
    return factors in ([block.args[0], block.args[1]], [block.args[1], block.args[0]])


def _unwidened(value: SSAValue) -> SSAValue:
    owner = value.owner
    if not isinstance(owner, Operation):
        return value
    exact = owner.name == "arith.sitofp" and element_name(owner.operands[0]) == "i8"
    return owner.operands[0] if exact or owner.name in ("arith.extf", "arith.extsi") else value


def _contraction(selector: Selector, op: Any, maps: Any, reduced: set[int]) -> bool:
    """A matrix product, if each kind of dim but k is one dim."""
    a, b, c = (set(m) for m in maps)
    rows, columns = sorted(a & c - b), sorted(b & c - a)
    batch, rank = sorted(a & b & c), len(a | b | c)
    single = len(rows) <= 1 and len(columns) <= 1 and len(reduced) <= 1 + MAX_TAPS and reduced <= a & b
    if not single or len(batch) + len(rows) + len(columns) + len(reduced) != rank:
        return False
    order = [*batch, *(rows or [-1]), *(columns or [-2]), *sorted(reduced)]
    place = {dim: i for i, dim in enumerate(order)}
    first, second, out = ([place[d] for d in m] for m in maps)
    _contract(selector, op.results[0], tuple(op.operands), (first, second, out), len(order), len(reduced) - 1)
    return True


def _reduction(selector: Selector, op: Any, reduced: set[int], rank: int) -> bool:
    """A body that ends in a combiner of the output and something that the inputs give."""
    block = op.regions[0].block
    if len(op.results) != 1:
        return False
    out = block.args[-1]
    last = block.last_op.operands[0].owner
    if (
        not isinstance(last, Operation)
        or not _is_instruction(last)
        or not out.has_one_use()
        or out not in last.operands
    ):
        return False
    values, maps = list(op.operands), [attr.data for attr in op.properties["indexing_maps"].data]
    kept = projection(maps[-1])
    element = next(v for v in last.operands if v is not out)
    if (
        kept is None
        or sorted(kept) != [d for d in range(rank) if d not in reduced]
        or last.operands[0] is last.operands[1]
    ):
        return False
    box = bodies.box_of_maps(selector, values, maps, rank)
    for value, indexing, arg in zip(values[:-1], maps, block.args, strict=False):
        selector.bind(arg, bodies.spread(selector, value, indexing, box))
    bodies.run_body(selector, block, box, skip=[last])
    tile = selector.tile(element, box)
    operand = embed(tile.operand, range(rank), rank)
    _reduce_box(selector, operand, box, values[-1], op.results[0], kept, COMBINERS[last.name], element_name(element))
    return True


HANDLERS: dict[str, Handler] = {
    "linalg.reduce": reduce,
    **dict.fromkeys((op.name for op in CONTRACTIONS), matmul),
    "linalg.generic": generic,
}
