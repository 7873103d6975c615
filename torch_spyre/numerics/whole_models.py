# SPDX-License-Identifier: Apache-2.0
"""``python -m torch_spyre.numerics.whole_models --rows FILE``: a table of whole models, walked layer by layer.

Every model of `spyre-numerics --list` with its published widths and vocabulary and all of its layers, or the first
`--layers`; hours for all of them. FILE keeps every row as soon as it is measured, so that a stopped run goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_spyre.errors import InvalidArgument, SpyreError
from torch_spyre.numerics import priority, streamed
from torch_spyre.numerics.layers import Layer, Report
from torch_spyre.numerics.priority import STREAMED, Priority

Row = dict[str, Any]

HEAD = """# Whole models

Printed by `python -m torch_spyre.numerics.whole_models --rows rows.json`; the same command continues a stopped run, and
`--layers N` takes the first N layers. One model alone, with a row for each layer and a plot:
`spyre-numerics MODEL --stream --plot page.html`.

* Layers: how many of the published ones ran. Widths, experts and vocabulary are the published ones.
* Weights: random (variance 1/fan-in) in numbers of the card's format; nothing is said about trained weights.
* Compared: one prompt of two sequences of 41 tokens (Whisper: 13), without a cache; the card in fp16 against the CPU in
  fp32 with the same weights, which are there for one layer at a time. A token that chose other experts than in fp32
  counts in full.

| column | |
|---|---|
| cosine, error | of the last output, inherited and own; the error is the root mean square, relative to the output's |
| most of a layer | the largest error that one layer adds, run alone on the reference's input |
| of the format | the largest ratio of what a layer adds to what rounding every result to the format adds in it |
| drift | error after a quarter, half and three quarters of the layers |
| host | ops that ran on the host, from `torch_spyre.report()` |
| card | the device clock of the pass, weights in place |
"""
_COLUMNS = (
    "model",
    "layers",
    "parameters",
    "cosine",
    "error",
    "most of a layer",
    "of the format",
    "drift",
    "host",
    "card",
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_spyre.numerics.whole_models", description=__doc__)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(STREAMED)} (default all)")
    parser.add_argument(
        "--rows", type=Path, required=True, help="JSON file with rows measured before; new ones are added"
    )
    parser.add_argument("--layers", type=int, help="the first so many layers (default all)")
    parser.add_argument("--mode", choices=("eager", "compiled"), default="compiled")
    parser.add_argument("--print", action="store_true", help="print the rows of that file, measure nothing")
    args = parser.parse_args(argv)
    try:
        chosen = [_find(name) for name in args.models] or list(STREAMED.values())
        rows = _rows(args.rows)
        for model in chosen if not args.print else ():
            count = min(args.layers or model.layers, model.layers)
            if not any((r["model"], r["layers"], r["mode"]) == (model.name, count, args.mode) for r in rows):
                rows.append(_measured(model, count, args.mode))
                args.rows.write_text(json.dumps(rows, indent=1))
    except SpyreError as error:
        print(f"whole_models: {error}", file=sys.stderr)
        return 2
    print(page(rows), end="")
    return 0


def _find(name: str) -> Priority:
    if name not in STREAMED:
        raise InvalidArgument(f"no model {name!r}; known are {', '.join(STREAMED)}")
    return STREAMED[name]


def _rows(file: Path) -> list[Row]:
    return list(json.loads(file.read_text())) if file.exists() else []


def _measured(model: Priority, count: int, mode: str) -> Row:
    start = time.perf_counter()

    def progress(what: str, done: int, every: int) -> None:
        seconds = time.perf_counter() - start
        print(f"{model.name}, {what}: {done} of {every}, {seconds:.0f} s", file=sys.stderr, flush=True)

    return row(streamed.compare_random(model, mode, count, progress), count)


def row(report: Report, count: int) -> Row:
    last = report.layers[-1]
    deep = [x for x in report.layers if x.name.rpartition(".")[2].isdecimal()]
    return {
        "model": report.model,
        "mode": report.mode,
        "layers": count,
        "parameters": report.parameters,
        "cosine": last.error.cosine,
        "error": last.error.relative,
        "own": max(x.own.relative for x in deep),
        "format": max(_of_the_format(x) for x in deep),
        "drift": [deep[len(deep) * part // 4].error.relative for part in (1, 2, 3)],
        "host": [[f.op, f.calls] for f in report.fallbacks],
        "card_us": report.card_us,
    }


def _of_the_format(layer: Layer) -> float:
    return layer.own.relative / layer.owed if layer.owed else 0.0


def page(rows: Sequence[Row]) -> str:
    lines = [HEAD, f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS), *map(_line, rows)]
    there = {r["model"] for r in rows}
    lacking = [name for name in STREAMED if name not in there]
    lines += ["", f"Not measured: {', '.join(lacking)}."] if lacking else []
    return "\n".join(lines) + "\n"


def _line(r: Row) -> str:
    host = ", ".join(f"{op} {calls}" for op, calls in r["host"]) or "none"
    layers = f"{r['layers']} of {priority.STREAMED[r['model']].layers}"
    cells = (
        f"{r['model']}, {r['mode']}", layers, f"{r['parameters'] / 1e6:.0f} M", f"{r['cosine']:.6f}",
        f"{r['error']:.1e}", f"{r['own']:.1e}", f"{r['format']:.2f}", ", ".join(f"{d:.1e}" for d in r["drift"]), host,
        f"{r['card_us'] / 1e3:.2f} ms",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
