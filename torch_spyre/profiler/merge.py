# SPDX-License-Identifier: Apache-2.0
"""Traces of several ranks as one: a collective ends at the same moment on all of them, which says how far their clocks
are apart. Arrows lead from rank to rank through each collective."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch_spyre.errors import InvalidArgument
from torch_spyre.profiler.trace import load_json

Event = dict[str, Any]
Key = tuple[str, int]  # group and number of a collective
_RANK_PIDS = 10_000_000  # process numbers of one rank; pids of Linux are smaller


def merge(paths: Sequence[str], output: str) -> None:
    """Writes one trace of all ranks' traces, given in any order."""
    if len(paths) < 2:
        raise InvalidArgument("merge needs the traces of at least two ranks")
    traces = [load_json(path) for path in paths]
    collectives = [_collectives(data["traceEvents"]) for data in traces]
    for path, found in zip(paths, collectives, strict=True):
        if not found:
            raise InvalidArgument(f"{path} has no collective of spyreccl, so nothing ties it to the other traces")
    ranks = [_rank(data, position) for position, data in enumerate(traces)]
    if len(set(ranks)) < len(ranks):
        raise InvalidArgument(f"two of the traces are of the same rank: {', '.join(map(str, ranks))}")
    shifts = [_shift(collectives[0], found, path) for found, path in zip(collectives, paths, strict=True)]
    events = [
        _moved(event, rank, shift)
        for data, rank, shift in zip(traces, ranks, shifts, strict=True)
        for event in data["traceEvents"]
    ]
    events.extend(_arrows([_collectives(_of_rank(events, rank)) for rank in sorted(ranks)]))
    Path(output).write_text(json.dumps({**traces[0], "traceEvents": events}))


def _rank(data: dict[str, Any], position: int) -> int:
    return int((data.get("distributedInfo") or {}).get("rank", position))


def _of_rank(events: list[Event], rank: int) -> list[Event]:
    return [e for e in events if isinstance(e.get("pid"), int) and e["pid"] // _RANK_PIDS == rank + 1]


def _collectives(events: list[Event]) -> dict[Key, Event]:
    found = {}
    for event in events:
        args = event.get("args") or {}
        if event.get("ph") == "X" and args.get("coll_kind") not in (None, "send", "recv"):
            found[str(args["coll_group"]), int(args["coll_sequence"])] = event
    return found


def _shift(first: dict[Key, Event], other: dict[Key, Event], path: str) -> float:
    """Microseconds to add to the times of the other trace."""
    common = first.keys() & other.keys()
    if not common:
        raise InvalidArgument(f"{path} shares no collective with the first trace; profile the same steps on all ranks")
    return statistics.median(_end(first[key]) - _end(other[key]) for key in common)


def _end(event: Event) -> float:
    return float(event["ts"]) + float(event["dur"])


def _moved(event: Event, rank: int, shift: float) -> Event:
    """The event on the common clock, under process numbers of its rank."""
    moved = dict(event)
    if isinstance(event.get("ts"), (int, float)):
        moved["ts"] = event["ts"] + shift
    if isinstance(event.get("pid"), int):
        moved["pid"] = (rank + 1) * _RANK_PIDS + event["pid"]
    if event.get("ph") in ("s", "t", "f"):
        moved["id"] = f"{rank}:{event.get('id')}"
    if event.get("ph") == "M" and event.get("name") == "process_name":
        moved["args"] = {"name": f"rank {rank}: {(event.get('args') or {}).get('name', '')}"}
    return moved


def _arrows(by_rank: list[dict[Key, Event]]) -> Iterator[Event]:
    """From each rank's part of a collective to the next rank's."""
    for key in by_rank[0]:
        parts = [found[key] for found in by_rank if key in found]
        for step, (source, target) in enumerate(itertools.pairwise(parts)):
            common = {"cat": "collective", "name": str(source["args"]["coll_kind"]), "id": f"{key[0]}:{key[1]}:{step}"}
            yield {**common, "ph": "s", "pid": source["pid"], "tid": source["tid"], "ts": source["ts"]}
            yield {**common, "ph": "f", "bp": "e", "pid": target["pid"], "tid": target["tid"], "ts": _end(target)}
