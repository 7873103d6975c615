# SPDX-License-Identifier: Apache-2.0
"""Programs of eager ops for a bucket of sizes.

Enters: a call of an op that was called before with another value of one size, and its lowering with that size as
a symbol. Leaves: an `_C.BucketPlan`, which serves every size of the bucket without coming here. Programs are those of
`_inductor/dynamic/`: equal to the plan for each size by itself, or refused with a reason.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from torch_spyre import _C, knobs
from torch_spyre._inductor.dynamic.launcher import Call, DynamicKernel
from torch_spyre._inductor.dynamic.recipe import Recipe, decode_expr, names_in
from torch_spyre._inductor.dynamic.space import NotBucketed, Space, number
from torch_spyre._inductor.dynamic.specialise import Variant
from torch_spyre._inductor.planning import candidates
from torch_spyre._inductor.tilegraph.tracing import symbol
from torch_spyre.buckets import KERNEL_SIZES
from torch_spyre.constants import MAX_SPAN_BYTES
from torch_spyre.ops.reuse.families import Lowered
from torch_spyre.ops.reuse.varying_sizes import Pattern, Polynomial
from torch_spyre.runtime import cache

CUTS = "a matmul shares its inner dim out over cores otherwise than for this size alone"
_FARTHEST = 2048  # sizes on either side of the present one for which a program is proved
_STICK = 64
_STICKS = {"float16": 64, "bfloat16": 64, "float32": 32}  # elements


class BucketKernel(DynamicKernel):
    """Plans a lowered op for the bucket of one call after another."""

    def __init__(self, lowered: Lowered) -> None:
        super().__init__(lowered.recipe)
        self.lowered = lowered
        self.narrow = False  # only sizes of as many sticks
        (name,) = self.recipe.symbols
        self.symbol = symbol(name)

    # What differs from a compiled graph: tensors are moved by the launch, and programs may be for fewer sizes

    def _movable(self, name: str, x: torch.Tensor) -> bool:
        return True

    def _moved(self, call: Call, name: str, x: torch.Tensor) -> torch.Tensor:
        """A tensor without values, stored as the launch will move x: the same device dims, with longer extents."""
        layout = _C.get_spyre_tensor_layout(x)
        assert call.space is not None
        sizes, strides = self._dims(name)
        extents, begin = list(layout.device_size), x.storage_offset()
        for size, stride in zip(sizes, strides, strict=True):
            step = int(number(stride, call.values))
            if size.is_Integer or not step:
                continue
            own = [
                (s, i) for i, s in enumerate(layout.stride_map) if extents[i] > 1 and self._owner(name, call, s) == step
            ]
            if own:
                outer, place = max(own)
                wanted = call.space.extent(size) + begin // step
                extents[place] = max(extents[place], -(-wanted // (outer // step)))
        roomy = _C.SpyreTensorLayout(extents, list(layout.stride_map), layout.device_dtype)
        reach = begin + sum((n - 1) * s for n, s in zip(x.size(), x.stride(), strict=True)) + 1
        return _C.spyre_empty_with_layout([reach], [1], x.dtype, roomy).as_strided(x.size(), x.stride(), begin)

    def _check_stored(self, call: Call, name: str, layout: Any) -> None:
        """A dim that varies is stored element by element, or by sticks, whatever its size is."""
        sizes, strides = self._dims(name)
        varying = {int(number(t, call.values)) for n, t in zip(sizes, strides, strict=True) if not n.is_Integer}
        for stride, extent in zip(layout.stride_map, layout.device_size, strict=True):
            owner = self._owner(name, call, stride)
            if extent > 1 and owner in varying and stride // owner not in (1, layout.device_dtype.elems_per_stick()):
                raise NotBucketed(f"{name} is stored by other dims, whose sizes vary")

    def _owner(self, name: str, call: Call, stride: int) -> int:
        """The stride of the dim that a device dim of this stride belongs to."""
        sizes, strides = ([int(number(e, call.values)) for e in exprs] for exprs in self._dims(name))
        return max((t for n, t in zip(sizes, strides, strict=True) if n > 1 and 0 < t <= stride), default=0)

    def _space(self, values: Mapping[sympy.Symbol, int]) -> Space:
        space = super()._space(values)
        if not self.narrow:
            return space
        n = values[self.symbol]
        top = min(space.top[self.symbol], -(-n // _STICK) * _STICK)
        low = max(space.low[self.symbol], top - _STICK + 1)
        return Space(space.capacity, {self.symbol: low}, {self.symbol: top})

    # One bucket

    def plan(self, pattern: Pattern, tensors: Sequence[torch.Tensor], n: int) -> dict[str, Any]:
        """The program for the bucket of n and for tensors stored as these are, as plain data; NotBucketed."""
        args = [tensors[i] if i >= 0 else 0 for i in self.lowered.given]
        self.narrow = False
        if not self._holds(n) or not _same_cuts(self, self._space({self.symbol: n}), n):
            self.narrow = True
            if not self._holds(n):
                raise NotBucketed(f"its lowering holds for few sizes: {self.lowered.guards}")
            if not _same_cuts(self, self._space({self.symbol: n}), n):
                raise NotBucketed(CUTS)
        call = Call({self.symbol: n}, self._space({self.symbol: n}))
        self.scalars = None
        self.variants.clear()
        stored, found = self._first(call, args)
        return self._described(call, pattern, tensors, stored, found)

    def _holds(self, n: int) -> bool:
        return all(bool(decode_expr(g, {self.symbol.name: sympy.Integer(n)})) for g in self.lowered.guards)

    def _range(self, call: Call) -> tuple[int, int]:
        """The sizes around the present one that the program serves."""
        space, n = call.space, call.values[self.symbol]
        assert space is not None
        capacities = self._capacities(call.values)

        def served(m: int) -> bool:
            try:
                same = self._capacities({self.symbol: m}) == capacities
            except NotBucketed:  # a size below 0
                return False
            return same and self._holds(m) and _same_cuts(self, space, m)

        low = high = n
        while low > max(space.low[self.symbol], n - _FARTHEST) and served(low - 1):
            low -= 1
        while high < min(space.top[self.symbol], n + _FARTHEST) and served(high + 1):
            high += 1
        return low, high

    def _described(
        self, call: Call, pattern: Pattern, tensors: Sequence[torch.Tensor], stored: Sequence[Any], found: Variant
    ) -> dict[str, Any]:
        shapes = self._shapes(call, stored)
        layouts: dict[int, Any] = {}
        written = set()
        for i, (given, at) in enumerate(zip(self.recipe.given, self.lowered.given, strict=True)):
            if given.scalar:
                continue
            layout = _C.get_spyre_tensor_layout(stored[i])
            if given.name in self.written:
                written.add(at)
            if i in self.varying:
                self._check_stored(call, given.name, layout)
                strides = shapes[given.name].stride_exprs(layout.stride_map, layout.device_size, call.values, False)
                layouts[at] = ["roomy", *self._roomy(layout.device_size, strides, layout.device_dtype.name)]
            else:
                layouts[at] = ["fixed", list(layout.device_size), list(layout.stride_map), layout.device_dtype.name]
        described = [
            None if s is None else [s.size, s.stride, s.offset, i in written, layouts.get(i)]
            for i, s in enumerate(pattern.tensors)
        ]
        return {
            "entry": str(found.entry),
            "place": list(pattern.place),
            "range": list(self._range(call)),
            "tensors": described,
            "results": self._results(call, found.loaded.kernel),
            "numbers": [self._ratio(e) for e in (self.symbol, *found.scalars)],
        }

    def _results(self, call: Call, kernel: cache.CachedKernel) -> list[Any]:
        made = []
        for name, o, (size, stride) in zip(self.recipe.outputs, kernel.outputs, self.lowered.results, strict=True):
            strides = self._own_shape(call, name).stride_exprs(o.stride_map, o.device_size, call.values, True)
            place = [[self._polynomial(decode_expr(c, {})) for c in codes] for codes in (size, stride)]
            made.append([*place, o.dtype, self._roomy(o.device_size, strides, o.format)])
        return made

    def _roomy(self, extents: Sequence[int], strides: Sequence[sympy.Expr], format: str) -> list[Any]:
        """A layout of the capacity with its strides as functions of n."""
        return [list(extents), [self._polynomial(e) for e in strides], format]

    def _polynomial(self, expr: Any) -> Polynomial:
        expr = sympy.expand(expr)
        if not expr.is_polynomial(self.symbol):
            raise NotBucketed(f"{expr} is no polynomial in the size that varies")
        coefficients = sympy.Poly(expr, self.symbol).all_coeffs()[::-1]
        if not all(c.is_Integer for c in coefficients):
            raise NotBucketed(f"{expr} has a fraction in it")
        return [int(c) for c in coefficients]

    def _ratio(self, expr: sympy.Expr) -> list[Polynomial]:
        above, below = sympy.fraction(sympy.together(expr))
        return [self._polynomial(above), self._polynomial(below)]


# Matmuls: how often k is cut depends on the shape, and so do the bits of the sum


@dataclass(frozen=True)
class _Product:
    """Sizes of a matmul; of the columns by dim, the innermost last."""

    batch: list[sympy.Expr]
    rows: list[sympy.Expr]
    columns: list[sympy.Expr]
    inner: list[sympy.Expr]
    stick: int

    def cut(self, size: Callable[[sympy.Expr], int]) -> tuple[int, ...]:
        """(Parts of k, sticks in each but the last), as `candidates` has it."""
        batch, rows = (math.prod(size(e) for e in exprs) for exprs in (self.batch, self.rows))
        *outer, width = [size(e) for e in self.columns] or [1]
        columns = math.prod(outer) * -(-width // self.stick)
        k = math.prod(size(e) for e in self.inner)
        sticks = -(-k // self.stick)
        if k * max(rows, columns * _STICK) * 2 > MAX_SPAN_BYTES:
            raise NotBucketed("a matmul spans so much memory that its inner dim is cut into parts")
        ways = candidates.k_ways(batch, rows, columns, sticks, knobs.get("sencores")) if knobs.get("cut_k") else 1
        return (1,) if ways == 1 else (ways, -(-sticks // ways))


@functools.lru_cache(maxsize=4096)
def _products(recipe: str) -> tuple[_Product, ...]:
    found = []
    for step in Recipe.from_json(recipe).steps:
        dots = [op for op in step.ops if op[1] == "reduction" and op[2][2] == "dot"]
        if not dots:
            continue
        by_number = {op[0]: op for op in step.ops}
        _, source, _, value = dots[0][2]
        product = by_number[value["v"]]
        if product[1] != "dot" or source["t"] not in _STICKS:
            raise NotBucketed(f"a matmul of {source['t']}")
        left, right = (_variables(by_number, part) for part in product[2])
        sizes = {f"d{i}": sympy.expand(decode_expr(c, {})) for i, c in enumerate(step.ranges)}
        inner = [sympy.expand(decode_expr(c, {})) for c in step.reduction_ranges]
        batch = [n for d, n in sizes.items() if (d in left) == (d in right)]
        rows = [n for d, n in sizes.items() if d in left and d not in right]
        columns = [n for d, n in sizes.items() if d in right and d not in left]
        found.append(_Product(batch, rows, columns, inner, _STICKS[source["t"]]))
    return tuple(found)


def _variables(ops: Mapping[int, Any], code: Any) -> set[str]:
    """The loop variables that a recorded value depends on."""
    if isinstance(code, list):
        return set().union(*(_variables(ops, c) for c in code))
    if not isinstance(code, dict):
        return set()
    if "e" in code:
        return names_in(code["e"])
    return _variables(ops, ops[code["v"]][2]) if "v" in code else set()


def _same_cuts(kernel: BucketKernel, space: Space, n: int) -> bool:
    """Does every matmul cut k for the capacity as for n?"""

    def exact(e: sympy.Expr) -> int:
        return int(number(e, {kernel.symbol: n}))

    return all(p.cut(exact) == p.cut(space.extent) for p in _products(kernel.json))


def refused_range(n: int, reason: str) -> tuple[int, int]:
    """The sizes that a refusal speaks of: those of the bucket, or this one where it depends on the size itself."""
    if reason == CUTS:
        return n, n
    room = KERNEL_SIZES.capacity(n)
    return KERNEL_SIZES.least_size(room), room
