# SPDX-License-Identifier: Apache-2.0
# pytest tests/tools/test_fabric.py
"""The time of collectives, against the parts that a public trace shows."""

from __future__ import annotations

import subprocess
import sys

import pytest

from torch_spyre.errors import InvalidArgument
from torch_spyre.perf.device import load, parse
from torch_spyre.perf.fabric import Fabric, collective_line, collective_seconds

KINDS = "all_reduce reduce broadcast all_gather reduce_scatter gather scatter all_to_all send barrier".split()
SIZE = 524288  # of the trace


def us(kind: str, nbytes: int, cards: int, fabric: Fabric | None = None) -> float:
    return collective_seconds(kind, nbytes, cards, fabric or Fabric.of()).seconds * 1e6


def test_parts_of_the_trace():
    """One hop, the multicast to three and the add kernel lie where the trace has them."""
    assert 20 <= us("send", SIZE, 2) <= 24
    assert us("broadcast", SIZE, 4) == pytest.approx(56.6, rel=0.01)
    fabric = Fabric.of()
    assert 16.4 <= (fabric.add_start + SIZE / fabric.add_rate) * 1e6 <= 16.8


def test_all_reduce_of_the_trace_is_the_sum_of_its_parts():
    """Four adds, three hops, one multicast, one after another: from the first card's add to its receive."""
    found = collective_seconds("all_reduce", SIZE, 4, Fabric.of())
    assert found.seconds * 1e6 == pytest.approx(4 * 16.6 + 3 * 22.0 + 56.6, rel=0.01)
    assert found.algorithm == "chain+multicast"
    assert found.wire_bytes == 6 * SIZE


@pytest.mark.parametrize("kind", KINDS)
def test_one_card_has_nobody_to_talk_to(kind):
    found = collective_seconds(kind, SIZE, 1, Fabric.of())
    assert (found.seconds, found.wire_bytes, found.algorithm) == (0.0, 0, "none")


@pytest.mark.parametrize("kind", KINDS)
def test_more_bytes_cards_and_switches_take_longer(kind):
    times = [us(kind, SIZE, cards) for cards in (2, 4, 8, 16, 32)]
    assert times == sorted(times)
    assert times[1] < times[2] < times[4], "another switch, and host memory, are slower classes"
    assert us(kind, 2 * SIZE, 4) > us(kind, SIZE, 4) or kind == "barrier"
    assert us(kind, 0, 4) > 0, "an empty message still has to be told"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cards", [2, 3, 8, 16])
def test_the_line_is_the_time(kind, cards):
    start, per_byte = collective_line(kind, cards, Fabric.of())
    for nbytes in (0, 1, 128, 1 << 30):
        assert collective_seconds(kind, nbytes, cards, Fabric.of()).seconds == start + per_byte * nbytes


def test_wire_bytes():
    """Bytes from card to card: counted by hand for three cards and 300 bytes."""
    wanted = {
        "all_reduce": 1200,  # two hops, two receivers
        "reduce": 900,  # two hops, the result to its owner
        "broadcast": 600,
        "all_gather": 600,  # three parts of 100 to two cards each
        "reduce_scatter": 800,  # two hops, two parts of 100
        "gather": 200,
        "scatter": 200,
        "all_to_all": 600,
        "send": 300,
    }
    for kind, nbytes in wanted.items():
        assert collective_seconds(kind, 300, 3, Fabric.of()).wire_bytes == nbytes, kind


def test_constants_come_from_the_description():
    fast = Fabric.of(load().with_values(fabric__link_bandwidth=57.2, fabric__message_start=1.75))
    assert us("send", SIZE, 2, fast) == pytest.approx(us("send", SIZE, 2) / 2, rel=0.01)
    wide = Fabric.of(load().with_values(fabric__switch_cards=8))
    assert collective_seconds("all_reduce", SIZE, 8, wide).algorithm == "chain+multicast"
    assert Fabric.of(load("half_spyre")) == Fabric.of(load("spyre"))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f: collective_seconds("allreduce", 8, 2, f), "'allreduce' is unknown; known are all_reduce"),
        (lambda f: collective_seconds("all_reduce", 8, 0, f), "of 0 cards"),
        (lambda f: collective_seconds("all_reduce", -8, 2, f), "of -8 bytes"),
        (lambda f: Fabric.of(parse("name = 'bare'")), "bare has no constant fabric."),
        (lambda f: Fabric.of(load().with_values(fabric__switch_cards=0.5)), "at least 1"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(InvalidArgument, match=words):
        call(Fabric.of())


def test_the_law_imports_no_torch():
    code = "import sys, torch_spyre.perf.fabric; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
