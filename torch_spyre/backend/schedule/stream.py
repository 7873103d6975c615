# SPDX-License-Identifier: Apache-2.0
"""The instruction stream under construction, and what is known about its scalar registers.

Registers are computed once and shared: equal scalar operations get one register, placed at the start of the outermost
loop body (or of the program) where its operands exist. Guards never hold such definitions, so a guard can be closed
and opened again around a barrier. For registers that depend on the core id alone the value on every core is known.
Variables, which loops carry, are assigned where they stand; what depends on one after its loop is computed in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.isa import Sop
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.affine import ZERO, Affine

_APPLY: dict[Sop, Callable[[int, int], int]] = {
    Sop.ADD: lambda a, b: a + b,
    Sop.SUB: lambda a, b: a - b,
    Sop.MUL: lambda a, b: a * b,
    Sop.FLOORDIV: lambda a, b: a // b,
    Sop.MOD: lambda a, b: a % b,
    Sop.MIN: min,
    Sop.MAX: max,
}


@dataclass(frozen=True)
class Register:
    """What the compiler knows: the value per core (or None), bounds (or None) and a number that divides every value."""

    level: int  # loop depth that defines it
    values: tuple[int, ...] | None = None
    low: int | None = None
    high: int | None = None
    divisor: int = 1
    in_place: bool = False  # assigned in the middle of a block: what depends on it cannot be computed at its start


@dataclass
class _Block:
    """Program or loop body."""

    sops: list[asm.Instruction] = field(default_factory=list)
    body: list[asm.Instruction] = field(default_factory=list)
    guards: list[Affine] = field(default_factory=list)
    last_guard: tuple[Affine, int] | None = None  # condition and depth of the guard that ended last
    numbering: dict[tuple[Sop, Affine, Affine], Affine] = field(default_factory=dict)


class Stream:
    def __init__(self, cores: int, integer_scalars: Sequence[Register] = ()) -> None:
        self.cores = cores
        self.origin: str | None = None
        ids = tuple(range(cores))
        self._registers = [Register(0, ids, 0, cores - 1), *integer_scalars]
        self._blocks = [_Block()]
        self.has_variables = False

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def registers(self) -> int:
        return len(self._registers)

    @property
    def in_loop(self) -> bool:
        return len(self._blocks) > 1

    @property
    def in_branch(self) -> bool:
        return any(block.guards for block in self._blocks)

    def values(self, affine: Affine) -> tuple[int, ...] | None:
        """The value on every core, if it depends on the core id alone."""
        totals = [affine.const] * self.cores
        for symbol, coefficient in affine.terms:
            known = self._registers[symbol].values if symbol >= 0 else None
            if known is None:
                return None
            totals = [t + coefficient * v for t, v in zip(totals, known, strict=True)]
        return tuple(totals)

    def bounds(self, affine: Affine) -> tuple[int | None, int | None]:
        """Least and greatest value over all cores and iterations, None where unknown."""
        if not affine.terms:
            return affine.const, affine.const
        known = self.values(affine)
        if known is not None:
            return min(known), max(known)
        low: int | None = affine.const
        high: int | None = affine.const
        for symbol, coefficient in affine.terms:
            register = self._registers[symbol] if symbol >= 0 else Register(0)
            ends = (register.low, register.high) if coefficient > 0 else (register.high, register.low)
            low = None if low is None or ends[0] is None else low + coefficient * ends[0]
            high = None if high is None or ends[1] is None else high + coefficient * ends[1]
        return low, high

    def bounds_on(self, affine: Affine, core: int) -> tuple[int | None, int | None]:
        """Least and greatest value on one core."""
        low: int | None = affine.const
        high: int | None = affine.const
        for symbol, coefficient in affine.terms:
            register = self._registers[symbol] if symbol >= 0 else Register(0)
            if register.values is not None:
                ends: tuple[int | None, int | None] = (register.values[core], register.values[core])
            else:
                ends = (register.low, register.high) if coefficient > 0 else (register.high, register.low)
            low = None if low is None or ends[0] is None else low + coefficient * ends[0]
            high = None if high is None or ends[1] is None else high + coefficient * ends[1]
        return low, high

    def least(self, affine: Affine) -> int | None:
        """Least value over the cores that reach the current point."""
        known, active = self.values(affine), self.active_cores()
        if known is None or active is None:
            return self.bounds(affine)[0]
        return min((known[core] for core in active), default=None)

    def divisor(self, affine: Affine) -> int:
        """A number that divides the value always; 0 if the value is always 0."""
        known = self.values(affine)
        if known is not None:
            return math.gcd(*known)
        parts = (c * (self._registers[s].divisor if s >= 0 else 1) for s, c in affine.terms)
        return math.gcd(affine.const, *parts)

    def active_cores(self) -> list[int] | None:
        """Cores that reach the current point, or None if that depends on more than the core id."""
        active = set(range(self.cores))
        for block in self._blocks:
            for guard in block.guards:
                known = self.values(guard)
                if known is None:
                    return None
                active &= {core for core, value in enumerate(known) if value >= 0}
        return sorted(active)

    # -- scalar operations ---------------------------------------------------------------------------------------

    def scalar(self, op: Sop, a: Affine, b: Affine) -> Affine:
        """`a op b`, folded if possible, else in a register."""
        folded = self._fold(op, a, b)
        if folded is not None:
            return folded
        if op in (Sop.FLOORDIV, Sop.MOD) and not self._positive(b):
            b = self.scalar(Sop.MAX, b, Affine(1))  # a divisor that is not positive has no meaning; keep it executable
        if any(s < 0 for s, _ in a.terms + b.terms):
            raise UnsupportedOp(
                f"{self.origin}: {op.name.lower()} of an index that is read from a tensor or of a base address; "
                "the scalar unit does not hold it"
            )
        if any(self._registers[s].in_place for s, _ in a.terms + b.terms):
            return self._in_place(op, a, b)
        level = max((self._registers[s].level for s, _ in a.terms + b.terms), default=0)
        block = self._blocks[level]
        key = (op, a, b)
        if key not in block.numbering:
            register = self._define(op, a, b, level)
            block.sops.append(asm.SopInst(register, op, a, b, origin=self.origin))
            block.numbering[key] = Affine.symbol(register)
        return block.numbering[key]

    def _in_place(self, op: Sop, a: Affine, b: Affine) -> Affine:
        register = self._define(op, a, b, len(self._blocks) - 1)
        self._registers[register] = replace(self._registers[register], in_place=True)
        self.emit(asm.SopInst(register, op, a, b, origin=self.origin))
        return Affine.symbol(register)

    def variable(self, in_loop: bool) -> Affine:
        """A register that `assign` writes: constant during an iteration of the loop that opens next, or in place."""
        self.has_variables = True
        self._registers.append(Register(len(self._blocks) - (not in_loop), in_place=not in_loop))
        return Affine.symbol(len(self._registers) - 1)

    def assign(self, variable: Affine, value: Affine) -> None:
        ((register, _),) = variable.terms
        self.emit(asm.SopInst(register, Sop.ADD, value, ZERO, origin=self.origin))

    def depends_on_variable(self, affine: Affine) -> bool:
        return any(s >= 0 and self._registers[s].in_place for s, _ in affine.terms)

    def _positive(self, affine: Affine) -> bool:
        low, _ = self.bounds(affine)
        return low is not None and low > 0

    def _fold(self, op: Sop, a: Affine, b: Affine) -> Affine | None:
        if op is Sop.ADD:
            return a + b
        if op is Sop.SUB:
            return a - b
        if op is Sop.MUL:
            if a.is_const or b.is_const:
                return b * a.const if a.is_const else a * b.const
            return None
        if op in (Sop.MIN, Sop.MAX):
            low, high = self.bounds(a - b)
            if high is not None and high <= 0:
                return a if op is Sop.MIN else b
            if low is not None and low >= 0:
                return b if op is Sop.MIN else a
            return None
        return self._fold_division(op, a, b)

    def _fold_division(self, op: Sop, a: Affine, b: Affine) -> Affine | None:
        if not b.is_const:
            return None
        if b.const <= 0:
            raise UnsupportedOp(f"division of an index by {b.const}; divisors must be positive")
        quotient = a.exact_div(b.const)
        if quotient is not None:
            return quotient if op is Sop.FLOORDIV else ZERO
        if op is Sop.MOD and self.divisor(a) % b.const == 0:
            return ZERO
        low, high = self.bounds(a)
        if low is not None and high is not None and low // b.const == high // b.const:
            quotient_value = low // b.const
            return Affine(quotient_value) if op is Sop.FLOORDIV else a - quotient_value * b.const
        return None

    def _define(self, op: Sop, a: Affine, b: Affine, level: int) -> int:
        left, right = self.values(a), self.values(b)
        if left is not None and right is not None:
            values = tuple(map(_APPLY[op], left, right))
            register = Register(level, values, min(values), max(values), math.gcd(*values))
        else:
            register = Register(level, None, *self._result_bounds(op, a, b))
        self._registers.append(register)
        return len(self._registers) - 1

    def _result_bounds(self, op: Sop, a: Affine, b: Affine) -> tuple[int | None, int | None]:
        (a_low, a_high), (b_low, b_high) = self.bounds(a), self.bounds(b)
        if op is Sop.MOD:
            return 0, None if b_high is None else b_high - 1
        if op is Sop.FLOORDIV and b.is_const:
            return None if a_low is None else a_low // b.const, None if a_high is None else a_high // b.const
        lows, highs = [x for x in (a_low, b_low) if x is not None], [x for x in (a_high, b_high) if x is not None]
        if op is Sop.MUL and len(lows) == len(highs) == 2:
            products = [x * y for x in (lows[0], highs[0]) for y in (lows[1], highs[1])]
            return min(products), max(products)
        if op is Sop.MIN:
            return (min(lows) if len(lows) == 2 else None), min(highs, default=None)
        if op is Sop.MAX:
            return max(lows, default=None), (max(highs) if len(highs) == 2 else None)
        return None, None

    # -- instructions --------------------------------------------------------------------------------------------

    def emit(self, inst: asm.Instruction) -> None:
        self._blocks[-1].body.append(inst)

    def barrier(self) -> None:
        """Ends a phase for all cores, also where the current point is guarded."""
        block = self._blocks[-1]
        if any(outer.guards for outer in self._blocks[:-1]):
            raise UnsupportedOp(
                f"{self.origin}: cores exchange data in a loop that some cores skip; put the condition inside the loop"
            )
        for _ in block.guards:
            self._close_guard(block)
        block.body.append(asm.BarrierInst(origin=self.origin))
        for guard in block.guards:
            block.body.append(asm.IfInst(guard, origin=self.origin))

    @contextmanager
    def guard(self, condition: Affine) -> Iterator[None]:
        """Code that runs where `condition` >= 0."""
        if any(symbol < 0 for symbol, _ in condition.terms):
            raise UnsupportedOp(
                f"{self.origin}: a condition that is read from a tensor; use arith.select on the values"
            )
        known = self.values(condition)
        if known is not None and min(known) >= 0:
            yield
            return
        block = self._blocks[-1]
        ended = block.body and isinstance(block.body[-1], asm.EndIfInst)
        if ended and block.last_guard == (condition, len(block.guards)):
            block.body.pop()  # goes on where the same guard just ended
        else:
            block.body.append(asm.IfInst(condition, origin=self.origin))
        block.guards.append(condition)
        yield
        self._close_guard(block)
        block.guards.pop()
        block.last_guard = (condition, len(block.guards))

    @staticmethod
    def _close_guard(block: _Block) -> None:
        """Ends the innermost guard, without leaving an empty one behind."""
        if isinstance(block.body[-1], asm.IfInst):
            block.body.pop()
        else:
            block.body.append(asm.EndIfInst())

    @contextmanager
    def loop(self, first: Affine, limit: Affine, step: int) -> Iterator[Affine]:
        """A counted loop; yields its counter."""
        if any(symbol < 0 for symbol, _ in first.terms + limit.terms):
            raise UnsupportedOp(
                f"{self.origin}: a loop whose bounds are read from a tensor; pass them as integer arguments"
            )
        low, _ = self.bounds(first)
        divisor = math.gcd(step, self.divisor(first))
        register = len(self._registers)
        level = len(self._blocks)
        self._registers.append(Register(level, None, low, self._last(first, limit, step), divisor))
        self._blocks.append(_Block())
        origin = self.origin
        yield Affine.symbol(register)
        block = self._blocks.pop()
        outer = self._blocks[-1].body
        outer.append(asm.LoopInst(register, first, limit, step, origin=origin))
        outer += block.sops + block.body
        outer.append(asm.EndLoopInst())

    def _last(self, first: Affine, limit: Affine, step: int) -> int | None:
        """The greatest value that the counter of a loop has."""
        firsts, limits = self.values(first), self.values(limit)
        if firsts is not None and limits is not None:
            lasts = [f + (end - 1 - f) // step * step for f, end in zip(firsts, limits, strict=True) if end > f]
            return max(lasts, default=firsts[0])
        _, high = self.bounds(limit)
        return None if high is None else high - 1

    def finish(self) -> list[asm.Instruction]:
        (block,) = self._blocks
        return [*block.sops, *block.body, asm.EndInst()]
