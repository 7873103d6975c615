# SPDX-License-Identifier: Apache-2.0
"""The time of a collective: what cards send one another over PCIe switches, and what they add on the way.

The mechanism is the one a public 4-card trace shows. Every card adds its part to what it received and sends the sum to
the next, in ascending rank; the last card has the total and multicasts it. Members of a group fill the switches in
order, so a group of up to `switch_cards` stays on one switch. For a kind and a number of cards the time is a straight
line in the size of the message: callers that launch often take `collective_line` once.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from torch_spyre.errors import InvalidArgument
from torch_spyre.perf.device import Device, load

_FLAG_BYTES = 128  # what a barrier sends: one stick


@dataclass(frozen=True)
class Fabric:
    """Cards and the links between them. Seconds and bytes per second."""

    switch_cards: int  # on one switch, peer to peer
    tree_cards: int  # reach one another through switches only
    message_start: float
    hop_latency: float  # of each switch on the way
    link_bandwidth: float
    multicast_bandwidth: float  # of one card to all its receivers together
    uplink_bandwidth: float  # between switches
    host_bandwidth: float  # between trees, through host memory
    add_start: float
    add_rate: float  # of message bytes in an add kernel

    @classmethod
    def of(cls, device: Device | None = None) -> Fabric:
        """The `[fabric]` of a description, by default of the card that plans are made for."""
        device = device or load()
        us, gb = 1e-6, 1e9
        fabric = cls(
            int(device["fabric.switch_cards"]),
            int(device["fabric.tree_cards"]),
            device["fabric.message_start"] * us,
            device["fabric.hop_latency"] * us,
            device["fabric.link_bandwidth"] * gb,
            device["fabric.multicast_bandwidth"] * gb,
            device["fabric.uplink_bandwidth"] * gb,
            device["fabric.host_bandwidth"] * gb,
            device["fabric.add_start"] * us,
            device["fabric.add_rate"] * gb,
        )
        if min(fabric.switch_cards, fabric.tree_cards) < 1:
            raise InvalidArgument(f"{device.name}: fabric.switch_cards and fabric.tree_cards are at least 1")
        return fabric

    def switches(self, cards: int) -> int:
        return math.ceil(cards / self.switch_cards)


@dataclass(frozen=True)
class CollectiveTime:
    seconds: float
    algorithm: str
    wire_bytes: int  # from card to card, in all


class Line(NamedTuple):
    """``start + per_byte * bytes`` seconds."""

    start: float
    per_byte: float

    def and_then(self, other: Line) -> Line:
        return Line(self.start + other.start, self.per_byte + other.per_byte)

    def times(self, count: int) -> Line:
        return Line(self.start * count, self.per_byte * count)

    def of_part(self, share: float) -> Line:
        """For messages of that share of the bytes."""
        return Line(self.start, self.per_byte * share)

    def at(self, nbytes: int) -> float:
        return self.start + self.per_byte * nbytes


_NOTHING = Line(0.0, 0.0)


def collective_seconds(kind: str, nbytes: int, cards: int, fabric: Fabric) -> CollectiveTime:
    """From when the last of `cards` members is ready until all are done.

    `nbytes` is the whole message on one card, in the card's format: for all_gather and gather the whole output, for
    reduce_scatter, scatter and all_to_all the whole input. A send goes to the farthest of `cards` cards.
    """
    if nbytes < 0:
        raise InvalidArgument(f"collective {kind} of {nbytes} bytes: a size is not negative")
    line = collective_line(kind, cards, fabric)
    wire = _FLAG_BYTES if kind == "barrier" else nbytes
    return CollectiveTime(line.at(nbytes), algorithm(kind, cards, fabric), math.ceil(wire * wire_copies(kind, cards)))


@functools.lru_cache(maxsize=1024)
def collective_line(kind: str, cards: int, fabric: Fabric) -> Line:
    """(a, b) so that the collective takes ``a + b * nbytes`` seconds."""
    if kind not in _KINDS:
        raise InvalidArgument(f"collective {kind!r} is unknown; known are {', '.join(_KINDS)}")
    if cards < 1:
        raise InvalidArgument(f"collective {kind} of {cards} cards: a group has at least one")
    return _KINDS[kind](cards, fabric) if cards > 1 else _NOTHING


def algorithm(kind: str, cards: int, fabric: Fabric) -> str:
    """The name that traces and reports show."""
    if cards <= 1:
        return "none"
    single, several = _ALGORITHMS[kind]
    return single if cards <= fabric.switch_cards else several


class Cost(NamedTuple):
    """A collective as the card's links count it: ns, ns per byte, and bytes on wires per byte of the message."""

    start_ns: float
    ns_per_byte: float
    wire_copies: float
    algorithm: str


def collective_costs(cards: int, fabric: Fabric) -> dict[str, Cost]:
    """By kind, in a group of so many cards. Messages are between two of them."""

    def cost(kind: str, cards: int) -> Cost:
        line = collective_line(kind, cards, fabric)
        return Cost(line.start * 1e9, line.per_byte * 1e9, wire_copies(kind, cards), algorithm(kind, cards, fabric))

    return {kind: cost(kind, min(cards, 2) if kind == "send" else cards) for kind in _KINDS}


def _message(a: int, b: int, f: Fabric) -> Line:
    """One message from card to card."""
    if a // f.switch_cards == b // f.switch_cards:
        return Line(f.message_start + f.hop_latency, 1 / f.link_bandwidth)
    if a // f.tree_cards == b // f.tree_cards:
        return Line(f.message_start + 3 * f.hop_latency, 1 / f.uplink_bandwidth)  # up, across, down
    return Line(2 * (f.message_start + 2 * f.hop_latency), 1 / f.host_bandwidth)  # into host memory and out again


def _farthest(cards: int, f: Fabric) -> Line:
    return _message(0, cards - 1, f)


def _local_multicast(cards: int, f: Fabric) -> Line:
    """From one card to the others on its switch: one start, and every copy takes its time on the sender's link."""
    return Line(f.message_start + f.hop_latency, (cards - 1) / f.multicast_bandwidth) if cards > 1 else _NOTHING


def _multicast(cards: int, f: Fabric) -> Line:
    """The last card sends to one card of every other switch in turn; then each multicasts on its own switch."""
    last = cards - 1
    line = _NOTHING
    for switch in range(f.switches(cards) - 1):
        line = line.and_then(_message(switch * f.switch_cards, last, f))
    return line.and_then(_local_multicast(min(cards, f.switch_cards), f))


def _hops(cards: int, f: Fabric) -> Line:
    return functools.reduce(Line.and_then, (_message(i, i + 1, f) for i in range(cards - 1)), _NOTHING)


def _chain(cards: int, f: Fabric) -> Line:
    """Every card adds, the first one into the empty send buffer; all but the last send on."""
    return Line(f.add_start, 1 / f.add_rate).times(cards).and_then(_hops(cards, f))


def _all_reduce(cards: int, f: Fabric) -> Line:
    return _chain(cards, f).and_then(_multicast(cards, f))


def _reduce(cards: int, f: Fabric) -> Line:
    return _chain(cards, f).and_then(_farthest(cards, f))


def _one_by_one(cards: int, f: Fabric) -> Line:
    """A different part to (or from) every other card, over one card's link."""
    parts = (_message(0, i, f).of_part(1 / cards) for i in range(1, cards))
    return functools.reduce(Line.and_then, parts, _NOTHING)


def _reduce_scatter(cards: int, f: Fabric) -> Line:
    return _chain(cards, f).and_then(_one_by_one(cards, f))


def _all_gather(cards: int, f: Fabric) -> Line:
    """On one switch all cards multicast their part at the same time; over several the parts go round a ring."""
    if cards <= f.switch_cards:
        return _local_multicast(cards, f).of_part(1 / cards)
    return _in_steps(cards, f)


def _in_steps(cards: int, f: Fabric) -> Line:
    """Every card sends one part at a time, all cards at once; the farthest pair sets the pace."""
    return _farthest(cards, f).of_part(1 / cards).times(cards - 1)


def _barrier(cards: int, f: Fabric) -> Line:
    line = _hops(cards, f).and_then(_multicast(cards, f))
    return Line(line.at(_FLAG_BYTES), 0.0)


_KINDS = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _multicast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "gather": _one_by_one,
    "scatter": _one_by_one,
    "all_to_all": _in_steps,
    "send": _farthest,
    "barrier": _barrier,
}

# on one switch, and over several
_ALGORITHMS = {
    "all_reduce": ("chain+multicast", "chain+tree multicast"),
    "reduce": ("chain+send", "chain+send"),
    "broadcast": ("multicast", "tree multicast"),
    "all_gather": ("multicast", "ring"),
    "reduce_scatter": ("chain+scatter", "chain+scatter"),
    "gather": ("direct", "direct"),
    "scatter": ("direct", "direct"),
    "all_to_all": ("pairwise", "pairwise"),
    "send": ("direct", "direct"),
    "barrier": ("chain+multicast", "chain+tree multicast"),
}


def wire_copies(kind: str, cards: int) -> float:
    """How many times the message crosses from card to card."""
    others = cards - 1
    part = others / cards
    return {
        "all_reduce": 2.0 * others,
        "reduce": others + 1.0,
        "reduce_scatter": others + part,
        "gather": part,
        "scatter": part,
        "send": 1.0,
        "barrier": 2.0 * others,
    }.get(kind, float(others)) * (cards > 1)
