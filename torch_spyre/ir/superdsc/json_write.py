# SPDX-License-Identifier: Apache-2.0
"""The JSON form of a SuperDSC, with the published field names in the published order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_spyre.ir.superdsc.schema import (
    INDEX_TENSOR,
    Allocation,
    Compute,
    Constant,
    Fold,
    Json,
    LabeledDs,
    SuperDSC,
    Window,
)

TIME = {"factor_": 1, "label_": "time"}
WINDOWED = "padded_fullspan_wunneeded"
CORELET = {"factor_": 1, "label_": "corelet"}


def sdsc_json(sdsc: SuperDSC) -> Json:
    cores = list(sdsc.core_slices)
    return {
        sdsc.title: {
            "sdscFoldProps_": [TIME],
            "sdscFolds_": {"dim_prop_func": [_affine(1, 0)], "dim_prop_attr": [TIME], "data_": {"[0]": "0"}},
            "coreFoldProp_": {"factor_": sdsc.cores, "label_": "core"},
            "coreletFoldProp_": CORELET,
            "numCoresUsed_": sdsc.cores,
            "coreIdToDsc_": {str(c): 0 for c in cores},
            "numWkSlicesPerDim_": dict(sdsc.slices),
            "coreIdToWkSlice_": {str(c): dict(s) for c, s in sdsc.core_slices.items()},
            "coreIdToDscSchedule": {str(c): [[-1, 0, 0, 0]] for c in cores},
            "dscs_": [{sdsc.opfunc: _dsc_json(sdsc)}],
        }
    }


def _dsc_json(sdsc: SuperDSC) -> Json:
    return {
        "numCoresUsed_": sdsc.cores,
        "numCoreletsUsed_": 1,
        "coreIdsUsed_": list(sdsc.core_slices),
        "N_": {**_sizes_json("n", sdsc.sizes), **_windows_json(sdsc.windows)},
        "coordinateMasking_": {d: [list(m)] for d, m in sdsc.masking.items()},
        "maskingConstId_": sdsc.mask_constant,
        "dataStageParam_": {
            "0": {
                "ss_": _sizes_json("core", sdsc.core_sizes),
                "el_": _sizes_json("core", {**sdsc.core_sizes, **sdsc.last_sizes}),
            }
        },
        "primaryDsInfo_": {
            label: {
                "layoutDimOrder_": list(p.order),
                "stickDimOrder_": list(p.stick_dims),
                "stickSize_": list(p.stick_sizes),
            }
            for label, p in sdsc.primary.items()
        },
        "scheduleTree_": [_allocation_json(a, sdsc.cores) for a in sdsc.allocations],
        "labeledDs_": [
            _labeled_json(t, a.indirect == INDEX_TENSOR) for t, a in zip(sdsc.tensors, sdsc.allocations, strict=True)
        ],
        "constantInfo_": {str(i): _constant_json(c, sdsc.cores) for i, c in enumerate(sdsc.constants)} or "{}",
        "computeOp_": [_compute_json(sdsc.compute)],
    }


def _affine(alpha: int, beta: int) -> Json:
    return {"Affine": {"alpha_": alpha, "beta_": beta}}


def _core_props(cores: int) -> Json:
    return [{"factor_": cores, "label_": "core"}, CORELET, TIME]


def _sizes_json(name: str, sizes: Mapping[str, int]) -> Json:
    return {"name_": name, **{f"{d}_": s for d, s in sizes.items()}}


def _windows_json(windows: Mapping[str, Window]) -> Json:
    if not windows:
        return {}
    return {
        "paddingSizes_": {
            d: {
                "padFront_": 0,
                "padBack_": 0,
                "totalSize_": w.total,
                "stride_": w.stride,
                "dilation_": w.dilation,
                "windowDim_": w.dim,
            }
            for d, w in windows.items()
        }
    }


def _allocation_json(a: Allocation, cores: int) -> Json:
    node: dict[str, Json] = {
        "nodeType_": "allocate",
        "name_": f"allocate-Tensor{a.index}_{a.component}",
        "prev_": "",
        "ldsIdx_": a.index,
        "component_": a.component,
    }
    if a.symbolic:
        node["isStartAddrSymbolic_"] = 1
    node["layoutDimOrder_"] = list(a.order)
    node["maxDimSizes_"] = [a.max_sizes.get(d, -1) for d in a.order]
    if a.indirect is not None:
        node["indirectAllocType_"] = a.indirect
    if a.related is not None:
        node["relatedIndirectAccessAlloc_"] = a.related
    if a.indirect == INDEX_TENSOR:
        node["indexTensorType_"] = "index"
    node["startAddressCoreCorelet_"] = {
        "dim_prop_func": [{"Map": {}}, {"Const": {}}, {"Const": {}}],
        "dim_prop_attr": _core_props(cores),
        "data_": {f"[{c}, 0, 0]": str(address) for c, address in a.start.items()},
    }
    if a.windows:
        node["padding_"] = dict.fromkeys(a.windows, WINDOWED)
    if a.back_gap is not None:
        node["backGapCore_"] = {d: {str(c): str(g) for c, g in gaps.items()} for d, gaps in a.back_gap.items()}
    node["coordinates_"] = {"coordInfo": {d: _folds_json(f) for d, f in a.folds.items()}, "coreIdToWkSlice_": {}}
    return node


def _folds_json(folds: Sequence[Fold]) -> Json:
    return {
        "spatial": 3,
        "temporal": 0,
        "elemArr": len(folds) - 3,
        "padding": "nopad",
        "folds": {
            "dim_prop_func": [_affine(f.alpha, f.beta) for f in folds],
            "dim_prop_attr": [{"factor_": f.factor, "label_": f.label} for f in folds],
        },
    }


def _labeled_json(t: LabeledDs, index: bool) -> Json:
    present = {"isPresent": 1}
    if index:
        organisation = {"hbm": present}
    else:
        organisation = {"hbm": present, "lx": present} if t.in_memory else {"lx": present}
    return {
        "ldsIdx_": t.index,
        "dsName_": f"Tensor{t.index}",
        "dsType_": t.label,
        "scale_": list(t.scale),
        "wordLength": t.word_bytes,
        "dataFormat_": t.format,
        "memOrg_": organisation,
    }


def _constant_json(c: Constant, cores: int) -> Json:
    return {
        "dataFormat_": c.format,
        "name_": c.name,
        "data_": {
            "dim_prop_func": [{"Const": {}}, {"Const": {}}, {"Map": {}}],
            "dim_prop_attr": _core_props(cores),
            "data_": {"[0, 0, 0]": [c.bits]},
        },
    }


def _compute_json(c: Compute) -> Json:
    def names(tensors: Sequence[int]) -> list[str]:
        return [f"Tensor{i}-idx{i}" for i in tensors]

    result = {
        "exUnit": c.unit,
        "opFuncName": c.opfunc,
        "attributes_": {"dataFormat_": c.format, "fidelity_": "regular"},
        "location": "Inner",
        "inputLabeledDs": names(c.inputs),
        "outputLabeledDs": names(c.outputs),
    }
    return {**result, "indirectAccessIndexLabeledDs": names(c.indices)} if c.indices else result
