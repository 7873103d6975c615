# SPDX-License-Identifier: Apache-2.0
"""JSON of one SuperDSC to the dataclasses: strict about what a field holds, liberal about what repeats others.

A file must say sizes, slices, the slice of each core, layouts, addresses, tensors and the op. Everything else may be
missing: core counts, schedules and folds repeat what is said elsewhere, masks, gaps and constants have defaults.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch_spyre.constants import CORES
from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.formats import WORD_BYTES
from torch_spyre.ir.superdsc.schema import (
    INDEX_TENSOR,
    NO_INDIRECTION,
    VALUE_TENSOR,
    Allocation,
    Compute,
    Constant,
    Fold,
    Json,
    LabeledDs,
    Primary,
    SuperDSC,
    Window,
)

_LIMIT = 1 << 62  # no size, address or number of a file is larger
_MAX_DIMS = 16
_MAX_TENSORS = 16
_NO_PADDING = "nopad"


@dataclass
class Fields:
    """A JSON object that is consumed field by field; messages carry its path, leftovers become notes."""

    data: dict[str, Json]
    path: str
    notes: list[str] = field(default_factory=list)

    @staticmethod
    def of(data: Json, path: str, notes: list[str]) -> Fields:
        if not isinstance(data, dict):
            raise InvalidProgram(f"{path}: expected an object, got {type(data).__name__}")
        return Fields(dict(data), path, notes)

    def take(self, name: str) -> Json:
        if name not in self.data:
            raise InvalidProgram(f"{self.path}: field {name} is missing")
        return self.data.pop(name)

    def optional(self, name: str, default: Json = None) -> Json:
        return self.data.pop(name, default)

    def child(self, name: str) -> Fields:
        return Fields.of(self.take(name), f"{self.path}.{name}", self.notes)

    def number(self, name: str, default: int | None = None) -> int:
        if name not in self.data and default is not None:
            return default
        return integer(self.take(name), f"{self.path}.{name}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self.take(name) if default is None else self.optional(name, default)
        if not isinstance(value, str):
            raise InvalidProgram(f"{self.path}.{name}: expected text, got {value!r}")
        return value

    def items(self, name: str, default: Json = None) -> list[Json]:
        value = self.take(name) if default is None else self.optional(name, default)
        if not isinstance(value, list):
            raise InvalidProgram(f"{self.path}.{name}: expected a list, got {type(value).__name__}")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        values = self.items(name)
        if not all(isinstance(v, str) for v in values) or len(set(values)) != len(values):
            raise InvalidProgram(f"{self.path}.{name}: expected distinct names, got {values}")
        return tuple(values)

    def entries(self, name: str, default: Json = None) -> dict[str, Json]:
        value = self.take(name) if default is None else self.optional(name, default)
        if not isinstance(value, dict):
            raise InvalidProgram(f"{self.path}.{name}: expected an object, got {type(value).__name__}")
        return value

    def agree(self, name: str, value: Json) -> None:
        """A field that repeats something: absent, or the same."""
        got = self.optional(name, value)
        if got != value:
            raise InvalidProgram(f"{self.path}: field {name} is {got!r}, the rest of the file says {value!r}")

    def done(self) -> None:
        self.notes += [f"{self.path}.{name}" for name in self.data]


def integer(value: Json, path: str) -> int:
    """A whole number, also as text."""
    if isinstance(value, str) and re.fullmatch(r"\s*[-+]?\d{1,20}\s*", value):
        value = int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _LIMIT:
        raise InvalidProgram(f"{path}: expected a whole number, got {value!r}")
    return value


def single(data: Json, path: str) -> tuple[str, Json]:
    if not isinstance(data, dict) or len(data) != 1:
        raise InvalidProgram(f"{path}: expected an object with one key")
    return next(iter(data.items()))


def parse(data: Json) -> SuperDSC:
    key, body = single(data, "file")
    match = re.fullmatch(r"(\d{1,9})_(\w+)", str(key))
    if match is None:
        raise InvalidProgram(f"top key {key!r} is not <index>_<opfunc>")
    notes: list[str] = []
    top = Fields.of(body, str(key), notes)
    for name in ("sdscFoldProps_", "sdscFolds_", "coreletFoldProp_", "coreIdToDscSchedule"):
        top.optional(name)  # one time step, two corelets at most, one schedule: nothing in it changes what is computed
    slices = {d: integer(n, f"{key}.numWkSlicesPerDim_.{d}") for d, n in top.entries("numWkSlicesPerDim_").items()}
    core_slices = _core_slices(top, slices)
    cores = len(core_slices)
    top.agree("numCoresUsed_", cores)
    top.agree("coreFoldProp_", {"factor_": cores, "label_": "core"})
    others = {c: d for c, d in top.entries("coreIdToDsc_", {}).items() if d != 0}
    if others:
        raise UnsupportedOp(f"{key}: coreIdToDsc_ {others}; all cores run dscs_[0] here")
    dscs = top.items("dscs_")
    if len(dscs) != 1:
        raise UnsupportedOp(f"{key}: {len(dscs)} dscs_ in one file; 1 is known")
    opfunc, dsc = single(dscs[0], f"{key}.dscs_[0]")
    if opfunc != match[2]:
        raise InvalidProgram(f"{key}: dscs_[0] holds {opfunc!r}")
    top.done()
    return _parse_dsc(int(match[1]), opfunc, slices, core_slices, Fields.of(dsc, str(key), notes))


def _core_slices(top: Fields, slices: dict[str, int]) -> dict[int, dict[str, int]]:
    path = f"{top.path}.coreIdToWkSlice_"
    data = top.entries("coreIdToWkSlice_")
    result: dict[int, dict[str, int]] = {}
    for core, places in data.items():
        if not isinstance(places, dict):
            raise InvalidProgram(f"{path}.{core}: expected an object, got {type(places).__name__}")
        given = {d: integer(s, f"{path}.{core}.{d}") for d, s in places.items()}
        # A dim that is not cut has one slice whether the file says so or not.
        result[integer(core, path)] = {**given, **{d: 0 for d, n in slices.items() if n == 1 and d not in given}}
    if not result or len(result) > CORES or not all(0 <= c < CORES for c in result):
        raise InvalidProgram(f"{path} names {len(result)} cores {list(result)[:4]}…; a card has cores 0..{CORES - 1}")
    return dict(sorted(result.items()))


def _parse_dsc(
    index: int, opfunc: str, slices: dict[str, int], core_slices: dict[int, dict[str, int]], f: Fields
) -> SuperDSC:
    cores = list(core_slices)
    f.agree("numCoresUsed_", len(cores))
    f.agree("coreIdsUsed_", cores)
    if f.number("numCoreletsUsed_", 1) not in (1, 2):
        raise InvalidProgram(f"{f.path}: numCoreletsUsed_; a core has 2 corelets")
    whole = dict(f.entries("N_"))
    windows = _windows(whole.pop("paddingSizes_", {}), f"{f.path}.N_.paddingSizes_")
    sizes = _sizes(whole, f"{f.path}.N_")
    if len(sizes) > _MAX_DIMS:
        raise UnsupportedOp(f"{f.path}: {len(sizes)} dims in N_; {_MAX_DIMS} are known")
    core_sizes, last_sizes = _stage(f, sizes, slices, windows)
    computes = f.items("computeOp_")
    if len(computes) != 1:
        raise UnsupportedOp(f"{f.path}: {len(computes)} computeOp_ in one file; 1 is known")
    nodes, labeled = f.items("scheduleTree_"), f.items("labeledDs_")
    if max(len(nodes), len(labeled)) > _MAX_TENSORS:
        raise UnsupportedOp(f"{f.path}: {max(len(nodes), len(labeled))} tensors; {_MAX_TENSORS} are known")
    allocations = tuple(_parse_allocation(n, core_slices, f) for n in nodes)
    tensors = tuple(_parse_labeled(t, f) for t in labeled)
    compute = _parse_compute(Fields.of(computes[0], f"{f.path}.computeOp_", f.notes), opfunc, tensors)
    sdsc = SuperDSC(
        index=index,
        opfunc=opfunc,
        sizes=sizes,
        core_sizes=core_sizes,
        slices=slices,
        core_slices=core_slices,
        primary={
            label: _parse_primary(Fields.of(p, f"{f.path}.{label}", f.notes))
            for label, p in f.entries("primaryDsInfo_").items()
        },
        allocations=tuple(sorted(allocations, key=lambda a: a.index)),
        tensors=tuple(sorted(tensors, key=lambda t: t.index)),
        compute=compute,
        masking=_parse_masks(f),
        mask_constant=f.number("maskingConstId_", -1),
        constants=_parse_constants(f.optional("constantInfo_"), f),
        last_sizes=last_sizes,
        windows=windows,
    )
    f.done()
    return replace(sdsc, notes=tuple(dict.fromkeys(f.notes)))


def _sizes(data: Json, path: str) -> dict[str, int]:
    """Sizes by dim. Objects beside them are metadata (`symbolicDimInfo_`, `paddingSizes_`, …): empty for a static op
    without windows."""
    sizes = {}
    for name, value in data.items():
        if isinstance(value, dict | list):
            if value:
                raise UnsupportedOp(f"{path}.{name}: {value!r}; only an empty one is known")
        elif name != "name_":
            sizes[name.removesuffix("_")] = integer(value, f"{path}.{name}")
    return sizes


def _windows(data: Json, path: str) -> dict[str, Window]:
    if not isinstance(data, dict):
        raise InvalidProgram(f"{path}: expected an object, got {type(data).__name__}")
    found = {}
    for dim, entry in data.items():
        f = Fields.of(entry, f"{path}.{dim}", [])
        pads = [f.number(name, 0) for name in ("padFront_", "padBack_")]
        if any(pads):
            raise UnsupportedOp(f"{f.path}: {pads[0]} and {pads[1]} elements of padding; windows without any are known")
        found[dim] = Window(
            f.text("windowDim_"), f.number("stride_", 1), f.number("dilation_", 1), f.number("totalSize_")
        )
    return found


def _core_sizes(data: dict[str, Json], windows: dict[str, Window], path: str) -> dict[str, int]:
    """Sizes of a slice; the windows that it says are those of the whole."""
    rest = dict(data)
    own = rest.pop("paddingSizes_", {})
    found = _windows(own, f"{path}.paddingSizes_") if windows else {}
    alike = all(d in windows and replace(w, total=windows[d].total) == windows[d] for d, w in found.items())
    if not alike or (own and not windows):
        raise UnsupportedOp(f"{path}.paddingSizes_: {own!r}; the windows of N_ are {sorted(windows) or 'none'}")
    return _sizes(rest, path)


def _stage(
    f: Fields, sizes: dict[str, int], slices: dict[str, int], windows: dict[str, Window]
) -> tuple[dict[str, int], dict[str, int]]:
    """Elements per slice, and those of the last slice where it is shorter."""
    stages = f.entries("dataStageParam_", {})
    path = f"{f.path}.dataStageParam_"
    if not stages:
        return {d: -(-size // max(slices.get(d, 1), 1)) for d, size in sizes.items()}, {}
    if [*stages] != ["0"]:
        raise UnsupportedOp(f"{path}: stages {[*stages]}; one stage is known")
    stage = Fields.of(stages["0"], path, f.notes)
    steady, last = (_core_sizes(stage.entries(part, {}), windows, f"{path}.{part}") for part in ("ss_", "el_"))
    stage.done()
    shorter = {d: n for d, n in last.items() if n != steady.get(d)}
    for dim, part in steady.items():
        rest = sizes.get(dim, 0) - (slices.get(dim, 1) - 1) * part
        if dim not in shorter and 0 < rest < part:
            shorter[dim] = rest  # a file that does not tell its last slice from the others
    return steady, shorter


def _parse_primary(f: Fields) -> Primary:
    sizes = tuple(integer(n, f"{f.path}.stickSize_") for n in f.items("stickSize_"))
    primary = Primary(f.names("layoutDimOrder_"), f.names("stickDimOrder_"), sizes)
    f.done()
    return primary


def _parse_masks(f: Fields) -> dict[str, tuple[int, int]]:
    masks = {}
    for dim, ranges in f.entries("coordinateMasking_", {}).items():
        path = f"{f.path}.coordinateMasking_.{dim}"
        if not isinstance(ranges, list) or len(ranges) != 1 or not isinstance(ranges[0], list) or len(ranges[0]) != 2:
            raise UnsupportedOp(f"{path}: coordinateMasking_ {ranges}; one [valid, pad] pair is known")
        masks[dim] = (integer(ranges[0][0], path), integer(ranges[0][1], path))
    return masks


def _parse_allocation(node: Json, core_slices: dict[int, dict[str, int]], parent: Fields) -> Allocation:
    f = Fields.of(node, f"{parent.path}.scheduleTree_", parent.notes)
    kind = f.text("nodeType_", "allocate")
    if kind != "allocate":
        raise UnsupportedOp(f"{f.path}: node of type {kind!r}; allocate nodes are known")
    index = f.number("ldsIdx_")
    f.path = f"{f.path}.Tensor{index}"
    component = f.text("component_")
    if component not in ("hbm", "lx"):
        raise InvalidProgram(f"{f.path}: component_ {component!r} is neither hbm nor lx")
    f.agree("name_", f"allocate-Tensor{index}_{component}")
    f.agree("prev_", "")
    symbolic = bool(f.number("isStartAddrSymbolic_", 0))
    indirect = f.optional("indirectAllocType_")
    if indirect not in (None, NO_INDIRECTION, INDEX_TENSOR, VALUE_TENSOR):
        raise UnsupportedOp(f"{f.path}: indirectAllocType_ {indirect!r}; index_tensor and value_tensor are known")
    related = f.optional("relatedIndirectAccessAlloc_")
    f.optional("indexTensorType_")
    padding = f.entries("padding_", {})
    order = f.names("layoutDimOrder_")
    sizes = [integer(n, f"{f.path}.maxDimSizes_") for n in f.items("maxDimSizes_", [-1] * len(order))]
    if len(sizes) != len(order):
        raise InvalidProgram(f"{f.path}: {len(sizes)} maxDimSizes_ for {len(order)} dims")
    start = _parse_start(f, list(core_slices))
    gaps = f.entries("backGapCore_", {})
    back_gap = {
        d: {integer(c, f"{f.path}.backGapCore_"): integer(v, f"{f.path}.backGapCore_.{d}") for c, v in g.items()}
        for d, g in gaps.items()
    }
    folds = _parse_coordinates(f, core_slices)
    f.done()
    return Allocation(
        index=index,
        component=component,
        order=order,
        start=start,
        folds=folds,
        back_gap=back_gap or None,
        max_sizes={d: size for d, size in zip(order, sizes, strict=True) if size != -1},
        indirect=indirect,
        symbolic=symbolic,
        related=related if isinstance(related, str) and related else None,
        windows=tuple(d for d in order if padding.get(d, _NO_PADDING) != _NO_PADDING),
    )


def _parse_start(f: Fields, cores: Sequence[int]) -> dict[int, int]:
    start = f.child("startAddressCoreCorelet_")
    start.optional("dim_prop_func")
    start.optional("dim_prop_attr")
    found: dict[int, int] = {}
    for key, address in start.entries("data_").items():
        match = re.fullmatch(r"\[\s*(\d{1,4})\s*(?:,\s*(\d{1,4})\s*)?(?:,\s*(\d{1,4})\s*)?\]", key)
        if match is None:
            raise InvalidProgram(f"{start.path}: key {key!r} is not [core, corelet, time]")
        core, value = int(match[1]), integer(address, f"{start.path}.{key}")
        if found.setdefault(core, value) != value:
            raise UnsupportedOp(f"{start.path}: core {core} has one address per corelet or time step; one is known")
    start.done()
    if sorted(found) == list(range(len(cores))) and sorted(found) != list(cores):
        found = dict(zip(cores, (found[i] for i in sorted(found)), strict=True))
    if sorted(found) != list(cores):
        raise InvalidProgram(f"{start.path}: addresses of cores {sorted(found)}, the op runs on {list(cores)}")
    return {c: found[c] for c in cores}


def _parse_coordinates(f: Fields, core_slices: dict[int, dict[str, int]]) -> dict[str, tuple[Fold, ...]]:
    if "coordinates_" not in f.data:
        return {}
    coordinates = f.child("coordinates_")
    own = coordinates.entries("coreIdToWkSlice_", {})
    for core, place in own.items():
        works = core_slices.get(integer(core, coordinates.path), {})
        # A tensor that lacks a dim has slice 0 of it on every core.
        if any(slice_ and works.get(d) != slice_ for d, slice_ in place.items()):
            raise UnsupportedOp(
                f"{coordinates.path}.coreIdToWkSlice_: core {core} has {place} of this tensor, and works on {works}; a "
                "tensor is split as the op that uses it"
            )
    result = {}
    for dim, info in coordinates.entries("coordInfo", {}).items():
        level = Fields.of(info, f"{f.path}.coordinates_.{dim}", f.notes)
        for name in ("spatial", "temporal", "elemArr", "padding"):
            level.optional(name)
        body = level.child("folds")
        functions, attributes = body.items("dim_prop_func"), body.items("dim_prop_attr")
        if len(functions) != len(attributes):
            raise InvalidProgram(f"{level.path}: {len(functions)} functions for {len(attributes)} folds")
        result[dim] = tuple(_parse_fold(p, a, level) for p, a in zip(functions, attributes, strict=True))
        body.optional("data_")
        body.done()
        level.done()
    coordinates.done()
    return result


def _parse_fold(function: Json, attribute: Json, parent: Fields) -> Fold:
    affine = Fields.of(function, parent.path, parent.notes).child("Affine")
    place = Fields.of(attribute, parent.path, parent.notes)
    return Fold(place.text("label_"), place.number("factor_"), affine.number("alpha_"), affine.number("beta_", 0))


def _parse_labeled(data: Json, parent: Fields) -> LabeledDs:
    f = Fields.of(data, f"{parent.path}.labeledDs_", parent.notes)
    index = f.number("ldsIdx_")
    f.path = f"{f.path}.Tensor{index}"
    f.agree("dsName_", f"Tensor{index}")
    format = f.text("dataFormat_")
    organisation = f.entries("memOrg_", {"hbm": {}})
    if not {*organisation} <= {"hbm", "lx"} or not organisation:
        raise UnsupportedOp(f"{f.path}: memOrg_ {organisation}; hbm and lx are known")
    tensor = LabeledDs(
        index=index,
        label=f.text("dsType_"),
        scale=tuple(integer(s, f"{f.path}.scale_") for s in f.items("scale_")),
        word_bytes=f.number("wordLength", WORD_BYTES.get(format, 0)),
        format=format,
        in_memory="hbm" in organisation,
    )
    f.done()
    return tensor


def _parse_constants(data: Json, parent: Fields) -> tuple[Constant, ...]:
    if data in (None, "{}", "", {}):
        return ()
    if not isinstance(data, dict):
        raise InvalidProgram(f"{parent.path}.constantInfo_: expected an object, got {data!r}")
    constants = []
    for key, item in data.items():
        f = Fields.of(item, f"{parent.path}.constantInfo_.{key}", parent.notes)
        values = f.child("data_").entries("data_")
        numbers = {integer(n, f.path) for v in values.values() for n in (v if isinstance(v, list) else [v])}
        if len(numbers) != 1:
            raise UnsupportedOp(f"{f.path}: {len(numbers)} values; a constant holds one value for all cores")
        constants.append(Constant(f.text("name_"), f.text("dataFormat_"), numbers.pop()))
        f.done()
    return tuple(constants)


def _parse_compute(f: Fields, opfunc: str, tensors: Sequence[LabeledDs]) -> Compute:
    name = f.text("opFuncName")
    if name != opfunc:
        raise InvalidProgram(f"{f.path}: opFuncName is {name!r}, the file's key says {opfunc!r}")
    f.optional("location")
    attributes = Fields.of(f.optional("attributes_", {}), f"{f.path}.attributes_", f.notes)
    attributes.optional("fidelity_")
    compute = Compute(
        unit=f.text("exUnit", "sfp"),
        opfunc=opfunc,
        format=attributes.text("dataFormat_", tensors[0].format if tensors else "SEN169_FP16"),
        inputs=_references(f.items("inputLabeledDs"), f.path),
        outputs=_references(f.items("outputLabeledDs"), f.path),
        indices=_references(f.items("indirectAccessIndexLabeledDs", []), f.path),
    )
    attributes.done()
    f.done()
    return compute


def _references(names: Sequence[Json], path: str) -> tuple[int, ...]:
    matches = [re.fullmatch(r"Tensor(\d{1,4})(?:-idx\1)?", str(n)) for n in names]
    if None in matches:
        raise InvalidProgram(f"{path}: tensor references {list(names)} are not all of the form Tensor<i>-idx<i>")
    return tuple(int(m[1]) for m in matches if m is not None)
