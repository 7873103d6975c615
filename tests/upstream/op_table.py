# SPDX-License-Identifier: Apache-2.0
"""The committed table op_table.json: one row per op, dtype and mode, with the reason for each gap."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from groups import case_name
from op_checks import Refused, check_backward, check_forward
from op_list import BACKWARD_SAMPLES, CLASSES, GAPS, SAMPLES, infos, runs
from samples import describe, samples

from torch_spyre.ops import fallbacks

PATH = Path(__file__).with_name("op_table.json")


@dataclass
class Row:
    """Samples run and passed, forward and backward; `host` names aten ops that ran on the CPU."""

    kind: str
    op: str
    dtype: str
    mode: str
    forward: list[int] = field(default_factory=lambda: [0, 0])  # run, passed
    backward: list[int] = field(default_factory=lambda: [0, 0])
    host: list[str] = field(default_factory=list)
    gap: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.op, self.dtype, self.mode

    @property
    def good(self) -> bool:
        return self.forward[0] == self.forward[1] and self.backward[0] == self.backward[1]


def measure(kind: str, op: Any, dtype: torch.dtype, mode: str, device: str, limit: int = 0) -> tuple[Row, list[str]]:
    row = Row(kind, case_name(op), str(dtype).removeprefix("torch."), mode)
    reasons: list[str] = []
    fallbacks.reset()
    differentiable = op.supports_autograd and dtype in (torch.float16, torch.float32)
    # op_db has simple samples first: where only some are differentiated, it is the last ones.
    for sample in reversed(list(samples(op, dtype, limit or SAMPLES[mode]))):
        try:
            check_forward(op, sample, device, mode)
            row.forward = [row.forward[0] + 1, row.forward[1] + 1]
        except Refused:
            continue
        except Exception as error:
            row.forward[0] += 1
            reasons.append(describe(error))
            continue
        if not differentiable or row.backward[0] == BACKWARD_SAMPLES[mode]:
            continue
        try:
            if check_backward(op, sample, device, mode):
                row.backward = [row.backward[0] + 1, row.backward[1] + 1]
        except Exception as error:
            row.backward[0] += 1
            reasons.append(f"backward: {describe(error)}")
    row.host = sorted(r.op for r in fallbacks.report())
    row.gap = why(row, reasons)
    return row, reasons


def why(row: Row, reasons: list[str]) -> str:
    """The known reasons of the failed samples, else the messages themselves."""

    def known(text: str) -> str:
        found = (
            gap for op, dtype, part, gap in GAPS if op in ("", row.op) and dtype in ("", row.dtype) and part in text
        )
        return next(found, text)

    return "; ".join(sorted({known(text) for text in reasons}))[:600]


def wanted() -> set[tuple[str, str, str]]:
    """The keys of a whole table."""
    return {
        (case_name(op), str(dtype).removeprefix("torch."), mode)
        for kind in CLASSES
        for op in infos(kind)
        for dtype, mode in runs(op)
    }


def load(path: Path = PATH) -> dict[tuple[str, str, str], Row]:
    rows = [Row(**row) for row in json.loads(path.read_text())["rows"]] if path.exists() else []
    return {row.key: row for row in rows}


def save(rows: list[Row], path: Path = PATH) -> None:
    """One line per row, so that a change shows as the lines it changes."""
    lines = [json.dumps(asdict(row)) for row in sorted(rows, key=lambda r: (r.kind, *r.key))]
    path.write_text(f'{{"torch": "{torch.__version__}", "rows": [\n' + ",\n".join(lines) + "\n]}\n")


def summary(rows: list[Row]) -> str:
    lines = [
        "| class | mode | forward | pass | backward | pass | rows with host ops |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(row.kind for row in rows):
        for mode in ("eager", "compiled"):
            mine = [row for row in rows if (row.kind, row.mode) == (kind, mode)]
            counts = [[sum(getattr(r, way)[i] for r in mine) for i in (0, 1)] for way in ("forward", "backward")]
            shown = " | ".join(f"{run} | {passed / run:.1%}" if run else "0 | " for run, passed in counts)
            lines.append(f"| {kind} | {mode} | {shown} | {sum(bool(r.host) for r in mine)} |")
    return "\n".join(lines)
