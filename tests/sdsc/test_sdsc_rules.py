# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_rules.py

A defect planted in a good file is found; the message names rule, tensor and core. Foreign forms are refused by name.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ktir_kernels import matmul_kernel, pointwise_kernel, softmax_kernel

from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.sdsc import SuperDSC, bundle_files, read_bundle, read_sdsc

FILES = {
    "add": bundle_files(pointwise_kernel(sizes=(64, 100), splits={"d0": 4}))["sdsc_0.json"],
    "lx": bundle_files(softmax_kernel())["sdsc_2.json"],
    "matmul": bundle_files(matmul_kernel(64, 128, 128, {"m": 4}))["sdsc_0.json"],
}


def load(name: str) -> tuple[Any, Any]:
    """(top body, inner dsc) of a fresh copy; both belong to the first element's tree."""
    data = json.loads(FILES[name])
    body = next(iter(data.values()))
    return data, next(iter(body["dscs_"][0].values()))


def put(path: str, value: Any) -> Callable[[Any], None]:
    """Assign into nested JSON: 'scheduleTree_.0.component_'."""

    def plant(node: Any) -> None:
        *way, last = [int(k) if k.isdigit() else k for k in path.split("/")]
        for key in way:
            node = node[key]
        node[last] = value

    return plant


def start(tensor: int, core: int, value: int) -> Callable[[Any], None]:
    return put(f"scheduleTree_/{tensor}/startAddressCoreCorelet_/data_/[{core}, 0, 0]", str(value))


DEFECTS = [
    ("add", put("primaryDsInfo_/OUTPUT/stickSize_", [32]), r"\[stick-size\] Tensor0: stickSize_ \[32\]"),
    ("add", put("labeledDs_/1/wordLength", 4), r"\[format\] Tensor1: wordLength 4, SEN169_FP16 has 2"),
    ("add", put("labeledDs_/1/dataFormat_", "FP13"), r"\[format\] Tensor1: unknown dataFormat_ FP13"),
    ("add", put("N_/mb_", 66), r"\[split\] dim mb: 4 slices of 16 elements do not make 66"),
    ("add", put("coordinateMasking_/out", [[100, 27]]), r"\[mask\] dim out: \[100, 27\] does not cover 128"),
    ("add", start(1, 2, (16 << 30) + 4096 + 2), r"\[alignment\] Tensor1, core 2: start address \d+ is not a multiple"),
    ("add", start(1, 2, (16 << 30) + 128), r"\[start-address\] Tensor1, core 2: \d+, its slice starts at 17179873280"),
    ("add", start(2, 3, (16 << 30) * 7), r"\[segment\] Tensor2, core 3: bytes .* 7 data segments"),
    ("add", start(0, 0, (16 << 30) - 128), r"\[segment\] Tensor0, core 0: bytes .* are not inside one"),
    ("lx", start(0, 1, (2 << 20) - 128), r"\[lx\] Tensor0, core 1: bytes .* outside the 2097152 of LX"),
    ("add", put("labeledDs_/0/dsType_", "KERNEL"), r"\[names\] Tensor0: dsType_ KERNEL is not in primaryDsInfo_"),
    ("add", put("labeledDs_/0/scale_", [1]), r"\[names\] Tensor0: 1 scales for the dims"),
    (
        "add",
        put("computeOp_/0/inputLabeledDs", ["Tensor0-idx0", "Tensor9-idx9"]),
        r"\[names\] computeOp_ names Tensor9",
    ),
    ("add", put("scheduleTree_/2/layoutDimOrder_", ["out", "mb"]), r"\[start-address\] Tensor2, core 1"),
    (
        "add",
        put("scheduleTree_/0/coordinates_/coordInfo/mb/folds/dim_prop_attr/0/factor_", 8),
        r"\[folds\] Tensor0: dim mb: Fold\(label='core_fold', factor=8",
    ),
]


@pytest.mark.parametrize(("name", "plant", "message"), DEFECTS, ids=[d[2][:28] for d in DEFECTS])
def test_planted_defect_is_named(name: str, plant: Callable[[Any], None], message: str) -> None:
    data, inner = load(name)
    SuperDSC.from_json(copy.deepcopy(data)).verify()
    plant(inner)
    with pytest.raises(InvalidProgram, match=message):
        SuperDSC.from_json(data).verify()
    with pytest.raises(InvalidProgram, match=message):
        read_sdsc(data)


def test_two_cores_on_the_same_slice() -> None:
    data, _ = load("add")
    data["0_add"]["coreIdToWkSlice_"]["3"]["mb"] = 2
    with pytest.raises(InvalidProgram, match=r"\[core-map\] core 3: same slices as core 2"):
        SuperDSC.from_json(data).verify()


def test_span_limit() -> None:
    data, inner = load("matmul")
    inner["scheduleTree_"][0]["backGapCore_"] = {"mb": {"-1": str(1 << 22)}}
    with pytest.raises(
        InvalidProgram, match=r"\[span\] Tensor0, core 0: one core spans \d+ bytes, the limit is 268435456"
    ):
        SuperDSC.from_json(data).verify()


def test_permuted_core_map_is_dealt_anew() -> None:
    """Which core does which slice does not matter when all of an op's scratchpad tensors are its own."""
    data, _ = load("lx")
    plain = read_sdsc(copy.deepcopy(data))
    places = next(iter(data.values()))["coreIdToWkSlice_"]
    places["1"], places["2"] = places["2"], places["1"]
    assert read_sdsc(data) == plain


@pytest.mark.parametrize(
    ("plant", "error", "message"),
    [
        (lambda d: d.pop("N_"), InvalidProgram, "field N_ is missing"),
        (put("numCoreletsUsed_", 3), InvalidProgram, "a core has 2 corelets"),
        (put("scheduleTree_/0/nodeType_", "transfer"), UnsupportedOp, "node of type 'transfer'"),
        (put("scheduleTree_/0/indirectAllocType_", "pointer"), UnsupportedOp, "indirectAllocType_ 'pointer'"),
        (put("scheduleTree_/0/component_", "l3"), InvalidProgram, "component_ 'l3' is neither hbm nor lx"),
        (put("N_/mb_", 1.5), InvalidProgram, "expected a whole number, got 1.5"),
        (put("labeledDs_", 5), InvalidProgram, "expected a list"),
        (put("coordinateMasking_/out", [[60, 4], [100, 28]]), UnsupportedOp, r"one \[valid, pad\] pair"),
        (
            put("scheduleTree_/0/startAddressCoreCorelet_/data_/[0, 0, 0]", "x"),
            InvalidProgram,
            "expected a whole number",
        ),
    ],
)
def test_foreign_form_is_refused(plant: Callable[[Any], None], error: type[Exception], message: str) -> None:
    data, inner = load("add")
    plant(inner)
    with pytest.raises(error, match=message):
        SuperDSC.from_json(data)


def test_unknown_opfunc() -> None:
    data = json.loads(FILES["add"].replace('"add"', '"biasadd"').replace("0_add", "0_biasadd"))
    with pytest.raises(UnsupportedOp, match="biasadd"):
        read_sdsc(data)


def test_unknown_field_is_noted() -> None:
    data, inner = load("add")
    inner["loopInfo_"] = 3
    assert SuperDSC.from_json(data).notes == ("0_add.loopInfo_",)


def test_incomplete_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidProgram, match="Bundle not found"):
        read_bundle(tmp_path)
    (tmp_path / "bundle.mlir").write_text(bundle_files(pointwise_kernel())["bundle.mlir"])
    with pytest.raises(InvalidProgram, match=r"executes sdsc_0\.json"):
        read_bundle(tmp_path)
    (tmp_path / "sdsc_0.json").write_text("{")
    with pytest.raises(InvalidProgram, match="is not JSON"):
        read_bundle(tmp_path)
