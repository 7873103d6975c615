# SPDX-License-Identifier: Apache-2.0
"""What our lowerings tell the tracer through slots of Inductor that hold a string or a function, as values with fields.

A lowering fills the slot with ``str(value)`` and the tracer reads it with `parse`; nobody else knows the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch._inductor.virtualized import ops

KEY = "random_key"  # begin of the names of launch scalars that are drawn at each launch
UNDEFINED = "undefined"  # the function that computes nothing: others write the buffer


@dataclass(frozen=True)
class Ranking:
    """A reduction that is a top-k: the op, the dim of the result that counts the elements found, their order."""

    op: str
    dim: int
    ascending: bool

    def __str__(self) -> str:
        return f"{self.op}/{self.dim}/{'ascending' if self.ascending else 'descending'}"

    @staticmethod
    def parse(reduction_type: str) -> Ranking | None:
        op, *rest = reduction_type.split("/")
        ranks = rest and rest[1] in ("ascending", "descending")
        return Ranking(op, int(rest[0]), rest[1] == "ascending") if ranks else None


@dataclass(frozen=True)
class Windows:
    """A product whose rows are windows: the dim of the result that counts the columns, and the one that both operands
    have (-1: none). The other dims of the result are rows, the last one fastest."""

    column: int
    batch: int = -1

    def __str__(self) -> str:
        return f"windows/{self.column}/{self.batch}"

    @staticmethod
    def parse(reduction_type: str) -> Windows | None:
        name, *rest = reduction_type.split("/")
        return Windows(int(rest[0]), int(rest[1])) if name == "windows" else None

    def names(self, rank: int) -> list[str]:
        """What the planner calls the dims of the result."""
        rows = [i for i in range(rank) if i not in (self.column, self.batch)]
        special = {self.column: "n", self.batch: "b0", rows[-1]: "m"}
        return [special.get(i, f"m{i}") for i in range(rank)]


@dataclass(frozen=True)
class Draw:
    """A function that gives random words: those of the draw of this number."""

    number: int

    def __str__(self) -> str:
        return f"random/{self.number}"

    @staticmethod
    def parse(function: str) -> Draw | None:
        name, _, number = function.partition("/")
        return Draw(int(number)) if name == "random" and number else None

    @property
    def keys(self) -> tuple[str, str]:
        """Names of the launch scalars that hold the words of its key."""
        return f"{KEY}{self.number}_0", f"{KEY}{self.number}_1"


@dataclass(frozen=True)
class Running:
    """The combining function of a scan, by the op that scans."""

    op: str

    def __call__(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        """Inductor wants a function that could be called; nobody calls it."""
        return (ops.add(a[0], b[0]),)


@dataclass(frozen=True)
class Assertion:
    """A condition whose failure raises, with this message."""

    message: str
