# SPDX-License-Identifier: Apache-2.0
"""``python -m torch_spyre.numerics.table --rows FILE > docs/model-table.md``: the priority models against the CPU.

Real widths take half an hour or more. FILE keeps every row as soon as it is measured, so that a stopped run goes on; a
row whose figures or settings have changed since is measured again. A model that fails is named, on stderr with its
traceback, and the others go on. Exit code 1: a row failed, or its errors are out of bounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_spyre import knobs
from torch_spyre.errors import InvalidArgument, SpyreError, first_line
from torch_spyre.numerics import models, priority
from torch_spyre.numerics.models import MODES, Outcome
from torch_spyre.numerics.priority import SIZES, Priority
from torch_spyre.numerics.sources import SHOWN, described

Row = dict[str, Any]
RUNS = "compiled/real,compiled/tiny,eager/tiny"


@dataclass
class Measured:
    """Rows by run and model, in that order, and what went wrong with the others."""

    rows: list[Row] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.failed and not any(r["problems"] for r in self.rows)


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
        found = measure(chosen, _runs(args.runs), args.rows, not args.print)
    except SpyreError as error:
        print(f"table: {error}", file=sys.stderr)
        return 2
    print(page(found, chosen), end="")
    for line in (*found.failed, *_out_of_bounds(found.rows)):
        print(f"table: {line}", file=sys.stderr)
    return 0 if found.good else 1


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
) -> Measured:
    """A row per run and model, in that order; those that `kept` lacks are measured if `missing` asks for it."""
    rows = _Rows(kept, settings())
    failed: list[str] = []
    wanted = [(model, mode, size) for mode, size in runs for model in chosen]
    lacking = [w for w in wanted if rows.known(*w) is None] if missing else []
    for number, (model, mode, size, outcome) in enumerate(_outcomes(lacking), 1):
        if isinstance(outcome, Outcome):
            rows.add(model, mode, size, row(outcome))
            note = ", ".join(outcome.problems()) or "good"
        else:
            failed.append(f"{model.name}, {mode}, {size}: {type(outcome).__name__}: {first_line(outcome)}")
            note = "failed"
        print(f"{number} of {len(lacking)}: {model.name}, {mode}, {size}: {note}", file=sys.stderr, flush=True)
    return Measured([r for w in wanted if (r := rows.known(*w)) is not None], failed)


def _outcomes(
    lacking: Sequence[tuple[Priority, str, str]],
) -> Iterator[tuple[Priority, str, str, Outcome | Exception]]:
    """Modes of one model and width follow each other and share what runs on the host."""
    shared = {(model.name, size): model for model, _, size in lacking}
    for (name, size), model in shared.items():
        comparison: models.Comparison | None = None
        for mode in [mode for other, mode, its in lacking if (other.name, its) == (name, size)]:
            print(f"{name}, {mode}, {size} …", file=sys.stderr, flush=True)
            start = time.perf_counter()
            try:
                comparison = comparison or models.Comparison(model, size)
                outcome: Outcome | Exception = comparison.run(mode)
            except Exception as error:  # whatever it is: the other models are not to blame
                traceback.print_exc(file=sys.stderr)
                outcome = error
            print(f"  {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
            yield model, mode, size, outcome
        del comparison
        gc.collect()


def settings() -> Row:
    """What a row depends on beside the figures and the code."""
    import torch
    import transformers

    changed = {k.name: knobs.get(k.name) for k in knobs.TABLE if k.plans and _is_set(k)}
    return {
        "torch": torch.__version__.partition("+")[0],
        "transformers": transformers.__version__,
        "tokens": priority.TOKENS,
        "seed": priority.SEED,
        "knobs": changed,
    }


def _is_set(knob: knobs.Knob) -> bool:
    default = knob.default() if callable(knob.default) else knob.default
    return bool(knobs.get(knob.name) != default)


class _Rows:
    """The rows of a file. One that was measured with other figures or settings does not count."""

    def __init__(self, kept: Path | None, settings: Row) -> None:
        self.kept, self.settings = kept, settings
        self.rows: list[Row] = json.loads(kept.read_text()) if kept is not None and kept.exists() else []

    def known(self, model: Priority, mode: str, size: str) -> Row | None:
        place = self._place(model, mode, size)
        return next((r for r in self.rows if all(r.get(k) == v for k, v in place.items())), None)

    def add(self, model: Priority, mode: str, size: str, values: Row) -> None:
        same = (model.name, mode, size)
        self.rows = [r for r in self.rows if (r["name"], r["mode"], r["size"]) != same]
        self.rows.append(json.loads(json.dumps(self._place(model, mode, size) | values)))
        if self.kept is not None:  # whole or not at all: a run may be stopped at any time
            fresh = self.kept.with_suffix(".new")
            fresh.write_text(json.dumps(self.rows, indent=1))
            fresh.replace(self.kept)

    def _place(self, model: Priority, mode: str, size: str) -> Row:
        figures = model.figures(size)
        return {"name": model.name, "mode": mode, "size": size, "figures": figures, "settings": self.settings}


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
Compared are the logits of all tokens, or the hidden states of a vision tower.
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
default of transformers' own configuration class, or another package on PyPI states it. The parameters are those of the
model that transformers builds from the figures; `tests/models/test_figures.py` finds the same numbers by its own
formulas (embeddings, attention, MLP, experts, norms, biases, tied heads), and checks which figures are defaults.

| model | checkpoint | parameters | transformers | also stated by |
|---|---|---|---|---|"""


def page(found: Measured, chosen: Sequence[Priority]) -> str:
    rows = found.rows
    columns = "model layers parameters cosine rms of_the_format max argmax flips host graphs card".split()
    lines = [HEAD, _with_what(rows)]
    for mode, size in dict.fromkeys((r["mode"], r["size"]) for r in rows):
        lines += [f"## {mode.capitalize()}, {size} widths", "", f"| {' | '.join(columns).replace('_', ' ')} |"]
        lines += ["|" + "---|" * len(columns), *(_line(r) for r in rows if (r["mode"], r["size"]) == (mode, size)), ""]
        there = {r["name"] for r in rows if (r["mode"], r["size"]) == (mode, size)}
        lacking = [m.name for m in chosen if m.name not in there]
        lines += [f"Not measured: {', '.join(lacking)}.", ""] if lacking else []
    if found.failed:
        lines += ["Failed:", "", *(f"* {line}" for line in found.failed), ""]
    outside = [f"* {line}" for line in _out_of_bounds(rows)]
    lines += ["Outside the bounds of `tests/models/test_priority.py`:", "", *outside, ""] if outside else []
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


def _out_of_bounds(rows: Sequence[Row]) -> list[str]:
    return [f"{r['name']}, {r['mode']}, {r['size']}: {p}" for r in rows for p in r["problems"]]


def _with_what(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    s = rows[0]["settings"]  # all rows have the same
    changed = ", ".join(f"{name} {value}" for name, value in s["knobs"].items())
    return (
        f"Measured with torch {s['torch']}, transformers {s['transformers']}, {changed or 'knobs at their defaults'}.\n"
    )


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
