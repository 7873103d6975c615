# SPDX-License-Identifier: Apache-2.0
"""KTIR text to verified modules and back. Every failure is an InvalidProgram with line, column and rule."""

from __future__ import annotations

import difflib
import re
from io import StringIO

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.printer import Printer
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import ParseError, VerifyException

from torch_spyre.errors import InvalidProgram, SpyreError, UnsupportedOp
from torch_spyre.ir.ktir import lenient
from torch_spyre.ir.ktir.dialect.context import context
from torch_spyre.ir.ktir.locations import place
from torch_spyre.ir.ktir.reader import KtirParser


def parse(text: str, name: str = "<ktir>") -> ModuleOp:
    """Read and verify a module."""
    module, _ = read_with_notes(text, name)
    verify(module)
    return module


def read_with_notes(text: str, name: str = "<ktir>", strict: bool = False) -> tuple[ModuleOp, list[str]]:
    """The module, not yet verified, and a note on every older spelling that was accepted; strict accepts none."""
    parser: KtirParser | None = None
    try:
        parser = KtirParser(context(), text, name, strict)
        module = parser.parse_module()
        return module, [*parser.warnings, *_normalise(module, strict)]
    except ParseError as error:
        raise _explained(error, name) from error
    except RecursionError as error:
        raise InvalidProgram(f"KTIR text {name} does not parse: it is nested too deeply") from error
    except Exception as error:
        # Parsers and constructors of operations assume text of a certain form and fail in many ways on other text.
        line, column = parser.place(parser.pos) if parser is not None else (1, 1)
        what = "breaks a rule" if isinstance(error, VerifyException) else "does not parse"
        reason = str(error).strip() or type(error).__name__
        raise InvalidProgram(f"KTIR text {name} {what}: {name}:{line}:{column}: {reason}") from error


# Names of older text that are not the dialect, and what stands for them.
_OLD_NAMES = {
    "ktdp.transfer": "ktdp.inter_tile_produce with ktdp.inter_tile_consume, or a load from a distributed view",
    "ktdp.reduce": "ktdp.inter_tile_produce with ktdp.inter_tile_reduce",
    "ktdp.coreid": "ktdp.get_compute_tile_id",
}
_UNREGISTERED = re.compile(r"Operation (\S+) is not registered")
_DIALECTS = ("arith", "func", "linalg", "math", "memref", "scf", "tensor", "spyreop", "ktdp")


def _explained(error: ParseError, name: str) -> SpyreError:
    """An operation that nobody knows breaks the format; one of a dialect of KTIR may only be missing here."""
    unknown = _UNREGISTERED.search(error.msg)
    op = unknown.group(1) if unknown else ""
    if op in _OLD_NAMES:
        return InvalidProgram(f"KTIR text {name}: {op} is not in the dialect; write {_OLD_NAMES[op]}. {error}")
    dialect = op.split(".")[0]
    if op and dialect in _DIALECTS and dialect != "ktdp":
        return UnsupportedOp(f"KTIR text {name}: {op} is not supported{_resembling(op)}. {error}")
    if op:
        known = f"dialects {', '.join(_DIALECTS)}; docs/ktir.md"
        return InvalidProgram(f"KTIR text {name}: {op} is not an operation of KTIR ({known}){_resembling(op)}. {error}")
    return InvalidProgram(f"KTIR text {name} does not parse where marked (docs/ktir.md shows the spelling): {error}")


def _resembling(op: str) -> str:
    known = [known.name for known in context().loaded_ops if known.name.split(".")[0] in _DIALECTS]
    close = difflib.get_close_matches(op, known)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _normalise(module: ModuleOp, strict: bool) -> list[str]:
    lenient.spell_out(module)
    return [] if strict else lenient.normalise(module)


class _Printer(Printer):
    """xDSL's numbers names that occur again; here a name may end in such a number itself."""

    def print_ssa_value(self, value: SSAValue) -> str:
        hint = value.name_hint
        if value not in self._ssa_values and hint:
            count = self.ssa_names.get(hint, 0)
            while count and f"{hint}_{count}" in self.ssa_names:
                count += 1
            name = f"{hint}_{count}" if count else hint
            self.ssa_names[hint] = count + 1
            self.ssa_names.setdefault(name, 1)
            self._ssa_values[value] = name
        return super().print_ssa_value(value)


def print_module(module: ModuleOp) -> str:
    stream = StringIO()
    printer = _Printer(stream)
    printer.print_op(module)
    printer.print_string("\n")
    return stream.getvalue()


def verify(module: Operation) -> None:
    """Checks every operation on its own, then that values are defined before they are used."""
    for op in module.walk():
        try:
            _verify_op(op)
        except InvalidProgram:
            raise
        except Exception as error:
            # A verifier that reads what another one has not checked yet may fail in any way; the op is wrong anyhow.
            reason = str(error).strip() or type(error).__name__
            raise InvalidProgram(f"KTIR module breaks a rule: {place(op)}{op.name}: {reason}") from error
    _verify_dominance(module)


def _verify_op(op: Operation) -> None:
    op.verify(verify_nested_ops=False)
    for region in op.regions:
        if len(region.blocks) > 1:
            raise VerifyException("a region of several blocks; control flow is structured (scf)")
        if region.blocks and not region.block.ops and not op.has_trait(NoTerminator):
            raise VerifyException("a region needs at least a terminator")


def _verify_dominance(module: Operation) -> None:
    """Regions are single blocks, so that the order of the text is dominance."""
    visible: set[SSAValue] = set()

    def visit(block: Block) -> None:
        defined: list[SSAValue] = list(block.args)
        visible.update(defined)
        for op in block.ops:
            for index, operand in enumerate(op.operands):
                if operand not in visible:
                    name = f"%{operand.name_hint}" if operand.name_hint else f"operand {index}"
                    raise InvalidProgram(
                        f"KTIR module breaks a rule: {place(op)}{op.name}: {name} is used where it is not defined"
                    )
            for region in op.regions:
                for inner in region.blocks:
                    visit(inner)
            visible.update(op.results)
            defined.extend(op.results)
        visible.difference_update(defined)

    for region in module.regions:
        for block in region.blocks:
            visit(block)
