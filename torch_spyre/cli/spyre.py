# SPDX-License-Identifier: Apache-2.0
"""``spyre <command> ...``: looks the command up and calls it. Imports no torch; each command imports what it needs."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence

from torch_spyre import __version__, command_line
from torch_spyre.cli.commands import commands

_EXAMPLES = """examples:
  spyre doctor
  spyre explain --html page.html script.py
  spyre predict llama-3.1-8b --prompt 512"""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"torch_spyre {__version__}")
        return 0
    known = commands()
    command = known.get(words[0])
    if command is None:
        near = difflib.get_close_matches(words[0], known, 1)
        hint = f"; did you mean {near[0]}?" if near else ";"
        print(f"spyre: there is no command {words[0]!r}{hint} `spyre --help` lists the commands", file=sys.stderr)
        return 2
    return command_line.guarded(command.name, lambda: command_line.call(command.load().main, words[1:]))


def _help() -> str:
    known = commands().values()
    width = max(len(command.name) for command in known)
    lines = "\n".join(f"  {command.name:<{width}}  {command.text}" for command in known)
    return (
        f"usage: spyre [--version] <command> ...\n\n{lines}\n\n`spyre <command> --help` says more about each. "
        f"`spyre-<command>` is the same for those with a command of their own.\n"
        f"Exit status: 0 fine, 1 something was found wrong, 2 the call cannot be right.\n\n{_EXAMPLES}"
    )


if __name__ == "__main__":
    sys.exit(main())
