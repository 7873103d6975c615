# SPDX-License-Identifier: Apache-2.0
"""Tables of a run, and its difference to another.

Each test falls into one category: `pass`; `fail`, `crash` or `timeout` (it must pass and did not); `known gap` and
`not applicable` (with the reason of the rule); `skip` (the file skips it itself); `not run` yet.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import KNOWN_GAP, MUST_PASS, NOT_APPLICABLE, Config, TestId
from .results import Record, Results

CATEGORIES = ("pass", "fail", "crash", "timeout", KNOWN_GAP, NOT_APPLICABLE, "skip", "not run")
BAD = ("fail", "crash", "timeout")


@dataclass(frozen=True)
class Line:
    """One test and what became of it."""

    test: TestId
    category: str
    reason: str = ""  # of the rule, or of the skip
    error: str = ""
    gap_closed: bool = False  # passes, though a rule calls it a known gap


def judge(config: Config, test: TestId, record: Record | None) -> Line:
    rule = config.rule_before(test)
    if rule.verdict == NOT_APPLICABLE:
        return Line(test, NOT_APPLICABLE, rule.reason)
    if record is None:
        return Line(test, KNOWN_GAP, rule.reason) if not rule.run else Line(test, "not run")
    outcome, error = record["outcome"], record.get("error", "")
    if outcome == "pass":
        return Line(test, "pass", rule.reason, gap_closed=rule.verdict == KNOWN_GAP)
    if outcome == "skip":
        return Line(test, "skip", record.get("reason", ""))
    rule = config.rule_after(test, error, record.get("traceback", ""))
    category = {"error": "fail"}.get(outcome, outcome) if rule.verdict == MUST_PASS else rule.verdict
    return Line(test, category, rule.reason, error)


def lines(config: Config, results: Results, files: Iterable[str]) -> list[Line]:
    found = []
    for file in files:
        entry = results.files.get(file, {})
        if why := entry.get("not_runnable"):
            test = TestId(file, "", "")
            found.append(judge(config, test, {"outcome": "fail", "error": why}))
        for test in results.tests_of(file):
            found.append(judge(config, test, results.records.get(test)))
    return found


def rate(count: Counter[str], *, gaps: bool) -> float | None:
    """Passed of what applies; with or without the known gaps in what applies."""
    applies = count["pass"] + sum(count[c] for c in BAD) + (count[KNOWN_GAP] if gaps else 0)
    return count["pass"] / applies if applies else None


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"


def _row(name: str, count: Counter[str]) -> str:
    figures = " | ".join(str(count[c]) for c in CATEGORIES)
    return f"| {name} | {figures} | {_percent(rate(count, gaps=True))} | {_percent(rate(count, gaps=False))} |"


def markdown(found: list[Line], title: str) -> str:
    head = " | ".join(CATEGORIES)
    text = [
        f"# {title}",
        "",
        "The last two columns: passed of what applies; the same without the known gaps.",
        "",
        f"| file, class | {head} | of all | of the rest |",
        "|---|" + "---:|" * (len(CATEGORIES) + 2),
    ]
    for file in sorted({line.test.file for line in found}):
        here = [line for line in found if line.test.file == file]
        text.append(_row(f"**{file}**", Counter(line.category for line in here)))
        for cls in sorted({line.test.cls for line in here}):
            text.append(_row(cls, Counter(line.category for line in here if line.test.cls == cls)))
    text += [_row("**all**", Counter(line.category for line in found)), ""]
    for category, name in ((KNOWN_GAP, "Known gaps"), (NOT_APPLICABLE, "Not applicable")):
        reasons = Counter(line.reason for line in found if line.category == category)
        text += [f"## {name}", "", *(f"- {n}: {reason}" for reason, n in reasons.most_common()), ""]
    bad = [line for line in found if line.category in BAD]
    text += ["## Failures", "", *(f"- {line.category}: `{line.test}`: {_first_line(line.error)}" for line in bad), ""]
    closed = [line for line in found if line.gap_closed]
    text += ["## Known gaps that pass", "", *(f"- `{line.test}`: {line.reason}" for line in closed), ""]
    return "\n".join(text)


def _first_line(text: str) -> str:
    line = next(iter(text.splitlines()), "")
    return line[:160].replace("|", "\\|")


def as_json(found: list[Line]) -> dict[str, Any]:
    def counts(some: list[Line]) -> dict[str, Any]:
        count = Counter(line.category for line in some)
        rates = {"rate": rate(count, gaps=True), "rate_without_gaps": rate(count, gaps=False)}
        return {**{c: count[c] for c in CATEGORIES}, **rates}

    files = {}
    for file in sorted({line.test.file for line in found}):
        here = [line for line in found if line.test.file == file]
        classes = {cls: counts([x for x in here if x.test.cls == cls]) for cls in sorted({x.test.cls for x in here})}
        files[file] = {"total": counts(here), "classes": classes}
    skips = Counter(line.reason for line in found if line.category == "skip")
    return {
        "total": counts(found),
        "files": files,
        "skip_reasons": dict(skips.most_common()),
        "tests": {str(line.test): line.category for line in found},
    }


def difference(old: dict[str, str], new: dict[str, str]) -> dict[str, list[str]]:
    """What changed between two runs: tests by name → category. A file that only one of them ran has not changed."""
    files = {test.partition("::")[0] for test in old} & {test.partition("::")[0] for test in new}
    old, new = ({t: c for t, c in run.items() if t.partition("::")[0] in files} for run in (old, new))
    both = sorted(old.keys() & new.keys())
    return {
        "newly failing": [t for t in both if new[t] in BAD and old[t] not in BAD and old[t] != "not run"],
        "newly passing": [t for t in both if new[t] == "pass" and old[t] in (*BAD, KNOWN_GAP)],
        "newly known gap or not applicable": [
            t for t in both if new[t] in (KNOWN_GAP, NOT_APPLICABLE) and old[t] in ("pass", *BAD)
        ],
        "new tests that fail": sorted(t for t in new.keys() - old.keys() if new[t] in BAD),
        "gone": sorted(old.keys() - new.keys()),
    }


def difference_markdown(changes: dict[str, list[str]], against: str) -> str:
    text = [f"# Difference to {against}", ""]
    for name, tests in changes.items():
        text += [f"## {name}: {len(tests)}", "", *(f"- `{t}`" for t in tests), ""]
    return "\n".join(text)


def write(folder: Path, found: list[Line], title: str, last: Path | None) -> dict[str, list[str]]:
    """Writes table.md, table.json and, if there is a run before, difference.md; returns the difference."""
    table = as_json(found)
    (folder / "table.md").write_text(markdown(found, title))
    (folder / "table.json").write_text(json.dumps(table, indent=1) + "\n")
    if last is None:
        return {}
    changes = difference(json.loads((last / "table.json").read_text())["tests"], table["tests"])
    (folder / "difference.md").write_text(difference_markdown(changes, last.name))
    return changes
