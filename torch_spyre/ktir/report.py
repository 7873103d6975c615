# SPDX-License-Identifier: Apache-2.0
"""A function as a person reads it: grid, arguments, views, phases, scratchpad, time, instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch_spyre.backend.compile import CompiledProgram
from torch_spyre.backend.program.isa import ScalarKind
from torch_spyre.constants import LX_BYTES
from torch_spyre.ir.ktir.signatures import Function, View
from torch_spyre.perf.pricing import price
from torch_spyre.perf.timeline import Timeline


def timeline(program: CompiledProgram, integers: Mapping[int, int]) -> Timeline:
    """Time on the described card; integer launch scalars that are not given count as 1."""
    values = [
        integers.get(position, 1)
        for position, kind in zip(program.launch_scalars, program.scalars, strict=True)
        if kind is ScalarKind.INTEGER
    ]
    return price(program.program, values)


def explain(function: Function, program: CompiledProgram, integers: Mapping[int, int]) -> str:
    tiles = "tile" if function.cores == 1 else "tiles"
    lines = [f"function {function.name}: grid {list(function.grid)}, {function.cores} compute {tiles}"]
    lines += ["  arguments", *(f"    {line}" for line in _arguments(function, program))]
    views = [v for a in function.arguments for v in a.views] + list(function.literals)
    lines += ["  views", *(f"    {_view(function, v)}" for v in views)]
    if program.memory_arg is not None:
        size = program.args[program.memory_arg].bytes
        lines.append(f"  literal addresses: one buffer of {size:,} bytes")
    share = 100 * program.lx_bytes / LX_BYTES
    lines.append(f"  scratchpad: {program.lx_bytes:,} bytes on every core ({share:.1f} % of it)")
    lines += _time(timeline(program, integers))
    counts = Counter(_kind(inst) for inst in program.instructions)
    listed = ", ".join(f"{n} {name}" for name, n in counts.most_common())
    lines.append(f"  instructions: {listed}")
    lines += ["    " + line for line in str(program.program).splitlines()]
    return "\n".join(lines) + "\n"


def _kind(inst: Any) -> str:
    return type(inst).__name__.removesuffix("Inst").lower()


def _arguments(function: Function, program: CompiledProgram) -> list[str]:
    buffers = {position: index for index, position in enumerate(program.buffers)}
    lines = []
    for argument in function.arguments:
        what = f"%{argument.name}: {argument.type}"
        if argument.position in buffers:
            arg = program.args[buffers[argument.position]]
            access = str(arg.access.name).replace("|", " and ").lower()
            what += f", base address of {' and '.join(argument.elements) or 'nothing'}, {access}, {arg.bytes:,} bytes"
        elif argument.position in program.launch_scalars:
            what += ", given at launch"
        else:
            what += ", a constant of this program"
        lines.append(what)
    return lines


def _view(function: Function, view: View) -> str:
    shape = view.shape({}, function.value(view.argument) if view.argument is not None else None)
    base = f"%{function.arguments[view.argument].name}" if view.argument is not None else "address"
    name = f"%{view.op.view.name_hint}: " if view.op.view.name_hint else ""
    if shape is None:
        return f"{name}{view.op.view.type} at {base}, known at launch"
    offset = f" + {shape.offset}" if shape.offset or view.argument is None else ""
    return f"{name}{view.element}{list(shape.sizes)}, strides {list(shape.strides)}, at {base}{offset}"


def _time(time: Timeline) -> list[str]:
    units = Counter(unit for _, unit in time.phases)
    phases = ", ".join(f"{n} bound by {unit}" for unit, n in units.most_common())
    return [
        f"  phases: {len(time.phases)}" + (f" ({phases})" if phases else ""),
        f"  time: {time.duration_ns / 1e3:.1f} us on the card, bound by {time.bottleneck}; "
        f"reads {time.read_bytes:,} bytes of card memory, writes {time.written_bytes:,}",
    ]
