# SPDX-License-Identifier: Apache-2.0
"""Traces of several ranks: exposed and overlapped communication, one trace of all, bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_spyre.profiler import cli, communication, trace

Event = dict[str, Any]


def work(name: str, start: float, duration: float, stream: int = 0, **args: Any) -> Event:
    """A span of the device; microseconds in the trace, the same on the device clock."""
    args = {"device": 0, "stream": stream, "device_start_ns": start * 1e3, "device_duration_ns": duration * 1e3, **args}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def collective(start: float, duration: float, sequence: int, rank: int = 0, kind: str = "all_reduce") -> Event:
    args = {"coll_kind": kind, "coll_group": "0", "coll_algo": "chain+multicast", "coll_bytes": 1000,
            "coll_wire_bytes": 2000, "coll_sequence": sequence, "coll_rank": rank, "coll_peers": "0,1"}  # fmt: skip
    return work(f"ncclDevKernel_spyreccl_{kind}", start, duration, 65, **args)


def write(path: Path, events: list[Event], rank: int = 0) -> str:
    path.write_text(json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events}))
    return str(path)


def test_exposed_is_what_no_kernel_covers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [collective(10, 10, 1), work("k", 5, 8), work("k", 18, 10), collective(40, 5, 2)])
    read = trace.read(path)
    assert len(read.kernels) == 2 and [e.sequence for e in read.exchanges] == [1, 2]
    assert communication.exposed_ns(read) == pytest.approx((5 + 5) * 1e3)
    (total,) = communication.by_kind(read)
    assert (total.calls, total.cards, total.bytes) == (2, 2, 2000)
    assert total.ns == pytest.approx(15e3) and total.exposed_ns == pytest.approx(10e3)


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=6)


@given(spans, st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=6))
def test_exposed_time_second_by_second(waits: list[tuple[int, int]], kernels: list[tuple[int, int]]) -> None:
    read = trace.Trace("t")
    for start, length in kernels:
        read.kernels.append(trace.Kernel("k", 0, 0, start, length, start, {}))
    for number, (start, length) in enumerate(waits):
        read.exchanges.append(
            trace.Exchange("all_reduce", "0", "", 0, 65, start, length, 0, 0, number, 0, (0, 1))
        )  # fmt: skip
    waiting = {t for start, length in waits for t in range(start, start + length)}
    running = {t for start, length in kernels for t in range(start, start + length)}
    assert communication.exposed_ns(read) == pytest.approx(len(waiting - running))


def test_summary_tells_exposed_and_overlapped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.json", [collective(10, 10, 1), work("k", 5, 10)])
    assert cli.main(["summary", path]) == 0
    text = capsys.readouterr().out
    assert "exposed 5.0 us" in text and "overlapped with kernels 5.0 us" in text and "chain+multicast" in text


def test_merged_ranks_share_a_clock_and_arrows(tmp_path: Path) -> None:
    first = write(tmp_path / "0.json", [collective(10, 10, 1), collective(40, 5, 2), work("k", 0, 9)])
    second = write(tmp_path / "1.json", [collective(1015, 5, 1, 1), collective(1041, 4, 2, 1)], rank=1)
    output = tmp_path / "all.json"
    assert cli.main(["merge", second, first, "-o", str(output)]) == 0
    events = json.loads(output.read_text())["traceEvents"]
    ends: dict[int, set[float]] = {}
    for e in events:
        if "coll_kind" in e.get("args", {}):
            ends.setdefault(e["args"]["coll_sequence"], set()).add(e["ts"] + e["dur"])
    assert all(len(found) == 1 for found in ends.values())
    assert len({e["pid"] for e in events}) == 2
    arrows = [e for e in events if e["ph"] in ("s", "f")]
    assert len(arrows) == 4 and {e["id"] for e in arrows} == {"0:1:0", "0:2:0"}


ONE = collective(1, 1, 1)


@pytest.mark.parametrize(
    ("others", "rank", "reason"),
    [
        (None, 0, "at least two"),
        ([work("k", 1, 1)], 1, "no collective"),
        ([collective(1, 1, 2)], 1, "shares no"),
        ([ONE], 0, "same rank"),
    ],
)
def test_traces_that_do_not_belong_together(
    others: list[Event] | None, rank: int, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [write(tmp_path / "0.json", [ONE])]
    if others is not None:
        paths.append(write(tmp_path / "1.json", others, rank))
    assert cli.main(["merge", *paths, "-o", str(tmp_path / "all.json")]) == 2
    assert reason in capsys.readouterr().err
