# SPDX-License-Identifier: Apache-2.0
"""Predictions as text, and sweeps as a picture."""

from __future__ import annotations

import html
from collections.abc import Sequence

from torch_spyre.predict import coverage
from torch_spyre.predict.model import USABLE_BYTES, Memory, Prediction
from torch_spyre.profiler.pictures import LEFT, RIGHT, WIDTH, line, page, svg, text
from torch_spyre.profiler.summary import table


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.2f} ms"


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"


def does_not_fit(name: str, needed: Memory) -> str:
    return (
        f"{name} does not fit one card: {_gb(needed.total)} needed ({_gb(needed.weights)} weights, {_gb(needed.cache)} "
        f"cache, {_gb(needed.activations)} activations), {_gb(USABLE_BYTES)} usable; at least {needed.cards} cards"
    )


def text_report(p: Prediction) -> str:
    parts = [_headline(p), _blocks(p), _classes(p)]
    host = [
        f"{b.name}: {b.transfers} transfers: a part of it runs on the host" for b in p.blocks.values() if b.transfers
    ]
    return "\n\n".join([*parts, *host, *_assumptions(p)])


def _headline(p: Prediction) -> str:
    c, r, m = p.config, p.request, p.memory()
    steady = p.traffic(p.phases[-1]) if len(p.phases) > 1 else 0
    prompt_rate = r.batch * r.prompt * 1e9 / p.first_token_ns
    rows = [
        ("model", f"{c.name}: {c.parameters / 1e9:.2f} billion parameters, fp16"),
        ("request", f"batch {r.batch}, prompt {r.prompt}{', together' if r.together else ''}, {r.decode} tokens"),
        ("time to first token", f"{_ms(p.first_token_ns)}  ({prompt_rate:.0f} prompt tokens/s)"),
        ("time per token", f"{_ms(p.token_ns)}  ({p.decode_tokens_per_s:.1f} tokens/s)" if r.decode else "–"),
        ("whole request", _ms(p.total_ns)),
        ("memory", f"{_gb(m.total)}: {_gb(m.weights)} weights, {_gb(m.cache)} cache, {_gb(m.activations)} activations"),
        ("traffic", f"{_gb(p.traffic(p.phases[0]) * p.phases[0].times)} for the prompts, {_gb(steady)} per token"),
    ]
    return "\n".join(f"{name + ':':21}{value}" for name, value in rows)


def _blocks(p: Prediction) -> str:
    header = ("block", "tokens", "cache", "count", "us each", "% of pass", "PT %", "GB/s", "launches", "bottleneck")
    rows = []
    for phase in p.phases:
        whole = p.pass_ns(phase)
        rows.append((f"{phase.name} x{phase.times}", *[""] * 3, f"{whole / 1e3:.1f}", *[""] * 5))
        for part, count in phase.counts.items():
            b = p.blocks[part]
            rows.append(
                (
                    f"  {part.label}",
                    f"{part.tokens} of {part.batch}" if part.kind == "expert" else f"{part.batch}x{part.tokens}",
                    str(part.context or "–"),
                    str(count),
                    f"{b.ns / 1e3:.1f}",
                    f"{100 * b.ns * count / whole:.1f}",
                    f"{100 * b.utilisation():.1f}",
                    f"{b.bandwidth:.1f}",
                    str(b.launches),
                    f"{b.bottleneck} {100 * b.units.get(b.bottleneck, 0) / max(b.ns, 1):.0f} %",
                )
            )
        rows.append(("  host", "", "", "1", f"{p.host_ns / 1e3:.1f}", f"{100 * p.host_ns / whole:.1f}", *[""] * 4))
    return table(header, rows)


def _classes(p: Prediction) -> str:
    classes = p.classes()
    total = sum(classes.values()) or 1.0
    rows = []
    for name, ns in sorted(classes.items(), key=lambda item: -item[1]):
        e = coverage.errors().get(name)
        error = (str(e.rows), f"{100 * e.median:.1f}", f"{100 * e.mean:.1f}") if e else ("0", "–", "–")
        rows.append((name, f"{100 * ns / total:.1f}", *error))
    header = ("class of work", "% of time", "rows checked", "median error %", "mean error %")
    share, expected = coverage.checked_share(classes), coverage.expected_error(classes)
    return (
        table(header, rows)
        + f"\n\n{100 * share:.1f} % of the time lies in classes checked against published measurements; their mean "
        f"error,\nweighted by time, is {100 * expected:.1f} %. No whole model was ever checked."
    )


def _assumptions(p: Prediction) -> list[str]:
    return ["Assumed: the router spreads the tokens evenly over the experts."] if p.config.experts else []


def side_by_side(labels: Sequence[str], found: Sequence[Prediction]) -> str:
    """What-if: the same request on several devices, times and matmul plans."""
    first = found[0]
    rows = [
        ("time to first token, ms", *(f"{p.first_token_ns / 1e6:.3f}" for p in found)),
        ("time per token, ms", *(f"{p.token_ns / 1e6:.3f}" for p in found)),
        ("tokens/s", *(f"{p.decode_tokens_per_s:.2f}" for p in found)),
        ("whole request, ms", *(f"{p.total_ns / 1e6:.2f}" for p in found)),
    ]
    for part in first.blocks:
        name = f"{part.label} {part.batch}x{part.tokens}, cache {part.context}"
        rows.append((f"{name}, us", *(f"{p.blocks[part].ns / 1e3:.1f}" for p in found)))
        rows.append(("  bottleneck", *(p.blocks[part].bottleneck for p in found)))
    text_ = table(("", *labels), rows)
    return text_ + "\n\nPlans of the matmuls that differ:\n" + (_plans(labels, found) or "none")


def _plans(labels: Sequence[str], found: Sequence[Prediction]) -> str:
    lines = []
    for part in found[0].blocks:
        plans = [p.blocks[part].plans for p in found]
        for i in range(max(map(len, plans))):
            each = [x[i] if i < len(x) else "–" for x in plans]
            if len({e.split(":")[0] for e in each}) > 1:
                lines.append(f"{part.label} {part.batch}x{part.tokens}, matmul {i}:")
                lines += [f"  {label}: {plan}" for label, plan in zip(labels, each, strict=True)]
    return "\n".join(lines)


def sweep_table(name: str, values: Sequence[int], found: Sequence[Prediction]) -> str:
    rows = [
        (
            str(v),
            f"{p.first_token_ns / 1e6:.2f}",
            f"{p.token_ns / 1e6:.2f}",
            f"{p.decode_tokens_per_s:.1f}",
            f"{p.config.name}",
            _gb(p.memory().total),
        )
        for v, p in zip(values, found, strict=True)
    ]
    return table((name, "first token ms", "per token ms", "tokens/s", "model", "memory"), rows)


def sweep_page(name: str, values: Sequence[int], found: Sequence[Prediction]) -> str:
    """The sweep as a self-contained HTML page."""
    curves = {
        "time to first token (ms)": [p.first_token_ns / 1e6 for p in found],
        "time per token (ms)": [p.token_ns / 1e6 for p in found],
        "tokens per second": [p.decode_tokens_per_s for p in found],
    }
    sections = [(title, _curve(name, values, data)) for title, data in curves.items()]
    sections.append(("Table", f"<pre>{html.escape(sweep_table(name, values, found))}</pre>"))
    return page(f"{found[0].config.name}: sweep over {name}", sections)


def _curve(name: str, values: Sequence[int], data: Sequence[float]) -> str:
    height, most = 260, max([*data, 1e-9])
    span = max(max(values) - min(values), 1)

    def place(v: float, y: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT - 40) * (v - min(values)) / span
        return x, height - 40 - (height - 70) * y / most

    points = [place(v, y) for v, y in zip(values, data, strict=True)]
    parts = [line(points, "#1b9e77", 2.0)]
    for (x, y), v, d in zip(points, values, data, strict=True):
        parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='#1b9e77'/>", text(x, y - 8, f"{d:.1f}", "middle")]
        parts.append(text(x, height - 22, str(v), "middle"))
    return svg(height, [*parts, text(WIDTH / 2, height - 6, name, "middle")])
