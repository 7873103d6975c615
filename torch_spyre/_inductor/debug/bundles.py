# SPDX-License-Identifier: Apache-2.0
"""The SuperDSC form of a compiled kernel, and for a plan that was made for it what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_spyre._inductor.planning.plan_options import PlanOptions
from torch_spyre.ir.superdsc import writer
from torch_spyre.ir.superdsc.steps import Steps, write_steps

if TYPE_CHECKING:
    from torch_spyre._inductor.debug.inspect import KernelRecord

REPORT = "report.txt"


def write(entry: KernelRecord, inputs: Sequence[tuple[Any, ...]], folder: Path) -> None:
    """A bundle; of a plan for SuperDSC whatever it takes, with a report."""
    if not entry.plan.graph.options.for_sdsc:
        writer.write_bundle(entry.plan.kernel, folder)
        return
    made = write_steps(entry.plan.kernel, folder)
    (folder / REPORT).write_text(report(entry, inputs, made))


def ordinary() -> PlanOptions:
    """The plan that a plan for SuperDSC is compared with: as the planner likes it, with the same parts of sums."""
    return replace(PlanOptions.from_knobs(), for_sdsc=False, even_k=True)


def report(entry: KernelRecord, inputs: Sequence[tuple[Any, ...]], made: Steps) -> str:
    """Card time under the restriction and without it, and every op that no word is for."""
    from torch_spyre._inductor.compile import compiled_as  # late: it imports this package

    free, program = compiled_as(entry.graph_json, inputs, ordinary())
    limited_us, free_us = (p.program.duration_ns / 1e3 for p in (entry.program, program))
    bundles = sum(step.is_bundle for step in made.steps)
    lines = [
        f"{entry.name}: {bundles} bundle{'s' * (bundles != 1)}, {len(made.wordless)} of {len(made.kernel.ops)} ops "
        "between them",
        f"card time: {limited_us:.1f} us, {free_us:.1f} us without the restriction ({limited_us / free_us - 1:+.0%}; "
        "launches of several bundles not counted)",
    ]
    added = len(made.kernel.ops) - len(free.kernel.ops)
    lines.append(f"ops: {len(made.kernel.ops)}, {added:+d} against the ordinary plan")
    lines += [f"  {op.name} ({op.op}): {reason}" for op, reason in made.wordless]
    return "\n".join(lines) + "\n"
