# SPDX-License-Identifier: Apache-2.0
"""Recovers what a kernel computes tile by tile: addresses, and the conditions of masks.

Enters: a value of TTIR. Leaves: its `Form`, for a pointer also the launch argument that it counts from; for a mask the
list of forms that are all at or above 0 where it is true. None where it depends on data or is no such form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from xdsl.dialects.builtin import TensorType, i1, i32
from xdsl.ir import Attribute, Block, Operation, SSAValue

from torch_spyre.triton.lowering import linear
from torch_spyre.triton.lowering.linear import Digit, Form, Linear, moved_dims, shape_of
from torch_spyre.triton.lowering.refusals import refusal
from torch_spyre.triton.lowering.ttir_ops import PointerType

_WIDENING = ("arith.extsi", "arith.index_cast")


def _zeros(value: SSAValue) -> tuple[int, ...]:
    return (0,) * len(shape_of(value.type))


def form_of(value: SSAValue) -> Form | None:
    """An integer or a tile of integers."""
    if not linear.is_integer(value.type):
        return None
    op = value.owner
    number = linear.constant(value)
    if number is not None:
        return Form(Linear(number), _zeros(value))
    if isinstance(op, Operation):
        found = _form_of_result(op)
        if found is not None and not _overflows(value, found):
            return found
    return None if isinstance(value.type, TensorType) else Form(Linear.of(value))


def _overflows(value: SSAValue, form: Form) -> bool:
    """True if 32 bits may not hold the number: then it is not the sum that the form says."""
    element = value.type.element_type if isinstance(value.type, TensorType) else value.type
    if element != i32:
        return False
    steps = [(size - 1) * step for size, step in zip(shape_of(value.type), form.strides, strict=True)]
    more = sum(abs(factor) * (digit.mod or 1 << 31) for factor, digit in form.digits if digit.mod is not None)
    reach = sum(step for step in steps if step > 0) + more
    return linear.leaves_32_bits(form.scalar, reach, -sum(step for step in steps if step < 0))


def _form_of_result(op: Any) -> Form | None:
    if op.name == "tt.make_range":
        return Form(Linear(op.attributes["start"].value.data), (1,))
    if op.name in _WIDENING:
        return form_of(op.operands[0])
    dims = moved_dims(op)
    if dims is not None:
        given = form_of(op.operands[0])
        return None if given is None else given.moved(dims)
    if op.name in ("arith.addi", "arith.subi", "arith.muli", "arith.divsi", "arith.remsi", "arith.shli"):
        a, b = (form_of(operand) for operand in op.operands)
        return None if a is None or b is None else _combined(op, a, b)
    return None


def _combined(op: Operation, a: Form, b: Form) -> Form | None:
    if op.name == "arith.addi":
        return a.plus(b)
    if op.name == "arith.subi":
        return a.plus(b, -1)
    if op.name == "arith.muli":
        return a.times(b)
    if op.name == "arith.shli":
        known = b.scalar.is_const and not any(b.strides) and 0 <= b.scalar.const < 31
        return a.times(Form(Linear(1 << b.scalar.const), a.strides and (0,) * len(a.strides))) if known else None
    return _digit(op, a, b)


def _digit(op: Operation, a: Form, b: Form) -> Form | None:
    """A quotient or a remainder by a number, of something that is not negative."""
    if not isinstance(op.results[0].type, TensorType) or not b.scalar.is_const or any(b.strides) or b.digits:
        return None
    number = b.scalar.const
    if len(a.digits) == 1 and a.digits[0][0] == 1 and not any(a.strides) and a.scalar == Linear() and number > 0:
        return _digit_of_digit(op, a, number)
    lowest = linear.least(a.scalar)
    if number <= 0 or a.digits or min(a.strides, default=0) < 0 or lowest is None or lowest < 0:
        return None
    if not any(a.strides):
        return None
    digit = Digit(a.scalar, a.strides, *((number, None) if op.name == "arith.divsi" else (1, number)))
    return Form(Linear(), (0,) * len(a.strides), ((1, digit),))


def _digit_of_digit(op: Operation, a: Form, number: int) -> Form | None:
    """Quotients of quotients, and remainders of quotients."""
    ((_, digit),) = a.digits
    if digit.mod is not None:
        return None
    if op.name == "arith.divsi":
        digit = replace(digit, div=digit.div * number)
    else:
        digit = replace(digit, mod=number)
    return Form(Linear(), a.strides, ((1, digit),))


@dataclass(frozen=True)
class Address:
    """Elements of a launch argument. `element` is what memory holds; what is loaded differs for truth values."""

    base: SSAValue
    offset: Form
    element: Attribute


def address_of(value: SSAValue, user: Operation) -> Address:
    """A pointer or a tile of pointers; refused if its offsets are no form."""
    owner = value.owner
    if isinstance(owner, Block):
        raise refusal(
            user,
            "a pointer that a loop changes by something else than a fixed step; compute the address from the loop "
            "counter",
        )
    if owner.name == "tt.base":
        start: Any = owner.attributes["start"]
        return Address(owner.operands[0], Form(Linear(start.value.data)), _pointee(value.type))
    if owner.name == "tt.addptr":
        base = address_of(owner.operands[0], user)
        offset = form_of(owner.operands[1])
        if offset is None:
            raise refusal(user, _why_not(owner.operands[1]))
        if linear.from_memory(offset.scalar):
            raise refusal(user, f"an offset that {_GATHER}")
        return Address(base.base, base.offset.plus(offset), base.element)
    if owner.name == "tt.bitcast":
        return _bitcast(owner, user)
    dims = moved_dims(owner)
    if dims is not None:
        base = address_of(owner.operands[0], user)
        return Address(base.base, base.offset.moved(dims), base.element)
    raise refusal(user, f"a pointer from {owner.name}; an address is an argument plus offsets")


def _bitcast(op: Operation, user: Operation) -> Address:
    """Triton reads truth values as bytes; other pointers keep their type."""
    given, wanted = (_pointee(v.type) for v in (op.operands[0], op.results[0]))
    if given != i1 and given != wanted:
        raise refusal(user, f"memory of {given} read as {wanted}; the card stores formats of its own, convert values")
    return address_of(op.operands[0], user)


def _pointee(type_: Attribute) -> Attribute:
    inner = type_.element_type if isinstance(type_, TensorType) else type_
    assert isinstance(inner, PointerType)
    return inner.pointee


_GATHER = "comes from memory; gathers and scatters are not lowered yet, use torch.index_select outside of the kernel"


def _why_not(value: SSAValue) -> str:
    """Which step of an offset is no form."""
    op: Any = value.owner
    while isinstance(op, Operation):
        broken = [v for v in op.operands if linear.is_integer(v.type) and form_of(v) is None]
        if not broken:
            break
        op = broken[0].owner
    name = op.name if isinstance(op, Operation) else "a value that a loop carries"
    reasons = {
        "tt.load": _GATHER,
        "ktdp.load": _GATHER,
        "arith.muli": "multiplies positions, has a stride that differs between programs, or leaves 32 bits; pass "
        "strides as arguments, compute with int64",
        "arith.addi": "adds positions, or leaves 32 bits; compute it with int64",
        "arith.remsi": "takes a remainder of what may be negative, or by no fixed number",
        "arith.divsi": "divides what may be negative, or by no fixed number",
    }
    return f"an offset from {name}, which {reasons.get(name, 'is no sum of program ids, counters and tl.arange')}"


# -- masks ------------------------------------------------------------------------------------------------------------

# predicate: is a - b or b - a taken, and what is added, so that the result is at or above 0
_SIGNED = {2: (-1, -1), 3: (-1, 0), 4: (1, -1), 5: (1, 0)}
_UNSIGNED = {6: 2, 7: 3, 8: 4, 9: 5}


def conditions_of(value: SSAValue) -> list[Form] | None:
    """Forms that are all at or above 0 exactly where a mask is true; None if the mask is something else."""
    op: Any = value.owner
    number = _truth(value)
    if number is not None:
        return [] if number else [Form(Linear(-1), _zeros(value))]
    if not isinstance(op, Operation):
        return None
    if op.name == "arith.andi":
        sides = [conditions_of(operand) for operand in op.operands]
        return None if None in sides else [form for side in sides for form in side]  # type: ignore[union-attr]
    dims = moved_dims(op)
    if dims is not None:
        inner = conditions_of(op.operands[0])
        return None if inner is None else [form.moved(dims) for form in inner]
    return _comparison(op) if op.name == "arith.cmpi" else None


def _truth(value: SSAValue) -> bool | None:
    number = linear.constant(value)
    return None if number is None else bool(number)


def _comparison(op: Any) -> list[Form] | None:
    a, b = (form_of(operand) for operand in op.operands)
    if a is None or b is None or a.digits or b.digits or linear.from_memory(a.scalar - b.scalar):
        return None
    predicate = op.properties["predicate"].value.data
    if predicate in _UNSIGNED:
        if any((low := linear.least(f.scalar)) is None or low < 0 or min(f.strides, default=0) < 0 for f in (a, b)):
            return None
        predicate = _UNSIGNED[predicate]
    if predicate == 0:
        return [a.plus(b, -1), b.plus(a, -1)]
    if predicate not in _SIGNED:
        return None
    sign, more = _SIGNED[predicate]
    difference = a.plus(b, -1) if sign > 0 else b.plus(a, -1)
    return [Form(difference.scalar + Linear(more), difference.strides)]
