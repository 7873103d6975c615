# SPDX-License-Identifier: Apache-2.0
"""A tile that several operations read is copied to the scratchpad once, instead of being read from memory by each."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import ModuleOp, TensorType, UnitAttr
from xdsl.ir import Operation, SSAValue

_THROUGH = ("arith.extf", "tensor.cast")  # read their operand where it is
_LEAST, _MOST = 1 << 7, 1 << 17  # elements: fewer cost nothing to read again, more would fill the scratchpad


def run(module: ModuleOp) -> None:
    for op in module.walk():
        if op.name == "ktdp.load" and _LEAST <= _size(op.results[0]) <= _MOST and len(_readers(op.results[0])) > 1:
            op.attributes["kept"] = UnitAttr()


def _size(value: SSAValue) -> int:
    kind: Any = value.type
    count = 1
    for size in kind.get_shape() if isinstance(kind, TensorType) else ():
        count *= size
    return count


def _readers(value: SSAValue) -> list[Operation]:
    found: list[Operation] = []
    for use in value.uses:
        op = use.operation
        found += _readers(op.results[0]) if op.name in _THROUGH else [op]
    return found
