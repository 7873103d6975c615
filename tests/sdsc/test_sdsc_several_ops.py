# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_several_ops.py: a file with several ops runs as the same ops in files of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sdsc_files import T, rows, sdsc, write_files

from torch_spyre import dl16
from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ir.superdsc.bundle import from_json, load, lone
from torch_spyre.sdsc.cli import main
from torch_spyre.sdsc.run import run

SIZES, SPLIT = {"mb": 128, "out": 128}, {"x": 2}
Json = Any


def _chain() -> list[Json]:
    """In LX: negate, change the stick dim, add one value; memory at both ends. Each core works on a slice of x."""
    sizes = {"x": 2, **SIZES}
    turned = T("x out mb", "mb", lx=True, at=1 << 17)
    files = [
        sdsc("neg", sizes, [T("x mb out", "out", 0), T("x mb out", "out", lx=True)], SPLIT),
        sdsc("ReStickifyOpLx", sizes, [T("x mb out", "out", lx=True), turned], SPLIT),
        sdsc("add", sizes, [turned, turned, T("x out mb", "mb", 1)], SPLIT),
    ]
    return [json.loads(json.dumps(made.to_json())) for made in files]


def _keys(files: list[Json]) -> Json:
    """One file, a top key each; their order in the text does not matter."""
    parts = {f"{i}_{str(next(iter(f))).partition('_')[2]}": next(iter(f.values())) for i, f in enumerate(files)}
    return dict(reversed(parts.items()))


def _descriptions(files: list[Json], order: tuple[int, ...] = (0, 1, 2)) -> Json:
    """One file with several dscs_ and their schedule."""
    listed = [files[i] for i in order]
    (body,) = listed[0].values()
    body["dscs_"] = [next(iter(f.values()))["dscs_"][0] for f in listed]
    places = [order.index(i) for i in range(len(order))]
    body["coreIdToDscSchedule"] = {core: [[-1, place, 0, 0] for place in places] for core in body["coreIdToDsc_"]}
    return {"0_neg": body}


FORMS = {
    "top keys": _keys,
    "a list": lambda files: files,
    "descriptions": _descriptions,
    "descriptions in the order of their schedule": lambda files: _descriptions(files, (2, 0, 1)),
}


@pytest.mark.parametrize("form", FORMS)
def test_several_ops_in_one_file(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 128, 128)).astype(np.float32)
    result = run(lone(FORMS[form](_chain()), "chain"), {"0.Tensor0": x})
    want = -2 * dl16.decode(dl16.encode(x))
    assert list(result.outputs) == ["2.Tensor2"]
    assert np.array_equal(result.outputs["2.Tensor2"], want)
    file = tmp_path / "chain.json"
    file.write_text(json.dumps(FORMS[form](_chain())))
    assert main(["check", str(file)]) == 0 and main(["run", str(file), "--verify"]) == 0
    assert "chain: ok, 3 ops" in capsys.readouterr().out


def test_several_ops_over_the_tensors_of_one_description() -> None:
    """y = exp(x), z = x + y; the op between them lists all three tensors."""
    made = sdsc("add", SIZES, [rows(0), rows(1), rows(2)], {"mb": 4}).to_json()
    data = json.loads(json.dumps(made))
    (dsc,) = data["0_add"]["dscs_"][0].values()
    (add,) = dsc["computeOp_"]
    power = {**add, "opFuncName": "exp", "inputLabeledDs": ["Tensor0-idx0"], "outputLabeledDs": ["Tensor1-idx1"]}
    dsc["computeOp_"] = [power, add]
    bundle = lone(data, "both")
    assert [step.title for step in bundle.steps] == ["both.json op 0", "both.json op 1"]
    x = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
    result = run(bundle, {"0.Tensor0": x})
    exact = dl16.decode(dl16.encode(x))
    power_of = dl16.decode(dl16.encode(np.exp(exact).astype(np.float32)))
    want = dl16.decode(dl16.encode((exact + power_of).astype(np.float32)))
    np.testing.assert_allclose(result.outputs["1.Tensor2"], want, rtol=2**-8)


def test_files_with_several_ops_in_a_bundle(tmp_path: Path) -> None:
    files = _chain()
    write_files(tmp_path, [])
    text = 'module {\nfunc.func @sdsc_bundle() {\nsdscbundle.sdsc_execute () {sdsc_filename="all.json"}\nreturn\n}\n}\n'
    (tmp_path / "bundle.mlir").write_text(text)
    (tmp_path / "all.json").write_text(json.dumps(_keys(files)))
    x = np.random.default_rng(0).standard_normal((2, 128, 128)).astype(np.float32)
    alone, together = (run(b, {"0.Tensor0": x}).outputs["2.Tensor2"] for b in (from_json(_chain()), load(tmp_path)))
    assert np.array_equal(alone, together)


def test_what_is_not_clear_is_named() -> None:
    data = _descriptions(_chain())
    data["0_neg"]["datadscs_"] = [{}]
    with pytest.raises(UnsupportedOp, match="datadscs_; what runs is read from dscs_"):
        lone(data)
    data = _descriptions(_chain())
    data["0_neg"]["coreIdToDscSchedule"]["1"] = [[-1, 0, 0, 0]]
    with pytest.raises(UnsupportedOp, match="coreIdToDscSchedule differs between cores"):
        lone(data)
    data = _descriptions(_chain())
    data["0_neg"]["coreIdToDscSchedule"] = {"0": [[0, 1, 0, 0]]}
    with pytest.raises(UnsupportedOp, match=r"entries \[-1, index in dscs_, …\] are known"):
        lone(data)
    with pytest.raises(InvalidProgram, match="is not <index>_<opfunc>"):
        lone({"0_neg": {}, "other": {}})
    with pytest.raises(InvalidProgram, match="malformed"):
        lone({"0_neg": {"dscs_": [{"neg": {"N_": {}}}, {"neg": {"N_": {}}}], "numWkSlicesPerDim_": 3}})


def test_texts_of_bundles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Any .mlir file that executes SuperDSC files is the text of a bundle; others are named for what they are."""
    write_files(tmp_path, [sdsc("exp", SIZES, [rows(0), rows(1)])])
    other = tmp_path / "decode.mlir"
    (tmp_path / "bundle.mlir").rename(other)
    assert main(["check", str(other)]) == 0
    assert "ok, 1 op," in capsys.readouterr().out
    kernel = tmp_path / "kernel.mlir"
    kernel.write_text("func.func @k(%x: index) {\n  %c = ktdp.get_compute_tile_id : index\n  return\n}\n")
    assert main(["check", str(kernel)]) == 1
    assert "executes no SuperDSC files (sdscbundle.sdsc_execute); if it is KTIR, spyre-ktir" in capsys.readouterr().err
    kernel.write_text("module {\n}\n")
    assert main(["check", str(kernel)]) == 1
    assert "does not start with a func.func" in capsys.readouterr().err
