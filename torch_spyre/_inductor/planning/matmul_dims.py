# SPDX-License-Identifier: Apache-2.0
"""Matmul dims in pieces: a view may cut k (or m, n) of one operand where the other operand does not care.

The card's matmul has one m, one n and one k and any number of batch dims. Pieces of k join again where every operand
walks them as one: heads whose sticks are side by side are one long row. Other pieces of m and n become batch dims.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch_spyre.ir.plan.tileops import Coord, Dim, Operand, TileOp

Access = tuple[tuple[int, ...], tuple[Coord, ...]]  # (device size, coordinates)


def role(name: str) -> str:
    """b, m, n or k."""
    return name.split(".")[0].rstrip("0123456789")


def ordered(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """Batch dims, then the innermost pieces of m and n, then all of k."""
    last = {role(d.name): d for d in dims}
    tail = [last[r] for r in "mn" if r in last] + [d for d in dims if role(d.name) == "k"]
    return (*(d for d in dims if d not in tail), *tail)


def joined(access: Access, outer: Dim, inner: Dim, name: str) -> Access | None:
    """The access with dims `outer` and `inner` as one; None if it does not walk them at one pitch."""
    size, coords = access
    terms = {n: [(i, t) for i, c in enumerate(coords) for t in c.terms if t.dim == n] for n in (outer.name, inner.name)}
    high, low = terms[outer.name], terms[inner.name]
    if not high and not low:
        return access
    steps = [(i, t) for i, t in low if not t.mod]
    lanes = [(i, t) for i, t in low if t.mod]
    if len(high) != 1 or len(steps) != 1 or len(lanes) > 1 or high[0][1].div != 1 or high[0][1].mod:
        return None
    (a, top), (b, step) = high[0], steps[0]
    if any(t.mod != step.div or t.div != 1 for _, t in lanes) or (step.div > 1 and not lanes) or inner.size % step.div:
        return None
    stride = [math.prod(size[i + 1 :]) for i in range(len(size))]
    if top.scale * stride[a] != step.scale * stride[b] * (inner.size // step.div):
        return None
    rename = {i: [replace(t, dim=name) if t.dim == inner.name else t for t in c.terms if t.dim != outer.name]
              for i, c in enumerate(coords)}  # fmt: skip
    merged = [Coord(tuple(rename[i]), c.const, c.index) for i, c in enumerate(coords)]
    if a == b:
        return size, tuple(merged)
    return _without_axis(size, merged, coords, a, b)


def _without_axis(
    size: tuple[int, ...], merged: list[Coord], coords: tuple[Coord, ...], a: int, b: int
) -> Access | None:
    """Axes a and b, which follow each other in memory, as one axis in the place of b."""
    if a > b or any(n > 1 for n in size[a + 1 : b]) or len(coords[a].terms) > 1 or coords[a].const:
        return None
    sizes = [n for i, n in enumerate(size) if i not in range(a, b)]
    sizes[a] = size[a] * size[b]
    return tuple(sizes), tuple(c for i, c in enumerate(merged) if i not in range(a, b))


def whole_k(accesses: Sequence[Access], dims: Sequence[Dim]) -> tuple[list[Access], tuple[Dim, ...]] | None:
    """Accesses and dims with all pieces of k joined, or None."""
    found, rest = list(accesses), list(dims)
    while len(pieces := [d for d in rest if role(d.name) == "k"]) > 1:
        outer, inner = pieces[-2:]
        if outer.slices > 1 or inner.slices > 1:
            return None
        one = Dim("k", outer.size * inner.size)
        name = "k" if len(pieces) == 2 else inner.name
        trial = [joined(a, outer, inner, name) for a in found]
        if any(t is None for t in trial):
            return None
        found = [t for t in trial if t is not None]
        rest = [replace(one, name=name) if d is inner else d for d in rest if d is not outer]
    return found, tuple(rest)


def normalised(op: TileOp) -> TileOp:
    """The op with one k and its dims in the order that the printers expect."""
    operands = [*op.inputs, op.output]
    dims = op.dims
    if len(op.reduced) > 1 and all(isinstance(o, Operand) for o in operands):
        plain = [o for o in operands if isinstance(o, Operand)]
        found = whole_k([(o.tensor.device_size, o.coords) for o in plain], dims)
        if found is not None:
            accesses, dims = found
            operands = [Operand(replace(o.tensor, device_size=s), c) for o, (s, c) in zip(plain, accesses, strict=True)]
            op = replace(op, reduced=("k",))
    return replace(op, dims=ordered(dims), inputs=tuple(operands[:-1]), output=operands[-1])  # type: ignore[arg-type]
