# SPDX-License-Identifier: Apache-2.0
"""``python -m torch_spyre.numerics.table > docs/model-table.md``: the priority models on the card against the CPU.

Real widths take a quarter of an hour or more; ``--rows FILE`` keeps what is measured, so that a stopped run goes on.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_spyre.errors import SpyreError
from torch_spyre.numerics import models, priority
from torch_spyre.numerics.models import MODES, Outcome
from torch_spyre.numerics.priority import Priority

Row = dict[str, Any]

_SHOWN = {
    "hidden_size": "width", "n_embd": "width", "d_model": "width",
    "num_attention_heads": "heads", "n_head": "heads", "encoder_attention_heads": "heads",
    "num_key_value_heads": "KV heads", "head_dim": "head", "intermediate_size": "MLP", "encoder_ffn_dim": "MLP",
    "num_local_experts": "experts", "num_experts_per_tok": "chosen", "mamba_n_heads": "Mamba heads",
    "mamba_d_state": "state", "vocab_size": "vocabulary", "image_size": "image", "patch_size": "patch",
    "max_source_positions": "source positions", "sliding_window": "window", "local_attention": "window",
    "mamba_chunk_size": "chunk",
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_spyre.numerics.table", description=__doc__)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(priority.PRIORITY)} (default all)")
    parser.add_argument("--size", choices=("tiny", "real"), default="real", help="widths (default real)")
    parser.add_argument("--modes", default=",".join(MODES), help="eager, compiled or both (default)")
    parser.add_argument("--rows", type=Path, help="JSON file with rows measured before; new ones are added")
    args = parser.parse_args(argv)
    try:
        chosen = [priority.find(name) for name in args.models] or list(priority.PRIORITY.values())
        print(page(measure(chosen, args.size, args.modes.split(","), args.rows), chosen, args.size), end="")
    except SpyreError as error:
        print(f"table: {error}", file=sys.stderr)
        return 2
    return 0


def measure(chosen: Sequence[Priority], size: str, modes: Sequence[str], kept: Path | None = None) -> list[Row]:
    rows: list[Row] = json.loads(kept.read_text()) if kept is not None and kept.exists() else []
    for model in chosen:
        for mode in modes:
            if any((r["name"], r["mode"], r["size"]) == (model.name, mode, size) for r in rows):
                continue
            print(f"{model.name}, {mode}", file=sys.stderr, flush=True)
            rows.append(row(models.compare(model, mode, size), size))
            if kept is not None:
                kept.write_text(json.dumps(rows, indent=1))
            gc.collect()
    return [r for r in rows if r["size"] == size and r["mode"] in modes and any(r["name"] == m.name for m in chosen)]


def row(o: Outcome, size: str) -> Row:
    return {
        "name": o.name,
        "mode": o.mode,
        "size": size,
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

Printed by `python -m torch_spyre.numerics.table`. Each model is built by transformers from its published configuration,
with random weights (variance 1/fan-in, rounded to the card's format first) and few layers, and run on the card in fp16
and on the CPU in fp32 with the same weights: two sequences of 41 tokens; a decoder takes 40 of them into a static cache
and decodes one. Layers are of the same kinds as in the whole model; what else is smaller than published is said below.

* cosine: of the worst row of logits (hidden states for a vision tower).
* rms: error of all values relative to their root mean square; "of the format": divided by the same error of a CPU fp32
  run in which every op's result is rounded to the card's format. About 1 means that nothing but the format is at work.
* max: the largest error, in steps of the format at the largest value.
* argmax: rows whose largest logit is the same one. Random logits are close together; a trained model's are not.
* flips: tokens that chose other experts; they are left out of the errors, and each must be a near tie.
* host: ops that ran on the host, from `torch_spyre.report()`.
* card: the device clock, of one pass with its decode step.
"""


def page(rows: Sequence[Row], chosen: Sequence[Priority], size: str) -> str:
    columns = "model mode layers parameters cosine rms of_the_format max argmax flips host graphs card".split()
    lines = [HEAD, f"| {' | '.join(columns).replace('_', ' ')} |", "|" + "---|" * len(columns)]
    lines += [_line(r) for r in rows]
    failed = [f"* {r['name']}, {r['mode']}: {p}" for r in rows for p in r["problems"]]
    if failed:
        lines += ["", "Outside the bounds of `tests/models/test_priority.py`:", "", *failed]
    lines += ["", "## Configurations", "", "| model | published | run with |", "|---|---|---|"]
    lines += [_figures(m, size) for m in chosen]
    return "\n".join(lines) + "\n"


def _line(r: Row) -> str:
    host = ", ".join(f"{op} {calls}" for op, calls in r["fallbacks"]) or "none"
    published = priority.find(r["name"]).layers
    cells = (
        r["name"], r["mode"], f"{r['layers']} of {published}", f"{r['parameters'] / 1e6:.1f} M", f"{r['cosine']:.6f}",
        f"{r['rms']:.1e}", f"{r['format']:.2f}", f"{r['units']:.1f}", f"{r['argmax'][0]}/{r['argmax'][1]}",
        str(len(r["flips"])), host, str(r["graphs"]) if r["mode"] == "compiled" else "–", _time(r["card_us"]),
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _time(us: float) -> str:
    return f"{us / 1e3:.2f} ms" if us >= 1000 else f"{us:.0f} µs"


def _figures(model: Priority, size: str) -> str:
    shown = [f"{model.layers} layers"]
    shown += [f"{_SHOWN[k]} {v}" for k, v in model.published.items() if k in _SHOWN and v is not None]
    changed = model.tiny if size == "tiny" else model.real
    smaller = [f"{_SHOWN[k]} {v}" for k, v in changed.items() if k in _SHOWN and model.published.get(k) != v]
    return f"| {model.name} | {', '.join(shown)} | {', '.join(smaller) or 'as published'} |"


if __name__ == "__main__":
    sys.exit(main())
