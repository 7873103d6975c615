# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdk/test_expected_failures.py

``spyre-sdk run --expected``: a list of tests that need not pass, and the difference from run to run. The checkout is a
folder of tests; the environment is this one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_spyre.errors import InvalidArgument
from torch_spyre.sdk import cli, expected, judged_run
from torch_spyre.sdk.checkout import Checkout

TESTS = """\
import os
import pytest

def test_passes(): pass
def test_fails(): assert 1 == 2, "wrong sum"
def test_known():
    os.write(2, b"Unsupported: float64 on the card")
    raise RuntimeError("compile command failed")
def test_closed(): pass
@pytest.mark.parametrize("x", ["a*b", "[?]"])
def test_dies(x): os._exit(17)
def test_behind(): pass
@pytest.mark.xfail(reason="theirs")
def test_marked(): assert False
@pytest.mark.skip(reason="no card")
def test_skipped(): pass
@pytest.fixture
def broken(): raise ValueError("no setup")
def test_setup(broken): pass
def test_hangs(): open(os.environ["SEEN"], "w")
"""

LIST = """\
[[test]]
name = "*::test_known"
error = "Unsupported: .*float64"
verdict = "not applicable"
reason = "the card has no float64"

[[test]]
name = ["*::test_closed", "*::nobody"]
verdict = "known gap"
reason = "was open once"

[[test]]
name = "*::test_hangs"
verdict = "known gap"
reason = "hangs"
run = false
"""

FIRST = {
    "test_passes": "pass",
    "test_fails": "fail",
    "test_known": "not applicable",
    "test_closed": "pass",
    "test_dies[a*b]": "crash",
    "test_dies[[?]]": "crash",
    "test_behind": "pass",
    "test_marked": "fails as marked",
    "test_skipped": "skip",
    "test_setup": "fail",
}


class Ready(Checkout):
    """Needs no build."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        pass

    def environment(self) -> dict[str, str]:
        own = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "SEEN": str(self.folder / "seen"), "PYTEST_ADDOPTS": ""}
        return {**os.environ, **own, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def checkout(tmp_path: Path) -> Ready:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "test_all.py").write_text(TESTS)
    (folder / "test_broken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "list.toml").write_text(LIST)
    return Ready(folder)


@pytest.fixture
def run(checkout: Ready, tmp_path: Path) -> Callable[..., int]:
    def run(*words: str) -> int:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        return judged_run.run(checkout, expected.load(tmp_path / "list.toml"), command, tmp_path / "runs")

    return run


def categories(run: Path) -> dict[str, str]:
    return {k.rpartition("::")[2]: v for k, v in json.loads((run / "table.json").read_text())["tests"].items()}


def test_runs_are_judged_and_compared(
    run: Callable[..., int], checkout: Ready, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run() == 1
    first = tmp_path / "runs" / "1"
    assert categories(first) == {**FIRST, "test_broken.py": "fail"}
    assert not (checkout.folder / "seen").exists()
    table = (first / "table.md").read_text()
    assert "- 1: the card has no float64" in table and "wrong sum" in table and "status 17" in table
    assert "`test_all.py::test_closed`: was open once" in table  # passes though listed
    assert "nothing_of_this_name" in table and "no setup" in table
    told = capfd.readouterr()
    assert "3 pass, 3 fail, 2 crash, 1 not applicable" in told.out
    assert "test_dies[a*b]: the process ended in this test with status 17" in told.err

    changed = TESTS.replace("1 == 2", "1 == 1").replace("def test_behind(): pass", "def test_behind(): assert False")
    changed = changed.replace("RuntimeError", "KeyError").replace("os._exit(17)", "pass")
    (checkout.folder / "test_all.py").write_text(changed)
    assert run("test_all.py") == 1
    second = categories(tmp_path / "runs" / "2")
    assert second["test_known"] == "not applicable" and "test_broken.py" not in second
    told = capfd.readouterr()
    assert "1 newly failing (against run 1)" in told.out and "3 newly passing (against run 1)" in told.out
    difference = (tmp_path / "runs" / "2" / "difference.md").read_text()
    assert "## newly failing: 1\n\n- `test_all.py::test_behind`" in difference
    assert "- `test_all.py::test_fails`" in difference.partition("## newly passing: 3")[2]

    # Nothing but what is expected: 0, whatever pytest says. One that fails otherwise than listed is not expected.
    words = ("test_all.py", "-k", "known or closed or marked or skipped")
    assert run(*words) == 0
    (checkout.folder / "test_all.py").write_text(changed.replace("Unsupported", "Overflow"))
    assert run(*words) == 1
    assert categories(tmp_path / "runs" / "4")["test_known"] == "fail"


def test_ranks_of_torchrun_are_one_run() -> None:
    lines = [
        '{"selected": ["a", "b", "c"], "rank": "0"}',
        '{"selected": ["a", "b", "c"], "rank": "1"}',
        '{"test": "a", "outcome": "started", "rank": "0"}',
        '{"test": "a", "outcome": "fail", "error": "rank 1", "rank": "1"}',
        '{"test": "a", "outcome": "pass", "rank": "0"}',
        '{"test": "b", "outcome": "pass", "rank": "0"}',
        '{"test": "b", "outcome": "pass", "rank": "1"}',
        '{"test": "c", "outcome": "pass", "rank": "0"}',
    ]
    found = expected.outcomes([], lines)
    assert [(o.test, o.category, o.error) for o in found] == [
        ("a", "fail", "rank 1"),
        ("b", "pass", ""),
        ("c", "not run", ""),
    ]


def test_workers_of_xdist_record_once(run: Callable[..., int], tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    assert run("-n", "2", "test_all.py") == 1
    assert categories(tmp_path / "runs" / "1") == FIRST


def test_a_command_that_is_no_pytest_is_refused(checkout: Ready, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="--expected is for pytest"):
        judged_run.run(checkout, [], [sys.executable, "-c", "pass"], tmp_path / "runs")
    assert judged_run.run(checkout, [], [sys.executable, "-c", "raise SystemExit(7)"], tmp_path / "runs") == 7
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    "text, told",
    [
        ('[[test]]\nname = "a"\nverdict = "known gap"', "needs a reason"),
        ('[[test]]\nname = "a"\nverdict = "fine"\nreason = "r"', "verdict is 'fine'"),
        ('[[test]]\nverdict = "known gap"\nreason = "r"', "would fit every test"),
        ('[[test]]\nerror = "("\nverdict = "known gap"\nreason = "r"', "no regular expression"),
        ('[[test]]\nnames = "a"\nverdict = "known gap"\nreason = "r"', "unknown names"),
        ('[[test]]\nname = "a"\nerror = "e"\nverdict = "known gap"\nreason = "r"\nrun = false', "takes no error"),
        ('[[rule]]\nname = "a"', "unknown rule"),
        ("[[test", "list.toml"),
    ],
)
def test_a_list_that_means_nothing_is_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text(text)
    with pytest.raises(InvalidArgument, match=told):
        expected.load(tmp_path / "list.toml")


def test_the_committed_list_can_be_read() -> None:
    assert all(entry.reason for entry in expected.load(cli.EXPECTED_FAILURES))
