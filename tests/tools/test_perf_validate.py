# SPDX-License-Identifier: Apache-2.0
# pytest tests/tools/test_perf_validate.py
"""The clock's error against the measurements stays below the bounds that the docs state."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_spyre.errors import InvalidArgument
from torch_spyre.perf import device as devices
from torch_spyre.perf.calibration import validate
from torch_spyre.perf.calibration.calibrate import Fit, fitted_names, leave_one_shape_out, write_values
from torch_spyre.perf.calibration.measured_kernels import MEASURED, Row, load
from torch_spyre.perf.cli import main

# class: (median, mean), with the row's shape left out of the fit
BOUNDS = {
    "pointwise": (0.05, 0.08),
    "broadcast": (0.05, 0.08),
    "copy": (0.05, 0.08),
    "transpose": (0.05, 0.08),
    "reductions": (0.05, 0.08),
    "concat": (0.10, 0.12),
    "softmax": (0.12, 0.15),
    "chains with LX": (0.10, 0.10),
    "chains without LX": (0.10, 0.10),
    "matmul 1-16 cores": (0.05, 0.10),
    "matmul 32 cores M/N splits": (0.10, 0.12),
    "matmul K splits": (0.20, 0.20),
    "batched": (0.20, 0.25),
}


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return validate.rows_of()


@pytest.mark.slow
def test_error_table_stays_below_the_bounds(rows: list[Row]) -> None:
    device = devices.load()
    table = {e.group: e for e in validate.by_class(leave_one_shape_out(rows, device))}
    for group, (median, mean) in BOUNDS.items():
        assert table[group].median <= median, table[group]
        assert table[group].mean <= mean, table[group]
    assert validate.regret(validate.predict(rows, device))[0] <= 1.08


def test_a_sample_stays_close(rows: list[Row]) -> None:
    sample = [r for r in rows[::9] if r.group in BOUNDS and not r.label.startswith("softmax")]
    errors = sorted(abs(p.error) for p in validate.predict(sample, devices.load()))
    assert errors[len(errors) // 2] <= 0.06
    assert sum(errors) / len(errors) <= 0.10


def test_rows_outside_the_fit() -> None:
    more = validate.rows_of([MEASURED / "matmul_tables.csv"])
    predictions = validate.predict(more, devices.load())
    assert len(predictions) == len(more)
    for entry in validate.by_class(predictions):
        assert entry.mean <= 0.10, entry
    assert validate.regret(predictions)[0] <= 1.08


def test_every_row_is_counted(rows: list[Row]) -> None:
    assert len(rows) == 370 + 584
    unplanned = [r for r in rows if r.build is None]
    assert {r.group for r in unplanned} == {"matmul, split not recorded", "not modelled"}
    assert len(unplanned) == 4


def test_other_files_of_the_same_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "more.csv"
    file.write_text(
        "op,rows,cols,mid,tiles,lx_planning,cores,n_reps,kernel_us,kernel_us_min,cv_pct\n"
        "add,4096,2048,,0,0,32,7,440.0,438.0,0.3\n"
    )
    assert main(["validate", str(file)]) == 0
    assert "| pointwise | 1 |" in capsys.readouterr().out
    file.write_text("a,b\n1,2\n")
    assert main(["validate", str(file)]) == 2
    with pytest.raises(InvalidArgument, match="has columns"):
        load(file)


def test_fit_improves_a_spoiled_constant(rows: list[Row]) -> None:
    spoiled = devices.load().with_values(sfp__reduce=4.0)
    constants = dict(spoiled.constants)
    constants["sfp.reduce"] = devices.Constant(4.0, "elements/ns/core", "fit on a test", "L")
    only = {k: devices.Constant(c.value, c.unit, "fixed", c.confidence) for k, c in constants.items()}
    only["sfp.reduce"] = constants["sfp.reduce"]
    few = [r for r in rows if r.label.startswith("sumrow") and " cores 1 " in r.label]
    fitted = Fit(few, devices.Device("test", "", only)).run()
    assert fitted["sfp.reduce"] == pytest.approx(7.8, rel=0.15)


def test_fitted_values_are_written_in_place(tmp_path: Path) -> None:
    source = devices.described()["spyre"].read_text()
    file = tmp_path / "spyre.toml"
    file.write_text(source)
    device = devices.load()
    names = fitted_names(device)
    write_values(file, device.with_values(sfp__reduce=7.25), ["sfp.reduce"])
    changed = devices.parse(file.read_text())
    assert changed["sfp.reduce"] == 7.25
    assert all(changed[n] == device[n] for n in names if n != "sfp.reduce")
    assert len(file.read_text().splitlines()) == len(source.splitlines())
