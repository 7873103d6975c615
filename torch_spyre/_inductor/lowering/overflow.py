# SPDX-License-Identifier: Apache-2.0
"""int64 results that leave int32, which is how the card keeps int64, fail the launch instead of wrapping; so does a
division of whole numbers by 0.

The same in fp32 tells: a wrapped result is off by a multiple of 2**32, the rounding of fp32 by far less. Where a
comparison of the operands tells, that is made instead. Results whose operands cannot be that large (positions, truth
values, small numbers) need no check.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.bounds import ValueRangeAnalysis
from torch._inductor.lowering import lowerings, mutate_to, register_lowering, to_dtype
from torch._inductor.virtualized import V
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from torch_spyre._inductor.lowering.guards import makes_spyre, overloads, wrapped
from torch_spyre.decompositions import custom
from torch_spyre.errors import Overflow

aten, prims = torch.ops.aten, torch.ops.prims
Around = Callable[[Callable[..., Any]], Callable[..., Any]]
LEAST, MOST = -(2**31), 2**31 - 1
INT32 = ValueRanges(sympy.Integer(LEAST), sympy.Integer(MOST))
ANY = ValueRanges(-sympy.oo, sympy.oo)


def check(result: ir.TensorBox, in_floats: ir.TensorBox, what: str) -> None:
    difference = lowerings[aten.sub.Tensor](to_dtype(result, torch.float32), in_floats)
    _demand(lowerings[aten.lt.Scalar](lowerings[aten.abs.default](difference), 2.0**30), what)


def _demand(holds: ir.TensorBox, what: str) -> None:
    message = f"Overflow: an int64 {what} leaves int32, which is how the card keeps int64"
    lowerings[aten._assert_async.msg](holds, message)


def _floats(x: Any) -> Any:
    """An operand in fp32; a size that varies takes the type of the other one by itself."""
    if isinstance(x, ir.TensorBox):
        return to_dtype(x, torch.float32)
    return x if isinstance(x, sympy.Basic) else float(x)


def _is_int64(x: Any) -> bool:
    return isinstance(x, ir.TensorBox) and x.get_dtype() == torch.int64


# Ranges of operands


class _Ranges(ValueRangeAnalysis):
    """Ranges of values on the card: loads give any int32 or any float, `places` are those of the iteration dims."""

    def __init__(self, places: dict[Any, ValueRanges[Any]]) -> None:
        super().__init__()
        self.places = places

    def load(self, name: str, index: sympy.Expr) -> ValueRanges[Any]:
        dtype = V.graph.get_dtype(name)
        if dtype == torch.bool:
            return ValueRanges(sympy.false, sympy.true)
        return ANY if dtype.is_floating_point else INT32

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
    unknown = ANY if x.get_dtype().is_floating_point else INT32
    sizes = [sympy.sympify(n) for n in x.get_size()]
    index = [sympy.Symbol(f"place{i}", integer=True, nonnegative=True) for i in range(len(sizes))]
    places = {p: ValueRanges(0, bound_sympy(n).upper) for p, n in zip(index, sizes, strict=True)}
    found = _evaluate(x, index, _Ranges(places))
    found = getattr(found, "value", found)  # Inductor wraps what handlers return
    return found if isinstance(found, ValueRanges) and (found.is_int or unknown is ANY) else unknown


def _evaluate(x: ir.TensorBox, index: list[sympy.Symbol], handler: _Ranges) -> Any:
    """What the handler makes of the element at `index`. Inductor lets nobody read from a layout that is still open,
    except where it counts operations: so this is done while it counts those of a function that does this."""
    found = []

    def count(_: Any) -> None:
        with V.set_ops_handler(handler):
            found.append(x.make_loader()(index))

    ir.Pointwise(device=x.get_device_or_error(), dtype=x.get_dtype(), inner_fn=count, ranges=[]).inner_fn_opcount()
    return found[0]


def _inside(*ends: Any) -> bool:
    return all(end.is_finite and LEAST <= end <= MOST for end in ends)


def _symbolic(*operands: Any) -> bool:
    return any(isinstance(x, sympy.Basic) for x in operands)


# Rules: what a lowering does beside its result


def _total(what: str) -> Around:
    """Sums and products along dims."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def lower(x: ir.TensorBox, *args: Any, **kwargs: Any) -> Any:
            if x.get_dtype().is_floating_point and kwargs.get("dtype") == torch.int64:
                x = lowerings[prims.convert_element_type.default](x, torch.int64)
            result = original(x, *args, **kwargs)
            counted = x.get_dtype() == torch.bool  # the card has not the room for so many truth values
            if _is_int64(result) and not counted and not x.get_dtype().is_floating_point:
                kwargs.pop("dtype", None)
                check(result, original(_floats(x), *args, **kwargs), what)
            return result

        return lower

    return around


COMBINED = {"sum": operator.add, "difference": operator.sub, "product": operator.mul}


def _pointwise(what: str) -> Around:
    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def lower(a: Any, b: Any, alpha: Any = 1) -> Any:
            given = {} if alpha == 1 else {"alpha": alpha}
            result = original(a, b, **given)
            if not _is_int64(result) or _fits(what, a, b, alpha):
                return result
            check(result, original(_floats(a), _floats(b), **given), what)
            return result

        return lower

    return around


def _fits(what: str, a: Any, b: Any, alpha: Any) -> bool:
    """Do the ends of the operands' ranges, which make the ends of the result's, stay inside int32?"""
    if _symbolic(a, b, alpha):
        return False
    first, second = _range(a), _range(b)
    ends = [COMBINED[what](x, y * alpha) for x in (first.lower, first.upper) for y in (second.lower, second.upper)]
    return _inside(*ends)


def _negated(what: str, holds: Callable[[ir.TensorBox, ir.TensorBox], Any]) -> Around:
    """Of all int32 the least alone has no counterpart."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def lower(x: ir.TensorBox) -> Any:
            result = original(x)
            if _is_int64(x) and _range(x).lower <= LEAST:
                _demand(holds(x, result), what)
            return result

        return lower

    return around


def _quotient(original: Callable[..., Any]) -> Callable[..., Any]:
    """The least int32 divided by -1."""

    def lower(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
        result = original(a, b, rounding_mode=rounding_mode)
        _check_divisor(b, result)
        if not _is_int64(result) or _symbolic(a, b):
            return result
        if _range(a).lower <= LEAST and _range(b).lower <= -1 <= _range(b).upper:
            conditions = [_differs(x, number) for x, number in ((a, LEAST), (b, -1)) if isinstance(x, ir.TensorBox)]
            _demand(
                conditions[0] if len(conditions) == 1 else lowerings[aten.logical_or.default](*conditions), "quotient"
            )
        return result

    return lower


def _rest(original: Callable[..., Any]) -> Callable[..., Any]:
    def lower(a: Any, b: Any) -> Any:
        result = original(a, b)
        _check_divisor(b, result)
        return result

    return lower


def _check_divisor(b: Any, result: ir.TensorBox) -> None:
    """PyTorch refuses to divide whole numbers by 0."""
    if result.get_dtype().is_floating_point or _symbolic(b):
        return
    found = _range(b)
    if found.lower > 0 or found.upper < 0:
        return
    if not isinstance(b, ir.TensorBox):
        raise RuntimeError("ZeroDivisionError")
    lowerings[aten._assert_async.msg](_differs(b, 0), "ZeroDivision: ZeroDivisionError: a whole number is divided by 0")


def _differs(x: ir.TensorBox, number: int) -> Any:
    return lowerings[aten.ne.Scalar](x, number)


def _power(original: Callable[..., Any]) -> Callable[..., Any]:
    def lower(a: Any, b: Any) -> Any:
        result = original(a, b)
        if not _is_int64(result) or (isinstance(b, int) and b < 2):
            return result
        if isinstance(b, int) and _inside(*(sympy.sympify(end) ** b for end in (_range(a).lower, _range(a).upper))):
            return result
        wide = lowerings[aten.pow.Tensor_Tensor](*(_tensor(x, result) for x in (a, b)))
        if isinstance(b, ir.TensorBox):  # 1 over a whole number is no such power
            wide = lowerings[aten.where.self](lowerings[aten.lt.Scalar](b, 0), _floats(result), wide)
        check(result, wide, "power")
        return result

    return lower


def _tensor(x: Any, like: ir.TensorBox) -> Any:
    if isinstance(x, ir.TensorBox):
        return _floats(x)
    return lowerings[aten.full.default](like.get_size(), _floats(x), dtype=torch.float32, device=like.get_device())


def _shift(original: Callable[..., Any]) -> Callable[..., Any]:
    """x << n is x * 2**n; from 64 bits on nothing is left, and the card has 0 from 32 on."""

    def lower(a: Any, b: Any) -> Any:
        result = original(a, b)
        if not _is_int64(result) or (isinstance(b, int) and not 0 <= b < 64):
            return result
        if isinstance(b, int) and isinstance(a, ir.TensorBox) and _inside(*(e * 2**b for e in _ends(a))):
            return result
        count = _tensor(b, result)
        factor = lowerings[aten.exp2.default](count)
        if isinstance(b, ir.TensorBox):
            none = lowerings[aten.logical_or.default](
                lowerings[aten.lt.Scalar](count, 0.0), lowerings[aten.gt.Scalar](count, 63.0)
            )
            factor = lowerings[aten.where.self](none, _tensor(0.0, result), factor)
        check(result, lowerings[aten.mul.Tensor](_tensor(a, result), factor), "shift")
        return result

    return lower


def _ends(x: Any) -> tuple[Any, Any]:
    found = _range(x)
    return found.lower, found.upper


def _multiplied_add(original: Callable[..., Any]) -> Callable[..., Any]:
    def lower(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
        tensors = [t for t in (x, a, b) if isinstance(t, ir.TensorBox)]
        if not any(map(_is_int64, tensors)) or any(t.get_dtype().is_floating_point for t in tensors):
            return original(x, a, b, value=value)
        product = lowerings[aten.mul.Tensor](a, b)
        scaled = product if value == 1 else lowerings[aten.mul.Tensor](product, value)
        return lowerings[aten.add.Tensor](x, scaled)

    return lower


def check_conversion(x: ir.TensorBox, dtype: torch.dtype) -> None:
    """A float outside int32 has no int64 on the card. NaN has none anywhere, and becomes 0."""
    if dtype != torch.int64 or not x.get_dtype().is_floating_point:
        return
    least, most = _ends(x)
    if _inside(least, most) and most < 2**30:  # not so near to the end that a float of it would be beyond
        return
    wide = _floats(x)
    high, low = lowerings[aten.ge.Scalar](wide, 2.0**31), lowerings[aten.lt.Scalar](wide, -(2.0**31))
    _demand(lowerings[aten.logical_not.default](lowerings[aten.logical_or.default](high, low)), "value")


def _converted(original: Callable[..., Any]) -> Callable[..., Any]:
    def lower(x: ir.TensorBox, dtype: torch.dtype) -> Any:
        check_conversion(x, dtype)
        return original(x, dtype)

    return lower


def _copied(original: Callable[..., Any]) -> Callable[..., Any]:
    def lower(target: ir.TensorBox, source: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(source, ir.TensorBox):
            check_conversion(source, target.get_dtype())
        return original(target, source, *args, **kwargs)

    return lower


def _each(packet: Any, in_place: bool) -> Around:
    """Lists with int64 among them, element by element: Inductor's own forms do not come by the rules above."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def lower(*args: Any, **kwargs: Any) -> Any:
            lists = [a for a in args if isinstance(a, (list, tuple))]
            if not any(_is_int64(x) for a in lists for x in a):
                return original(*args, **kwargs)
            rule = lowerings[next(op for op in overloads(packet) if op is not packet)]
            rows = [[a[i] if isinstance(a, (list, tuple)) else a for a in args] for i in range(len(lists[0]))]
            made = [rule(*row, **kwargs) for row in rows]
            return [mutate_to(x, y) for x, y in zip(args[0], made, strict=True)] if in_place else made

        return lower

    return around


def _positions(original: Callable[..., Any]) -> Callable[..., Any]:
    """``arange`` knows its ends."""

    def lower(length: Any, *, start: Any, step: Any, dtype: Any, **kwargs: Any) -> Any:
        if dtype == torch.int64 and not _symbolic(length, start, step):
            for end in (start, start + step * (length - 1)) if length else ():
                if not LEAST <= end <= MOST:
                    raise Overflow(f"arange reaches {end}: the card keeps int64 as int32; make it on the host")
        return original(length, start=start, step=step, dtype=dtype, **kwargs)

    return lower


def register() -> None:
    for op, what in ((aten.sum, "sum"), (aten.prod, "product"), (aten.cumsum, "sum"), (aten.cumprod, "product")):
        wrapped(op, _total(what))
    for op, what in ((aten.add, "sum"), (aten.sub, "difference"), (aten.mul, "product")):
        wrapped(op, _pointwise(what))
    wrapped(aten.neg, _negated("negative", lambda x, result: _differs(x, LEAST)))
    wrapped(aten.abs, _negated("absolute value", lambda x, result: lowerings[aten.ge.Scalar](result, 0)))
    for division in (aten.div.Tensor_mode, aten.div.Scalar_mode):
        wrapped(division, _quotient)
    for rest in (aten.remainder, aten.fmod):
        wrapped(rest, _rest)
    wrapped(aten.pow, _power)
    for shift in (aten.bitwise_left_shift, aten.__lshift__):
        wrapped(shift, _shift)
    wrapped(aten.addcmul, _multiplied_add)
    wrapped(prims.convert_element_type, _converted)
    for copy in (aten.copy, aten.copy_):
        wrapped(copy, _copied)
    for name in ("add", "sub", "mul", "neg", "abs", "pow", "addcmul", "copy"):
        wrapped(getattr(aten, f"_foreach_{name}"), _each(getattr(aten, name), in_place=False))
        wrapped(getattr(aten, f"_foreach_{name}_"), _each(getattr(aten, name), in_place=True))
    wrapped(prims.iota.default, _positions, here=makes_spyre)

    @register_lowering(custom.checked, type_promotion_kind=None)
    def checked(result: ir.TensorBox, in_floats: ir.TensorBox, what: str) -> ir.TensorBox:
        check(result, in_floats, what)
        return result
