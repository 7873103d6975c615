# SPDX-License-Identifier: Apache-2.0
"""`Module`: a KTIR file as a program sees it. Made by `torch_spyre.ktir.load`."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from torch_spyre import files
from torch_spyre.backend.options import Options
from torch_spyre.errors import InvalidArgument, InvalidProgram
from torch_spyre.ir.ktir import memref_arguments, text, wide_sums
from torch_spyre.ir.ktir.legality import module_rules, tensor_tiles
from torch_spyre.ir.ktir.narrow import narrow
from torch_spyre.ir.ktir.signatures import Function
from torch_spyre.ktir.report import explain

_MAX_FILE_BYTES = 64 << 20


class KtirWarning(UserWarning):
    """A form that the dialect does not have, accepted because it can mean one thing only."""


def load(source: str | os.PathLike[str], options: Options) -> Module:
    """See `torch_spyre.ktir.load`."""
    content, name = _read(source)
    try:
        parsed, notes = text.read_with_notes(content, name, options.strict)
        text.verify(parsed)
        memref_arguments.rewrite(parsed)
        module_rules.check(parsed, axis0_fastest=options.axis0_fastest)
        tensor_tiles.rewrite(parsed)
        narrow(parsed)
        if options.wide_accumulate:
            wide_sums.rewrite(parsed)
        module = Module(parsed, name, options, tuple(notes))
    except RecursionError as error:
        raise InvalidProgram(f"{name} is nested too deeply, or a value of it takes too many steps") from error
    for note in notes:
        warnings.warn(note, KtirWarning, stacklevel=3)
    return module


def _read(source: str | os.PathLike[str]) -> tuple[str, str]:
    if isinstance(source, str) and ("\n" in source or "func.func" in source):
        return source, "<ktir>"
    path = Path(source)
    try:
        return files.read_bytes(path, _MAX_FILE_BYTES).decode("utf-8"), str(path)
    except OSError as error:
        raise InvalidArgument(f"cannot read KTIR file {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidProgram(f"KTIR file {path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except ValueError as error:
        raise InvalidArgument(f"cannot read KTIR file: {error}") from None


class Module:
    """A KTIR module that was read and verified: run it, compile it, explain it."""

    def __init__(self, op: ModuleOp, name: str, options: Options, notes: tuple[str, ...] = ()) -> None:
        self.op = op
        self.name = name
        self.options = options
        self.warnings = notes
        found = [Function(f) for f in op.body.block.ops if isinstance(f, FuncOp) and f.body.blocks]
        if not found:
            raise InvalidProgram(f"{name} has no function")
        self.functions: dict[str, Function] = {f.name: f for f in found}
        self._runners: dict[str, Any] = {}

    @property
    def text(self) -> str:
        """The module in the current spelling."""
        return text.print_module(self.op)

    def __repr__(self) -> str:
        return f"<ktir.Module {self.name}: {', '.join(f.signature for f in self.functions.values())}>"

    def function(self, fn: str | None = None) -> Function:
        if fn is None and len(self.functions) == 1:
            return next(iter(self.functions.values()))
        if fn is None or fn not in self.functions:
            what = "name one of the functions" if fn is None else f"there is no function {fn}"
            raise InvalidArgument(f"{self.name}: {what}: {', '.join(self.functions)}")
        return self.functions[fn]

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, /, *args: Any, **arguments: Any) -> None:
        """``run([fn,] *values, memory=None, lx=None, **named)``: launches a function, whose results are in the tensors.

        An `index` base address takes a tensor on a card, on the host, or a NumPy array; a scalar takes a number.
        `memory` gives tensors for literal addresses: {address as written in the function: tensor}. `lx` gives what
        ct_local views hold before the launch, in the same way: a tensor of the view's shape for all tiles, or one with
        a dim of tiles in front.
        """
        chosen = self.function(args[0] if args and isinstance(args[0], str) else None)
        memory, lx = (None if chosen.argument(n) else arguments.pop(n, None) for n in ("memory", "lx"))
        function, given = self._bind(args, arguments)
        self._runner(function).run(given, memory, lx)

    def place(self, /, *args: Any, **arguments: Any) -> dict[str, Any]:
        """The same arguments with every tensor in card memory as the function expects, so that `run` copies none."""
        function, given = self._bind(args, arguments)
        placed = self._runner(function).place(given)
        return {a.name: placed[a.position] for a in function.arguments}

    def compile(self, fn: str | None = None, **integers: int) -> Any:
        """The program of a function (`backend.compile.CompiledProgram`), compiled now and kept.

        Integer arguments are needed where views or tiles cannot be made without them.
        """
        function = self.function(fn)
        values = {self._argument(function, name).position: value for name, value in integers.items()}
        return self._runner(function).program(values or None)

    def explain(self, fn: str | None = None, **integers: int) -> str:
        """Grid, arguments, views, phases, scratchpad, instructions and time of a function, for a person to read."""
        function = self.function(fn)
        values = {self._argument(function, name).position: value for name, value in integers.items()}
        return explain(function, self.compile(fn, **integers), values)

    def _runner(self, function: Function) -> Any:
        if function.name not in self._runners:
            from torch_spyre.ktir.runner import Runner  # late: start-up

            self._runners[function.name] = Runner(self.op, function, self.options, len(self.functions) == 1)
        return self._runners[function.name]

    def _argument(self, function: Function, name: str) -> Any:
        argument = function.argument(name)
        if argument is None:
            names = ", ".join(a.name for a in function.arguments) or "none"
            close = difflib.get_close_matches(name, [a.name for a in function.arguments], 1)
            advice = f"did you mean {close[0]}?" if close else "pass values by position or by these names"
            raise InvalidArgument(f"{function.signature} has no argument {name}; its arguments are {names}: {advice}")
        return argument

    def _bind(self, args: tuple[Any, ...], arguments: Mapping[str, Any]) -> tuple[Function, dict[int, Any]]:
        """The function, and its arguments by position."""
        named = isinstance(args[0], str) if args else False
        function = self.function(args[0] if named else None)
        values = args[1:] if named else args
        if len(values) > len(function.arguments):
            raise InvalidArgument(
                f"{function.signature} takes {len(function.arguments)} arguments, {len(values)} are given"
            )
        given = dict(enumerate(values))
        for name, value in arguments.items():
            position = self._argument(function, name).position
            if position in given:
                raise InvalidArgument(f"{function.signature}: argument {name} is given twice")
            given[position] = value
        for position, (of, dim) in function.sizes.items():
            shape = getattr(given.get(of), "shape", ())
            if position not in given and dim < len(shape):
                given[position] = int(shape[dim])
        missing = [a.name for a in function.arguments if a.position not in given]
        if missing:
            example = ", ".join(f"{name}=..." for name in missing)
            raise InvalidArgument(f"{function.signature}: no value for {', '.join(missing)}; pass run(..., {example})")
        return function, given
