# SPDX-License-Identifier: Apache-2.0
"""Replacing operations by KTIR that is written as text, which is how its files and its pages show it."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.context import Context
from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from torch_spyre.ir.ktir.dialect.context import context
from torch_spyre.ir.ktir.locations import place
from torch_spyre.ir.ktir.reader import KtirParser

# Operations whose syntax has room for attributes, and from which the back end takes the origin of its instructions.
_WITH_ORIGIN = ("ktdp.load", "ktdp.store")


def before(
    op: Operation, text: str, values: Mapping[str, SSAValue], dialects: Context | None = None
) -> tuple[SSAValue, ...]:
    """Inserts KTIR before an operation, or text in other dialects; `%name` is the value of that name. Gives the results
    of the last operation."""
    arguments = ", ".join(f"%{name}: {value.type}" for name, value in values.items())
    module = KtirParser(
        dialects or context(), f"func.func @text({arguments}) {{\n{text}\nreturn\n}}", "<pass>"
    ).parse_module()
    function = module.body.block.first_op
    assert isinstance(function, FuncOp)
    block = function.body.block
    for argument, value in zip(block.args, values.values(), strict=True):
        argument.replace_all_uses_with(value)
    made = list(block.ops)[:-1]
    target = op.parent_block()
    assert target is not None
    for new in made:
        new.detach()  # type: ignore[no-untyped-call]
        target.insert_op_before(new, op)
        for inner in new.walk():
            _take_place(inner, op)
    return tuple(made[-1].results) if made else ()


def _take_place(new: Operation, op: Operation) -> None:
    new.location = op.location
    where = place(op).rstrip(": ")
    if new.name in _WITH_ORIGIN and where:
        message = op.attributes.get("message")
        said = f' "{message.data}"' if isinstance(message, StringAttr) else ""
        new.attributes["origin"] = StringAttr(f"{op.name}{said} at {where}")


def instead(op: Operation, text: str, values: Mapping[str, SSAValue]) -> tuple[SSAValue, ...]:
    """Replaces an operation by KTIR; the results of the last operation of the text are its results."""
    results = before(op, text, values)
    replace(op, results)
    return results


def replace(op: Operation, results: tuple[SSAValue, ...] | list[SSAValue]) -> None:
    for old, new in zip(op.results, results, strict=True):
        if new.name_hint is None:
            new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    erase(op)


def erase(op: Operation) -> None:
    op.detach()  # type: ignore[no-untyped-call]
    op.erase()


def copy(op: Operation, values: dict[SSAValue, SSAValue]) -> Operation:
    """An operation once more, with other operands where `values` has them, to which its results are added."""
    made = op.clone(values)
    for old, new in zip(op.walk(), made.walk(), strict=True):
        new.location = old.location
    return made


def typed(type_: Attribute) -> str:
    """A type as KTIR text."""
    return str(type_)
