# SPDX-License-Identifier: Apache-2.0
"""First-fit placement of live ranges in one address space: the solver behind the scratchpad and the memory pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch_spyre.constants import STICK_BYTES


@dataclass(frozen=True)
class Request:
    """`bytes` needed at every step from `first` to `last`, both included."""

    name: str
    bytes: int
    first: int
    last: int


def place(requests: Iterable[Request], capacity: int) -> tuple[dict[str, int], int]:
    """Addresses of the requests that fit (in order of their first step) and the extent used."""
    placed: list[tuple[Request, int]] = []
    addresses: dict[str, int] = {}
    extent = 0
    for request in sorted(requests, key=lambda r: (r.first, -r.bytes)):
        size = -(-max(request.bytes, 1) // STICK_BYTES) * STICK_BYTES
        busy = sorted(
            (address, address + -(-max(r.bytes, 1) // STICK_BYTES) * STICK_BYTES)
            for r, address in placed
            if r.first <= request.last and request.first <= r.last
        )
        at = 0
        for start, end in busy:
            if at + size <= start:
                break
            at = max(at, end)
        if at + size > capacity:
            continue
        placed.append((request, at))
        addresses[request.name] = at
        extent = max(extent, at + size)
    return addresses, extent


def live_ranges(graph_nodes: Iterable[object]) -> dict[str, tuple[int, int]]:
    """Buffer -> (first write, last use) as positions in the node list."""
    ranges: dict[str, tuple[int, int]] = {}
    for i, node in enumerate(graph_nodes):
        for value in (*node.loads(), node.output):  # type: ignore[attr-defined]
            first, _ = ranges.get(value.buffer, (i, i))
            ranges[value.buffer] = (first, i)
    return ranges
