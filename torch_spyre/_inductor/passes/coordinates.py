# SPDX-License-Identifier: Apache-2.0
"""Refining iteration dims until every device coordinate is a plain dim or a stick pair.

Views make coordinates like ``p0 % 10`` and ``p0 // 10``: the dim is then two dims in disguise and is split (50 -> 5 x
10). A stick dim keeps its pair ``d // E`` (which stick) and ``d % E`` (which lane): the card walks that form itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch_spyre._inductor.planning.plan_graph import Layout, PlanNode
from torch_spyre._inductor.tilegraph.index import Index
from torch_spyre.ir.plan.tileops import Coord, Dim, Term

Coords = tuple[Coord, ...]


class Conflict(Exception):
    """Operands cut a dim at places that do not nest."""

    def __init__(self, dim: str) -> None:
        super().__init__(dim)
        self.dim = dim


def stick_dims(coords: Coords) -> list[str]:
    """Dims that move inside a stick."""
    return [t.dim for t in coords[-1].terms] if coords else []


def stick_form(coords: Coords, layout: Layout | None, any_lane: bool = False) -> bool:
    """Is the lane one dim with unit step from lane 0 (or fixed)?"""
    if not coords:
        return True
    assert layout is not None
    lane = coords[-1]
    if not lane.terms:
        return any_lane or lane.const == 0
    if len(lane.terms) > 1 or lane.const:
        return False
    term = lane.terms[0]
    return term.scale == 1 and term.div == 1 and (term.mod in (0, layout.elems_per_stick))


def refine(
    node: PlanNode,
    accesses: Sequence[Coords | None],
    layouts: Sequence[Layout | None],
    linear: Sequence[Index] = (),
) -> None:
    """Splits the node's dims at every boundary its accesses use; fills `tiles` and `accesses`. Raises Conflict.

    `linear` are offsets that must be linear in the refined dims.
    """
    pieces: dict[str, list[tuple[str, int, int]]] = {}  # dim -> (name, size, weight), outer to inner
    for dim, size in node.dims:
        pieces[dim] = cut_pieces(dim, size, _cuts(dim, size, accesses, layouts, linear))
    node.tiles = tuple(Dim(name, size) for dim, _ in node.dims for name, size, _ in pieces[dim])
    node.reduced = tuple(name for dim in node.reduced for name, _, _ in pieces[dim])
    node.accesses = tuple(None if coords is None else tuple(rewrite(c, pieces) for c in coords) for coords in accesses)


def rewrite_index(node: PlanNode, index: Index) -> Coord:
    """A linear offset over the node's original dims, in its refined dims."""
    pieces: dict[str, list[tuple[str, int, int]]] = {}
    for dim, _ in node.dims:
        weight = 1
        parts: list[tuple[str, int, int]] = []
        for t in reversed([t for t in node.tiles if t.name == dim or t.name.startswith(f"{dim}.")]):
            parts.insert(0, (t.name, t.size, weight))
            weight *= t.size
        pieces[dim] = parts
    return rewrite(Coord(index.terms, index.const), pieces)


def _cuts(
    dim: str,
    size: int,
    accesses: Sequence[Coords | None],
    layouts: Sequence[Layout | None],
    linear: Sequence[Index],
) -> list[int]:
    cuts = {c for index in linear for t in index.terms if t.dim == dim for c in (t.div, t.div * t.mod)}
    linear_cuts = {c for c in cuts if 1 < c < size}
    sticks: set[int] = set()
    for coords, layout in zip(accesses, layouts, strict=True):
        if not coords:
            continue
        assert layout is not None
        lane = {t.mod for t in coords[-1].terms if t.dim == dim and t.div == 1 and t.mod == layout.elems_per_stick}
        sticks |= lane
        for coord in coords:
            for t in coord.terms:
                if t.dim == dim:
                    cuts |= {t.div, t.div * t.mod} - lane
    cuts = {c for c in cuts if 1 < c < size}
    if linear_cuts & sticks:  # an offset is linear only where the dim is cut, which a lane cannot be
        raise Conflict(dim)
    # A cut at one operand's stick size is not a cut of the dim if that is where some lane ends anyway.
    ordered = sorted(cuts - sticks)
    if any(size % c for c in ordered) or any(b % a for a, b in itertools.pairwise(ordered)):
        raise Conflict(dim)
    if ordered and any(ordered[0] % s for s in sticks):
        raise Conflict(dim)
    return ordered


def cut_pieces(dim: str, size: int, cuts: list[int]) -> list[tuple[str, int, int]]:
    if not cuts:
        return [(dim, size, 1)]
    bounds = [1, *cuts, size]
    inner_first = [(f"{dim}.{i}", bounds[i + 1] // bounds[i], bounds[i]) for i in range(len(bounds) - 1)]
    return inner_first[::-1]


def rewrite(coord: Coord, pieces: dict[str, list[tuple[str, int, int]]]) -> Coord:
    if coord.index >= 0:
        return coord
    terms: list[Term] = []
    for t in coord.terms:
        low, high = t.div, t.div * t.mod if t.mod else None
        for name, size, weight in pieces[t.dim]:
            end = weight * size
            if end <= low or (high is not None and weight >= high):
                continue
            div = max(1, low // weight)
            mod = 0 if high is None or end <= high else high // max(weight, low)
            terms.append(Term(name, t.scale * max(1, weight // low), div, mod))
    return Coord(tuple(terms), coord.const)
