# SPDX-License-Identifier: Apache-2.0
"""Gathers and scatters: which device dims of the table an index tensor addresses, and with which values.

A device dim takes an index tensor as it is, or values computed from it by integer operations: the stick and the lane of
an element along the stick dim, a shifted index of a slice. Where the table's dims do not separate, every device dim is
computed from the linear offset; a table with more dims than an instruction takes indices is copied flat before. The
card checks each index against the extent of its dim; where that is more than the table has, an index outside is
replaced by one that the card refuses: the same with its sign bit set, so that the error can name it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch_spyre._inductor.planning.plan_graph import Layout, PlanBuffer
from torch_spyre._inductor.tilegraph.graph import Const, Load, Node, Position, Value
from torch_spyre._inductor.tilegraph.index import Index, decompose, term_range
from torch_spyre.backend.program.isa import MAX_INDICES
from torch_spyre.ir.plan.tileops import Coord, Term

INDIRECT = "@"
_INT = "int32"
Compute = Callable[[str, Sequence[Value], str], Value]  # (opfunc, operands, dtype) -> result in a temporary


@dataclass(frozen=True)
class Table:
    """The coordinates of a table; index tensors are numbered from 0 in `places`."""

    coords: tuple[Coord, ...]
    places: tuple[Load, ...]


def is_indirect(term: Term) -> bool:
    return term.dim.startswith(INDIRECT)


def table_sizes(node: Node) -> dict[str, int]:
    return {**node.sizes(), **{f"{INDIRECT}{j}": n for j, n in enumerate(node.limits)}}


def with_bounds(node: Node, places: Sequence[Load], used: Sequence[Load]) -> str:
    """Where a node came from, and the bounds of its indices where the card checks other values in their place."""
    computed = [n for n in node.limits if n > 1] if any(p not in places for p in used) else []
    return f"{node.origin} (indices below {', '.join(map(str, computed))})" if computed else node.origin


def direct(table: PlanBuffer, index: Index, node: Node, places: Sequence[Load], compute: Compute) -> Table | None:
    """Coordinates by the table's own dims; None if they do not separate."""
    assert table.layout is not None
    sizes = table_sizes(node)
    coords = decompose(index.shifted(table.offset), table.layout.axes(), sizes)
    if coords is None:
        return None
    if sum(any(is_indirect(t) for t in c.terms) for c in coords) > MAX_INDICES:
        return None
    used: list[Load] = []
    result: list[Coord] = []
    for coord, extent in zip(coords, table.layout.device_size, strict=True):
        mine = [t for t in coord.terms if is_indirect(t)]
        if not mine:
            result.append(coord)
            continue
        plain = len(coord.terms) == 1 and not coord.const and mine[0] == Term(mine[0].dim)
        j = int(mine[0].dim.removeprefix(INDIRECT))
        if plain and extent == node.limits[j]:
            value: Value = places[j]
        else:
            value = _coordinate(coord, places, compute)
            value = _refused(coord, extent, sizes, node, places, value, compute)
        assert isinstance(value, Load)
        result.append(Coord(index=len(used)))
        used.append(value)
    return _with_index(Table(tuple(result), tuple(used)), table.layout, node, places, compute)


def by_offset(table: PlanBuffer, index: Index, node: Node, places: Sequence[Load], compute: Compute) -> Table | None:
    """Coordinates decoded from the linear offset, whatever the index is; None if the table has too many dims."""
    assert table.layout is not None
    if len(_descending(table.layout)) > MAX_INDICES:
        return None
    rest = _coordinate(Coord(index.terms, index.const), places, compute)
    if table.offset:
        rest = compute("add", (rest, Const(table.offset, _INT)), _INT)
    result = [Coord()] * len(table.layout.device_size)
    used: list[Load] = []
    for axis in _descending(table.layout):
        stride = table.layout.stride_map[axis]
        value: Value = rest
        if stride > 1:
            value = compute("floordiv", (rest, Const(stride, _INT)), _INT)
            rest = compute("remainder", (rest, Const(stride, _INT)), _INT)
        if not used:  # the highest digit shows what is wrong with the indices
            for j, limit in enumerate(node.limits):
                if len(node.limits) > 1 or limit < table.span:
                    value = _checked(places[j], limit, value, compute)
        assert isinstance(value, Load)
        result[axis] = Coord(index=len(used))
        used.append(value)
    return _with_index(Table(tuple(result), tuple(used)), table.layout, node, places, compute)


def _with_index(table: Table, layout: Layout, node: Node, places: Sequence[Load], compute: Compute) -> Table:
    """A table that no index moves in still has its indices checked: 0 along its lanes."""
    if table.places:
        return table
    value: Value = places[0]
    if layout.device_size[-1] != node.limits[0]:
        value = _checked(places[0], node.limits[0], value, compute)
    assert isinstance(value, Load)
    return Table((*table.coords[:-1], Coord(index=0)), (value,))


def _descending(layout: Layout) -> list[int]:
    axes = [i for i, (s, n) in enumerate(layout.axes()) if s > 0 and n > 1]
    return sorted(axes, key=lambda i: -layout.stride_map[i])


def _coordinate(coord: Coord, places: Sequence[Load], compute: Compute) -> Value:
    """The value of a coordinate at each point, by integer operations."""
    total: Value | None = None
    own = Index(tuple(t for t in coord.terms if not is_indirect(t)), coord.const)
    for t in coord.terms:
        if is_indirect(t):
            part = _digit(t, places, compute)
            total = part if total is None else compute("add", (total, part), _INT)
    assert total is not None
    if own.terms:
        return compute("add", (total, Position(own)), _INT)
    return compute("add", (total, Const(own.const, _INT)), _INT) if own.const else total


def _digit(t: Term, places: Sequence[Load], compute: Compute) -> Value:
    value: Value = places[int(t.dim.removeprefix(INDIRECT))]
    if t.div > 1:
        value = compute("floordiv", (value, Const(t.div, _INT)), _INT)
    if t.mod:
        value = compute("remainder", (value, Const(t.mod, _INT)), _INT)
    return compute("mul", (value, Const(t.scale, _INT)), _INT) if t.scale != 1 else value


def _refused(
    coord: Coord,
    extent: int,
    sizes: Mapping[str, int],
    node: Node,
    places: Sequence[Load],
    value: Value,
    compute: Compute,
) -> Value:
    """`value`, or one that is refused where the extent of the device dim would not show that an index is outside."""
    for t in coord.terms:
        if not is_indirect(t) or t.mod:  # the highest digit of an index is the one without a modulus
            continue
        j = int(t.dim.removeprefix(INDIRECT))
        exact = len(coord.terms) == 1 and not coord.const and t.scale == 1 and node.limits[j] % t.div == 0
        if not exact or extent != term_range(t, sizes):
            value = _checked(places[j], node.limits[j], value, compute)
    return value


def _checked(place: Load, limit: int, value: Value, compute: Compute) -> Value:
    below = compute("lesserthan", (place, Const(limit, _INT)), "bool")
    above = compute("greaterequal", (place, Const(0, _INT)), "bool")
    inside = compute("mul", (below, above), "bool")
    refused = compute("bit_or", (place, Const(-(2**31), _INT)), _INT)
    return compute("where3", (inside, value, refused), _INT)
