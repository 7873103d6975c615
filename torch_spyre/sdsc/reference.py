# SPDX-License-Identifier: Apache-2.0
"""What a bundle computes, by NumPy in float64, straight from the SuperDSCs: the oracle that runs are compared with.

Cores work one after another on the same bytes that the card has: memory by segment, LX by core. Results round to the
format of their tensor once per op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from torch_spyre.constants import CORES, LX_BYTES, SEGMENT_BYTES
from torch_spyre.ir.superdsc import arrays, class_rules
from torch_spyre.ir.superdsc import vocabulary as voc
from torch_spyre.ir.superdsc.bundle_rules import holds_result, touched
from torch_spyre.ir.superdsc.constant_formats import decode
from torch_spyre.ir.superdsc.forms import tables
from torch_spyre.ir.superdsc.schema import Geometry, SuperDSC
from torch_spyre.optable import OPS, Kind, TopK
from torch_spyre.sdsc.run import Region, Result, fill, read_slot, region_of, regions
from torch_spyre.sdsc.slots import INPUT, INTERMEDIATE, LANE, OUTPUT, Launch, Slot, lanes

Array = np.ndarray


@dataclass
class Machine:
    """Memory as regions of launch arguments, and every core's LX."""

    launch: Launch
    regions: list[Region]
    lx: Array

    def buffer(self, sdsc: SuperDSC, tensor: int, core: int) -> Array:
        """The tensor's bytes from a core's first element on, as codes."""
        allocation = sdsc.allocations[tensor]
        kind = arrays.code_type(sdsc.tensors[tensor].format)
        if allocation.component == "lx":
            return self.lx[core, allocation.start[core] :].view(kind)
        arg, base = divmod(allocation.start[core], SEGMENT_BYTES)
        region = next(r for r in self.regions if r.arg == arg and r.base <= base < r.end)
        return region.data[base - region.base :].view(kind)


def evaluate(launch: Launch, inputs: Mapping[str, Any]) -> Result:
    """The slots that a launch writes, computed on the host."""
    found = regions(launch)
    fill(launch, inputs, found)
    machine = Machine(launch, found, np.full((CORES, LX_BYTES), 0xFF, dtype=np.uint8))
    lx_slots = [s for s in launch.slots if s.lx]
    for slot in lx_slots:
        if slot.role == INPUT:
            _move(machine, slot, into_lx=True)
    with np.errstate(all="ignore"):
        for step in launch.bundle.steps:
            _Op(machine, step.sdsc).run()
    for slot in lx_slots:
        if slot.role == OUTPUT:
            _move(machine, slot, into_lx=False)
    return Result(
        {s.name: read_slot(s, found) for s in launch.of_role(OUTPUT)},
        {s.name: read_slot(s, found) for s in launch.of_role(INTERMEDIATE)},
    )


_MANTISSA = {"SEN169_FP16": 9, "IEEE_FP16": 10, "IEEE_FP32": 23, "SEN143_FP8": 3, "SEN152_FP8": 2}


def compare(got: Array, want: Array, slot: Slot) -> float:
    """The largest difference in units of the last place of the format; NaN must meet NaN, integers are exact.

    A matmul or a sum carries the rounding of its terms, so units are those of the largest result where it sums.
    """
    if got.shape != want.shape:
        return float("inf")
    a, b = got.astype(np.float64), want.astype(np.float64)
    special = ~(np.isfinite(a) & np.isfinite(b))
    if not np.array_equal(a[special], b[special], equal_nan=True):
        return float("inf")
    a, b = np.where(special, 0.0, a), np.where(special, 0.0, b)
    if not a.size or slot.format not in _MANTISSA:
        return float(np.abs(a - b).max(initial=0.0))
    scale = np.maximum(np.abs(b), np.abs(b).mean())
    if not slot.sdsc.row.element_for_element:
        scale = np.maximum(scale, np.abs(b).max())
    unit = np.ldexp(np.maximum(scale, 1e-30), -_MANTISSA[slot.format])
    slack = 64.0 if slot.format == "IEEE_FP32" else 1.0  # fp32 results show the rounding of fp32 steps
    return float((np.abs(a - b) / (unit * slack)).max())


def _move(machine: Machine, slot: Slot, into_lx: bool) -> None:
    """Each core's slice between the whole tensor of an LX slot and the core's LX."""
    sdsc, tensor = slot.sdsc, slot.tensor
    region = region_of(machine.regions, slot)
    whole = arrays.unpack(region.at(slot), slot.geometry, slot.dims, slot.shape)
    geometry = _with_lane(sdsc.geometry(tensor), slot.lanes)
    for core in sdsc.core_slices:
        at = tuple(_part(sdsc, d, core) if d != LANE else slice(None) for d in slot.dims)
        local = machine.buffer(sdsc, tensor, core)
        if whole[at].size == 0:
            continue
        if into_lx:
            arrays.write(whole[at], local, geometry, slot.dims)
        elif holds_result(sdsc, core):
            whole[at] = arrays.unpack(local, geometry, slot.dims, whole[at].shape)
    if not into_lx:
        arrays.write(whole, region.at(slot), slot.geometry, slot.dims)


def _with_lane(geometry: Geometry, count: int) -> Geometry:
    if count == 1:
        return geometry
    return replace(geometry, strides={**geometry.strides, LANE: 1}, extents={**geometry.extents, LANE: 1})


def _part(sdsc: SuperDSC, dim: str, core: int) -> slice:
    """The elements of a dim that a core works on, without masked ones."""
    start = sdsc.core_slices[core][dim] * sdsc.core_sizes[dim]
    return slice(start, start + touched(sdsc, dim, core))


class _Op:
    """One SuperDSC: arrays have one axis per dim of the op, of size 1 where a tensor lacks the dim."""

    def __init__(self, machine: Machine, sdsc: SuperDSC) -> None:
        self.machine, self.sdsc = machine, sdsc
        self.func = sdsc.row
        self.inputs = class_rules.inputs_of(sdsc)
        self.output = sdsc.compute.outputs[0]
        self.dims = list(sdsc.sizes)
        self.loaded: dict[Any, Array] = {}
        self.constants = {c.name: decode(c.bits, c.format) for c in sdsc.constants}

    def run(self) -> None:
        partial: dict[tuple[int, ...], Array] = {}
        owner: dict[tuple[int, ...], int] = {}
        combined = class_rules.combined_dims(self.sdsc)
        busy = [c for c in self.sdsc.core_slices if all(touched(self.sdsc, d, c) for d in self.dims)]
        loaded = {core: [self.load(t, core) for t in self.inputs] for core in busy}
        for core in busy:
            place, value = self.sdsc.core_slices[core], self.compute(loaded[core], core)
            key = tuple(place[d] for d in self.dims if d not in combined)
            if key in partial:
                value = OPS[self.func.combine or "add"].meaning(partial[key], value)
            partial[key] = value
            owner.setdefault(key, core)
        for key, value in partial.items():
            self.store(self.finish(value), owner[key])

    def load(self, tensor: int, core: int, count: int | None = None) -> Array:
        sdsc = self.sdsc
        dims = sdsc.present(tensor)
        gathered = sdsc.gathered(tensor)
        geometry = sdsc.geometry(tensor)
        shape = [geometry.extents[d] if d in gathered else sdsc.reach(tensor, d, touched(sdsc, d, core)) for d in dims]
        lane_count = count or lanes(sdsc, tensor)
        if lane_count > 1:
            geometry, dims, shape = _with_lane(geometry, lane_count), [*dims, LANE], [*shape, lane_count]
        values = self._values(tensor, core, geometry, dims, shape)
        sizes = dict(zip(dims, shape, strict=True))
        full = [sizes.get(d, 1) for d in self.dims]
        whole = values.reshape([*full, lane_count]) if lane_count > 1 else values.reshape(full)
        for dim in sdsc.allocations[tensor].windows:
            whole = self._in_windows(whole, tensor, dim, core)
        return whole

    def _in_windows(self, values: Array, tensor: int, dim: str, core: int) -> Array:
        """The operand with an axis of results and one of their windows in place of one of its own elements."""
        window = self.sdsc.window(tensor, dim)
        assert window is not None
        results, taps = np.arange(touched(self.sdsc, dim, core)), np.arange(self.sdsc.sizes[window.dim])
        place = results[:, None] * window.stride + taps * window.dilation
        axis, inner = self.dims.index(dim), self.dims.index(window.dim)
        taken = np.take(values, place, axis=axis)  # the axis of taps stands behind that of results
        behind = inner > axis
        return np.moveaxis(taken.squeeze(inner + behind), axis + behind, inner)

    def _values(self, tensor: int, core: int, geometry: Geometry, dims: Sequence[str], shape: Sequence[int]) -> Array:
        """Decoded elements; cores that read the same bytes of memory share them."""
        allocation = self.sdsc.allocations[tensor]
        key = (tensor, allocation.start[core], tuple(shape), core if allocation.component == "lx" else -1)
        if key not in self.loaded:
            codes = arrays.unpack(self.machine.buffer(self.sdsc, tensor, core), geometry, dims, shape)
            self.loaded[key] = arrays.decode(codes, self.sdsc.tensors[tensor].format)
        return self.loaded[key]

    def scatter(self, value: Array, core: int) -> None:
        """Writes a core's values into the rows of the table that its indices name."""
        sdsc = self.sdsc
        dims, geometry = sdsc.present(self.output), sdsc.geometry(self.output)
        shape = [geometry.extents[d] if d in sdsc.gathered(self.output) else touched(sdsc, d, core) for d in dims]
        buffer = self.machine.buffer(sdsc, self.output, core)
        table = arrays.unpack(buffer, geometry, dims, shape)
        full = table.reshape([dict(zip(dims, shape, strict=True)).get(d, 1) for d in self.dims])
        codes = arrays.encode(value, sdsc.tensors[self.output].format)
        place = np.broadcast_arrays(*self._places(full.shape, self.output, core))
        full[tuple(place)] = np.broadcast_to(codes, place[0].shape)
        arrays.write(full.reshape(shape), buffer, geometry, dims)

    def store(self, value: Array, core: int) -> None:
        sdsc = self.sdsc
        if tables.is_scatter(sdsc):
            self.scatter(value, core)
            return
        dims = sdsc.present(self.output)
        geometry = sdsc.geometry(self.output)
        shape = [touched(sdsc, d, core) for d in dims]
        count = lanes(sdsc, self.output)
        if count > 1:
            geometry, dims, shape = _with_lane(geometry, count), [*dims, LANE], [*shape, count]
        else:
            wide = dict(zip(dims, shape, strict=True))
            value = np.broadcast_to(value, [wide.get(d, 1) for d in self.dims])
            if sdsc.allocations[self.output].component == "lx" and not {*dims} & {s.dim for s in geometry.sticks}:
                count = geometry.stick_elements  # one value per stick fills it
                value = np.repeat(value[..., None], count, axis=-1)
                geometry, dims, shape = _with_lane(geometry, count), [*dims, LANE], [*shape, count]
        format = sdsc.tensors[self.output].format
        arrays.write(
            arrays.encode(value.reshape(shape), format), self.machine.buffer(sdsc, self.output, core), geometry, dims
        )

    def scalars(self, values: Sequence[Array]) -> list[Array]:
        """Tensors with the scalar operands at their positions."""
        positions = {voc.immediate_position(n): v for n, v in self.constants.items()}
        rest = iter(values)
        count = len(values) + sum(p is not None for p in positions)
        return [np.asarray(positions[i]) if i in positions else next(rest) for i in range(count)]

    def constant(self, name: str, default: float) -> float:
        return self.constants.get(name, default)

    def axes(self, dims: Sequence[str]) -> tuple[int, ...]:
        return tuple(self.dims.index(d) for d in dims)

    def compute(self, values: list[Array], core: int) -> Array:
        kind = self.func.kind
        if self.sdsc.compute.indices and not tables.is_scatter(self.sdsc):
            return self.gather(values[0], core)
        if kind is Kind.POINTWISE:
            return self.pointwise(self.scalars(values))
        if kind is Kind.REDUCTION:
            reduce = OPS[self.func.reduction].meaning  # a mean is scaled once, when cores have combined their sums
            return reduce(values[0], axis=self.axes(class_rules.reduced_dims(self.sdsc)), keepdims=True)
        if kind is Kind.MATMUL:
            return self.matmul(*values)
        if kind is Kind.SELECTION:
            return self.topk(values[0])
        if kind is Kind.NORM:
            return self.norm(values)
        return self.scalars(values)[0]

    def finish(self, value: Array) -> Array:
        """What happens once after partial results of cores are combined."""
        if self.func.scaled_by:
            count = np.prod([self.sdsc.valid(d) for d in class_rules.reduced_dims(self.sdsc)])
            value = value * self.constant(self.func.scaled_by, 1.0 / count)
        if self.func.name == voc.EXX2 and self.constant(voc.ZERO_MEAN, 0.0):
            value = value * np.array([0.0, 1.0])
        return value

    def pointwise(self, values: list[Array]) -> Array:
        given = {**self.func.constants, **self.constants}
        return self.func.meaning(*values, *(np.asarray(given[name]) for name in self.func.scalars))

    def matmul(self, a: Array, b: Array) -> Array:
        roles = class_rules.matmul_roles(self.sdsc)
        assert not isinstance(roles, str)
        if roles.taps:
            return np.sum(a * b, axis=self.axes(roles.summed), keepdims=True)
        if roles.k is None:
            return a * b
        lower = {d: i for i, d in enumerate(self.dims)}
        every = list(range(len(self.dims)))
        k = lower[roles.k]
        if roles.n is None or roles.m is None:
            return np.sum(a * b, axis=k, keepdims=True)
        m, n = lower[roles.m], lower[roles.n]
        batch = [i for i in every if i not in (m, n, k)]
        left = np.transpose(a, [*batch, n, m, k])[..., 0, :, :]
        right = np.transpose(b, [*batch, m, k, n])[..., 0, :, :]
        product = np.matmul(left, right)[..., None]  # batch, m, n, k of one
        return np.transpose(product, np.argsort([*batch, m, n, k]))

    def topk(self, x: Array) -> Array:
        roles = class_rules.topk_roles(self.sdsc)
        assert not isinstance(roles, str)
        searched, found = self.dims.index(roles[0]), self.dims.index(roles[1]) if roles[1] else None
        count = self.sdsc.valid(roles[1]) if roles[1] else 1
        result = self.func.meaning(x, searched, TopK(count))
        return np.swapaxes(result, searched, found) if found is not None else result

    def gather(self, table: Array, core: int) -> Array:
        return table[tuple(np.broadcast_arrays(*self._places(table.shape, self.inputs[0], core)))]

    def _places(self, shape: Sequence[int], table: int, core: int) -> list[Array]:
        """Coordinates in a table: its own dims move with the op, its gathered dims are replaced by index values."""
        gathered = self.sdsc.gathered(table)
        indices = [self.load(i, core).astype(np.int64) for i in self.sdsc.compute.indices]
        place: list[Array] = []
        for axis, dim in enumerate(self.dims):
            if dim in gathered:
                place.append(indices[gathered.index(dim)])
            else:
                along = [1] * len(self.dims)
                along[axis] = shape[axis]
                place.append(np.arange(shape[axis]).reshape(along))
        return place

    def norm(self, values: list[Array]) -> Array:
        if self.func.reduces:
            return self.func.meaning(values[0], self.axes(class_rules.reduced_dims(self.sdsc)))
        if self.func.name == voc.NORM_SCALE:
            return self.func.meaning(values[0], self.constant(voc.EPS, 0.0))
        return self.func.meaning(*values)
