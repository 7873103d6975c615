# SPDX-License-Identifier: Apache-2.0
"""Recovers what a kernel computes tile by tile: addresses, and the conditions of masks.

Enters: a value of TTIR. Leaves: its `Form`, for a pointer also the launch argument that it counts from; for a mask the
forms that are all at or above 0 where it is true, and the truth values that are no such forms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from xdsl.dialects.builtin import TensorType, i1, i32
from xdsl.ir import Attribute, Block, Operation, SSAValue

from torch_spyre.triton.lowering import linear
from torch_spyre.triton.lowering.linear import Digit, Form, Leaf, Linear, moved_dims, shape_of
from torch_spyre.triton.lowering.refusals import refusal
from torch_spyre.triton.lowering.ttir_ops import PointerType

_WIDENING = ("arith.extsi", "arith.index_cast")


def _zeros(value: SSAValue) -> tuple[int, ...]:
    return (0,) * len(shape_of(value.type))


def form_of(value: SSAValue, leaves: bool = False) -> Form | None:
    """An integer or a tile of integers. With `leaves`, a tile that is no sum is a leaf."""
    if not linear.is_integer(value.type):
        return None
    op = value.owner
    number = linear.constant(value)
    if number is not None:
        return Form(Linear(number), _zeros(value))
    if isinstance(op, Operation):
        found = _form_of_result(op, leaves)
        if found is not None and (found.leaves or not _overflows(value, found)):
            return found
    if not isinstance(value.type, TensorType):
        return Form(Linear.of(value))
    return Form(Linear(), _zeros(value), (), ((Linear(1), leaf_of(value)),)) if leaves else None


def leaf_of(value: SSAValue) -> Leaf:
    """A tensor as itself; a dim of one element is no dim."""
    return Leaf(value, tuple(d if size > 1 else None for d, size in enumerate(shape_of(value.type))))


def _overflows(value: SSAValue, form: Form) -> bool:
    """True if 32 bits may not hold the number: then it is not the sum that the form says."""
    element = value.type.element_type if isinstance(value.type, TensorType) else value.type
    if element != i32:
        return False
    steps = [(size - 1) * step for size, step in zip(shape_of(value.type), form.strides, strict=True)]
    more = sum(abs(factor) * (digit.mod or 1 << 31) for factor, digit in form.digits if digit.mod is not None)
    reach = sum(step for step in steps if step > 0) + more
    return linear.leaves_32_bits(form.scalar, reach, -sum(step for step in steps if step < 0))


def _form_of_result(op: Any, leaves: bool) -> Form | None:
    if op.name == "tt.make_range":
        return Form(Linear(op.attributes["start"].value.data), (1,))
    if op.name in _WIDENING:
        return form_of(op.operands[0], leaves)
    dims = moved_dims(op)
    if dims is not None:
        given = form_of(op.operands[0], leaves)
        return None if given is None else given.moved(dims)
    if op.name in ("arith.addi", "arith.subi", "arith.muli", "arith.divsi", "arith.remsi", "arith.shli"):
        a, b = (form_of(operand, leaves) for operand in op.operands)
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
        known = b.scalar.is_const and b.is_scalar and 0 <= b.scalar.const < 31
        return a.times(Form(Linear(1 << b.scalar.const), a.strides and (0,) * len(a.strides))) if known else None
    return _digit(op, a, b)


def _digit(op: Operation, a: Form, b: Form) -> Form | None:
    """A quotient or a remainder by a number, of something that is not negative."""
    if not isinstance(op.results[0].type, TensorType) or not b.scalar.is_const or not b.is_scalar or a.leaves:
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
    """Elements of a launch argument. `element` is what memory holds; what is loaded differs for truth values.

    `length` counts the elements from the argument's start to the end of its memory, if the launch knows it.
    """

    base: SSAValue
    offset: Form
    element: Attribute
    length: int | None = None


def address_of(value: SSAValue, user: Operation, opaque: bool = False) -> Address:
    """A pointer or a tile of pointers; refused if its offsets are no form. With `opaque`, a tile of offsets is a leaf,
    also where it is a sum."""
    owner = value.owner
    if isinstance(owner, Block):
        raise refusal(
            user,
            "a pointer that a loop changes by something else than a fixed step; compute the address from the loop "
            "counter",
        )
    if owner.name == "tt.base":
        start: Any = owner.attributes["start"]
        length: Any = owner.attributes.get("length")
        known = None if length is None else int(length.value.data)
        return Address(owner.operands[0], Form(Linear(start.value.data)), _pointee(value.type), known)
    if owner.name == "tt.addptr":
        base = address_of(owner.operands[0], user, opaque)
        added = owner.operands[1]
        offset = form_of(added, leaves=True)
        assert offset is not None
        if opaque and not offset.is_scalar:
            offset = Form(Linear(), _zeros(added), (), ((Linear(1), leaf_of(added)),))
        return replace(base, offset=base.offset.plus(offset))
    if owner.name == "tt.bitcast":
        return _bitcast(owner, user, opaque)
    dims = moved_dims(owner)
    if dims is not None:
        base = address_of(owner.operands[0], user, opaque)
        return replace(base, offset=base.offset.moved(dims))
    raise refusal(user, f"a pointer from {owner.name}; an address is an argument plus offsets")


def _bitcast(op: Operation, user: Operation, opaque: bool) -> Address:
    """Triton reads truth values as bytes; other pointers keep their type."""
    given, wanted = (_pointee(v.type) for v in (op.operands[0], op.results[0]))
    if given != i1 and given != wanted:
        raise refusal(user, f"memory of {given} read as {wanted}; the card stores formats of its own, convert values")
    return address_of(op.operands[0], user, opaque)


def _pointee(type_: Attribute) -> Attribute:
    inner = type_.element_type if isinstance(type_, TensorType) else type_
    assert isinstance(inner, PointerType)
    return inner.pointee


# -- masks ------------------------------------------------------------------------------------------------------------

# predicate: is a - b or b - a taken, and what is added, so that the result is at or above 0
_SIGNED = {2: (-1, -1), 3: (-1, 0), 4: (1, -1), 5: (1, 0)}
_UNSIGNED = {6: 2, 7: 3, 8: 4, 9: 5}


@dataclass(frozen=True)
class Mask:
    """A conjunction. `bounds`: forms that are at or above 0 where it is true, of at most one dim each, with the truth
    values that they stand for; `others`: truth values that are anything else."""

    bounds: tuple[tuple[Form, Leaf], ...] = ()
    others: tuple[Leaf, ...] = ()

    def also(self, other: Mask) -> Mask:
        return Mask((*self.bounds, *other.bounds), (*self.others, *other.others))

    def moved(self, dims: list[int | None]) -> Mask:
        bounds = tuple((form.moved(dims), leaf.moved(dims)) for form, leaf in self.bounds)
        return Mask(bounds, tuple(leaf.moved(dims) for leaf in self.others))


def mask_of(value: SSAValue | None) -> Mask:
    """A mask taken apart."""
    if value is None:
        return Mask()
    op: Any = value.owner
    number = _truth(value)
    if number is not None:
        return Mask() if number else Mask(((Form(Linear(-1), _zeros(value)), leaf_of(value)),))
    if not isinstance(op, Operation):
        return Mask(others=(leaf_of(value),))
    if op.name == "arith.andi":
        return mask_of(op.operands[0]).also(mask_of(op.operands[1]))
    dims = moved_dims(op)
    if dims is not None:
        return mask_of(op.operands[0]).moved(dims)
    forms = _comparison(op) if op.name == "arith.cmpi" else None
    if forms is None or any(sum(1 for s in form.strides if s) > 1 for form in forms):
        return Mask(others=(leaf_of(value),))
    return Mask(tuple((form, leaf_of(value)) for form in forms))


def is_certain(mask: Mask, shape: tuple[int, ...]) -> bool:
    """True if a mask holds at all positions of a tile, whatever program looks."""
    return not mask.others and all(_is_at_least_zero(form, shape) for form, _ in mask.bounds)


def _is_at_least_zero(form: Form, shape: tuple[int, ...]) -> bool:
    least = linear.least(form.scalar)
    falls = sum(min(0, stride * (size - 1)) for stride, size in zip(form.strides, shape, strict=True))
    return least is not None and least + falls >= 0 and not form.digits and not form.leaves


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
