# SPDX-License-Identifier: Apache-2.0
"""Where a kernel needs a barrier: before an op that touches memory another core may have touched since the last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_spyre.errors import InvalidProgram
from torch_spyre.formats import WORD_BYTES
from torch_spyre.ir.plan.tileops import Coord, Kernel, LinearOperand, Operand, Space, Tensor, TileOp


@dataclass(frozen=True)
class _Touch:
    """One op's access to one memory tensor. `owner` is None when several cores may touch the same element."""

    start: int
    end: int
    write: bool
    owner: tuple[object, ...] | None


def barriers_before(kernel: Kernel) -> tuple[bool, ...]:
    """For each op: does a barrier stand before it?"""
    result: list[bool] = []
    since: dict[int, set[_Touch]] = {}
    loops = {loop.begin: loop for loop in kernel.loops}
    while len(result) < len(kernel.ops):
        i = len(result)
        loop = loops.get(i)
        ops = kernel.ops[i : loop.end] if loop else (kernel.ops[i],)
        touches = [t for op in ops for t in _touches(op)]
        if loop:
            _check_loop(kernel, ops)
        needed = kernel.cores > 1 and any(
            _conflicts(t, earlier) for arg, t in touches for earlier in since.get(arg, ())
        )
        if needed:
            since = {}
        result += [needed, *[False] * (len(ops) - 1)]
        for arg, touch in touches:
            since.setdefault(arg, set()).add(touch)
    return tuple(result)


def _check_loop(kernel: Kernel, ops: Sequence[TileOp]) -> None:
    """Cores run through the trips of a tile loop at their own pace, so none may touch what another writes in it. No two
    cores write one element of an op's own result."""
    touches = [(op, arg, t) for op in ops for arg, t in _touches(op)]
    for i, (op, arg, touch) in enumerate(touches):
        for j, (other, there, earlier) in enumerate(touches):
            if i != j and kernel.cores > 1 and there == arg and _conflicts(touch, earlier):
                raise InvalidProgram(
                    f"tile loop: {op.name} touches memory that {other.name} writes on another core; end the loop there"
                )


def _conflicts(later: _Touch, earlier: _Touch) -> bool:
    if not (later.write or earlier.write) or later.start >= earlier.end or earlier.start >= later.end:
        return False
    return later.owner is None or later.owner != earlier.owner


def coords_of(operand: Operand | LinearOperand) -> tuple[Coord, ...]:
    """Everything that depends on the iteration point."""
    return (operand.offset,) if isinstance(operand, LinearOperand) else operand.coords


def _touches(op: TileOp) -> list[tuple[int, _Touch]]:
    accesses = [(i, False) for i in op.inputs if isinstance(i, Operand | LinearOperand)] + [(op.output, True)]
    splits = _splits(op)
    result = []
    for operand, write in accesses:
        tensor = operand.tensor
        if tensor.space is Space.MEMORY:
            end = tensor.base + tensor.elements * WORD_BYTES[tensor.format]
            result.append((tensor.arg, _Touch(tensor.base, end, write, _owner(op, operand, splits))))
    return result


def _splits(op: TileOp) -> tuple[tuple[str, int, int, int], ...]:
    """Which slice each core works on: (dim, size, slices, tile) of the split dims, fastest first."""
    return tuple((d.name, d.size, d.slices, d.extent) for d in map(op.dim, op.core_order))


def _owner(
    op: TileOp, operand: Operand | LinearOperand, splits: tuple[tuple[str, int, int, int], ...]
) -> tuple[object, ...] | None:
    """A key: if it is equal for two accesses, each core touches the same elements in both, and no other core does.

    Dims go by the order in which the access uses them: two ops may call one dim differently.
    """
    coords = coords_of(operand)
    number: dict[str, int] = {}
    for coord in coords:
        for term in coord.terms:
            number.setdefault(term.dim, len(number))
    if any(coord.index >= 0 for coord in coords) or any(name not in number for name, *_ in splits):
        return None
    moves = tuple((c.const, tuple((number[t.dim], t.scale, t.div, t.mod) for t in c.terms)) for c in coords)
    cut = tuple((number[name], *form) for name, *form in splits)
    whole = tuple(sorted((number[d.name], d.size) for d in op.dims if d.name in number and d.slices == 1))
    decoding = operand.host_stride if isinstance(operand, LinearOperand) else None
    return (_place(operand.tensor), moves, decoding, cut, whole)


def _place(tensor: Tensor) -> tuple[object, ...]:
    return (tensor.base, tensor.device_size, tensor.format)
