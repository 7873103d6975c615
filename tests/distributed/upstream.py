# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of several ranks, in processes that stay: those of a checkout start new ones for every test.

    python tests/distributed/upstream.py --checkout DIR [--test GLOB] [file …]

writes upstream_table.json again: one row for each test with its outcome and, where it does not pass, the reason. DIR
holds `test/…` of a PyTorch checkout of the installed release; nothing in it is changed. A row that exists is measured
again only if --test names it.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.machinery
import importlib.util
import json
import os
import sys
import tempfile
import unittest
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import wheel_tests
from ranks import BACKEND, MOST, Ranks, leave

TABLE = Path(__file__).with_name("upstream_table.json")
FILES = (
    "distributed/test_c10d_functional_native.py",
    "distributed/tensor/parallel/test_tp_examples.py",
    "distributed/tensor/test_dtensor.py",
    wheel_tests.FILE,
)
# Text of an error, and what it means.
REASONS = (
    ("does not support dtype torch.float64", "not applicable: float64, which the card does not hold"),
    ("does not support dtype float64", "not applicable: float64, which the card does not hold"),
    ("does not support dtype complex", "not applicable: complex numbers, which the card does not hold"),
    ("complex dtype", "not applicable: complex numbers, which the card does not hold"),
    ("ObjectPair(", "not applicable: compares tensors of different cards"),
    ("sparse tensors", "not applicable: sparse tensors, which the card has not"),
    ("third_party/gloo", "not applicable: a call that Gloo serves, as PyTorch asks in a group that has it"),
    ("only implemented for GLOO", "not applicable: PyTorch refuses groups that are not of Gloo alone"),
    ("!= 'gloo'", "not applicable: looks for Gloo by its name"),
    ("has not been initialized", "not applicable: meets through files of the suite's launcher, without a group"),
    ("NCCL built in", "not applicable: needs NCCL"),
    ("torchvision", "not applicable: needs torchvision"),
    ("triton", "not applicable: needs Triton's GPU kernels"),
    ("CUDA", "not applicable: needs CUDA"),
    ("cuda", "not applicable: needs CUDA"),
)
# What ranks say when another one has left.
LEFT_ALONE = ("PeerLost", "third_party/gloo")


@dataclass
class Row:
    file: str
    test: str
    ranks: int
    outcome: str  # pass, gap, not applicable, skip
    reason: str = ""


# In the ranks.

_modules: dict[str, Any] = {}


class HelperFile(importlib.machinery.SourceFileLoader):
    """A test file that another one takes helpers from; a checkout of some folders need not have it."""

    def load_module(self, name: str | None = None) -> Any:
        return super().load_module(name) if Path(self.path).exists() else mock.MagicMock()


def load(root: str, file: str) -> Any:
    """The module of a test file, with spyreccl among the backends it accepts."""
    if file in _modules:
        return _modules[file]
    if file == wheel_tests.FILE:
        _modules[file] = wheel_tests.load()
        return _modules[file]
    from torch.testing._internal import common_distributed as common
    from torch.testing._internal.distributed._tensor import common_dtensor

    def accept(*_: Any, **__: Any) -> Any:
        return lambda test: test

    common.requires_accelerator_dist_backend = common.skip_if_lt_x_gpu = accept
    common_dtensor.skip_if_lt_x_gpu = accept
    common_dtensor.DTensorTestBase.init_pg = lambda self, *_, **__: join(self)
    common.DistributedTestBase.create_pg = lambda self, *_, **__: join(self)
    sys.path[:0] = [str(Path(root) / "test"), str((Path(root) / "test" / file).parent)]
    name = file.removesuffix(".py").replace("/", ".")
    spec = importlib.util.spec_from_file_location(name, Path(root) / "test" / file)
    assert spec and spec.loader
    _modules[file] = sys.modules[name] = importlib.util.module_from_spec(spec)
    with mock.patch("importlib.machinery.SourceFileLoader", HelperFile):
        spec.loader.exec_module(_modules[file])
    return _modules[file]


def join(test: Any) -> Any:
    if not dist.is_initialized():
        store = dist.FileStore(test.file_name, test.world_size)
        dist.init_process_group(BACKEND, store=store, rank=test.rank, world_size=test.world_size)
    return dist.group.WORLD


def tests_of(root: str, file: str) -> list[tuple[str, str, int]]:
    """Class, test and number of ranks."""
    module, found = load(root, file), []
    for name, kind in vars(module).items():
        if isinstance(kind, type) and issubclass(kind, unittest.TestCase) and kind.__module__ == module.__name__:
            for test in unittest.TestLoader().getTestCaseNames(kind):
                found.append((name, test, int(getattr(kind(test), "world_size", 1)) if _of_ranks(kind) else 1))
    return found


def _of_ranks(kind: type) -> bool:
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    return issubclass(kind, MultiProcessTestCase)


def skip_reason(code: Any) -> str:
    """Tests that skip end their process with a number."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    return next((skip.message for skip in TEST_SKIPS.values() if skip.exit_code == code), f"exit code {code}")


def run_test(root: str, file: str, cls: str, name: str, size: int, meeting: str) -> tuple[str, str]:
    """Outcome on this rank, and why."""
    from torch.testing._internal.common_utils import set_rng_seed

    test = getattr(load(root, file), cls)(name)
    os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"] = str(size)
    set_rng_seed()  # as setUp does, which would start processes
    try:
        if not _of_ranks(type(test)):
            test.debug()
        else:
            test.rank, test.file_name = int(os.environ["RANK"]), meeting
            if file == wheel_tests.FILE:
                test.world_size = size
                wheel_tests.prepare(meeting, test.rank, size)
            getattr(test, name)()
            if file == wheel_tests.FILE:
                test._barrier()  # nobody leaves while another one is in the test
        return "pass", ""
    except unittest.SkipTest as skip:
        return "skip", str(skip)
    except SystemExit as skip:
        return "skip", skip_reason(skip.code)
    except BaseException as error:
        return "fail", f"{type(error).__name__}: {error}".partition("\n\nTo execute")[0][:300].replace("\n", " ")
    finally:
        torch.set_default_device(None)
        leave()
        torch.spyre.reset()


# In the process that asks.


def measure(ranks: Ranks, root: str, file: str, case: tuple[str, str, int]) -> Row:
    """A test that fails runs again in new processes: another one may have left something in these. One that asks for
    more ranks gets all there are."""
    row = attempt(ranks, root, file, case)
    if row.outcome == "skip" and "small world size" in row.reason:
        row = attempt(ranks, root, file, (*case[:2], MOST))
    if row.outcome != "gap":
        return row
    ranks.replace()
    return attempt(ranks, root, file, (*case[:2], row.ranks))


def attempt(ranks: Ranks, root: str, file: str, case: tuple[str, str, int]) -> Row:
    cls, name, n = case
    if cls.endswith("WithLocalTensor"):
        return Row(file, f"{cls}::{name}", n, "not applicable", "ranks that one process simulates, without a backend")
    with tempfile.TemporaryDirectory() as folder:
        outcomes = ranks.alone(n, run_test, root, file, cls, name, n, f"{folder}/meeting")
    told = [o.value if o and o.value else ("fail", repr(o.error)[:400] if o else "killed") for o in outcomes]
    row = Row(file, f"{cls}::{name}", n, "pass")
    failed, skipped = [t for t in told if t[0] == "fail"], [t for t in told if t[0] == "skip"]
    if failed:
        first = next((t[1] for t in failed if not any(part in t[1] for part in LEFT_ALONE)), failed[0][1])
        row.outcome, row.reason = "gap", next((why for part, why in REASONS if part in first), first)
        if row.reason.startswith("not applicable: "):
            row.outcome, row.reason = "not applicable", row.reason.removeprefix("not applicable: ")
    elif skipped:
        row.outcome, row.reason = "skip", skipped[0][1]
    return row


def read() -> list[Row]:
    return [Row(**row) for row in json.loads(TABLE.read_text())["rows"]] if TABLE.exists() else []


def write(rows: list[Row]) -> None:
    """One line per row, so that a change shows as the lines it changes."""
    lines = [json.dumps(asdict(row)) for row in sorted(rows, key=lambda r: (r.file, r.test))]
    TABLE.write_text(f'{{"torch": "{torch.__version__}", "rows": [\n' + ",\n".join(lines) + "\n]}\n")


def rate(rows: list[Row]) -> float:
    """Of the tests that say something about the card."""
    counted = [row for row in rows if row.outcome in ("pass", "gap")]
    return sum(row.outcome == "pass" for row in counted) / max(len(counted), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--checkout", required=True, help="folder that holds test/")
    parser.add_argument("--test", default="", help="glob over Class::test: these, also if the table has them")
    parser.add_argument("files", nargs="*", default=FILES)
    chosen = parser.parse_args()
    rows = {(row.file, row.test): row for row in read()}
    ranks = Ranks()
    try:
        for file in chosen.files:
            listed = ranks.alone(1, tests_of, chosen.checkout, file)[0]
            if not listed or listed.error:
                raise SystemExit(f"{file}: {listed.trace if listed else ranks.processes[0].told()}")
            for case in listed.value:
                key = (file, f"{case[0]}::{case[1]}")
                if not fnmatch.fnmatchcase(key[1], chosen.test) if chosen.test else key in rows:
                    continue
                rows[key] = row = measure(ranks, chosen.checkout, file, case)
                print(row.outcome, row.ranks, row.test, row.reason[:150], flush=True)
                write(list(rows.values()))
    finally:
        ranks.end()
    print(f"{rate(list(rows.values())):.1%} of the tests that apply")


if __name__ == "__main__":
    import upstream  # ranks know the functions by this name

    upstream.main()
