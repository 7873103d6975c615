# SPDX-License-Identifier: Apache-2.0
"""make demo: SmolLM2 answers one question on the card, then the plan of its block is summed up (--plan: op by op)."""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.table import Table

import torch_spyre
from torch_spyre.models.chat import Chat, ask

QUESTION = "What is the capital of France?"
TTY = sys.stdout.isatty()
console = Console(width=None if TTY else 120, highlight=False)


def title(text: str) -> None:
    console.print()
    console.rule(f"[bold]{text}") if TTY else console.print(f"== {text}")


def plans(chat: Chat) -> list[torch_spyre.explain.KernelRecord]:
    """The plans of the decoder block, made again so that they can be looked at."""
    for layer in chat.model.model.layers:
        layer.forward.compiled.forms.clear()
    torch_spyre.explain.start()
    chat.answer("And of Italy?", 2)
    return [record for record in torch_spyre.explain.last_kernels() if not record.name.startswith("eager_")]


def show(records: list[torch_spyre.explain.KernelRecord], layers: int) -> None:
    table = Table("rows", "ops", "cores", "in LX", "read", "written", "time on the card", box=None)
    for record in records:
        read, written, _ = torch_spyre.explain.traffic(record.plan.kernel.ops)
        buffers = record.plan.graph.buffers.values()
        between = [b for b in buffers if b.kind not in ("input", "output")]
        hidden = next(b for b in buffers if b.kind == "input" and len(b.size) == 3)
        table.add_row(
            str(hidden.size[1]),
            str(len(record.plan.kernel.ops)),
            str(record.program.cores),
            f"{sum(b.placement == 'lx' for b in between)} of {len(between)} intermediates",
            f"{read / 1e6:.2f} MB",
            f"{written / 1e6:.3f} MB",
            f"{record.program.program.duration_ns / 1e3:.1f} us",
        )
    console.print(table)
    console.print(
        f"\nOne graph for a prompt and one for a token serve all {layers} layers. Each has a plan for the first "
        "layer,\nwhose input lies differently in memory, and one for the others.\n"
    )
    if "--plan" in sys.argv[1:]:
        console.print(records[-1].text(), markup=False, soft_wrap=True)
    else:
        console.print("python examples/demo.py --plan shows the last one op by op: layouts, cores, where tensors live")


def main() -> int:
    os.environ.setdefault("TORCH_SPYRE_DOWNCAST_WARN", "0")
    title(QUESTION)
    chat = Chat()
    answer = ask(chat, QUESTION, 32)
    console.print(f"\nops that ran on the host instead: {torch_spyre.report()}")
    title("The plan of the decoder block")
    show(plans(chat), len(chat.model.model.layers))
    return 0 if "Paris" in answer.text else 1


if __name__ == "__main__":
    sys.exit(main())
