# SPDX-License-Identifier: Apache-2.0
"""Places that are computed while the program runs: read from memory, or no sum of positions.

They are put together as 32-bit numbers, one for each element along the dims that they depend on, in the scratchpad;
an access reads them there as the coordinate of one more dim of its view. Elements that a mask leaves out get a number
of their own: a place that exists for a load, one that does not for a store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, IntegerType, TensorType, i32, i64
from xdsl.ir import Attribute, Operation, SSAValue

from torch_spyre.triton.lowering import linear
from torch_spyre.triton.lowering.accesses.ktir_lines import Text
from torch_spyre.triton.lowering.linear import Leaf, Linear, shape_of
from torch_spyre.triton.lowering.ttir_ops import BroadcastOp, MakeRangeOp, ReshapeOp, SplatOp, TransOp


def split(scalar: Linear) -> tuple[Linear, list[tuple[Linear, Leaf]]]:
    """What is known of a scalar when a program starts, and what is read from memory as factors and leaves."""
    known: dict[tuple[SSAValue, ...], int] = {}
    read = []
    for monomial, count in scalar.terms.items():
        first = next((value for value in monomial if linear.from_memory(Linear.of(value))), None)
        if first is None:
            known[monomial] = count
            continue
        rest = list(monomial)
        rest.remove(first)
        factor = Linear(0, {tuple(rest): count}) if rest else Linear(count)
        read.append((factor, Leaf(first, ())))
    return Linear(scalar.const, known), read


def positions(op: Operation, dim: int, shape: Sequence[int]) -> Leaf:
    """0, 1, 2, … along a dim of a tile."""
    ends: dict[str, Attribute] = {"start": IntegerAttr(0, i32), "end": IntegerAttr(shape[dim], i32)}
    value = _made(op, MakeRangeOp, [], TensorType(i32, [shape[dim]]), ends)
    return Leaf(value, tuple(0 if d == dim else None for d in range(len(shape))))


class Places:
    """The numbers of one access over some dims of its tile."""

    def __init__(self, op: Operation, text: Text, shape: Sequence[int], leaves: Iterable[Leaf]) -> None:
        self._op = op
        self._text = text
        self._dims = [d for d in range(len(shape)) if any(leaf.dims and leaf.depends_on(d) for leaf in leaves)]
        self._shape = tuple(shape[d] for d in self._dims) or (1,)
        self._tensor = f"tensor<{'x'.join(map(str, self._shape))}xi32>"

    def number(self, value: int) -> str:
        return self._text.name(f"arith.constant dense<{value}> : {self._tensor}")

    def sum(self, scalar: Linear, leaves: Sequence[tuple[Linear, Leaf]]) -> str:
        total = None
        for factor, leaf in leaves:
            term = self._spread(leaf)
            if factor != Linear(1):
                term = self._text.name(f"arith.muli {term}, {self._scalar(factor)} : {self._tensor}")
            total = term if total is None else self._text.name(f"arith.addi {total}, {term} : {self._tensor}")
        if total is None:
            return self._scalar(scalar)
        if scalar == Linear():
            return total
        return self._text.name(f"arith.addi {total}, {self._scalar(scalar)} : {self._tensor}")

    def where(self, conditions: Iterable[Leaf], value: str, otherwise: int) -> str:
        """`value` where all conditions hold."""
        kinds = f"{self._tensor.replace('i32', 'i1')}, {self._tensor}"
        for condition in conditions:
            truth = self._spread(condition)
            value = self._text.name(f"arith.select {truth}, {value}, {self.number(otherwise)} : {kinds}")
        return value

    def stored(self, value: str) -> tuple[str, str]:
        """Puts the numbers into the scratchpad; gives the coordinate that reads them, and the type of their view."""
        text = self._text
        zero = text.number(0)
        points = ", ".join(f"d{d} >= 0, -d{d} + {size - 1} >= 0" for d, size in enumerate(self._shape))
        dims = ", ".join(f"d{d}" for d in range(len(self._shape)))
        sizes, steps, step = "x".join(map(str, self._shape)), [], 1
        for size in reversed(self._shape):
            steps.append(step)
            step *= size
        kind, tile = f"memref<{sizes}xi32>", f"!ktdp.access_tile<{sizes}xindex>"
        view = text.name(
            f"ktdp.construct_memory_view {zero}, sizes: [{', '.join(map(str, self._shape))}], "
            f"strides: [{', '.join(map(str, reversed(steps)))}] {{coordinate_set = affine_set<({dims}) : ({points})>, "
            f"memory_space = #ktdp.memory_space<ct_local>}} : {kind}"
        )
        made = text.name(
            f"ktdp.construct_access_tile {view}[{', '.join([zero] * len(self._shape))}] {{access_tile_set = "
            f"affine_set<({dims}) : ({points})>, access_tile_order = affine_map<({dims}) -> ({dims})>}} "
            f": {kind} -> {tile}"
        )
        text.lines.append(f"ktdp.store {value}, {made} : {self._tensor}, {tile}")
        return f"ind({view}[{', '.join(f'%p{d}' for d in self._dims) or '0'}])", kind

    def _scalar(self, form: Linear) -> str:
        """A scalar for all elements. What is read from memory is multiplied by the vector unit."""
        known, read = split(form)
        total = None
        if known != Linear() or not read:
            if known.is_const:
                total = self.number(known.const)
            else:
                word = self._text.name(f"arith.index_cast {self._text.sum(known)} : index to i32")
                total = self._text.name(f"tensor.splat {word} : {self._tensor}")
        for factor, leaf in read:
            product = self._text.name(f"arith.muli {self._spread(leaf)}, {self._scalar(factor)} : {self._tensor}")
            total = product if total is None else self._text.name(f"arith.addi {total}, {product} : {self._tensor}")
        assert total is not None
        return total

    def _spread(self, leaf: Leaf) -> str:
        """A leaf over the dims of these numbers."""
        value = leaf.value
        if not isinstance(value.type, TensorType):
            if value.type == linear.INDEX:
                return self._text.name(f"tensor.splat {self._narrowed(value)} : {self._tensor}")
            value = _made(self._op, SplatOp, [value], TensorType(value.type, self._shape))
        else:
            given = shape_of(value.type)
            wanted = [leaf.dims[d] for d in self._dims]
            order = [d for d in wanted if d is not None]
            order = [*order, *(d for d in range(len(given)) if d not in order)]
            element = value.type.element_type
            if order != sorted(order):
                kind = TensorType(element, [given[d] for d in order])
                value = _made(self._op, TransOp, [value], kind, {"order": DenseArrayBase.from_list(i32, order)})
            thin = [1 if d is None else given[d] for d in wanted] or [1]
            if tuple(thin) != shape_of(value.type):
                value = _made(self._op, ReshapeOp, [value], TensorType(element, thin))
            if tuple(thin) != self._shape:
                value = _made(self._op, BroadcastOp, [value], TensorType(element, self._shape))
        element = value.type.element_type  # type: ignore[attr-defined]
        if isinstance(element, IntegerType) and element.width.data not in (1, 32):
            narrow = self._tensor.replace("i32", str(element))
            cast = "trunci" if element == i64 else "extsi"
            return self._text.name(f"arith.{cast} {self._text.value(value)} : {narrow} to {self._tensor}")
        return self._text.value(value)

    def _narrowed(self, value: SSAValue) -> str:
        return self._text.name(f"arith.index_cast {self._text.value(value)} : index to i32")


def _made(before: Operation, kind: Any, values: list[SSAValue], result: TensorType, attributes: Any = None) -> SSAValue:
    made = kind.made(values, [result], attributes)
    made.location = before.location
    block = before.parent_block()
    assert block is not None
    block.insert_op_before(made, before)
    found: SSAValue = made.results[0]
    return found
