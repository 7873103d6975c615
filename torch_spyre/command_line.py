# SPDX-License-Identifier: Apache-2.0
"""What all commands have in common: `spyre-ktir` and `spyre ktir` are one, and speak alike.

Every parser has ``--version`` and an example under its ``--help``; ``--json`` prints one JSON document on stdout, and
nothing else goes there; ``--quiet`` leaves out notes and progress. Exit status 0: fine, 1: something was found wrong,
2: the call itself cannot be right.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch_spyre import __version__
from torch_spyre.errors import SpyreError, exit_status

INTERRUPTED = 130  # as shells count a process that SIGINT ended
_family = "spyre-"  # what stands before the name of a command


def call(main: Callable[[Sequence[str]], int], words: Sequence[str]) -> int:
    """Runs a command as `spyre <name>`: usage and messages name it so."""
    global _family
    before, _family = _family, "spyre "
    try:
        return main(words)
    finally:
        _family = before


def full_name(name: str) -> str:
    """As the user called it: ``spyre-ktir`` or ``spyre ktir``."""
    return f"{_family}{name}"


def parser(name: str, description: str | None, example: str, **more: Any) -> argparse.ArgumentParser:
    """The parser of a command. `example` holds its words behind the name, a line for each example."""
    lines = "\n".join(f"  {full_name(name)} {words}".rstrip() for words in example.splitlines())
    heading = "examples" if len(example.splitlines()) > 1 else "example"
    epilog = f"{heading}:\n{lines}" + (f"\n\n{more.pop('epilog')}" if more.get("epilog") else "")
    more.pop("epilog", None)
    made = argparse.ArgumentParser(
        prog=full_name(name),
        description=(description or "").replace("``", ""),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **more,
    )
    made.add_argument("--version", action="version", version=f"torch_spyre {__version__}")
    return made


def add_json(command: argparse.ArgumentParser, text: str = "print one JSON document instead of text") -> None:
    command.add_argument("--json", action="store_true", help=text)


def add_quiet(command: argparse.ArgumentParser, text: str = "no notes and no progress on stderr") -> None:
    command.add_argument("-q", "--quiet", action="store_true", help=text)


def count(text: str) -> int:
    """The value of an option that counts something: a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def output_file(text: str) -> str:
    """The value of an option that names a file to write, checked before any work is done."""
    if os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text} is a directory; name a file")
    folder = os.path.dirname(text) or "."
    if not os.path.isdir(folder):
        raise argparse.ArgumentTypeError(f"{text}: there is no directory {folder}; make it first")
    return text


def print_json(value: Any) -> None:
    """One document. Numbers that JSON lacks are null."""
    print(json.dumps(_plain(value), indent=1, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)


def error_record(error: BaseException) -> dict[str, str]:
    return {"kind": type(error).__name__, "message": str(error)}


def guarded(name: str, action: Callable[[], int], bad: int = 0) -> int:
    """Runs a command: what the user can put right is a message and not a traceback. `bad` is the exit status of all
    errors, if one fits all."""
    try:
        return int(action())
    except (SpyreError, OSError, ImportError) as error:
        if isinstance(error, BrokenPipeError):  # `| head` has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        print(f"{full_name(name)}: {said}", file=sys.stderr)
        return bad or exit_status(error)
    except KeyboardInterrupt:
        return INTERRUPTED
