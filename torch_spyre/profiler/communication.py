# SPDX-License-Identifier: Apache-2.0
"""Collectives of a trace: which part of their time kernels of the same card cover, and which part nothing does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch_spyre.profiler.trace import Exchange, Trace

Span = tuple[float, float]  # begin, end


@dataclass
class KindTotal:
    """Sum over the collectives of one kind and group."""

    kind: str
    group: str
    algorithm: str
    cards: int
    calls: int = 0
    bytes: int = 0
    ns: float = 0.0
    exposed_ns: float = 0.0


def by_kind(trace: Trace) -> list[KindTotal]:
    """The longest total first."""
    found: dict[tuple[str, str], KindTotal] = {}
    for e in trace.exchanges:
        total = found.setdefault((e.kind, e.group), KindTotal(e.kind, e.group, e.algorithm, len(e.peers)))
        total.calls += 1
        total.bytes += e.bytes
        total.ns += e.duration_ns
        total.exposed_ns += exposed(trace, [e])
    return sorted(found.values(), key=lambda t: -t.ns)


def exposed_ns(trace: Trace) -> float:
    """Time in which a card waits for others: a collective is under way, and no kernel runs."""
    devices = {e.device for e in trace.exchanges}
    return sum(exposed(trace, [e for e in trace.exchanges if e.device == d]) for d in devices)


def exposed(trace: Trace, exchanges: list[Exchange]) -> float:
    """The part of these exchanges, all of one card, that no kernel of the card covers."""
    device = exchanges[0].device
    waits = _joined((e.start_ns, e.end_ns) for e in exchanges)
    kernels = _joined((k.start_ns, k.start_ns + k.duration_ns) for k in trace.kernels if k.device == device)
    return sum(end - begin for begin, end in waits) - _common(waits, kernels)


def _joined(spans: Iterable[Span]) -> list[Span]:
    """The same time in spans that do not touch, in order."""
    result: list[Span] = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((begin, end))
    return result


def _common(a: list[Span], b: list[Span]) -> float:
    """Time in both; each is in order."""
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total
