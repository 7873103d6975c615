# SPDX-License-Identifier: Apache-2.0
"""Tables of gathers and scatters as a front end writes them, told in one way: one dim of rows, and how many there are.

One index tensor of several dims names rows; the table then has all these dims marked, although its memory has one dim
of rows. And a table whose sticks are row after row says nothing about its length: that is the length of whatever else
in the bundle is in the same place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch_spyre.ir.superdsc.schema import SuperDSC


def table_of(sdsc: SuperDSC) -> int | None:
    """The tensor that is read or written at places which index tensors name."""
    named = (*sdsc.compute.inputs, *sdsc.compute.outputs)
    return next((t for t in named if t < len(sdsc.allocations) and sdsc.is_table(t)), None)


def is_scatter(sdsc: SuperDSC) -> bool:
    return bool(sdsc.compute.indices) and any(sdsc.is_table(t) for t in sdsc.compute.outputs)


def told_in_one_way(sdscs: Sequence[SuperDSC]) -> list[SuperDSC]:
    """The files of a bundle with literal addresses."""
    sdscs = [_with_one_dim_of_rows(sdsc) for sdsc in sdscs]
    return [_with_all_rows(sdsc, sdscs) for sdsc in sdscs]


def _with_one_dim_of_rows(sdsc: SuperDSC) -> SuperDSC:
    """One index for several marked dims: the first stands for all rows, the table lacks the others."""
    if not _is_sound(sdsc):
        return sdsc
    table = table_of(sdsc)
    if table is None or len(sdsc.compute.indices) != 1:
        return sdsc
    rows, *others = sdsc.gathered(table) or ("",)
    if not others:
        return sdsc
    allocation, tensor = sdsc.allocations[table], sdsc.tensors[table]
    count = math.prod(sdsc.sizes[d] + allocation.gap(d) for d in (rows, *others))
    scale = tuple(
        -1 if dim in others else s for dim, s in zip(sdsc.primary[tensor.label].order, tensor.scale, strict=True)
    )
    gaps = {d: g for d, g in (allocation.back_gap or {}).items() if d not in (rows, *others)}
    made = replace(
        allocation,
        max_sizes={d: n for d, n in allocation.max_sizes.items() if d not in others},
        back_gap={**gaps, rows: {-1: count - sdsc.sizes[rows]}},
    )
    return _with_table(sdsc, table, made, scale)


def _with_all_rows(sdsc: SuperDSC, bundle: Sequence[SuperDSC]) -> SuperDSC:
    """A table whose rows are its outermost dim, as long as the longest tensor that starts where it does."""
    table = table_of(sdsc) if _is_sound(sdsc) else None
    rows = sdsc.gathered(table) if table is not None else ()
    if table is None or len(rows) != 1 or sdsc.allocations[table].component != "hbm":
        return sdsc
    geometry = sdsc.geometry(table)
    stride = geometry.strides[rows[0]]
    if any(s > stride and geometry.extents[d] > 1 for d, s in geometry.strides.items()):
        return sdsc  # what is behind the rows tells how many there are
    word, start = sdsc.tensors[table].word_bytes, _origin(sdsc, table)
    longest = max(
        (
            _bytes(other, t)
            for other in bundle
            if _is_sound(other)
            for t in range(len(other.tensors))
            if other.allocations[t].component == "hbm" and _origin(other, t) == start
        ),
        default=0,
    )
    count = max(geometry.extents[rows[0]], longest // (stride * word))
    allocation = sdsc.allocations[table]
    gaps = {**(allocation.back_gap or {}), rows[0]: {-1: count - sdsc.sizes[rows[0]]}}
    return _with_table(sdsc, table, replace(allocation, back_gap=gaps), sdsc.tensors[table].scale)


def _is_sound(sdsc: SuperDSC) -> bool:
    """True if names resolve, so that sizes can be looked up; the rules report one where they do not."""
    from torch_spyre.ir.superdsc import rules  # late: written over tables

    return not rules.names_problems(sdsc)


def _with_table(sdsc: SuperDSC, table: int, allocation: object, scale: tuple[int, ...]) -> SuperDSC:
    allocations, tensors = list(sdsc.allocations), list(sdsc.tensors)
    allocations[table] = allocation  # type: ignore[call-overload]
    tensors[table] = replace(tensors[table], scale=scale)
    return replace(sdsc, allocations=tuple(allocations), tensors=tuple(tensors))


def _origin(sdsc: SuperDSC, tensor: int) -> int:
    core, address = next(iter(sdsc.allocations[tensor].start.items()))
    return address - sdsc.core_offset(tensor, core)


def _bytes(sdsc: SuperDSC, tensor: int) -> int:
    geometry = sdsc.geometry(tensor)
    return math.prod(geometry.extents.values()) * geometry.stick_elements * sdsc.tensors[tensor].word_bytes
