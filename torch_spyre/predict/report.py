# SPDX-License-Identifier: Apache-2.0
"""Predictions as text, and sweeps as a picture."""

from __future__ import annotations

import html
from collections.abc import Sequence

from torch_spyre import charts
from torch_spyre.charts import LEFT, RIGHT, WIDTH, dot, line, page, svg, text
from torch_spyre.predict import configs, coverage
from torch_spyre.predict.model import USABLE_BYTES, Memory, Prediction
from torch_spyre.predict.passes import Phase
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


def does_not_fit_cards(name: str, needed: Memory, cards: int, enough: int | None) -> str:
    """Of a share of the model, on each of so many cards. `enough` cards would hold it."""
    advice = f"{enough} cards would do" if enough else "no number of cards that divides its heads would do"
    where, each = (f"{cards} cards", " on each") if cards > 1 else ("1 card", "")
    return (
        f"{name} does not fit {where}: {_gb(needed.total)} needed{each} ({_gb(needed.weights)} weights, "
        f"{_gb(needed.cache)} cache, {_gb(needed.activations)} activations), {_gb(USABLE_BYTES)} usable; {advice}"
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
    prompts = p.traffic(p.phases[0]) * p.phases[0].times
    prompt_rate = r.batch * r.prompt * 1e9 / p.first_token_ns
    each = " on each card" if p.cards > 1 else ""
    rows = [
        ("model", f"{c.name}: {c.parameters / 1e9:.2f} billion parameters, {c.weights}"),
        *([("cards", f"{p.cards}, tensor parallel")] if p.cards > 1 else []),
        ("request", f"batch {r.batch}, prompt {r.prompt}{', together' if r.together else ''}, {r.decode} tokens"),
        ("time to first token", f"{_ms(p.first_token_ns)}  ({prompt_rate:.0f} prompt tokens/s)"),
        ("time per token", f"{_ms(p.token_ns)}  ({p.decode_tokens_per_s:.1f} tokens/s)" if r.decode else "–"),
        ("whole request", _ms(p.total_ns)),
        *([("communication", _communication(p))] if p.cards > 1 else []),
        (
            "memory",
            f"{_gb(m.total)}{each}: {_gb(m.weights)} weights, {_gb(m.cache)} cache, {_gb(m.activations)} activations",
        ),
        ("traffic", f"{_gb(prompts)} for the prompts, {_gb(steady)} per token{each}"),
    ]
    return "\n".join(f"{name + ':':21}{value}" for name, value in rows)


def _communication(p: Prediction) -> str:
    first = f"{100 * p.communication(prefill=True):.1f} % of the time to first token"
    return f"{first}, {100 * p.communication(prefill=False):.1f} % of the time per token" if p.request.decode else first


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
        for exchange, count in phase.exchanges.items():
            took = p.collective(exchange)
            us, share = took.seconds * 1e6, 100 * took.seconds * 1e9 * count / whole
            size = f"{exchange.nbytes / 1e3:.1f} kB"
            name, values = f"  {exchange.kind}", (str(count), f"{us:.1f}", f"{share:.1f}")
            rows.append((name, size, "–", *values, "–", f"{exchange.nbytes / us / 1e3:.1f}", "–", took.algorithm))
        rows.append(("  host", "", "", "1", f"{p.host_ns / 1e3:.1f}", f"{100 * p.host_ns / whole:.1f}", *[""] * 4))
    return table(header, rows)


def _classes(p: Prediction) -> str:
    classes = p.classes()
    if p.cards > 1:
        classes[f"{coverage.UNCHECKED}: collectives"] = sum(p.exchange_ns(phase) * phase.times for phase in p.phases)
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
        + f"\n\n{100 * share:.1f} % of the time lies in classes checked against published measurements; the "
        f"expected\nerror of the total is {100 * expected:.1f} %. No whole model was ever checked."
    )


def _assumptions(p: Prediction) -> list[str]:
    experts = "Assumed: the router spreads the tokens evenly over the experts."
    alone = "Assumed: a collective waits for the block before it and the next block waits for it; nothing overlaps."
    sizes = configs.UNCONFIRMED.get(p.config.name)
    found = [*([experts] if p.config.experts else []), *([alone] if p.cards > 1 else [])]
    return [*found, f"Assumed: {sizes}."] if sizes else found


def data(p: Prediction) -> dict[str, object]:
    """A prediction as data."""
    m, r = p.memory(), p.request
    blocks = [
        {"block": part.label, "tokens": part.tokens, "batch": part.batch, "cache": part.context, "us": b.ns / 1e3}
        | {"bottleneck": b.bottleneck, "read_bytes": b.read_bytes, "written_bytes": b.written_bytes, "plans": b.plans}
        for part, b in p.blocks.items()
    ]
    return {
        "cards": p.cards,
        "weights": p.config.weights,
        "batch": r.batch,
        "prompt": r.prompt,
        "decode": r.decode,
        "first_token_ms": p.first_token_ns / 1e6,
        "token_ms": p.token_ns / 1e6,
        "tokens_per_s": p.decode_tokens_per_s,
        "total_ms": p.total_ns / 1e6,
        "memory_bytes": {"weights": m.weights, "cache": m.cache, "activations": m.activations, "total": m.total},
        "expected_error": coverage.expected_error(p.classes()),
        "checked_share": coverage.checked_share(p.classes()),
        "blocks": blocks,
    }


def side_by_side(labels: Sequence[str], found: Sequence[Prediction]) -> str:
    """What-if: the same request on several devices, times and matmul plans."""
    first = found[0]
    rows = [
        ("time to first token, ms", *(f"{p.first_token_ns / 1e6:.3f}" for p in found)),
        ("time per token, ms", *(f"{p.token_ns / 1e6:.3f}" for p in found)),
        ("tokens/s", *(f"{p.decode_tokens_per_s:.2f}" for p in found)),
        ("whole request, ms", *(f"{p.total_ns / 1e6:.2f}" for p in found)),
    ]
    if first.cards > 1:
        rows.append(("communication, % of first token", *(f"{100 * p.communication(True):.1f}" for p in found)))
        rows.append(("communication, % per token", *(f"{100 * p.communication(False):.1f}" for p in found)))
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
    several = any(p.cards > 1 for p in found)
    rows = [
        (
            str(v),
            f"{p.first_token_ns / 1e6:.2f}",
            f"{p.token_ns / 1e6:.2f}",
            f"{p.decode_tokens_per_s:.1f}",
            *((f"{100 * p.communication(True):.1f}", f"{100 * p.communication(False):.1f}") if several else ()),
            f"{p.config.name}",
            _gb(p.memory().total),
        )
        for v, p in zip(values, found, strict=True)
    ]
    shares = ("comm. % of first", "comm. % per token") if several else ()
    memory = "memory per card" if several else "memory"
    return table((name, "first token ms", "per token ms", "tokens/s", *shares, "model", memory), rows)


def sweep_page(name: str, values: Sequence[int], found: dict[str, list[Prediction]]) -> str:
    """The sweep as a self-contained HTML page; `found` has the predictions of each device."""
    sections = []
    for label, each in found.items():
        device = f"{label}: " if len(found) > 1 else ""
        curves = {
            "time to first token (ms)": [p.first_token_ns / 1e6 for p in each],
            "time per token (ms)": [p.token_ns / 1e6 for p in each],
            "tokens per second": [p.decode_tokens_per_s for p in each],
        }
        if any(p.cards > 1 for p in each):
            curves["communication (% of time to first token)"] = [100 * p.communication(True) for p in each]
            curves["communication (% of time per token)"] = [100 * p.communication(False) for p in each]
            curves["memory per card (GB)"] = [p.memory().total / 1e9 for p in each]
        sections += [(device + title, _curve(name, values, data)) for title, data in curves.items()]
        sections.append((f"{device}Table", f"<pre>{html.escape(sweep_table(name, values, each))}</pre>"))
    model = next(iter(found.values()))[0].config.name
    return page(f"{model}: sweep over {name}", sections)


def time_page(found: dict[str, Prediction]) -> str:
    """Where the time to the first token and the time of a later token go, block by block, as an HTML page."""
    sections = []
    for label, p in found.items():
        device = f"{label}: " if len(found) > 1 else ""
        for phase in p.phases[:1] + p.phases[1:][-1:]:
            title = "Where the time to the first token goes" if phase is p.phases[0] else "Where a token's time goes"
            sections.append((f"{device}{title}", _time_bars(p, phase)))
        sections.append((f"{device}Report", f"<pre>{html.escape(text_report(p))}</pre>"))
    return page(f"{next(iter(found.values())).config.name}: where the time goes", sections)


def _time_bars(p: Prediction, phase: Phase) -> str:
    """A bar for each block of a pass, cut by what bounds its instructions."""
    rows = []
    for part, count in phase.counts.items():
        b = p.blocks[part]
        units = sorted(b.units.items(), key=lambda item: -item[1])
        tip = f"{part.label} x{count}, {part.batch}x{part.tokens} tokens, cache {part.context or '–'}"
        cut = [
            (unit, ns * count / 1e3, f"{tip}\n{unit}: {ns * count / 1e3:.1f} us of {b.ns * count / 1e3:.1f}")
            for unit, ns in [*units, ("launch", b.ns - sum(b.units.values()))]
            if ns > 0
        ]
        rows.append((f"{part.label} x{count}", cut))
    for exchange, count in phase.exchanges.items():
        us = p.collective(exchange).seconds * 1e6 * count
        rows.append((f"{exchange.kind} x{count}", [("collectives", us, f"{exchange.nbytes} bytes each, {us:.1f} us")]))
    rows.append(("host", [("host", p.host_ns / 1e3, f"submits and reads scores: {p.host_ns / 1e3:.1f} us")]))
    return charts.bars(rows, "us", left=220)


def _curve(name: str, values: Sequence[int], data: Sequence[float]) -> str:
    height, most = 260, max([*data, 1e-9])
    span = max(max(values) - min(values), 1)

    def place(v: float, y: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT - 40) * (v - min(values)) / span
        return x, height - 40 - (height - 70) * y / most

    points = [place(v, y) for v, y in zip(values, data, strict=True)]
    parts = []
    for tick in charts.ticks_of(0.0, most, 5):
        y = place(min(values), tick)[1]
        parts += [line([(LEFT, y), (WIDTH - RIGHT, y)], "#eee", 1), text(LEFT - 6, y + 4, charts.number(tick), "end")]
    parts.append(line(points, "#1b9e77", 2.0))
    for (x, y), v, d in zip(points, values, data, strict=True):
        parts += [dot(x, y, 4, "#1b9e77", f"{name} {v}: {d:.6g}"), text(x, y - 8, f"{d:.1f}", "middle")]
        parts.append(text(x, height - 22, str(v), "middle"))
    return svg(height, [*parts, text(WIDTH / 2, height - 6, name, "middle")])
