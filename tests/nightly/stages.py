# SPDX-License-Identifier: Apache-2.0
"""The stages of the nightly run, in order: what is quick and finds most comes first."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One suite. A command with `{minutes}` in it watches its own time; any other must end within it."""

    name: str
    what: str
    minutes: float
    command: tuple[str, ...]


def _stage(name: str, what: str, minutes: float, command: str) -> Stage:
    return Stage(name, what, minutes, tuple(shlex.split(command)))


_PYTEST = "{python} -m pytest -q -n 2 -m"
_SANITIZED = "{python} tests/sanitized.py"

STAGES = [
    _stage(
        "readme",
        "what a person pastes from README, into an empty environment",
        15,
        "{python} tests/docs/paste_readme.py",
    ),
    _stage("lint", "style, types, workflow files", 4, "make lint"),
    _stage("tests", "every test that is not slow", 26, f"{_PYTEST} 'not slow' tests"),
    _stage(
        "slow",
        "slow tests, those that waited longest",
        20,
        "{python} tests/nightly/sampled_tests.py --minutes {minutes}",
    ),
    _stage(
        "ops",
        "the op table, rows that waited longest",
        10,
        "{python} tests/upstream/make_op_table.py --minutes {minutes}",
    ),
    _stage(
        "graphs",
        "random graphs, new seeds",
        10,
        "{python} tests/support/graph_fuzz.py run {seed}0000: --minutes {minutes}",
    ),
    _stage(
        "mutations",
        "changed programs, KTIR texts, bundles and cache files, new seeds",
        8,
        "{python} tests/nightly/mutations.py --seed {seed} --minutes {minutes}",
    ),
    _stage(
        "faults",
        "every allocation, copy and launch of a SmolLM2 step fails once",
        6,
        "{python} -m pytest -q tests/models/test_failing_steps.py",
    ),
    _stage(
        "address",
        "random storages, views and checkpoints under ASan",
        10,
        f"{_SANITIZED} address tests/support/fuzz_storage.py --seed {{seed}} --minutes {{minutes}}",
    ),
    _stage(
        "undefined",
        "tests of the card and its fuzzer under UBSan",
        6,
        f"{_SANITIZED} undefined -m pytest -q -m 'not slow' tests/card",
    ),
    _stage(
        "thread",
        "streams, queues and host threads under TSan",
        6,
        f"{_SANITIZED} thread -m pytest -q tests/card -k 'streams or exec or memory or schedule'",
    ),
    _stage("ecosystem", "five steps with each of other people's libraries", 14, "make test-ecosystem"),
    _stage("serving", "vLLM on the card, the long tests too", 10, "make test-serving SLOW=1"),
    _stage("triton", "kernels in Triton, a thousand random ones too", 10, "make test-triton SLOW=1"),
    _stage(
        "replay", "programs that changed since the last night", 10, "{python} tests/replay/replay.py {base} --report"
    ),
    _stage(
        "speed",
        "benchmarks against the last night's commit, in one run",
        7,
        "{python} tests/nightly/speed.py {base} --minutes {minutes}",
    ),
    _stage("models", "card time, wall time and traffic of models, by commit", 4, "{python} tests/nightly/models.py"),
    _stage(
        "coverage",
        "lines of Python and C++ that the quick tests reach",
        4,
        "{python} tests/nightly/coverage_report.py --minutes {minutes}",
    ),
]
