# SPDX-License-Identifier: Apache-2.0
"""KTIR text to verified modules and back."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

from xdsl.dialects.builtin import ModuleOp, _FloatType
from xdsl.ir import Operation
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException

from torch_spyre.errors import InvalidProgram
from torch_spyre.ktir.dialect import context

_ALIAS_DEFINITION = re.compile(r"^[#!][\w$.-]+\s*=")


class KtirParser(Parser):
    """xDSL's parser, except that a hexadecimal literal in a dense attribute of floats gives the bits, as in MLIR."""

    class _TensorLiteralElement(AttrParser._TensorLiteralElement):
        def to_type(self, parser: AttrParser, type: Any) -> Any:
            if isinstance(type, _FloatType) and self.span.text[:2].lower() == "0x":
                bits = self.span.text[2:].zfill(2 * type.compile_time_size)
                return next(iter(type.iter_unpack(bytes.fromhex(bits)[::-1])))
            return super().to_type(parser, type)


def parse(text: str, name: str = "<ktir>") -> ModuleOp:
    """Read and verify a module; every error is an InvalidProgram that names the place or the rule."""
    try:
        module = KtirParser(context(), _prepare(text), name).parse_module()
    except ParseError as error:
        raise InvalidProgram(f"KTIR text {name} does not parse: {error}") from error
    except VerifyException as error:
        raise InvalidProgram(f"KTIR text {name} breaks a rule: {error}") from error
    verify(module)
    return module


def print_module(module: ModuleOp) -> str:
    stream = StringIO()
    printer = Printer(stream)
    printer.print_op(module)
    printer.print_string("\n")
    return stream.getvalue()


def verify(module: Operation) -> None:
    try:
        module.verify()
    except VerifyException as error:
        raise InvalidProgram(f"KTIR module breaks a rule: {error}") from error


def _prepare(text: str) -> str:
    """Drop source locations and move alias definitions to the front, because xDSL wants them before their use."""
    if "loc(" in text:
        text = _strip_locations(text)
    lines = text.splitlines(keepends=True)
    first_op = next((i for i, line in enumerate(lines) if line.strip() and not _is_preamble(line)), len(lines))
    late = [line for line in lines[first_op:] if _ALIAS_DEFINITION.match(line)]
    if not late:
        return text
    rest = [line for line in lines[first_op:] if not _ALIAS_DEFINITION.match(line)]
    return "".join([*lines[:first_op], *(line if line.endswith("\n") else line + "\n" for line in late), *rest])


def _is_preamble(line: str) -> bool:
    return line.lstrip().startswith("//") or _ALIAS_DEFINITION.match(line) is not None


def _strip_locations(text: str) -> str:
    text = re.sub(r"^#loc\w*\s*=\s*loc\(.*\)\s*$", "", text, flags=re.MULTILINE)
    pieces = []
    position = 0
    for match in re.finditer(r"\s*\bloc\(", text):
        if match.start() < position:
            continue
        pieces.append(text[position : match.start()])
        position = _closing_parenthesis(text, match.end())
    pieces.append(text[position:])
    return "".join(pieces)


def _closing_parenthesis(text: str, start: int) -> int:
    """Position after the parenthesis that closes the one before `start`; quoted text does not count."""
    depth, quoted = 1, False
    for i in range(start, len(text)):
        character = text[i]
        if character == '"' and text[i - 1] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (character == "(") - (character == ")")
            if depth == 0:
                return i + 1
    raise InvalidProgram("KTIR text: a loc( is not closed")
