# SPDX-License-Identifier: Apache-2.0
"""What has been run: `results-*.jsonl`, one line for each finished test, and in `tests/` every test of every file.

A run has a folder of its own, named by the revision of what is tested; each shard appends to a file of its own. A line
holds the key of its test file (its bytes and its settings); lines whose key has changed are not results any more. Of
two lines about one test the later one counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from .config import FileSettings, TestId

Record = dict[str, Any]


def file_key(path: Path, settings: FileSettings) -> str:
    return hashlib.sha256(path.read_bytes() + settings.key().encode()).hexdigest()[:16]


class Results:
    def __init__(self, folder: Path, shard: tuple[int, int] = (1, 1)) -> None:
        self.folder = folder
        self._lines = folder / f"results-{shard[0]}-of-{shard[1]}.jsonl"
        self._index = folder / "tests"
        self.records: dict[TestId, Record] = {}
        self.files: dict[str, dict[str, Any]] = {}  # file → key, tests, and why it cannot be run
        self._read()

    def _read(self) -> None:
        self.files = {entry["file"]: entry for entry in map(_loaded, self._index.glob("*.json"))}
        lines = (line for path in self.folder.glob("results-*.jsonl") for line in path.read_text().splitlines())
        for record in sorted(filter(None, map(_parsed, lines)), key=lambda record: record["at"]):
            if record["key"] == self.files.get(record["file"], {}).get("key"):
                self.records[test_of(record)] = record

    def begin_file(self, file: str, key: str, again: Collection[str]) -> None:
        """Forgets results of another key, and those whose outcome is in `again`."""
        entry = self.files.setdefault(file, {"file": file, "key": key, "tests": [], "not_runnable": ""})
        if changed := entry["key"] != key:
            entry.update(key=key, tests=[], not_runnable="")
        for test in [t for t, r in self.records.items() if t.file == file and (changed or r["outcome"] in again)]:
            del self.records[test]
        self._save(entry)

    def add(self, record: Record, key: str) -> None:
        record = {"key": key, "at": time.time(), **record}
        self.records[test_of(record)] = record
        with self._lines.open("a+b") as file:
            if file.tell() and not _ends_line(file):
                file.write(b"\n")
            file.write(json.dumps(record).encode() + b"\n")

    def end_file(self, file: str, tests: list[TestId], not_runnable: str = "") -> None:
        self.files[file].update(tests=[[t.cls, t.name] for t in tests], not_runnable=not_runnable)
        self._save(self.files[file])

    def tests_of(self, file: str) -> list[TestId]:
        return [TestId(file, cls, name) for cls, name in self.files.get(file, {}).get("tests", [])]

    def _save(self, entry: dict[str, Any]) -> None:
        """In one step, so that a stopped run leaves the old or the new one. Runs of other files may write theirs."""
        self._index.mkdir(parents=True, exist_ok=True)
        path = self._index / (entry["file"].replace("/", ".") + ".json")
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(entry))
        new.replace(path)


def test_of(record: Record) -> TestId:
    return TestId(record["file"], record["cls"], record["name"])


def _loaded(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def _parsed(line: str) -> Record | None:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None  # the run was stopped in the middle of a line


def _ends_line(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"
