# SPDX-License-Identifier: Apache-2.0
"""Handlers of truth: comparisons with IEEE predicates, select, and maxima that ignore NaN.

A truth value is stored as 1 or 0. The card compares ordered (and `ne` unordered); other predicates are put together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_spyre.backend.addressing.access_tiles import Tile
from torch_spyre.backend.program.assembler import Extent, Operand
from torch_spyre.backend.program.isa import IEEE_FP32, IEEE_INT32, Compute, Space, format_of_type
from torch_spyre.backend.schedule.values import Splat
from torch_spyre.backend.select.elementwise import apply
from torch_spyre.backend.select.selector import Handler, Selector
from torch_spyre.optable import OPS

_CMPF = "false oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno true".split()
_CMPI = "eq ne slt sle sgt sge ult ule ugt uge".split()
_PLAIN = {predicate: row.vector for row in OPS.values() for predicate in row.predicates or ()}
_NEGATED = {"ugt": "le", "uge": "lt", "ult": "ge", "ule": "gt"}  # of floats: true where the ordered opposite is not
_SIGN_BIT = Operand(Space.IMM, IEEE_INT32, bits=0x80000000)
_TRUTH = format_of_type("i1")

Formula = Callable[["Steps", Operand, Operand], tuple[str, tuple[Operand, ...]]]


class Steps:
    """Emits the steps before the last one of a formula."""

    def __init__(self, selector: Selector, dims: tuple[Extent, ...]) -> None:
        self._selector = selector
        self._dims = dims

    def __call__(self, name: str, *inputs: Operand, compute: Compute = Compute.F32, fmt: int = _TRUTH) -> Operand:
        tile = self._selector.new_scratch(self._dims, fmt)
        self._selector.emit(self._selector.vop(name, compute, self._dims, tile.operand, inputs))
        return tile.operand


_FORMULAS: dict[str, Formula] = {
    "one": lambda step, a, b: ("logical_or", (step("lt", a, b), step("gt", a, b))),
    "ueq": lambda step, a, b: ("logical_not", (step("logical_or", step("lt", a, b), step("gt", a, b)),)),
    "ord": lambda step, a, b: ("logical_and", (step("eq", a, a), step("eq", b, b))),
    "uno": lambda step, a, b: ("logical_or", (step("isnan", a), step("isnan", b))),
}


def compare(selector: Selector, op: Any) -> None:
    """1 or 0 in the element's place. `x != 0` that only selects read needs no instruction: select tests that itself."""
    result = op.results[0]
    values = list(op.operands)
    predicate = (_CMPF if op.name == "arith.cmpf" else _CMPI)[op.properties["predicate"].value.data]
    left, right = (selector.value(v) for v in values)
    only_conditions = all(u.operation.name == "arith.select" and u.index == 0 for u in result.uses)
    zero = isinstance(right, Splat) and right.value == 0
    if predicate in ("une", "ne") and only_conditions and zero and isinstance(left, Tile):
        selector.bind(result, left)
        return
    dims = selector.dims_for(values, result)
    if predicate in ("true", "false"):
        selector.bind(result, Splat("i1", int(predicate == "true"), dims=dims))
    elif predicate in _PLAIN:
        apply(selector, _PLAIN[predicate], values, result, dims)
    else:
        _compose(selector, op, predicate, dims)


def _compose(selector: Selector, op: Any, predicate: str, dims: tuple[Extent, ...]) -> None:
    rank = len(dims)
    a, b = (selector.input(v, range(rank), rank) for v in op.operands)
    step = Steps(selector, dims)
    compute = Compute.F32
    if op.name == "arith.cmpi":  # unsigned: signed, with the sign bits turned around
        name = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}[predicate[1:]]
        compute = Compute.I32
        inputs: tuple[Operand, ...] = tuple(
            step("bit_xor", x, _SIGN_BIT, compute=compute, fmt=IEEE_INT32) for x in (a, b)
        )
    elif predicate in _NEGATED:
        name, inputs = "logical_not", (step(_NEGATED[predicate], a, b),)
    else:
        name, inputs = _FORMULAS[predicate](step, a, b)
    finish(selector, op, name, compute, dims, inputs)


def finish(
    selector: Selector, op: Any, name: str, compute: Compute, dims: tuple[Extent, ...], inputs: tuple[Operand, ...]
) -> None:
    selector.result(
        op.results[0],
        dims,
        lambda out: selector.vop(name, compute, dims, out, inputs),
        inputs,
        element_for_element=True,
    )


def select(selector: Selector, op: Any) -> None:
    """By a tensor of truth values, or by one truth value for all elements."""
    values = list(op.operands)
    apply(selector, "select", values, op.results[0], selector.dims_for(values[1:], op.results[0]))


def without_nan(selector: Selector, op: Any) -> None:
    """maxnumf and minnumf: a NaN gives way to the other operand."""
    values = list(op.operands)
    dims = selector.dims_for(values, op.results[0])
    rank = len(dims)
    a, b = (selector.input(v, range(rank), rank) for v in values)
    name = "maximum" if op.name == "arith.maxnumf" else "minimum"
    step = Steps(selector, dims)
    first = step("select", step("isnan", a), b, a, fmt=IEEE_FP32)
    second = step("select", step("isnan", b), a, b, fmt=IEEE_FP32)
    finish(selector, op, name, Compute.F32, dims, (first, second))


def unsigned(selector: Selector, op: Any) -> None:
    """maxui and minui: signed, with the sign bits turned around before and after."""
    values = list(op.operands)
    dims = selector.dims_for(values, op.results[0])
    rank = len(dims)
    step = Steps(selector, dims)

    def turned(x: Operand) -> Operand:
        return step("bit_xor", x, _SIGN_BIT, compute=Compute.I32, fmt=IEEE_INT32)

    inputs = [turned(selector.input(v, range(rank), rank)) for v in values]
    name = "maximum" if op.name == "arith.maxui" else "minimum"
    chosen = step(name, *inputs, compute=Compute.I32, fmt=IEEE_INT32)
    finish(selector, op, "bit_xor", Compute.I32, dims, (chosen, _SIGN_BIT))


HANDLERS: dict[str, Handler] = {
    "arith.cmpf": compare,
    "arith.cmpi": compare,
    "arith.select": select,
    "linalg.select": lambda selector, op: apply(
        selector, "select", list(op.operands)[:3], op.results[0], selector.dims_for(list(op.operands), op.results[0])
    ),
    "arith.maxnumf": without_nan,
    "arith.minnumf": without_nan,
    "arith.maxui": unsigned,
    "arith.minui": unsigned,
}
