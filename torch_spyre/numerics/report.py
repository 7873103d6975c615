# SPDX-License-Identifier: Apache-2.0
"""A numerics report as a table for the terminal and as a self-contained HTML page with a plot."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from torch_spyre.charts import LEFT, RIGHT, WIDTH, line, page, svg, text
from torch_spyre.numerics.layers import Layer, Report

_COLUMNS = ("layer", "kind", "error", "own", "of the format", "units", "cosine", "largest", "saturated", "NaN")
_MOST_NUMBERS = 30  # below the plot


def cells(layer: Layer, timed: bool = False) -> tuple[str, ...]:
    share = layer.own.relative / layer.owed if layer.owed else math.inf if layer.own.relative else 0.0
    return (
        layer.name or "model",
        layer.kind,
        f"{layer.error.relative:.2e}",
        f"{layer.own.relative:.2e}",
        f"{share:.2f}",
        f"{layer.error.units:.2f}",
        f"{layer.error.cosine:.7f}",
        f"{layer.largest:.4g}" + (" > fp16" if layer.beyond_fp16 else ""),
        str(layer.saturated or "–"),
        str(layer.nans or "–"),
        *((_time(layer.card_us),) if timed else ()),
    )


def _columns(report: Report) -> tuple[str, ...]:
    return (*_COLUMNS, "card") if report.card_us else _COLUMNS


def _time(us: float) -> str:
    return f"{us / 1e3:.2f} ms" if us >= 1000 else f"{us:.0f} µs"


def show(report: Report, console: Console) -> None:
    table = Table(title=f"{report.model}, {report.mode}: the card in fp16 against the CPU in fp32")
    for i, name in enumerate(_columns(report)):
        table.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
    for layer in report.layers:
        style = "bold red" if layer.nans or layer.saturated else "yellow" if layer.drifts else None
        table.add_row(*cells(layer, report.card_us > 0), style=style)
    console.print(table)
    for sentence in findings(report):
        console.print(sentence, highlight=False, markup=False)


def findings(report: Report) -> list[str]:
    """The report in sentences."""
    last = report.layers[-1]
    found = [f"Error of the last layer: {last.error.relative:.2e} relative, cosine {last.error.cosine:.7f}."]
    if report.card_us:
        found.append(f"{report.parameters:,} parameters, one pass: {_time(report.card_us)} on the device clock.")
    drift = report.drift
    if drift is not None:
        why = "which the format explains" if drift.explained else "which the format does not explain"
        found.append(
            f"Drift starts in {drift.name}: its own error is {drift.own.relative:.2e}, {why}: rounding every result "
            f"alone gives {drift.owed:.2e} on the same inputs."
        )
    else:
        most = max(report.layers, key=lambda layer: layer.own.relative)
        found.append(
            f"No drift: {most.name} adds most, {most.own.relative:.2e}; the format owes {most.owed:.2e} there."
        )
    found += [str(o) for o in report.origins]
    if not any(layer.nans or layer.saturated for layer in report.layers):
        found.append("No NaN, no saturated value.")
    if any(layer.reference_nans for layer in report.layers):
        found.append("The reference has NaN as well.")
    found += [f"{f.op} ran on the host {f.calls} times." for f in report.fallbacks]
    return found


def data(report: Report) -> dict[str, object]:
    """A report as data: `origins` and `findings` as the sentences that people read."""
    layers = [dataclasses.asdict(layer) for layer in report.layers]
    found: dict[str, object] = {"model": report.model, "mode": report.mode, "layers": layers}
    if report.card_us:
        found |= {"parameters": report.parameters, "card_us": report.card_us}
    return {**found, "origins": [str(o) for o in report.origins], "findings": findings(report)}


def page_of(reports: Sequence[Report]) -> str:
    sections = []
    for report in reports:
        sections.append((f"{report.mode}: relative error by layer", _plot(report)))
        sections.append((f"{report.mode}: findings", _list(findings(report))))
        sections.append((f"{report.mode}: table", _table(report)))
    return page(f"spyre-numerics {reports[0].model}", sections)


def _list(sentences: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(s)}</li>" for s in sentences) + "</ul>"


def _table(report: Report) -> str:
    rows = [cells(layer, report.card_us > 0) for layer in report.layers]
    text_of_rows = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    head = "".join(f"<th>{c}</th>" for c in _columns(report))
    return f"<table style='font-size:12px;text-align:right'><tr>{head}</tr>{text_of_rows}</table>"


def _plot(report: Report) -> str:
    """Logarithmic curves of the error, the layer's own, and what the format owes; red dots where values overflow."""
    curves: tuple[tuple[str, str, Callable[[Layer], float]], ...] = (
        ("error", "#d95f02", lambda x: x.error.relative),
        ("own", "#1b9e77", lambda x: x.own.relative),
        ("owed by the format", "#999999", lambda x: x.owed),
    )
    height, layers = 320, report.layers
    logs = [math.log10(v) for _, _, value in curves for x in layers if 0 < (v := value(x)) < math.inf]
    low, high = math.floor(min(logs, default=-6)), math.ceil(max(logs, default=0))
    span = max(high - low, 1)

    def place(i: int, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (i + 0.5) / len(layers)
        level = high if not value < math.inf else low if value <= 0 else math.log10(value)
        return x, 20 + (height - 80) * (high - level) / span

    parts = []
    for decade in range(low, high + 1):
        y = 20 + (height - 80) * (high - decade) / span
        parts += [line([(LEFT, y), (WIDTH - RIGHT, y)], "#eeeeee"), text(LEFT - 8, y + 4, f"1e{decade}", "end")]
    for k, (label, colour, value) in enumerate(curves):
        points = [place(i, value(x)) for i, x in enumerate(layers)]
        parts += [line(points, colour, 2.0), _dot(LEFT + 160 * k, height - 10, colour, label)]
        parts.append(text(LEFT + 160 * k + 8, height - 6, label))
        parts += [_dot(x, y, colour, f"{a.name}: {value(a):.2e}") for a, (x, y) in zip(layers, points, strict=True)]
    bad = [(i, x) for i, x in enumerate(layers) if x.nans or x.saturated]
    parts += [_dot(place(i, 1.0)[0], 12, "#e31a1c", f"{x.name}: {x.saturated} saturated, {x.nans} NaN") for i, x in bad]
    step = -(-len(layers) // _MOST_NUMBERS)
    parts += [text(place(i, 1.0)[0], height - 40, str(i), "middle") for i in range(0, len(layers), step)]
    return svg(height, parts)


def _dot(x: float, y: float, colour: str, tip: str) -> str:
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{colour}'><title>{html.escape(tip)}</title></circle>"
