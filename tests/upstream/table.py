# SPDX-License-Identifier: Apache-2.0
"""The committed table op_groups.json: one row per op and dtype, with the reason for each gap."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from groups import GAPS, MAX_SAMPLES, case_name
from samples import Outcome, check_sample, samples

from torch_spyre.ops import fallbacks

PATH = Path(__file__).with_name("op_groups.json")


@dataclass
class Row:
    group: str
    op: str
    dtype: str
    samples: int
    passed: int
    host: list[str]  # ops that ran on the CPU
    gap: str = ""

    @property
    def good(self) -> bool:
        return self.passed == self.samples


def measure(group: str, op: Any, dtype: torch.dtype, device: str, limit: int = MAX_SAMPLES) -> tuple[Row, Outcome]:
    outcome = Outcome()
    fallbacks.reset()
    for sample in samples(op, dtype, limit):
        result = check_sample(op, group, sample, device)
        if result is not False:
            outcome.add(result)
    host = sorted(row.op for row in fallbacks.report())
    gap = why(outcome.reasons)
    name = str(dtype).removeprefix("torch.")
    return Row(group, case_name(op), name, outcome.samples, outcome.passed, host, gap), outcome


def why(reasons: list[str]) -> str:
    """The known reasons of the failed samples, else the messages themselves."""
    known = {text: next((why for part, why in GAPS if part in text), text) for text in reasons}
    return "; ".join(sorted(set(known.values())))


def load() -> dict[tuple[str, str], Row]:
    rows = [Row(**row) for row in json.loads(PATH.read_text())["rows"]] if PATH.exists() else []
    return {(row.op, row.dtype): row for row in rows}


def save(rows: list[Row]) -> None:
    """One line per row, so that a change shows as the lines it changes."""
    lines = [json.dumps(asdict(row)) for row in sorted(rows, key=lambda r: (r.group, r.op, r.dtype))]
    head = f'{{"torch": "{torch.__version__}", "rows": [\n'
    PATH.write_text(head + ",\n".join(lines) + "\n]}\n")


def summary(rows: list[Row]) -> str:
    lines = ["| group | op x dtype | pass | | samples | pass | |", "|---|---|---|---|---|---|---|"]
    for group in sorted({row.group for row in rows}):
        mine = [row for row in rows if row.group == group and row.samples]
        good, n = sum(row.good for row in mine), len(mine)
        passed, total = sum(row.passed for row in mine), sum(row.samples for row in mine)
        lines.append(f"| {group} | {n} | {good} | {good / n:.1%} | {total} | {passed} | {passed / total:.1%} |")
    return "\n".join(lines)
