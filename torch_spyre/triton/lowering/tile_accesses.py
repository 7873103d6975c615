# SPDX-License-Identifier: Apache-2.0
"""Loads and stores become views, access tiles and transfers of KTIR.

Each dim of a tile is a dim of the view, with the stride that its positions have in memory. Conditions of the mask on
one dim bound the view along it: outside, a load reads 0 and a store writes nothing. Where a mask ends at a tensor's
end, the tile's own start is its anchor, so that the view is the tensor and has the same shape for all programs. What
is left of the address is the view's offset. A remainder or quotient of positions is one more dim of the view.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr, ModuleOp, TensorType
from xdsl.ir import Attribute, Operation, SSAValue

from torch_spyre.triton.lowering import linear, splice
from torch_spyre.triton.lowering.addresses import Address, address_of, conditions_of, form_of
from torch_spyre.triton.lowering.linear import Form, Linear, shape_of
from torch_spyre.triton.lowering.refusals import refusal

_STORED = ("f16", "bf16", "f32", "i1", "i8", "i16", "i32", "i64", "f8E4M3FN", "f8E5M2")


def run(module: ModuleOp) -> None:
    for op in list(module.walk()):
        if op.name == "tt.load":
            _load(op)
        elif op.name == "tt.store":
            _store(op)
        elif op.name == "tt.atomic_rmw":
            _atomic(op)
        elif op.name == "tt.descriptor_load":
            _descriptor_load(op)
        elif op.name == "tt.descriptor_store":
            _descriptor_store(op)


def needs_order(module: ModuleOp) -> bool:
    """True if programs must run one after the other: they read what others have written, or may."""
    for op in module.walk():
        if op.name == "tt.atomic_rmw":
            return True
        if op.name == "tt.store" and len(op.operands) == 3 and not _bounds_tile(op.operands[2]):
            return True
    return False


def _bounds_tile(mask: SSAValue) -> bool:
    """True if a mask cuts a box out of its tile."""
    conditions = conditions_of(mask)
    return conditions is not None and all(sum(1 for s in c.strides if s) <= 1 for c in conditions)


# -- the box of a tile ------------------------------------------------------------------------------------------------


@dataclass
class _Box:
    """Conditions on one dim: ``position >= each of lows``, ``position <= each of highs``."""

    lows: list[Linear] = field(default_factory=list)
    highs: list[Linear] = field(default_factory=list)


class _Text:
    """KTIR in the making, and the values that it names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.values: dict[str, SSAValue] = {}
        self._names: dict[SSAValue, str] = {}
        self._count = 0

    def name(self, line: str) -> str:
        """A new value, computed by a line without its left side."""
        self._count += 1
        made = f"%t{self._count}"
        self.lines.append(f"{made} = {line}")
        return made

    def value(self, value: SSAValue) -> str:
        if value not in self._names:
            name = f"v{len(self.values)}"
            self.values[name], self._names[value] = value, f"%{name}"
        return self._names[value]

    def index(self, value: SSAValue) -> str:
        if str(value.type) == "index":
            return self.value(value)
        return self.name(f"arith.index_cast {self.value(value)} : {value.type} to index")

    def number(self, value: int) -> str:
        return self.name(f"arith.constant {value} : index")

    def sum(self, form: Linear) -> str:
        total = None if form.const and form.terms else self.number(form.const) if not form.terms else None
        for monomial, count in form.terms.items():
            product = self.index(monomial[0])
            for more in monomial[1:]:
                product = self.name(f"arith.muli {product}, {self.index(more)} : index")
            if count != 1:
                product = self.name(f"arith.muli {product}, {self.number(count)} : index")
            total = product if total is None else self.name(f"arith.addi {total}, {product} : index")
        if form.terms and form.const:
            total = self.name(f"arith.addi {total}, {self.number(form.const)} : index")
        assert total is not None
        return total

    def least(self, names: list[str]) -> str:
        result = names[0]
        for other in names[1:]:
            result = self.name(f"arith.minsi {result}, {other} : index")
        return result


class _Tile:
    """The tile of one load or store."""

    def __init__(self, op: Operation, address: Address, shape: tuple[int, ...], conditions: list[Form]) -> None:
        self._op = op
        self._text = _Text()
        self._address = address
        self.shape = shape or (1,)
        self._strides = address.offset.strides or (0,)
        self._rest = address.offset.scalar
        self._boxes = [_Box() for _ in self.shape]
        self._scalars: list[Linear] = []
        for condition in conditions:
            self._note(condition)
        self._dims = [self._dim(d) for d in range(len(self.shape))]

    def _note(self, condition: Form) -> None:
        used = [d for d, stride in enumerate(condition.strides) if stride]
        if not used:
            self._scalars.append(condition.scalar)
            return
        (dim,) = used
        stride, scalar = condition.strides[dim], condition.scalar
        if abs(stride) > 1:
            if not scalar.is_const:
                raise refusal(self._op, f"a mask that compares {abs(stride)} times a position; compare the position")
            scalar = Linear(scalar.const // abs(stride))
        if stride < 0:
            self._boxes[dim].highs.append(scalar)
        else:
            self._boxes[dim].lows.append(scalar.scaled(-1))

    def _dim(self, dim: int) -> tuple[Linear, str | int, str | int]:
        """Anchor, first coordinate and size along a dim."""
        box, size = self._boxes[dim], self.shape[dim]
        anchor = next((a for high in box.highs if (a := self._anchor(dim, high)) is not None), Linear())
        self._rest = self._rest - anchor.scaled(self._strides[dim])
        ends = [high + anchor + Linear(1) for high in box.highs]
        numbers = [end.const for end in ends if end.is_const]
        if anchor.is_const:
            numbers.append(size + anchor.const)
        names = [self._text.sum(end) for end in ends if not end.is_const]
        end: str | int = min(numbers) if numbers else ""
        if names:
            end = self._text.least([*names, *([self._text.number(int(end))] if numbers else [])])
        starts = [low + anchor for low in box.lows]
        start: str | int = max([0, *(s.const for s in starts if s.is_const)])
        for open_start in (s for s in starts if not s.is_const):
            left = self._text.number(start) if isinstance(start, int) else start
            start = self._text.name(f"arith.maxsi {left}, {self._text.sum(open_start)} : index")
        return anchor, start, end

    def _anchor(self, dim: int, high: Linear) -> Linear | None:
        """The start of the tile along a dim, if the address contains it and the mask is about the tensor's end."""
        start = Linear(0, {m: -c for m, c in high.terms.items()})
        lowest = linear.least(start)
        stride = self._strides[dim]
        if not start.terms or lowest is None or lowest < 0 or not stride:
            return None
        terms = self._rest.terms
        return start if all(terms.get(m, 0) == c * stride for m, c in start.terms.items()) else None

    # -- text ----------------------------------------------------------------------------------------------------------

    def make(self) -> tuple[_Text, str, str]:
        """The text that makes the tile, the tile's name and its type."""
        text = self._text
        digits = self._address.offset.digits
        element = self._address.element
        if str(element) not in _STORED:
            raise refusal(self._op, f"memory of {element}; the card stores {', '.join(_STORED)}")
        sizes, strides, low, anchors = [], [], [], []
        offset = text.sum(self._rest) if not self._rest.is_const or self._rest.const else ""
        subscripts = []
        for d, (anchor, start, end) in enumerate(self._dims):
            if digits and self._is_free(d):
                continue
            if isinstance(start, str):  # coordinates count from the first one that exists
                moved = text.name(f"arith.muli {start}, {text.number(self._strides[d])} : index")
                offset = moved if not offset else text.name(f"arith.addi {offset}, {moved} : index")
                end = text.name(f"arith.subi {text.number(end) if isinstance(end, int) else end}, {start} : index")
                place = text.number(0) if anchor.is_const and not anchor.const else text.sum(anchor)
                anchors.append(text.name(f"arith.subi {place}, {start} : index"))
                low.append(0)
            else:
                anchors.append(text.sum(anchor) if anchor.terms or digits else text.number(anchor.const))
                low.append(start)
            sizes.append(end)
            strides.append(self._strides[d])
            subscripts.append(f"({anchors[-1]} + %p{d})" if digits else anchors[-1])
        if not sizes and self._scalars:
            raise refusal(self._op, "a condition of the whole tile where all positions are remainders; use an if")
        self._gate(sizes)
        base = text.value(self._address.base)
        at = base if not offset else text.name(f"arith.addi {base}, {offset} : index")
        for factor, digit in digits:
            sizes.append(self._digit_size(digit))
            strides.append(factor)
            low.append(0)
            subscripts.append(self._digit(digit))
        view, kind = _view(text, at, sizes, strides, low, element)
        return (text, *_access(text, view, kind, subscripts, self.shape, bool(digits)))

    def _is_free(self, dim: int) -> bool:
        """True if a dim neither moves the address by itself nor is bounded."""
        return not self._strides[dim] and not self._boxes[dim].lows and not self._boxes[dim].highs

    def _gate(self, sizes: list[Any]) -> None:
        """Scalar conditions leave the tile as it is, or empty."""
        for condition in self._scalars:
            if condition.is_const:
                sizes[0] = sizes[0] if condition.const >= 0 else 0
                continue
            text = self._text
            zero, size = text.number(0), sizes[0] if isinstance(sizes[0], str) else text.number(sizes[0])
            truth = text.name(f"arith.cmpi sge, {text.sum(condition)}, {zero} : index")
            sizes[0] = text.name(f"arith.select {truth}, {size}, {zero} : index")

    def _digit(self, digit: linear.Digit) -> str:
        terms = [f"{s} * %p{d}" for d, s in enumerate(digit.strides) if s]
        inner = " + ".join([self._text.sum(digit.scalar), *terms])
        divided = f"(({inner}) floordiv {digit.div})" if digit.div != 1 else f"({inner})"
        return f"({divided} mod {digit.mod})" if digit.mod is not None else f"({divided})"

    def _digit_size(self, digit: linear.Digit) -> int:
        if digit.mod is not None:
            return digit.mod
        most = linear.greatest(digit.scalar)
        if most is None:
            raise refusal(self._op, "a quotient of positions without a bound; take its remainder by a fixed number too")
        reach = sum((size - 1) * stride for size, stride in zip(self.shape, digit.strides, strict=True))
        return (most + reach) // digit.div + 1


def _view(
    text: _Text, at: str, sizes: list[Any], strides: list[int], low: list[Any], element: Attribute
) -> tuple[str, str]:
    dims = [f"d{d}" for d in range(len(sizes))]
    dynamic = [d for d, size in enumerate(sizes) if isinstance(size, str)]
    rules = []
    for d, size in enumerate(sizes):
        end = f"s{dynamic.index(d)}" if isinstance(size, str) else str(max(int(size), 0))
        rules += [f"d{d} - {low[d]} >= 0", f"-d{d} + {end} - 1 >= 0"]
    symbols = f"[{', '.join(f's{i}' for i in range(len(dynamic)))}]" if dynamic else ""
    points = f"affine_set<({', '.join(dims)}){symbols} : ({', '.join(rules)})>"
    known = [str(max(s, 0)) if isinstance(s, int) else s for s in sizes]
    kind = f"memref<{'x'.join('?' if isinstance(s, str) else str(max(s, 0)) for s in sizes)}x{element}>"
    view = text.name(
        f"ktdp.construct_memory_view {at}, sizes: [{', '.join(known)}], strides: [{', '.join(map(str, strides))}] "
        f"{{coordinate_set = {points}, memory_space = #ktdp.memory_space<global>}} : {kind}"
    )
    return view, kind


def _access(
    text: _Text, view: str, kind: str, subscripts: list[str], shape: tuple[int, ...], digits: bool
) -> tuple[str, str]:
    dims = ", ".join(f"d{d}" for d in range(len(shape)))
    rules = ", ".join(f"d{d} >= 0, -d{d} + {size - 1} >= 0" for d, size in enumerate(shape))
    points, order = f"affine_set<({dims}) : ({rules})>", f"affine_map<({dims}) -> ({dims})>"
    tile = f"!ktdp.access_tile<{'x'.join(map(str, shape))}xindex>"
    what = ", ".join(subscripts)
    if digits:
        variables = ", ".join(f"%p{d}" for d in range(len(shape)))
        made = text.name(
            f"ktdp.construct_indirect_access_tile intermediate_variables({variables}) {view}[{what}] "
            f"{{variables_space_set = {points}, variables_space_order = {order}}} : {kind} -> {tile}"
        )
    else:
        made = text.name(
            f"ktdp.construct_access_tile {view}[{what}] {{access_tile_set = {points}, access_tile_order = {order}}} "
            f": {kind} -> {tile}"
        )
    return made, tile


# -- loads and stores -------------------------------------------------------------------------------------------------


def _load(op: Operation) -> None:
    mask = op.operands[1] if len(op.operands) > 1 else None
    other = op.operands[2] if len(op.operands) > 2 else None
    address = address_of(op.operands[0], op)
    shape = shape_of(op.results[0].type)
    tile = _Tile(op, address, shape, _boxed(conditions_of(mask)) if mask is not None else [])
    loaded = _fetch(op, tile, address, op.results[0].type)
    if mask is not None and other is not None and not (_bounds_tile(mask) and _is_zero(other)):
        loaded = _selected(op, mask, loaded, other)
    splice.replace(op, [loaded])


def _boxed(conditions: list[Form] | None) -> list[Form]:
    """The conditions that bound one dim; the others are applied to what is loaded."""
    return [c for c in conditions or [] if sum(1 for s in c.strides if s) <= 1]


def _is_zero(value: SSAValue) -> bool:
    owner: Any = value.owner
    if isinstance(owner, Operation) and owner.name == "tt.splat":
        return _is_zero(owner.operands[0])
    if not isinstance(owner, Operation) or owner.name != "arith.constant":
        return False
    attr = owner.properties["value"]
    if isinstance(attr, FloatAttr | IntegerAttr):
        return bool(attr.value.data == 0)
    return isinstance(attr, DenseIntOrFPElementsAttr) and attr.is_splat() and attr.get_values()[0] == 0


def _fetch(op: Operation, tile: _Tile, address: Address, wanted: Attribute) -> SSAValue:
    """Loads a tile as a value of a type: a tensor, or a scalar."""
    text, name, kind = tile.make()
    shape = "x".join(map(str, tile.shape))
    loaded = text.name(f"ktdp.load {name} : {kind} -> tensor<{shape}x{address.element}>")
    element = wanted.element_type if isinstance(wanted, TensorType) else wanted
    if element != address.element:  # truth values, which Triton reads as bytes
        loaded = text.name(f"arith.extui {loaded} : tensor<{shape}x{address.element}> to tensor<{shape}x{element}>")
    if not isinstance(wanted, TensorType):
        text.name(f"tensor.extract {loaded}[{text.number(0)}] : tensor<{shape}x{element}>")
    return splice.before(op, "\n".join(text.lines), text.values)[0]


def _selected(op: Operation, mask: SSAValue, value: SSAValue, other: SSAValue) -> SSAValue:
    kind = f"{mask.type}, {value.type}" if isinstance(mask.type, TensorType) else str(value.type)
    values = {"mask": mask, "value": value, "other": other}
    return splice.before(op, f"%chosen = arith.select %mask, %value, %other : {kind}", values)[0]


def _store(op: Operation) -> None:
    address = address_of(op.operands[0], op)
    value = op.operands[1]
    mask = op.operands[2] if len(op.operands) > 2 else None
    _put(op, address, value, mask)
    splice.erase(op)


def _put(op: Operation, address: Address, value: SSAValue, mask: SSAValue | None) -> None:
    shape = shape_of(value.type)
    _check_places(op, address.offset, shape)
    conditions = conditions_of(mask) if mask is not None else []
    if mask is not None and not _bounds_tile(mask):  # programs run one by one, so that nobody writes in between
        _check_order(op)
        old = _fetch(op, _Tile(op, address, shape, _boxed(conditions)), address, value.type)
        value = _selected(op, mask, value, old)
    text, name, kind = _Tile(op, address, shape, _boxed(conditions)).make()
    what, element = text.value(value), value.type.element_type if isinstance(value.type, TensorType) else value.type
    sizes = "x".join(map(str, shape or (1,)))
    if not shape:
        what = text.name(f"tensor.splat {what} : tensor<1x{element}>")
    if element != address.element:
        what = text.name(f"arith.trunci {what} : tensor<{sizes}x{element}> to tensor<{sizes}x{address.element}>")
    text.lines.append(f"ktdp.store {what}, {name} : tensor<{sizes}x{address.element}>, {kind}")
    splice.before(op, "\n".join(text.lines), text.values)


def _check_order(op: Operation) -> None:
    """Whether programs run one by one is decided before scalars are wrapped, and must still hold."""
    if linear.cores(op) > 1:
        raise refusal(op, "a mask of numbers that may leave 32 bits; compare numbers of int64")


def _check_places(op: Operation, offset: Form, shape: tuple[int, ...]) -> None:
    """Two positions of a tile that share a place would leave it open which of them is stored."""
    for d, size in enumerate(shape):
        moves = offset.strides[d] != 0 or any(digit.strides[d] for _, digit in offset.digits)
        if size > 1 and not moves:
            raise refusal(op, f"all {size} positions along dim {d} of the tile are written to one place; reduce first")


# -- atomic additions -------------------------------------------------------------------------------------------------

_ADDS = {"fadd": "arith.addf", "add": "arith.addi", "max": "arith.maxsi", "min": "arith.minsi"}


def _atomic(op: Operation) -> None:
    """Programs run one after the other, so that reading, combining and writing is one step."""
    kind = op.attributes["kind"].data.split()[0]  # type: ignore[attr-defined]
    if op.results[0].uses:
        raise refusal(op, "the old value that an atomic operation gives; only its effect is there")
    if kind not in _ADDS:
        raise refusal(op, f"atomic {kind}; the card has {', '.join(_ADDS)}")
    pointer, value, mask = op.operands
    address = address_of(pointer, op)
    shape = shape_of(value.type)
    conditions = conditions_of(mask)
    old = _fetch(op, _Tile(op, address, shape, _boxed(conditions)), address, value.type)
    text = f"%new = {_ADDS[kind]} %old, %value : {value.type}"
    (new,) = splice.before(op, text, {"old": old, "value": value})
    _put(op, address, new, mask)
    splice.erase(op)


# -- descriptors ------------------------------------------------------------------------------------------------------


def _descriptor(op: Operation) -> tuple[Address, list[Form]]:
    """Where the block at these offsets lies, and what bounds it: the shape of the described tensor."""
    made = op.operands[0].owner
    if not isinstance(made, Operation) or made.name != "tt.make_tensor_descriptor":
        raise refusal(op, "a descriptor made on the host, or one that a loop carries; make it in the kernel")
    rank = (len(made.operands) - 1) // 2
    sizes, strides = made.operands[1 : 1 + rank], made.operands[1 + rank :]
    if made.attributes.get("padding") is not None and "nan" in str(made.attributes["padding"]).lower():
        raise refusal(op, "padding with NaN; the card pads with 0")
    address = address_of(made.operands[0], op)
    scalar, steps, conditions = address.offset.scalar, [], []
    for d in range(rank):
        start, size, stride = (form_of(v) for v in (op.operands[1 + d], sizes[d], strides[d]))
        assert start is not None and size is not None and stride is not None
        if not stride.scalar.is_const:
            raise refusal(op, "a descriptor whose strides differ between programs; pass them as arguments")
        scalar = scalar + start.scalar.scaled(stride.scalar.const)
        steps.append(stride.scalar.const)
        place = [0] * rank
        place[d] = -1
        conditions.append(Form(size.scalar - start.scalar - Linear(1), tuple(place)))
        place = [0] * rank
        place[d] = 1
        conditions.append(Form(start.scalar, tuple(place)))
    return Address(address.base, Form(scalar, tuple(steps)), address.element), conditions


def _descriptor_load(op: Operation) -> None:
    address, conditions = _descriptor(op)
    kind = op.results[0].type
    block = op.operands[0].type.block  # type: ignore[attr-defined]
    if shape_of(kind) != shape_of(block):
        raise refusal(op, "a block that is loaded with another shape; reshape it after the load")
    splice.replace(op, [_fetch(op, _Tile(op, address, shape_of(kind), conditions), address, kind)])


def _descriptor_store(op: Operation) -> None:
    address, conditions = _descriptor(op)
    value = op.operands[-1]
    text, name, kind = _Tile(op, address, shape_of(value.type), conditions).make()
    text.lines.append(f"ktdp.store {text.value(value)}, {name} : {value.type}, {kind}")
    splice.before(op, "\n".join(text.lines), text.values)
    splice.erase(op)
