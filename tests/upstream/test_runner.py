# SPDX-License-Identifier: Apache-2.0
"""pytest tests/upstream/test_runner.py: the runner of PyTorch's own tests, on a small file of ours."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import run
from runner import report
from runner.config import ConfigError, TestId, dtypes_of, load
from runner.results import Results

pytestmark = pytest.mark.timeout(1800)  # the runner starts processes that import torch, also on a busy machine
HERE = Path(__file__).parent
SAMPLE = HERE / "data" / "sample.toml"
FILE = "test_runner_sample.py"

EXPECTED = {
    "TestBrokenClassSPYRE::test_never_starts_spyre": "fail",
    "TestHost::test_pass": "pass",
    "TestSampleSPYRE::test_a_abort_spyre": "crash",
    "TestSampleSPYRE::test_dtypes_spyre_float32": "pass",
    "TestSampleSPYRE::test_dtypes_spyre_float64": "not applicable",
    "TestSampleSPYRE::test_expected_failure_spyre": "pass",
    "TestSampleSPYRE::test_fail_spyre": "fail",
    "TestSampleSPYRE::test_gap_closed_spyre": "pass",
    "TestSampleSPYRE::test_gap_spyre": "known gap",
    "TestSampleSPYRE::test_only_cpu_spyre": "skip",
    "TestSampleSPYRE::test_refused_spyre": "not applicable",
    "TestSampleSPYRE::test_several_faults_spyre": "fail",
    "TestSampleSPYRE::test_z_hang_spyre": "timeout",
}


def call(output: Path, *more: str) -> int:
    return run.main(
        ["--checkout", str(HERE / "data/checkout"), "--config", str(SAMPLE), "--output", str(output), *more]
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a run of the sample."""
    output = tmp_path_factory.mktemp("runner")
    assert call(output, "--revision", "first") == 1
    return output


def test_every_outcome_is_recorded(finished: Path) -> None:
    table = json.loads((finished / "first/table.json").read_text())
    found = {name.removeprefix(f"{FILE}::"): v for name, v in table["tests"].items() if name.startswith(FILE)}
    assert found == EXPECTED
    assert table["tests"]["test_runner_unknown_import.py::::"] == "fail"
    assert table["files"][FILE]["classes"]["TestSampleSPYRE"]["rate"] == 3 / 8
    assert table["skip_reasons"] == {"Only runs on cpu": 1}
    text = (finished / "first/table.md").read_text()
    assert "killed by SIGABRT" in text and "waited 5 s" in text and "a_module_that_does_not_exist" in text
    assert "## Known gaps that pass" in text and "test_gap_closed_spyre`: not there yet" in text


def test_a_hanging_test_says_where(finished: Path) -> None:
    records = Results(finished / "first").records
    assert "test_z_hang" in records[TestId(FILE, "TestSampleSPYRE", "test_z_hang_spyre")]["traceback"]


def test_a_finished_run_runs_nothing(finished: Path) -> None:
    before = (finished / "first/results-1-of-1.jsonl").read_bytes()
    call(finished, "--revision", "first", FILE)
    assert (finished / "first/results-1-of-1.jsonl").read_bytes() == before


def test_a_stopped_run_goes_on_and_the_difference_is_told(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second run has all but two of the first's results, one of which was another; half a line is no result."""
    second = finished / "second"
    shutil.copytree(finished / "first", second)
    lines = (second / "results-1-of-1.jsonl").read_text().splitlines()
    kept = [x for x in lines if "test_gap_closed" not in x and "TestHost" not in x]
    (second / "results-1-of-1.jsonl").write_text("\n".join(kept) + '\n{"key": "stopped he')
    table = json.loads((finished / "first/table.json").read_text())
    table["tests"][f"{FILE}::TestHost::test_pass"] = "fail"
    table["tests"][f"{FILE}::TestSampleSPYRE::test_fail_spyre"] = "pass"
    (finished / "first/table.json").write_text(json.dumps(table))
    call(finished, "--revision", "second", "--baseline", str(finished / "first"), FILE)
    assert ".. test_runner_sample.py" in capsys.readouterr().out
    assert len(Results(second).records) == len(EXPECTED) - 1
    text = (second / "difference.md").read_text()
    assert f"## newly failing: 1\n\n- `{FILE}::TestSampleSPYRE::test_fail_spyre`" in text
    assert f"## newly passing: 1\n\n- `{FILE}::TestHost::test_pass`" in text


def test_a_file_that_one_run_left_out_has_not_changed() -> None:
    old = {"a.py::A::test_x": "pass", "a.py::A::test_y": "pass", "b.py::B::test_z": "pass"}
    changes = report.difference(old, {"a.py::A::test_x": "crash", "c.py::C::test_w": "fail"})
    assert changes["newly failing"] == ["a.py::A::test_x"] and changes["gone"] == ["a.py::A::test_y"]
    assert not changes["newly passing"] and not changes["new tests that fail"]


def test_shards_are_a_partition() -> None:
    config = load(SAMPLE)
    tests = [TestId("test_a.py", "TestA", f"test_{n}") for n in range(200)]
    parts = []
    for shard in ("1/3", "2/3", "3/3"):
        parts.append(run.wanted(tests, config, run.options(["--checkout", ".", "--config", ".", "--shard", shard])))
    assert sorted(str(test) for part in parts for test in part) == sorted(map(str, tests))
    assert all(len(part) > 40 for part in parts)


def test_results_of_another_file_are_dropped(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.begin_file("test_a.py", "key1", [])
    results.add({"file": "test_a.py", "cls": "A", "name": "test_x", "outcome": "pass"}, "key1")
    results.end_file("test_a.py", [TestId("test_a.py", "A", "test_x")])
    again = Results(tmp_path)
    again.begin_file("test_a.py", "key2", [])
    assert not again.records and not again.tests_of("test_a.py")
    assert not Results(tmp_path).records


def test_dtypes_are_read_from_the_name() -> None:
    assert dtypes_of("test_add_spyre_float32_int64", "spyre") == ["float32", "int64"]
    assert dtypes_of("test_float64_spyre_bfloat16", "spyre") == ["bfloat16"]
    assert dtypes_of("test_cast_spyre_float8_e4m3fn_float32_bool", "spyre") == ["float8_e4m3fn", "float32", "bool"]
    assert dtypes_of("test_q_spyre_quint8", "spyre") == ["quint8"]
    assert dtypes_of("test_float32", "spyre") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[rule]]\nverdict = "maybe"', "verdict 'maybe' is none of"),
        ('[[rule]]\nverdict = "known gap"', "needs a reason"),
        ('[[rule]]\nverdict = "must pass"\nname = "x"', "unknown name"),
        ('[[rule]]\nverdict = "must pass"\nerror = "("', "no regular expression"),
        ("[limits]\nseconds = 3", "unknown seconds"),
        ('[[file]]\nmatch = "re:("', "no regular expression"),
    ],
)
def test_a_wrong_configuration_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text('device = "spyre"\n' + text)
    with pytest.raises(ConfigError, match=message):
        load(path)


def test_the_device_is_a_name(tmp_path: Path) -> None:
    """Another device takes over the same file; the first rule that fits decides."""
    config = load(SAMPLE, "other")
    assert config.settings.recover == "torch.other.reset()"
    gap = TestId(FILE, "TestSampleOTHER", "test_gap_other")
    assert config.rule_before(gap).verdict == "known gap"
    refused = {"outcome": "error", "error": "RuntimeError: does not support dtype float64"}
    assert report.judge(config, gap, refused).category == "known gap"
    assert report.judge(config, TestId(FILE, "X", "test_x_other"), refused).category == "not applicable"


def test_the_committed_configuration_is_well_formed() -> None:
    path = HERE / "pytorch_2_13.toml"
    assert load(path).device == "spyre"
    assert all(rule.get("reason") or rule["verdict"] == "must pass" for rule in tomllib.loads(path.read_text())["rule"])


def test_a_rule_about_the_place_of_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(
        'device = "spyre"\n[[rule]]\nwhere = "count_kernels"\nverdict = "not applicable"\nreason = "counts kernels"\n'
    )
    config, test = load(path), TestId("test_a.py", "TestA", "test_b")
    assert config.rule_before(test).run
    assert config.rule_after(test, "AssertionError: 1 != 2", "in count_kernels").reason == "counts kernels"
    assert config.rule_after(test, "AssertionError: count_kernels", "in check").verdict == "must pass"
