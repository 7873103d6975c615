# SPDX-License-Identifier: Apache-2.0
"""``python -m torch_spyre.explain script.py [args]``: run a script and print one readable block per kernel.

Each block says what the kernel computes, the layout of every tensor, how the work is split over the cores, where each
tensor lives (card memory, pool or scratchpad, and on which cores), and how many bytes move. `last_kernels()` gives
the same records to a program that called `start()` first.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_spyre.ktir.tileops import LinearOperand, Operand, Space, TileOp

if TYPE_CHECKING:
    from torch_spyre._inductor.inspect import KernelRecord
    from torch_spyre._inductor.planner import Plan


def start() -> None:
    """Record every kernel compiled from now on (the program cache is not read meanwhile)."""
    from torch_spyre._inductor import inspect

    inspect.start()


def last_kernels() -> list[KernelRecord]:
    from torch_spyre._inductor import inspect

    return inspect.records()


def kernel_text(plan: Plan) -> str:
    """The block of one kernel."""
    kernel, graph = plan.kernel, plan.graph
    lines = [
        f"kernel {kernel.name}: {len(kernel.ops)} ops on up to {max((op.cores for op in kernel.ops), default=0)} cores"
    ]
    lines.append("  tensors")
    for b in graph.buffers.values():
        if b.layout is None:
            lines.append(f"    {b.name}: launch scalar, {b.dtype}")
            continue
        where = {"input": "card memory, input", "output": "card memory, output"}.get(b.kind)
        if where is None:
            where = f"LX+0x{b.address:x}" if b.placement == "lx" else f"card memory, pool+0x{b.address:x}"
        lines.append(
            f"    {b.name}: {b.dtype}{list(b.size)} as {list(b.layout.device_size)} {b.layout.format}; {where}"
        )
    lines.append("  operations")
    for op, node in zip(kernel.ops, graph.nodes, strict=True):
        lines += [f"    {line}" for line in _op_lines(op)]
        lines += [f"      {note}" for note in node.notes]
    read, written, lx = traffic(kernel.ops)
    lines.append(f"  moves {read:,} bytes from card memory, {written:,} to it, {lx:,} through the scratchpads")
    return "\n".join(lines) + "\n"


def _op_lines(op: TileOp) -> list[str]:
    split = " x ".join(f"{d.name} {d.size} in {d.slices}" for d in op.dims if d.slices > 1)
    lines = [f"{op.name}: {op.op} over " + ", ".join(f"{d.name}={d.size}" for d in op.dims)]
    if split:
        lines.append(f"  split {split}: cores 0..{op.cores - 1}, {op.core_order[0]} fastest")
    else:
        lines.append("  core 0")
    if isinstance(op.output, Operand) and op.output.tensor.space is Space.LX:
        held = list(op.output.tensor.device_size)
        lines.append(f"  result stays in the scratchpads of cores 0..{op.cores - 1}: each holds {held}")
    if op.origin:
        lines.append(f"  from {op.origin}")
    return lines


def traffic(ops: Sequence[TileOp]) -> tuple[int, int, int]:
    """(bytes read from card memory, bytes written to it, bytes through LX), operand by operand.

    A memory operand counts once per core that reads it: cores that share a slice each draw it.
    """
    from torch_spyre.formats import BYTES

    read = written = lx = 0
    for op in ops:
        for operand in (*op.inputs, op.output):
            if not isinstance(operand, (Operand, LinearOperand)):
                continue
            coords = operand.coords if isinstance(operand, Operand) else (operand.offset,)
            used = {t.dim for c in coords for t in c.terms}
            elements = 1
            for d in op.dims:
                elements *= d.size if d.name in used else d.slices
            count = elements * BYTES[operand.tensor.format]
            if operand.tensor.space is Space.LX:
                lx += count
            elif operand is op.output:
                written += count
            else:
                read += count
    return read, written, lx


def main(argv: Sequence[str]) -> int:
    if not argv:
        print("usage: python -m torch_spyre.explain script.py [arguments of the script]", file=sys.stderr)
        return 2
    start()
    sys.argv = list(argv)
    try:
        runpy.run_path(argv[0], run_name="__main__")
    finally:
        for record in last_kernels():
            print(record.text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
