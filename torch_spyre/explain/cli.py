# SPDX-License-Identifier: Apache-2.0
"""``spyre explain``: run a script, then one table of what its kernels take; details, JSON and pictures on request."""

from __future__ import annotations

import argparse
import contextlib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_spyre import command_line, explain
from torch_spyre.explain import lines
from torch_spyre.explain.lines import Explained

_TEXT = """Run a script, then print what its compiled kernels take, by user line: time, traffic, bottleneck, cores.

Options stand before the script; what follows it is passed to it. The exit status is that of the script, or 2 if there
is no such script."""


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.parser("explain", _TEXT, "train.py --steps 1\n--html page.html train.py")
    parser.add_argument("--details", action="store_true", help="also layouts, core splits and places of each kernel")
    parser.add_argument("--eager", action="store_true", help="also kernels of eager operations")
    parser.add_argument(
        "--html", metavar="FILE", type=command_line.output_file, help="write a page with pictures of the plans"
    )
    command_line.add_json(parser, "print one JSON document; what the script prints goes to stderr")
    parser.add_argument("script", nargs="?", help="the Python program to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.script is None:
        parser.error("which script?")
    if not Path(options.script).exists():
        parser.error(f"there is no script {options.script}")
    if Path(options.script).is_dir() and not (Path(options.script) / "__main__.py").exists():
        parser.error(f"{options.script} is a directory without __main__.py; name a script")
    return command_line.guarded("explain", lambda: _explain(options))


def _explain(options: argparse.Namespace) -> int:
    explain.start()
    sys.argv = [options.script, *options.arguments]
    if Path(options.script).is_file():
        sys.path.insert(0, str(Path(options.script).resolve().parent))  # as `python script.py` does
    try:
        with contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext():
            runpy.run_path(options.script, run_name="__main__")
    finally:
        explain.stop()
        sys.stdout.flush()
        _show(options)
    return 0


def _show(options: argparse.Namespace) -> None:
    found = [lines.explained(record) for record in explain.last_kernels()]
    kernels = [k for k in found if options.eager or not k.eager]
    if options.html:
        from torch_spyre.explain.page import page  # late: start-up

        Path(options.html).write_text(page(kernels, options.script))
    if options.json:
        command_line.print_json({"script": options.script, "kernels": lines.data(kernels)})
        return
    left_out = len(found) - len(kernels)
    if kernels:
        print(f"\n{lines.headline(kernels)}\n")
        _print_table(kernels)
        print()
    if left_out:
        print(f"{left_out} kernel{'s' * (left_out != 1)} of eager operations left out (--eager)")
    if options.details:
        for k in kernels:
            print(k.record.text())
    elif kernels:
        print("--details: layouts, core splits, where each tensor lives; --html FILE: pictures")
    if options.html:
        print(options.html)


def _print_table(kernels: Sequence[Explained]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in lines.HEADER:
        number = name in ("cores", "us", "%", "read", "written")
        table.add_column(name, justify="right" if number else "left", no_wrap=name != "operations")
    for total, cells in lines.rows(kernels):
        table.add_row(*(Text(cell) for cell in cells), style="bold" if total else None)
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)


if __name__ == "__main__":
    sys.exit(main())
