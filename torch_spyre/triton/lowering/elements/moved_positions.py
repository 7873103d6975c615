# SPDX-License-Identifier: Apache-2.0
"""Operations that make tiles of positions or move elements: ranges, splats, broadcasts, transposes, reshapes."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Operation

from torch_spyre.triton.lowering import splice
from torch_spyre.triton.lowering.linear import shape_of
from torch_spyre.triton.lowering.ttir_ops import PointerType


def run(module: ModuleOp) -> None:
    for op in list(module.walk()):
        rule = _RULES.get(op.name)
        if rule is not None and not _of_pointers(op):
            splice.instead(op, rule(op), {f"a{i}": value for i, value in enumerate(op.operands)})


def _of_pointers(op: Operation) -> bool:
    """Tiles of pointers are gone once the accesses are made; nothing uses what is left of them."""
    kind = op.results[0].type
    return isinstance(kind.element_type if isinstance(kind, TensorType) else kind, PointerType)


def _sized(shape: tuple[int, ...], element: object) -> str:
    return f"tensor<{'x'.join([*map(str, shape), str(element)])}>"


def _range(op: Any) -> str:
    start, kind = op.attributes["start"].value.data, op.results[0].type
    return (
        f"%r = tensor.generate {{\n^bb0(%i: index):\n%first = arith.constant {start} : index\n"
        f"%j = arith.addi %i, %first : index\n%k = arith.index_cast %j : index to {kind.element_type}\n"
        f"tensor.yield %k : {kind.element_type}\n}} : {kind}"
    )


def _splat(op: Any) -> str:
    return f"%r = tensor.splat %a0 : {op.results[0].type}"


def _grouped(shape: tuple[int, ...], kept: list[int]) -> str:
    """Reassociation between a shape and its dims `kept`; the others have one element and join a neighbour."""
    groups: list[list[int]] = [[] for _ in kept]
    for d in range(len(shape)):
        owner = next((i for i, k in enumerate(kept) if k >= d), len(kept) - 1)
        groups[owner].append(d)
    return "[" + ", ".join(str(g) for g in groups) + "]"


def _expand_dims(op: Any) -> str:
    given, wanted = op.operands[0].type, op.results[0].type
    axis = op.attributes["axis"].value.data
    shape = shape_of(wanted)
    kept = [d for d in range(len(shape)) if d != axis]
    sizes = ", ".join(map(str, shape))
    return f"%r = tensor.expand_shape %a0 {_grouped(shape, kept)} output_shape [{sizes}] : {given} into {wanted}"


def _broadcast(op: Any) -> str:
    given, wanted = op.operands[0].type, op.results[0].type
    before, after = shape_of(given), shape_of(wanted)
    if before == after:
        return f"%z = arith.constant 0 : index\n%r = tensor.cast %a0 : {given} to {wanted}"
    stretched = [d for d in range(len(after)) if before[d] != after[d]]
    kept = [d for d in range(len(after)) if d not in stretched]
    small = _sized(tuple(after[d] for d in kept), given.element_type)
    groups = _grouped(before, kept) if kept else "[]"
    return (
        f"%c = tensor.collapse_shape %a0 {groups} : {given} into {small}\n"
        f"%e = tensor.empty() : {wanted}\n"
        f"%r = linalg.broadcast ins(%c : {small}) outs(%e : {wanted}) dimensions = {stretched}"
    )


def _transpose(op: Any) -> str:
    order = list(op.attributes["order"].get_values())
    given, wanted = op.operands[0].type, op.results[0].type
    return (
        f"%e = tensor.empty() : {wanted}\n"
        f"%r = linalg.transpose ins(%a0 : {given}) outs(%e : {wanted}) permutation = {order}"
    )


def _reshape(op: Any) -> str:
    given, wanted = op.operands[0].type, op.results[0].type
    before, after = shape_of(given), shape_of(wanted)
    count = 1
    for size in after:
        count *= size
    flat = _sized((count,), given.element_type)
    lines, value = [], "%a0"
    if len(before) != 1:
        lines.append(f"%f = tensor.collapse_shape %a0 [{list(range(len(before)))}] : {given} into {flat}")
        value = "%f"
    if len(after) == 1:
        return "\n".join(lines) or f"%r = tensor.cast %a0 : {given} to {wanted}"
    sizes = ", ".join(map(str, after))
    groups = [list(range(len(after)))]
    return "\n".join(
        [*lines, f"%r = tensor.expand_shape {value} {groups} output_shape [{sizes}] : {flat} into {wanted}"]
    )


def _unsplat(op: Any) -> str:
    rank = len(shape_of(op.operands[0].type))
    zeros = ", ".join(["%z"] * rank)
    return f"%z = arith.constant 0 : index\n%r = tensor.extract %a0[{zeros}] : {op.operands[0].type}"


_RULES = {
    "tt.make_range": _range,
    "tt.splat": _splat,
    "tt.expand_dims": _expand_dims,
    "tt.broadcast": _broadcast,
    "tt.trans": _transpose,
    "tt.reshape": _reshape,
    "tt.unsplat": _unsplat,
}
