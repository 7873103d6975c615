# SPDX-License-Identifier: Apache-2.0
"""Scalars that are known only while a program runs: read from memory, reduced from a tile, compared as floats.

The scalar unit computes what follows from program ids and loop counters; these are for the vector unit.
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import ModuleOp, TensorType, _FloatType
from xdsl.ir import Operation, SSAValue

_SOURCES = ("tt.load", "ktdp.load", "tt.atomic_rmw", "tt.reduce", "tt.unsplat", "tensor.extract")
_BODIES = ("tt.reduce", "tt.scan")


def find(module: ModuleOp) -> set[SSAValue]:
    """All such scalars, and all floats."""
    found: set[SSAValue] = set()
    ops = [op for op in module.walk() if not within_combiner(op)]
    before = -1
    while before != len(found):
        before = len(found)
        for op in ops:
            _follow(op, found)
    return found


def within_combiner(op: Operation) -> bool:
    """True in the body of a reduction or scan, which runs on elements."""
    parent = op.parent_op()
    return parent is not None and parent.name in _BODIES


def _follow(op: Any, found: set[SSAValue]) -> None:
    if op.name in ("scf.for", "scf.if"):
        loop = op.name == "scf.for"
        for i, result in enumerate(op.results):
            chain = [result, *(region.block.last_op.operands[i] for region in op.regions if region.blocks)]
            if loop:
                chain += [op.operands[3 + i], op.regions[0].block.args[1 + i]]
            if any(value in found for value in chain) or (not loop and op.operands[0] in found):
                found.update(value for value in (result, *chain[2:]) if _is_scalar(value))
        return
    if op.name in _SOURCES or any(v in found or isinstance(v.type, _FloatType) for v in op.operands):
        found.update(result for result in op.results if _is_scalar(result))


def _is_scalar(value: SSAValue) -> bool:
    return not isinstance(value.type, TensorType)
