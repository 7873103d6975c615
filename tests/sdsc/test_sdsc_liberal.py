# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_liberal.py

Files may leave out what follows from the rest, spell numbers as text or not, and list things in any order.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from sdsc_files import rows, sdsc
from test_sdsc_ops import CASES

from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.sdsc import SuperDSC, read_kernel

TOP = "sdscFoldProps_ sdscFolds_ coreFoldProp_ coreletFoldProp_ numCoresUsed_ coreIdToDsc_ coreIdToDscSchedule".split()
INNER = "numCoresUsed_ numCoreletsUsed_ coreIdsUsed_".split()
NODE = "nodeType_ name_ prev_ coordinates_".split()


def parts(data: Any) -> tuple[Any, Any]:
    (body,) = data.values()
    (dsc,) = body["dscs_"][0].values()
    return body, dsc


def bare(made: SuperDSC) -> Any:
    """The file without anything that can be told from the rest, numbers as numbers, lists turned around."""
    data = json.loads(json.dumps(made.to_json()))
    body, dsc = parts(data)
    for name in TOP:
        del body[name]
    for name in INNER:
        del dsc[name]
    if not made.last_sizes:
        del dsc["dataStageParam_"]
    for name, empty in (("coordinateMasking_", {}), ("maskingConstId_", -1), ("constantInfo_", "{}")):
        if dsc[name] == empty:
            del dsc[name]
    for node in dsc["scheduleTree_"]:
        for name in NODE:
            del node[name]
        if set(node["maxDimSizes_"]) == {-1}:
            del node["maxDimSizes_"]
        if node["indirectAllocType_"] == "no_indirection":
            del node["indirectAllocType_"]
        starts = node["startAddressCoreCorelet_"]
        starts["data_"] = {core: int(address) for core, address in reversed(starts["data_"].items())}
        del starts["dim_prop_func"], starts["dim_prop_attr"]
    dsc["scheduleTree_"].reverse()
    dsc["labeledDs_"].reverse()
    for ds in dsc["labeledDs_"]:
        del ds["dsName_"], ds["wordLength"]
        if "hbm" in ds["memOrg_"]:
            del ds["memOrg_"]
    (compute,) = dsc["computeOp_"]
    for name in ("location", "attributes_"):
        del compute[name]
    return data


@pytest.mark.parametrize("name", CASES)
def test_bare_file_is_the_same_kernel(name: str) -> None:
    data = bare(CASES[name])
    assert read_kernel([data]) == read_kernel([CASES[name].to_json()])


def test_uneven_split_without_el() -> None:
    data = CASES["uneven split of rows"].to_json()
    stage = parts(data)[1]["dataStageParam_"]["0"]
    want = read_kernel([CASES["uneven split of rows"].to_json()])
    stage["el_"] = stage["ss_"]
    assert read_kernel([data]) == want
    del stage["el_"]
    assert read_kernel([data]) == want


def test_slices_of_uncut_dims_may_be_missing() -> None:
    data = CASES["add"].to_json()
    for place in parts(data)[0]["coreIdToWkSlice_"].values():
        del place["out"]
    assert read_kernel([data]) == read_kernel([CASES["add"].to_json()])


@pytest.mark.parametrize("corelets", [1, 2])
def test_corelets_do_not_matter(corelets: int) -> None:
    data = CASES["add"].to_json()
    body, dsc = parts(data)
    body["coreletFoldProp_"], dsc["numCoreletsUsed_"] = {"factor_": corelets, "label_": "corelet"}, corelets
    assert read_kernel([data]) == read_kernel([CASES["add"].to_json()])


def test_what_is_said_twice_must_agree() -> None:
    data = CASES["add"].to_json()
    parts(data)[1]["coreIdsUsed_"] = [0, 1]
    with pytest.raises(InvalidProgram, match=r"coreIdsUsed_ is \[0, 1\], the rest of the file says \[0, 1, 2, 3\]"):
        read_kernel([data])


def test_mask_value_that_is_not_neutral() -> None:
    data = CASES["masked max"].to_json()
    constant = parts(data)[1]["constantInfo_"]["0"]
    constant["data_"]["data_"]["[0, 0, 0]"] = [0]
    with pytest.raises(UnsupportedOp, match=r"samv-maskvalue 0\.0, the neutral element of max is -inf"):
        read_kernel([data])


def test_mask_constant_is_found_by_name() -> None:
    """A front end may number it last and still point to constant 0."""
    made = CASES["masked sum"].to_json()
    dsc = parts(made)[1]
    dsc["constantInfo_"]["1"] = json.loads(json.dumps(dsc["constantInfo_"]["0"]))
    dsc["constantInfo_"]["0"]["name_"] = "scaling_factor"
    read_kernel([made])


METADATA = "symbolicDimInfo_ maxSymbolicVolume_ coreletSplit_ rowSplit_ peSfpSplit_ paddingSizes_".split()


def test_arrangements_of_elements_in_more_than_two_levels() -> None:
    """They say how lanes are interleaved, which here they never are; the levels must still count the slice."""
    made = sdsc("identity", {"mb": 64, "out": 256}, [rows(0), rows(1)])
    data = json.loads(json.dumps(made.to_json()))
    _, dsc = parts(data)
    folds = dsc["scheduleTree_"][0]["coordinates_"]["coordInfo"]["out"]["folds"]
    levels = [(4, 64), (4, 8), (2, 32), (8, 1)]
    folds["dim_prop_attr"][3:] = [{"factor_": n, "label_": f"elem_arr_{3 - i}"} for i, (n, _) in enumerate(levels)]
    folds["dim_prop_func"][3:] = [{"Affine": {"alpha_": alpha, "beta_": 0}} for _, alpha in levels]
    SuperDSC.from_json(data).verify()
    folds["dim_prop_attr"][3]["factor_"] = 3
    with pytest.raises(InvalidProgram, match=r"\[folds\] Tensor0: dim out: levels of .* elements, a slice has 256"):
        SuperDSC.from_json(data).verify()


def test_a_tensor_that_says_how_it_is_split() -> None:
    """The split of the op may be repeated; another one means a move between cores, which nothing else here says."""
    data = json.loads(json.dumps(sdsc("identity", {"mb": 64, "out": 256}, [rows(0), rows(1)], {"mb": 4}).to_json()))
    top, dsc = parts(data)
    coordinates = dsc["scheduleTree_"][0]["coordinates_"]
    coordinates["coreIdToWkSlice_"] = top["coreIdToWkSlice_"]
    SuperDSC.from_json(data).verify()
    coordinates["coreIdToWkSlice_"] = {"0": {"mb": 1}, "1": {"mb": 0}}
    with pytest.raises(UnsupportedOp, match=r"coreIdToWkSlice_: core 0 has {'mb': 1} of this tensor, and works on"):
        SuperDSC.from_json(data)


def test_empty_metadata_beside_sizes() -> None:
    """Objects among the sizes of a slice: empty ones say nothing, others are named."""
    made = CASES["add"]
    data = json.loads(json.dumps(made.to_json()))
    _, dsc = parts(data)
    for stage in dsc["dataStageParam_"].values():
        for sizes in stage.values():
            sizes |= {name: {} for name in METADATA}
    assert SuperDSC.from_json(data).to_json() == made.to_json()
    dsc["dataStageParam_"]["0"]["ss_"]["paddingSizes_"] = {"i": {"stride_": 2}}
    with pytest.raises(UnsupportedOp, match=r"ss_.paddingSizes_: .*'stride_': 2"):
        SuperDSC.from_json(data)
