# SPDX-License-Identifier: Apache-2.0
"""What an operator wants to know about a run: latencies, throughput, the queue; as text, data and a page."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

from torch_spyre import charts
from torch_spyre.charts import LEFT, RIGHT, WIDTH, line, page, svg, text, ticks_of
from torch_spyre.predict.serving.simulate import Run
from torch_spyre.profiler.summary import table

_SHARES = (50, 90, 99)
_POINTS = 600  # of a curve


def percentile(values: Sequence[float], share: float) -> float:
    """Between two values by their distance, as NumPy does it."""
    found = sorted(values)
    at = (len(found) - 1) * share / 100
    low = int(at)
    high = min(low + 1, len(found) - 1)
    return found[low] + (found[high] - found[low]) * (at - low)


def data(run: Run) -> dict[str, Any]:
    """Times in seconds."""
    requests = run.requests
    gaps = [g for r in requests for g in r.gaps()]
    span = max(r.tokens[-1] for r in requests) - min(r.arrival.at for r in requests)
    tokens = sum(len(r.tokens) for r in requests)
    return {
        "requests": len(requests),
        "seconds": span,
        "requests_per_second": len(requests) / span,
        "tokens_per_second": tokens / span,
        "prompt_tokens_per_second": sum(r.arrival.prompt for r in requests) / span,
        "first_token": _spread([r.first for r in requests]),
        "between_tokens": _spread(gaps),
        "whole_request": _spread([r.whole for r in requests]),
        "queued": _spread([r.queued for r in requests]),
        "steps": len(run.moments),
        "tokens_per_step": sum(m.tokens for m in run.moments) / len(run.moments),
        "card_busy": run.card_seconds / span,
        "cache_use_mean": sum(m.cache for m in run.moments) / len(run.moments),
        "cache_use_most": max(m.cache for m in run.moments),
        "cache_blocks": run.blocks,
        "running_most": max(m.running for m in run.moments),
        "waiting_most": max(m.waiting for m in run.moments),
        "restarts": run.restarts,
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"mean": sum(values) / len(values), **{f"p{s}": percentile(values, s) for s in _SHARES}}


_ROWS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("requests per second", lambda d: f"{d['requests_per_second']:.2f}"),
    ("tokens per second", lambda d: f"{d['tokens_per_second']:.1f}"),
    *(
        (f"{name}, {s} (ms)", lambda d, key=key, s=s: f"{d[key][s] * 1e3:.1f}" if d[key] else "–")
        for name, key in (
            ("first token", "first_token"),
            ("between tokens", "between_tokens"),
            ("whole request", "whole_request"),
            ("queued", "queued"),
        )
        for s in ("mean", "p50", "p90", "p99")
    ),
    ("cards busy (%)", lambda d: f"{100 * d['card_busy']:.1f}"),
    ("tokens per step", lambda d: f"{d['tokens_per_step']:.1f}"),
    ("cache in use, mean and most (%)", lambda d: f"{100 * d['cache_use_mean']:.1f} {100 * d['cache_use_most']:.1f}"),
    ("most at work, most waiting", lambda d: f"{d['running_most']} {d['waiting_most']}"),
    ("computed again", lambda d: str(d["restarts"])),
)


def report(runs: dict[str, Run]) -> str:
    """A column for each run."""
    found = [data(run) for run in runs.values()]
    rows = [(name, *(show(d) for d in found)) for name, show in _ROWS]
    return table(("", *runs), rows)


def timeline_page(title: str, runs: dict[str, Run]) -> str:
    """Requests at work and waiting, pages in use and tokens over virtual time, one section for each run."""
    sections = []
    for label, run in runs.items():
        where = f"{label}: " if len(runs) > 1 else ""
        times = [m.at for m in run.moments]
        sections += [
            (
                f"{where}requests at work and waiting",
                _curves(
                    times, {"at work": [m.running for m in run.moments], "waiting": [m.waiting for m in run.moments]}
                ),
            ),
            (f"{where}pages of the cache in use (%)", _curves(times, {"in use": [100 * m.cache for m in run.moments]})),
            (f"{where}tokens of a step", _curves(times, {"tokens": [m.tokens for m in run.moments]})),
        ]
    sections.append(("Figures", f"<pre>{html.escape(report(runs))}</pre>"))
    return page(title, sections)


def _curves(times: Sequence[float], lines: dict[str, Sequence[float]]) -> str:
    height, end = 240, max(times[-1], 1e-9)
    most = max(max(values) for values in lines.values()) or 1.0
    every = max(1, len(times) // _POINTS)

    def place(at: float, y: float) -> tuple[float, float]:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / end, height - 40 - (height - 70) * y / most

    parts = []
    for tick in ticks_of(0.0, most, 4):
        y = place(0, tick)[1]
        parts += [line([(LEFT, y), (WIDTH - RIGHT, y)], "#eee", 1), text(LEFT - 6, y + 4, charts.number(tick), "end")]
    for tick in ticks_of(0.0, end, 8):
        parts.append(text(place(tick, 0)[0], height - 22, charts.number(tick), "middle"))
    for i, (name, values) in enumerate(lines.items()):
        # The most of each stretch, so that no peak is lost.
        points = [place(times[j], max(values[j : j + every])) for j in range(0, len(times), every)]
        colour = ("#1b9e77", "#d95f02")[i % 2]
        parts += [
            line(points, colour, 1.5),
            text(WIDTH - RIGHT - 120 * i, 14, f"{name} (most {max(values):.4g})", "end"),
        ]
    return svg(height, [*parts, text(WIDTH / 2, height - 6, "seconds", "middle")])
