# SPDX-License-Identifier: Apache-2.0
"""The process that runs the tests of one file: `python worker.py JOB.json EVENTS_FD`.

It imports the file for the device, sends the names of its tests, reads from its standard input the ones to run, and
sends an event when a test ends. Events are lines of JSON.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import json
import os
import re
import signal
import sys
import time
import traceback
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any

TEXT_BYTES = 6000  # of an error's message and of its traceback that are kept, each


class Events:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, **event: Any) -> None:
        line = memoryview(json.dumps(event).encode() + b"\n")
        while line:
            line = line[os.write(self._fd, line) :]


class Result(unittest.TestResult):
    """Sends the outcome of each test. Of several faults of one test, the first counts."""

    def __init__(self, events: Events, recover: str) -> None:
        super().__init__()
        self._events = events
        self._recover = recover
        self._outcome: dict[str, Any] = {}
        self._started = 0.0
        self.class_fault: dict[str, Any] = {}  # of setUpClass or tearDownClass

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._outcome = {}
        self._started = time.monotonic()

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        outcome = self._outcome or {"outcome": "error", "error": "the test ended without an outcome"}
        event = {"seconds": round(time.monotonic() - self._started, 3), **outcome}
        if outcome["outcome"] in ("fail", "error"):
            self._events.send(fault=event)  # known even if the device does not recover
            self._recover_device()
        self._events.send(end=event)

    def stop(self) -> None:
        """PyTorch stops a suite whose device is lost; here the supervisor decides."""

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._record(test, {"outcome": "pass"})

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._record(test, {"outcome": "pass", "expected_failure": True})

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._record(test, {"outcome": "fail", "error": "passes, though the file expects it to fail"})

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._record(test, {"outcome": "skip", "reason": str(reason)[:TEXT_BYTES]})

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._record(test, {"outcome": "fail", **_described(err)})

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._record(test, {"outcome": "error", **_described(err)})

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            kind = "fail" if issubclass(err[0], test.failureException) else "error"
            self._record(test, {"outcome": kind, **_described(err)})

    def _record(self, test: Any, outcome: dict[str, Any]) -> None:
        if not isinstance(test, unittest.TestCase):  # unittest's stand-in for setUpClass
            self.class_fault = self.class_fault or outcome
        elif not self._outcome or (self._outcome["outcome"] == "pass" and outcome["outcome"] != "pass"):
            self._outcome = outcome

    def _recover_device(self) -> None:
        try:
            exec(self._recover, {name: sys.modules[name] for name in ("torch",) if name in sys.modules})
        except Exception:
            traceback.print_exc()


def _described(err: Any) -> dict[str, str]:
    """The exception, and those it was raised from, as `Type: message`; and the end of the traceback."""
    chain, fault = [], err[1]
    while fault is not None and len(chain) < 8:
        chain.append(f"{type(fault).__name__}: {fault}"[:TEXT_BYTES])
        fault = fault.__cause__
    where = "".join(traceback.format_exception(*err, chain=False))
    return {"error": "\n".join(chain)[:TEXT_BYTES], "traceback": where[-TEXT_BYTES:]}


def import_file(path: Path, test_root: Path) -> ModuleType:
    for folder in (test_root, path.parent):
        sys.path.insert(0, str(folder))
    sys.argv = [str(path)]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def set_names(values: dict[str, Any]) -> None:
    """Sets module attributes by their full names; a list that is there is filled in place, as others hold it too."""
    for name, value in values.items():
        owner, _, attribute = name.rpartition(".")
        module = importlib.import_module(owner)
        present = getattr(module, attribute)
        if isinstance(present, list) and isinstance(value, list):
            present[:] = value
        else:
            setattr(module, attribute, value)


def widen_tolerances(tolerance: dict[str, list[float]]) -> None:
    """Makes the default tolerances of torch.testing at least these."""
    if not tolerance:
        return
    import torch
    from torch.testing import _comparison

    table = _comparison._DTYPE_PRECISIONS
    for dtype, bounds in tolerance.items():
        key = getattr(torch, dtype)
        table[key] = tuple(max(old, new) for old, new in zip(table[key], bounds, strict=True))


def classes_of(module: ModuleType, device: str) -> dict[str, type[unittest.TestCase]]:
    """The test classes that the file defines or instantiates, by name.

    PyTorch calls the first class of a process that it instantiates …PRIVATEUSE1 and the others by the device's name;
    here all have the device's name.
    """
    found = {}
    for name, value in sorted(vars(module).items()):
        if isinstance(value, type) and issubclass(value, unittest.TestCase) and getattr(value, "__test__", True):
            if unittest.defaultTestLoader.getTestCaseNames(value):
                found[re.sub("PRIVATEUSE1$", device.upper(), name)] = value
    return found


def run_class(cls: type[unittest.TestCase], tests: list[str], result: Result, events: Events) -> None:
    result.class_fault = {}
    before = result.testsRun
    unittest.TestSuite([cls(test) for test in tests]).run(result)
    if result.class_fault and result.testsRun == before:
        for _ in tests:  # the class could not be set up, so none of them started
            events.send(end={"seconds": 0, **result.class_fault})


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    events = Events(int(sys.argv[2]))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the supervisor asks where a hanging test is
    try:
        set_names(job["set"])
        widen_tolerances(job["tolerance"])
        module = import_file(Path(job["path"]), Path(job["test_root"]))
    except unittest.SkipTest as skip:
        events.send(not_runnable=f"the file skips itself: {skip}")
        return
    except BaseException as fault:
        traceback.print_exc()
        events.send(not_runnable=f"{type(fault).__name__}: {fault}"[:TEXT_BYTES])
        return
    classes = classes_of(module, job["device"])
    names = {name: unittest.defaultTestLoader.getTestCaseNames(cls) for name, cls in classes.items()}
    events.send(tests=[[name, test] for name in names for test in names[name]])
    wanted: dict[str, list[str]] = {}
    for cls, test in json.loads(sys.stdin.readline()):
        wanted.setdefault(cls, []).append(test)
    sys.stdin = open(os.devnull)
    result = Result(events, job["recover"])
    for cls, tests in wanted.items():
        run_class(classes[cls], tests, result, events)
    events.send(finished=True)  # whatever happens now has no test to blame


if __name__ == "__main__":
    main()
