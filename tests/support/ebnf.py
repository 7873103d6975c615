# SPDX-License-Identifier: Apache-2.0
"""Reads the grammar of a documentation page (blocks ```ebnf) and says whether it accepts a text of MLIR's look.

Alternatives, sequences, [ optional ], { repeated }, ( groups ), "terminals". Names in capitals are lexical
(`_LEXICAL`): a kind of token or a bracketed run of tokens. All ways to match are followed, in any order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

_TOKEN = re.compile(
    r"""\s+|//[^\n]*|(?P<STRING>"[^"]*")|(?P<VALUE>%[\w$.-]+(?:\#\d+)?)|(?P<SHAPE>(?:[\d?]+x)+[a-z]\w*)
    |(?P<INTEGER>-?\d+(?![\d.x]))|(?P<NUMBER>-?[\d.]+(?:[eE][-+]?\d+)?|0x[0-9A-Fa-f]+)
    |(?P<WORD>[\#!^@]?[A-Za-z_][\w.$-]*)|(?P<MARK>->|::|==|>=|<=|\S)""",
    re.X,
)
_OPEN, _CLOSED = "<([{", ">)]}"
Rule = Callable[[int], Iterator[int]]


def tokens(text: str) -> list[tuple[str, str]]:
    return [(m.lastgroup, m[0]) for m in _TOKEN.finditer(text) if m.lastgroup is not None]


class Grammar:
    """Productions of a page by name."""

    def __init__(self, page: str) -> None:
        self.text = "\n".join(re.findall(r"^```ebnf\n(.*?)^```", page, re.S | re.M))
        self.rules = dict(re.findall(r"^([\w-]+)\s*=\s*(.*?)\s;$", self.text, re.S | re.M))
        self._found: list[tuple[str, str]] = []
        self.furthest = 0

    @property
    def terminals(self) -> set[str]:
        return set(re.findall(r'"([^"]+)"', self.text))

    def accepts(self, text: str, start: str) -> bool:
        self._found, self.furthest = tokens(text), 0
        return any(end == len(self._found) for end in self._rule(start, 0))

    def _rule(self, name: str, at: int) -> Iterator[int]:
        yield from self._alternatives(_parts(self.rules[name]), at)

    def _alternatives(self, parts: list[str], at: int) -> Iterator[int]:
        for alternative in _split(parts, "|"):
            yield from self._sequence(alternative, at)

    def _sequence(self, parts: list[str], at: int) -> Iterator[int]:
        self.furthest = max(self.furthest, at)
        if not parts:
            yield at
            return
        first, end = parts[0], _group(parts)
        rest = parts[end:]
        inner = parts[1 : end - 1]
        if first == "[":
            yield from self._sequence(rest, at)
            ends: Iterator[int] = self._alternatives(inner, at)
        elif first == "{":
            yield from self._sequence(rest, at)
            ends = (e for e in self._alternatives(inner, at) if e > at)
            rest = parts
        elif first == "(":
            ends = self._alternatives(inner, at)
        else:
            ends = self._one(first, at)
        for e in ends:
            yield from self._sequence(rest, e)

    def _one(self, part: str, at: int) -> Iterator[int]:
        if part.startswith('"'):
            # A terminal may be several tokens ("ct_id" is one, "#ktdp.memory_space" too).
            wanted = [t for _, t in tokens(part[1:-1])]
            if [t for _, t in self._found[at : at + len(wanted)]] == wanted:
                yield at + len(wanted)
        elif part in self.rules:
            yield from self._rule(part, at)
        else:
            yield from _LEXICAL[part](self._found, at)


def _parts(body: str) -> list[str]:
    return re.findall(r'"[^"]+"|[\w-]+|[\[\](){}|]', body)


def _split(parts: list[str], mark: str) -> list[list[str]]:
    found: list[list[str]] = [[]]
    depth = 0
    for part in parts:
        depth += (part in _OPEN) - (part in _CLOSED)
        if part == mark and not depth:
            found.append([])
        else:
            found[-1].append(part)
    return found


def _group(parts: list[str]) -> int:
    """Where the group or the part ends that these begin with."""
    depth = 0
    for i, part in enumerate(parts):
        depth += (part in _OPEN) - (part in _CLOSED)
        if not depth:
            return i + 1
    raise ValueError(f"a bracket of the grammar is not closed: {' '.join(parts)}")


def _kind(kind: str, found: list[tuple[str, str]], at: int) -> Iterator[int]:
    if at < len(found) and found[at][0] == kind:
        yield at + 1


def _balanced(found: list[tuple[str, str]], at: int, brackets: str) -> Iterator[int]:
    """Past a bracketed run that begins here."""
    if at < len(found) and found[at][1] in list(brackets):
        depth = 0
        for i in range(at, len(found)):
            depth += (found[i][1] in list(_OPEN)) - (found[i][1] in list(_CLOSED))
            if not depth:
                yield i + 1
                return


def _word(found: list[tuple[str, str]], at: int) -> Iterator[int]:
    """A word, perhaps with something in angle brackets behind it."""
    if at < len(found) and found[at][0] == "WORD" and not found[at][1].startswith(("^", "@")):
        yield from _balanced(found, at + 1, "<")
        yield at + 1


def _type(found: list[tuple[str, str]], at: int) -> Iterator[int]:
    if at < len(found) and not found[at][1].startswith("#"):
        yield from _word(found, at)


def _attribute(found: list[tuple[str, str]], at: int) -> Iterator[int]:
    yield from _word(found, at)
    yield from _balanced(found, at, "[")
    for kind in ("INTEGER", "STRING", "NUMBER"):
        for end in _kind(kind, found, at):
            yield end
            if end < len(found) and found[end][1] == ":":
                yield from _type(found, end + 1)


def _intrinsic(found: list[tuple[str, str]], at: int) -> Iterator[int]:
    taken = ("spyreop.scan", "spyreop.arg_reduce", "spyreop.sort")
    if at < len(found) and found[at][1].startswith("spyreop.") and found[at][1] not in taken:
        yield at + 1


_LEXICAL: dict[str, Callable[[list[tuple[str, str]], int], Iterator[int]]] = {
    **{kind: partial(_kind, kind) for kind in ("VALUE", "INTEGER", "STRING", "SHAPE")},
    "TYPE": _type,
    "ATTRIBUTE": _attribute,
    "ATTRIBUTES": partial(_balanced, brackets="{"),
    "REGION": partial(_balanced, brackets="{"),
    "INTRINSIC": _intrinsic,
}
