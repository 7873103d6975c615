# SPDX-License-Identifier: Apache-2.0
"""The command ``spyre-smi``: an overview, or ``spyre-smi dmon`` for a line per card and interval.

Reads status files only: it imports no torch and opens no card.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from torch_spyre import command_line, status_files

Row = dict[str, Any]

# dmon: title, key, width. Rates are per second of wall time; busy is a share of the card's own clock.
_DMON = (
    ("pid", "pid", 8),
    ("dev", "device", 4),
    ("busy%", "busy_percent", 6),
    ("rsvmem MiB", "memory_mib", 11),
    ("rdmem MB/s", "read_mb_s", 11),
    ("wrmem MB/s", "write_mb_s", 11),
    ("rxpci MB/s", "dma_in_mb_s", 11),
    ("txpci MB/s", "dma_out_mb_s", 11),
    ("launch/s", "launches_s", 9),
)
_OVERVIEW = ("PID", "Card", "Memory", "Busy %", "Launches", "In", "Out")
_PROCESS_WIDTH = 12  # at least
_GROUP_WIDTH = 110  # room for the numbers, also in a narrow terminal
_RATES = (
    ("read_mb_s", "memory_read_bytes", 1e-6),
    ("write_mb_s", "memory_write_bytes", 1e-6),
    ("dma_in_mb_s", "dma_in_bytes", 1e-6),
    ("dma_out_mb_s", "dma_out_bytes", 1e-6),
    ("launches_s", "launches", 1.0),
)


def cards() -> list[Row]:
    """One row per open card of every process."""
    rows = []
    for process in status_files.processes():
        for card in process["cards"]:
            rows.append(
                {
                    "pid": process["pid"],
                    "process": process["name"],
                    "time": process["time"],
                    "age_s": round(process["age_s"], 1),
                    **{k: v for k, v in card.items() if k != "counters"},
                    **{name: card["counters"].get(name) for name in status_files.COUNTERS},
                }
            )
    return rows


def groups() -> list[Row]:
    """One row per group of every process."""
    return [{"pid": p["pid"], **group} for p in status_files.processes() for group in p["groups"]]


def busy_percent(now: Row, before: Row | None = None) -> float | None:
    """Share of the device clock in which the card worked: since `before`, or since it was opened."""
    if now["busy_ns"] is None or now["clock_ns"] is None:
        return None
    busy = now["busy_ns"] - (before["busy_ns"] if before else 0)
    span = now["clock_ns"] - (before["clock_ns"] if before else 0)
    return 0.0 if span <= 0 else min(100.0, 100.0 * busy / span)


def samples(interval: float, count: int | None) -> Iterator[list[Row]]:
    """Rows of dmon, one list per interval. A card's first sample has no rates."""
    before: dict[tuple[int, int], Row] = {}
    taken = 0
    while True:
        rows = cards()
        yield [_sample(row, before.get((row["pid"], row["device"]))) for row in rows]
        taken += 1
        if count is not None and taken >= count:
            return
        before = {(row["pid"], row["device"]): row for row in rows}
        time.sleep(interval)


def _sample(now: Row, before: Row | None) -> Row:
    row: Row = {"pid": now["pid"], "device": now["device"], "memory_mib": now["memory_used_bytes"] / 2**20}
    row["busy_percent"] = busy_percent(now, before)
    span = now["time"] - before["time"] if before else 0.0
    for key, counter, scale in _RATES:
        rate = None
        if before is not None and now[counter] is not None and before[counter] is not None:
            rate = scale * (now[counter] - before[counter]) / span if span > 0 else 0.0
        row[key] = rate
    return row


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _dmon(interval: float, count: int | None, as_json: bool) -> None:
    header = "#" + " ".join(title.rjust(width) for title, _, width in _DMON)[1:]
    for number, rows in enumerate(samples(interval, count)):
        if as_json:
            print(json.dumps({"time": time.time(), "cards": rows}), flush=True)
            continue
        if number % 20 == 0:
            print(header)
        for row in rows:
            print(" ".join(_text(row[key]).rjust(width) for _, key, width in _DMON))
        if not rows:
            print("# no process of this user has a card open")
        sys.stdout.flush()


def _overview(as_json: bool) -> None:
    rows = cards()
    for row in rows:
        row["busy_percent"] = busy_percent(row)
    if as_json:
        print(json.dumps({"time": time.time(), "cards": rows, "groups": groups()}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not rows:
        console.print("No process of this user has a card open.")
        return
    lines = [_overview_line(row) for row in rows]
    widths = [max(len(title), *(len(line[i]) for line in lines)) for i, title in enumerate(_OVERVIEW)]
    fixed = sum(width + 3 for width in widths) + 4
    process = max(_PROCESS_WIDTH, console.width - fixed)  # rich would take the room from the numbers instead
    table = Table(title="spyre-smi", title_justify="left")
    for title, width in zip(_OVERVIEW, widths, strict=True):
        table.add_column(title, justify="right", no_wrap=True, min_width=width)
    table.add_column("Process", no_wrap=True)
    for line in lines:
        table.add_row(*line[:-1], line[-1][:process])
    console.print(table, width=fixed + process, crop=False)
    found = groups()
    if found:
        Console(width=max(console.width, _GROUP_WIDTH)).print(_group_table(found), crop=False)


def _group_table(rows: Sequence[Row]) -> Any:
    from rich.table import Table

    table = Table(title="groups of cards", title_justify="left")
    for title in ("PID", "Group", "Rank", "Links", "Collectives", "Messages", "Sent", "Received"):
        table.add_column(title, justify="left" if title in ("Group", "Links") else "right", no_wrap=True)
    for row in rows:
        kinds = [name for name in row["links"] if name != "itself"]
        links = ", ".join(f"{kinds.count(name)} {name}" for name in sorted(set(kinds)))
        moved = [_bytes(row[key]) for key in ("sent_bytes", "received_bytes")]
        counts = [str(row[key]) for key in ("collectives", "messages")]
        rank = f"{row['rank']} of {len(row['ranks'])}"
        table.add_row(str(row["pid"]), row["name"], rank, links, *counts, *moved)
    return table


def _overview_line(row: Row) -> list[str]:
    memory = f"{_bytes(row['memory_used_bytes'])} / {_bytes(row['memory_total_bytes'])}"
    busy, launches = _text(row["busy_percent"]), _text(row["launches"])
    moved = [_bytes(row[k]) for k in ("dma_in_bytes", "dma_out_bytes")]
    return [str(row["pid"]), f"spyre:{row['device']}", memory, busy, launches, *moved, row["process"]]


def _bytes(count: int | None) -> str:
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def _positive(text: str) -> float:
    with contextlib.suppress(ValueError):
        if (value := float(text)) > 0:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not a positive number")


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.parser("smi", "The cards of all processes of this user.", "--json\ndmon -d 1 -c 10")
    command_line.add_json(parser)
    commands = parser.add_subparsers(dest="command")
    dmon = commands.add_parser("dmon", help="one line per card and interval, until interrupted")
    dmon.add_argument("-d", "--delay", type=_positive, default=1.0, metavar="SECONDS", help="interval (default 1)")
    dmon.add_argument("-c", "--count", type=command_line.count, default=None, metavar="N", help="stop after N samples")
    dmon.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="one JSON object per line")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(argv)
    try:
        if options.command == "dmon":
            _dmon(options.delay, options.count, options.json)
        else:
            _overview(options.json)
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    except OSError as error:
        print(f"{command_line.full_name('smi')}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
