# SPDX-License-Identifier: Apache-2.0
"""``spyre completion bash|zsh|fish``: prints the script that completes `spyre` in a shell.

The scripts ask ``spyre completion words -- <words>`` what may follow, which reads the parsers of the commands; where
nothing is known, the shell completes file names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from torch_spyre import command_line
from torch_spyre.cli.commands import commands

_SCRIPTS = {
    "bash": """_spyre() {
  mapfile -t COMPREPLY < <(spyre completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -o bashdefault -F _spyre spyre""",
    "zsh": """autoload -U +X bashcompinit && bashcompinit
_spyre() {
  COMPREPLY=("${(@f)$(spyre completion words -- "${COMP_WORDS[@]:1:$COMP_CWORD}" 2>/dev/null)}")
}
complete -o default -F _spyre spyre""",
    "fish": """function __spyre_words
  spyre completion words -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null
end
complete -c spyre -a '(__spyre_words)'""",
}


def make_parser() -> argparse.ArgumentParser:
    text = "Print the script that completes `spyre` in a shell."
    example = "bash > ~/.local/share/bash-completion/completions/spyre"
    parser = command_line.parser("completion", text, example)
    parser.add_argument("shell", choices=(*_SCRIPTS, "words"), help="words: what may follow the words behind --")
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(argv)
    if options.shell == "words":
        print("\n".join(candidates(options.words or [""])))
    else:
        print(_SCRIPTS[options.shell])
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """What may stand for the last word, which may be empty or begun."""
    *before, begun = words
    known = commands()
    if not before:
        return [name for name in known if name.startswith(begun)]
    if before[0] not in known:
        return []
    parser: argparse.ArgumentParser = known[before[0]].load().make_parser()
    for word in before[1:]:
        parser = _subparsers(parser).get(word, parser)
    return sorted({word for word in _following(parser, before[-1]) if word.startswith(begun)})


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found.update(action.choices)
    return found


def _following(parser: argparse.ArgumentParser, last: str) -> Iterator[str]:
    """Values of the option before, else options and what the positional arguments may be."""
    for action in parser._actions:
        if last in action.option_strings and action.nargs != 0:
            yield from map(str, action.choices or ())
            return
    for action in parser._actions:
        if action.help != argparse.SUPPRESS:
            yield from action.option_strings or map(str, action.choices or ())


if __name__ == "__main__":
    sys.exit(main())
