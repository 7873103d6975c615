# SPDX-License-Identifier: Apache-2.0
"""What a bundle needs from outside and gives back: its slots; and the kernel with LX slots moved through memory.

A slot is a tensor that the bundle reads before writing it (input), or writes (output; intermediate if it reads it
again). Memory slots are in their 16 GiB segment, which is a launch argument. LX slots of a fragment get launch
arguments of their own after the segments: copies fill LX before the ops and empty it after them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from torch_spyre.constants import CORES, SEGMENT_BYTES
from torch_spyre.ir.plan.tileops import Coord, Dim, Kernel, Operand, Space, Tensor, Term, TileOp
from torch_spyre.ir.superdsc import bundle_rules, class_rules, op_reader, stick_sets
from torch_spyre.ir.superdsc import vocabulary as voc
from torch_spyre.ir.superdsc.bundle import Bundle
from torch_spyre.ir.superdsc.bundle_rules import Block, block
from torch_spyre.ir.superdsc.forms import tables
from torch_spyre.ir.superdsc.forms.whole_sticks import LANE as LANE
from torch_spyre.ir.superdsc.forms.whole_sticks import tensor_dims
from torch_spyre.ir.superdsc.schema import Geometry, StickLevel, SuperDSC

INPUT, OUTPUT, INTERMEDIATE = "input", "output", "intermediate"


@dataclass(frozen=True)
class Slot:
    """A tensor at the bundle's border. `arg` is its launch argument, `base` its byte there."""

    name: str
    role: str
    step: int
    tensor: int
    sdsc: SuperDSC
    arg: int
    base: int
    lx: bool
    aliases: tuple[str, ...] = ()  # other operands that are the same tensor

    @property
    def format(self) -> str:
        return self.sdsc.tensors[self.tensor].format

    @cached_property
    def lanes(self) -> int:
        return lanes(self.sdsc, self.tensor)

    @property
    def dims(self) -> tuple[str, ...]:
        dims = tuple(self.sdsc.present(self.tensor))
        return (*dims, LANE) if self.lanes > 1 else dims

    @property
    def shape(self) -> tuple[int, ...]:
        gathered = self.sdsc.gathered(self.tensor)
        geometry = self.geometry
        whole = {*gathered, *self.sdsc.allocations[self.tensor].windows}
        sizes = [geometry.extents[d] if d in whole else self.sdsc.valid(d) for d in self.sdsc.present(self.tensor)]
        return (*sizes, self.lanes) if self.lanes > 1 else tuple(sizes)

    @cached_property
    def geometry(self) -> Geometry:
        """In memory. An LX slot is stored there as the whole tensor in its own layout order, without gaps."""
        own = full_geometry(self.sdsc, self.tensor) if self.lx else self.sdsc.geometry(self.tensor)
        if self.lanes > 1:
            own = replace(own, strides={**own.strides, LANE: 1}, extents={**own.extents, LANE: 1})
        return own


def lanes(sdsc: SuperDSC, tensor: int) -> int:
    """Values per stick of a tensor that lacks the stick dim: two where exx2 keeps its moments, else one."""
    moments = (sdsc.opfunc == voc.EXX2 and tensor in sdsc.compute.outputs) or (
        sdsc.opfunc == voc.NORM_SCALE and tensor in class_rules.inputs_of(sdsc)
    )
    return 2 if moments else 1


def full_geometry(sdsc: SuperDSC, tensor: int) -> Geometry:
    """The whole tensor of an LX tensor's slices, in the same layout order."""
    allocation = sdsc.allocations[tensor]
    return replace(
        sdsc,
        allocations=(
            *sdsc.allocations[:tensor],
            replace(allocation, component="hbm", back_gap=None, max_sizes={}),
            *sdsc.allocations[tensor + 1 :],
        ),
    ).geometry(tensor)


@dataclass(frozen=True)
class Launch:
    """A bundle ready to run: its kernel and its slots."""

    bundle: Bundle
    kernel: Kernel
    slots: tuple[Slot, ...]

    def of_role(self, *roles: str) -> list[Slot]:
        return [s for s in self.slots if s.role in roles]


def bind(bundle: Bundle, cores: int = CORES) -> Launch:
    """The kernel of a bundle, with copies around it for LX slots, and the slots."""
    renumbered = op_reader.with_counting_maps([s.sdsc for s in bundle.steps])
    steps = tuple(replace(step, sdsc=sdsc) for step, sdsc in zip(bundle.steps, renumbered, strict=True))
    bundle = replace(bundle, steps=steps)
    slots = _slots(bundle)
    ops: list[TileOp] = [_fill(s) for s in slots if s.lx and s.role == INPUT]
    by_step = op_reader.ops_by_step(renumbered, op_reader.TensorNames())
    for i, (step, made) in enumerate(zip(bundle.steps, by_step, strict=True)):
        results = [s for s in slots if s.lx and s.role == OUTPUT and s.step == i]
        for slot in results:
            if _split_reduction(step.sdsc):
                made = [replace(op, output=_redirected(op, slot)) for op in made]
        ops += made
    ops += [_drain(s) for s in slots if s.lx and s.role == OUTPUT and not _split_reduction(s.sdsc)]
    kernel = op_reader.kernel_of(ops, bundle.name, cores)
    return Launch(bundle, kernel, tuple(slots))


def _split_reduction(sdsc: SuperDSC) -> bool:
    """Only one core of several has the result, so it goes to memory at once instead of through LX."""
    return any(sdsc.slices[d] > 1 for d in class_rules.combined_dims(sdsc))


# -- slots -----------------------------------------------------------------------------------------------------------


def _slots(bundle: Bundle) -> list[Slot]:
    last = max(_segments(bundle), default=-1) + 1
    reads = [[block(s.sdsc, t, i) for t in _read_tensors(s.sdsc)] for i, s in enumerate(bundle.steps)]
    writes = [block(s.sdsc, s.sdsc.compute.outputs[0], i) for i, s in enumerate(bundle.steps)]
    found: list[Slot] = []
    for i, operands in enumerate(reads):
        for read in operands:
            if _covered(read, writes[:i]):
                continue
            slot = _slot(bundle, i, read.tensor, INPUT, last)
            known = next((n for n, other in enumerate(found) if _same(slot, other)), None)
            if known is not None:
                found[known] = replace(found[known], aliases=(*found[known].aliases, slot.name))
                continue
            found.append(slot)
            last += slot.lx
    for i, write in enumerate(writes):
        if any(later.first == write.first and later.same_place(write) for later in writes[i + 1 :]):
            continue
        later_reads = (r for operands in reads[i + 1 :] for r in operands)
        role = INTERMEDIATE if any(bundle_rules.overlapping(write, r) for r in later_reads) else OUTPUT
        if not write.memory and (role == INTERMEDIATE or not bundle.fragment):
            continue
        slot = _slot(bundle, i, write.tensor, role, last)
        found.append(slot)
        last += slot.lx
    return found


def _read_tensors(sdsc: SuperDSC) -> list[int]:
    """Operands and indices, and a table that is written in part: its other rows stay what they were."""
    tables_written = sdsc.compute.outputs if tables.is_scatter(sdsc) else ()
    return sorted({*class_rules.inputs_of(sdsc), *sdsc.compute.indices, *tables_written})


def _segments(bundle: Bundle) -> list[int]:
    nodes = [a for step in bundle.steps for a in step.sdsc.allocations if a.component == "hbm"]
    return [next(iter(a.start.values())) // SEGMENT_BYTES for a in nodes]


def _slot(bundle: Bundle, step: int, tensor: int, role: str, next_arg: int) -> Slot:
    sdsc = bundle.steps[step].sdsc
    allocation = sdsc.allocations[tensor]
    name = f"Tensor{tensor}" if len(bundle.steps) == 1 else f"{step}.Tensor{tensor}"
    if allocation.component == "lx":
        return Slot(name, role, step, tensor, sdsc, next_arg, 0, True)
    first = next(iter(allocation.start))
    arg, base = divmod(allocation.start[first] - sdsc.core_offset(tensor, first), SEGMENT_BYTES)
    return Slot(name, role, step, tensor, sdsc, arg, base, False)


def _same(a: Slot, b: Slot) -> bool:
    if a.lx != b.lx or (not a.lx and (a.arg, a.base) != (b.arg, b.base)) or (a.format, a.shape) != (b.format, b.shape):
        return False
    if a.lx:
        first = [s.sdsc.allocations[s.tensor].start for s in (a, b)]
        return first[0] == first[1]
    return a.geometry.strides == b.geometry.strides


def _covered(read: Block, written: list[Block]) -> bool:
    """Did the bundle itself write what an op reads?"""
    below = [w for w in written if bundle_rules.overlapping(w, read)]
    if any(w.same_place(read) for w in below):
        return True
    if not below:
        return False
    if not read.memory:
        return True  # the rules of LX have checked every stick
    return read.runs.minus(stick_sets.union(w.runs for w in below)).empty


# -- copies ----------------------------------------------------------------------------------------------------------


def _memory_operand(slot: Slot) -> Operand:
    sdsc, geometry = slot.sdsc, full_geometry(slot.sdsc, slot.tensor)
    moving = op_reader.Reader(sdsc, op_reader.TensorNames()).moving(slot.tensor)
    sizes, coords = [], []
    for dim in reversed(sdsc.allocations[slot.tensor].order):
        sizes.append(geometry.extents[dim])
        coords.append(Coord((Term(dim, div=geometry.unit(dim)),)) if dim in moving else Coord())
    sizes.append(geometry.stick_elements)
    coords.append(_lane(geometry.sticks, moving, slot.lanes))
    tensor = Tensor(slot.name, slot.format, Space.MEMORY, tuple(sizes), 0, slot.arg)
    return Operand(tensor, tuple(coords))


def _lane(sticks: tuple[StickLevel, ...], moving: list[str], count: int) -> Coord:
    if count > 1:
        return Coord((Term(LANE),))
    return Coord(tuple(Term(s.dim, s.stride, mod=s.elements) for s in reversed(sticks) if s.dim in moving))


def _lx_operand(slot: Slot) -> Operand:
    operand = op_reader.Reader(slot.sdsc, op_reader.TensorNames()).operand(slot.tensor)
    if slot.lanes > 1:
        operand = replace(operand, coords=(*operand.coords[:-1], Coord((Term(LANE),))))
    return replace(operand, tensor=replace(operand.tensor, name=f"{slot.name}_lx"))


def _copy(slot: Slot, source: Operand, target: Operand) -> TileOp:
    """Each core moves its slice; a core whose split dim the tensor lacks moves the same slice as its neighbours."""
    sdsc = slot.sdsc
    dims = tensor_dims(sdsc, slot.tensor)
    if slot.lanes > 1:
        dims.append(Dim(LANE, slot.lanes))
    return TileOp(
        f"{slot.name} {'in' if slot.role == INPUT else 'out'}",
        "identity",
        tuple(dims),
        (source,),
        target,
        core_order=op_reader.core_order(sdsc),
        origin=f"SuperDSC {sdsc.title}",
    )


def _fill(slot: Slot) -> TileOp:
    return _copy(slot, _memory_operand(slot), _lx_operand(slot))


def _drain(slot: Slot) -> TileOp:
    """Cores that have copies of the same slice write one after another; the first copy is the slot."""
    target = _memory_operand(slot)
    present = slot.sdsc.present(slot.tensor)
    for dim, slices in slot.sdsc.slices.items():
        if slices > 1 and dim not in present:
            tensor = replace(target.tensor, device_size=(slices, *target.tensor.device_size))
            target = Operand(tensor, (Coord((Term(dim),)), *target.coords))
    return _copy(slot, _lx_operand(slot), target)


def _redirected(op: TileOp, slot: Slot) -> Operand:
    """The op's result in memory instead of LX; which lane it goes to stays."""
    assert isinstance(op.output, Operand)
    if op.output.tensor.space is not Space.LX or op.output.tensor.name.endswith(".fp32"):
        return op.output
    target = _memory_operand(slot)
    lane = target.coords[-1] if slot.lanes == 1 else op.output.coords[-1]
    return replace(target, coords=(*target.coords[:-1], lane))


def slot_bytes(slot: Slot) -> int:
    """Bytes of the slot in its launch argument, from its base."""
    geometry = slot.geometry
    return math.prod(geometry.extents.values()) * geometry.stick_elements * slot.sdsc.tensors[slot.tensor].word_bytes
