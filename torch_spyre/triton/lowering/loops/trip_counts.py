# SPDX-License-Identifier: Apache-2.0
"""How often loops run whose bounds or conditions only a launch knows: bounds that are read from memory, and `while`.

A program of the card is proved before it runs, so that each of its loops has a number of iterations. The launch follows
the integers of all programs at once on the host, one array element for each program, and gives the greatest number of
iterations of each such loop; `counted_loops` makes a loop of that many iterations of it, which does nothing more once
its own condition has ended it. Nothing else of the kernel is followed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import IndexType, IntegerType, ModuleOp, TensorType
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from torch_spyre.triton.lowering import linear, running_scalars
from torch_spyre.triton.lowering.known_integers import the_function
from torch_spyre.triton.lowering.refusals import refusal

Numbers = Any  # an integer, or a tile of them, for each program that is followed
MOST = 1 << 20  # iterations that are followed

_AXES = {"x": 0, "y": 1, "z": 2}


def uncounted(module: ModuleOp) -> list[Operation]:
    """The loops whose number of iterations nothing but a launch can tell, outer ones first."""
    running = running_scalars.find(module)
    return [
        op
        for op in module.walk()
        if op.name == "scf.while" or (op.name == "scf.for" and any(bound in running for bound in op.operands[:3]))
    ]


def count(module: ModuleOp, grid: tuple[int, int, int], memory: Callable[[int], Numbers]) -> tuple[int, ...]:
    """The greatest number of iterations of each loop of `uncounted`; `memory` gives the elements of a pointer argument,
    by its place among the arguments of the function."""
    loops = uncounted(module)
    return _Follower(module, loops, grid, memory).run()


class _Follower:
    def __init__(
        self,
        module: ModuleOp,
        loops: Sequence[Operation],
        grid: tuple[int, int, int],
        memory: Callable[[int], Numbers],
    ) -> None:
        self._function = the_function(module)
        self._grid = grid
        self._memory = memory
        self._loops = {loop: i for i, loop in enumerate(loops)}
        self._counts = [0] * len(loops)
        self._needed = _needed(loops)
        self._written = {_base(op.operands[0]) for op in module.walk() if op.name in ("tt.store", "tt.atomic_rmw")}
        self._steps = 0

    def run(self) -> tuple[int, ...]:
        total = math.prod(self._grid)
        program = np.arange(total, dtype=np.int64)
        self._ids = [
            program % self._grid[0],
            program // self._grid[0] % self._grid[1],
            program // (self._grid[0] * self._grid[1]),
        ]
        self._block(self._function.body.block, {}, program)
        return tuple(self._counts)

    def _block(self, block: Block, known: dict[SSAValue, Numbers], rows: Numbers) -> None:
        """Follows a block for some programs; `known` holds one number for each of them."""
        for op in block.ops:
            if op not in self._needed:
                continue
            if op.name == "scf.for":
                self._for(op, known, rows)
            elif op.name == "scf.while":
                self._while(op, known, rows)
            elif op.name == "scf.if":
                self._if(op, known, rows)
            elif op.results:
                known[op.results[0]] = self._value(op, known, rows)

    def _value(self, op: Any, known: Mapping[SSAValue, Numbers], rows: Numbers) -> Numbers:
        shape = linear.shape_of(op.results[0].type)
        number = linear.constant(op.results[0])
        if number is not None:
            return np.full((len(rows), *shape), number, dtype=np.int64)
        if op.name == "tt.make_range":
            places = np.arange(op.attributes["start"].value.data, op.attributes["end"].value.data)
            return np.broadcast_to(places, (len(rows), *shape))
        if op.name == "tt.get_program_id":
            return self._ids[_AXES[op.attributes["axis"].data]][rows]
        if op.name == "tt.load":
            return self._load(op, known, rows)
        if op.name == "tt.addptr":  # what it adds up to, from the start of its argument
            return known.get(op.operands[0], np.int64(0)) + known[op.operands[1]]
        if op.name in ("tt.splat", "tt.broadcast", "tt.expand_dims"):
            given = known.get(op.operands[0], np.zeros(len(rows), dtype=np.int64))
            if op.name == "tt.expand_dims":
                return np.expand_dims(given, 1 + op.attributes["axis"].value.data)
            given = given.reshape(len(rows), *[1] * len(shape)) if op.name == "tt.splat" else given
            return np.broadcast_to(given, (len(rows), *shape))
        if op.name == "tt.reduce":
            names = [inner.name for inner in op.regions[0].block.ops]
            combine = _COMBINED.get(names[0]) if len(names) == 2 and len(op.operands) == 1 else None
            if combine is not None:
                axis = {**op.properties, **op.attributes}["axis"].value.data
                return _wrapped(combine(known[op.operands[0]], axis=1 + axis), op.results[0].type)
        rule = _RULES.get(op.name)
        if rule is None:
            raise refusal(op, "the bounds of a loop follow from it; only integers and what is read decide them")
        return _wrapped(rule(op, *(known[operand] for operand in op.operands)), op.results[0].type)

    def _load(self, op: Any, known: Mapping[SSAValue, Numbers], rows: Numbers) -> Numbers:
        pointer = op.operands[0]
        base = _base(pointer)
        if base is None or not self._written.isdisjoint((base, None)):
            raise refusal(op, "a loop bound that the kernel itself may write; launch a kernel for each step")
        elements = self._memory(base)
        shape = (len(rows), *linear.shape_of(op.results[0].type))
        place = np.broadcast_to(known.get(pointer, np.int64(0)), shape)
        exists = (place >= 0) & (place < len(elements))
        if len(op.operands) > 1:
            taken = known[op.operands[1]].astype(bool)
            other = known[op.operands[2]] if len(op.operands) > 2 else np.zeros(shape, dtype=np.int64)
        else:
            taken, other = np.ones(shape, dtype=bool), np.zeros(shape, dtype=np.int64)
        if (taken & ~exists).any():
            where = int(place[taken & ~exists][0])
            raise refusal(op, f"element {where} of a tensor whose memory ends after {len(elements)}")
        found = np.zeros(shape, dtype=np.int64)
        found[exists] = elements[place[exists]]
        return np.where(taken, found, other)

    def _for(self, op: Any, known: dict[SSAValue, Numbers], rows: Numbers) -> None:
        first, limit, step = (known[operand] for operand in op.operands[:3])
        trips = np.maximum(0, -((first - limit) // np.maximum(step, 1)))
        self._note(op, trips)
        block = op.regions[0].block
        carried = self._carried(op, op.operands[3:])
        values = {i: known[op.operands[3 + i]] for i in carried}
        if carried or any(inner in self._needed for inner in block.ops if inner is not block.last_op):
            for n in range(int(trips.max(initial=0))):
                self._count(op)
                at = np.flatnonzero(trips > n)
                inner = {key: value[at] for key, value in known.items()}
                inner[block.args[0]] = first[at] + n * step[at]
                inner.update({block.args[1 + i]: values[i][at] for i in carried})
                self._block(block, inner, rows[at])
                for i in carried:
                    values[i] = values[i].copy()
                    values[i][at] = inner[block.last_op.operands[i]]
        known.update({op.results[i]: values[i] for i in carried})

    def _while(self, op: Any, known: dict[SSAValue, Numbers], rows: Numbers) -> None:
        before, after = (region.block for region in op.regions)
        trips = np.zeros(len(rows), dtype=np.int64)
        values: list[Numbers] = [
            known[v] if self._follows(a) else None for a, v in zip(before.args, op.operands, strict=True)
        ]
        results = [np.zeros(len(rows), dtype=np.int64) for _ in op.results]
        at = np.arange(len(rows))
        while len(at):
            self._count(op)
            inner = {key: value[at] for key, value in known.items()}
            inner.update({a: v[at] for a, v in zip(before.args, values, strict=True) if v is not None})
            self._block(before, inner, rows[at])
            goes_on, *passed = before.last_op.operands
            for result, value in zip(results, passed, strict=True):
                if value in inner:
                    result[at] = inner[value]
            going = inner[goes_on].astype(bool)
            inner.update({a: inner[v] for a, v in zip(after.args, passed, strict=True) if self._follows(a)})
            inner = {key: value[going] for key, value in inner.items()}
            at = at[going]
            trips[at] += 1
            self._block(after, inner, rows[at])
            for i, value in enumerate(after.last_op.operands):
                if values[i] is not None:
                    values[i] = values[i].copy()
                    values[i][at] = inner[value]
        self._note(op, trips)
        known.update(zip(op.results, results, strict=True))

    def _if(self, op: Any, known: dict[SSAValue, Numbers], rows: Numbers) -> None:
        condition = known[op.operands[0]].astype(bool)
        carried = [i for i, result in enumerate(op.results) if self._follows(result)]
        found = {i: np.zeros(len(rows), dtype=np.int64) for i in carried}
        for region, taken in zip(op.regions, (condition, ~condition), strict=True):
            at = np.flatnonzero(taken)
            if not region.blocks or not len(at):
                continue
            inner = {key: value[at] for key, value in known.items()}
            self._block(region.block, inner, rows[at])
            for i in carried:
                found[i][at] = inner[region.block.last_op.operands[i]]
        known.update({op.results[i]: found[i] for i in carried})

    def _carried(self, op: Any, operands: Sequence[SSAValue]) -> list[int]:
        return [i for i in range(len(operands)) if op.regions[0].block.args[1 + i] in self._needed.values]

    def _follows(self, value: SSAValue) -> bool:
        return value in self._needed.values

    def _note(self, op: Operation, trips: Numbers) -> None:
        if op in self._loops:
            i = self._loops[op]
            self._counts[i] = max(self._counts[i], int(trips.max(initial=0)))

    def _count(self, op: Operation) -> None:
        self._steps += 1
        if self._steps > MOST:
            raise refusal(op, f"a loop of more than {MOST} iterations, or one that never ends")


class _Needed(set[Operation]):
    """Operations that decide how often loops run, and their values."""

    values: set[SSAValue]


def _needed(loops: Sequence[Operation]) -> _Needed:
    ops, values = _Needed(), set[SSAValue]()
    ops.values = values
    waiting: list[SSAValue] = []

    def want(op: Operation) -> None:
        """An operation and all that it stands in."""
        while op is not None and op not in ops:
            ops.add(op)
            if op.name == "scf.for":
                waiting.extend(op.operands[:3])
            elif op.name == "scf.if":
                waiting.append(op.operands[0])
            elif op.name == "scf.while":
                waiting.append(op.regions[0].block.last_op.operands[0])  # type: ignore[union-attr]
            parent = op.parent_op()
            if parent is None or parent.name == "func.func":
                return
            op = parent

    for loop in loops:
        want(loop)
    while waiting:
        value = waiting.pop()
        if value in values:
            continue
        values.add(value)
        waiting.extend(_sources(value))
        if isinstance(value.owner, Operation):
            want(value.owner)
    return ops


def _sources(value: SSAValue) -> list[SSAValue]:
    """The values that one follows from."""
    owner: Any = value.owner
    if isinstance(owner, Block):
        assert isinstance(value, BlockArgument)
        loop: Any = owner.parent_op()
        if loop.name == "scf.for" and value.index > 0:
            i = value.index - 1
            return [loop.operands[3 + i], owner.last_op.operands[i]]  # type: ignore[union-attr]
        if loop.name == "scf.while":
            before, after = (region.block for region in loop.regions)
            if owner is before:
                return [loop.operands[value.index], after.last_op.operands[value.index]]
            return [before.last_op.operands[1 + value.index]]
        return []
    if owner.name == "scf.for":
        i = value.index  # type: ignore[attr-defined]
        return [owner.operands[3 + i], owner.regions[0].block.last_op.operands[i],
                owner.regions[0].block.args[1 + i]]  # fmt: skip
    if owner.name == "scf.if":
        return [r.block.last_op.operands[value.index] for r in owner.regions if r.blocks]  # type: ignore[attr-defined]
    if owner.name == "scf.while":
        return [owner.regions[0].block.last_op.operands[1 + value.index]]  # type: ignore[attr-defined]
    return list(owner.operands)


_SAME_MEMORY = ("tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "tt.bitcast")


def _base(pointer: SSAValue) -> int | None:
    """Which argument of the function a pointer counts from; None if that is not clear."""
    owner: Any = pointer.owner
    if isinstance(owner, Operation):
        if owner.name in _SAME_MEMORY:
            return _base(owner.operands[0])
        return _base(owner.operands[3 + pointer.index]) if owner.name == "scf.for" else None  # type: ignore[attr-defined]
    above: Any = owner.parent_op()
    assert isinstance(pointer, BlockArgument)
    if above.name == "func.func":
        return pointer.index
    return _base(above.operands[2 + pointer.index]) if above.name == "scf.for" else None


def _wrapped(numbers: Numbers, kind: Any) -> Numbers:
    """With the bits of the type."""
    if isinstance(kind, IndexType):
        return numbers
    kind = kind.element_type if isinstance(kind, TensorType) else kind
    width = kind.width.data if isinstance(kind, IntegerType) else 64
    if width == 1:
        return np.asarray(numbers).astype(np.int64) & 1
    if width >= 64:
        return numbers
    return (numbers + (1 << (width - 1))) % (1 << width) - (1 << (width - 1))


def _divided(op: Any, a: Numbers, b: Numbers) -> Numbers:
    b = np.where(b == 0, 1, b)
    return np.abs(a) // np.abs(b) * np.where((a < 0) == (b < 0), 1, -1)


_COMPARED = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)


def _compared(op: Any, a: Numbers, b: Numbers) -> Numbers:
    predicate = op.properties["predicate"].value.data
    if predicate >= 6:
        a, b, predicate = a.astype(np.uint64), b.astype(np.uint64), predicate - 4
    return _COMPARED[predicate](a, b).astype(np.int64)


_COMBINED: dict[str, Callable[..., Numbers]] = {"arith.maxsi": np.max, "arith.minsi": np.min, "arith.addi": np.sum}

_RULES: dict[str, Callable[..., Numbers]] = {
    "arith.addi": lambda op, a, b: a + b,
    "arith.subi": lambda op, a, b: a - b,
    "arith.muli": lambda op, a, b: a * b,
    "arith.divsi": _divided,
    "arith.remsi": lambda op, a, b: a - b * _divided(op, a, b),
    "arith.minsi": lambda op, a, b: np.minimum(a, b),
    "arith.maxsi": lambda op, a, b: np.maximum(a, b),
    "arith.andi": lambda op, a, b: a & b,
    "arith.ori": lambda op, a, b: a | b,
    "arith.xori": lambda op, a, b: a ^ b,
    "arith.shli": lambda op, a, b: a << b,
    "arith.shrsi": lambda op, a, b: a >> b,
    "arith.extsi": lambda op, a: -a if op.operands[0].type == IntegerType(1) else a,
    "arith.extui": lambda op, a: a & ((1 << op.operands[0].type.width.data) - 1),
    "arith.trunci": lambda op, a: a,
    "arith.index_cast": lambda op, a: a,
    "arith.select": lambda op, c, a, b: np.where(c.astype(bool), a, b),
    "arith.cmpi": _compared,
}
