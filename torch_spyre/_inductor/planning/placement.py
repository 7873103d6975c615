# SPDX-License-Identifier: Apache-2.0
"""Placement of live ranges in one address space: the solver behind the scratchpad and the memory pool."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from torch_spyre._inductor.planning.plan_graph import PlanNode
from torch_spyre.constants import STICK_BYTES


@dataclass(frozen=True)
class Request:
    """`bytes` needed at every step from `first` to `last`, both included.

    A request may start in place of `parent`, an equally large one whose last step is this one's first.
    """

    name: str
    bytes: int
    first: int
    last: int
    parent: str = ""


def place(requests: Iterable[Request], capacity: int) -> tuple[dict[str, int], int]:
    """Addresses of the requests that fit and the extent used: first fit by first step.

    If something does not fit, the order by size and length of life is tried too; the one that places more bytes wins.
    """
    wanted = list(requests)
    found = _first_fit(sorted(wanted, key=lambda r: (r.first, -r.bytes)), capacity, by_first=True)
    if len(found[0]) < len(wanted):
        other = _first_fit(sorted(wanted, key=lambda r: ((r.last - r.first) * r.bytes, r.first)), capacity)
        size = {r.name: r.bytes for r in wanted}
        if sum(size[n] for n in other[0]) > sum(size[n] for n in found[0]):
            return other
    return found


def _sticks(size: int) -> int:
    return -(-max(size, 1) // STICK_BYTES) * STICK_BYTES


def _first_fit(requests: Sequence[Request], capacity: int, by_first: bool = False) -> tuple[dict[str, int], int]:
    """In the given order, each at the lowest free address. In order of first steps, what has ended never comes back."""
    placed: dict[str, tuple[Request, int]] = {}
    alive: list[tuple[Request, int]] = []
    extent = 0
    for request in requests:
        size = _sticks(request.bytes)
        if by_first:
            alive = [(r, at) for r, at in alive if request.first <= r.last]
        rivals = [(r, at) for r, at in alive if r.first <= request.last and request.first <= r.last]
        at = _in_place(request, placed, rivals)
        if at is None:
            at = 0
            for start, end in sorted((a, a + _sticks(r.bytes)) for r, a in rivals):
                if at + size <= start:
                    break
                at = max(at, end)
        if at + size > capacity:
            continue
        placed[request.name] = (request, at)
        alive.append((request, at))
        extent = max(extent, at + size)
    return {name: at for name, (_, at) in placed.items()}, extent


def _in_place(
    request: Request, placed: dict[str, tuple[Request, int]], rivals: Sequence[tuple[Request, int]]
) -> int | None:
    """The parent's address, if the parent dies here and nobody else needs those bytes."""
    if request.parent not in placed:
        return None
    parent, at = placed[request.parent]
    if parent.last != request.first or parent.bytes != request.bytes:
        return None
    end = at + _sticks(request.bytes)
    taken = any(r is not parent and a < end and at < a + _sticks(r.bytes) for r, a in rivals)
    return None if taken else at


def live_ranges(nodes: Sequence[PlanNode], chunked: Collection[str] = ()) -> dict[str, tuple[int, int]]:
    """Buffer -> (first write, last use) as positions in the node list.

    What a tile loop touches lives through all its trips, except buffers that hold one trip's part only.
    """
    bounds = loop_bounds(nodes)
    ranges: dict[str, tuple[int, int]] = {}
    for i, node in enumerate(nodes):
        for value in (*node.loads(), node.output):
            begin, end = (i, i) if value.buffer in chunked else bounds.get(node.loop, (i, i))
            first, last = ranges.get(value.buffer, (begin, end))
            ranges[value.buffer] = (min(first, begin), max(last, end))
    return ranges


def loop_bounds(nodes: Sequence[PlanNode]) -> dict[int, tuple[int, int]]:
    """Tile loop -> positions of its first and last node."""
    bounds: dict[int, tuple[int, int]] = {}
    for i, node in enumerate(nodes):
        if node.loop:
            bounds[node.loop] = (bounds.get(node.loop, (i, i))[0], i)
    return bounds
