# SPDX-License-Identifier: Apache-2.0
"""Operands that a SuperDSC has no form for, as tensors in arguments of their own: launch scalars and positions.

Both is what a front end without them passes: a number as a 0-d tensor, positions as the tensor that counts them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from torch_spyre.ir.plan.tileops import (
    Access,
    Coord,
    Input,
    Kernel,
    KernelArg,
    LaunchScalar,
    Operand,
    Positions,
    Space,
    Tensor,
    Term,
    TileOp,
)
from torch_spyre.ir.superdsc.constant_formats import stick_elements

_INTEGER = "IEEE_INT32"


def scalars_as_tensors(kernel: Kernel) -> Kernel:
    """Launch scalar i as a 0-d tensor in argument (number of buffers) + i."""
    if not kernel.scalars:
        return kernel
    first = len(kernel.args)

    def tensor(source: Input) -> Input:
        if not isinstance(source, LaunchScalar):
            return source
        format = kernel.scalars[source.index]
        shape = (1, stick_elements(format))
        made = Tensor(f"s{source.index}", format, Space.MEMORY, shape, 0, first + source.index)
        return Operand(made, (Coord(), Coord()))

    ops = tuple(replace(op, inputs=tuple(tensor(x) for x in op.inputs)) for op in kernel.ops)
    scalars = tuple(KernelArg(f"s{i}", 128, Access.READ, "input") for i in range(len(kernel.scalars)))
    return replace(kernel, args=(*kernel.args, *scalars), ops=ops, scalars=())


@dataclass(frozen=True)
class Constant:
    """What a launch argument holds: device coordinates in row-major order, sticks of int32."""

    arg: int
    values: np.ndarray


def positions_as_tensors(kernel: Kernel) -> tuple[Kernel, list[Constant]]:
    """Each distinct tensor of positions in an argument after all others, and what these hold."""
    made: dict[object, Operand] = {}
    constants: list[Constant] = []
    args = list(kernel.args)

    def tensor(op: TileOp, source: Input) -> Input:
        if not isinstance(source, Positions):
            return source
        key = (source.value, op.dims, _stick(op))
        if key not in made:
            made[key], values = _counted(op, source.value, len(args))
            args.append(KernelArg(made[key].tensor.name, values.nbytes, Access.READ, "constant"))
            constants.append(Constant(len(args) - 1, values))
        return made[key]

    ops = tuple(replace(op, inputs=tuple(tensor(op, x) for x in op.inputs)) for op in kernel.ops)
    return replace(kernel, args=tuple(args), ops=ops), constants


def _stick(op: TileOp) -> str:
    """The dim that fills the sticks of the result, which its operands share; none if it is one value per stick."""
    lane = op.output.coords[-1] if isinstance(op.output, Operand) else Coord()
    return lane.terms[0].dim if len(lane.terms) == 1 else ""


def _counted(op: TileOp, value: Coord, arg: int) -> tuple[Operand, np.ndarray]:
    """A tensor over the dims that the position depends on, the result's stick dim in the sticks if it has that."""
    elements, stick = stick_elements(_INTEGER), _stick(op)
    names = {t.dim for t in value.terms}
    outer = [d for d in op.dims if d.name in names and d.name != stick]
    inner = [d for d in op.dims if d.name in names and d.name == stick]
    dims = [*outer, *inner]
    grids = np.meshgrid(*(np.arange(d.size) for d in dims), indexing="ij") if dims else []
    total = np.full([d.size for d in dims], value.const, dtype=np.int64)
    for t in value.terms:
        digit = grids[[d.name for d in dims].index(t.dim)] // t.div
        total += t.scale * (digit % t.mod if t.mod else digit)
    rows = [d.size for d in outer]
    if inner:
        sticks = -(-inner[0].size // elements)
        filled = np.zeros((*rows, sticks * elements), dtype=np.int32)
        filled[..., : inner[0].size] = total
        size = (*rows, sticks, elements)
        coords = (*(Coord((Term(d.name),)) for d in outer), Coord((Term(stick, 1, elements),)))
        coords += (Coord((Term(stick, 1, 1, elements),)),)
    else:
        filled = np.zeros((*rows, 1, elements), dtype=np.int32)
        filled[..., 0, 0] = total
        size = (*rows, 1, elements)
        coords = (*(Coord((Term(d.name),)) for d in outer), Coord(), Coord())
    tensor = Tensor(f"positions{arg}", _INTEGER, Space.MEMORY, size, 0, arg)
    return Operand(tensor, coords), filled.reshape(size)
