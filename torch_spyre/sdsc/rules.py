# SPDX-License-Identifier: Apache-2.0
"""Rules that every SuperDSC obeys. `problems` returns those broken; each names the rule, the tensor and the core."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch_spyre.constants import CORES, DATA_SEGMENTS, LX_BYTES, MAX_SPAN_BYTES, SEGMENT_BYTES, STICK_BYTES
from torch_spyre.sdsc.formats import WORD_BYTES
from torch_spyre.sdsc.schema import Fold, SuperDSC


@dataclass(frozen=True)
class Problem:
    rule: str
    detail: str
    tensor: int | None = None
    core: int | None = None

    def __str__(self) -> str:
        where = [f"Tensor{self.tensor}"] if self.tensor is not None else []
        where += [f"core {self.core}"] if self.core is not None else []
        return f"[{self.rule}] {', '.join(where)}{': ' if where else ''}{self.detail}"


def problems(sdsc: SuperDSC) -> list[Problem]:
    found = [*_names(sdsc)]
    if not found:  # the other rules look names up
        found = [*_sticks(sdsc), *_split(sdsc), *_core_map(sdsc), *_masks(sdsc)]
    if not found:
        for tensor in range(len(sdsc.tensors)):
            found += [*_true_sizes(sdsc, tensor)] or [*_addresses(sdsc, tensor), *_folds(sdsc, tensor)]
    return found


def _names(sdsc: SuperDSC) -> Iterator[Problem]:
    count, dims = len(sdsc.tensors), list(sdsc.sizes)
    for what, got in (("labeledDs_", sdsc.tensors), ("scheduleTree_", sdsc.allocations)):
        if [t.index for t in got] != list(range(count)):
            yield Problem("names", f"{what} lists tensors {[t.index for t in got]}, expected 0..{count - 1} in order")
            return
    for tensor, (ds, allocation) in enumerate(zip(sdsc.tensors, sdsc.allocations, strict=True)):
        primary = sdsc.primary.get(ds.label)
        if primary is None:
            yield Problem("names", f"dsType_ {ds.label} is not in primaryDsInfo_", tensor)
        elif len(primary.stick_dims) != len(primary.stick_sizes):
            yield Problem("names", f"stickDimOrder_ and stickSize_ of {ds.label} differ in length", tensor)
        elif len(ds.scale) != len(primary.order):
            yield Problem("names", f"{len(ds.scale)} scales for the dims {list(primary.order)}", tensor)
        elif sorted(primary.order) != sorted(allocation.order) or sorted(allocation.order) != sorted(allocation.folds):
            yield Problem("names", f"layout {list(allocation.order)} and label {ds.label} have different dims", tensor)
        elif not {*primary.order, *primary.stick_dims} <= {*dims}:
            yield Problem("names", f"dims {list(primary.order)} are not all in N_ ({dims})", tensor)
        elif not {*primary.stick_dims} <= {*primary.order}:
            yield Problem("names", f"stick dims {list(primary.stick_dims)} are not in {list(primary.order)}", tensor)
        elif ds.in_memory != (allocation.component == "hbm"):
            yield Problem("names", f"memOrg_ and component_ {allocation.component} disagree", tensor)
    for what, sizes in (("dataStageParam_", sdsc.core_sizes), ("numWkSlicesPerDim_", sdsc.slices)):
        if sorted(sizes) != sorted(dims):
            yield Problem("names", f"{what} has the dims {list(sizes)}, N_ has {dims}")
    for reference in (*sdsc.compute.inputs, *sdsc.compute.outputs):
        if reference >= count:
            yield Problem("names", f"computeOp_ names Tensor{reference}, the file has {count} tensors")


def _sticks(sdsc: SuperDSC) -> Iterator[Problem]:
    for tensor, ds in enumerate(sdsc.tensors):
        word, primary = WORD_BYTES.get(ds.format), sdsc.primary[ds.label]
        if word is None:
            yield Problem("format", f"unknown dataFormat_ {ds.format}", tensor)
        elif ds.word_bytes != word:
            yield Problem("format", f"wordLength {ds.word_bytes}, {ds.format} has {word} bytes", tensor)
        elif math.prod(primary.stick_sizes) * word != STICK_BYTES:
            detail = (
                f"stickSize_ {list(primary.stick_sizes)}, a stick of {ds.format} holds {STICK_BYTES // word} elements"
            )
            yield Problem("stick-size", detail, tensor)


def _split(sdsc: SuperDSC) -> Iterator[Problem]:
    for dim, size in sdsc.sizes.items():
        slices, part = sdsc.slices[dim], sdsc.core_sizes[dim]
        if slices < 1 or slices * part != size:
            yield Problem("split", f"dim {dim}: {slices} slices of {part} elements do not make {size}")
    for tensor, ds in enumerate(sdsc.tensors):
        primary, scale = sdsc.primary[ds.label], sdsc.scale(tensor)
        for dim, elements in zip(primary.stick_dims, primary.stick_sizes, strict=True):
            if scale[dim] > 0 and sdsc.core_sizes[dim] % elements:
                detail = f"dim {dim}: {sdsc.core_sizes[dim]} elements per core are not whole sticks of {elements}"
                yield Problem("stick-slice", detail, tensor)


def _core_map(sdsc: SuperDSC) -> Iterator[Problem]:
    expected = math.prod(sdsc.slices.values())
    if sdsc.cores != expected or not 1 <= sdsc.cores <= CORES:
        yield Problem("core-map", f"{sdsc.cores} cores for {expected} slices; a card has {CORES}")
    seen: dict[tuple[int, ...], int] = {}
    for core, place in sdsc.core_slices.items():
        outside = [d for d in sdsc.sizes if not 0 <= place.get(d, -1) < sdsc.slices[d]]
        if outside:
            yield Problem("core-map", f"slice of dim {outside[0]} is {place.get(outside[0])}", core=core)
            continue
        key = tuple(place[d] for d in sdsc.sizes)
        if key in seen:
            yield Problem("core-map", f"same slices as core {seen[key]}", core=core)
        seen[key] = core


def _masks(sdsc: SuperDSC) -> Iterator[Problem]:
    for dim, (valid, pad) in sdsc.masking.items():
        if dim not in sdsc.sizes or valid < 1 or pad < 0 or valid + pad != sdsc.sizes[dim]:
            yield Problem("mask", f"dim {dim}: [{valid}, {pad}] does not cover {sdsc.sizes.get(dim)} elements")
    if not -1 <= sdsc.mask_constant < len(sdsc.constants):
        yield Problem("mask", f"maskingConstId_ {sdsc.mask_constant} with {len(sdsc.constants)} constants")


def _true_sizes(sdsc: SuperDSC, tensor: int) -> Iterator[Problem]:
    allocation, scale = sdsc.allocations[tensor], sdsc.scale(tensor)
    primary = sdsc.primary[sdsc.tensors[tensor].label]
    units = dict(zip(primary.stick_dims, primary.stick_sizes, strict=True))
    padded = sdsc.sizes if allocation.component == "hbm" else sdsc.core_sizes
    for dim, size in allocation.max_sizes.items():
        valid = min(sdsc.masking.get(dim, (sdsc.sizes[dim], 0))[0], padded[dim])
        if scale[dim] < 0 or allocation.gap(dim) or not valid <= size < padded[dim] or size % units.get(dim, 1):
            detail = f"dim {dim}: maxDimSizes_ {size}, {valid} of {padded[dim]} padded elements are touched"
            yield Problem("max-size", detail, tensor)


def _addresses(sdsc: SuperDSC, tensor: int) -> Iterator[Problem]:
    allocation, word = sdsc.allocations[tensor], sdsc.tensors[tensor].word_bytes
    geometry = sdsc.geometry(tensor)
    elements = geometry.stick_elements
    for dim, stride in geometry.strides.items():
        unit = geometry.stick_elements if dim == geometry.stick else 1
        elements += (min(sdsc.core_sizes[dim] // unit, geometry.extents[dim]) - 1) * stride if stride else 0
    span = elements * word
    if span > MAX_SPAN_BYTES:
        yield Problem("span", f"one core spans {span} bytes, the limit is {MAX_SPAN_BYTES}", tensor)
    origin = allocation.start[0] - sdsc.core_offset(tensor, 0)
    for core, address in allocation.start.items():
        if address % STICK_BYTES:
            yield Problem("alignment", f"start address {address} is not a multiple of {STICK_BYTES}", tensor, core)
        elif allocation.component == "lx" and not 0 <= address <= LX_BYTES - span:
            yield Problem("lx", f"bytes {address}..{address + span} are outside the {LX_BYTES} of LX", tensor, core)
        elif allocation.component == "hbm" and not _in_segment(address, span):
            detail = f"bytes {address}..{address + span} are not inside one of the {DATA_SEGMENTS} data segments"
            yield Problem("segment", detail, tensor, core)
        elif address != origin + sdsc.core_offset(tensor, core):
            expected = origin + sdsc.core_offset(tensor, core)
            yield Problem("start-address", f"{address}, its slice starts at {expected}", tensor, core)
        elif address // SEGMENT_BYTES != origin // SEGMENT_BYTES:
            yield Problem("segment", f"{address} is in another segment than core 0", tensor, core)


def _in_segment(address: int, span: int) -> bool:
    segment = address // SEGMENT_BYTES
    return 0 <= segment < DATA_SEGMENTS and (address + span - 1) // SEGMENT_BYTES == segment


def _folds(sdsc: SuperDSC, tensor: int) -> Iterator[Problem]:
    for dim, folds in sdsc.allocations[tensor].folds.items():
        expected = derive_folds(sdsc, tensor, dim)
        if folds != expected:
            bad, want = next(p for p in zip((*folds, None), (*expected, None), strict=False) if p[0] != p[1])
            yield Problem("folds", f"dim {dim}: {bad}, the sizes give {want}", tensor)


def derive_folds(sdsc: SuperDSC, tensor: int, dim: str) -> tuple[Fold, ...]:
    """Coordinates of a dim as sizes and splits determine them: core, corelet, row, elements (two levels for sticks)."""
    primary, scale = sdsc.primary[sdsc.tensors[tensor].label], sdsc.scale(tensor)[dim]
    size, slices = (sdsc.core_sizes[dim], sdsc.slices[dim]) if scale > 0 else (1, 1)
    flat = (Fold("corelet_fold", 1, 0), Fold("row_fold", 1, 0))
    if dim not in primary.stick_dims:
        return (Fold("core_fold", slices, size), *flat, Fold("elem_arr_0", size, 1))
    elements = primary.stick_sizes[primary.stick_dims.index(dim)]
    size = size if scale > 0 else elements
    within = Fold("elem_arr_0", elements, 1 if scale > 0 else 0)
    return (Fold("core_fold", slices, size), *flat, Fold("elem_arr_1", size // elements, elements), within)
