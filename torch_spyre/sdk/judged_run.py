# SPDX-License-Identifier: Apache-2.0
"""Runs pytest in a checkout to the end, and says what is not as expected. Imports no torch.

A process that dies in a test costs that test only: the command is run again without the tests that are done.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_spyre.errors import InvalidArgument
from torch_spyre.sdk import expected
from torch_spyre.sdk.checkout import Checkout

_PLUGIN = "record_tests"
_STOPPED = (2, 3, 4)  # pytest's status when it was interrupted, has failed itself, or was called wrongly


def run(checkout: Checkout, entries: Sequence[expected.Entry], command: Sequence[str], place: Path) -> int:
    """Exit status 0: every test is as expected. 1: some are not. Another: the command's own."""
    checkout.prepare()
    folder = (runs := expected.Runs(place.resolve())).begin()
    status, lines = _recorded(checkout, entries, command, folder)
    if not lines:
        shutil.rmtree(folder)
        if status == 0:
            raise InvalidArgument(f"--expected is for pytest; {' '.join(command)} ran no test of it")
        return status
    found, before = expected.outcomes(entries, lines), runs.before(folder)
    changes = expected.write(folder, found, f"Tests of {checkout.folder.name}{_revision(checkout.folder)}", before)
    print(", ".join(f"{number} {category}" for category, number in expected.counts(found).items()) or "no test")
    for name, tests in changes.items():
        if tests:
            print(f"{len(tests)} {name} (against run {before.name if before else ''})")
    print(folder / "table.md")
    return status if status in _STOPPED else int(any(o.category in expected.BAD for o in found))


def _recorded(
    checkout: Checkout, entries: Sequence[expected.Entry], command: Sequence[str], folder: Path
) -> tuple[int, list[str]]:
    """What the plugin writes down, until a process comes to its end."""
    records, leave_out, plugins = folder / "records.jsonl", folder / "leave_out.json", folder / "plugin"
    plugins.mkdir()
    shutil.copy(Path(__file__).with_name(f"{_PLUGIN}.py"), plugins / f"spyre_sdk_{_PLUGIN}.py")
    environment = checkout.environment()
    environment |= {"SPYRE_SDK_RECORD": str(records), "SPYRE_SDK_LEAVE_OUT": str(leave_out)}
    # A file that cannot be imported fails, and the others run.
    options = f"-p spyre_sdk_{_PLUGIN} --continue-on-collection-errors"
    for name, word, joint in (("PYTHONPATH", str(plugins), os.pathsep), ("PYTEST_ADDOPTS", options, " ")):
        environment[name] = joint.join(filter(None, [word, environment.get(name)]))
    done: set[str] = set()
    while True:
        leave_out.write_text(json.dumps({"names": expected.left_out(entries), "tests": sorted(done)}))
        status = checkout.run_prepared(command, environment)
        lines = records.read_text().splitlines() if records.is_file() else []
        seen = [record for line in lines if "test" in (record := json.loads(line))]
        last = {(record["test"], record["rank"]): record["outcome"] for record in seen}
        died = [key for key, outcome in last.items() if outcome == "started"]
        if not died or status in _STOPPED:
            return status, lines
        text = f"the process ended in this test with status {status}"
        with records.open("a") as file:
            for test, rank in died:
                file.write(json.dumps({"test": test, "rank": rank, "outcome": "crash", "error": text}) + "\n")
        print(f"{', '.join(sorted({test for test, _ in died}))}: {text}; running the others", file=sys.stderr)
        done = {test for test, _ in last}


def _revision(folder: Path) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return f", {done.stdout.strip()}" if done.returncode == 0 else ""
