# SPDX-License-Identifier: Apache-2.0
"""``python -m torch_spyre.numerics.table --rows FILE > docs/model-table.md``: the priority models against the CPU.

Real widths take half an hour or more. FILE keeps every row as soon as it is measured, so that a stopped run goes on; a
row whose figures have changed since is measured again.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_spyre.errors import InvalidArgument, SpyreError
from torch_spyre.numerics import models, priority
from torch_spyre.numerics.models import MODES, Outcome
from torch_spyre.numerics.priority import SIZES, Priority
from torch_spyre.numerics.sources import SHOWN, described

Row = dict[str, Any]
RUNS = "compiled/real,compiled/tiny,eager/tiny"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_spyre.numerics.table", description=__doc__)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(priority.PRIORITY)} (default all)")
    parser.add_argument(
        "--runs",
        default=RUNS,
        help=f"modes (eager, compiled) and widths (tiny, real), by default {RUNS}",
    )
    parser.add_argument("--rows", type=Path, help="JSON file with rows measured before; new ones are added")
    parser.add_argument("--print", action="store_true", help="print the rows of that file, measure nothing")
    args = parser.parse_args(argv)
    try:
        chosen = [priority.find(name) for name in args.models] or list(priority.PRIORITY.values())
        print(page(measure(chosen, _runs(args.runs), args.rows, not args.print), chosen), end="")
    except SpyreError as error:
        print(f"table: {error}", file=sys.stderr)
        return 2
    return 0


def _runs(text: str) -> list[tuple[str, str]]:
    runs = []
    for part in text.split(","):
        mode, _, size = part.partition("/")
        if mode not in MODES or size not in SIZES:
            raise InvalidArgument(f"--runs {text}: {part!r} is not one of eager or compiled, a slash, tiny or real")
        runs.append((mode, size))
    return runs


def measure(
    chosen: Sequence[Priority], runs: Sequence[tuple[str, str]], kept: Path | None = None, missing: bool = True
) -> list[Row]:
    """A row per run and model, in that order; those that `kept` lacks are measured if `missing` asks for it."""
    rows: list[Row] = json.loads(kept.read_text()) if kept is not None and kept.exists() else []
    found = []
    for mode, size in runs:
        for model in chosen:
            place = {"name": model.name, "mode": mode, "size": size, "figures": model.figures(size)}
            known = next((r for r in rows if all(r.get(k) == v for k, v in place.items())), None)
            if known is None and not missing:
                continue
            if known is None:
                start = time.perf_counter()
                known = place | row(models.compare(model, mode, size))
                rows = [r for r in rows if (r["name"], r["mode"], r["size"]) != (model.name, mode, size)] + [known]
                if kept is not None:
                    kept.write_text(json.dumps(rows, indent=1))
                print(f"{model.name}, {mode}, {size}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
                gc.collect()
            found.append(known)
    return found


def row(o: Outcome) -> Row:
    return {
        "layers": o.layers,
        "parameters": o.parameters,
        "cosine": o.cosine,
        "rms": o.rms_error,
        "format": o.rms_error / o.format_rms,
        "units": o.units,
        "argmax": list(o.argmax),
        "flips": [[f.gap, f.error] for f in o.flips],
        "fallbacks": [[f.op, f.calls] for f in o.fallbacks],
        "graphs": o.graphs,
        "card_us": o.card_us,
        "problems": o.problems(),
    }


HEAD = """# Priority models

Printed by `python -m torch_spyre.numerics.table --rows rows.json`; the same command continues a stopped run.
Each model is built by transformers from its published configuration, with random weights (variance 1/fan-in, rounded to
the card's format first) and few layers, and run on the card in fp16 and on the CPU in fp32 with the same weights: two
sequences of 41 tokens (Whisper: 13), of which a decoder takes all but one into a static cache, then decodes the last.
Layers are of the same kinds as in the whole model; what else is smaller than published is said below.

* cosine: of the worst row of logits (hidden states for a vision tower).
* rms: error of all values relative to their root mean square; "of the format": divided by the same error of a CPU fp32
  run in which every op's result is rounded to the card's format. About 1 means that nothing but the format is at work.
* max: the largest error, in steps of the format at the largest value.
* argmax: rows whose largest logit is the same one. Random logits are close together; a trained model's are not.
* flips: tokens that chose other experts; they are left out of the errors, and each must be a near tie.
* host: ops that ran on the host, from `torch_spyre.report()`.
* card: the device clock, of one pass with its decode step.
"""

SOURCES_HEAD = """
## Where the figures come from

From the checkpoint's config.json, which is not at hand where there is no hub. What vouches for a figure here: it is the
default of transformers' own configuration class; another package on PyPI states it; the whole model has as many
parameters as the published weights. `tests/models/test_figures.py` checks the first and the last. The numbers of
parameters are quoted, not read from the weights; where only three digits are published, the rest is computed from the
figures, so that the test then guards the figures against change rather than vouching for them.

| model | checkpoint | parameters | transformers | also stated by |
|---|---|---|---|---|"""


def page(rows: Sequence[Row], chosen: Sequence[Priority]) -> str:
    columns = "model layers parameters cosine rms of_the_format max argmax flips host graphs card".split()
    lines = [HEAD]
    for mode, size in dict.fromkeys((r["mode"], r["size"]) for r in rows):
        lines += [f"## {mode.capitalize()}, {size} widths", "", f"| {' | '.join(columns).replace('_', ' ')} |"]
        lines += ["|" + "---|" * len(columns), *(_line(r) for r in rows if (r["mode"], r["size"]) == (mode, size)), ""]
        there = {r["name"] for r in rows if (r["mode"], r["size"]) == (mode, size)}
        lacking = [m.name for m in chosen if m.name not in there]
        lines += [f"Not measured: {', '.join(lacking)}.", ""] if lacking else []
    failed = [f"* {r['name']}, {r['mode']}: {p}" for r in rows for p in r["problems"]]
    if failed:
        lines += ["Outside the bounds of `tests/models/test_priority.py`:", "", *failed, ""]
    sizes = list(dict.fromkeys(r["size"] for r in rows))
    lines += [
        "## Configurations",
        "",
        f"| model | published | {' | '.join(sizes)} |",
        "|---|---|" + "---|" * len(sizes),
    ]
    lines += [_figures(m, sizes) for m in chosen]
    lines += [SOURCES_HEAD, *(f"| {m.name} | {described(m)} |" for m in chosen)]
    return "\n".join(lines) + "\n"


def _line(r: Row) -> str:
    host = ", ".join(f"{op} {calls}" for op, calls in r["fallbacks"]) or "none"
    published = priority.find(r["name"]).layers
    cells = (
        r["name"], f"{r['layers']} of {published}", f"{r['parameters'] / 1e6:.1f} M", f"{r['cosine']:.6f}",
        f"{r['rms']:.1e}", f"{r['format']:.2f}", f"{r['units']:.1f}", f"{r['argmax'][0]}/{r['argmax'][1]}",
        str(len(r["flips"])), host, str(r["graphs"]) if r["mode"] == "compiled" else "–", _time(r["card_us"]),
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _time(us: float) -> str:
    return f"{us / 1e3:.2f} ms" if us >= 1000 else f"{us:.0f} µs"


def _figures(model: Priority, sizes: Sequence[str]) -> str:
    shown = [f"{model.layers} layers"]
    shown += [f"{SHOWN[k]} {v}" for k, v in model.published.items() if _has_a_size(k) and v is not None]
    changes = []
    for size in sizes:
        changed = model.tiny if size == "tiny" else model.real
        smaller = [f"{SHOWN[k]} {v}" for k, v in changed.items() if _has_a_size(k) and model.published.get(k) != v]
        changes.append(", ".join(smaller) or "as published")
    return f"| {model.name} | {', '.join(shown)} | {' | '.join(changes)} |"


def _has_a_size(figure: str) -> bool:
    return SHOWN.get(figure, "layers") != "layers"


if __name__ == "__main__":
    sys.exit(main())
