# SPDX-License-Identifier: Apache-2.0
"""bundle.mlir: which SuperDSC files run, in which order, with which addresses.

A bundle is one function over base addresses of launch arguments: constants, sums, `affine.apply`, `scf.for` and
`sdscbundle.sdsc_execute`, whose operands replace the symbol ids of a file. `executions` runs that function: loops are
unrolled, every operand becomes an address (launch argument, byte offset).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from torch_spyre.constants import SEGMENT_BYTES
from torch_spyre.errors import InvalidProgram, UnsupportedOp

MAX_EXECUTIONS = 1024
_MAX_STATEMENTS = 100_000
_MAX_STATEMENT = 1 << 20  # characters

_VALUE = r"%[\w.$-]+"
_NUMBER = r"-?\d{1,19}"
_TYPE = r"(?:\s*:.*)?"
_MAP = re.compile(r"(#\w+)\s*=\s*affine_map<\s*\(([^()]*)\)\s*(?:\[([^\[\]]*)\])?\s*->\s*\((.*)\)\s*>")
_MODULE = re.compile(r"module(?:\s+@[\w.$-]+)?\s*(?:attributes\s*\{.*\}\s*)?\{")
_FUNCTION = re.compile(r"func\.func\s+(?:private\s+|public\s+)?@([\w.$-]+)\s*\((.*)\)\s*(?:attributes\s*\{.*\}\s*)?\{")
_CONSTANT = re.compile(rf"({_VALUE})\s*=\s*arith\.constant\s+({_NUMBER}){_TYPE}")
_BINARY = re.compile(rf"({_VALUE})\s*=\s*arith\.(addi|muli|subi)\s+({_VALUE})\s*,\s*({_VALUE}){_TYPE}")
_EXTRACT = re.compile(rf"({_VALUE})\s*=\s*sdscbundle\.input_arg_extract\s+\w+\s+from\s+({_VALUE}){_TYPE}")
_APPLY = re.compile(
    rf"({_VALUE})\s*=\s*affine\.apply\s+(#\w+|affine_map<.*?\)>)\s*\(([^()]*)\)\s*(?:\[([^\[\]]*)\])?{_TYPE}"
)
_FOR = re.compile(rf"scf\.for\s+({_VALUE})\s*=\s*({_VALUE})\s+to\s+({_VALUE})\s+step\s+({_VALUE})\s*{_TYPE}\{{")
_EXECUTE = re.compile(r"\"?sdscbundle\.sdsc_execute\"?\s*\(([^()]*)\)\s*\{(.*)\}" + _TYPE)
_FILE = re.compile(r'"?sdsc_filename"?\s*=\s*"([^"]*)"')
_IDS = re.compile(r'"?symbol_ids"?\s*=\s*(?:array<i\d+\s*:\s*)?\[?([-\d,\s:i]*)\]?')


@dataclass(frozen=True)
class Address:
    """A byte of launch argument `arg`; plain numbers have no argument."""

    offset: int
    arg: int | None = None

    @property
    def concrete(self) -> int:
        """With every argument in the segment of its number."""
        return self.offset + (self.arg or 0) * SEGMENT_BYTES


@dataclass(frozen=True)
class Execution:
    """One run of a file: symbol id -> address, and the values of the loops around it."""

    file: str
    symbols: dict[int, int]
    loops: tuple[int, ...] = ()


@dataclass(frozen=True)
class BundleText:
    arguments: tuple[str, ...]
    executions: tuple[Execution, ...]


@dataclass
class _Loop:
    variable: str
    first: str
    limit: str
    step: str
    body: list[_Statement] = field(default_factory=list)


@dataclass(frozen=True)
class _Statement:
    text: str
    number: int
    loop: _Loop | None = None


def parse_bundle(text: str) -> BundleText:
    """InvalidProgram or UnsupportedOp name the line that cannot be read."""
    try:
        return _Parser(text).run()
    except RecursionError:
        raise InvalidProgram("bundle.mlir nests its loops too deeply") from None


def print_bundle(files: Sequence[str]) -> str:
    """The plain form: files in order, literal addresses."""
    executes = "".join(f'\t\tsdscbundle.sdsc_execute () {{sdsc_filename="{name}"}}\n' for name in files)
    return f"module {{\n\tfunc.func @sdsc_bundle() {{\n{executes}\t\treturn\n\t}}\n}}\n"


def print_symbolic_bundle(files: Sequence[str], places: Sequence[Sequence[tuple[int, int]]], arguments: int) -> str:
    """Every file with its symbols' places, (argument, byte offset) each, as operands."""
    kind = "!sdscbundle.input_arg<index>"
    names = [f"%arg_{i}_base_addr" for i in range(arguments)]
    lines = [f"func.func @sdsc_bundle({', '.join(f'{n}: {kind}' for n in names)}) {{"]
    lines += [
        f"\t%arg_{i} = sdscbundle.input_arg_extract value from {n} : {kind} -> index" for i, n in enumerate(names)
    ]
    known: dict[tuple[int, int], str] = {(i, 0): f"%arg_{i}" for i in range(arguments)}
    offsets: set[int] = set()
    executes = []
    for file, symbols in zip(files, places, strict=True):
        for arg, offset in symbols:
            if offset not in offsets and offset:
                offsets.add(offset)
                lines.append(f"\t%c{offset} = arith.constant {offset} : index")
            if (arg, offset) not in known:
                known[arg, offset] = f"%arg_{arg}_core_{offset}"
                lines.append(f"\t{known[arg, offset]} = arith.addi %arg_{arg}, %c{offset} : index")
        operands = ", ".join(known[place] for place in symbols)
        ids = ", ".join(str(-(i + 1)) for i in range(len(symbols)))
        executes.append(f'\tsdscbundle.sdsc_execute ({operands}) {{sdsc_filename="{file}", "symbol_ids"=[{ids}]}}')
    text = "".join(f"\t{line}\n" for line in (*lines, *executes, "\treturn", "}"))
    return f"module {{\n{text}}}\n"


class _Parser:
    def __init__(self, text: str) -> None:
        self.lines = _statements(text)
        self.maps: dict[str, tuple[list[str], list[str], str]] = {}
        self.arguments: list[str] = []
        self.values: dict[str, Address] = {}
        self.executions: list[Execution] = []
        self.statements = 0

    def fail(self, line: tuple[int, str] | _Statement, why: str) -> NoReturn:
        number, text = (line.number, line.text) if isinstance(line, _Statement) else line
        raise InvalidProgram(f"bundle.mlir line {number}: {why}: {text[:120]!r}")

    def run(self) -> BundleText:
        at = 0
        while at < len(self.lines) and (match := _MAP.fullmatch(self.lines[at][1])):
            self.maps[match[1]] = (_names(match[2]), _names(match[3] or ""), match[4])
            at += 1
        if at >= len(self.lines) or not _MODULE.fullmatch(self.lines[at][1]):
            raise InvalidProgram("bundle.mlir has no module")
        at += 1
        function = _FUNCTION.fullmatch(self.lines[at][1]) if at < len(self.lines) else None
        if function is None:
            raise InvalidProgram("bundle.mlir: the module does not start with a func.func")
        self._parameters(function[2], self.lines[at])
        body, at = self._block(at + 1)
        rest = [line for _, line in self.lines[at:]]
        if rest != ["}"]:
            raise InvalidProgram(f"bundle.mlir: after the function stands {rest[:3]}, expected the end of the module")
        self._execute(body, ())
        return BundleText(tuple(self.arguments), tuple(self.executions))

    def _parameters(self, text: str, line: tuple[int, str]) -> None:
        for part in filter(None, (p.strip() for p in re.split(r",(?![^<]*>)", text))):
            match = re.fullmatch(rf"({_VALUE})\s*:\s*(?:!sdscbundle\.input_arg<\w+>|index)", part)
            if match is None and re.search(r"input_arg<[^>]*(granularity|max_value)", part):
                raise UnsupportedOp(
                    f"bundle.mlir line {line[0]}: parameter {part!r} is a size given at launch; sizes are constants"
                )
            if match is None:
                self.fail(line, f"parameter {part!r} is not %name: !sdscbundle.input_arg<index>")
            self.values[match[1]] = Address(0, len(self.arguments))
            self.arguments.append(match[1].removeprefix("%").removesuffix("_base_addr"))

    def _block(self, at: int) -> tuple[list[_Statement], int]:
        """Statements up to the closing brace, and the line after it."""
        body: list[_Statement] = []
        open_loops: list[tuple[list[_Statement], _Loop]] = []
        while at < len(self.lines):
            number, line = self.lines[at]
            at += 1
            if line == "}":
                if not open_loops:
                    return body, at
                body, loop = open_loops.pop()
                body.append(_Statement("scf.for", number, loop))
            elif match := _FOR.fullmatch(line):
                loop = _Loop(match[1], match[2], match[3], match[4])
                open_loops.append((body, loop))
                body = loop.body
            elif line.endswith("{"):
                raise UnsupportedOp(f"bundle.mlir line {number}: {line[:120]!r}; the only blocks known are scf.for")
            elif line not in ("return", "func.return", "scf.yield"):
                body.append(_Statement(line, number))
        raise InvalidProgram("bundle.mlir ends inside a block; a closing brace is missing")

    def _number(self, name: str, statement: _Statement) -> Address:
        if name not in self.values:
            self.fail(statement, f"{name} is not defined here")
        return self.values[name]

    def _execute(self, body: Sequence[_Statement], loops: tuple[int, ...]) -> None:
        for statement in body:
            self.statements += 1
            if self.statements > _MAX_STATEMENTS:
                raise UnsupportedOp(f"bundle.mlir runs more than {_MAX_STATEMENTS} statements")
            if statement.loop is not None:
                self._loop(statement, loops)
            elif match := _EXECUTE.fullmatch(statement.text):
                self._run_file(statement, match[1], match[2], loops)
            else:
                self._scalar(statement)

    def _loop(self, statement: _Statement, loops: tuple[int, ...]) -> None:
        loop = statement.loop
        assert loop is not None
        bounds = [self._number(name, statement) for name in (loop.first, loop.limit, loop.step)]
        if any(b.arg is not None for b in bounds):
            raise UnsupportedOp(f"bundle.mlir line {statement.number}: loop bounds must be constants")
        first, limit, step = (b.offset for b in bounds)
        if step < 1:
            self.fail(statement, f"step {step} is not positive")
        for value in range(first, limit, step):
            self.values[loop.variable] = Address(value)
            self._execute(loop.body, (*loops, value))
            self.statements += 1
            if self.statements > _MAX_STATEMENTS:
                raise UnsupportedOp(f"bundle.mlir runs more than {_MAX_STATEMENTS} statements")

    def _scalar(self, statement: _Statement) -> None:
        text = statement.text
        if match := _CONSTANT.fullmatch(text):
            self.values[match[1]] = Address(int(match[2]))
        elif match := _BINARY.fullmatch(text):
            a, b = self._number(match[3], statement), self._number(match[4], statement)
            self.values[match[1]] = self._combine(match[2], a, b, statement)
        elif match := _EXTRACT.fullmatch(text):
            self.values[match[1]] = self._number(match[2], statement)
        elif match := _APPLY.fullmatch(text):
            self.values[match[1]] = self._apply(statement, match[2], match[3], match[4] or "")
        else:
            raise UnsupportedOp(
                f"bundle.mlir line {statement.number}: {text[:120]!r}; known are sdsc_execute, scf.for, affine.apply, "
                "input_arg_extract and arith.constant, addi, subi, muli"
            )

    def _combine(self, op: str, a: Address, b: Address, statement: _Statement) -> Address:
        if op == "addi" and (a.arg is None or b.arg is None):
            return self._checked(Address(a.offset + b.offset, b.arg if a.arg is None else a.arg), statement)
        if op == "subi" and b.arg is None:
            return self._checked(Address(a.offset - b.offset, a.arg), statement)
        if op == "muli" and a.arg is None and b.arg is None:
            return self._checked(Address(a.offset * b.offset), statement)
        self.fail(statement, f"arith.{op} of base addresses")

    def _checked(self, value: Address, statement: _Statement) -> Address:
        if abs(value.offset) >= 1 << 62:
            self.fail(statement, f"the number {value.offset} has more than 62 bits")
        return value

    def _apply(self, statement: _Statement, name: str, dims: str, symbols: str) -> Address:
        if name not in self.maps and (inline := _MAP.fullmatch(f"#inline = {name}")):
            self.maps[name] = (_names(inline[2]), _names(inline[3] or ""), inline[4])
        if name not in self.maps:
            self.fail(statement, f"map {name} is not defined")
        dim_names, symbol_names, text = self.maps[name]
        given = [[self._number(v, statement) for v in _names(part)] for part in (dims, symbols)]
        if [len(given[0]), len(given[1])] != [len(dim_names), len(symbol_names)]:
            self.fail(statement, f"map {name} takes {len(dim_names)} dims and {len(symbol_names)} symbols")
        names = dict(zip([*dim_names, *symbol_names], [*given[0], *given[1]], strict=True))
        total = Address(0)
        for sign, term in re.findall(r"([+-]?)\s*([^+-]+)", text.strip()):
            factor, value = -1 if sign == "-" else 1, Address(1)
            for part in (p.strip() for p in term.split("*")):
                if re.fullmatch(r"\d{1,19}", part):
                    factor *= int(part)
                elif part in names and value == Address(1):
                    value = names[part]
                else:
                    raise UnsupportedOp(f"bundle.mlir: affine map {name} has the term {term.strip()!r}; sums are known")
            if value.arg is not None and factor != 1:
                self.fail(statement, f"map {name} multiplies a base address")
            total = self._combine("addi", total, Address(value.offset * factor, value.arg), statement)
        return total

    def _run_file(self, statement: _Statement, operands: str, attributes: str, loops: tuple[int, ...]) -> None:
        file = _FILE.search(attributes)
        if file is None or "/" in file[1] or file[1] in ("", ".", ".."):
            self.fail(statement, "sdsc_execute needs sdsc_filename, a file of the bundle's directory")
        values = [self._number(name, statement) for name in _names(operands)]
        found = _IDS.search(attributes)
        ids = [int(n) for n in re.findall(r"-?\d{1,9}", re.sub(r":\s*i\d+", "", found[1]))] if found else []
        ids = ids or [-(i + 1) for i in range(len(values))]
        if len(ids) != len(values) or len(set(ids)) != len(ids):
            self.fail(statement, f"{len(values)} operands for symbol_ids {ids}")
        if len(self.executions) >= MAX_EXECUTIONS:
            raise UnsupportedOp(f"bundle.mlir executes more than {MAX_EXECUTIONS} files; make its loops shorter")
        symbols = {i: v.concrete for i, v in zip(ids, values, strict=True)}
        self.executions.append(Execution(file[1], symbols, loops))


def _statements(text: str) -> list[tuple[int, str]]:
    """(line number, statement); a statement goes on while a parenthesis is open."""
    found: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.split("//")[0].strip()
        if found and found[-1][1].count("(") > found[-1][1].count(")") and len(found[-1][1]) < _MAX_STATEMENT:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line}")
        elif line:
            found.append((number, line))
    return found


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
