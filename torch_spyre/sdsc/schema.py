# SPDX-License-Identifier: Apache-2.0
"""One SuperDSC (`sdsc_<i>.json`) as dataclasses, and its JSON form with the published field names.

`to_json` and `from_json` are inverse to each other. Fields that have one legal value in this vocabulary (time folds,
corelet factors, schedules) are not stored: `from_json` checks them, so nothing that a file says is dropped silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_spyre.errors import InvalidProgram, UnsupportedOp

Json = Any

_TIME = {"factor_": 1, "label_": "time"}
_CORELET = {"factor_": 1, "label_": "corelet"}
_NO_INDIRECTION = "no_indirection"


@dataclass(frozen=True)
class Fold:
    """One affine level of a coordinate: index i of `factor` stands for ``alpha * i + beta``."""

    label: str
    factor: int
    alpha: int
    beta: int = 0


@dataclass(frozen=True)
class Primary:
    """A layout label: dims from inner to outer and the dim that fills the sticks."""

    order: tuple[str, ...]
    stick_dims: tuple[str, ...]
    stick_sizes: tuple[int, ...]


@dataclass(frozen=True)
class Allocation:
    """Where a tensor starts on each core, in which order its dims lie (inner to outer), and its coordinates."""

    index: int
    component: str  # hbm or lx
    order: tuple[str, ...]
    start: dict[int, int]  # core -> byte address
    folds: dict[str, tuple[Fold, ...]]
    back_gap: dict[str, dict[int, int]] | None = None  # dim -> core (-1: all) -> elements after the iterated ones
    max_sizes: dict[str, int] = field(default_factory=dict)  # dim -> elements, where the tensor ends before the padding
    indirect: str | None = _NO_INDIRECTION  # absent in files of older front ends

    def gap(self, dim: str) -> int:
        """Elements that the tensor has past the iterated ones; the same on all cores."""
        gaps = set((self.back_gap or {}).get(dim, {}).values())
        if len(gaps) > 1:
            raise UnsupportedOp(f"backGapCore_ of Tensor{self.index}, dim {dim} differs between cores: {sorted(gaps)}")
        return gaps.pop() if gaps else 0


@dataclass(frozen=True)
class LabeledDs:
    """A tensor of the op: layout label, format, and a scale per dim of the label (1, -1 lacking, -2 lacking stick)."""

    index: int
    label: str
    scale: tuple[int, ...]
    word_bytes: int
    format: str
    in_memory: bool


@dataclass(frozen=True)
class Constant:
    name: str
    format: str
    bits: int


@dataclass(frozen=True)
class Compute:
    unit: str  # pt or sfp
    opfunc: str
    format: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """Strides in elements of one tensor. The stick dim's stride counts whole sticks; dims it lacks have stride 0."""

    stick: str
    stick_elements: int
    extents: dict[str, int]  # sticks for the stick dim; inner to outer
    strides: dict[str, int]


@dataclass(frozen=True)
class SuperDSC:
    """One device operation. Dims are labels (mb, out, in, …), outer to inner, with padded sizes."""

    index: int
    opfunc: str
    sizes: dict[str, int]
    core_sizes: dict[str, int]
    slices: dict[str, int]
    core_slices: dict[int, dict[str, int]]
    primary: dict[str, Primary]
    allocations: tuple[Allocation, ...]
    tensors: tuple[LabeledDs, ...]
    compute: Compute
    masking: dict[str, tuple[int, int]] = field(default_factory=dict)  # dim -> (valid, pad)
    mask_constant: int = -1
    constants: tuple[Constant, ...] = ()

    @property
    def cores(self) -> int:
        return len(self.core_slices)

    def scale(self, tensor: int) -> dict[str, int]:
        ds = self.tensors[tensor]
        return dict(zip(self.primary[ds.label].order, ds.scale, strict=True))

    def geometry(self, tensor: int) -> Geometry:
        """Extents and strides from the layout order, the sizes (one core's in LX), the back gaps and true sizes."""
        allocation, scale = self.allocations[tensor], self.scale(tensor)
        primary = self.primary[self.tensors[tensor].label]
        if len(primary.stick_dims) != 1:
            raise UnsupportedOp(
                f"Tensor{tensor} has {len(primary.stick_dims)} stick dims {primary.stick_dims}; 1 is known"
            )
        stick, elements = primary.stick_dims[0], primary.stick_sizes[0]
        sizes = self.sizes if allocation.component == "hbm" else self.core_sizes
        stride, extents, strides = elements, {}, {}
        for dim in allocation.order:
            present = scale[dim] > 0
            extent = allocation.max_sizes.get(dim, sizes[dim] + allocation.gap(dim)) if present else 1
            if dim == stick and present:
                extent = -(-extent // elements)
            extents[dim], strides[dim] = extent, stride if present else 0
            stride *= extent
        return Geometry(stick, elements, extents, strides)

    def core_offset(self, tensor: int, core: int) -> int:
        """Bytes from the tensor's start to the start of a core's slice (0 in LX, where each core holds its own)."""
        if self.allocations[tensor].component != "hbm":
            return 0
        geometry, offset = self.geometry(tensor), 0
        for dim, stride in geometry.strides.items():
            unit = geometry.stick_elements if dim == geometry.stick else 1
            offset += self.core_slices[core][dim] * (self.core_sizes[dim] // unit) * stride
        return offset * self.tensors[tensor].word_bytes

    def verify(self) -> None:
        """Raise InvalidProgram that names each broken rule, the tensor and the core."""
        from torch_spyre.sdsc.rules import problems  # the rules are written over this class

        found = problems(self)
        if found:
            raise InvalidProgram(
                f"SuperDSC {self.index}_{self.opfunc} breaks the format: " + "; ".join(map(str, found))
            )

    def to_json(self) -> Json:
        cores = range(self.cores)
        return {
            f"{self.index}_{self.opfunc}": {
                "sdscFoldProps_": [_TIME],
                "sdscFolds_": _time_fold(),
                "coreFoldProp_": {"factor_": self.cores, "label_": "core"},
                "coreletFoldProp_": _CORELET,
                "numCoresUsed_": self.cores,
                "coreIdToDsc_": {str(c): 0 for c in cores},
                "numWkSlicesPerDim_": dict(self.slices),
                "coreIdToWkSlice_": {str(c): dict(s) for c, s in self.core_slices.items()},
                "coreIdToDscSchedule": {str(c): [[-1, 0, 0, 0]] for c in cores},
                "dscs_": [{self.opfunc: self._dsc_json()}],
            }
        }

    def _dsc_json(self) -> Json:
        stage = _sizes_json("core", self.core_sizes)
        return {
            "numCoresUsed_": self.cores,
            "numCoreletsUsed_": 1,
            "coreIdsUsed_": list(range(self.cores)),
            "N_": _sizes_json("n", self.sizes),
            "coordinateMasking_": {d: [list(m)] for d, m in self.masking.items()},
            "maskingConstId_": self.mask_constant,
            "dataStageParam_": {"0": {"ss_": stage, "el_": dict(stage)}},
            "primaryDsInfo_": {
                label: {
                    "layoutDimOrder_": list(p.order),
                    "stickDimOrder_": list(p.stick_dims),
                    "stickSize_": list(p.stick_sizes),
                }
                for label, p in self.primary.items()
            },
            "scheduleTree_": [_allocation_json(a, self.cores) for a in self.allocations],
            "labeledDs_": [_labeled_json(t) for t in self.tensors],
            "constantInfo_": {str(i): _constant_json(c, self.cores) for i, c in enumerate(self.constants)} or "{}",
            "computeOp_": [_compute_json(self.compute)],
        }

    @staticmethod
    def from_json(data: Json) -> SuperDSC:
        """Parse one file's JSON; InvalidProgram names the field that is missing, unknown or has an unknown value."""
        try:
            return _parse(data)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            key = next(iter(data), "") if isinstance(data, dict) else data
            raise InvalidProgram(f"SuperDSC {key!r} is malformed: {type(error).__name__}: {error}") from error


class _Fields:
    """A JSON object that must be consumed completely; messages carry its path."""

    def __init__(self, data: Json, path: str) -> None:
        if not isinstance(data, dict):
            raise InvalidProgram(f"{path}: expected an object, got {type(data).__name__}")
        self.data, self.path = dict(data), path

    def take(self, name: str) -> Json:
        if name not in self.data:
            raise InvalidProgram(f"{self.path}: field {name} is missing")
        return self.data.pop(name)

    def optional(self, name: str) -> Json:
        return self.data.pop(name, None)

    def child(self, name: str) -> _Fields:
        return _Fields(self.take(name), f"{self.path}.{name}")

    def expect(self, name: str, value: Json) -> None:
        got = self.take(name)
        if got != value:
            raise InvalidProgram(f"{self.path}: field {name} is {got!r}, this vocabulary has {value!r}")

    def done(self) -> None:
        if self.data:
            raise InvalidProgram(f"{self.path}: unknown fields {', '.join(self.data)}")


def _single(data: Json, path: str) -> tuple[str, Json]:
    if not isinstance(data, dict) or len(data) != 1:
        raise InvalidProgram(f"{path}: expected an object with one key")
    return next(iter(data.items()))


def _time_fold() -> Json:
    return {"dim_prop_func": [_affine(1, 0)], "dim_prop_attr": [_TIME], "data_": {"[0]": "0"}}


def _affine(alpha: int, beta: int) -> Json:
    return {"Affine": {"alpha_": alpha, "beta_": beta}}


def _core_props(cores: int) -> Json:
    return [{"factor_": cores, "label_": "core"}, _CORELET, _TIME]


def _sizes_json(name: str, sizes: Mapping[str, int]) -> Json:
    return {"name_": name, **{f"{d}_": s for d, s in sizes.items()}}


def _parse_sizes(data: Json, name: str, path: str) -> dict[str, int]:
    fields = _Fields(data, path)
    fields.expect("name_", name)
    return {d.removesuffix("_"): int(s) for d, s in fields.data.items()}


def _allocation_json(a: Allocation, cores: int) -> Json:
    node: dict[str, Json] = {
        "nodeType_": "allocate",
        "name_": f"allocate-Tensor{a.index}_{a.component}",
        "prev_": "",
        "ldsIdx_": a.index,
        "component_": a.component,
        "layoutDimOrder_": list(a.order),
        "maxDimSizes_": [a.max_sizes.get(d, -1) for d in a.order],
    }
    if a.indirect is not None:
        node["indirectAllocType_"] = a.indirect
    node["startAddressCoreCorelet_"] = {
        "dim_prop_func": [{"Map": {}}, {"Const": {}}, {"Const": {}}],
        "dim_prop_attr": _core_props(cores),
        "data_": {f"[{c}, 0, 0]": str(address) for c, address in a.start.items()},
    }
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


def _labeled_json(t: LabeledDs) -> Json:
    present = {"isPresent": 1}
    return {
        "ldsIdx_": t.index,
        "dsName_": f"Tensor{t.index}",
        "dsType_": t.label,
        "scale_": list(t.scale),
        "wordLength": t.word_bytes,
        "dataFormat_": t.format,
        "memOrg_": {"hbm": present, "lx": present} if t.in_memory else {"lx": present},
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
    return {
        "exUnit": c.unit,
        "opFuncName": c.opfunc,
        "attributes_": {"dataFormat_": c.format, "fidelity_": "regular"},
        "location": "Inner",
        "inputLabeledDs": [f"Tensor{i}-idx{i}" for i in c.inputs],
        "outputLabeledDs": [f"Tensor{i}-idx{i}" for i in c.outputs],
    }


def _parse(data: Json) -> SuperDSC:
    key, body = _single(data, "file")
    match = re.fullmatch(r"(\d+)_(\w+)", key)
    if match is None:
        raise InvalidProgram(f"top key {key!r} is not <index>_<opfunc>")
    top = _Fields(body, key)
    cores = top.take("numCoresUsed_")
    top.expect("sdscFoldProps_", [_TIME])
    top.expect("sdscFolds_", _time_fold())
    top.expect("coreFoldProp_", {"factor_": cores, "label_": "core"})
    top.expect("coreletFoldProp_", _CORELET)
    top.expect("coreIdToDsc_", {str(c): 0 for c in range(cores)})
    top.expect("coreIdToDscSchedule", {str(c): [[-1, 0, 0, 0]] for c in range(cores)})
    slices = top.take("numWkSlicesPerDim_")
    core_slices = {int(c): s for c, s in top.take("coreIdToWkSlice_").items()}
    if sorted(core_slices) != list(range(cores)):
        raise InvalidProgram(f"{key}: coreIdToWkSlice_ names cores {sorted(core_slices)}, numCoresUsed_ is {cores}")
    dscs = top.take("dscs_")
    if len(dscs) != 1:
        raise UnsupportedOp(f"{key}: {len(dscs)} dscs_ in one file; 1 is known")
    top.done()
    opfunc, dsc = _single(dscs[0], f"{key}.dscs_[0]")
    if opfunc != match[2]:
        raise InvalidProgram(f"{key}: dscs_[0] holds {opfunc!r}")
    return _parse_dsc(int(match[1]), opfunc, slices, core_slices, _Fields(dsc, key))


def _parse_dsc(
    index: int, opfunc: str, slices: dict[str, int], core_slices: dict[int, dict[str, int]], f: _Fields
) -> SuperDSC:
    cores = len(core_slices)
    f.expect("numCoresUsed_", cores)
    f.expect("numCoreletsUsed_", 1)
    f.expect("coreIdsUsed_", list(range(cores)))
    stages = f.child("dataStageParam_")
    stage = stages.child("0")
    stages.done()
    core_sizes = _parse_sizes(stage.take("ss_"), "core", stage.path)
    stage.expect("el_", _sizes_json("core", core_sizes))
    computes = f.take("computeOp_")
    if len(computes) != 1:
        raise UnsupportedOp(f"{f.path}: {len(computes)} computeOp_ in one file; 1 is known")
    sdsc = SuperDSC(
        index=index,
        opfunc=opfunc,
        sizes=_parse_sizes(f.take("N_"), "n", f"{f.path}.N_"),
        core_sizes=core_sizes,
        slices=slices,
        core_slices=core_slices,
        primary={
            label: _parse_primary(_Fields(p, f"{f.path}.{label}")) for label, p in f.take("primaryDsInfo_").items()
        },
        allocations=tuple(_parse_allocation(n, cores, f.path) for n in f.take("scheduleTree_")),
        tensors=tuple(_parse_labeled(t, f.path) for t in f.take("labeledDs_")),
        compute=_parse_compute(_Fields(computes[0], f"{f.path}.computeOp_"), opfunc),
        masking={
            d: _parse_mask(m, f"{f.path}.coordinateMasking_.{d}") for d, m in f.take("coordinateMasking_").items()
        },
        mask_constant=f.take("maskingConstId_"),
        constants=_parse_constants(f.take("constantInfo_"), f.path),
    )
    f.done()
    return sdsc


def _parse_primary(f: _Fields) -> Primary:
    primary = Primary(tuple(f.take("layoutDimOrder_")), tuple(f.take("stickDimOrder_")), tuple(f.take("stickSize_")))
    f.done()
    return primary


def _parse_mask(ranges: Json, path: str) -> tuple[int, int]:
    if len(ranges) != 1 or len(ranges[0]) != 2:
        raise UnsupportedOp(f"{path}: coordinateMasking_ {ranges}; one [valid, pad] pair is known")
    return (ranges[0][0], ranges[0][1])


def _parse_allocation(node: Json, cores: int, path: str) -> Allocation:
    f = _Fields(node, f"{path}.scheduleTree_")
    f.expect("nodeType_", "allocate")
    index, component = f.take("ldsIdx_"), f.take("component_")
    f.path = f"{f.path}.Tensor{index}"
    f.expect("name_", f"allocate-Tensor{index}_{component}")
    f.expect("prev_", "")
    if component not in ("hbm", "lx"):
        raise InvalidProgram(f"{f.path}: component_ {component!r} is neither hbm nor lx")
    if f.optional("isStartAddrSymbolic_"):
        raise UnsupportedOp(f"{f.path}: symbolic start addresses; emit the bundle with literal addresses")
    indirect = f.optional("indirectAllocType_")
    if indirect not in (None, _NO_INDIRECTION):
        raise UnsupportedOp(f"{f.path}: indirectAllocType_ {indirect}; gathers are outside this vocabulary")
    order = tuple(f.take("layoutDimOrder_"))
    sizes = f.take("maxDimSizes_")
    start = f.child("startAddressCoreCorelet_")
    start.expect("dim_prop_func", [{"Map": {}}, {"Const": {}}, {"Const": {}}])
    start.expect("dim_prop_attr", _core_props(cores))
    addresses = start.take("data_")
    start.done()
    if list(addresses) != [f"[{c}, 0, 0]" for c in range(cores)]:
        raise InvalidProgram(f"{start.path}: data_ does not list the cores 0..{cores - 1} in order")
    gaps = f.optional("backGapCore_")
    coordinates = f.child("coordinates_")
    folds = {d: _parse_folds(_Fields(i, f"{f.path}.{d}")) for d, i in coordinates.take("coordInfo").items()}
    coordinates.expect("coreIdToWkSlice_", {})
    coordinates.done()
    f.done()
    return Allocation(
        index=index,
        component=component,
        order=order,
        start={c: int(a) for c, a in enumerate(addresses.values())},
        folds=folds,
        back_gap=None if gaps is None else {d: {int(c): int(v) for c, v in g.items()} for d, g in gaps.items()},
        max_sizes={d: int(size) for d, size in zip(order, sizes, strict=True) if size != -1},
        indirect=indirect,
    )


def _parse_folds(f: _Fields) -> tuple[Fold, ...]:
    f.expect("spatial", 3)
    f.expect("temporal", 0)
    f.expect("padding", "nopad")
    body = f.child("folds")
    functions, attributes = body.take("dim_prop_func"), body.take("dim_prop_attr")
    body.done()
    folds = tuple(
        Fold(a["label_"], a["factor_"], p["Affine"]["alpha_"], p["Affine"]["beta_"])
        for p, a in zip(functions, attributes, strict=True)
    )
    f.expect("elemArr", len(folds) - 3)
    f.done()
    return folds


def _parse_labeled(data: Json, path: str) -> LabeledDs:
    f = _Fields(data, f"{path}.labeledDs_")
    index = f.take("ldsIdx_")
    f.expect("dsName_", f"Tensor{index}")
    organisation = f.take("memOrg_")
    tensor = LabeledDs(
        index=index,
        label=f.take("dsType_"),
        scale=tuple(f.take("scale_")),
        word_bytes=f.take("wordLength"),
        format=f.take("dataFormat_"),
        in_memory="hbm" in organisation,
    )
    if organisation != _labeled_json(tensor)["memOrg_"]:
        raise UnsupportedOp(f"{f.path}.Tensor{index}: memOrg_ {organisation}; memory and LX, or LX alone, are known")
    f.done()
    return tensor


def _parse_constants(data: Json, path: str) -> tuple[Constant, ...]:
    if data == "{}" or not data:
        return ()
    constants = []
    for i, (key, item) in enumerate(data.items()):
        f = _Fields(item, f"{path}.constantInfo_.{key}")
        values = f.child("data_").take("data_")
        if key != str(i) or list(values) != ["[0, 0, 0]"] or len(values["[0, 0, 0]"]) != 1:
            raise UnsupportedOp(f"{f.path}: constants are numbered from 0 and hold one value each")
        constants.append(Constant(f.take("name_"), f.take("dataFormat_"), int(values["[0, 0, 0]"][0])))
        f.done()
    return tuple(constants)


def _parse_compute(f: _Fields, opfunc: str) -> Compute:
    f.expect("opFuncName", opfunc)
    f.expect("location", "Inner")
    attributes = f.child("attributes_")
    attributes.expect("fidelity_", "regular")
    compute = Compute(
        unit=f.take("exUnit"),
        opfunc=opfunc,
        format=attributes.take("dataFormat_"),
        inputs=_parse_references(f.take("inputLabeledDs"), f.path),
        outputs=_parse_references(f.take("outputLabeledDs"), f.path),
    )
    attributes.done()
    f.done()
    return compute


def _parse_references(names: Sequence[str], path: str) -> tuple[int, ...]:
    matches = [re.fullmatch(r"Tensor(\d+)-idx\1", n) for n in names]
    if None in matches:
        raise InvalidProgram(f"{path}: tensor references {list(names)} are not all of the form Tensor<i>-idx<i>")
    return tuple(int(m[1]) for m in matches if m is not None)
