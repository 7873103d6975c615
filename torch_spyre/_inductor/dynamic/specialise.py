# SPDX-License-Identifier: Apache-2.0
"""From a recipe to the program for some sizes: the one way, for exact sizes and for buckets, compiled and eager.

Enters: a `Recipe`, the `Sizes` that a program is wanted for, and how the inputs are stored. Leaves: a TileGraph without
symbols (`specialise`), or its program with the launch scalars that calls pass to it (`Variant`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import sympy
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.virtualized import V

from torch_spyre._inductor.dynamic.graph_buckets import RecipeBuilder
from torch_spyre._inductor.dynamic.recipe import Recipe, decode_expr, plain
from torch_spyre._inductor.dynamic.space import Sizes
from torch_spyre._inductor.kernel import accepted
from torch_spyre._inductor.tilegraph.graph import Graph
from torch_spyre.runtime import cache, driver

Described = Sequence[tuple[Any, ...]]  # the given buffers as `kernel.describe_input` has them


@dataclass(frozen=True)
class Specialised:
    """The TileGraph of a recipe for some sizes."""

    graph: Graph
    places: list[int]  # for each input of the graph, the argument of the call: given buffers, symbols, then scalars
    scalars: tuple[sympy.Expr, ...]  # functions of the sizes that each call computes


@dataclass
class Variant:
    """A program for some sizes."""

    entry: cache.Key
    loaded: driver.Loaded
    scalars: tuple[sympy.Expr, ...]  # what calls pass behind the symbols


def specialise(recipe: Recipe, sizes: Sizes) -> Specialised:
    """The graph that is right for all of these sizes; NotBucketed if that is not proved."""
    builder = RecipeBuilder(recipe, sizes)
    with V.set_graph_handler(SimpleNamespace(sizevars=SizeVarAllocator())):
        for step in recipe.steps:
            builder.play(step)
    graph = builder.graph(recipe.outputs)
    order = {g.name: i for i, g in enumerate(recipe.given)}
    order |= {name: len(recipe.given) + len(recipe.symbols) + i for i, name in enumerate(builder.scalars)}
    return Specialised(graph, [order[name] for name in builder.arguments(graph)], tuple(builder.scalars.values()))


def recalled(recipe: Recipe, recipe_json: str, sizes: Sizes, inputs: Described) -> Variant | None:
    """The program for these sizes and inputs from the cache."""
    entry = _entry(recipe, recipe_json, sizes, inputs)
    found = driver.recall(entry)
    if found is None:
        return None
    first = len(recipe.given) + len(recipe.symbols)
    codes = [json.loads(text) for _, text in found.kernel.inputs[first:]]
    return Variant(entry, found, tuple(decode_expr(c, {}) for c in codes))


def compiled(recipe: Recipe, recipe_json: str, sizes: Sizes, inputs: Described) -> Variant:
    """The program for these sizes and inputs, made now."""
    from torch_spyre._inductor.compile import compile_graph  # late: start-up

    made = specialise(recipe, sizes)
    graph_json, n = made.graph.to_json(), len(recipe.given)
    described = [inputs[i] if i < n else () for i in made.places]
    entry = _entry(recipe, recipe_json, sizes, inputs)
    entry.inputs = (*entry.inputs, *(("size", json.dumps(plain(e))) for e in made.scalars))
    loaded = accepted(
        entry, lambda displaced: _rebound(compile_graph(graph_json, described, displaced), made.places), sizes.exact
    )
    return Variant(entry, loaded, made.scalars)


def _entry(recipe: Recipe, recipe_json: str, sizes: Sizes, inputs: Described) -> cache.Key:
    return cache.key(f"{recipe_json}{sizes.text()}", [*inputs, *(() for _ in recipe.symbols)])


def _rebound(kernel: cache.CachedKernel, places: Sequence[int]) -> cache.CachedKernel:
    """The kernel with its inputs numbered as the call passes them."""
    bindings = tuple((kind, places[i] if kind == "input" else i) for kind, i in kernel.bindings)
    return replace(kernel, bindings=bindings, scalars=tuple((places[i], kind) for i, kind in kernel.scalars))
