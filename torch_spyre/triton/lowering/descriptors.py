# SPDX-License-Identifier: Apache-2.0
"""Descriptors that the host has made, and what goes through a descriptor to rows that memory names.

An argument that is a descriptor becomes a pointer, with a descriptor made from it at the start of the kernel: the
arguments after it are its sizes and strides. Gathers, scatters and reductions become loads, stores and atomic
operations of pointers, masked by the sizes of the tensor.
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import FunctionType, ModuleOp, TensorType, i1

from torch_spyre.triton.lowering.known_integers import the_function
from torch_spyre.triton.lowering.linear import shape_of
from torch_spyre.triton.lowering.refusals import refusal
from torch_spyre.triton.lowering.splice import before, erase, replace
from torch_spyre.triton.lowering.ttir_ops import DescriptorType, MakeTensorDescriptorOp, PointerType
from torch_spyre.triton.lowering.ttir_text import context


def run(module: ModuleOp) -> None:
    _from_host(module)
    for op in list(module.walk()):
        if op.name == "tt.descriptor_gather":
            _gather(op)
        elif op.name == "tt.descriptor_scatter":
            _scatter(op)
        elif op.name == "tt.descriptor_reduce":
            _reduce(op)


def _from_host(module: ModuleOp) -> None:
    function = the_function(module)
    block = function.body.blocks[0]
    first = block.first_op
    assert first is not None
    for argument in tuple(block.args):
        kind: Any = argument.type
        if not isinstance(kind, DescriptorType):
            continue
        rank = len(shape_of(kind.block))
        pointer = block.insert_arg(PointerType(kind.block.element_type), argument.index)  # type: ignore[attr-defined]
        pointer.name_hint = argument.name_hint
        parts = block.args[argument.index + 1 : argument.index + 1 + 2 * rank]
        made = MakeTensorDescriptorOp.made([pointer, *parts], [kind])
        made.location = first.location
        block.insert_op_before(made, first)
        argument.replace_all_uses_with(made.results[0])
        block.erase_arg(argument)
    function.properties["function_type"] = FunctionType.from_lists([a.type for a in block.args], [])


def _made(op: Any) -> Any:
    owner = op.operands[0].owner
    if getattr(owner, "name", "") != "tt.make_tensor_descriptor":
        raise refusal(op, "a descriptor that a loop or a branch hands on; make it where it is used")
    return owner


def _text(op: Any, rows: str, kind: Any) -> tuple[list[str], dict[str, Any]]:
    """Pointers `%p` and mask `%m` of a tile; `rows` is the text that makes `%row`, a column with the rows' numbers."""
    base, *parts = _made(op).operands
    rank = len(parts) // 2
    if rank != 2:
        raise refusal(op, f"a descriptor of {rank} dims; describe the tensor in two")
    (count, columns), element = shape_of(kind), kind.element_type
    wide, tile = f"tensor<{count}x1xi32>", f"{count}x{columns}"
    flat = f"tensor<{columns}xi32>"
    lines = [
        rows,
        f"%wide = arith.extsi %row : {wide} to tensor<{count}x1xi64>",
        f"%step = tt.splat %stride : i64 -> tensor<{count}x1xi64>",
        f"%moved = arith.muli %wide, %step : tensor<{count}x1xi64>",
        f"%down = tt.broadcast %moved : tensor<{count}x1xi64> -> tensor<{tile}xi64>",
        f"%range = tt.make_range {{end = {columns} : i32, start = 0 : i32}} : {flat}",
        f"%start = tt.splat %column : i32 -> {flat}",
        f"%place = arith.addi %range, %start : {flat}",
        f"%line = tt.expand_dims %place {{axis = 0 : i32}} : {flat} -> tensor<1x{columns}xi32>",
        f"%long = arith.extsi %line : tensor<1x{columns}xi32> to tensor<1x{columns}xi64>",
        f"%across = tt.broadcast %long : tensor<1x{columns}xi64> -> tensor<{tile}xi64>",
        f"%offset = arith.addi %down, %across : tensor<{tile}xi64>",
        f"%bases = tt.splat %base : !tt.ptr<{element}> -> tensor<{tile}x!tt.ptr<{element}>>",
        f"%p = tt.addptr %bases, %offset : tensor<{tile}x!tt.ptr<{element}>>, tensor<{tile}xi64>",
    ]
    for name, value, size, kind in (("r", "row", "height", wide), ("c", "line", "width", f"tensor<1x{columns}xi32>")):
        truth = kind.replace("i32", "i1")
        lines += [
            f"%{name}zero = arith.constant dense<0> : {kind}",
            f"%{name}end = tt.splat %{size} : i32 -> {kind}",
            f"%{name}from = arith.cmpi sge, %{value}, %{name}zero : {kind}",
            f"%{name}to = arith.cmpi slt, %{value}, %{name}end : {kind}",
            f"%{name}both = arith.andi %{name}from, %{name}to : {truth}",
            f"%{name}mask = tt.broadcast %{name}both : {truth} -> tensor<{tile}xi1>",
        ]
    lines.append(f"%m = arith.andi %rmask, %cmask : tensor<{tile}xi1>")
    values = {"base": base, "height": parts[0], "width": parts[1], "stride": parts[2], "column": op.operands[2]}
    return lines, values


def _insert(op: Any, lines: list[str], values: dict[str, Any]) -> tuple[Any, ...]:
    return before(op, "\n".join(lines), values, context())


def _pointers(kind: Any) -> str:
    return f"tensor<{'x'.join(map(str, shape_of(kind)))}x!tt.ptr<{kind.element_type}>>"


def _from_memory(op: Any) -> str:
    count = shape_of(op.operands[1].type)[0]
    return f"%row = tt.expand_dims %rows {{axis = 1 : i32}} : tensor<{count}xi32> -> tensor<{count}x1xi32>"


def _gather(op: Any) -> None:
    kind = op.results[0].type
    lines, values = _text(op, _from_memory(op), kind)
    zero = "0.0" if str(kind.element_type).startswith(("f", "bf")) else "0"
    lines += [
        f"%nothing = arith.constant dense<{zero}> : {kind}",
        f"%found = tt.load %p, %m, %nothing : {_pointers(kind)}",
    ]
    replace(op, list(_insert(op, lines, {**values, "rows": op.operands[1]})))


def _scatter(op: Any) -> None:
    kind = op.operands[3].type
    lines, values = _text(op, _from_memory(op), kind)
    lines.append(f"tt.store %p, %value, %m : {_pointers(kind)}")
    _insert(op, lines, {**values, "rows": op.operands[1], "value": op.operands[3]})
    erase(op)


def _reduce(op: Any) -> None:
    kind = op.operands[3].type
    count = shape_of(kind)[0]
    rows = (
        f"%down0 = tt.make_range {{end = {count} : i32, start = 0 : i32}} : tensor<{count}xi32>\n"
        f"%top = tt.splat %first : i32 -> tensor<{count}xi32>\n"
        f"%rows = arith.addi %down0, %top : tensor<{count}xi32>\n"
        f"%row = tt.expand_dims %rows {{axis = 1 : i32}} : tensor<{count}xi32> -> tensor<{count}x1xi32>"
    )
    lines, values = _text(op, rows, kind)
    word = op.attributes["kind"].data
    word = "fadd" if word == "add" and str(kind.element_type).startswith(("f", "bf")) else word
    truth = TensorType(i1, kind.shape)
    lines.append(f"%old = tt.atomic_rmw {word}, %p, %value, %m : ({_pointers(kind)}, {kind}, {truth}) -> {kind}")
    _insert(op, lines, {**values, "first": op.operands[1], "value": op.operands[3]})
    erase(op)
