# SPDX-License-Identifier: Apache-2.0
"""``spyre-sdk run --checkout DIR -- command``: run a command, or the tests, of a checkout of the public torch-spyre."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_spyre import command_line, knobs
from torch_spyre.errors import InvalidArgument
from torch_spyre.sdk import expected, judged_run
from torch_spyre.sdk.checkout import ROOT, Checkout

EXPECTED_FAILURES = ROOT / "sdk" / "expected_failures.toml"


def main(argv: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    return command_line.guarded("sdk", lambda: _run(args))


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.parser(
        "sdk", __doc__, "run --checkout torch-spyre --expected -- python -m pytest tests/tensor"
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    run = commands.add_parser("run", help="build a checkout if need be, and run a command in its environment")
    run.add_argument("--checkout", required=True, type=Path, help="folder of the checkout")
    run.add_argument("--sdk", type=Path, help="what `make sdk` made (default: made in the cache)")
    run.add_argument("--json", type=Path, help="json.hpp of nlohmann/json 3.11.2, to build without a network")
    text = "run pytest to the end, judge its tests by a list of expected failures, and compare with the last run"
    run.add_argument(
        "--expected",
        nargs="?",
        const=EXPECTED_FAILURES,
        type=Path,
        metavar="LIST",
        help=f"{text} (default: {EXPECTED_FAILURES.name})",
    )
    run.add_argument(
        "--results", type=Path, metavar="FOLDER", help="where --expected keeps its runs (default: in the cache)"
    )
    run.add_argument("words", nargs="+", metavar="command", help="behind --")
    return parser


def _run(args: argparse.Namespace) -> int:
    try:
        entries = None if args.expected is None else expected.load(args.expected)
        checkout = Checkout(args.checkout, args.sdk or _made(), args.json)
        if entries is None:
            return checkout.run(args.words)
        return judged_run.run(checkout, entries, args.words, args.results or checkout.place / "results")
    except subprocess.CalledProcessError as error:
        words = " ".join(map(str, error.cmd))
        print(f"{command_line.full_name('sdk')}: {words} failed with status {error.returncode}", file=sys.stderr)
    return 2


def _made() -> Path:
    """The SDK in the cache, up to date."""
    source = ROOT / "sdk"
    if not (source / "Makefile").is_file():
        raise InvalidArgument("the SDK's sources are not beside this package; run from a source tree, or give --sdk")
    prefix = Path(knobs.get("cache_dir")).expanduser() / "sdk"
    command = ["make", "--silent", "-C", str(source), "-j2", f"PREFIX={prefix}", f"PYTHON={sys.executable}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return prefix


if __name__ == "__main__":
    sys.exit(main())
