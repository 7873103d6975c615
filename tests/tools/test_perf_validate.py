# SPDX-License-Identifier: Apache-2.0
# pytest tests/tools/test_perf_validate.py
"""The clock's error against the measurements stays below the bounds that the docs state."""

from __future__ import annotations

from collections import Counter
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
    "matmul 32 cores M/N splits": (0.08, 0.10),
    "thereof cut along M only": (0.12, 0.15),
    "matmul K splits": (0.10, 0.12),
    "thereof K cut by 8 and more": (0.12, 0.17),
    "batched": (0.10, 0.13),
    "thereof attention, other splits": (0.13, 0.15),
    "thereof attention, K splits": (0.20, 0.20),
    "batched, shared weight": (0.18, 0.19),
    "SuperDSC files, LX share 0.2": (0.12, 0.12),
    "SuperDSC files, LX share 0.8": (0.16, 0.16),
}
REGRET = {"2-D products": 1.02, "batched products": 1.02, "attention products": 1.10}


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return validate.rows_of()


@pytest.mark.slow
def test_error_table_stays_below_the_bounds(rows: list[Row]) -> None:
    held_out = leave_one_shape_out(rows, devices.load("spyre"))
    table = {e.group: e for e in validate.by_class(held_out)}
    for group, (median, mean) in BOUNDS.items():
        assert table[group].median <= median, table[group]
        assert table[group].mean <= mean, table[group]
    for kind, regret in REGRET.items():
        choice = validate.choices(held_out, kind)
        assert choice.regret <= regret, (kind, choice)
        assert choice.rank >= 0.75, (kind, choice)


def test_times_beside_superdsc_files_and_of_weight_layouts(rows: list[Row]) -> None:
    """Each of them, at the LX share that it was measured with."""
    few = [r for r in rows if r.lx_fraction or r.group == "weight layouts"]
    predictions = validate.predict(few, devices.load("spyre"))
    assert len(predictions) == 17 + 3
    for p in predictions:
        assert abs(p.error) <= 0.25, p


def test_attention_follows_the_lx_share(rows: list[Row]) -> None:
    """The split that is 3.6 times as fast with four times the share, and one that is not."""
    times = {(r.label.split("split ")[1], r.lx_fraction): r for r in rows if r.lx_fraction and "x128x576" in r.shape}
    spyre = devices.load("spyre")
    for split, low, high in (("1_32_1_1", 2.4, 4.5), ("2_8_2_1", 0.8, 1.1)):
        pair = [times[f"{split} lx {fraction}", fraction] for fraction in (0.2, 0.8)]
        narrow, wide = (p.micros for p in validate.predict(pair, spyre))
        assert low <= narrow / wide <= high, split


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
    assert validate.choices(predictions).regret <= 1.03


def test_every_row_is_counted(rows: list[Row]) -> None:
    assert len(rows) == 370 + 584 + 118 + 17 + 3 + 2 * 15
    unplanned = Counter(r.group for r in rows if r.build is None)
    assert unplanned == {"matmul, split not recorded": 3, "not modelled": 1, "program, plan not recorded": 15 + 5}


def test_a_program_takes_the_sum_of_its_products(rows: list[Row]) -> None:
    """Published programs of two products: no cost between them, but what the first writes and the second reads."""
    programs = validate.predict([r for r in rows if r.group == "two products in one program"], devices.load("spyre"))
    errors = [abs(p.error) for p in programs]
    assert len(errors) == 10
    assert sum(errors) / len(errors) <= 0.12
    assert max(errors) <= 0.20


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
