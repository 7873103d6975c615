# SPDX-License-Identifier: Apache-2.0
"""A bundle in tables: ops with their dims and splits, tensors with their places, the work of each core, the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_spyre.constants import SEGMENT_BYTES
from torch_spyre.errors import SpyreError
from torch_spyre.ir.superdsc import rules
from torch_spyre.ir.superdsc.bundle import Bundle, Step
from torch_spyre.ir.superdsc.constant_formats import decode
from torch_spyre.ir.superdsc.schema import SuperDSC
from torch_spyre.perf.timeline import estimate
from torch_spyre.sdsc.run import compile_launch
from torch_spyre.sdsc.slots import Launch, bind

_MAX_STEPS = 64  # more are listed without their tensors


@dataclass(frozen=True)
class Times:
    """Estimated microseconds of the whole bundle and of its steps alone."""

    total_us: float
    bottleneck: str
    read_bytes: int
    written_bytes: int
    steps: tuple[float | None, ...]


def table(header: Sequence[str], rows: Sequence[Sequence[object]], indent: str = "  ") -> str:
    """Columns as wide as their longest entry; numbers to the right."""
    cells = [[str(c) for c in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        parts = [c.rjust(w) if c[:1].isdigit() and c.strip() else c.ljust(w) for c, w in zip(row, widths, strict=True)]
        lines.append(indent + "  ".join(parts).rstrip())
    return "\n".join(lines)


def explain(bundle: Bundle, times: Times | None = None) -> str:
    """The whole account of a bundle that obeys the rules."""
    launch = bind(bundle)
    kind = "fragment (a lone SuperDSC)" if bundle.fragment else "bundle"
    parts = [f"{bundle.name}: {kind}, {len(bundle.steps)} op{'s' * (len(bundle.steps) != 1)}"]
    parts.append(_ops_table(bundle, times))
    for step in bundle.steps[:_MAX_STEPS]:
        parts.append(_step_text(bundle, step))
    parts.append("launch arguments\n" + _arguments_table(bundle, launch))
    parts.append("inputs and results\n" + _slots_table(bundle, launch))
    if times is not None:
        parts.append(
            f"estimated time {times.total_us:.2f} us, bound by {times.bottleneck}; reads {times.read_bytes:,} bytes of "
            f"card memory, writes {times.written_bytes:,}"
        )
    notes = sorted({note for step in bundle.steps for note in step.sdsc.notes})
    if notes:
        parts.append("fields that are not known and were ignored: " + ", ".join(notes))
    return "\n\n".join(parts) + "\n"


def _ops_table(bundle: Bundle, times: Times | None) -> str:
    rows = []
    for i, step in enumerate(bundle.steps):
        s = step.sdsc
        splits = " ".join(f"{d}/{n}" for d, n in s.slices.items() if n > 1) or "-"
        dims = " ".join(f"{d}={_size(s, d)}" for d in s.sizes)
        time = times.steps[i] if times is not None and i < len(times.steps) else None
        row = [step.title, s.opfunc, s.compute.unit, dims, splits, s.cores]
        rows.append([*row, f"{time:.2f}" if time is not None else "-"])
    return table(["file", "op", "unit", "dims", "split", "cores", "alone us"], rows)


def _size(sdsc: SuperDSC, dim: str) -> str:
    valid, size = sdsc.valid(dim), sdsc.sizes[dim]
    return str(size) if valid == size else f"{valid} of {size}"


def _step_text(bundle: Bundle, step: Step) -> str:
    s = step.sdsc
    rows = []
    for i in range(len(s.tensors)):
        rows.append(_tensor_row(bundle, s, i))
    header = ["tensor", "role", "format", "dims", "layout (inner first)", "stick", "place", "bytes per core"]
    text = [f"{step.title} {s.opfunc}", table(header, rows), _work_text(s)]
    constants = [f"{c.name} = {_number(c.bits, c.format)}" for c in s.constants]
    if constants:
        text.append("  constants: " + ", ".join(constants))
    return "\n".join(text)


def _number(bits: int, format: str) -> str:
    try:
        return f"{decode(bits, format):g}"
    except SpyreError:
        return f"{bits:#x} ({format})"


def _tensor_row(bundle: Bundle, s: SuperDSC, tensor: int) -> list[object]:
    ds, allocation = s.tensors[tensor], s.allocations[tensor]
    scale = s.scale(tensor)
    primary = s.primary[ds.label]
    role = "result" if tensor in s.compute.outputs else "index" if tensor in s.compute.indices else "operand"
    role = "table" if s.is_table(tensor) else role
    lacking = [d for d in allocation.order if scale[d] < 0]
    dims = " ".join(s.present(tensor)) + (f" (lacks {' '.join(lacking)})" if lacking else "")
    order = " ".join(f"{d}+{allocation.gap(d)}" if allocation.gap(d) else d for d in allocation.order)
    stick = " x ".join(f"{d}:{n}" for d, n in zip(primary.stick_dims, primary.stick_sizes, strict=True))
    first = next(iter(allocation.start.values()))
    if allocation.component == "lx":
        place = f"LX+{first:#x}"
    else:
        segment, offset = divmod(first, SEGMENT_BYTES)
        place = f"{bundle.argument_name(segment)}+{offset:#x}"
    return [f"Tensor{tensor}", role, ds.format, dims or "-", order, stick, place, f"{rules.span_bytes(s, tensor)}"]


def _work_text(s: SuperDSC) -> str:
    """What each core works on, for the first cores and the last one."""
    split = [d for d, n in s.slices.items() if n > 1]
    if not split:
        core = next(iter(s.core_slices))
        return f"  core {core} does all of it"
    cores = list(s.core_slices)
    shown = cores if len(cores) <= 4 else [*cores[:3], cores[-1]]
    parts = []
    for core in shown:
        ranges = []
        for d in split:
            start = s.core_slices[core][d] * s.core_sizes[d]
            ranges.append(f"{d} {start}..{min(start + s.slice_size(d, core), s.valid(d))}")
        parts.append(f"core {core}: {', '.join(ranges)}")
    text = "; ".join(parts[:-1]) + ("; … " if len(cores) > 4 else "; ") + parts[-1]
    return f"  {text}"


def _arguments_table(bundle: Bundle, launch: Launch) -> str:
    rows = []
    for i, arg in enumerate(launch.kernel.args):
        if arg.bytes:
            access = {1: "read", 2: "write", 3: "read and write"}[int(arg.access)]
            lx = [s.name for s in launch.slots if s.lx and s.arg == i]
            rows.append([i, f"{lx[0]} (LX)" if lx else bundle.argument_name(i), f"{arg.bytes:,}", access])
    return table(["argument", "name", "bytes", "access"], rows)


def _slots_table(bundle: Bundle, launch: Launch) -> str:
    rows = []
    for s in launch.slots:
        place = "LX" if s.lx else f"{bundle.argument_name(s.arg)}+{s.base:#x}"
        shape = "x".join(map(str, s.shape)) or "one value"
        rows.append([s.name, s.role, s.format, shape, " ".join(s.dims) or "-", place])
    return table(["name", "role", "format", "shape", "dims", "place"], rows)


def estimate_times(bundle: Bundle) -> Times:
    """The timeline of the bundle's program, and of each op alone."""
    whole = estimate(compile_launch(bind(bundle)).program)
    alone: list[float | None] = []
    cached: dict[int, float] = {}
    for step in bundle.steps[:_MAX_STEPS]:
        key = id(step.sdsc)
        if key not in cached:
            single = Bundle(step.file, (step,), fragment=True, arguments=bundle.arguments)
            program = compile_launch(Launch(single, single.kernel(), ())).program
            cached[key] = estimate(program).duration_ns / 1e3
        alone.append(cached[key])
    return Times(whole.duration_ns / 1e3, whole.bottleneck, whole.read_bytes, whole.written_bytes, tuple(alone))
