# SPDX-License-Identifier: Apache-2.0
"""Requests and when they arrive: drawn, or read from a file."""

from __future__ import annotations

import csv
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_spyre.errors import InvalidArgument


@dataclass(frozen=True)
class Arrival:
    at: float  # seconds
    prompt: int  # tokens
    output: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at) and self.at >= 0):
            raise InvalidArgument(f"a request arrives at {self.at}: write seconds from 0 on")
        if self.prompt < 1 or self.output < 1:
            raise InvalidArgument(
                f"a request of {self.prompt} tokens with {self.output} to generate: both are positive"
            )


def drawn(count: int, rate: float, lengths: list[tuple[int, int]], seed: int) -> list[Arrival]:
    """`count` requests at `rate` per second on average, independently of one another; `inf`: all at once. Their lengths
    are drawn from `lengths`, pairs of prompt and output."""
    if count < 1:
        raise InvalidArgument(f"--requests {count}: at least one")
    if not rate > 0:
        raise InvalidArgument(f"--rate {rate}: requests per second are above 0 (inf: all at once)")
    numbers = random.Random(seed)
    at, found = 0.0, []
    for _ in range(count):
        found.append(Arrival(at, *numbers.choice(lengths)))
        at += numbers.expovariate(rate) if math.isfinite(rate) else 0.0
    return found


def from_trace(path: Path) -> list[Arrival]:
    """JSON lines ``{"at": seconds, "input": tokens, "output": tokens}``, in any order."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            found.append(Arrival(float(row["at"]), _whole(row["input"]), _whole(row["output"])))
        except (ValueError, KeyError, TypeError, InvalidArgument) as error:
            raise InvalidArgument(
                f'{path}:{number}: {line[:80]!r}: {error}; write {{"at": seconds, "input": tokens, "output": tokens}}'
            ) from None
    if not found:
        raise InvalidArgument(f"{path}: no requests")
    return sorted(found, key=lambda a: a.at)


def lengths_of(path: Path) -> list[tuple[int, int]]:
    """The columns `input` and `output` of a CSV file: a row for each request of a real service."""
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        if not {"input", "output"} <= set(rows.fieldnames or ()):
            raise InvalidArgument(f"{path}: columns {rows.fieldnames}; it needs input and output, in tokens")
        found = []
        for row in rows:
            try:
                found.append((_whole(row["input"]), _whole(row["output"])))
                Arrival(0, *found[-1])
            except (ValueError, TypeError, InvalidArgument) as error:
                raise InvalidArgument(f"{path}:{rows.line_num}: {error}") from None
    if not found:
        raise InvalidArgument(f"{path}: no requests")
    return found


def _whole(value: Any) -> int:
    number = int(value)
    if isinstance(value, float) and value != number:
        raise ValueError(f"{value} is not a whole number of tokens")
    return number
