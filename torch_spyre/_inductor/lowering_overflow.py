# SPDX-License-Identifier: Apache-2.0
"""int64 results that leave int32, which is how the card keeps int64, fail the launch instead of wrapping.

The same in fp32 tells: a wrapped result is off by a multiple of 2**32, the rounding of fp32 by far less. Results whose
operands cannot be that large (positions, truth values, small numbers) need no check.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any
from unittest import mock

import sympy
import torch
from torch._inductor import ir
from torch._inductor.bounds import ValueRangeAnalysis
from torch._inductor.lowering import lowerings, to_dtype
from torch._inductor.virtualized import V
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from torch_spyre._inductor.guards import wrapped

aten = torch.ops.aten
INT32 = ValueRanges(sympy.Integer(-(2**31)), sympy.Integer(2**31 - 1))


def check(result: ir.TensorBox, in_floats: ir.TensorBox, what: str) -> None:
    difference = lowerings[aten.sub.Tensor](to_dtype(result, torch.float32), in_floats)
    near = lowerings[aten.lt.Scalar](lowerings[aten.abs.default](difference), 2.0**30)
    lowerings[aten._assert_async.msg](near, f"an int64 {what} leaves int32, which is how the card keeps int64")


def _checked(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def lower(x: ir.TensorBox, *args: Any, **kwargs: Any) -> Any:
            result = original(x, *args, **kwargs)
            source = x.get_dtype()  # the card has not the room for so many truth values
            if not source.is_floating_point and source != torch.bool and result.get_dtype() == torch.int64:
                kwargs.pop("dtype", None)
                check(result, original(to_dtype(x, torch.float32), *args, **kwargs), what)
            return result

        return lower

    return around


class _Ranges(ValueRangeAnalysis):
    """Ranges of integers on the card: what is loaded is an int32; `places` are those of the iteration dims."""

    def __init__(self, places: dict[Any, ValueRanges[Any]]) -> None:
        super().__init__()
        self.places = places

    def load(self, name: str, index: sympy.Expr) -> ValueRanges[Any]:
        return ValueRanges(sympy.false, sympy.true) if V.graph.get_dtype(name) == torch.bool else INT32

    def index_expr(self, index: Any, dtype: torch.dtype) -> ValueRanges[Any]:
        return bound_sympy(sympy.sympify(index), self.places)

    def indirect_indexing(self, index: Any, size: Any, check: bool = True, wrap_neg: bool = True) -> sympy.Symbol:
        place = sympy.Symbol(f"indirect{len(self.places)}", integer=True, nonnegative=True)
        self.places[place] = ValueRanges(0, bound_sympy(sympy.sympify(size)).upper)
        return place


def _range(x: Any) -> ValueRanges[Any]:
    """The least and the largest value of an operand."""
    if not isinstance(x, ir.TensorBox):
        return ValueRanges.wrap(int(x))
    sizes = [sympy.sympify(n) for n in x.get_size()]
    index = [sympy.Symbol(f"place{i}", integer=True, nonnegative=True) for i in range(len(sizes))]
    places = {p: ValueRanges(0, bound_sympy(n).upper) for p, n in zip(index, sizes, strict=True)}
    # Layouts that are still open may be read here, as Inductor does where it counts operations.
    with V.set_ops_handler(_Ranges(places)), mock.patch.object(ir.FlexibleLayout, "allow_indexing", True):
        found = x.make_loader()(index)
    found = getattr(found, "value", found)  # Inductor wraps what handlers return
    return found if isinstance(found, ValueRanges) and found.is_int else INT32


COMBINED = {"sum": operator.add, "difference": operator.sub, "product": operator.mul}


def _pointwise(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def lower(a: Any, b: Any, alpha: Any = 1) -> Any:
            given = {} if alpha == 1 else {"alpha": alpha}
            result = original(a, b, **given)
            if result.get_dtype() != torch.int64 or _fits(what, a, b, alpha):
                return result
            check(result, original(*map(_in_floats, (a, b)), **given), what)
            return result

        return lower

    return around


def _in_floats(x: Any) -> Any:
    """An operand in fp32; a size that varies takes the type of the other one by itself."""
    if isinstance(x, ir.TensorBox):
        return to_dtype(x, torch.float32)
    return x if isinstance(x, sympy.Basic) else float(x)


def _fits(what: str, a: Any, b: Any, alpha: Any) -> bool:
    """Do the ends of the operands' ranges, which make the ends of the result's, stay inside int32?"""
    if any(isinstance(x, sympy.Basic) for x in (a, b, alpha)):
        return False
    first, second = _range(a), _range(b)
    ends = [COMBINED[what](x, y * alpha) for x in (first.lower, first.upper) for y in (second.lower, second.upper)]
    return all(end.is_finite and -(2**31) <= end < 2**31 for end in ends)


def register() -> None:
    for op, what in ((aten.sum, "sum"), (aten.prod, "product"), (aten.cumsum, "sum"), (aten.cumprod, "product")):
        wrapped(op, _checked(what))
    for op, what in ((aten.add, "sum"), (aten.sub, "difference"), (aten.mul, "product")):
        wrapped(op, _pointwise(what))
