# SPDX-License-Identifier: Apache-2.0
"""Float arguments are float32, also where a caller declares them as float64, as Inductor does for kernels in compiled
functions. What a kernel computes with such an argument is computed in float32, as in a launch without Inductor."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import FunctionType, ModuleOp, TensorType, f32, f64
from xdsl.ir import Attribute, SSAValue

from torch_spyre.triton.lowering.known_integers import the_function
from torch_spyre.triton.lowering.splice import before, replace

_CASTS = ("arith.extf", "arith.truncf")


def run(module: ModuleOp) -> None:
    function = the_function(module)
    arguments = function.body.blocks[0].args
    found: set[SSAValue] = {argument for argument in arguments if argument.type == f64}
    if not found:
        return
    ops: list[Any] = list(module.walk())
    size = 0
    while size != len(found):
        size = len(found)
        for op in ops:
            inner = [a for region in op.regions for block in region.blocks for a in block.args if op is not function]
            wide = [v for v in (*op.operands, *op.results, *inner) if _is_wide(v.type)]
            if any(value in found for value in wide):
                found.update(wide)
    for value in found:
        value._type = _narrow(value.type)
    for op in ops:
        if op.name == "arith.constant" and op.results[0] in found:
            text = str(op.properties["value"]).replace("f64", "f32")
            replace(op, list(before(op, f"%c = arith.constant {text}", {})))
        elif op.name in _CASTS and op.operands[0].type == op.results[0].type:
            replace(op, [op.operands[0]])
    function.properties["function_type"] = FunctionType.from_lists([a.type for a in arguments], [])


def _is_wide(kind: Attribute) -> bool:
    return (kind.element_type if isinstance(kind, TensorType) else kind) == f64


def _narrow(kind: Attribute) -> Attribute:
    return TensorType(f32, kind.shape) if isinstance(kind, TensorType) else f32
