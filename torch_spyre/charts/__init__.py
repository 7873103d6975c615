# SPDX-License-Identifier: Apache-2.0
"""Pictures as one HTML file: SVG drawn here, with the numbers on hover, zoom, and export as SVG or PNG by page.js.

A mark's `<title>` is what hovering shows; marks with one `data-key` are highlighted together. Nothing is fetched from
elsewhere, and without scripts the page still shows everything. Plain text and numbers in, text out; no dependency.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

WIDTH, LEFT, RIGHT = 1100, 90, 20
# What bounds a piece of work; one colour in all pictures.
COLOURS = {
    "pt": "#d95f02",
    "memory": "#1b9e77",
    "draw": "#66a61e",
    "sfp": "#7570b3",
    "lx": "#a6761d",
    "ring": "#e7298a",
    "issue": "#999999",
    "exposed": "#b3b3b3",
    "launch": "#e6ab02",
    "transfer": "#1f78b4",
    "collectives": "#e7298a",
    "host": "#1f78b4",
}
_HERE = Path(__file__).parent


def colour(unit: str) -> str:
    return COLOURS.get(unit, "#444444")


def hue(i: int, count: int, light: int = 62) -> str:
    """The i-th of `count` colours, neighbours far apart where there are few."""
    return f"hsl({360 * i / max(count, 1):.0f},60%,{light - 10 * (i % 2)}%)"


def page(title: str, sections: Sequence[tuple[str, str]], links: bool = False) -> str:
    """One file with these sections of HTML; `links`: a line that leads to them."""
    names = [name for name, _ in sections]
    body = "".join(f"<h2 id='s{i}'>{html.escape(n)}</h2>{content}" for i, (n, content) in enumerate(sections))
    nav = "".join(f"<a href='#s{i}'>{html.escape(name)}</a>" for i, name in enumerate(names))
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{html.escape(title)}</title>"
        f"<style>{(_HERE / 'page.css').read_text()}</style></head><body><h1>{html.escape(title)}</h1>"
        f"{f'<nav>{nav}</nav>' if links else ''}{body}"
        f"<script>{(_HERE / 'page.js').read_text()}</script></body></html>\n"
    )


def svg(height: float, parts: Iterable[str], width: int = WIDTH) -> str:
    """A picture that zooms as a whole."""
    size = f"width='{width}' height='{height:.0f}' viewBox='0 0 {width} {height:.0f}'"
    return f"<figure><svg data-zoom='xy' {size}>{''.join(parts)}</svg></figure>"


def timeline_svg(
    height: float, plot: Iterable[str], fixed: Iterable[str], span: tuple[float, float], unit: str, above: float = 0
) -> str:
    """A picture that zooms along x, which runs over `span`; `plot` is stretched, `fixed` is not. The axis is drawn
    here, `above` pixels over the lower edge."""
    low, high = span
    right = WIDTH - RIGHT
    y = height - above - 6
    ticks = "".join(
        text(LEFT + (right - LEFT) * (v - low) / (high - low), y, number(v), "middle") for v in ticks_of(low, high)
    )
    data = f"data-left='{LEFT}' data-right='{right}' data-from='{low}' data-to='{high}'"
    clip = f"inside{height:.0f}"
    return (
        f"<figure><svg data-zoom='x' {data} width='{WIDTH}' height='{height:.0f}' "
        f"viewBox='0 0 {WIDTH} {height:.0f}'><clipPath id='{clip}'><rect x='{LEFT}' y='0' width='{right - LEFT}' "
        f"height='{height:.0f}'/></clipPath><g clip-path='url(#{clip})'><g class='plot'>{''.join(plot)}</g></g>"
        f"{''.join(fixed)}<g class='ticks' data-y='{y:.1f}'>{ticks}</g>{text(8, y, unit)}</svg></figure>"
    )


def choice(parts: Sequence[tuple[str, str]]) -> str:
    """Several pictures of one kind, of which the reader chooses one."""
    inner = "".join(f"<div data-name='{html.escape(name, quote=True)}'>{content}</div>" for name, content in parts)
    return f"<div data-choice='1'>{inner}</div>"


def ticks_of(low: float, high: float, count: int = 8) -> list[float]:
    """Round numbers between two ends, about `count` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Six digits, and no noise of binary fractions."""
    return f"{round(value, 9):.6g}"


def size(count: float) -> str:
    """Bytes in a unit that people read."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit takes everything")


def text(x: float, y: float, content: str, anchor: str = "start") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{html.escape(content)}</text>"


def box(x: float, y: float, w: float, h: float, colour: str, tip: str, key: str = "", more: str = "") -> str:
    linked = f" data-key='{html.escape(key, quote=True)}'" if key else ""
    return (
        f"<rect x='{x:.2f}' y='{y:.2f}' width='{max(w, 0.3):.2f}' height='{h:.2f}' fill='{colour}'{linked} {more}>"
        f"<title>{html.escape(tip)}</title></rect>"
    )


def label(x: float, y: float, w: float, content: str) -> str:
    """Text in a box of a timeline, w pixels wide: shown where it fits, and never stretched by the zoom."""
    wide = 6.4 * len(content) + 6
    hidden = "" if wide <= w else " display='none'"
    data = f"class='in' data-x='{x:.2f}' data-w='{w:.2f}' data-wide='{wide:.0f}'"
    return f"<text {data} x='{x + 4:.2f}' y='{y:.1f}' pointer-events='none'{hidden}>{html.escape(content)}</text>"


def dot(x: float, y: float, radius: float, colour: str, tip: str) -> str:
    return (
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius:.1f}' fill='{colour}' fill-opacity='0.75'>"
        f"<title>{html.escape(tip)}</title></circle>"
    )


def line(points: Sequence[tuple[float, float]], colour: str, width: float = 1.5) -> str:
    path = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
    return f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='{width}'/>"


def legend(units: Iterable[str], y: float, x: float = LEFT) -> list[str]:
    parts = []
    for i, unit in enumerate(units):
        parts += [box(x + 95 * i, y, 12, 12, colour(unit), unit), text(x + 16 + 95 * i, y + 10, unit)]
    return parts


def bars(rows: Sequence[tuple[str, Sequence[tuple[str, float, str]]]], unit: str, left: int = 330) -> str:
    """Horizontal bars: (label, ((unit that bounds it, amount, what hovering shows), …)), longest total decides."""
    longest = max((sum(a for _, a, _ in parts) for _, parts in rows), default=0) or 1.0
    scale = (WIDTH - left - 110) / longest
    found: list[str] = []
    for n, (label, parts) in enumerate(rows):
        x, y = float(left), 10 + 24.0 * n
        shown = label if len(label) < 48 else "…" + label[-46:]
        found.append(text(left - 8, y + 13, shown, "end"))
        for kind, amount, tip in parts:
            found.append(box(x, y, amount * scale, 18, colour(kind), tip))
            x += amount * scale
        total = sum(a for _, a, _ in parts)
        found.append(text(x + 6, y + 13, f"{number(float(f'{total:.4g}'))} {unit}"))
    height = 24 * len(rows) + 44
    used = dict.fromkeys(kind for _, parts in rows for kind, _, _ in parts)
    return svg(height, [*found, *legend(used, height - 24, left)])
