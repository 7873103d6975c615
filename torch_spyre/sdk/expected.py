# SPDX-License-Identifier: Apache-2.0
"""The tests of a checkout against a list of those that need not pass, and against the run before. Imports no torch.

The list is a TOML file; the first entry that fits a test decides, and a test that none fits must pass:

    [[test]]
    name = "tests/inductor/*::*round_trip*"  # a glob, or a list of globs, over what pytest calls the test; absent: any
    error = "start-address"                  # regular expression: fits only a test that fails with such a text
    verdict = "known gap"                    # or "not applicable"
    reason = "…"
    run = false                              # leave it out: it hangs, or takes the machine down

A run leaves a folder with `records.jsonl`, `table.md`, `table.json` and, from the second run on, `difference.md`.
"""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_spyre.errors import InvalidArgument

KNOWN_GAP, NOT_APPLICABLE = "known gap", "not applicable"
BAD = ("fail", "crash")
# `fails as marked`: the checkout itself expects it to fail (xfail).
CATEGORIES = ("pass", *BAD, KNOWN_GAP, NOT_APPLICABLE, "fails as marked", "skip", "not run")
_ORDER = ("crash", "fail", "not run", "fails as marked", "skip", "pass")  # what a plugin records, worst first
_KEYS = {"name", "error", "verdict", "reason", "run"}


Record = Mapping[str, str]


@dataclass(frozen=True)
class Entry:
    names: tuple[str, ...]
    error: str
    verdict: str
    reason: str
    run: bool

    def fits(self, test: str, error: str) -> bool:
        named = not self.names or any(fnmatch.fnmatchcase(test, name) for name in self.names)
        return named and (not self.error or re.search(self.error, error) is not None)


@dataclass(frozen=True)
class Outcome:
    """One test and what became of it."""

    test: str
    category: str
    reason: str = ""  # of the list's entry, or of the skip
    error: str = ""
    gap_closed: bool = False  # passes, though an entry without `error` names it


def load(path: Path) -> list[Entry]:
    try:
        data = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{path}: {error}") from None
    if strange := sorted(set(data) - {"test"}):
        raise InvalidArgument(f"{path}: unknown {', '.join(strange)}; a list has [[test]] entries only")
    return [_entry(table, f"{path}: entry {n + 1}") for n, table in enumerate(data.get("test", []))]


def _entry(table: Mapping[str, object], where: str) -> Entry:
    if strange := sorted(set(table) - _KEYS):
        raise InvalidArgument(f"{where}: unknown {', '.join(strange)}; known are {', '.join(sorted(_KEYS))}")
    name, error, run = table.get("name", []), str(table.get("error", "")), bool(table.get("run", True))
    names = (name,) if isinstance(name, str) else tuple(map(str, name if isinstance(name, list) else []))
    verdict, reason = str(table.get("verdict", "")), str(table.get("reason", ""))
    if verdict not in (KNOWN_GAP, NOT_APPLICABLE):
        raise InvalidArgument(f'{where}: verdict is {verdict!r}; give "{KNOWN_GAP}" or "{NOT_APPLICABLE}"')
    if not reason:
        raise InvalidArgument(f"{where}: a test that need not pass needs a reason")
    if not (names or error):
        raise InvalidArgument(f"{where}: give a name, an error, or both; this one would fit every test")
    if not run and (error or not names):
        raise InvalidArgument(f"{where}: run = false leaves out tests by name; it takes no error")
    try:
        re.compile(error)
    except re.error as fault:
        raise InvalidArgument(f"{where}: {error!r} is no regular expression: {fault}") from None
    return Entry(names, error, verdict, reason, run)


def left_out(entries: Sequence[Entry]) -> list[str]:
    return [name for entry in entries if not entry.run for name in entry.names]


def outcomes(entries: Sequence[Entry], lines: Sequence[str]) -> list[Outcome]:
    """Enters: the list, and what the plugin recorded. Leaves: each test once, by name; of several ranks, the worst."""
    records: dict[str, dict[str, Record]] = {}  # test → rank → the last record
    for line in lines:
        record = json.loads(line)
        for test in record.get("selected", ()):
            records.setdefault(test, {}).setdefault(record["rank"], {"outcome": "not run"})
        if "test" in record:
            started = record["outcome"] == "started"
            records.setdefault(record["test"], {})[record["rank"]] = {"outcome": "not run"} if started else record
    return [_judged(entries, test, _worst(by_rank.values())) for test, by_rank in sorted(records.items())]


def _worst(records: Iterable[Record]) -> Record:
    return min(records, key=lambda record: _ORDER.index(record["outcome"]))


def _judged(entries: Sequence[Entry], test: str, record: Record) -> Outcome:
    outcome, error = record["outcome"], record.get("error", "")
    if outcome == "pass":
        named = next((e for e in entries if not e.error and e.fits(test, "")), None)
        return Outcome(test, "pass", named.reason if named else "", gap_closed=named is not None)
    if outcome not in BAD:
        return Outcome(test, outcome, error)
    entry = next((e for e in entries if e.fits(test, error)), None)
    return Outcome(test, entry.verdict, entry.reason, error) if entry else Outcome(test, outcome, "", error)


def difference(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, list[str]]:
    """Test → category of two runs. Only tests that both have run count as changed."""
    both = sorted(t for t in old.keys() & new.keys() if "not run" not in (old[t], new[t]))
    return {
        "newly failing": [t for t in both if new[t] in BAD and old[t] not in BAD],
        "newly passing": [t for t in both if new[t] == "pass" and old[t] != "pass"],
        "newly known gap or not applicable": [
            t for t in both if new[t] != old[t] and new[t] in (KNOWN_GAP, NOT_APPLICABLE)
        ],
        "new tests that fail": sorted(t for t in new.keys() - old.keys() if new[t] in BAD),
    }


def counts(found: Sequence[Outcome]) -> dict[str, int]:
    count = Counter(outcome.category for outcome in found)
    return {category: count[category] for category in CATEGORIES if count[category]}


def markdown(found: Sequence[Outcome], title: str) -> str:
    files = sorted({outcome.test.partition("::")[0] for outcome in found})
    text = [f"# {title}", "", f"| file | {' | '.join(CATEGORIES)} |", "|---|" + "---:|" * len(CATEGORIES)]
    for file in [*files, ""]:
        count = Counter(o.category for o in found if file in ("", o.test.partition("::")[0]))
        text.append(f"| {file or '**all**'} | {' | '.join(str(count[c]) for c in CATEGORIES)} |")
    for verdict, heading in ((KNOWN_GAP, "Known gaps"), (NOT_APPLICABLE, "Not applicable")):
        reasons = Counter(o.reason for o in found if o.category == verdict)
        text += ["", f"## {heading}", "", *(f"- {number}: {reason}" for reason, number in reasons.most_common())]
    bad = [o for o in found if o.category in BAD]
    text += ["", "## Failures", "", *(f"- {o.category}: `{o.test}`: {_last_line(o.error)}" for o in bad)]
    closed = [o for o in found if o.gap_closed]
    text += ["", "## Pass though the list names them", "", *(f"- `{o.test}`: {o.reason}" for o in closed), ""]
    return "\n".join(text)


def _last_line(text: str) -> str:
    """pytest marks the lines of the exception with E."""
    lines = [line for line in text.splitlines() if line.strip()]
    marked = [line[1:].strip() for line in lines if line.startswith("E ")]
    return next(iter([*marked, *reversed(lines)]), "")[:200].replace("|", "\\|")


class Runs:
    """The folders of the runs of one checkout: `1`, `2`, …"""

    def __init__(self, place: Path) -> None:
        self.place = place

    def begin(self) -> Path:
        self.place.mkdir(parents=True, exist_ok=True)
        while True:
            folder = self.place / str(max(self._numbers(), default=0) + 1)
            try:
                folder.mkdir()
            except FileExistsError:  # another run has taken it just now
                continue
            return folder

    def before(self, folder: Path) -> Path | None:
        """The last run that has a table."""
        earlier = [
            n for n in self._numbers() if n < int(folder.name) and (self.place / str(n) / "table.json").is_file()
        ]
        return self.place / str(max(earlier)) if earlier else None

    def _numbers(self) -> list[int]:
        return [int(path.name) for path in self.place.iterdir() if path.name.isdecimal()]


def write(folder: Path, found: Sequence[Outcome], title: str, before: Path | None) -> dict[str, list[str]]:
    """Writes the tables; what has changed since the run before."""
    tests = {outcome.test: outcome.category for outcome in found}
    (folder / "table.md").write_text(markdown(found, title))
    (folder / "table.json").write_text(json.dumps({"total": counts(found), "tests": tests}, indent=1) + "\n")
    if before is None:
        return {}
    changes = difference(json.loads((before / "table.json").read_text())["tests"], tests)
    text = [f"# Difference to run {before.name}", ""]
    for name, names in changes.items():
        text += [f"## {name}: {len(names)}", "", *(f"- `{test}`" for test in names), ""]
    (folder / "difference.md").write_text("\n".join(text))
    return changes
