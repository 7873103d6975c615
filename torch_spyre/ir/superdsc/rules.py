# SPDX-License-Identifier: Apache-2.0
"""Rules that every SuperDSC obeys. `problems` returns those broken; each names the rule, the tensor and the core."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch_spyre.constants import CORES, DATA_SEGMENTS, LX_BYTES, MAX_SPAN_BYTES, SEGMENT_BYTES, STICK_BYTES
from torch_spyre.formats import WORD_BYTES
from torch_spyre.ir.superdsc import class_rules
from torch_spyre.ir.superdsc.schema import INDEX_TENSOR, Fold, SuperDSC

MAX_SEGMENTS = 64  # of a bundle whose addresses are symbols


@dataclass(frozen=True)
class Problem:
    rule: str
    detail: str
    tensor: int | None = None
    core: int | None = None

    def __str__(self) -> str:
        """Where no core is named, all of them break the rule alike."""
        where = [f"Tensor{self.tensor}"] if self.tensor is not None else []
        where += [f"core {self.core}"] if self.core is not None else []
        return f"[{self.rule}] {', '.join(where)}{': ' if where else ''}{self.detail}"


def problems(sdsc: SuperDSC, segments: int = DATA_SEGMENTS) -> list[Problem]:
    found = names_problems(sdsc)
    if not found:  # the other rules look names up
        found = [*_sticks(sdsc)] or [*_split(sdsc), *_core_map(sdsc), *_masks(sdsc)]
    if not found:
        found = [Problem(*p) for p in class_rules.problems(sdsc)]
    if not found:
        for tensor in range(len(sdsc.tensors)):
            found += [*_true_sizes(sdsc, tensor)] or [*_addresses(sdsc, tensor, segments), *_folds(sdsc, tensor)]
    return found


def names_problems(sdsc: SuperDSC) -> list[Problem]:
    """Names that do not resolve; everything else that is known of a file looks names up."""
    return [*_names(sdsc)]


def _names(sdsc: SuperDSC) -> Iterator[Problem]:
    count, dims = len(sdsc.tensors), list(sdsc.sizes)
    for what, got in (("labeledDs_", sdsc.tensors), ("scheduleTree_", sdsc.allocations)):
        if [t.index for t in got] != list(range(count)):
            yield Problem("names", f"{what} lists tensors {[t.index for t in got]}, expected 0..{count - 1}")
            return
    for tensor in range(count):
        yield from _tensor_names(sdsc, tensor)
    for what, sizes in (("dataStageParam_", sdsc.core_sizes), ("numWkSlicesPerDim_", sdsc.slices)):
        if sorted(sizes) != sorted(dims):
            yield Problem("names", f"{what} has the dims {list(sizes)}, N_ has {dims}")
    for reference in (*sdsc.compute.inputs, *sdsc.compute.outputs, *sdsc.compute.indices):
        if reference >= count:
            yield Problem("names", f"computeOp_ names Tensor{reference}, the file has {count} tensors")


def _tensor_names(sdsc: SuperDSC, tensor: int) -> Iterator[Problem]:
    ds, allocation, dims = sdsc.tensors[tensor], sdsc.allocations[tensor], list(sdsc.sizes)
    primary = sdsc.primary.get(ds.label)
    if primary is None:
        yield Problem("names", f"dsType_ {ds.label} is not in primaryDsInfo_", tensor)
    elif len(primary.stick_dims) != len(primary.stick_sizes):
        yield Problem("names", f"stickDimOrder_ and stickSize_ of {ds.label} differ in length", tensor)
    elif len(ds.scale) != len(primary.order):
        yield Problem("names", f"{len(ds.scale)} scales for the dims {list(primary.order)}", tensor)
    elif sorted(primary.order) != sorted(allocation.order):
        yield Problem("names", f"layout {list(allocation.order)} and label {ds.label} have different dims", tensor)
    elif allocation.folds and not {*allocation.order} <= {*allocation.folds}:
        yield Problem("names", f"coordinates_ of {list(allocation.folds)}, the layout has {allocation.order}", tensor)
    elif not {*primary.order, *primary.stick_dims} <= {*dims}:
        yield Problem("names", f"dims {list(primary.order)} are not all in N_ ({dims})", tensor)
    elif not {*primary.stick_dims} <= {*primary.order}:
        yield Problem("names", f"stick dims {list(primary.stick_dims)} are not in {list(primary.order)}", tensor)
    elif not {*(allocation.back_gap or ())} <= {*primary.order}:
        yield Problem("names", f"backGapCore_ of {list(allocation.back_gap or ())}, not all are dims", tensor)
    elif ds.in_memory != (allocation.component == "hbm"):
        yield Problem("names", f"memOrg_ and component_ {allocation.component} disagree", tensor)
    elif not {*ds.scale} <= {1, -1, -2}:
        yield Problem("names", f"scale_ {list(ds.scale)}; 1, -1 and -2 are known", tensor)


def _sticks(sdsc: SuperDSC) -> Iterator[Problem]:
    for tensor, ds in enumerate(sdsc.tensors):
        word, primary = WORD_BYTES.get(ds.format), sdsc.primary[ds.label]
        if word is None:
            yield Problem("format", f"unknown dataFormat_ {ds.format}", tensor)
        elif ds.word_bytes != word:
            yield Problem("format", f"wordLength {ds.word_bytes}, {ds.format} has {word} bytes", tensor)
        elif not primary.stick_sizes or min(primary.stick_sizes) < 1:
            yield Problem("stick-size", f"stickSize_ {list(primary.stick_sizes)}", tensor)
        elif math.prod(primary.stick_sizes) * word != STICK_BYTES:
            detail = (
                f"stickSize_ {list(primary.stick_sizes)}, a stick of {ds.format} holds {STICK_BYTES // word} elements"
            )
            yield Problem("stick-size", detail, tensor)


def _split(sdsc: SuperDSC) -> Iterator[Problem]:
    for dim, size in sdsc.sizes.items():
        slices, part = sdsc.slices[dim], sdsc.core_sizes[dim]
        last = sdsc.last_sizes.get(dim, part)
        if size < 1 or slices < 1 or not 1 <= last <= part or (slices - 1) * part + last != size:
            ending = f", the last of {last}," if last != part else ""
            yield Problem("split", f"dim {dim}: {slices} slices of {part} elements{ending} do not make {size}")
    for tensor, ds in enumerate(sdsc.tensors):
        primary, scale = sdsc.primary[ds.label], sdsc.scale(tensor)
        for dim, elements in zip(primary.stick_dims, primary.stick_sizes, strict=True):
            parts = {sdsc.core_sizes[dim], sdsc.last_sizes.get(dim, sdsc.core_sizes[dim])}
            bad = [n for n in parts if n % elements]
            # Index tensors are read element by element, so their last stick may be partly used.
            loose = sdsc.allocations[tensor].indirect == INDEX_TENSOR and sdsc.slices[dim] == 1
            if scale[dim] > 0 and bad and not loose:
                detail = f"dim {dim}: {bad[0]} elements per core are not whole sticks of {elements}"
                core = next((c for c in sdsc.core_slices if sdsc.slice_size(dim, c) % elements), None)
                yield Problem("stick-slice", detail, tensor, core)


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
    if not -1 <= sdsc.mask_constant < max(len(sdsc.constants), 1):
        yield Problem("mask", f"maskingConstId_ {sdsc.mask_constant} with {len(sdsc.constants)} constants")


def _true_sizes(sdsc: SuperDSC, tensor: int) -> Iterator[Problem]:
    allocation, scale = sdsc.allocations[tensor], sdsc.scale(tensor)
    primary = sdsc.primary[sdsc.tensors[tensor].label]
    units = dict(zip(primary.stick_dims, primary.stick_sizes, strict=True))
    padded = sdsc.sizes if allocation.component == "hbm" else sdsc.core_sizes
    gathered = sdsc.gathered(tensor)
    for dim in allocation.order:
        gap = allocation.gap(dim)
        if padded[dim] + gap < 1 or (gap < 0 and dim not in gathered):
            yield Problem("back-gap", f"dim {dim}: {gap} elements after {padded[dim]}", tensor)
    for dim, size in allocation.max_sizes.items():
        if dim in gathered:
            continue
        valid = min(sdsc.valid(dim), padded[dim])
        if scale[dim] < 0 or allocation.gap(dim) or not valid <= size < padded[dim] or size % units.get(dim, 1):
            detail = f"dim {dim}: maxDimSizes_ {size}, {valid} of {padded[dim]} padded elements are touched"
            yield Problem("max-size", detail, tensor)


def span_bytes(sdsc: SuperDSC, tensor: int) -> int:
    """Bytes between the first and the last that one core touches."""
    geometry = sdsc.geometry(tensor)
    gathered = sdsc.gathered(tensor)
    elements = geometry.stick_elements
    for dim, stride in geometry.strides.items():
        blocks = -(-sdsc.reach(tensor, dim, sdsc.core_sizes[dim]) // geometry.unit(dim))
        count = geometry.extents[dim] if dim in gathered else min(blocks, geometry.extents[dim])
        elements += (count - 1) * stride if stride else 0
    return elements * sdsc.tensors[tensor].word_bytes


def _addresses(sdsc: SuperDSC, tensor: int, segments: int) -> Iterator[Problem]:
    allocation = sdsc.allocations[tensor]
    span = span_bytes(sdsc, tensor)
    if span > MAX_SPAN_BYTES:
        first = next(iter(allocation.start))
        yield Problem("span", f"one core spans {span} bytes, the limit is {MAX_SPAN_BYTES}", tensor, first)
    if allocation.symbolic:
        yield from _symbols(sdsc, tensor)
        return
    first = next(iter(allocation.start))
    origin = allocation.start[first] - sdsc.core_offset(tensor, first)
    for core, address in allocation.start.items():
        expected = origin + sdsc.core_offset(tensor, core)
        if address % STICK_BYTES:
            yield Problem("alignment", f"start address {address} is not a multiple of {STICK_BYTES}", tensor, core)
        elif allocation.component == "lx" and not 0 <= address <= LX_BYTES - span:
            yield Problem("lx", f"bytes {address}..{address + span} are outside the {LX_BYTES} of LX", tensor, core)
        elif allocation.component == "hbm" and not _in_segment(address, span, segments):
            detail = f"bytes {address}..{address + span} are not inside one of the {segments} data segments"
            yield Problem("segment", detail, tensor, core)
        elif address != expected:
            yield Problem("start-address", f"{address}, its slice starts at {expected}", tensor, core)
        elif address // SEGMENT_BYTES != origin // SEGMENT_BYTES:
            yield Problem("segment", f"{address} is in another segment than core {first}", tensor, core)


def _symbols(sdsc: SuperDSC, tensor: int) -> Iterator[Problem]:
    """Symbol ids are negative, and cores that start at the same byte may share one."""
    by_symbol: dict[int, int] = {}
    for core, symbol in sdsc.allocations[tensor].start.items():
        offset = sdsc.core_offset(tensor, core)
        if symbol >= 0:
            yield Problem("symbol", f"start address {symbol} of a symbolic tensor is not a symbol id", tensor, core)
        elif by_symbol.setdefault(symbol, offset) != offset:
            yield Problem("symbol", f"symbol {symbol} stands for two different slices", tensor, core)


def _in_segment(address: int, span: int, segments: int) -> bool:
    segment = address // SEGMENT_BYTES
    return 0 <= segment < segments and (address + span - 1) // SEGMENT_BYTES == segment


def _folds(sdsc: SuperDSC, tensor: int) -> Iterator[Problem]:
    """The coordinates must be a core level and element levels that count the slice as a mixed radix."""
    scale = sdsc.scale(tensor)
    for dim, folds in sdsc.allocations[tensor].folds.items():
        if scale.get(dim, -1) < 0 or dim in sdsc.gathered(tensor) or tensor in sdsc.compute.indices:
            continue
        if sdsc.window(tensor, dim) is not None:
            continue  # counted in results, whose windows may overlap
        size, slices = sdsc.core_sizes[dim], sdsc.slices[dim]
        core = [f for f in folds if f.label.startswith("core_")]
        if any(f.factor != slices or (slices > 1 and f.alpha != size) for f in core):
            yield Problem("folds", f"dim {dim}: {core[0]}, there are {slices} slices of {size}", tensor)
            continue
        inner = sorted((f for f in folds if f not in core and f.factor > 1), key=lambda f: f.alpha)
        reach = 1
        arranged = any(f.label.startswith("elem_arr_") and f.label > "elem_arr_1" for f in folds)
        for fold in inner:
            # With more than two levels they say how the elements are arranged, which here is the plain order always.
            if fold.alpha != reach and not arranged:
                yield Problem("folds", f"dim {dim}: {fold} after {reach} elements", tensor)
                break
            reach *= fold.factor
        else:
            if reach != size or any(f.beta for f in folds):
                detail = f"dim {dim}: levels of {[f.factor for f in inner]} elements, a slice has {size}"
                yield Problem("folds", detail, tensor)


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
