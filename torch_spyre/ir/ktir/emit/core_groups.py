# SPDX-License-Identifier: Apache-2.0
"""Groups of cores for inter-tile ops: cohorts that share a split reduced dim, and the barrier over all cores."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import AffineSetAttr, TensorType, i32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineConstraintExpr, AffineConstraintKind, AffineExpr, AffineSet

from torch_spyre.ir.ktir.dialect.context import (
    InterTileProduceOp,
    InterTileReduceOp,
    TileFutureType,
    YieldPartialOp,
    YieldReducedOp,
)

_ZERO = AffineExpr.constant(0)


def at_least_zero(expr: AffineExpr) -> AffineConstraintExpr:
    return AffineConstraintExpr(AffineConstraintKind.ge, expr, _ZERO, canonicalize=False)


def is_zero(expr: AffineExpr) -> AffineConstraintExpr:
    return AffineConstraintExpr(AffineConstraintKind.eq, expr, _ZERO, canonicalize=False)


@cache
def groups_set(count: int) -> AffineSetAttr:
    """Group ids 0 … count-1."""
    group = AffineExpr.dimension(0)
    return AffineSetAttr(AffineSet(1, 0, (at_least_zero(group), at_least_zero(group * -1 + (count - 1)))))


@cache
def cohort_sets(order: tuple[tuple[int, bool], ...]) -> tuple[AffineSetAttr, AffineSetAttr, int]:
    """Producers and the one consumer of each cohort, and the number of cohorts.

    `order` gives (slices, is reduced) of the split dims, fastest first. A cohort is the set of cores that differ only
    in reduced slices; its consumer is the core with the lowest id.
    """
    tile, group = AffineExpr.dimension(0), AffineExpr.symbol(0)
    if all(not reduced for _, reduced in order[1:]):
        size = order[0][0]
        first = tile + group * -size
        producers: tuple[AffineConstraintExpr, ...] = (
            at_least_zero(first),
            at_least_zero(group * size + tile * -1 + (size - 1)),
        )
        consumers: tuple[AffineConstraintExpr, ...] = (is_zero(first),)
        count = 1
        for slices, _ in order[1:]:
            count *= slices
    else:
        producers, consumers, count = _general_cohort(order)
    return tile_set(producers), tile_set(consumers), count


def _general_cohort(
    order: tuple[tuple[int, bool], ...],
) -> tuple[tuple[AffineConstraintExpr, ...], tuple[AffineConstraintExpr, ...], int]:
    """The group id is the mixed-radix number of the kept slices."""
    tile = AffineExpr.dimension(0)
    kept: AffineExpr = AffineExpr.symbol(0) * -1
    at_first = []
    stride = groups = 1
    for slices, reduced in order:
        digit = (tile // stride) % slices
        if reduced:
            at_first.append(is_zero(digit))
        else:
            kept = kept + digit * groups
            groups *= slices
        stride *= slices
    producers = (is_zero(kept), at_least_zero(tile), at_least_zero(tile * -1 + (stride - 1)))
    return producers, (*producers, *at_first), groups


def tile_set(constraints: tuple[AffineConstraintExpr, ...]) -> AffineSetAttr:
    return AffineSetAttr(AffineSet(1, 1, constraints))


@cache
def all_tiles_set(cores: int) -> AffineSetAttr:
    """Every core, in whatever group."""
    tile = AffineExpr.dimension(0)
    return tile_set((at_least_zero(tile), at_least_zero(tile * -1 + (cores - 1))))


def produce_and_reduce(
    partial: SSAValue,
    identity: SSAValue,
    combine: Any,
    producers: AffineSetAttr,
    consumers: AffineSetAttr,
    groups: AffineSetAttr,
) -> tuple[Operation, InterTileReduceOp]:
    """Each producer gives `partial`; the consumers get all of them combined."""
    from xdsl.dialects.builtin import IndexType

    body = Block(arg_types=[IndexType()])
    body.args[0].name_hint = "group"
    body.add_op(YieldPartialOp(partial))
    produce = InterTileProduceOp(producers, TileFutureType([partial.type], groups), Region(body))
    combiner = Block(arg_types=[partial.type, partial.type])
    combined = combine(combiner.args[0], combiner.args[1])
    combiner.add_ops([combined, YieldReducedOp(combined.result)])
    return produce, InterTileReduceOp(produce.future, [identity], consumers, Region(combiner))


BARRIER_TYPE: Attribute = TensorType(i32, [1])


def barrier(zero: SSAValue, cores: int) -> Sequence[Operation]:
    """All cores wait for all: an all-reduce whose result nobody uses."""
    tiles = all_tiles_set(cores)
    return produce_and_reduce(zero, zero, arith.AddiOp, tiles, tiles, groups_set(1))
