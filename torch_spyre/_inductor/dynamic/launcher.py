# SPDX-License-Identifier: Apache-2.0
"""Kernels with symbolic sizes as generated code sees them: one callable for all sizes.

Enters: a `Recipe` (JSON) and, at each call, tensors and the values of the symbols. Leaves: result tensors. A program is
made for a bucket of sizes where that is proved right (`specialise`), else for each combination of sizes.
"""

from __future__ import annotations

import functools
import logging
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import sympy
import torch

from torch_spyre import _C, knobs
from torch_spyre._inductor.dynamic.recipe import KernelInput, Recipe, Step, decode_expr
from torch_spyre._inductor.dynamic.space import NotBucketed, Shape, Sizes, Space, capacity, factors, number
from torch_spyre._inductor.dynamic.specialise import Described, Variant, compiled, recalled
from torch_spyre._inductor.dynamic.storage import dense, room_of, roomy_layout
from torch_spyre._inductor.kernel import describe_input, for_offsets
from torch_spyre._inductor.planned_sizes import exact_plans
from torch_spyre._inductor.tilegraph.tracing import symbol
from torch_spyre.buckets import KERNEL_SIZES
from torch_spyre.errors import InvalidProgram, UninitializedRead, UnsupportedOp
from torch_spyre.runtime import driver
from torch_spyre.sanitizer import enabled as sanitizing

log = logging.getLogger("torch_spyre._inductor.dynamic.launcher")
_CALLS = 1024  # combinations of sizes whose launchers are kept, per kernel
_GUESSES = 4
T = TypeVar("T")


@dataclass
class Call:
    """What one combination of sizes needs."""

    values: dict[sympy.Symbol, int]
    space: Space | None  # None: exact sizes
    launcher: Any = None
    scalars: tuple[float | int, ...] = ()
    roomy: set[Hashable] = field(default_factory=set)  # (input, layout) that are stored with enough room
    reason: str = "buckets are switched off"  # why exact sizes, if they are


class DynamicKernel:
    """Call with the given tensors and the value of each symbol; get a tuple of outputs."""

    def __init__(self, recipe_json: str) -> None:
        self.json = recipe_json
        self.recipe = Recipe.from_json(recipe_json)
        self.calls: OrderedDict[tuple[int, ...], Call] = OrderedDict()
        self.variants: OrderedDict[Hashable, Variant] = OrderedDict()
        self.scalars: tuple[sympy.Expr, ...] | None = None
        self.spaces: dict[tuple[int, ...], Space] = {}
        self.joined: frozenset[sympy.Expr] | None = None  # sizes that stand for several dims; None: not yet known
        self.shapes: dict[Hashable, Shape] = {}
        self.products: dict[sympy.Expr, list[sympy.Expr]] = {}
        self.dims: dict[Hashable, tuple[list[sympy.Expr], list[sympy.Expr]]] = {}
        self.reasons: dict[Hashable, str] = {}  # capacities -> why they are not used

    # Calls

    def __call__(self, *args: Any) -> Any:
        sizes = args[len(self.recipe.given) :]
        call = self.calls.get(sizes)
        if call is None:
            call, stored = self._new(args)
            _kept(self.calls, sizes, call, _CALLS)
        else:
            self.calls.move_to_end(sizes)
            stored = args if call.space is None else self._with_room(call, args)
        return call.launcher(*stored, *call.scalars)

    def _new(self, args: Sequence[Any]) -> tuple[Call, Sequence[Any]]:
        """What these sizes need, and the arguments as they must be stored."""
        sizes = args[len(self.recipe.given) :]
        values = {symbol(s): int(v) for s, v in zip(self.recipe.symbols, sizes, strict=True)}
        wanted = knobs.get("dynamic_buckets") and not (
            knobs.get("sanitize") or sanitizing()
        )  # it would see reads of nonsense
        call, stored = Call(values, None), args
        if wanted:
            try:
                call.space = self._space(values)
                stored, found = self._first(call, args)
                call.scalars = tuple(number(e, values) for e in found.scalars)
            except NotBucketed as reason:
                self._refuse(call, reason)
        call.launcher = _C.KernelLauncher(self.recipe.name, functools.partial(self._plan, call))
        return call, stored

    def _first(self, call: Call, args: Sequence[Any]) -> tuple[Sequence[Any], Variant]:
        """The arguments as they must be stored, and the variant; finds out which sizes stand for joined dims."""
        if self.joined is not None:
            stored = self._with_room(call, args)
            return stored, self._variant(call, stored)
        reasons = []
        for guess in self._guesses():
            self.joined = guess
            try:
                stored = self._with_room(call, args)
                return stored, self._variant(call, stored)
            except NotBucketed as reason:
                reasons.append(reason)
                call.roomy.clear()
        self.joined = None
        raise reasons[0]

    def _plan(self, call: Call, args: Sequence[Any]) -> Any:
        """The plan for inputs with layouts that the launcher has not seen."""
        if call.space is not None:
            try:
                found = self._variant(call, args)
                return driver.launch_plan(self._exactly(call, found.loaded))
            except NotBucketed as reason:
                call.reason = str(reason)
        exact_plans[self.recipe.name, self.recipe.steps[0].origin, call.reason] += 1
        sizes = Sizes(dict(zip(self.recipe.symbols, call.values.values(), strict=True)))

        def plan(inputs: Described) -> Any:
            found = recalled(self.recipe, self.json, sizes, inputs) or compiled(self.recipe, self.json, sizes, inputs)
            return driver.launch_plan(found.loaded)

        return for_offsets(args[: len(self.recipe.given)], plan)

    # Buckets

    @functools.cached_property
    def sizes(self) -> list[sympy.Expr]:
        """Every size that depends on a symbol."""
        codes: list[Any] = list(self.recipe.symbols)
        codes += [c for g in self.recipe.given for c in g.size]
        codes += [c for s in self.recipe.steps for c in (*s.ranges, *s.reduction_ranges, *s.size)]
        found = dict.fromkeys(_exprs(codes))
        found |= dict.fromkeys(f for e in [*found] if not e.is_Integer for f in self._factors(e))
        return [e for e in found if not e.is_Integer]

    def _factors(self, size: sympy.Expr) -> list[sympy.Expr]:
        if size not in self.products:
            self.products[size] = factors(size, self._order) if size.is_polynomial(*self._order) else [size]
        return self.products[size]

    @functools.cached_property
    def _order(self) -> list[sympy.Symbol]:
        """The symbols as they follow one another in the sizes of the inputs."""
        seen = [s for g in self.recipe.given for n in _exprs(g.size) for s in sorted(n.free_symbols, key=str)]
        return list(dict.fromkeys([*seen, *(symbol(s) for s in self.recipe.symbols)]))

    def _guesses(self) -> Iterator[frozenset[sympy.Expr]]:
        """Which sizes may stand for joined dims: none, all, one of them, all but one."""
        products = frozenset(e for e in self.sizes if len(self._factors(e)) > 1)
        yield frozenset()
        if products:
            yield products
        if len(products) > 1:
            for one in sorted(products, key=str)[:_GUESSES]:
                yield frozenset([one])
            if len(products) > 2:
                for one in sorted(products, key=str)[:_GUESSES]:
                    yield products - {one}

    @functools.cached_property
    def varying(self) -> list[int]:
        """Inputs with symbolic sizes."""
        symbolic = (any(isinstance(c, (str, list)) for c in (*g.size, *g.stride)) for g in self.recipe.given)
        return [i for i, s in enumerate(symbolic) if s]

    @functools.cached_property
    def _undivided(self) -> list[sympy.Expr]:
        return list(dict.fromkeys(f for e in self.sizes for f in self._factors(e)))

    def _capacities(self, values: Mapping[sympy.Symbol, int]) -> dict[sympy.Expr, int]:
        """Of every size that is no product."""
        return {f: capacity(f, values) for f in self._undivided}

    def _space(self, values: Mapping[sympy.Symbol, int]) -> Space:
        capacities = self._capacities(values)
        rooms = {e: math.prod(capacities[f] for f in self._factors(e)) for e in self.sizes}
        key = tuple(rooms.values())
        if key in self.reasons:
            raise NotBucketed(self.reasons[key])
        if key not in self.spaces:
            known = self.recipe.symbols
            low = {s: max(KERNEL_SIZES.least_size(rooms[s]), known[s.name]) for s in values}
            self.spaces[key] = Space(rooms, low, {s: rooms[s] for s in values})
        return self.spaces[key]

    def _refuse(self, call: Call, reason: NotBucketed) -> None:
        call.reason = str(reason)
        if call.space is not None:
            self.reasons[tuple(call.space.capacity.values())] = call.reason
            log.info("%s is planned for each size: %s", self.recipe.name, reason)
        call.space = None

    def _with_room(self, call: Call, args: Sequence[Any]) -> Sequence[Any]:
        """The arguments, those that are stored without room for their bucket as copies that have it.

        One that the kernel writes to stays where it is, and makes the kernel one of exact sizes.
        """
        assert call.space is not None
        result = list(args)
        for i in self.varying:
            layout, offset = _C.get_spyre_tensor_layout(args[i]), args[i].storage_offset()
            if (i, layout, offset) in call.roomy:
                continue
            name = self.recipe.given[i].name
            room = self._room(call, name, args[i])
            wanted = [call.space.extent(n) for n in self._dims(name)[0]]
            if room is not None and all(r >= w for r, w in zip(room, wanted, strict=True)):
                call.roomy.add((i, layout, offset))
            elif self._movable(name, args[i]):
                result[i] = self._moved(call, name, args[i])
        return result

    def _movable(self, name: str, x: torch.Tensor) -> bool:
        return name not in self.written and dense(x)

    @functools.cached_property
    def written(self) -> set[str | None]:
        """Buffers that are changed in place."""
        return {s.target for s in self.recipe.steps}

    def _moved(self, call: Call, name: str, x: torch.Tensor) -> torch.Tensor:
        layout = roomy_layout(self._own_shape(call, name), x, call.values)
        return _C.spyre_empty_with_layout(list(x.size()), list(x.stride()), x.dtype, layout).copy_(x)

    @functools.cached_property
    def _owners(self) -> dict[str, KernelInput | Step]:
        """Every buffer that is a tensor of its own."""
        owners = [g for g in self.recipe.given if not g.scalar] + [s for s in self.recipe.steps if s.target is None]
        return {o.name: o for o in owners}

    def _dims(self, name: str) -> tuple[list[sympy.Expr], list[sympy.Expr]]:
        """Size and stride of a buffer, joined dims apart."""
        assert self.joined is not None
        key = (name, self.joined)
        if key not in self.dims:
            sizes, strides = [], []
            owner = self._owners[name]
            for size, stride in zip(_exprs(owner.size), _exprs(owner.stride), strict=True):
                own = self._factors(size) if size in self.joined else [size]
                sizes += own
                strides += [sympy.expand(stride * sympy.prod(own[i + 1 :])) for i in range(len(own))]
            self.dims[key] = (sizes, strides)
        return self.dims[key]

    def _room(self, call: Call, name: str, x: torch.Tensor) -> list[int] | None:
        sizes, strides = ([int(number(e, call.values)) for e in exprs] for exprs in self._dims(name))
        return room_of(x, _C.get_spyre_tensor_layout(x), sizes, strides)

    def _shape(self, name: str, room: Sequence[int], values: Mapping[sympy.Symbol, int]) -> Shape:
        key = (name, self.joined, *room)
        if key not in self.shapes:
            self.shapes[key] = Shape.of(*self._dims(name), room, values)
        return self.shapes[key]

    def _shapes(self, call: Call, args: Sequence[Any]) -> dict[str, Shape]:
        """Of the given tensors by their storage, of the others by the buckets."""
        assert call.space is not None
        shapes = {}
        for i, given in enumerate(self.recipe.given):
            if given.scalar:
                continue
            size, room = self._dims(given.name)[0], None
            if i in self.varying:
                if given.name in self.written:
                    raise NotBucketed(f"{given.name} is written, and may be a part of a tensor whose rest must stay")
                room = self._room(call, given.name, args[i])
                if room is None:
                    raise NotBucketed(f"{given.name} is a view into another storage")
            room = [int(n) if n.is_Integer else room[d] if room else 0 for d, n in enumerate(size)]
            shapes[given.name] = shape = self._shape(given.name, room, call.values)
            if i in self.varying and args[i].storage_offset() >= shape.inner(call.space.low):
                raise NotBucketed(f"{given.name} begins at a place that depends on a size")
        for step in self.recipe.steps:
            if step.target is None:
                shapes[step.name] = self._own_shape(call, step.name)
        return shapes

    def _own_shape(self, call: Call, name: str) -> Shape:
        assert call.space is not None
        return self._shape(name, [call.space.room(n) for n in self._dims(name)[0]], call.values)

    def _variant(self, call: Call, args: Sequence[Any]) -> Variant:
        """The program for the bucket and for inputs stored as these are."""
        assert call.space is not None
        shapes = self._shapes(call, args)
        inputs = []
        for i, given in enumerate(self.recipe.given):
            described = describe_input(args[i], displaced=False)
            if i in self.varying:
                extents, strides, *rest = described
                described = (extents, tuple(shapes[given.name].translated(strides, extents, call.values, False)), *rest)
            inputs.append(described)
        key = (self.joined, tuple(call.space.capacity.values()), tuple(call.space.top.values()), tuple(inputs))
        found = self.variants.get(key)
        if found is None:
            found = self._loaded(call.space, shapes, inputs)
            if self.scalars is None:
                self.scalars = found.scalars
            if found.scalars != self.scalars:
                raise NotBucketed("other layouts need other launch scalars")
            _kept(self.variants, key, found, knobs.get("max_buckets"))
        return found

    def _loaded(self, space: Space, shapes: Mapping[str, Shape], inputs: Described) -> Variant:
        """Buffers are filled before they are put together only if the card misses that: rarely does anybody look."""
        assert self.joined is not None
        joined = {e: self._factors(e) for e in self.joined}
        sizes = [Sizes({}, space, shapes, joined, filled) for filled in (False, True)]
        for one in sizes:
            found = recalled(self.recipe, self.json, one, inputs)
            if found is not None:
                return found
        try:
            try:
                return compiled(self.recipe, self.json, sizes[0], inputs)
            except UninitializedRead:
                return compiled(self.recipe, self.json, sizes[1], inputs)
        except (InvalidProgram, UninitializedRead, UnsupportedOp) as error:
            raise NotBucketed(str(error)) from error

    def _exactly(self, call: Call, loaded: driver.Loaded) -> driver.Loaded:
        """The kernel with its outputs as they are for these sizes."""
        assert call.space is not None
        outputs = []
        for name, o in zip(self.recipe.outputs, loaded.kernel.outputs, strict=True):
            shape = self._own_shape(call, name)
            strides = shape.translated(o.stride_map, o.device_size, call.values, True)
            owner = self._owners[name]
            true = [tuple(int(number(e, call.values)) for e in _exprs(c)) for c in (owner.size, owner.stride)]
            outputs.append(replace(o, size=true[0], stride=true[1], stride_map=tuple(strides)))
        return loaded._replace(kernel=replace(loaded.kernel, outputs=tuple(outputs)))


def kernel(recipe_json: str) -> DynamicKernel:
    """The launcher of one kernel of a compiled graph with symbolic sizes."""
    return DynamicKernel(recipe_json)


def _kept(table: OrderedDict[Any, T], key: Hashable, value: T, most: int) -> T:
    table[key] = value
    while len(table) > most:
        table.popitem(last=False)
    return value


def _exprs(codes: Sequence[Any]) -> list[sympy.Expr]:
    return [sympy.expand(decode_expr(c, {})) for c in codes]
