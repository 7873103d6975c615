# SPDX-License-Identifier: Apache-2.0
"""What nightly runs found: one line of JSON for each stage of each night, and the tables made of them."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / ".nightly"
FILE = FOLDER / "history.jsonl"
NIGHTS = 10  # shown of each stage


@dataclass(frozen=True)
class Result:
    stage: str
    commit: str
    date: str
    outcome: str  # passed, failed, stopped
    minutes: float
    passed: int = 0
    failed: int = 0

    @classmethod
    def of(cls, stage: str, commit: str, outcome: str, seconds: float, log: str) -> Result:
        passed, failed = counts(log)
        date = time.strftime("%Y-%m-%d", time.gmtime())
        return cls(stage, commit, date, outcome, round(seconds / 60, 1), passed, failed)

    @property
    def rate(self) -> str:
        """Share of the cases that passed; a dash where the stage counts none."""
        cases = self.passed + self.failed
        return f"{self.passed / cases:.2%}" if cases else "–"

    def line(self) -> str:
        counted = f", {self.passed} passed, {self.failed} failed ({self.rate})" if self.passed + self.failed else ""
        return f"{self.outcome} in {self.minutes:.1f} min{counted}"


def counts(log: str) -> tuple[int, int]:
    """Cases that passed and failed, from the last summary in a log: pytest's, or `N cases, M failed`."""
    passed = failed = 0
    for line in reversed(log.splitlines()):
        own = re.search(r"(\d+) (?:cases|seeds|rows), (\d+) failed", line)
        if own:
            return int(own[1]) - int(own[2]), int(own[2])
        found = dict((word, int(n)) for n, word in re.findall(r"(\d+) (passed|failed|error)", line))
        if found and re.search(r" in \d", line):
            passed, failed = found.get("passed", 0), found.get("failed", 0) + found.get("error", 0)
            break
    return passed, failed


def load() -> list[Result]:
    if not FILE.exists():
        return []
    return [Result(**json.loads(line)) for line in FILE.read_text().splitlines()]


def add(result: Result) -> None:
    FOLDER.mkdir(exist_ok=True)
    with FILE.open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def last_commit(other_than: str) -> str | None:
    """The commit of the last night that was not this one."""
    return next((r.commit for r in reversed(load()) if r.commit != other_than), None)


def table(results: list[Result]) -> str:
    """This night by stage, with the outcomes of the nights before."""
    earlier = load()
    lines = [f"{'stage':12} {'outcome':8} {'passed':>7} {'failed':>7} {'rate':>8} {'minutes':>8}  nights before"]
    for r in results:
        before = [e for e in earlier if e.stage == r.stage][:-1][-NIGHTS:]
        marks = "".join({"passed": ".", "failed": "F", "stopped": "S"}[e.outcome] for e in before)
        lines.append(f"{r.stage:12} {r.outcome:8} {r.passed:7} {r.failed:7} {r.rate:>8} {r.minutes:8.1f}  {marks}")
    passed, failed = sum(r.passed for r in results), sum(r.failed for r in results)
    whole = Result("all", "", "", "", sum(r.minutes for r in results), passed, failed)
    lines.append(f"{'together':12} {'':8} {passed:7} {failed:7} {whole.rate:>8} {whole.minutes:8.1f}")
    return "\n".join(lines)
