# SPDX-License-Identifier: Apache-2.0
"""Loads and stores become views, access tiles and transfers of KTIR.

Each dim of a tile is a dim of the view, with the stride that its positions have in memory. Conditions of the mask on
one dim bound the view along it: outside, a load reads 0 and a store writes nothing. Where a mask ends at a tensor's
end, the tile's own start is its anchor, so that the view is the tensor and has the same shape for all programs. What
is left of the address is the view's offset. A remainder or quotient of positions is one more dim of the view, and so is
whatever is read from memory or computed (`indexed_places`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr, ModuleOp, TensorType
from xdsl.ir import Attribute, Operation, SSAValue

from torch_spyre.triton.lowering import linear, locks, splice
from torch_spyre.triton.lowering.accesses import indexed_places
from torch_spyre.triton.lowering.accesses.addresses import Address, Mask, address_of, form_of, is_certain, mask_of
from torch_spyre.triton.lowering.accesses.indexed_places import Places
from torch_spyre.triton.lowering.accesses.ktir_lines import Text
from torch_spyre.triton.lowering.known_integers import the_function
from torch_spyre.triton.lowering.linear import Form, Leaf, Linear, shape_of
from torch_spyre.triton.lowering.refusals import LengthNeeded, refusal

_STORED = ("f16", "bf16", "f32", "i1", "i8", "i16", "i32", "i64", "f8E4M3FN", "f8E5M2")


def run(module: ModuleOp, careful: bool = False) -> None:
    """With `careful`, places under a mask that is no box are computed one by one, and only those that the mask lets
    through: the box around them may reach out of the tensor."""
    for op in list(module.walk()):
        if op.name == "arith.select":
            _drop_choice(op)
        elif op.name == "tt.load":
            _load(op, careful)
        elif op.name == "tt.store":
            _store(op, careful)
        elif op.name == "tt.atomic_rmw":
            _atomic(op)
        elif op.name == "tt.descriptor_load":
            _descriptor_load(op)
        elif op.name == "tt.descriptor_store":
            _descriptor_store(op)


def needs_order(module: ModuleOp) -> bool:
    """True if programs must run one after the other: they read what others have written."""
    ordered = locks.ORDERED in the_function(module).attributes
    return ordered or any(op.name in ("tt.atomic_rmw", "tt.descriptor_reduce") for op in module.walk())


# -- the box of a tile ------------------------------------------------------------------------------------------------


@dataclass
class _Box:
    """Conditions on one dim: ``position >= each of lows``, ``position <= each of highs``."""

    lows: list[Linear] = field(default_factory=list)
    highs: list[Linear] = field(default_factory=list)


def _is_box(form: Form) -> bool:
    """True for a condition that bounds a dim from above, or from below by a number."""
    used = [stride for stride in form.strides if stride]
    return bool(used) and (used[0] < 0 or form.scalar.is_const)


def _dims_of(form: Form) -> set[int]:
    return {d for d, stride in enumerate(form.strides) if stride}


class _Tile:
    """The tile of one load or store."""

    def __init__(self, op: Operation, address: Address, shape: tuple[int, ...], mask: Mask, stores: bool) -> None:
        self._op = op
        self._text = Text()
        self._address = address
        self.shape = shape or (1,)
        self._strides = address.offset.strides or (0,)
        self._rest, read = indexed_places.split(address.offset.scalar)
        self._leaves = [*read, *address.offset.leaves]
        self._stores = stores
        self.indexed = bool(self._leaves or (stores and mask.others))
        self._conditions = list(mask.others) if self.indexed else []
        self._boxes = [_Box() for _ in self.shape]
        self._scalars: list[Linear] = []
        open_dims = self._open_dims(mask) if self._leaves else set()
        for form, truth in mask.bounds:
            if self.indexed and (not _is_box(form) or _dims_of(form) & open_dims):
                self._conditions.append(truth)
            else:
                self._note(form)
        self.may_meet = any(leaf.dims and any(d is not None for d in leaf.dims) for _, leaf in self._leaves)
        self._moved = {d for d in open_dims if self._strides[d]}
        self._leaves += [
            (Linear(self._strides[d]), indexed_places.positions(op, d, self.shape)) for d in sorted(self._moved)
        ]
        if self._moved and stores and address.offset.digits:
            raise refusal(op, "a store to places from memory and to remainders of positions under one mask; split it")
        self._caps = [0] * len(self.shape)  # one past the greatest coordinate
        self._dims = [self._dim(d) for d in range(len(self.shape))]

    def bounds_all(self, mask: Mask) -> bool:
        """True if what the mask leaves out is outside of the view."""
        return not mask.others and not self._conditions

    @property
    def drops_elements(self) -> bool:
        """True if elements that are not stored have a place that does not exist."""
        return self._stores and bool(self._conditions)

    def _open_dims(self, mask: Mask) -> set[int]:
        """Dims of which only the running program knows how far positions go. Their positions are part of the places:
        a view would reach past the end of the memory where the mask ends before."""
        found = {d for leaf in mask.others for d in range(len(self.shape)) if leaf.dims and leaf.depends_on(d)}
        return found.union(
            *(_dims_of(form) for form, _ in mask.bounds if not _is_box(form) or not form.scalar.is_const)
        )

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
        self._caps[dim] = max(0, min(numbers, default=0))
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

    def make(self) -> tuple[Text, str, str]:
        """The text that makes the tile, the tile's name and its type."""
        text = self._text
        digits = self._address.offset.digits
        element = self._address.element
        if str(element) not in _STORED:
            raise refusal(self._op, f"memory of {element}; the card stores {', '.join(_STORED)}")
        sizes, strides, low, anchors = [], [], [], []
        rest = Linear() if self._leaves else self._rest
        offset = text.sum(rest) if not rest.is_const or rest.const else ""
        subscripts = []
        for d, (anchor, start, end) in enumerate(self._dims):
            if d in self._moved or ((digits or self.indexed) and self._is_free(d)):
                continue
            if isinstance(start, str):  # coordinates count from the first one that exists
                moved = text.name(f"arith.muli {start}, {text.number(self._strides[d])} : index")
                offset = moved if not offset else text.name(f"arith.addi {offset}, {moved} : index")
                end = text.name(f"arith.subi {text.number(end) if isinstance(end, int) else end}, {start} : index")
                place = text.number(0) if anchor.is_const and not anchor.const else text.sum(anchor)
                anchors.append(text.name(f"arith.subi {place}, {start} : index"))
                low.append(0)
            else:
                anchors.append(text.sum(anchor))
                low.append(start)
            sizes.append(end)
            strides.append(self._strides[d])
            subscripts.append(f"({anchors[-1]} + %p{d})" if digits or self.indexed else anchors[-1])
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
        indices = []
        if self.indexed:
            at, number, size = self._place(at, sizes_of_digits=[self._digit_size(digit) for _, digit in digits])
            subscript, index = number
            indices.append(index)
            subscripts.insert(0, subscript)
            sizes.insert(0, size)
            strides.insert(0, 1)
            low.insert(0, 0)
        view, kind = _view(text, at, sizes, strides, low, element)
        return (text, *_access(text, view, kind, subscripts, self.shape, bool(digits) or self.indexed, indices))

    def _place(self, at: str, sizes_of_digits: list[int]) -> tuple[str, tuple[str, str], int]:
        """Where the view begins, the coordinate of the computed places, and how many places there are."""
        text = self._text
        places = Places(self._op, text, self.shape, [*(leaf for _, leaf in self._leaves), *self._conditions])
        if not self._leaves:
            number = places.where(self._conditions, places.number(0), -1)
            return at, places.stored(number), 1
        length = self._address.length
        if length is None:
            raise LengthNeeded(str(refusal(self._op, "an address from memory, of a tensor whose length is not given")))
        steps = [
            (s, cap) for d, (s, cap) in enumerate(zip(self._strides, self._caps, strict=True)) if d not in self._moved
        ]
        steps += [
            (factor, size) for (factor, _), size in zip(self._address.offset.digits, sizes_of_digits, strict=True)
        ]
        ahead = sum(step * max(size - 1, 0) for step, size in steps if step > 0)
        back = -sum(step * max(size - 1, 0) for step, size in steps if step < 0)
        number = places.sum(self._rest - Linear(back), self._leaves)
        number = places.where(self._conditions, number, -1 if self._stores else 0)
        if back:
            at = text.name(f"arith.addi {at}, {text.number(back)} : index")
        exists = length - ahead - back
        return at, places.stored(number), exists if exists > 0 else length

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
    text: Text, at: str, sizes: list[Any], strides: list[int], low: list[Any], element: Attribute
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
    text: Text,
    view: str,
    kind: str,
    subscripts: list[str],
    shape: tuple[int, ...],
    indirect: bool,
    indices: Sequence[str] = (),
) -> tuple[str, str]:
    dims = ", ".join(f"d{d}" for d in range(len(shape)))
    rules = ", ".join(f"d{d} >= 0, -d{d} + {size - 1} >= 0" for d, size in enumerate(shape))
    points, order = f"affine_set<({dims}) : ({rules})>", f"affine_map<({dims}) -> ({dims})>"
    tile = f"!ktdp.access_tile<{'x'.join(map(str, shape))}xindex>"
    what = ", ".join(subscripts)
    if indirect:
        variables = ", ".join(f"%p{d}" for d in range(len(shape)))
        made = text.name(
            f"ktdp.construct_indirect_access_tile intermediate_variables({variables}) {view}[{what}] "
            f"{{variables_space_set = {points}, variables_space_order = {order}}} "
            f": {', '.join([kind, *indices])} -> {tile}"
        )
    else:
        made = text.name(
            f"ktdp.construct_access_tile {view}[{what}] {{access_tile_set = {points}, access_tile_order = {order}}} "
            f": {kind} -> {tile}"
        )
    return made, tile


# -- loads and stores -------------------------------------------------------------------------------------------------


def _load(op: Operation, careful: bool) -> None:
    mask = op.operands[1] if len(op.operands) > 1 else None
    other = op.operands[2] if len(op.operands) > 2 else None
    shape = shape_of(op.results[0].type)
    address, parts = _place(op, mask, careful)
    tile = _Tile(op, address, shape, parts, stores=False)
    loaded = _fetch(op, tile, address, op.results[0].type)
    reads_zeros = tile.bounds_all(parts) and other is not None and _is_zero(other)
    if mask is not None and other is not None and not reads_zeros and not is_certain(parts, shape):
        loaded = _selected(op, mask, loaded, other)
    splice.replace(op, [loaded])


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


def _drop_choice(op: Operation) -> None:
    """A `where` whose condition holds at all positions."""
    shape = shape_of(op.operands[0].type)
    if shape and is_certain(mask_of(op.operands[0]), shape):
        splice.replace(op, [op.operands[1]])


def _selected(op: Operation, mask: SSAValue, value: SSAValue, other: SSAValue) -> SSAValue:
    kind = f"{mask.type}, {value.type}" if isinstance(mask.type, TensorType) else str(value.type)
    values = {"mask": mask, "value": value, "other": other}
    return splice.before(op, f"%chosen = arith.select %mask, %value, %other : {kind}", values)[0]


def _place(op: Operation, mask: SSAValue | None, careful: bool) -> tuple[Address, Mask]:
    parts = mask_of(mask)
    one_by_one = careful and bool(parts.others) and isinstance(op.operands[0].type, TensorType)
    if one_by_one:
        parts = Mask(others=(*parts.others, *(truth for _, truth in parts.bounds)))
    return address_of(op.operands[0], op, opaque=one_by_one), parts


def _store(op: Operation, careful: bool) -> None:
    value = op.operands[1]
    address, parts = _place(op, op.operands[2] if len(op.operands) > 2 else None, careful)
    _check_places(op, address.offset, shape_of(value.type))
    _put(op, address, value, parts)
    splice.erase(op)


def _put(op: Operation, address: Address, value: SSAValue, mask: Mask, adds: bool = False) -> None:
    shape = shape_of(value.type)
    tile = _Tile(op, address, shape, mask, stores=True)
    text, name, kind = tile.make()
    what, element = text.value(value), value.type.element_type if isinstance(value.type, TensorType) else value.type
    sizes = "x".join(map(str, shape or (1,)))
    if not shape:
        what = text.name(f"tensor.splat {what} : tensor<1x{element}>")
    if element != address.element:
        what = text.name(f"arith.trunci {what} : tensor<{sizes}x{element}> to tensor<{sizes}x{address.element}>")
    how = [word for word, used in (("accumulate", adds), ("masked", tile.drops_elements)) if used]
    words = f" {{{', '.join(how)}}}" if how else ""
    text.lines.append(f"ktdp.store {what}, {name}{words} : tensor<{sizes}x{address.element}>, {kind}")
    splice.before(op, "\n".join(text.lines), text.values)


def _places_differ(offset: Form, shape: tuple[int, ...]) -> bool:
    return all(size == 1 or _moves(offset, d) for d, size in enumerate(shape))


def _moves(offset: Form, d: int) -> bool:
    """True if positions along a dim have places of their own, as far as that is known before the program runs."""
    moves = offset.strides[d] != 0 or any(digit.strides[d] for _, digit in offset.digits)
    return moves or any(leaf.dims and leaf.depends_on(d) for _, leaf in offset.leaves)


def _check_places(op: Operation, offset: Form, shape: tuple[int, ...]) -> None:
    """Two positions of a tile that share a place would leave it open which of them is stored."""
    for d, size in enumerate(shape):
        if size > 1 and not _moves(offset, d):
            raise refusal(op, f"all {size} positions along dim {d} of the tile are written to one place; reduce first")


# -- atomic operations ------------------------------------------------------------------------------------------------

_COMBINED = {
    "fadd": "arith.addf",
    "add": "arith.addi",
    "max": "arith.maxsi",
    "min": "arith.minsi",
    "umax": "arith.maxui",
    "umin": "arith.minui",
    "and": "arith.andi",
    "or": "arith.ori",
    "xor": "arith.xori",
    "exch": "",
}


def _atomic(op: Operation) -> None:
    """Programs run one after the other, so that reading, combining and writing is one step."""
    kind = op.attributes["kind"].data.split()[0]  # type: ignore[attr-defined]
    if kind not in _COMBINED:
        raise refusal(op, f"atomic {kind}; the card has {', '.join(_COMBINED)}")
    pointer, value, mask = op.operands
    address = address_of(pointer, op)
    shape = shape_of(value.type)
    tile = _Tile(op, address, shape, mask_of(mask), stores=False)
    used = bool(op.results[0].uses)
    if (tile.may_meet or not _places_differ(address.offset, shape)) and (used or kind not in ("fadd", "add")):
        what = "the old values" if used else f"atomic {kind}"
        raise refusal(op, f"{what} of positions that may share a place; only their sum is there, use tl.atomic_add")
    if kind in ("fadd", "add") and not used:
        _put(op, address, value, mask_of(mask), adds=True)
        splice.erase(op)
        return
    old = _fetch(op, tile, address, value.type)
    new = value
    if kind != "exch":
        text = f"%new = {_COMBINED[kind]} %old, %value : {value.type}"
        (new,) = splice.before(op, text, {"old": old, "value": value})
    _check_places(op, address.offset, shape)
    _put(op, address, new, mask_of(mask))
    splice.replace(op, [old])


# -- descriptors ------------------------------------------------------------------------------------------------------


def _descriptor(op: Operation) -> tuple[Address, Mask]:
    """Where the block at these offsets is, and what bounds it: the shape of the described tensor."""
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
    nowhere = Leaf(op.operands[1], (None,) * rank)
    bounds = Mask(tuple((form, nowhere) for form in conditions))
    return replace(address, offset=Form(scalar, tuple(steps))), bounds


def _descriptor_load(op: Operation) -> None:
    address, conditions = _descriptor(op)
    kind = op.results[0].type
    block = op.operands[0].type.block  # type: ignore[attr-defined]
    if shape_of(kind) != shape_of(block):
        raise refusal(op, "a block that is loaded with another shape; reshape it after the load")
    splice.replace(op, [_fetch(op, _Tile(op, address, shape_of(kind), conditions, stores=False), address, kind)])


def _descriptor_store(op: Operation) -> None:
    address, conditions = _descriptor(op)
    value = op.operands[-1]
    text, name, kind = _Tile(op, address, shape_of(value.type), conditions, stores=True).make()
    text.lines.append(f"ktdp.store {text.value(value)}, {name} : {value.type}, {kind}")
    splice.before(op, "\n".join(text.lines), text.values)
    splice.erase(op)
