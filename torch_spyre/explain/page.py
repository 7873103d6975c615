# SPDX-License-Identifier: Apache-2.0
"""The page of ``spyre explain --html``: the summary and the pictures of every kernel's plan, in one file."""

from __future__ import annotations

import html
from collections.abc import Sequence

from torch_spyre import charts
from torch_spyre.explain import lines, plan_pictures
from torch_spyre.explain.lines import Explained
from torch_spyre.perf.device import load

_MOST_KERNELS = 40  # the longest ones have pictures; the table has all


def page(kernels: Sequence[Explained], script: str) -> str:
    title = f"spyre explain {script}"
    if not kernels:
        return charts.page(title, [("No compiled kernel", "<p>The script compiled nothing for the card.</p>")])
    drawn = sorted(kernels, key=lambda k: -k.ns)[:_MOST_KERNELS]
    each = [(k.name, k) for k in drawn]
    first = ["<p>", html.escape(lines.headline(kernels)), "</p>", _table(kernels)]
    if len(drawn) < len(kernels):
        first.append(f"<p>Pictures follow of the {len(drawn)} kernels that take longest.</p>")
    capacity = int(load()["cores.lx"])
    sections = [
        ("Summary", "".join(first)),
        (
            "Where the time goes",
            _note("Time of one run of each kernel by user line. Colours say what the instructions wait for.")
            + plan_pictures.time_picture(drawn)
            + _note(
                "The instructions of a kernel in the colour of what bounds them; below, what each unit of a core does."
            )
            + charts.choice([(name, plan_pictures.step_picture(k)) for name, k in each]),
        ),
        (
            "Graph",
            _note("Operations after planning, with time and traffic. A coloured strip is the share of the longest.")
            + charts.choice([(name, plan_pictures.graph_picture(k)) for name, k in each]),
        ),
        (
            "Cores",
            _note(
                "The 32 cores of the ring and the slice that each works on, in the same colour; hover for its bounds."
            )
            + charts.choice([(f"{name}: {n}", p) for name, k in each for n, p in _cores(k)]),
        ),
        (
            "Scratchpads",
            _note("Which bytes of each core's scratchpad (LX) hold which tensor, over time.")
            + charts.choice([(name, plan_pictures.scratchpad_picture(k, capacity)) for name, k in each]),
        ),
        (
            "Tensors in card memory",
            _note("A stick is 128 bytes, the unit of card memory. Hover over one to find it on the other side.")
            + charts.choice([(f"{name}: {n}", p) for name, k in each for n, p in _tensors(k)]),
        ),
        ("Plans in words", "".join(f"<pre>{html.escape(k.record.text())}</pre>" for k in drawn)),
    ]
    return charts.page(title, sections, links=True)


def _note(sentence: str) -> str:
    return f"<p>{html.escape(sentence)}</p>"


def _table(kernels: Sequence[Explained]) -> str:
    def row(kind: str, cells: Sequence[str]) -> str:
        left = [" class=l" if name in ("makes", "operations", "bottleneck") else "" for name in lines.HEADER]
        return "".join(f"<{kind}{c}>{html.escape(cell)}</{kind}>" for c, cell in zip(left, cells, strict=True))

    body = [f"<tr{' class=kernel' if total else ''}>{row('td', cells)}</tr>" for total, cells in lines.rows(kernels)]
    return f"<table><tr>{row('th', lines.HEADER)}</tr>{''.join(body)}</table>"


def _cores(k: Explained) -> list[tuple[str, str]]:
    """Operations that are split alike have one picture."""
    found: dict[object, tuple[list[str], str]] = {}
    for op in k.record.plan.kernel.ops:
        key = (op.dims, op.core_order, op.reduced, op.source)
        if key in found:
            found[key][0].append(op.name)
        else:
            found[key] = ([op.name], plan_pictures.core_picture(op))
    return [(", ".join(names) if len(names) < 4 else f"{names[0]} … {names[-1]}", p) for names, p in found.values()]


def _tensors(k: Explained) -> list[tuple[str, str]]:
    """Tensors in card memory, and one of each other layout."""
    shown: list[tuple[str, str]] = []
    seen = set()
    for b in k.record.plan.graph.buffers.values():
        if b.layout is None or (b.placement == "lx" and (b.layout, b.size) in seen):
            continue
        seen.add((b.layout, b.size))
        shown.append((f"{b.name} {list(b.size)}", plan_pictures.stick_picture(b)))
    return shown
