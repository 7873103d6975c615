# SPDX-License-Identifier: Apache-2.0
"""A planned kernel as a person reads it: ops, layouts, core splits, places, bytes moved."""

from __future__ import annotations

from collections.abc import Sequence

from torch_spyre._inductor.planning.planner import Plan
from torch_spyre.formats import BYTES
from torch_spyre.ir.plan.tileops import LinearOperand, Operand, Space, TileOp


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
