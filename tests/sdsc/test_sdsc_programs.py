# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_programs.py

A kernel and its bundle read back compile to the same instructions, so the card computes the same bits from both.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import test_sdsc_forms
import test_sdsc_roundtrip
from test_sdsc_roundtrip import files_json

from torch_spyre.backend.compile import compile_module
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.decoder import decode
from torch_spyre.ir.ktir.emit.kernel_function import emit
from torch_spyre.ir.plan.tileops import Kernel
from torch_spyre.ir.superdsc.canonical import canonical
from torch_spyre.sdsc import read_kernel

KERNELS = test_sdsc_roundtrip.KERNELS | test_sdsc_forms.KERNELS


def program(kernel: Kernel) -> tuple[Any, ...]:
    """What the card sees of a kernel, without origins and without argument sizes: the bundle has those it touches."""
    found = decode(compile_module(emit(kernel)).binary)
    instructions = [normal(i) for i in found.instructions]
    access = [a.access for a in found.args]
    return (instructions, access, found.scalars, found.registers, found.cores, found.lx_bytes, found.constants)


def normal(instruction: asm.Instruction) -> asm.Instruction:
    """No origin, and no strides along dims of one element: they address nothing."""
    changes: dict[str, Any] = {"origin": None}
    single = [d.cap == 1 for d in getattr(instruction, "dims", ())]

    def operand(x: asm.Operand) -> asm.Operand:
        if isinstance(x.maps, asm.LayoutMap):
            return x
        return replace(x, maps=tuple(asm.DimMap() if s else m for s, m in zip(single, x.maps, strict=False)))

    for f in fields(instruction):
        value = getattr(instruction, f.name)
        if isinstance(value, asm.Operand):
            changes[f.name] = operand(value)
        elif f.name == "inputs":
            changes[f.name] = tuple(operand(x) for x in value)
    return replace(instruction, **changes)


def check(kernel: Kernel) -> None:
    back = read_kernel(files_json(kernel), kernel.name, kernel.cores)
    assert canonical(back) == canonical(kernel)
    assert program(back) == program(kernel)


@pytest.mark.parametrize("name", KERNELS)
def test_same_program(name: str) -> None:
    check(KERNELS[name])
