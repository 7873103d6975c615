# SPDX-License-Identifier: Apache-2.0
"""TTIR text to a module in which every operation knows the line of the user's kernel that it comes from."""

from __future__ import annotations

import re
import warnings
from functools import cache

from xdsl.context import Context
from xdsl.dialects import builtin, cf, func, math, ub
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, ModuleOp, StringAttr
from xdsl.ir import Operation
from xdsl.utils.exceptions import ParseError

from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.ktir.dialect.arith_ops import Arith
from torch_spyre.ir.ktir.dialect.scf_ops import Scf
from torch_spyre.ir.ktir.reader import KtirParser
from torch_spyre.triton.lowering.refusals import refuse_unknown
from torch_spyre.triton.lowering.ttir_ops import Tt

_DEFINITION = re.compile(r"^(#loc\d*) = loc\((.*)\)\s*$", re.MULTILINE)
_PLACE = re.compile(r'"([^"]*)":(\d+):(\d+)')
_ALIAS = re.compile(r"#loc\d*")
_USE = re.compile(r"\bloc\((.*)\)\s*$")

Place = tuple[str, int, int]


@cache
def context() -> Context:
    """The dialects that TTIR is written in."""
    ctx = Context()
    for dialect in (builtin.Builtin, func.Func, Arith, math.Math, Scf, cf.Cf, ub.UB, Tt):
        ctx.load_dialect(dialect)
    return ctx


class Places:
    """The user's line behind each line of TTIR."""

    def __init__(self, text: str) -> None:
        self._definitions = {match[1]: match[2] for match in _DEFINITION.finditer(text)}
        self._lines = text.splitlines()
        self._found: dict[str, Place | None] = {}

    def of(self, number: int) -> Place | None:
        """The place of the operation on a line of the text, counted from 1, or of the next one that has a place."""
        for line in self._lines[number - 1 :]:
            use = _USE.search(line)
            place = self._resolve(use[1]) if use else None
            if place is not None:
                return place
        return None

    def _resolve(self, location: str) -> Place | None:
        """The first file and line that a location names; of a call it is the innermost one."""
        if location not in self._found:
            self._found[location] = None  # a location that names itself has no place
            direct, alias = _PLACE.search(location), _ALIAS.search(location)
            if direct is not None:
                self._found[location] = (direct[1], int(direct[2]), int(direct[3]))
            elif alias is not None and alias[0] in self._definitions:
                self._found[location] = self._user_line(location)
        return self._found[location]

    def _user_line(self, location: str) -> Place | None:
        """Of the places of a call chain, the outermost one outside of Triton's own library."""
        places = [self._resolve(self._definitions[a]) for a in _ALIAS.findall(location) if a in self._definitions]
        known = [place for place in places if place is not None]
        own = [place for place in known if "/triton/language/" not in place[0]]
        return next(iter(own or known), None)


# Hints to a compiler for GPUs, which a core that runs one instruction after the other does not need.
_DROPPED = re.compile(r"^\s*(?:ttg\.barrier|gpu\.barrier|llvm\.intr\.assume|tt\.print)\b.*$", re.MULTILINE)
_PRINTS = re.compile(r"^\s*tt\.print\b", re.MULTILINE)
_LIBRARY = re.compile(r"^  tt\.func private .*?^  \}.*?$", re.MULTILINE | re.DOTALL)


def _without_library(text: str) -> str:
    """Without the functions whose calls say all; lines keep their numbers."""
    return _LIBRARY.sub(lambda match: "\n" * match[0].count("\n"), _DROPPED.sub("", text))


def read(text: str, name: str) -> ModuleOp:
    """The module of a kernel. Operations that no pass knows are refused here, before the parser stumbles over them."""
    places = Places(text)
    if _PRINTS.search(text):
        warnings.warn(
            f"kernel {name}: device_print prints nothing, a core has no output; store the value and print that",
            UserWarning,
            stacklevel=2,
        )
    text = _without_library(text)
    refuse_unknown(text, places)
    spelled = re.sub(r"\btt\.(func|return)\b", r"func.\1", text)
    spelled = re.sub(r"\bscf\.while :", "scf.while () :", spelled)  # xDSL wants the list of its values, empty or not
    parser = KtirParser(context(), spelled, name)
    try:
        module = parser.parse_module()
    except ParseError as error:
        line, _ = parser.place(error.span.start)
        place = places.of(line)
        where = f"{place[0]}:{place[1]}: " if place else ""
        raise UnsupportedOp(f"{where}kernel {name}: TTIR that is not understood here: {error.msg}") from error
    for op in module.walk():
        _locate(op, places)
    return module


def _locate(op: Operation, places: Places) -> None:
    own = op.location
    if isinstance(own, FileLineColLoc):
        place = places.of(own.line.data)
        if place is not None:
            op.location = FileLineColLoc(StringAttr(place[0]), IntAttr(place[1]), IntAttr(place[2]))
