# SPDX-License-Identifier: Apache-2.0
"""Handlers of operations on corresponding elements: arithmetic, comparisons, select, conversions, dim permutations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from xdsl.ir import SSAValue

from torch_spyre.backend import assembler as asm
from torch_spyre.backend.access import Tile
from torch_spyre.backend.assembler import DimMap, Extent
from torch_spyre.backend.fold import Sink, element_name
from torch_spyre.backend.isa import Compute, is_integer_type
from torch_spyre.backend.numbers import round_to_type
from torch_spyre.backend.selector import Handler, Selector
from torch_spyre.backend.values import Splat
from torch_spyre.errors import UnsupportedOp

# Operation of KTIR to vector operation of the card. The operands are the tensors of the operation, in order.
VECTOR_OPS: dict[str, str] = {
    "arith.addf": "add",
    "arith.subf": "sub",
    "arith.mulf": "mul",
    "arith.divf": "div",
    "arith.maximumf": "maximum",
    "arith.minimumf": "minimum",
    "arith.negf": "neg",
    "arith.addi": "add",
    "arith.subi": "sub",
    "arith.muli": "mul",
    "arith.divsi": "div",
    "arith.maxsi": "maximum",
    "arith.minsi": "minimum",
    "math.absf": "abs",
    "math.absi": "abs",
    "math.exp": "exp",
    "math.log": "log",
    "math.sqrt": "sqrt",
    "math.rsqrt": "rsqrt",
    "math.tanh": "tanh",
    "math.floor": "floor",
    "spyreop.exp": "exp",
    "spyreop.realdiv": "div",
    "spyreop.reciprocal": "reciprocal",
    "spyreop.rsqrt": "rsqrt",
    "spyreop.sigmoid": "sigmoid",
    "spyreop.sqrt": "sqrt",
}
NAMED_OPS: dict[str, str] = {
    "linalg.add": "add",
    "linalg.sub": "sub",
    "linalg.mul": "mul",
    "linalg.div": "div",
    "linalg.max": "maximum",
    "linalg.min": "minimum",
    "linalg.exp": "exp",
    "linalg.log": "log",
    "linalg.sqrt": "sqrt",
}
_CMPF = "false oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno true".split()
_CMPI = "eq ne slt sle sgt sge ult ule ugt uge".split()
_COMPARISONS = {
    "oeq": "eq", "une": "ne", "olt": "lt", "ole": "le", "ogt": "gt", "oge": "ge",
    "eq": "eq", "ne": "ne", "slt": "lt", "sle": "le", "sgt": "gt", "sge": "ge",
}  # fmt: skip


def apply(
    selector: Selector,
    name: str,
    inputs: Sequence[SSAValue],
    result: SSAValue,
    dims: tuple[Extent, ...],
    sink: Sink | None = None,
) -> None:
    """One vector operation over `dims`."""
    rank = len(dims)
    # With a launch scalar on both sides there may be no tensor among the inputs; the first then says the type.
    compute = Compute.I32 if is_integer_type(element_name(inputs[-1])) else Compute.F32
    operands = tuple(selector.input(value, range(rank), rank) for value in inputs)
    selector.result(
        result,
        dims,
        lambda out: selector.vop(name, compute, dims, out, operands),
        operands,
        element_for_element=True,
        sink=sink,
    )


def _dims(selector: Selector, values: Sequence[SSAValue], result: SSAValue) -> tuple[Extent, ...]:
    dims = selector.dims_of(values)
    if dims is None:
        raise UnsupportedOp(f"an operation on constants alone gives {result.type}; its extents are not known")
    return dims


def vector(selector: Selector, op: Any) -> None:
    values = list(op.operands)
    apply(selector, VECTOR_OPS[op.name], values, op.results[0], _dims(selector, values, op.results[0]))


def named(selector: Selector, op: Any) -> None:
    """linalg.add and friends: inputs, then one output that only gives the shape."""
    values = list(op.operands)[:-1]
    apply(selector, NAMED_OPS[op.name], values, op.results[0], _dims(selector, list(op.operands), op.results[0]))


# -- truth -----------------------------------------------------------------------------------------------------------


def comparison_name(op: Any) -> str:
    predicates = _CMPF if op.name == "arith.cmpf" else _CMPI
    predicate = predicates[op.properties["predicate"].value.data]
    if predicate not in _COMPARISONS:
        raise UnsupportedOp(f"{op.name} {predicate}; the card compares with {', '.join(_COMPARISONS)}")
    return _COMPARISONS[predicate]


def compare(selector: Selector, op: Any) -> None:
    """1 or 0 in the element's place. `x != 0` that only selects read needs no instruction: select tests that itself."""
    result = op.results[0]
    name = comparison_name(op)
    left, right = (selector.value(v) for v in op.operands)
    only_conditions = all(u.operation.name == "arith.select" and u.index == 0 for u in result.uses)
    if name == "ne" and only_conditions and isinstance(right, Splat) and right.value == 0 and isinstance(left, Tile):
        selector.bind(result, left)
        return
    values = list(op.operands)
    apply(selector, name, values, result, _dims(selector, values, result))


def select(selector: Selector, op: Any) -> None:
    values = list(op.operands)
    if not hasattr(values[0].type, "get_shape"):
        raise UnsupportedOp("arith.select between tensors by a scalar; use scf.if around the operations")
    apply(selector, "select", values, op.results[0], _dims(selector, values, op.results[0]))


# -- conversions -----------------------------------------------------------------------------------------------------


def widen(selector: Selector, op: Any) -> None:
    """Conversions that users do when they read: extf, uitofp of truth values, and integers to what they compute in."""
    source, result = selector.value(op.operands[0]), op.results[0]
    if op.name in ("arith.uitofp", "arith.sitofp", "arith.extsi") and not _read_as(op):
        convert(selector, op)
    elif isinstance(source, Splat):
        selector.bind(result, _converted_splat(source, element_name(result)))
    else:
        selector.bind(result, source)


def _read_as(op: Any) -> bool:
    """True if every user is a vector operation, which turns its inputs into fp32 or int32 anyway."""
    if element_name(op.operands[0]) == "i1":
        return op.name == "arith.uitofp"
    wide = element_name(op.results[0]) in ("f32", "i32")
    return wide and all(use.operation.name in VECTOR_OPS for use in op.results[0].uses)


def convert(selector: Selector, op: Any) -> None:
    """A conversion that is not folded into the computation before it is a copy."""
    source, result = selector.value(op.operands[0]), op.results[0]
    if isinstance(source, Splat):
        selector.bind(result, _converted_splat(source, element_name(result)))
        return
    origin = selector.stream.origin
    selector.result(
        result,
        source.dims,
        lambda out: asm.CopyInst(source.dims, out, source.operand, origin=origin),
        [source.operand],
        element_for_element=True,
    )


def _converted_splat(source: Splat, element: str) -> Splat:
    if source.value is None:
        return replace(source, element=element)
    value: float | int = round_to_type(source.value, source.element)
    if is_integer_type(element):
        value = int(value)
    elif is_integer_type(source.element):
        value = float(value)
    return replace(source, value=value, element=element)


# -- dims ------------------------------------------------------------------------------------------------------------


def broadcast(selector: Selector, op: Any) -> None:
    """linalg.broadcast adds dims along which the value does not move."""
    source, init = selector.value(op.operands[0]), selector.value(op.operands[1])
    added = set(op.properties["dimensions"].get_values())
    if isinstance(source, Splat):
        selector.bind(op.results[0], replace(source, dims=init.dims))
        return
    if init.dims is None:
        raise UnsupportedOp("linalg.broadcast into a tensor of unknown extents")
    tile = selector.tile(op.operands[0])
    own = iter(tile.operand.maps)  # type: ignore[arg-type]
    maps = tuple(DimMap() if d in added else next(own) for d in range(len(init.dims)))
    selector.bind(op.results[0], Tile(replace(tile.operand, maps=maps), init.dims, tile.view))


def transpose(selector: Selector, op: Any) -> None:
    """linalg.transpose renames dims: dim i of the result is dim permutation[i] of the input."""
    source = selector.value(op.operands[0])
    permutation = op.properties["permutation"].get_values()
    if isinstance(source, Splat):
        selector.bind(op.results[0], replace(source, dims=selector.value(op.operands[1]).dims))
        return
    tile = selector.tile(op.operands[0])
    maps: Any = tile.operand.maps
    operand = replace(tile.operand, maps=tuple(maps[p] for p in permutation))
    selector.bind(op.results[0], Tile(operand, tuple(tile.dims[p] for p in permutation), tile.view))


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(VECTOR_OPS, vector),
    **dict.fromkeys(NAMED_OPS, named),
    "arith.cmpf": compare,
    "arith.cmpi": compare,
    "arith.select": select,
    "arith.extf": widen,
    "arith.uitofp": widen,
    "arith.truncf": convert,
    "arith.sitofp": widen,
    "arith.fptosi": convert,
    "arith.trunci": convert,
    "arith.extsi": widen,
    "linalg.broadcast": broadcast,
    "linalg.transpose": transpose,
}
