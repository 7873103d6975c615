# SPDX-License-Identifier: Apache-2.0
"""Legality: what a module may say beyond what each operation checks on its own.

Rules R1 to R14 of inter-tile communication (docs/ktir.md lists them) are checked over the flat ids of the grid; a
message names the rule, the sets and the offending tile. Functions, grids, memory spaces and shapes of access tiles come
first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from xdsl.dialects.builtin import DYNAMIC_INDEX, AffineSetAttr, IndexType, IntegerType, ModuleOp, TensorType, _FloatType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from torch_spyre.errors import InvalidProgram
from torch_spyre.ir.ktir.dialect.delivery_ops import DeliveryOp, InterTileConsumeOp, InterTileScatterOp
from torch_spyre.ir.ktir.dialect.inter_tile_ops import InterTileProduceOp
from torch_spyre.ir.ktir.dialect.types import RuntimeArgType
from torch_spyre.ir.ktir.legality import combiners
from torch_spyre.ir.ktir.legality.boxes import members
from torch_spyre.ir.ktir.legality.tile_ids import TileIds
from torch_spyre.ir.ktir.legality.tile_shapes import check_tiles
from torch_spyre.ir.ktir.locations import place
from torch_spyre.ir.ktir.signatures import grid_of

RULES = {
    "R1": "the producers of different groups are disjoint",
    "R2": "a future is used exactly once",
    "R3": "dependencies are producers of the group",
    "R4": "every producer is consumed",
    "R5": "two dependency sets of one op are equal or disjoint",
    "R6": "all consumers depend on equally many producers",
    "R7": "all groups have equally many producers, at least one",
    "R8": "a consumer of consume or scatter has exactly one source",
    "R9": "split dims divide evenly among the consumers",
    "R10": "the combiner is pure, associative and commutative",
    "R11": "the identity is neutral for the combiner",
    "R12": "concatenated dims hold exactly one slice per producer",
    "R13": "the consumers of a reduction are producers",
    "R14": "the consumers of a reduction are all producers or one tile",
}


def check(module: ModuleOp, *, axis0_fastest: bool = True) -> None:
    """Raise InvalidProgram with the broken rule, or return."""
    names: set[str] = set()
    for op in module.body.block.ops:
        if not isinstance(op, FuncOp):
            raise InvalidProgram(f"{place(op)}{op.name} stands outside a function; a KTIR module holds functions")
        if op.sym_name.data in names:
            raise InvalidProgram(f"{place(op)}there are two functions {op.sym_name.data}")
        names.add(op.sym_name.data)
        if op.body.blocks:
            check_function(op, axis0_fastest)


def check_function(function: FuncOp, axis0_fastest: bool) -> None:
    grid = grid_of(function)
    name = function.sym_name.data
    for arg in function.body.block.args:
        if not isinstance(arg.type, IndexType | IntegerType | _FloatType | RuntimeArgType):
            raise InvalidProgram(
                f"{place(function)}argument {arg.index} of {name} has type {arg.type}; arguments are scalars: index "
                "base addresses, integers, floats and runtime arguments"
            )
    if function.function_type.outputs.data:
        raise InvalidProgram(f"{place(function)}{name} returns values; a kernel stores its results")
    cores = math.prod(grid)
    ids = TileIds(grid, axis0_fastest)
    check_tiles(function, cores)
    for op in function.walk():
        if isinstance(op, InterTileProduceOp):
            _Exchange(op, cores, ids).check()


def _sets(tiles: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, tiles)) + "}"


@dataclass
class _Exchange:
    """A produce op with its delivery op, its sets spelled out."""

    produce: InterTileProduceOp
    cores: int
    ids: TileIds

    def __post_init__(self) -> None:
        self.tiles = range(self.cores)
        self.groups = self._members(self.produce.future.type.groups)
        self.producers = {g: self._members(self.produce.producer_tiles_per_group, [g]) for g in self.groups}
        users = [use.operation for use in self.produce.future.uses]
        if len(users) != 1 or not isinstance(users[0], DeliveryOp):
            found = ", ".join(u.name for u in users) or "nothing"
            self._fail("R2", f"the future is used by {found}", self.produce)
        self.delivery = cast(Any, users[0])
        self.consumers = {g: self._members(self.delivery.consumer_tiles_per_group, [g]) for g in self.groups}

    def _members(self, points: AffineSetAttr, symbols: Sequence[int] = ()) -> list[int]:
        try:
            return members(points.data, self.tiles, symbols)
        except (ZeroDivisionError, ValueError, IndexError) as error:
            raise InvalidProgram(f"{place(self.produce)}set {points} cannot be evaluated: {error}") from error

    def _fail(self, rule: str, why: str, op: Operation | None = None) -> NoReturn:
        op = op or self.delivery
        raise InvalidProgram(f"{place(op)}{op.name.removeprefix('ktdp.')} breaks {rule} ({RULES[rule]}): {why}")

    def check(self) -> None:
        self._check_producers()
        self._check_reached()
        needs = self._dependencies()
        self._check_consumed(needs)
        if isinstance(self.delivery, InterTileConsumeOp | InterTileScatterOp):
            self._check_one_source(needs)
        if self.delivery.FOLDS:
            self._check_fold()
        self._check_factors(needs)

    def _check_producers(self) -> None:
        if not self.groups:
            self._fail("R7", f"there are no groups: {self.produce.future.type.groups} holds no id below {self.cores}")
        owner: dict[int, int] = {}
        for group, producers in self.producers.items():
            for tile in producers:
                if tile in owner:
                    sets = f"{_sets(self.producers[owner[tile]])} and {_sets(producers)}"
                    self._fail("R1", f"tile {tile} produces in groups {owner[tile]} and {group}: {sets}", self.produce)
                owner[tile] = group
        counts = {g: len(p) for g, p in self.producers.items()}
        if len(set(counts.values())) > 1 or 0 in counts.values():
            listed = ", ".join(f"group {g}: {_sets(p)}" for g, p in self.producers.items())
            self._fail("R7", listed, self.produce)

    def _check_reached(self) -> None:
        """All members of a group take the same way to the ops."""
        for op in (self.produce, self.delivery):
            for condition, branch in _guards(op):
                truth = {t: self.ids.truth(condition, t) for t in self.tiles}
                for group in self.groups:
                    members_ = sorted({*self.producers[group], *self.consumers[group]})
                    reached = [t for t in members_ if truth[t] is branch]
                    missed = [t for t in members_ if truth[t] is (not branch)]
                    if reached and missed:
                        raise InvalidProgram(
                            f"{place(op)}{op.name.removeprefix('ktdp.')} stands under a condition that tiles "
                            f"{_sets(reached)} of group {group} meet and tile {missed[0]} does not; all members of a "
                            "group must reach it"
                        )

    def _dependencies(self) -> dict[tuple[int, int], list[int]]:
        """Producers that each consumer of each group needs."""
        needs: dict[tuple[int, int], list[int]] = {}
        dependency = self.delivery.dependency
        for group in self.groups:
            producers = self.producers[group]
            for consumer in self.consumers[group]:
                if dependency is None:
                    needs[group, consumer] = producers
                    continue
                symbols = [consumer, group][: dependency.data.num_symbols]
                found = self._members(dependency, symbols)
                outside = [p for p in found if p not in producers]
                if outside:
                    self._fail(
                        "R3",
                        f"consumer {consumer} depends on tile {outside[0]}, which does not produce in group {group}; "
                        f"dependencies {_sets(found)}, producers {_sets(producers)}",
                    )
                needs[group, consumer] = found
        if dependency is not None:
            self._check_dependency_sets(needs)
        return needs

    def _check_dependency_sets(self, needs: dict[tuple[int, int], list[int]]) -> None:
        counts = {len(found) for found in needs.values()}
        if len(counts) > 1 or counts == {0}:
            listed = ", ".join(f"consumer {c}: {_sets(found)}" for (_, c), found in needs.items())
            self._fail("R6", listed)
        seen: dict[int, tuple[int, list[int]]] = {}
        for (_, consumer), found in needs.items():
            for tile in found:
                other, theirs = seen.setdefault(tile, (consumer, found))
                if theirs != found:
                    self._fail(
                        "R5",
                        f"consumers {other} and {consumer} both need tile {tile}, but their sets {_sets(theirs)} and "
                        f"{_sets(found)} differ",
                    )

    def _check_consumed(self, needs: dict[tuple[int, int], list[int]]) -> None:
        for group, producers in self.producers.items():
            used = {p for c in self.consumers[group] for p in needs[group, c]}
            left = [p for p in producers if p not in used]
            if left:
                self._fail(
                    "R4",
                    f"nobody takes what tile {left[0]} produces in group {group}; producers {_sets(producers)}, "
                    f"consumers {_sets(self.consumers[group])}",
                )

    def _check_one_source(self, needs: dict[tuple[int, int], list[int]]) -> None:
        for (group, consumer), found in needs.items():
            if len(found) != 1:
                hint = "" if self.delivery.dependency is not None else "; producer_dependency_per_consumer routes them"
                hint = hint if isinstance(self.delivery, InterTileConsumeOp) else ""
                self._fail("R8", f"consumer {consumer} of group {group} has the sources {_sets(found)}{hint}")

    def _check_fold(self) -> None:
        for group, consumers in self.consumers.items():
            producers = self.producers[group]
            outside = [c for c in consumers if c not in producers]
            if outside:
                self._fail(
                    "R13",
                    f"tile {outside[0]} consumes in group {group} without producing; producers {_sets(producers)}, "
                    f"consumers {_sets(consumers)}",
                )
            if len(consumers) != 1 and consumers != producers:
                self._fail("R14", f"group {group} has producers {_sets(producers)}, consumers {_sets(consumers)}")
        impure = combiners.impure_op(self.delivery.combiner)
        if impure is not None:
            self._fail("R10", f"it contains {impure.name}", impure)
        ordered = combiners.not_commutative(self.delivery.combiner)
        if ordered is not None:
            self._fail("R10", ordered)
        wrong = combiners.wrong_identity(self.delivery)
        if wrong is not None:
            self._fail("R11", wrong)

    def _check_factors(self, needs: dict[tuple[int, int], list[int]]) -> None:
        split, concat = self.delivery.split_dims, self.delivery.concat_dims
        if not split and not concat:
            return
        sources = {len(found) for found in needs.values()}
        targets = {len(c) for c in self.consumers.values()}
        if split and len(targets) > 1:
            listed = ", ".join(f"group {g}: {_sets(c)}" for g, c in self.consumers.items())
            self._fail("R9", f"groups have different numbers of consumers: {listed}")
        for part, value in zip(self.produce.future.type.partials.data, self.delivery.values, strict=True):
            before, after = (cast(TensorType, t).get_shape() for t in (part, value.type))
            if DYNAMIC_INDEX in (*before, *after):
                continue
            if split and not set(split) & set(concat):
                self._check_product("R9", "consumers", min(targets), [before[d] // max(after[d], 1) for d in split])
            if concat and not set(split) & set(concat):
                self._check_product("R12", "producers", min(sources), [after[d] // max(before[d], 1) for d in concat])
            if set(split) & set(concat):
                self._check_shared(before, after, min(sources), min(targets))

    def _check_product(self, rule: str, what: str, count: int, factors: list[int]) -> None:
        if math.prod(factors) != count:
            self._fail(rule, f"the named dims change by {' x '.join(map(str, factors))}, but there are {count} {what}")

    def _check_shared(self, before: Sequence[int], after: Sequence[int], sources: int, targets: int) -> None:
        """A dim that is split and concatenated must be the only named one, else the factors are not determined."""
        split, concat = self.delivery.split_dims, self.delivery.concat_dims
        if len(split) != 1 or split != concat:
            self._fail("R9", f"split dims {list(split)} and concat dims {list(concat)} overlap in part")
        size = before[split[0]]
        if size % targets or after[split[0]] != size // targets * sources:
            self._fail(
                "R9",
                f"dim {split[0]} goes from {size} to {after[split[0]]} for {targets} consumers, {sources} producers",
            )


def _guards(op: Operation) -> Iterator[tuple[Any, bool]]:
    """Conditions of the scf.if ops around an op, and the branch it stands in."""
    child: Operation = op
    parent = op.parent_op()
    while parent is not None:
        if parent.name == "scf.if":
            in_then = child.parent_region() is parent.regions[0]
            yield parent.operands[0], in_then
        child, parent = parent, parent.parent_op()
