# SPDX-License-Identifier: Apache-2.0
"""Opfuncs of layer normalisation as several tile ops. docs/superdsc.md defines what they compute.

* exx2 leaves two numbers in each stick of its result: lane 0 the mean of x, lane 1 the mean of its squares;
* layernormscale reads both and leaves ``1 / sqrt(max(lane 1 - lane 0 squared, 0) + eps)`` in lane 0;
* layernormnorm gives ``(x - mean) * scale * weight + bias``, where mean is lane 0 of exx2's result.

Steps in between are fp32 in LX above the planned tensors, so that only results round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch_spyre.constants import LX_BYTES, STICK_BYTES
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.plan.tileops import Coord, Dim, Immediate, Input, Operand, Space, Tensor, Term, TileOp
from torch_spyre.ir.superdsc import vocabulary as voc

_FP32 = "IEEE_FP32"
_FP32_STICK = 32


@dataclass
class Scratch:
    """LX bytes from `base` on are free during each op."""

    base: int
    loops: int = 0  # tile loops so far


@dataclass(frozen=True)
class Composite:
    """The op as one TileOp with the SuperDSC opfunc's name, and the dims that it reduces."""

    op: TileOp
    reduced: tuple[str, ...]


def expand(composite: Composite, scratch: Scratch) -> list[TileOp]:
    op = composite.op
    if op.op == voc.EXX2:
        return _exx2(op, composite.reduced)
    return _scale(op, scratch) if op.op == voc.NORM_SCALE else _norm(op, scratch)


def lane(operand: Operand | Input, number: int) -> Operand:
    """One lane of the sticks of a tensor that has one value per stick."""
    assert isinstance(operand, Operand)
    return replace(operand, coords=(*operand.coords[:-1], Coord(const=number)))


def _exx2(op: TileOp, reduced: tuple[str, ...]) -> list[TileOp]:
    x, factor = op.inputs[0], op.constants[voc.EXX2_SCALE]
    constants = {voc.SCALING_FACTOR: factor}
    output = op.output
    assert isinstance(output, Operand) and isinstance(x, Operand)
    if op.constants[voc.ZERO_MEAN]:
        kept = tuple(d for d in op.dims if d.name not in reduced)
        order = tuple(d for d in op.core_order if d not in reduced)
        if order != op.core_order:
            raise UnsupportedOp(f"{op.origin}: {voc.ZERO_MEAN} with the reduced dim split over cores")
        first = replace(
            op, op="identity", dims=kept, inputs=(Immediate(0.0),), output=lane(output, 0), constants={}, reduced=()
        )
    else:
        first = replace(op, op="mean", output=lane(output, 0), reduced=reduced, constants=constants)
    # The mean of squares is a product of each row with itself: rows are the batch of 1 x 1 matmuls.
    *others, last = (d for d in op.dims if d.name in reduced)
    if others:
        raise UnsupportedOp(f"{op.origin}: exx2 over {len(reduced)} dims; one is known")
    batch = tuple(d for d in op.dims if d.name not in reduced)
    second = replace(
        op,
        op="batchmatmul",
        dims=(*batch, Dim("one.m", 1), Dim("one.n", 1), last),
        inputs=(x, x),
        output=lane(output, 1),
        reduced=(last.name,),
        constants=constants,
    )
    return [first, second]


def _scale(op: TileOp, scratch: Scratch) -> list[TileOp]:
    source, output = op.inputs[0], op.output
    assert isinstance(output, Operand)
    mean, square = lane(source, 0), lane(source, 1)
    step = _Steps(op, scratch, [d for d in op.dims if _uses(output, d.name)])
    variance = step.temporary
    return [
        step("mul", (mean, mean), variance),
        step("sub", (square, variance), variance),
        step("maximum", (variance, Immediate(0.0)), variance),
        step("add", (variance, Immediate(op.constants[voc.EPS])), variance),
        step("rsqrt", (variance,), lane(output, 0)),
    ]


def _norm(op: TileOp, scratch: Scratch) -> list[TileOp]:
    x, mean, factor, weight, bias = op.inputs
    assert isinstance(op.output, Operand)
    step = _Steps(op, scratch, op.dims)
    value = step.temporary
    return [
        step("sub", (x, lane(mean, 0)), value),
        step("mul", (value, lane(factor, 0)), value),
        step("mul", (value, weight), value),
        step("add", (value, bias), op.output),
    ]


class _Steps:
    """Makes pointwise steps of an op around one fp32 tensor in LX that holds a core's slice, or a chunk of it.

    A slice that does not fit is worked on in chunks along an outer dim: the steps then run in a tile loop.
    """

    def __init__(self, op: TileOp, scratch: Scratch, dims: Sequence[Dim]) -> None:
        base = -(-scratch.base // STICK_BYTES) * STICK_BYTES
        sizes = {d.name: d.extent for d in dims}
        chunked = ""
        for dim in dims[:-1]:
            if base + _fp32_bytes(sizes.values()) <= LX_BYTES:
                break
            rest = _fp32_bytes(n for d, n in sizes.items() if d != dim.name)
            sizes[dim.name], chunked = max(1, min(dim.extent, (LX_BYTES - base) // rest)), dim.name
        needed = _fp32_bytes(sizes.values())
        if base + needed > LX_BYTES or sum(sizes[d.name] < d.extent for d in dims) > 1:
            raise UnsupportedOp(f"{op.origin}: its fp32 steps need {needed} bytes of LX from {base}; use more cores")
        if chunked:
            scratch.loops += 1
            op = replace(op, name=f"{op.name}.{scratch.loops}")  # ops of one name share a loop
        chunk = sizes.get(chunked, 0)
        self.op = replace(op, dims=tuple(replace(d, chunk=chunk) if d.name == chunked else d for d in op.dims))
        self.temporary = _fp32_tensor(f"{op.name}.fp32", sizes, base, bool(chunked))

    def __call__(self, name: str, inputs: tuple[Input, ...], output: Operand) -> TileOp:
        return replace(self.op, op=name, inputs=inputs, output=output, constants={}, reduced=())


def _fp32_bytes(sizes: Iterable[int]) -> int:
    *outer, last = [*sizes] or [1]
    return math.prod(outer) * -(-last // _FP32_STICK) * STICK_BYTES


def _fp32_tensor(name: str, sizes: Mapping[str, int], base: int, chunked: bool) -> Operand:
    """One element per iteration point, the last dim in the sticks."""
    *outer, last = [*sizes] or [""]
    sticks = -(-sizes.get(last, 1) // _FP32_STICK)
    coords = [Coord((Term(d),)) for d in outer]
    coords += [
        Coord((Term(last, div=_FP32_STICK),) if last else ()),
        Coord((Term(last, mod=_FP32_STICK),) if last else ()),
    ]
    shape = (*(sizes[d] for d in outer), sticks, _FP32_STICK)
    return Operand(Tensor(name, _FP32, Space.LX, shape, base, chunked=chunked), tuple(coords))


def _uses(operand: Operand, dim: str) -> bool:
    return any(term.dim == dim for coord in operand.coords for term in coord.terms)
