# SPDX-License-Identifier: Apache-2.0
"""Integers of a kernel as sums that can be taken apart: which part is a number, which comes from the program's ids and
loop counters, and which from the position within a tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IndexType, IntegerAttr, IntegerType, TensorType
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

INDEX = IndexType()

Monomial = tuple[SSAValue, ...]
Range = tuple[int | None, int | None]


@dataclass(frozen=True)
class Linear:
    """``const + Σ coefficient · product of scalar values``"""

    const: int = 0
    terms: Mapping[Monomial, int] = field(default_factory=dict)

    @staticmethod
    def of(value: SSAValue) -> Linear:
        return Linear(0, {(value,): 1})

    def __add__(self, other: Linear) -> Linear:
        terms = dict(self.terms)
        for monomial, count in other.terms.items():
            terms[monomial] = terms.get(monomial, 0) + count
        return Linear(self.const + other.const, {m: c for m, c in terms.items() if c})

    def __sub__(self, other: Linear) -> Linear:
        return self + other.scaled(-1)

    def scaled(self, factor: int) -> Linear:
        return Linear(self.const * factor, {m: c * factor for m, c in self.terms.items() if factor})

    def __mul__(self, other: Linear) -> Linear:
        total = other.scaled(self.const)
        for monomial, count in self.terms.items():
            total = total + Linear(0, {monomial: count * other.const} if other.const else {})
            for right, times in other.terms.items():
                product = tuple(sorted((*monomial, *right), key=id))
                total = total + Linear(0, {product: count * times})
        return total

    @property
    def is_const(self) -> bool:
        return not self.terms


@dataclass(frozen=True)
class Digit:
    """``((scalar + Σ strides · position) floordiv div) mod mod`` of a number that is not negative."""

    scalar: Linear
    strides: tuple[int, ...]
    div: int
    mod: int | None


@dataclass(frozen=True)
class Leaf:
    """A tensor whose elements are no sum: read from memory, or computed. `dims` as `moved_dims` gives them."""

    value: SSAValue
    dims: tuple[int | None, ...]

    def moved(self, dims: Sequence[int | None]) -> Leaf:
        return Leaf(self.value, tuple(None if d is None else self.dims[d] for d in dims))

    def depends_on(self, dim: int) -> bool:
        return self.dims[dim] is not None


@dataclass(frozen=True)
class Form:
    """An integer, or a tile: ``scalar + Σ stride_d · position_d + Σ factor · digit + Σ factor · leaf``."""

    scalar: Linear
    strides: tuple[int, ...] = ()
    digits: tuple[tuple[int, Digit], ...] = ()
    leaves: tuple[tuple[Linear, Leaf], ...] = ()

    def plus(self, other: Form, sign: int = 1) -> Form:
        strides = tuple(a + sign * b for a, b in zip(self.strides, other.strides, strict=True))
        digits = (*self.digits, *((sign * factor, digit) for factor, digit in other.digits))
        leaves = (*self.leaves, *((factor.scaled(sign), leaf) for factor, leaf in other.leaves))
        return Form(self.scalar + other.scalar.scaled(sign), strides, digits, leaves)

    @property
    def is_scalar(self) -> bool:
        return not any(self.strides) and not self.digits and not self.leaves

    def times(self, other: Form) -> Form | None:
        """The product, if it is again such a form."""
        if not self.is_scalar:
            self, other = other, self
        if not self.is_scalar:
            return None  # positions multiply positions
        leaves = tuple((f * self.scalar, leaf) for f, leaf in other.leaves)
        if not any(other.strides) and not other.digits:
            return Form(self.scalar * other.scalar, other.strides, (), leaves)
        if not self.scalar.is_const:
            return None  # a stride that differs between programs
        factor = self.scalar.const
        digits = tuple((f * factor, d) for f, d in other.digits if factor)
        return Form(other.scalar.scaled(factor), tuple(s * factor for s in other.strides), digits, leaves)

    def moved(self, dims: list[int | None]) -> Form:
        """With other dims: new dim d is the old dim `dims[d]`, or none."""

        def move(strides: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(0 if d is None else strides[d] for d in dims)

        digits = tuple((f, replace(d, strides=move(d.strides))) for f, d in self.digits)
        return Form(self.scalar, move(self.strides), digits, tuple((f, leaf.moved(dims)) for f, leaf in self.leaves))


def shape_of(type_: Attribute) -> tuple[int, ...]:
    return tuple(type_.get_shape()) if isinstance(type_, TensorType) else ()


def moved_dims(op: Operation) -> list[int | None] | None:
    """For an operation that only moves positions, the dim of its operand behind each dim of its result."""
    if op.name not in ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans"):
        return None
    given, wanted = shape_of(op.operands[0].type), shape_of(op.results[0].type)
    if op.name == "tt.splat":
        return [None] * len(wanted)
    if op.name == "tt.broadcast":
        return [d if given[d] == wanted[d] and given[d] != 1 else None for d in range(len(wanted))]
    if op.name == "tt.expand_dims":
        axis = int(op.attributes["axis"].value.data)  # type: ignore[attr-defined]
        dims: list[int | None] = list(range(len(given)))
        return [*dims[:axis], None, *dims[axis:]]
    order = op.attributes["order"].get_values()  # type: ignore[attr-defined]
    return [int(d) for d in order]


# -- integers of the program ------------------------------------------------------------------------------------------


def constant(value: SSAValue) -> int | None:
    """The number behind a scalar constant, or behind a tensor of one number."""
    op = value.owner
    if not isinstance(op, Operation) or op.name != "arith.constant":
        return None
    attr = op.properties.get("value")
    if isinstance(attr, IntegerAttr):
        return int(attr.value.data)
    if isinstance(attr, DenseIntOrFPElementsAttr) and attr.is_splat():
        number = attr.get_values()[0]
        return int(number) if isinstance(number, int) else None
    return None


def bounds(value: SSAValue) -> Range:
    """The least and the greatest number that a scalar can be, None where nothing is known."""
    owner = value.owner
    if isinstance(owner, Block):
        return _counter_bounds(value, owner)
    number = constant(value)
    if number is not None:
        return number, number
    name = owner.name
    if name in ("arith.extsi", "arith.index_cast"):
        return bounds(owner.operands[0])
    if name == "tt.get_program_id":
        return 0, owner.attributes["programs"].value.data - 1  # type: ignore[attr-defined]
    if name == "ktdp.get_compute_tile_id":
        return 0, cores(owner) - 1
    low, high = exact_bounds(owner)
    if value.type == IntegerType(32) and (low is None or high is None or low < -(1 << 31) or high >= 1 << 31):
        return -(1 << 31), (1 << 31) - 1  # whatever it is, it has 32 bits
    return low, high


def exact_bounds(op: Operation) -> Range:
    """The range of what an operation computes from its operands, before it is cut to the bits of its type."""
    if op.name in _RANGES:
        return _RANGES[op.name](bounds(op.operands[0]), bounds(op.operands[1]))
    if op.name == "arith.select":
        (a, b), (c, d) = bounds(op.operands[1]), bounds(op.operands[2])
        return _both(a, c, min), _both(b, d, max)
    if op.name == "arith.trunci":
        return bounds(op.operands[0])
    return None, None


def cores(op: Operation) -> int:
    """How many cores run the function that an operation stands in."""
    grid = next(o.attributes["grid"] for o in _parents(op) if "grid" in o.attributes)
    return int(grid.data[0].value.data)  # type: ignore[attr-defined]


def _parents(op: Operation) -> list[Operation]:
    found = []
    parent = op.parent_op()
    while parent is not None:
        found.append(parent)
        parent = parent.parent_op()
    return found


def _counter_bounds(value: SSAValue, block: Block) -> Range:
    loop = block.parent_op()
    if loop is None or loop.name != "scf.for" or not isinstance(value, BlockArgument) or value.index != 0:
        return None, None
    low, high = bounds(loop.operands[0])[0], bounds(loop.operands[1])[1]
    return low, None if high is None else max(high - 1, low if low is not None else high - 1)


def _sum(a: Range, b: Range) -> Range:
    return _both(a[0], b[0], lambda x, y: x + y), _both(a[1], b[1], lambda x, y: x + y)


def _both(a: int | None, b: int | None, f: object) -> int | None:
    return None if a is None or b is None else f(a, b)  # type: ignore[operator]


def _product(a: Range, b: Range) -> Range:
    if None in a or None in b:
        not_negative = all(r[0] is not None and r[0] >= 0 for r in (a, b))
        return (0, None) if not_negative else (None, None)
    corners = [x * y for x in a for y in b]  # type: ignore[operator]
    return min(corners), max(corners)


def _quotient(a: Range, b: Range) -> Range:
    """Rounded toward 0; by a divisor of any sign it is at most as large as the dividend."""
    if b[0] is not None and b[0] > 0 and a[0] is not None and a[0] >= 0:
        return 0, None if a[1] is None else a[1] // b[0]
    if a[0] is None or a[1] is None:
        return None, None
    most = max(abs(a[0]), abs(a[1]))
    return -most, most


def _rest(a: Range, b: Range) -> Range:
    """It has the sign of the dividend, and is smaller than the divisor and at most as large as the dividend."""
    size = None if b[0] is None or b[1] is None else max(abs(b[0]), abs(b[1])) - 1
    low = a[0] if size is None or a[0] is None else max(a[0], -size)
    ends = [e for e in (a[1], size) if e is not None]
    return (0 if a[0] is not None and a[0] >= 0 else low), min(ends, default=None)


def _masked(a: Range, b: Range) -> Range:
    ends = [r[1] for r in (a, b) if r[0] is not None and r[0] >= 0 and r[1] is not None]
    return (0, min(ends)) if ends else (None, None)


def _shifted(a: Range, b: Range) -> Range:
    if a[0] is None or a[0] < 0 or b[0] is None or b[0] != b[1] or b[0] < 0:
        return None, None
    return a[0] >> b[0], None if a[1] is None else a[1] >> b[0]


def _least(a: Range, b: Range) -> Range:
    highs = [h for h in (a[1], b[1]) if h is not None]
    return _both(a[0], b[0], min), min(highs, default=None)


def _greatest(a: Range, b: Range) -> Range:
    lows = [low for low in (a[0], b[0]) if low is not None]
    return max(lows, default=None), _both(a[1], b[1], max)


def _shifted_up(a: Range, b: Range) -> Range:
    if b[0] is None or b[0] != b[1] or not 0 <= b[0] < 32:
        return None, None
    return _product(a, (1 << b[0], 1 << b[0]))


_RANGES: dict[str, Callable[[Range, Range], Range]] = {
    "arith.addi": _sum,
    "arith.subi": lambda a, b: _sum(a, (None if b[1] is None else -b[1], None if b[0] is None else -b[0])),
    "arith.muli": _product,
    "arith.divsi": _quotient,
    "arith.remsi": _rest,
    "arith.minsi": _least,
    "arith.maxsi": _greatest,
    "arith.andi": _masked,
    "arith.shrsi": _shifted,
    "arith.shrui": _shifted,
    "arith.shli": _shifted_up,
}


def _range(form: Linear) -> Range:
    total: Range = (form.const, form.const)
    for monomial, count in form.terms.items():
        product: Range = (count, count)
        for value in monomial:
            product = _product(product, bounds(value))
        total = _sum(total, product)
    return total


def least(form: Linear) -> int | None:
    """The least number that a sum can be."""
    return _range(form)[0]


def greatest(form: Linear) -> int | None:
    """The greatest number that a sum can be."""
    return _range(form)[1]


_MEMORY = ("tt.load", "ktdp.load", "tensor.extract")


def from_memory(form: Linear) -> bool:
    """True if a sum contains something that is known only while the program runs."""
    return any(_read(value) for monomial in form.terms for value in monomial)


def _read(value: SSAValue) -> bool:
    owner = value.owner
    if isinstance(owner, Block):
        loop = owner.parent_op()
        return loop is not None and loop.name == "scf.for" and isinstance(value, BlockArgument) and value.index != 0
    return owner.name in _MEMORY or bool(owner.regions) or any(_read(operand) for operand in owner.operands)


def leaves_32_bits(form: Linear, reach: int, back: int) -> bool:
    """True if a sum, plus up to `reach` or minus up to `back`, may need more than 32 bits."""
    low, high = _range(form)
    return low is None or high is None or low - back < -(1 << 31) or high + reach >= 1 << 31


def is_integer(type_: Attribute) -> bool:
    element = type_.element_type if isinstance(type_, TensorType) else type_
    return isinstance(element, IntegerType | IndexType) and element != IntegerType(1)
