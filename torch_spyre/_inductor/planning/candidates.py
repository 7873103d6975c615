# SPDX-License-Identifier: Apache-2.0
"""Splits worth considering for a node: its own good ones, and those that let it share a scratchpad with a neighbour.

Slices are whole sticks and may be uneven: the last core of a dim gets what is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torch_spyre import constants
from torch_spyre._inductor.passes.coordinates import rewrite_index
from torch_spyre._inductor.planning.cost import NodeCost
from torch_spyre._inductor.planning.ownership import Split, cores_of
from torch_spyre._inductor.planning.plan_graph import PlanGraph, PlanNode
from torch_spyre._inductor.planning.plan_options import PlanOptions
from torch_spyre.ir.plan.tileops import Dim

_OVER_SPAN = 1e12
_ROWS = 8  # rows that a core should at least have before k is cut instead
MOST_K_WAYS = 8  # parts of k over the cores, where an operand spans too much
_K_STICKS = 4  # sticks of k that each part should at least have


def granularity(graph: PlanGraph, node: PlanNode) -> dict[str, int]:
    """Elements that must stay together along each dim: the largest stick any operand has along it."""
    grains = {d.name: 1 for d in node.tiles}
    values = [*node.loads(), node.output]
    for value, coords in zip(values, node.accesses, strict=True):
        layout = graph.buffers[value.buffer].layout
        if not coords or layout is None:
            continue
        for term in coords[-1].terms:
            grains[term.dim] = max(grains[term.dim], layout.elems_per_stick)
    return grains


def splittable(node: PlanNode) -> list[Dim]:
    """Dims along which cores write different elements of the result."""
    fixed = node.fixed()
    return [d for d in node.tiles if d.size > 1 and d.name not in fixed]


def in_sums(node: PlanNode) -> set[str]:
    """Dims that share a device coordinate or a linear offset with others: the back end follows the trips of a tile loop
    along those only in chunks of one size."""
    found: set[str] = set()
    for value, coords in zip((*node.loads(), node.output), node.accesses, strict=True):
        for c in (rewrite_index(node, value.index),) if coords is None else coords:
            dims = {t.dim for t in c.terms}
            found |= dims if len(dims) > 1 else set()
    return found


def _units(dim: Dim, grains: dict[str, int]) -> int:
    """Sticks (or elements) along a dim, the last one counted whole."""
    return -(-dim.size // grains[dim.name])


def cut(dim: Dim, grain: int, slices: int, even: bool = False) -> tuple[str, int, int]:
    """At most `slices` slices of whole sticks; all but the last are equal, and the last too if `even`."""
    units = -(-dim.size // grain)
    if even:
        slices = next(n for n in range(max(1, min(slices, units)), 0, -1) if units % n == 0)
    each = -(-units // max(1, min(slices, units)))
    return dim.name, -(-units // each), each * grain


def own(node: PlanNode, grains: dict[str, int], options: PlanOptions, cost: NodeCost, count: int) -> list[Split]:
    """The cheapest splits that a node would choose alone, and each single dim, which neighbours share most easily."""
    if node.row.is_matmul:
        return best(dict.fromkeys(_matmul(node, grains, options)), cost, count)
    dims = sorted(splittable(node), key=lambda d: -_units(d, grains))
    single = [_ordered(node, [cut(d, grains[d.name], options.cores, options.for_sdsc)]) for d in dims[:3]]
    spread = dict.fromkeys(_spread(node, dims, grains, options))
    return list(dict.fromkeys((*best(spread, cost, count), *single)))


def alone(node: PlanNode, grains: dict[str, int], options: PlanOptions) -> list[Split]:
    """Splits of a node that has no neighbours: few, because eager execution plans every op by itself."""
    if node.row.is_matmul:
        return list(dict.fromkeys(_matmul(node, grains, options)))
    dims = sorted(splittable(node), key=lambda d: -_units(d, grains))
    return [_chain([first, *(d for d in dims if d is not first)], grains, options, node) for first in dims[:2]]


def even(node: PlanNode, grains: dict[str, int], split: Split) -> bool:
    """Are the slices of each dim equal, the last stick counted whole?"""
    sizes = {d.name: d for d in node.tiles}
    return all(name in sizes and _units(sizes[name], grains) % slices == 0 for name, slices, _ in split)


def _spread(node: PlanNode, dims: Sequence[Dim], grains: dict[str, int], options: PlanOptions) -> Iterable[Split]:
    yield ()
    for first in dims[:3]:
        yield _chain([first, *(d for d in dims if d is not first)], grains, options, node)
    for share in _powers(options.cores):
        if len(dims) > 1 and 1 < share < options.cores:
            shares = zip(dims, (share, options.cores // share), strict=False)
            yield _ordered(node, [cut(d, grains[d.name], n, options.for_sdsc) for d, n in shares])


def _chain(dims: Sequence[Dim], grains: dict[str, int], options: PlanOptions, node: PlanNode) -> Split:
    """Cuts the dims in turn until the cores are used up."""
    result, cores = [], options.cores
    for dim in dims:
        piece = cut(dim, grains[dim.name], cores, options.for_sdsc)
        result.append(piece)
        cores //= piece[1]
        if cores < 2:
            break
    return _ordered(node, result)


def _ordered(node: PlanNode, pieces: Iterable[tuple[str, int, int]]) -> Split:
    """Core digits in the order of the result's device dims, so that neighbours that cut alike agree on the cores."""
    position = {d.name: i + 100 for i, d in enumerate(node.tiles)}
    for axis, coord in reversed(list(enumerate(node.accesses[-1] or ()))):
        position.update({t.dim: axis for t in coord.terms})
    return tuple(sorted((p for p in pieces if p[1] > 1), key=lambda p: (position[p[0]], p[0])))


def _powers(limit: int) -> list[int]:
    return sorted({1 << i for i in range(limit.bit_length()) if 1 << i <= limit} | {limit})


def keeps_sums(node: PlanNode, grains: dict[str, int], options: PlanOptions, split: Split) -> bool:
    """Whether a split adds up a matmul in the order that its shape alone gives, whatever its neighbours would like."""
    if not node.row.is_matmul:
        return True
    ways = math.prod(slices for name, slices, _ in split if name in node.reduced)
    allowed = _k_ways(*_matmul_parts(node, grains), options)
    return ways in allowed or (ways == 1 and not any(_matmul(node, grains, options)))


def _matmul_parts(node: PlanNode, grains: dict[str, int]) -> tuple[dict[str, list[Dim]], dict[str, int]]:
    """Dims of batch, rows, columns and k, and how many sticks or elements each has."""
    parts = {kind: [d for d in node.tiles if d.name.split(".")[0].rstrip("0123456789") == kind] for kind in "bmnk"}
    return parts, {kind: math.prod(-(-d.size // grains[d.name]) for d in dims) for kind, dims in parts.items()}


def _matmul(node: PlanNode, grains: dict[str, int], options: PlanOptions) -> Iterable[Split]:
    """Batch x rows x columns x k: all powers of two, with the columns taking what is left."""
    cores = options.cores
    parts, units = _matmul_parts(node, grains)
    for k in _k_ways(parts, units, options):
        for b in _powers(min(cores // k, units["b"])):
            for m in _powers(min(cores // (k * b), units["m"])):
                shares = {"b": b, "m": m, "n": cores // (k * b * m), "k": k}
                pieces = []
                for kind, share in shares.items():
                    equal = options.for_sdsc or (kind == "k" and options.even_k)
                    pieces += _over(parts[kind], share, grains, equal)
                if k == 1 or _partial_bytes(pieces) <= options.scratch:
                    yield _ordered(node, pieces)


def _k_ways(parts: dict[str, list[Dim]], units: dict[str, int], options: PlanOptions) -> tuple[int, ...]:
    """How often k may be cut. Partial sums round differently, so this depends on the shape alone: k is cut where the
    result is too small for the cores and k is long; and may be cut further where an operand spans too much memory."""
    if len(parts["k"]) != 1:
        return (1,)
    cores = options.cores
    ways = k_ways(units["b"], units["m"], units["n"], units["k"], cores) if options.cuts_k else 1
    huge = parts["k"][0].size * max(units["m"], units["n"] * 64) * 2 > constants.MAX_SPAN_BYTES
    if huge and not options.cuts_k:
        return (min(cores, MOST_K_WAYS),)
    return tuple(n for n in (1, 2, 4, MOST_K_WAYS) if n <= cores) if huge else (ways,)


def k_ways(batch: int, rows: int, columns: int, k: int, cores: int) -> int:
    """Parts of k for a matmul of so many matrices, rows, sticks of columns and sticks of k."""
    idle = cores // (batch * -(-rows // _ROWS) * columns)
    return max(1, 1 << min(idle, k // _K_STICKS).bit_length() >> 1)


def _partial_bytes(pieces: Iterable[tuple[str, int, int]]) -> int:
    """fp32 partial results of one core, which the back end keeps in its share of LX until they are summed."""
    return 4 * math.prod(extent for name, _, extent in pieces if not name.startswith("k"))


def _over(dims: Sequence[Dim], slices: int, grains: dict[str, int], even: bool) -> list[tuple[str, int, int]]:
    """Spreads slices over the pieces of one logical dim, outer first."""
    result = []
    for dim in dims:
        piece = cut(dim, grains[dim.name], slices, even)
        result.append(piece)
        slices //= piece[1]
    return result


def alone_ns(cost: NodeCost, split: Split) -> float:
    """Price with everything in memory; out of reach if a core's part of a tensor spans too much."""
    return cost.ns(split) + span_penalty(cost, split)


def span_penalty(cost: NodeCost, split: Split) -> float:
    limit = max((layout.bytes for layout in cost.layouts if layout is not None), default=0)
    if limit <= constants.MAX_SPAN_BYTES:
        return 0.0
    extents = {**cost.sizes, **{name: extent for name, _, extent in split if name in cost.sizes}}
    worst = max(
        sum((-(-extents[d] // div) - 1) * stride for d, stride, div, mod in a.loops if not mod)
        for a in cost.accesses
        if a is not None
    )
    return _OVER_SPAN * (worst / constants.MAX_SPAN_BYTES) if worst > constants.MAX_SPAN_BYTES else 0.0


def best(splits: Iterable[Split], cost: NodeCost, count: int) -> list[Split]:
    """The cheapest few, deterministic."""
    return sorted(splits, key=lambda s: (alone_ns(cost, s), -cores_of(s), s))[:count]
