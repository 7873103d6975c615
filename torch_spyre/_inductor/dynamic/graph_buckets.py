# SPDX-License-Identifier: Apache-2.0
"""A recipe played for some sizes: one TileGraph that is right for each of them.

For exact sizes it is the graph that a compilation for them gives. For a bucket, loops run over the capacity of their
size, so that points past the true size compute nonsense; nobody may see it. An access keeps to nonsense with nonsense
(`space`), reductions take their neutral element there, and what depends on the size as a number reads it from a launch
scalar. Whatever is not proved to be so raises NotBucketed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch

from torch_spyre._inductor.dynamic.recipe import KernelInput, Player, Recipe, Step, decode_expr
from torch_spyre._inductor.dynamic.space import (
    NotBucketed,
    Part,
    Shape,
    Sizes,
    parts,
    quotient,
    reach,
    split,
    without_digits,
)
from torch_spyre._inductor.tilegraph import positions
from torch_spyre._inductor.tilegraph.build import Builder, Computed, Outside
from torch_spyre._inductor.tilegraph.carried import UNDEFINED, Ranking, Windows
from torch_spyre._inductor.tilegraph.expr import Expr, cast, const, dtype_name, is_float
from torch_spyre._inductor.tilegraph.graph import Buffer, Const, Load, Position
from torch_spyre._inductor.tilegraph.index import Index
from torch_spyre._inductor.tilegraph.tracing import INDIRECT, Tracer, symbol
from torch_spyre.ir.plan.tileops import Term
from torch_spyre.optable import Kind

_LOWEST, _HIGHEST = -(2**31), 2**31 - 1
_SCALAR = "size"  # begin of the names of launch scalars that hold a function of sizes


class RecipeBuilder(Builder):
    """Plays steps with symbolic sizes; buffers get the sizes and strides of their capacity."""

    def __init__(self, recipe: Recipe, sizes: Sizes) -> None:
        super().__init__(recipe.name, self._resolve)
        self.given = {g.name: g for g in recipe.given}
        self.values = {name: sympy.Integer(value) for name, value in sizes.values.items()}
        self.space, self.shapes, self.joined, self.filled = sizes.space, sizes.shapes, sizes.joined, sizes.filled
        self.tracer = Tracer if sizes.exact else BucketTracer
        self.safe = set() if sizes.exact else pieces(recipe)  # steps whose nonsense is written over
        self.scalars: dict[str, sympy.Expr] = {}
        self.step: Step | None = None
        self.exact: dict[sympy.Expr, sympy.Expr] = {}  # loop variable of the present step -> its size

    def _resolve(self, name: str) -> Outside:
        g = self.given[name]
        if g.scalar:
            return getattr(torch, g.dtype), (), (), True
        return getattr(torch, g.dtype), *self._stored_as(g), False

    def _stored_as(self, owner: KernelInput | Step) -> tuple[Sequence[Any], Sequence[Any]]:
        """Size and stride of a buffer."""
        if owner.name in self.shapes:
            return self.shapes[owner.name].room, self.shapes[owner.name].room_stride
        size, stride = ([decode_expr(c, self.values) for c in codes] for codes in (owner.size, owner.stride))
        return size, stride

    def play(self, step: Step) -> None:
        self.step, self.exact = step, {}
        names: dict[str, sympy.Expr] = dict(self.values)
        extents = self._loops("d", step.ranges, names, _kept_whole(step))
        reduced = self._loops("r", step.reduction_ranges, names, set(range(len(step.reduction_ranges))))
        place = (*(((), ()) if step.target else self._stored_as(step)), step.target)
        run, kind = Player(step.ops, names), Kind(step.kind)
        self.add(Computed(step.name, kind, extents, reduced, step.dtype, *place, step.origin, step.hints, run))

    def _loops(self, letter: str, codes: Sequence[Any], names: dict[str, sympy.Expr], whole: set[int]) -> list[int]:
        """Extents of loops, a joined dim being several. `names` gets what the variables of the body are."""
        extents: list[int] = []
        for i, code in enumerate(codes):
            size = sympy.expand(decode_expr(code, self.values))
            total = sympy.Integer(0)
            for part in [size] if i in whole else self.joined.get(size, [size]):
                variable = symbol(f"{letter}{len(extents)}")
                self.exact[variable] = part
                extents.append(self.space.extent(part))
                total = total * part + variable
            names[f"{letter}{i}"] = sympy.expand(total)
        return extents

    def scalar(self, expr: sympy.Expr) -> Expr:
        """A function of the sizes, which each call computes and passes."""
        dtype = "int64" if expr.is_integer else "float32"
        name = next((n for n, e in self.scalars.items() if e == expr), None)
        if name is None:
            name = f"{_SCALAR}{len(self.scalars)}"
            self.scalars[name] = expr
            self.buffers[name] = Buffer(name, dtype, (), (), "scalar")
            self.inputs.append(name)
        return Expr("load", dtype, leaf=Load(name, Index()))


class BucketTracer(Tracer):
    """Tracer of a body whose indices and values hold size symbols."""

    builder: RecipeBuilder

    def __init__(self, builder: Builder, sizes: dict[str, int], reading: str) -> None:
        super().__init__(builder, sizes, reading)
        assert isinstance(builder, RecipeBuilder) and builder.step is not None
        self.builder, self.space, self.step = builder, builder.space, builder.step
        self.exact = dict(builder.exact)  # loop variable or index value -> number of values it takes

    # Sizes as numbers

    def _sizes_in(self, expr: sympy.Expr) -> bool:
        return bool(expr.free_symbols & set(self.space.low))

    def _lifted(self, expr: sympy.Expr, bound: dict[str, Expr]) -> sympy.Expr:
        """The expression with each part that depends on sizes only as a symbol, whose value `bound` gets."""
        if not self._sizes_in(expr):
            return expr
        if expr.free_symbols <= set(self.space.low):
            name = f"#{len(bound)}"
            bound[name] = self.builder.scalar(expr)
            return symbol(name)
        if isinstance(expr, (sympy.Add, sympy.Mul)):
            own = [a for a in expr.args if a.free_symbols <= set(self.space.low)]
            rest = [self._lifted(a, bound) for a in expr.args if a not in own]
            return expr.func(self._lifted(expr.func(*own), bound), *rest)
        return expr.func(*(self._lifted(a, bound) for a in expr.args))

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Expr:
        expr = without_digits(sympy.sympify(expr), self.space, self.exact)
        if not self._sizes_in(expr):
            return super().index_expr(expr, dtype)
        bound = {n: v for n, (v, _) in self.indirect.items()}
        lifted = self._lifted(expr, bound)
        value = bound[str(lifted)] if str(lifted) in bound else positions.to_expr(lifted, self.sizes, bound)
        return self.builder.cast(value, dtype_name(dtype))

    value_expr = index_expr

    # Nonsense

    def _ragged(self) -> list[sympy.Expr]:
        """Loop variables that run past their size."""
        return [v for v, n in self.exact.items() if not n.is_Integer and not str(v).startswith(INDIRECT)]

    def _valid(self, variables: Sequence[sympy.Expr]) -> Expr | None:
        """Are these variables below their sizes?"""
        holds: Expr | None = None
        for v in variables:
            below = (positions.position(Index((self._term(v),))), self.builder.scalar(self.exact[v]))
            test = Expr("lesserthan", "bool", (below[0], cast(below[1], "int32")))
            holds = test if holds is None else Expr("mul", "bool", (holds, test))
        return holds

    def _term(self, variable: sympy.Expr) -> Any:
        return Term(str(variable))

    def _sensible(self, x: Expr, filler: Expr, among: Sequence[sympy.Expr]) -> Expr:
        """x where the variables that it depends on are below their sizes, else the filler."""
        used = _dims(x)
        valid = self._valid([v for v in among if str(v) in used])
        return x if valid is None else Expr("where3", x.dtype, (valid, x, filler))

    def device_assert_async(self, condition: Expr, message: str) -> Expr:
        """Nonsense need not hold what is asserted of values."""
        condition = cast(condition, "bool")
        return super().device_assert_async(self._sensible(condition, const(True, "bool"), self._ragged()), message)

    # Accesses

    def _extents(self, atoms: Sequence[sympy.Expr]) -> tuple[dict[Any, sympy.Expr], dict[Any, int]]:
        """How many values each takes: truly, and with the nonsense."""
        exact, room = {}, {}
        for atom in atoms:
            if atom.is_Symbol:
                exact[atom] = self.exact[atom]
                room[atom] = self._ranges()[str(atom)]
                continue
            digits = type(atom).__name__
            base, *numbers = atom.args
            if not base.is_Symbol or not all(n.is_Integer for n in numbers):
                raise NotBucketed(f"the index {atom} is no digit of a loop variable")
            count = -(-self._ranges()[str(base)] // int(numbers[0]))
            if digits == "ModularIndexing":
                count = min(count, int(numbers[1]))
            elif digits not in ("FloorDiv", "CleanDiv") or not self.exact[base].is_Integer:
                raise NotBucketed(f"the index {atom} is a digit of a size that varies")
            exact[atom], room[atom] = sympy.Integer(count), count
        return exact, room

    def _translated(self, name: str, index: sympy.Expr, writes: bool = False) -> sympy.Expr:
        """The index into the buffer as its capacity has it; `name` is the buffer's own."""
        shape, index = self.builder.shapes[name], without_digits(sympy.sympify(index), self.space, self.exact)
        exact, room = self._extents(list(split(index, self.space.low)[0]))
        found = parts(shape, index, self.space, exact)
        if writes:
            self._check_written(shape, found)
        total = sympy.Integer(0)
        for number, part in enumerate(found):
            base, limit = shape.levels[number].room_base, shape.level_room(number)
            low, high = reach(part, room)
            here = sum(q * a for a, q in part.terms.items())
            if not part.const.is_Integer:
                total += base * self._moving(part, limit, room, writes)
            elif low + part.const < 0 or high + part.const >= limit:
                raise NotBucketed(f"the index {index} leaves the room of {name} ({shape.room})")
            else:
                total += base * (here + part.const)
        return total

    def _moving(self, part: Part, limit: int, room: Mapping[Any, int], writes: bool) -> sympy.Expr:
        """A part that begins at a place which depends on the sizes: that place is the value of a launch scalar."""
        if self.masks:
            raise NotBucketed("a masked access begins at a place that depends on a size")
        ragged = set(self._ragged())
        moves = {a: q for a, q in part.terms.items() if q < 0 or a.free_symbols & ragged}
        unit = math.gcd(*(int(c) for c in sympy.Poly(part.const, *self.space.low).coeffs()), *moves.values())
        rest = Part({a: q for a, q in part.terms.items() if a not in moves})
        count = (limit - 1 - reach(rest, room)[1]) // unit + 1
        value = cast(self.builder.scalar(sympy.expand(part.const / unit)), "int32")
        if moves:
            values = {n: v for n, (v, _) in self.indirect.items()}
            steps = positions.to_expr(sum(q // unit * a for a, q in moves.items()), self.sizes, values)
            value = Expr("add", "int32", (steps, value))
        if moves and writes:
            most = self.space.most(part.const)
            if self.step.name not in self.builder.safe or most is None or most + reach(part, room)[1] >= limit:
                raise NotBucketed("a store of a size that varies begins at a place that depends on a size")
        elif moves:
            value = Expr("maximum", "int32", (value, const(0, "int32")))
            value = Expr("minimum", "int32", (value, const(count - 1, "int32")))
        name = f"{INDIRECT}{len(self.indirect)}"
        self.indirect[name] = (value, count)
        self.exact[symbol(name)] = sympy.Integer(count)
        return sum(q * a for a, q in rest.terms.items()) + unit * symbol(name)

    def _check_written(self, shape: Shape, found: Sequence[Part]) -> None:
        """Nonsense is written past the size of the buffer only, or where others write later."""
        if self.step.name in self.builder.safe:
            return
        for variable in self._ragged():
            if str(variable).startswith("r") and self.step.kind == Kind.REDUCTION.value:
                continue
            if not any(self._fills(shape, number, part, variable) for number, part in enumerate(found)):
                raise NotBucketed(f"{self.reading} writes a part of a buffer whose size varies")

    def _fills(self, shape: Shape, number: int, part: Part, variable: sympy.Expr) -> bool:
        """Is the variable by itself the coordinate of a dim of its size?"""
        step = part.terms.get(variable)
        if step is None:
            return False
        rest = Part({a: q for a, q in part.terms.items() if a != variable})
        exact, _ = self._extents(list(rest.terms))
        low, high = reach(rest, exact)
        inner = sympy.sympify(high + part.const)
        if low != 0 or not inner.is_Integer or not 0 <= inner < step:
            return False
        base = shape.levels[number].base
        return any(
            size == self.exact[variable] and quotient(stride, base) == step
            for size, stride in zip(shape.size, shape.stride, strict=True)
        )

    def load(self, name: str, index: sympy.Expr) -> Expr:
        buffer = self.builder.buffer(name)
        if buffer.kind == "scalar":
            return super().load(name, index)
        return super().load(name, self._translated(buffer.name, index))

    def store(self, name: str, index: sympy.Expr, value: Expr, mode: Any = None) -> None:
        found = sympy.sympify(index)
        if self._ragged() and (mode is not None or any(str(s).startswith(INDIRECT) for s in found.free_symbols)):
            raise NotBucketed(f"{self.reading} scatters values whose number varies")
        super().store(name, self._translated(self._target(), found, writes=True), value, mode)

    def store_reduction(self, name: str, index: sympy.Expr, value: Expr) -> None:
        super().store_reduction(name, self._translated(self._target(), index, writes=True), value)

    def _target(self) -> str:
        target = self.step.target
        return self.builder.buffer(target).name if target else self.step.name

    def indirect_indexing(self, x: Any, size: Any, check: bool = True, wrap_neg: bool = True) -> sympy.Expr:
        size = sympy.expand(sympy.sympify(size))
        if isinstance(x, sympy.Expr):
            return x
        if isinstance(x.leaf, Const):
            value = int(x.leaf.value)
            return value + size if value < 0 and wrap_neg else sympy.Integer(value)
        x, zero = cast(x, "int32"), const(0, "int32")
        if wrap_neg:
            length = cast(const(int(size), "int64") if size.is_Integer else self.builder.scalar(size), "int32")
            x = Expr("where3", "int32", (Expr("lesserthan", "bool", (x, zero)), Expr("add", "int32", (x, length)), x))
        x = self._sensible(x, zero, self._ragged())
        name = f"{INDIRECT}{len(self.indirect)}"
        self.indirect[name] = (x, self.space.room(size))
        self.exact[symbol(name)] = size
        return symbol(name)

    def inline_asm_elementwise(self, *inputs: Expr, asm: str, dtype: torch.dtype, **named: Any) -> Expr:
        if asm == UNDEFINED and self.builder.filled:
            return cast(const(0, "int32"), dtype_name(dtype))
        return super().inline_asm_elementwise(*inputs, asm=asm, dtype=dtype, **named)

    # Reductions

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: str, value: Any) -> Any:
        ragged = [v for v in self._ragged() if str(v).startswith("r")]
        if not ragged:
            return super().reduction(dtype, src_dtype, reduction_type, value)
        if not isinstance(value, Expr) or reduction_type not in _NEUTRAL:
            raise NotBucketed(f"{reduction_type} in {self.reading} along a size that varies")
        if reduction_type in ("sum", "prod") and is_float(value.dtype) and ragged != [symbol("r0")]:
            raise NotBucketed(f"{reduction_type} in {self.reading}: a size that varies is not the outer of its dims")
        if reduction_type == "dot":
            if value.dtype not in ("float16", "bfloat16", "float32"):
                raise NotBucketed(f"matmul of {value.dtype} along a size that varies")
            args = tuple(self._sensible(a, const(0.0, a.dtype), ragged) for a in value.args)
            value = Expr("dot", value.dtype, args)
        else:
            filler = const(_NEUTRAL[reduction_type](value.dtype), value.dtype)
            valid = self._valid(ragged)
            assert valid is not None
            value = Expr("where3", value.dtype, (valid, value, filler))
        return super().reduction(dtype, src_dtype, reduction_type, value)


def _kept_whole(step: Step) -> set[int]:
    """Dims that an operation needs as one: columns of a matmul, and all of those that it counts or sums windows of."""
    kinds = [op[2][2] for op in step.ops if op[1] == "reduction"]
    if any(Ranking.parse(kind) or Windows.parse(kind) for kind in kinds):
        return set(range(len(step.ranges)))
    return {len(step.ranges) - 1} if "dot" in kinds else set()


def _least(dtype: str) -> float | int | bool:
    return False if dtype == "bool" else -math.inf if is_float(dtype) else _LOWEST


def _greatest(dtype: str) -> float | int | bool:
    return True if dtype == "bool" else math.inf if is_float(dtype) else _HIGHEST


# What changes nothing: -0, because 0 + -0 is 0.
_NEUTRAL: dict[str, Callable[[str], float | int | bool]] = {
    "sum": lambda dtype: -0.0 if is_float(dtype) else 0,
    "prod": lambda dtype: 1.0 if is_float(dtype) else 1,
    "any": lambda dtype: False if dtype == "bool" else 0,
    "max": _least,
    "argmax": _least,
    "min": _greatest,
    "argmin": _greatest,
    "dot": lambda dtype: 0.0,
}


def _dims(x: Expr) -> set[str]:
    """The dims that a value depends on."""
    own = set(x.leaf.index.dims) if isinstance(x.leaf, (Load, Position)) else set()
    return own.union(*(_dims(a) for a in x.args))


# Pieces that are put together


def pieces(recipe: Recipe) -> set[str]:
    """Steps that write one after another the parts of a new buffer, from its begin to its end: what one writes past
    its own end belongs to those that follow."""
    steps = {s.name: s for s in recipe.steps}
    writers: dict[str, list[Step]] = {}
    for s in recipe.steps:
        if s.target in steps:
            writers.setdefault(s.target, []).append(s)
    found: set[str] = set()
    for name, written in writers.items():
        whole = steps[name]
        if _undefined(whole) and _in_order(whole, written) and not _read_between(recipe, name, written):
            found |= {s.name for s in written}
    return found


def _ops(ops: Sequence[Any]) -> Iterator[Any]:
    for op in ops:
        yield op
        if op[1] == "masked":
            yield from _ops(op[3]["body"])


def _undefined(step: Step) -> bool:
    return any(op[1] == "inline_asm_elementwise" and op[3].get("asm") == UNDEFINED for op in step.ops)


def _in_order(whole: Step, written: Sequence[Step]) -> bool:
    size, stride = ([sympy.expand(decode_expr(c, {})) for c in codes] for codes in (whole.size, whole.stride))
    start, along = sympy.Integer(0), None
    for step in written:
        ranges = [sympy.expand(decode_expr(c, {})) for c in step.ranges]
        if len(ranges) != len(size):
            return False
        differ = [i for i, (n, m) in enumerate(zip(ranges, size, strict=True)) if n != m]
        if len(differ) != 1 or along not in (None, differ[0]):
            return False
        along = differ[0]
        store = next(op for op in step.ops if op[1] == "store")
        place = sum(symbol(f"d{i}") * s for i, (s, n) in enumerate(zip(stride, ranges, strict=True)) if n != 1)
        if sympy.expand(decode_expr(store[2][1]["e"], {}) - place - start * stride[along]) != 0:
            return False
        start = sympy.expand(start + ranges[along])
    return along is not None and start == size[along]


def _read_between(recipe: Recipe, whole: str, written: Sequence[Step]) -> bool:
    names = {whole, *(s.name for s in written)}
    last = recipe.steps.index(written[-1])
    before = recipe.steps[:last]
    return any(op[1] == "load" and op[2][0] in names for s in before for op in _ops(s.ops))
