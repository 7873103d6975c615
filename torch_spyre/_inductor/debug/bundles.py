# SPDX-License-Identifier: Apache-2.0
"""The SuperDSC form of a compiled kernel, and for a plan that was made for it what that costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch_spyre._inductor.planning.plan_options import PlanOptions
from torch_spyre.ir.superdsc import writer
from torch_spyre.ir.superdsc.steps import Steps, in_steps, write_steps

if TYPE_CHECKING:
    from torch_spyre._inductor.debug.inspect import KernelRecord

REPORT = "report.txt"


@dataclass(frozen=True)
class Cost:
    """A plan for SuperDSC beside the ordinary one: time on the card in us, and ops."""

    steps: Steps
    us: float
    ordinary_us: float
    ordinary_ops: int

    @property
    def bundles(self) -> int:
        return sum(step.is_bundle for step in self.steps.steps)

    @property
    def ops(self) -> int:
        return len(self.steps.kernel.ops)

    def text(self, name: str) -> str:
        wordless = self.steps.wordless
        lines = [
            f"{name}: {self.bundles} bundle{'s' * (self.bundles != 1)}; {len(wordless)} of {self.ops} ops between them",
            f"card time: {self.us:.1f} us, {self.ordinary_us:.1f} us without the restriction "
            f"({self.us / self.ordinary_us - 1:+.0%}), both as one launch",
            f"ops: {self.ops}, {self.ops - self.ordinary_ops:+d} against the ordinary plan",
        ]
        return "\n".join([*lines, *(f"  {op.name} ({op.op}): {reason}" for op, reason in wordless)]) + "\n"


def write(entry: KernelRecord, folder: Path) -> None:
    """A bundle; of a plan for SuperDSC whatever it takes, with a report."""
    if not entry.plan.graph.options.for_sdsc:
        writer.write_bundle(entry.plan.kernel, folder)
        return
    write_steps(entry.plan.kernel, folder)
    (folder / REPORT).write_text(cost(entry).text(entry.name))


def ordinary() -> PlanOptions:
    """The plan that a plan for SuperDSC is compared with: as the planner likes it, with the same parts of sums."""
    return replace(PlanOptions.from_knobs(), for_sdsc=False, even_k=True)


def cost(entry: KernelRecord) -> Cost:
    """What the restriction costs a kernel that was planned under it."""
    from torch_spyre._inductor.compile import compiled_as  # late: it imports this package

    free, program = compiled_as(entry.graph_json, entry.inputs, ordinary())
    us, ordinary_us = (p.program.duration_ns / 1e3 for p in (entry.program, program))
    return Cost(in_steps(entry.plan.kernel), us, ordinary_us, len(free.kernel.ops))
