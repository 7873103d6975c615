# SPDX-License-Identifier: Apache-2.0
"""What matters in a Kernel: the normal form in which a kernel and its bundle read back are equal.

Names, origins and roles go; dims are numbered; dims of one element, device dims of size 1, moduli that never act and
the `tile` of unsplit dims go. A device dim that several dims count together is one device dim for each. Scalars are
the bits of their format. Argument sizes are the bytes touched. What stays: ops, sizes, splits, core order, spaces,
addresses, formats, strides and coordinates.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

from torch_spyre.constants import STICK_BYTES
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.plan.tileops import (
    Access,
    Coord,
    Dim,
    Immediate,
    Input,
    Kernel,
    KernelArg,
    LinearOperand,
    Operand,
    Space,
    Tensor,
    Term,
    TileOp,
)
from torch_spyre.ir.superdsc import vocabulary as voc
from torch_spyre.ir.superdsc.constant_formats import encode, word_bytes
from torch_spyre.ir.superdsc.stick_accesses import at_first_element, places, term_range


def canonical(kernel: Kernel) -> Kernel:
    """Two kernels with equal canonical forms touch the same bytes in the same way on the same cores."""
    ops = tuple(_canonical_op(op) for op in kernel.ops)
    args = tuple(KernelArg("", size, access, "") for size, access in argument_use(kernel.ops))
    cores = max((op.cores for op in ops), default=1)
    return Kernel("", args, ops, kernel.scalars, cores, kernel.loops, lx_bytes(kernel.ops))


def argument_use(ops: Sequence[TileOp]) -> list[tuple[int, Access]]:
    """Per launch argument: bytes touched from the buffer's start, in whole sticks, and how."""
    use: dict[int, tuple[int, Access]] = {}
    for op in ops:
        for operand, access in [(i, Access.READ) for i in op.inputs] + [(op.output, Access.WRITE)]:
            if not isinstance(operand, Operand | LinearOperand) or operand.tensor.space is not Space.MEMORY:
                continue
            size, seen = use.get(operand.tensor.arg, (0, Access(0)))
            use[operand.tensor.arg] = (max(size, _end_byte(op, operand)), seen | access)
    return [use.get(i, (0, Access(0))) for i in range(max(use, default=-1) + 1)]


def lx_bytes(ops: Sequence[TileOp]) -> int:
    """Scratchpad bytes that ops touch, from its start, in whole sticks."""
    found = [(op, o) for op in ops for o in (*op.inputs, op.output) if isinstance(o, Operand)]
    return max((_end_byte(op, o) for op, o in found if o.tensor.space is Space.LX), default=0)


def _end_byte(op: TileOp, operand: Operand | LinearOperand) -> int:
    tensor, last = operand.tensor, operand.tensor.elements - 1
    if isinstance(operand, Operand):
        last, stride = 0, 1
        for size, coord in reversed(list(zip(tensor.device_size, operand.coords, strict=True))):
            reach = sum(t.scale * (term_range(op, tensor, t) - 1) for t in coord.terms)
            last += stride * (coord.const + reach if coord.index < 0 else size - 1)
            stride *= size
    end = tensor.base + (last + 1) * word_bytes(tensor.format)
    return -(-end // STICK_BYTES) * STICK_BYTES


def _canonical_op(op: TileOp) -> TileOp:
    fixed = {d.name for d in op.dims[-3:]} if op.row.is_matmul else set()
    kept = [d for d in op.dims if d.size > 1 or d.slices > 1 or d.name in fixed]
    names = {d.name: f"d{i}" for i, d in enumerate(kept)}
    output = _canonical_operand(op, op.output, names)
    assert isinstance(output, Operand | LinearOperand)
    return replace(
        op,
        name="",
        op=_canonical_name(op),
        dims=tuple(Dim(names[d.name], d.size, d.slices, d.extent if d.slices > 1 else 0, d.chunk) for d in kept),
        inputs=tuple(_canonical_operand(op, i, names) for i in op.inputs),
        output=output,
        reduced=tuple(names[d.name] for d in kept if d.name in op.reduced),
        core_order=tuple(names[d] for d in op.core_order if op.dim(d).slices > 1),
        constants={n: struct.unpack("<f", struct.pack("<f", v))[0] for n, v in op.constants.items()},
        origin="",
        along=names.get(op.along, ""),
    )


def _canonical_name(op: TileOp) -> str:
    """Copies have one name: whether one changes the stick dim shows in its coordinates."""
    return voc.COPY if op.row.is_copy else op.row.name


def _canonical_operand(op: TileOp, operand: Input, names: dict[str, str]) -> Input:
    if isinstance(operand, Immediate):
        return Immediate(_immediate_bits(operand), operand.format)
    if not isinstance(operand, Operand):
        return operand
    if all(coord.index < 0 for coord in operand.coords):
        operand = at_first_element(operand)
    tensor = operand.tensor
    parts: list[tuple[int, Coord]] = []
    for size, coord in zip(tensor.device_size, operand.coords, strict=True):
        terms = [_canonical_term(t, op, names) for t in coord.terms if term_range(op, tensor, t) > 1]
        digits = places(terms, size) if coord.index < 0 else None
        if digits is None:
            parts.append(
                (size, Coord(tuple(sorted(terms, key=lambda t: (t.scale, t.dim, t.div))), coord.const, coord.index))
            )
        else:
            parts += [(n, Coord((replace(t, scale=1),) if t is not None else ())) for t, n in reversed(digits)]
    parts = [(size, coord) for size, coord in parts if size > 1]
    while parts and parts[0][1] == Coord():
        del parts[0]  # places outside all others change no stride
    arg = tensor.arg if tensor.space is Space.MEMORY else -1
    sizes = tuple(size for size, _ in parts)
    return Operand(Tensor("", tensor.format, tensor.space, sizes, tensor.base, arg), tuple(c for _, c in parts))


def _immediate_bits(operand: Immediate) -> float:
    try:
        return encode(operand.value, operand.format)
    except (OverflowError, UnsupportedOp):
        return operand.value


def _canonical_term(term: Term, op: TileOp, names: dict[str, str]) -> Term:
    wraps = term.mod and op.dim(term.dim).size > term.div * term.mod
    return Term(names[term.dim], term.scale, term.div, term.mod if wraps else 0)
