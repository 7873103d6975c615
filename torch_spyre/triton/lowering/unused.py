# SPDX-License-Identifier: Apache-2.0
"""Removes what nobody uses: address arithmetic, once views and tiles stand for it."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from torch_spyre.triton.lowering.splice import erase

_EFFECTS = ("ktdp.store", "tt.store", "tt.atomic_rmw", "tt.descriptor_store", "tt.assert", "func.return", "func.func")
_ENDS = (
    "scf.yield",
    "linalg.yield",
    "tensor.yield",
    "tt.reduce.return",
    "tt.scan.return",
    "ktdp.region_terminator",
    "builtin.module",
)


def run(module: ModuleOp) -> None:
    while any([_remove(op) for op in reversed(list(module.walk()))]):
        pass


def _remove(op: Operation) -> bool:
    if op.parent is None or any(result.uses for result in op.results) or op.name in (*_EFFECTS, *_ENDS):
        return False
    if any(inner.name in _EFFECTS for inner in op.walk()):
        return False
    erase(op)
    return True
