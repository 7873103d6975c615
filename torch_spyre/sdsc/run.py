# SPDX-License-Identifier: Apache-2.0
"""Run a bundle on the software card with NumPy arrays: no torch, no front end."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torch_spyre.backend.compile import CompiledProgram
from torch_spyre.constants import STICK_BYTES
from torch_spyre.errors import InvalidArgument
from torch_spyre.ir.superdsc import arrays, class_rules
from torch_spyre.ir.superdsc import vocabulary as voc
from torch_spyre.ir.superdsc.bundle import Bundle
from torch_spyre.ir.superdsc.forms import tables
from torch_spyre.optable import SELECT
from torch_spyre.runtime import driver
from torch_spyre.sdsc.slots import INPUT, INTERMEDIATE, OUTPUT, Launch, Slot, bind

_POISON = 0xFF  # NaN in every float format: bytes that nobody gave show
_POSITIVE = {"log", "sqrt", "rsqrt"}


@dataclass
class Region:
    """A contiguous range of bytes of one launch argument."""

    arg: int
    base: int
    data: np.ndarray

    @property
    def end(self) -> int:
        return self.base + self.data.size

    def at(self, slot: Slot) -> np.ndarray:
        """The bytes from a slot's start on, as codes of its format."""
        return self.data[slot.base - self.base :].view(arrays.code_type(slot.format))


@dataclass
class Result:
    """`outputs` by slot name; `bytes_read`… are the card's counters of the launch."""

    outputs: dict[str, np.ndarray]
    intermediates: dict[str, np.ndarray] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)


def regions(launch: Launch) -> list[Region]:
    """Bytes of all slots, overlapping ones joined, filled with poison."""
    spans = sorted((s.arg, s.base, s.base + _span(s)) for s in launch.slots)
    joined: list[list[int]] = []
    for arg, start, end in spans:
        if joined and joined[-1][0] == arg and start <= joined[-1][2]:
            joined[-1][2] = max(joined[-1][2], end)
        else:
            joined.append([arg, start, end])
    return [Region(a, s, np.full(e - s, _POISON, dtype=np.uint8)) for a, s, e in joined]


def _span(slot: Slot) -> int:
    if 0 in slot.shape:
        return STICK_BYTES
    count = arrays.view_span(slot.geometry, slot.dims, slot.shape)
    return count * slot.sdsc.tensors[slot.tensor].word_bytes


def region_of(found: list[Region], slot: Slot) -> Region:
    return next(r for r in found if r.arg == slot.arg and r.base <= slot.base < r.end)


def fill(launch: Launch, inputs: Mapping[str, Any], found: list[Region]) -> None:
    """Write the input arrays into their regions, in the card's formats and layouts."""
    wanted = {s.name: s for s in launch.of_role(INPUT)}
    inputs = _without_aliases(wanted, inputs)
    unknown = [n for n in inputs if n not in wanted]
    missing = [n for n in wanted if n not in inputs]
    if unknown or missing:
        raise InvalidArgument(
            f"{launch.bundle.name}: inputs {unknown or 'none'} are not known, {missing or 'none'} are missing; "
            f"it takes {', '.join(f'{n} {list(s.shape)}' for n, s in wanted.items())}"
        )
    for name, slot in wanted.items():
        array = np.asarray(inputs[name])
        arrays.check_shape(array, slot.shape, name, slot.dims)
        if array.dtype.kind not in "fiub":
            raise InvalidArgument(f"{name} has dtype {array.dtype}; give floats or integers")
        codes = arrays.encode(array, slot.format)
        arrays.pack(codes, region_of(found, slot).at(slot), slot.geometry, slot.dims)


def _without_aliases(wanted: Mapping[str, Slot], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Operands that are the same tensor may be given once, or several times with the same values."""
    found = dict(inputs)
    for name, slot in wanted.items():
        for alias in slot.aliases:
            if alias in found and name not in found:
                found[name] = found.pop(alias)
            elif alias in found and np.array_equal(found[alias], found[name]):
                del found[alias]
            elif alias in found:
                raise InvalidArgument(f"{alias} and {name} are the same tensor in memory, but their values differ")
    return found


def random_inputs(launch: Launch, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs that exercise the ops: indices in range, conditions 0 and 1, positive numbers under logarithms."""
    generator = np.random.default_rng(seed)
    return {s.name: _random(s, generator) for s in launch.of_role(INPUT)}


def _random(slot: Slot, generator: np.random.Generator) -> np.ndarray:
    sdsc, row = slot.sdsc, slot.sdsc.row
    if slot.tensor in sdsc.compute.indices:
        table = tables.table_of(sdsc)
        assert table is not None
        dim = sdsc.gathered(table)[list(sdsc.compute.indices).index(slot.tensor)]
        rows, count = sdsc.geometry(table).extents[dim], math.prod(slot.shape)
        if tables.is_scatter(sdsc) and count <= rows:  # each row at most once: which of two writes wins is open
            return generator.permutation(rows)[:count].reshape(slot.shape)
        return generator.integers(0, rows, slot.shape)
    if arrays.is_integer(slot.format):
        limit = 5 if slot.format == "SENINT8" else 100  # products still fit
        return generator.integers(-limit, limit, slot.shape)
    values: np.ndarray = generator.standard_normal(slot.shape).astype(np.float32)
    if slot.lanes > 1:
        values[..., 1] = values[..., 0] ** 2 + 0.5 + np.abs(values[..., 1])
    if slot.tensor not in class_rules.inputs_of(sdsc):
        return values  # what a table holds before some of its rows are written
    position = class_rules.inputs_of(sdsc).index(slot.tensor)
    if row.name == "prod":
        values = 1 + values / 16  # the product of many stays a number
    if row.name in _POSITIVE or (row.name == voc.NORM and position == 2):
        values = np.abs(values) + 0.25
    if row.name in ("realdiv", "reciprocal") and position == len(class_rules.inputs_of(sdsc)) - 1:
        values = values + np.copysign(np.float32(0.5), values)
    if row is SELECT and position == 0:
        values = (values > 0).astype(np.float32)
    if row.is_matmul and position == 0:
        roles = class_rules.matmul_roles(sdsc)
        depth = 1 if isinstance(roles, str) or roles.k is None else sdsc.valid(roles.k)
        values = values / np.float32(math.sqrt(depth))
    return values


def compile_launch(launch: Launch) -> CompiledProgram:
    """The program of a launch, with its time on the card's clock."""
    return driver.build(launch.kernel).program


def execute(launch: Launch, inputs: Mapping[str, Any], sanitize: bool = False) -> Result:
    """Load and launch the program on a fresh card; the slots that it wrote come back as arrays."""
    if sanitize:
        os.environ["SPYRE_SANITIZE"] = "1"
    from torch_spyre import _card  # late: start-up

    found = regions(launch)
    fill(launch, inputs, found)
    compiled = compile_launch(launch)
    program, card = _card.Program.load(compiled.binary), _card.Card()
    sizes = [max(arg.bytes, STICK_BYTES) for arg in compiled.args]
    for region in found:
        sizes[region.arg] = max(sizes[region.arg], region.end)
    addresses = [card.allocate(n) for n in sizes]
    for region in found:
        card.write(addresses[region.arg] + region.base, region.data.tobytes())
    card.launch(program, list(zip(addresses, sizes, strict=True)))
    card.synchronize()
    for region in found:
        data = card.read(addresses[region.arg] + region.base, region.data.size)
        region.data = np.frombuffer(data, dtype=np.uint8).copy()
    return Result(
        outputs={s.name: read_slot(s, found) for s in launch.of_role(OUTPUT)},
        intermediates={s.name: read_slot(s, found) for s in launch.of_role(INTERMEDIATE)},
        counters=dict(card.counters()),
    )


def read_slot(slot: Slot, found: list[Region]) -> np.ndarray:
    codes = arrays.unpack(region_of(found, slot).at(slot), slot.geometry, slot.dims, slot.shape)
    values = arrays.decode(codes, slot.format)
    return values if arrays.is_integer(slot.format) else values.astype(np.float32)


def run(bundle: Bundle, inputs: Mapping[str, Any] | None = None, sanitize: bool = False) -> Result:
    """Check a bundle and run it, on random inputs if none are given."""
    bundle.verify()
    launch = bind(bundle)
    return execute(launch, random_inputs(launch) if inputs is None else inputs, sanitize)
