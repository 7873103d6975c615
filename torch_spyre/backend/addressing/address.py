# SPDX-License-Identifier: Apache-2.0
"""Address generation: the byte address of a tile as a function of its iteration variables becomes operand maps.

Enters: a `Quasi` in bytes. Leaves: an offset over registers and one DimMap per variable, or a LayoutMap (copies only)
when the address does not separate into functions of one variable with at most one stick each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch_spyre.backend.addressing.digits import (
    Digit,
    Levels,
    Linear,
    Quasi,
    Subscripts,
    add_levels,
    levels_of,
    nests,
    split_levels,
)
from torch_spyre.backend.program.assembler import DimMap, LayoutMap, Maps
from torch_spyre.backend.program.isa import MAX_DIMS, Sop
from torch_spyre.backend.schedule.stream import Stream
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.affine import ZERO, Affine


def operand_maps(address: Quasi, caps: Sequence[int], stream: Stream, what: str) -> tuple[Affine, Maps]:
    """Offset and maps of an operand. `what` names the tile in errors."""
    if not any(address.digits.values()):
        return address.const, tuple(DimMap(address.variables.get(v, 0)) for v in range(len(caps)))
    address, levels = _without_sums(address, _levels_by_sum(address, what))
    separate = _separate(address, levels, caps, stream)
    if separate is not None:
        return separate
    return _layout(address, levels, caps, stream, what)


def indexed_maps(
    address: Quasi, caps: Sequence[int], stream: Stream, what: str
) -> tuple[Affine, Maps, list[tuple[Linear, Levels]]]:
    """Offset and one map per dim, and the tiled sums that no map of one dim can say: those become indices."""
    address, tiled = _without_sums(address, _levels_by_sum(address, what))
    kept: dict[Linear, Levels] = {}
    left = []
    for linear, levels in tiled.items():
        if _separate(address, {**kept, linear: levels}, caps, stream) is None:
            left.append((linear, levels))
        else:
            kept[linear] = levels
    found = _separate(address, kept, caps, stream)
    assert found is not None
    return (*found, left)


def _levels_by_sum(address: Quasi, what: str) -> dict[Linear, Levels]:
    """The digits of the address, by the sum whose digits they are."""
    groups: dict[Linear, dict[Digit, int]] = {}
    for digit, coefficient in address.digits.items():
        if coefficient:
            groups.setdefault(digit.linear, {})[digit] = coefficient
    return {linear: levels_of(digits, what) for linear, digits in groups.items()}


def _without_sums(address: Quasi, groups: dict[Linear, Levels]) -> tuple[Quasi, dict[Linear, Levels]]:
    """All digits of a sum, each weighted as in the sum, are the sum itself, also where it is negative."""
    const, variables = address.const, dict(address.variables)
    tiled: dict[Linear, Levels] = {}
    for linear, levels in groups.items():
        if len(levels) > 1 or levels[0][0] != 1:
            tiled[linear] = levels
            continue
        stride = levels[0][1]
        const = const + linear.offset * stride
        for variable, coefficient in linear.terms:
            variables[variable] = variables.get(variable, 0) + coefficient * stride
    digits = {digit: coefficient for digit, coefficient in address.digits.items() if digit.linear in tiled}
    return Quasi(const, variables, digits), tiled


# -- one map per dim -------------------------------------------------------------------------------------------------


def _separate(
    address: Quasi, groups: dict[Linear, Levels], caps: Sequence[int], stream: Stream
) -> tuple[Affine, Maps] | None:
    offset = address.const
    per_variable: list[Levels] = [[(1, address.variables.get(v, 0))] for v in range(len(caps))]
    for linear, levels in groups.items():
        if len(linear.terms) != 1 or not nests(levels):
            return None
        ((variable, coefficient),) = linear.terms
        placed = _place(linear.offset, coefficient, levels, caps[variable], stream)
        if placed is None:
            return None
        total = add_levels(per_variable[variable], placed[1])
        if total is None:
            return None
        offset = offset + placed[0]
        per_variable[variable] = total
    maps = []
    for total, cap in zip(per_variable, caps, strict=True):
        used = [level for level in total if level[0] < max(cap, 2)]
        if len(used) > 2:
            return None
        inner = used[0][1]
        maps.append(DimMap(inner) if len(used) == 1 else DimMap(inner, used[1][0], used[1][1]))
    return offset, tuple(maps)


def _place(offset: Affine, scale: int, levels: Levels, cap: int, stream: Stream) -> tuple[Affine, Levels] | None:
    """Splits the digits of ``offset + scale * v`` into a part of the offset and levels of v."""
    if scale <= 0:
        return None
    divisor = stream.divisor(offset)
    top = levels[-1][0]
    if divisor % top == 0:
        of_variable = levels
        const = stream.scalar(Sop.FLOORDIV, offset, Affine(top)) * levels[-1][1]
    else:
        # The variable stays below what divides the offset: low digits come from it, high ones from the offset.
        cuts = (math.gcd(divisor, high[0]) for low, high in pairwise(levels) if divisor % low[0] == 0)
        cut = max(cuts, default=1)
        parts = split_levels(levels, cut)
        if cap * scale > cut or parts is None:
            return None
        of_variable, of_offset = parts
        const = _digits_of_offset(offset, of_offset, stream)
    return None if (scaled := _unscale(of_variable, scale)) is None else (const, scaled)


def _digits_of_offset(offset: Affine, levels: Levels, stream: Stream) -> Affine:
    total = ZERO
    for i, (start, stride) in enumerate(levels):
        digit = stream.scalar(Sop.FLOORDIV, offset, Affine(start))
        if i + 1 < len(levels):
            digit = stream.scalar(Sop.MOD, digit, Affine(levels[i + 1][0] // start))
        total = total + digit * stride
    return total


def _unscale(levels: Levels, scale: int) -> Levels | None:
    """Levels of v from those of ``scale * v``."""
    if scale == 1:
        return levels
    parts = split_levels(levels, scale)
    if parts is None:
        return None
    return [(start // scale, stride) for start, stride in parts[1]]


# -- layout maps -----------------------------------------------------------------------------------------------------


def _layout(
    address: Quasi, groups: dict[Linear, Levels], caps: Sequence[int], stream: Stream, what: str
) -> tuple[Affine, Maps]:
    """One linear element offset whose digits give the address: the groups are packed into disjoint ranges of it."""
    groups, const = _absorb_variables(address, groups, what)
    ranges = Subscripts(stream, caps)
    bounds = {linear: ranges.range_of(linear) for linear in groups}
    unbounded = [linear for linear, (_, high) in bounds.items() if high is None]
    if len(unbounded) > 1 or any(low is None or low < 0 for low, _ in bounds.values()):
        raise UnsupportedOp(f"{what}: subscripts that may be negative or have no bound do not form a layout")
    scale = 1
    offset = ZERO
    strides = [0] * len(caps)
    dims: list[tuple[int, int, int]] = []
    for linear in sorted(groups, key=lambda g: (g in unbounded, groups[g][-1][0])):
        high = bounds[linear][1]
        levels = [level for level in groups[linear] if high is None or level[0] <= high or level[0] == 1]
        for i, (start, stride) in enumerate(levels):
            end = levels[i + 1][0] if i + 1 < len(levels) else (high + 1 if high is not None else 1 << 40)
            dims.append((scale * start, max(1, -(-end // start)), stride))
        offset = offset + linear.offset * scale
        for variable, coefficient in linear.terms:
            strides[variable] += coefficient * scale
        scale *= (high or 0) + 1
    if len(dims) > MAX_DIMS:
        raise UnsupportedOp(f"{what}: its address takes {len(dims)} digits, a layout has at most {MAX_DIMS}")
    return const, LayoutMap(offset, tuple(strides), tuple(reversed(dims)))


def _absorb_variables(address: Quasi, groups: dict[Linear, Levels], what: str) -> tuple[dict[Linear, Levels], Affine]:
    """Gives every variable exactly one group; plain variables become groups of one level."""
    owner: dict[int, Linear] = {}
    for linear in groups:
        for variable, _ in linear.terms:
            if variable in owner:
                raise UnsupportedOp(f"{what}: dim {variable} stands in two different tiled sums; copy it in two steps")
            owner[variable] = linear
    result = dict(groups)
    const = address.const
    for variable, coefficient in address.variables.items():
        if not coefficient:
            continue
        if variable not in owner:
            result[Linear(ZERO, ((variable, 1),))] = [(1, coefficient)]
            continue
        linear = owner[variable]
        total = add_levels(result[linear], [(1, coefficient)]) if linear.terms == ((variable, 1),) else None
        if total is None:
            raise UnsupportedOp(f"{what}: dim {variable} is used both tiled and plain; copy it in two steps")
        result[linear] = total
        const = const - linear.offset * coefficient
    return result, const
