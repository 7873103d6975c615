# SPDX-License-Identifier: Apache-2.0
"""The parser of KTIR text: xDSL's, with what real files contain and it lacks.

Source locations (`loc(...)`, `#loc3 = loc(...)`) count as white space, an alias may be defined after its use, and a
hexadecimal literal of a float gives its bits. Each operation remembers its line and column in the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, cast

from xdsl.context import Context
from xdsl.dialects.builtin import FileLineColLoc, FloatAttr, IntAttr, StringAttr, _FloatType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.parser import AttrParser, Parser
from xdsl.parser.generic_parser import ParserState
from xdsl.utils.exceptions import ParseError
from xdsl.utils.lexer import Input, Span
from xdsl.utils.mlir_lexer import MLIRLexer

_LOCATION = re.compile(r"(?:#loc\w*\s*=\s*)?\bloc\(")
_ALIAS_DEFINITION = re.compile(r"^[ \t]*([#!][A-Za-z_$][\w$.-]*)\s*=(?!=)", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*")


class _Lexer(MLIRLexer):
    """xDSL's lexer, to which source locations are white space."""

    def _consume_whitespace(self) -> None:
        super()._consume_whitespace()
        content = self.input.content
        while content.startswith(("loc", "#loc"), self.pos) and (match := _LOCATION.match(content, self.pos)):
            self.pos = self._closing_parenthesis(match.end())
            super()._consume_whitespace()

    def _closing_parenthesis(self, start: int) -> int:
        """Position after the parenthesis that closes the one before `start`; quoted text does not count."""
        content = self.input.content
        depth, quoted, position = 1, False, start
        while position < len(content):
            character = content[position]
            if quoted and character == "\\":
                position += 1
            elif character == '"':
                quoted = not quoted
            elif not quoted:
                depth += (character == "(") - (character == ")")
                if depth == 0:
                    return position + 1
            position += 1
        raise ParseError(Span(start - 1, start, self.input), "a loc( is not closed")

    # As xDSL's, but without a repetition inside a repetition, which takes exponential time on an open string.
    _unescaped_characters_regex = re.compile(r'"(?:[^"\\\n\v\f]|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*"')


class KtirParser(Parser):
    class _TensorLiteralElement(AttrParser._TensorLiteralElement):
        def to_type(self, parser: AttrParser, type: Any) -> Any:
            if isinstance(type, _FloatType) and self.span.text[:2].lower() == "0x":
                return float_of_bits(parser, self.span, type)
            return super().to_type(parser, type)

    def __init__(self, ctx: Context, text: str, name: str, strict: bool = False) -> None:
        super().__init__(ctx, "", name)
        self.strict = strict
        self.warnings: list[str] = []
        self._parser_state = ParserState(_Lexer(Input(text, name)))
        self._name = StringAttr(name)
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._definitions: dict[str, int] | None = None
        self._resolved_early: set[str] = set()
        self._names: dict[SSAValue, str] = {}

    # -- aliases ---------------------------------------------------------------------------------------------------

    def _parse_extended_type_or_attribute(self, attr_or_dialect_name: str, is_type: bool) -> Any:
        alias = ("!" if is_type else "#") + attr_or_dialect_name
        if "." not in attr_or_dialect_name and alias not in self.attribute_aliases:
            self._resolve_alias(alias)
        return super()._parse_extended_type_or_attribute(attr_or_dialect_name, is_type)  # type: ignore[call-overload]

    def _resolve_alias(self, alias: str) -> None:
        """Reads the definition of an alias ahead of its turn."""
        if self._definitions is None:
            self._definitions = self._find_definitions()
        position = self._definitions.pop(alias, None)
        if position is None:
            return
        back = self.pos
        self._resume_from(position)
        self.attribute_aliases[alias] = self.parse_attribute()
        self._resolved_early.add(alias)
        self._resume_from(back)

    def _find_definitions(self) -> dict[str, int]:
        content = _COMMENT.sub(lambda match: " " * len(match.group()), self.lexer.input.content)
        return {match.group(1): match.end() for match in _ALIAS_DEFINITION.finditer(content)}

    def _parse_alias_def(self) -> None:
        alias = self._current_token.text
        if alias not in self._resolved_early:
            super()._parse_alias_def()  # type: ignore[no-untyped-call]
            return
        self._resolved_early.discard(alias)
        self._consume_token()
        self.parse_punctuation("=")
        self.parse_attribute()

    def _register_ssa_definition(self, name: str, values: Sequence[SSAValue], span: Span[str]) -> None:
        super()._register_ssa_definition(name, values, span)
        if len(values) == 1 and isinstance(values[0], BlockArgument) and SSAValue.is_valid_name(name):
            self._names[values[0]] = name

    def _name_arguments(self, function: FuncOp) -> None:
        """An argument keeps its whole name: `%x_0` and `%x_1` are two names by which a caller gives tensors."""
        for arg in function.body.blocks[0].args if function.body.blocks else ():
            arg._name = self._names.get(arg)

    def note_older_spelling(self, what: str) -> None:
        if self.strict:
            self.raise_error(f"{what} is not the dialect; the lenient mode accepts it")
        line, column = self.place(self.pos)
        self.warnings.append(f"{self._name.data}:{line}:{column}: {what}")

    # -- places ----------------------------------------------------------------------------------------------------

    def parse_optional_operation(self) -> Operation | None:
        start = self.pos
        op = super().parse_optional_operation()
        if isinstance(op, FuncOp):
            self._name_arguments(op)
        if op is not None:
            line, column = self.place(start)
            op.location = FileLineColLoc(self._name, IntAttr(line), IntAttr(column))
        return op

    def place(self, position: int) -> tuple[int, int]:
        """Line and column, counted from 1."""
        line = bisect_right(self._line_starts, position)
        return line, position - self._line_starts[line - 1] + 1

    def parse_attribute(self) -> Attribute:
        """A hexadecimal literal before a float type gives the bits, as in MLIR."""
        start = self._current_token.span
        if start.text[:2].lower() != "0x":
            return super().parse_attribute()
        back = self.pos
        self._consume_token()
        if self.parse_optional_punctuation(":"):
            type_ = self.parse_type()
            if isinstance(type_, _FloatType):
                return FloatAttr(float_of_bits(self, start, type_), cast(Any, type_))
        self._resume_from(back)
        return super().parse_attribute()


def float_of_bits(parser: AttrParser, span: Span[str], type_: Any) -> float:
    size = type_.compile_time_size
    digits = span.text[2:].zfill(2 * size)
    if len(digits) > 2 * size:
        parser.raise_error(f"{span.text} has more bits than {type_}", span)
    return float(next(iter(type_.iter_unpack(bytes.fromhex(digits)[::-1]))))
