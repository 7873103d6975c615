# SPDX-License-Identifier: Apache-2.0
"""``spyre-trace``: tables and pictures of a torch.profiler trace, two traces compared, traces for other tools."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_spyre import command_line
from torch_spyre.perf import device as devices
from torch_spyre.profiler import convert, merge, pictures, summary, trace


def main(argv: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    return command_line.guarded("trace", lambda: args.run(args))


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.parser("trace", __doc__, "summary trace.json\nplot trace.json -o page.html")
    parser.add_argument("--device", default="spyre", help="device description whose peaks are meant")
    commands = parser.add_subparsers(required=True, metavar="command")
    tables = commands.add_parser("summary", help="tables by kernel, operation and user line")
    tables.add_argument("trace")
    tables.add_argument("-n", type=int, default=20, metavar="ROWS", help="rows of each table; 0: all (default 20)")
    command_line.add_json(tables)
    tables.set_defaults(run=_summary)
    plot = commands.add_parser("plot", help="timeline, LX occupancy and roofline as one HTML page")
    plot.add_argument("trace")
    plot.add_argument(
        "-o", "--output", type=command_line.output_file, help="HTML file (default: the trace's name with .html)"
    )
    plot.set_defaults(run=_plot)
    both = commands.add_parser("compare", help="two traces side by side")
    both.add_argument("before")
    both.add_argument("after")
    command_line.add_json(both)
    both.set_defaults(run=_compare)
    other = commands.add_parser("convert", help="the trace as another tool wants it")
    other.add_argument("trace")
    other.add_argument("--for", dest="dialect", required=True, choices=convert.DIALECTS)
    other.add_argument(
        "-o",
        "--output",
        type=command_line.output_file,
        required=True,
        help="JSON file; acelyzer's ideal cycles are put beside it",
    )
    other.set_defaults(run=_convert)
    ranks = commands.add_parser("merge", help="traces of several ranks as one, on a common clock")
    ranks.add_argument("traces", nargs="+", metavar="trace")
    ranks.add_argument("-o", "--output", type=command_line.output_file, required=True, help="JSON file")
    ranks.set_defaults(run=_merge)
    return parser


def _merge(args: argparse.Namespace) -> int:
    merge.merge(args.traces, args.output)
    print(args.output)
    return 0


def _summary(args: argparse.Namespace) -> int:
    found, device = trace.read(args.trace), devices.load(args.device)
    if args.json:
        command_line.print_json(summary.data(found, device))
    else:
        print(summary.summary(found, device, args.n))
    return 0


def _plot(args: argparse.Namespace) -> int:
    output = args.output or f"{args.trace.removesuffix('.gz').removesuffix('.json')}.html"
    Path(output).write_text(pictures.report(trace.read(args.trace), devices.load(args.device)))
    print(output)
    return 0


def _compare(args: argparse.Namespace) -> int:
    before, after = trace.read(args.before), trace.read(args.after)
    if args.json:
        command_line.print_json({"before": summary.totals(before), "after": summary.totals(after)})
    else:
        print(summary.compare(before, after))
    return 0


def _convert(args: argparse.Namespace) -> int:
    for file in convert.convert(args.trace, args.output, args.dialect):
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
