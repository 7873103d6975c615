# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that writes down what becomes of each test, at once, so that a run that crashes is known up to there.

`spyre-sdk run --expected` copies this file into the environment of a checkout and names two files: SPYRE_SDK_RECORD
takes one JSON object a line, SPYRE_SDK_LEAVE_OUT holds {"names": [globs], "tests": [names]}, tests not to run. Imports
nothing of this project: the package of its name is the checkout's there. With pytest-xdist, the controller records, and
each worker leaves out the same tests. Under torchrun, each rank records.
"""

from __future__ import annotations

import fnmatch
import json
import os
from typing import Any

import pytest

Record = dict[str, Any]
_LENGTH = 20_000  # of an error's text


class Recorder:
    def __init__(self, path: str | None) -> None:
        self._path = path
        self._rank = os.environ.get("RANK", "0")
        self._present: dict[str, Record] = {}

    def _write(self, record: Record) -> None:
        """In one call, because several ranks append to the file."""
        if self._path:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, json.dumps({**record, "rank": self._rank}).encode() + b"\n")
            finally:
                os.close(file)

    @pytest.hookimpl(trylast=True)  # behind -k, -m and --deselect
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        with open(os.environ["SPYRE_SDK_LEAVE_OUT"], encoding="utf-8") as file:
            leave_out = json.load(file)
        names, tests = leave_out["names"], set(leave_out["tests"])
        left = [i for i in items if i.nodeid in tests or any(fnmatch.fnmatchcase(i.nodeid, n) for n in names)]
        if left:
            config.hook.pytest_deselected(items=left)
            items[:] = [item for item in items if item not in set(left)]
        self._write({"selected": [item.nodeid for item in items]})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write({"test": report.nodeid, "outcome": "fail", "error": _text(report.longrepr)})

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._present[nodeid] = {"test": nodeid, "outcome": "pass"}
        self._write({"test": nodeid, "outcome": "started"})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        record = self._present.setdefault(report.nodeid, {"test": report.nodeid, "outcome": "pass"})
        if report.failed:
            record |= {"outcome": "fail", "error": record.get("error", "") + _text(report.longrepr) + _told(report)}
            if report.when not in ("setup", "call", "teardown"):  # a worker of pytest-xdist has died: no more reports
                self._write(record | {"outcome": "crash"})
        elif hasattr(report, "wasxfail"):
            record |= {"outcome": "fails as marked" if report.skipped else "pass", "error": str(report.wasxfail)}
        elif report.skipped and record["outcome"] == "pass":
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else _text(report.longrepr)
            record |= {"outcome": "skip", "error": reason}

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if record := self._present.pop(nodeid, None):
            self._write(record)


def _text(value: object) -> str:
    """The end of it: that is where the exception stands."""
    return str(value)[-_LENGTH:]


def _told(report: pytest.TestReport) -> str:
    """What it wrote on stderr, where the compile command says why it refuses a kernel."""
    return f"\nstderr:\n{_text(report.capstderr)}" if report.capstderr else ""


def pytest_configure(config: pytest.Config) -> None:
    # Taken away: a pytest that a test starts records nothing.
    path = os.environ.pop("SPYRE_SDK_RECORD", None)
    if path or hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path), "spyre-sdk-recorder")
