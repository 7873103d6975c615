# SPDX-License-Identifier: Apache-2.0
"""Pictures of one planned kernel: a tensor in card memory, the cores, the scratchpads over time, the graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

from torch_spyre import charts
from torch_spyre._inductor.planning.plan_graph import Layout, PlanBuffer
from torch_spyre.charts import LEFT, RIGHT, WIDTH, box, hue, line, text
from torch_spyre.explain.lines import Explained, origin
from torch_spyre.formats import BYTES
from torch_spyre.ir.plan.tileops import Dim, Operand, Space, Tensor, TileOp
from torch_spyre.perf.schedule import Step

STICK_BYTES = 128
_ROWS, _COLUMNS = 12, 12  # of sticks that are drawn
_CORES = 32
_NAMED = 24  # tensors that the legend of the scratchpads names


# (a) a tensor on the host and on the card


def stick_picture(buffer: PlanBuffer) -> str:
    """Left the tensor as the host sees it, cut into sticks; right the sticks as they follow one another in card
    memory. The same stick has the same colour, and hovering marks it on both sides; what is empty is padding."""
    assert buffer.layout is not None
    found = list(sticks(buffer.layout, buffer.size, buffer.stride, 4096))
    rows = sorted({row for _, row, _ in found})[:_ROWS]
    columns = sorted({column for _, _, column in found})[:_COLUMNS]
    shown = sorted(s for s in found if s[1] in rows and s[2] in columns)
    wide, high, left, top = 40, 22, 90, 48
    title = f"on the host: {_shape(buffer)}"
    right = max(left + wide * len(columns), 20 + 6 * len(title)) + 60
    per_line = max(1, (WIDTH - right - 20) // wide)

    def stick(x: float, y: float, number: int, row: int, column: int) -> list[str]:
        full = _filled(buffer, column)
        tip = f"stick {number}, at byte {number * STICK_BYTES:,}\nhost elements from {_place(buffer, row, column)}"
        tip += "" if full == 1 else f"\n{full:.0%} of it is data, the rest padding"
        edge = f"stroke='{hue(column, len(columns))}'"
        return [
            box(x, y, wide - 2, high - 2, "#fff", tip, f"s{number}", edge),
            box(x, y, (wide - 2) * full, high - 2, hue(column, len(columns)), tip, f"s{number}"),
            text(x + wide / 2 - 1, y + 14, str(number), "middle"),
        ]

    parts = [text(20, 16, title), text(right, 16, f"in card memory: device_size {list(buffer.layout.device_size)}")]
    parts.append(text(20, 34, f"a box is a stick of {buffer.layout.elems_per_stick} elements"))
    parts.append(text(right, 34, "sticks by address; … leaves some out"))
    for row in rows:
        parts.append(text(left - 8, top + high * rows.index(row) + 14, _row_name(buffer, row), "end"))
    for number, row, column in shown:
        parts += stick(left + wide * columns.index(column), top + high * rows.index(row), number, row, column)
    place, before = 0, -1
    for number, row, column in shown:
        if number != before + 1:
            x, y = right + wide * (place % per_line), top + high * (place // per_line)
            parts.append(text(x + wide / 2, y + 14, "…", "middle"))
            place += 1
        parts += stick(right + wide * (place % per_line), top + high * (place // per_line), number, row, column)
        place, before = place + 1, number
    height = top + high * max(len(rows), math.ceil(place / per_line)) + 32
    total = buffer.layout.bytes // STICK_BYTES
    parts.append(text(20, height - 8, f"{len(shown)} of {total} sticks; a number times 128 is the address in bytes"))
    return charts.svg(height, parts)


def sticks(layout: Layout, size: Sequence[int], stride: Sequence[int], most: int) -> Iterator[tuple[int, int, int]]:
    """(number in card memory, host row, stick in that row) of the first sticks that hold elements. A row is everything
    but the host dim along which a stick runs."""
    along = _stick_dim(layout, size, stride)
    for number, place in enumerate(product(*map(range, layout.device_size[:-1]))):
        if number >= most:
            return
        offset = sum(p * s for p, s in zip(place, layout.stride_map[:-1], strict=True) if s > 0)
        index = _host_index(offset, size, stride)
        if index is None:
            continue
        row = 0
        for d, (i, n) in enumerate(zip(index, size, strict=True)):
            if d != along:
                row = row * n + i
        column = index[along] // layout.elems_per_stick if along is not None else 0
        yield number, row, column


def _stick_dim(layout: Layout, size: Sequence[int], stride: Sequence[int]) -> int | None:
    """The host dim whose stride is the step inside a stick; None: each stick holds one element."""
    step = layout.stride_map[-1]
    return next((d for d in reversed(range(len(size))) if size[d] > 1 and stride[d] == step), None)


def _host_index(offset: int, size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...] | None:
    """The index at a linear offset, dims of large stride first; None if it is in the padding."""
    index = [0] * len(size)
    for d in sorted(range(len(size)), key=lambda d: -stride[d]):
        if stride[d] > 0:
            index[d], offset = divmod(offset, stride[d])
            if index[d] >= size[d]:
                return None
    return tuple(index)


def _shape(buffer: PlanBuffer) -> str:
    return f"{buffer.name} {buffer.dtype}{list(buffer.size)}"


def _place(buffer: PlanBuffer, row: int, column: int) -> str:
    assert buffer.layout is not None
    along = _stick_dim(buffer.layout, buffer.size, buffer.stride)
    return _row_name(buffer, row).replace(":", str(column * buffer.layout.elems_per_stick)) + (
        "" if along is not None else f", column {column}"
    )


def _row_name(buffer: PlanBuffer, row: int) -> str:
    """The host index of a row of sticks, with a colon where the sticks run along."""
    assert buffer.layout is not None
    along = _stick_dim(buffer.layout, buffer.size, buffer.stride)
    index = []
    for d in reversed(range(len(buffer.size))):
        if d == along:
            index.append(":")
        else:
            row, i = divmod(row, buffer.size[d])
            index.append(str(i))
    return f"[{', '.join(reversed(index))}]"


def _filled(buffer: PlanBuffer, column: int) -> float:
    """The share of a stick that holds elements of the tensor."""
    assert buffer.layout is not None
    along = _stick_dim(buffer.layout, buffer.size, buffer.stride)
    per_stick = buffer.layout.elems_per_stick
    there = 1 if along is None else buffer.size[along] - column * per_stick
    return min(there, per_stick) / per_stick


# (b) the cores of one operation


def core_picture(op: TileOp) -> str:
    """The 32 cores on their ring, coloured by slice; a hand-over has an arc for each pair of cores that exchange."""
    parts, middle, radius = [], (300.0, 250.0), 190.0
    for a, b, share in transfers(op):
        (x, y), (u, v) = (_around(middle, radius - 24, core) for core in (a, b))
        tip = f"core {a} → core {b}: {share:,} elements"
        path = f"M{x:.1f},{y:.1f} Q{middle[0]},{middle[1]} {u:.1f},{v:.1f}"
        style = f"fill='none' stroke='{hue(a, _CORES)}' stroke-width='1.6' stroke-opacity='0.65'"
        parts.append(f"<path d='{path}' {style}><title>{tip}</title></path>")
    for core in range(_CORES):
        x, y = _around(middle, radius, core)
        part = part_of(op.dims, op.core_order, core)
        idle = part is None
        lines = [f"{d.name} {a}..{b - 1} of {d.size}" for d, (a, b) in zip(op.dims, part or (), strict=not idle)]
        tip = f"core {core}: " + ("idle" if idle else "\n".join(lines) or "all of it")
        colour = "#eeeeee" if idle else hue(core, max(op.cores, 1), 72)
        key = "" if idle else str(part)
        parts.append(
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='16' fill='{colour}' data-key='{key}'><title>{tip}</title></circle>"
        )
        parts.append(text(x, y + 4, str(core), "middle"))
    parts.append(text(560, 40, f"{op.name}: {op.op}, {op.cores} of {_CORES} cores"))
    for n, d in enumerate(op.dims):
        kind = " (summed)" if d.name in op.reduced else ""
        cut = f"in {d.slices} slices of {d.extent}" if d.slices > 1 else "whole on each core"
        parts.append(text(560, 66 + 20 * n, f"{d.name} = {d.size}{kind}: {cut}"))
    order = f"neighbours differ in {op.core_order[0]}" if op.core_order else "one core"
    parts.append(text(560, 76 + 20 * len(op.dims), order))
    if op.source:
        parts.append(text(560, 96 + 20 * len(op.dims), "arcs: what crosses the ring, coloured by the core that sends"))
    parts += _slice_grid(op, 560, 126 + 20 * len(op.dims))
    return charts.svg(500, parts)


def _slice_grid(op: TileOp, left: float, top: float) -> list[str]:
    """The slices of an operation that is split along one or two dims, each in the colour and with the number of the
    core that works on it."""
    cut = [d for d in op.dims if d.slices > 1]
    if not 1 <= len(cut) <= 2:
        return []
    rows, columns = (cut[0], cut[1]) if len(cut) == 2 else (None, cut[0])
    down, across = rows.slices if rows else 1, columns.slices
    wide, high = min(500 / across, 64.0), min((470 - top) / down, 40.0)
    label = f"each core's slice: {columns.name} to the right" + (f", {rows.name} downwards" if rows else "")
    parts = [text(left, top - 8, label)]
    names = [d.name for d in op.dims]
    for core in range(_CORES):
        part = part_of(op.dims, op.core_order, core)
        if part is None:
            continue
        column = part[names.index(columns.name)][0] // columns.extent
        row = part[names.index(rows.name)][0] // rows.extent if rows else 0
        x, y = left + wide * column, top + high * row
        tip = f"core {core}: " + ", ".join(f"{n} {a}..{b - 1}" for n, (a, b) in zip(names, part, strict=True))
        parts.append(box(x, y, wide - 2, high - 2, hue(core, max(op.cores, 1), 72), tip, str(part)))
        if wide > 13:
            parts.append(text(x + wide / 2 - 1, y + high / 2 + 3, str(core), "middle"))
    return parts


def _around(middle: tuple[float, float], radius: float, core: int) -> tuple[float, float]:
    angle = 2 * math.pi * core / _CORES - math.pi / 2
    return middle[0] + radius * math.cos(angle), middle[1] + radius * math.sin(angle)


def part_of(dims: Sequence[Dim], order: Sequence[str], core: int) -> tuple[tuple[int, int], ...] | None:
    """(first, end) of what a core does along each dim; None if it does nothing."""
    slices = {d.name: d.slices for d in dims}
    numbers, rest = {}, core
    for name in order:
        rest, numbers[name] = divmod(rest, slices[name])
    if rest:
        return None
    found = []
    for d in dims:
        first = numbers.get(d.name, 0) * d.extent
        found.append((first, min(first + d.extent, d.size)))
    return None if any(a >= b for a, b in found) else tuple(found)


def transfers(op: TileOp) -> list[tuple[int, int, int]]:
    """(from core, to core, elements) of a hand-over, without what stays on its core; the first core that holds a slice
    sends it."""
    if not op.source:
        return []
    held: dict[tuple[tuple[int, int], ...], int] = {}
    for core in range(_CORES):
        part = part_of(op.source, op.source_order, core)
        if part is not None:
            held.setdefault(part, core)
    found = []
    for core in range(_CORES):
        wanted = part_of(op.dims, op.core_order, core)
        for part, owner in held.items() if wanted is not None else ():
            assert wanted is not None
            own = part_of(op.source, op.source_order, core)
            common = math.prod(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in zip(part, wanted, strict=True))
            if common and own != part:
                found.append((owner, core, common))
    return found


# (c) the scratchpads over time


def times_of(k: Explained) -> list[tuple[float, float]]:
    """(start, end) in ns of each operation of the plan, in its order: the span of its instructions."""
    spans: dict[str, tuple[float, float]] = {}
    for step in k.program.steps:
        name = node_of(step)
        first, end = spans.get(name, (step.start, step.start))
        spans[name] = (min(first, step.start), max(end, step.start + step.duration))
    found, now = [], 0.0
    for op in k.record.plan.kernel.ops:  # what the back end folded into another instruction takes no time of its own
        span = spans.get(op.name, (now, now))
        found.append(span)
        now = span[1]
    return found


def node_of(step: Step) -> str:
    """The node of the plan that an instruction belongs to."""
    parts = origin(step).split(": ")
    return parts[1] if len(parts) > 2 else parts[0]


def scratchpad_picture(k: Explained, capacity: int) -> str:
    """Addresses in each core's scratchpad, from the operation that writes a tensor to the last that reads it."""
    ops, times = k.record.plan.kernel.ops, times_of(k)
    lives: dict[Tensor, tuple[float, float]] = {}
    for op, (start, end) in zip(ops, times, strict=True):
        for operand in (*op.inputs, op.output):
            if isinstance(operand, Operand) and operand.tensor.space is Space.LX:
                lives[operand.tensor] = (lives.get(operand.tensor, (start, end))[0], end)
    if not lives:
        return "<p>No tensor of this kernel is in the scratchpads.</p>"
    top = max(t.base + t.elements * BYTES[t.format] for t in lives)
    most = min(capacity, max(top * 1.1, 1024))
    height, scale = 300.0, (WIDTH - LEFT - RIGHT) / max(k.ns, 1.0)

    def y(address: float) -> float:
        return 20 + (height - 60) * (1 - address / most)

    plot, names = [], []
    for i, (t, (start, end)) in enumerate(lives.items()):
        taken = t.elements * BYTES[t.format]
        tip = (
            f"{t.name}: {list(t.device_size)} {t.format} on each core\n"
            f"bytes {t.base:,} to {t.base + taken:,} ({charts.size(taken)})\n{start / 1e3:.2f} to {end / 1e3:.2f} us"
        )
        x = LEFT + start * scale
        edge = "stroke='#fff' stroke-width='0.5'"
        plot.append(
            box(x, y(t.base + taken), (end - start) * scale, y(t.base) - y(t.base + taken), hue(i, len(lives)), tip,
                t.name, edge)
        )  # fmt: skip
        middle = (y(t.base) + y(t.base + taken)) / 2
        if y(t.base) - y(t.base + taken) > 12:
            plot.append(charts.label(x, middle + 4, (end - start) * scale, t.name))
        if i < _NAMED:
            name_x, name_y = LEFT + 160 * (i % 6), height + 4 + 18 * (i // 6)
            names += [
                box(name_x, name_y, 12, 12, hue(i, len(lives)), tip, t.name),
                text(name_x + 17, name_y + 10, t.name),
            ]
    fixed = [text(LEFT - 6, y(v * 1024) + 4, f"{v:g} KiB", "end") for v in charts.ticks_of(0, most / 1024, 5)]
    used = f"{charts.size(top)} of each core's {charts.size(capacity)} are used; below, the tensors"
    fixed += [text(LEFT, 12, used + (f" (the first {_NAMED})" if len(lives) > _NAMED else "")), *names]
    below = 18.0 * math.ceil(min(len(lives), _NAMED) / 6) + 8
    return charts.timeline_svg(height + below, plot, fixed, (0.0, k.ns / 1e3), "us", below)


# (d) the graph


def graph_picture(k: Explained) -> str:
    """The nodes of the TileGraph, each below what it reads, with their time and traffic; edges are tensors."""
    graph = k.record.plan.graph
    spent: dict[str, list[Step]] = {}
    for step in k.program.steps:
        spent.setdefault(node_of(step), []).append(step)
    makers = {node.output.buffer: node.name for node in graph.nodes}
    depth: dict[str, int] = {}
    for node in graph.nodes:
        before = [makers[v.buffer] for v in node.loads() if makers.get(v.buffer, node.name) in depth]
        depth[node.name] = 1 + max((depth[name] for name in before), default=0)
    rows: dict[int, list[str]] = {}
    inputs = [b.name for b in graph.buffers.values() if b.kind == "input" and b.name not in makers]
    read = {v.buffer for node in graph.nodes for v in node.loads()}
    rows[0] = [name for name in inputs if name in read]
    for name, level in depth.items():
        rows.setdefault(level, []).append(name)
    widest = max(map(len, rows.values()))
    width = max(WIDTH, 40 + 230 * widest)
    places = {
        name: (width / 2 + 230 * (i - (len(names) - 1) / 2), 20 + 78.0 * level)
        for level, names in rows.items()
        for i, name in enumerate(names)
    }
    parts = []
    for node in graph.nodes:
        for value in node.loads():
            maker = makers.get(value.buffer, value.buffer)
            if maker in places and maker != node.name:
                (x, y), (u, v) = places[maker], places[node.name]
                buffer = graph.buffers[value.buffer]
                lx = buffer.placement == "lx"
                path = f"M{x:.0f},{y + 46:.0f} C{x:.0f},{y + 64:.0f} {u:.0f},{v - 18:.0f} {u:.0f},{v:.0f}"
                style = f"fill='none' stroke='{'#a6761d' if lx else '#1b9e77'}' stroke-width='2'"
                tip = f"{value.buffer}: {'scratchpads' if lx else 'card memory'}, {list(buffer.size)}"
                parts.append(f"<path d='{path}' {style}><title>{tip}</title></path>")
    for name in rows[0]:
        b, (x, y) = graph.buffers[name], places[name]
        parts += [box(x - 105, y, 210, 46, "#e8f4ef", b.text(), name), text(x, y + 19, name, "middle")]
        parts.append(text(x, y + 35, f"{b.dtype}{list(b.size)}", "middle"))
    longest = max((sum(s.duration for s in steps) for steps in spent.values()), default=1.0) or 1.0
    for node in graph.nodes:
        parts += _node_box(node.name, node.op, node.lines(), places[node.name], spent.get(node.name, []), longest)
    height = 40 + 78 * (max(rows) + 1)
    used = dict.fromkeys(s.bottleneck for steps in spent.values() for s in steps)
    note = text(20, height - 26, "edges: brown through the scratchpads, green through card memory")
    return charts.svg(height, [*parts, note, *charts.legend(used, height - 18, 20)], int(width))


def _node_box(
    name: str, op: str, told: Sequence[str], place: tuple[float, float], steps: Sequence[Step], longest: float
) -> list[str]:
    ns = sum(s.duration for s in steps)
    moved = sum(s.read_bytes + s.written_bytes for s in steps)
    units: dict[str, float] = {}
    for s in steps:
        units[s.bottleneck] = units.get(s.bottleneck, 0.0) + s.duration
    bound = max(units, key=lambda u: units[u]) if units else "folded into another instruction"
    tip = "\n".join([*told, f"{ns / 1e3:.2f} us, bound by {bound}; {moved:,} bytes of card memory"])
    x, y = place
    parts = [box(x - 105, y, 210, 46, "#fff", tip, name, f"stroke='{charts.colour(bound)}' stroke-width='1.5'")]
    parts.append(box(x - 105, y, 210 * ns / longest, 5, charts.colour(bound), tip))
    parts.append(text(x, y + 20, name if len(name) < 28 else f"{name[:26]}…", "middle"))
    amounts = f"{op}: {ns / 1e3:.2f} us" + (f", {moved / 1e6:.3f} MB" if moved else "")
    return [*parts, text(x, y + 37, amounts if len(amounts) < 34 else f"{amounts[:32]}…", "middle")]


# (e) where the time goes


def time_picture(kernels: Sequence[Explained]) -> str:
    """A bar for each line of each kernel, cut by what bounds its instructions."""
    rows = []
    several = len(kernels) > 1
    for k in kernels:
        for each in k.lines:
            cut = [
                (unit, ns / 1e3, f"{each.label} {each.variable}\n{unit}: {ns / 1e3:.2f} us\n{each.names()}")
                for unit, ns in sorted(each.units.items(), key=lambda item: -item[1])
            ]
            name = f"{k.name} {each.label}" if several else each.label
            rows.append((f"{name} {each.variable}".strip(), cut))
        if k.launch_ns > 0.5:
            rows.append((f"{k.name} launch", [("launch", k.launch_ns / 1e3, f"launch: {k.launch_ns / 1e3:.2f} us")]))
    return charts.bars(rows, "us")


def step_picture(k: Explained) -> str:
    """What each unit does, instruction by instruction."""
    units = ("instruction", "load", "PT", "SFP", "ring", "store")
    shades = dict(zip(units[1:], ("memory", "pt", "sfp", "ring", "draw"), strict=True))
    scale = (WIDTH - LEFT - RIGHT) / max(k.ns, 1.0)
    plot = []
    for step in k.program.steps:
        when = f"{step.duration / 1e3:.2f} us from {step.start / 1e3:.2f}"
        tip = f"{step.op}\n{when}, bound by {step.bottleneck}\n{step.line}"
        edge = "stroke='#fff' stroke-width='0.5'"
        bar = LEFT + step.start * scale, 10, step.duration * scale, 20
        plot.append(box(*bar, charts.colour(step.bottleneck), tip, node_of(step), edge))
        plot.append(charts.label(bar[0], 24, bar[2], step.work.name))
        for lane in step.lanes:
            y = 10 + 26 * units.index(lane.unit)
            tip = f"{lane.unit}: {step.op}\n{lane.duration / 1e3:.2f} us from {lane.start / 1e3:.2f}\n{step.line}"
            colour = charts.colour(shades[lane.unit])
            plot.append(box(LEFT + lane.start * scale, y, lane.duration * scale, 20, colour, tip, node_of(step)))
    fixed = [text(8, 25 + 26 * n, unit) for n, unit in enumerate(units)]
    fixed.append(line([(LEFT, 4), (LEFT, 166)], "#ccc", 1))
    bounds = dict.fromkeys(step.bottleneck for step in k.program.steps)
    fixed += [text(8, 206, "bound by"), *charts.legend(bounds, 196)]
    return charts.timeline_svg(216, plot, fixed, (0.0, k.ns / 1e3), "us", 26)
