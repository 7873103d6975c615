# SPDX-License-Identifier: Apache-2.0
"""Read a SuperDSC, ours or the public front end's, as planned tile ops: the inverse of the writer.

A memory address names its launch argument by 16 GiB segment and a byte offset in it; an LX address holds on every
core. Start addresses and folds are redundant in the format: the reader checks them against the sizes, InvalidProgram
says where they disagree. Most opfuncs are one tile op; `layer_norms` says what the others become.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch_spyre.constants import CORES, LX_BYTES, SEGMENT_BYTES
from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ir.plan.tileops import (
    Access,
    Coord,
    Dim,
    Immediate,
    Input,
    Kernel,
    KernelArg,
    Operand,
    Space,
    Tensor,
    Term,
    TileLoop,
    TileOp,
)
from torch_spyre.ir.superdsc import class_rules, layer_norms
from torch_spyre.ir.superdsc import vocabulary as voc
from torch_spyre.ir.superdsc.canonical import argument_use, lx_bytes
from torch_spyre.ir.superdsc.constant_formats import decode
from torch_spyre.ir.superdsc.forms import several_ops, tables, whole_sticks
from torch_spyre.ir.superdsc.schema import Json, SuperDSC
from torch_spyre.optable import OPS, Kind, TopK

_LARGEST_FP16 = 65504.0
_ONE = {"m": "one.m", "n": "one.n", "k": "one.k"}  # dims of one element that a file leaves out


@dataclass
class TensorNames:
    """One name per distinct tensor, stable over the ops of a bundle."""

    taken: dict[Tensor, str] = field(default_factory=dict)

    def name(self, tensor: Tensor) -> Tensor:
        if tensor not in self.taken:
            where = f"arg{tensor.arg}" if tensor.space is Space.MEMORY else "lx"
            stem = f"{where}_{tensor.base:x}" if tensor.base or tensor.space is Space.LX else where
            same = sum(1 for name in self.taken.values() if name == stem or name.startswith(f"{stem}_v"))
            self.taken[tensor] = f"{stem}_v{same}" if same else stem
        return replace(tensor, name=self.taken[tensor])


def read_kernel(sdscs: Sequence[Json], name: str = "bundle", cores: int = CORES) -> Kernel:
    """A kernel from the JSON of its files, in execution order."""
    found = in_one_way([SuperDSC.from_json(one) for data in sdscs for one in several_ops.split(data)])
    for sdsc in found:
        sdsc.verify()
    return make_kernel(found, name, cores)


def in_one_way(sdscs: Sequence[SuperDSC]) -> list[SuperDSC]:
    """Files of one bundle, with literal addresses, in the form that the rules and the reader know."""
    return tables.told_in_one_way([whole_sticks.with_values(sdsc) for sdsc in sdscs])


def make_kernel(sdscs: Sequence[SuperDSC], name: str, cores: int = CORES) -> Kernel:
    """A kernel from verified SuperDSCs."""
    counting = with_counting_maps(sdscs)
    ops = tuple(op for made in ops_by_step(counting, TensorNames()) for op in made)
    widest = max((op.cores for op in ops), default=1)
    if widest > cores:
        raise InvalidProgram(f"{name}: an op uses {widest} cores, the grid has {cores}")
    return kernel_of(ops, name, cores)


def kernel_of(ops: Sequence[TileOp], name: str, cores: int = CORES) -> Kernel:
    args = []
    for i, (size, access) in enumerate(argument_use(ops)):
        role = "output" if access & Access.WRITE else "input"
        args.append(KernelArg(f"arg{i}", size, access or Access.READ, role))
    return Kernel(name, tuple(args), tuple(ops), (), cores, _loops(ops), lx_bytes(ops))


def _loops(ops: Sequence[TileOp]) -> tuple[TileLoop, ...]:
    """Neighbouring ops of one file that work on chunks share a loop."""
    loops = []
    for name, group in itertools.groupby(enumerate(ops), key=lambda x: (x[1].name, any(d.chunk for d in x[1].dims))):
        if name[1]:
            members = list(group)
            dim = next(d for d in members[0][1].dims if d.chunk)
            loops.append(TileLoop(members[0][0], members[-1][0] + 1, -(-dim.extent // dim.chunk)))
    return tuple(loops)


def lx_end(sdscs: Sequence[SuperDSC]) -> int:
    """First LX byte that no tensor of the files uses."""
    end = 0
    for sdsc in sdscs:
        for i, allocation in enumerate(sdsc.allocations):
            if allocation.component == "lx":
                geometry = sdsc.geometry(i)
                elements = math.prod(geometry.extents.values()) * geometry.stick_elements
                end = max(end, max(allocation.start.values()) + elements * sdsc.tensors[i].word_bytes)
    return end


def read_sdsc(data: Json, names: TensorNames | None = None) -> TileOp:
    """One file's JSON as a TileOp; dims keep the file's labels. UnsupportedOp if it takes several."""
    (sdsc,) = in_one_way([SuperDSC.from_json(data)])
    sdsc.verify()
    sdsc, _ = with_counting_cores(sdsc)
    ops = tile_ops(sdsc, names or TensorNames(), layer_norms.Scratch(lx_end([sdsc])))
    if len(ops) != 1:
        raise UnsupportedOp(f"SuperDSC {sdsc.title} is {len(ops)} tile ops; read_kernel gives them all")
    return ops[0]


def ops_by_step(sdscs: Sequence[SuperDSC], names: TensorNames) -> list[list[TileOp]]:
    """The ops of each file of a bundle, whose cores count their slices."""
    scratch = layer_norms.Scratch(lx_end(sdscs))
    made = [tile_ops(sdsc, names, scratch) for sdsc in sdscs]
    for i in whole_sticks.steps(sdscs):
        reader = Reader(sdscs[i], names)
        made[i].append(whole_sticks.fill(sdscs[i], reader.operand(reader.output), core_order(sdscs[i])))
    return made


def tile_ops(sdsc: SuperDSC, names: TensorNames, scratch: layer_norms.Scratch) -> list[TileOp]:
    reader = Reader(sdsc, names)
    if reader.func.kind is Kind.NORM:
        return layer_norms.expand(reader.composite(), scratch)
    return [reader.tile_op()]


class Reader:
    def __init__(self, sdsc: SuperDSC, names: TensorNames) -> None:
        self.sdsc, self.names = sdsc, names
        self.func = sdsc.row
        self.where = f"SuperDSC {sdsc.title}"
        self.inputs = class_rules.inputs_of(sdsc)
        self.output = sdsc.compute.outputs[0]
        tensors = (*self.inputs, self.output, *sdsc.compute.indices)
        used = {d for t in tensors for d in (*self.moving(t), *self._window_dims(t))}
        # Split dims stay even where no tensor has them, so that every core is told what to do.
        self.labels = [d for d in sdsc.sizes if d in used or sdsc.slices[d] > 1]
        self.rename: dict[str, str] = {}

    def moving(self, tensor: int) -> list[str]:
        """Dims along which a tensor's coordinates move; a dim masked to one element is only a lane."""
        gathered = self.sdsc.gathered(tensor)
        return [
            d for d in self.sdsc.present(tensor) if d not in gathered and not self._lone(d) and not self._skipped(d)
        ]

    def _window_dims(self, tensor: int) -> list[str]:
        """Dims of windows of more than one element."""
        return [d for d in self.sdsc.moves(tensor) if d not in self.sdsc.present(tensor) and self.sdsc.sizes[d] > 1]

    def _skipped(self, dim: str) -> bool:
        """A dim of one element that only stands for places which a view does not touch."""
        sdsc = self.sdsc
        if sdsc.sizes[dim] > 1 or sdsc.slices[dim] > 1:
            return False
        if self.func.kind is Kind.MATMUL:
            a, b = (sdsc.present(i) for i in self.inputs)
            return dim not in sdsc.present(self.output) and not (dim in a and dim in b)
        having = [a for i, a in enumerate(sdsc.allocations) if dim in sdsc.present(i)]
        return bool(having) and all(a.gap(dim) > 0 for a in having)

    def _lone(self, dim: str) -> bool:
        """A stick dim that the op does not have: one element of a padded stick, last among the dims."""
        sdsc = self.sdsc
        last = dim == list(sdsc.sizes)[-1] and dim != voc.LAST_LABEL and self.func.kind is not Kind.MATMUL
        return last and sdsc.masking.get(dim, (0, 0))[0] == 1

    def tile_op(self) -> TileOp:
        sdsc, kind = self.sdsc, self.func.kind
        if kind is Kind.MATMUL:
            return self._matmul()
        if kind is Kind.SELECTION:
            return self._topk()
        if sdsc.compute.indices:
            return self._gather()
        op = self.func.read_as or self.func.name
        reduced = class_rules.reduced_dims(sdsc) if kind is Kind.REDUCTION else ()
        return self._op(op, self.labels, self._inputs(), tuple(d for d in reduced if d in self.labels))

    def _op(self, op: str, labels: Sequence[str], inputs: tuple[Input, ...], reduced: tuple[str, ...]) -> TileOp:
        return TileOp(
            name=self.sdsc.title,
            op=op,
            dims=tuple(self._dim(d) for d in labels),
            inputs=inputs,
            output=self.operand(self.output),
            reduced=reduced,
            core_order=core_order(self.sdsc),
            constants=self.constants(),
            origin=self.where,
        )

    def _matmul(self) -> TileOp:
        roles = class_rules.matmul_roles(self.sdsc)
        assert not isinstance(roles, str)
        spare = [d for d in self.labels if d not in (*roles.batch, roles.m, roles.n, *roles.summed)]
        if spare:
            raise UnsupportedOp(f"{self.where}: dim {spare[0]} is split over cores but in no tensor")
        taps = [d for d in roles.taps if d in self.labels]
        summed = taps if roles.k is None and taps else [*taps, roles.k or _ONE["k"]]
        labels = [*roles.batch, roles.m or _ONE["m"], roles.n or _ONE["n"], *summed]
        return self._op("batchmatmul", labels, self._inputs(), tuple(summed))

    def _topk(self) -> TileOp:
        roles = class_rules.topk_roles(self.sdsc)
        assert not isinstance(roles, str)
        searched, found = roles
        self.rename = {found: searched} if found else {}
        op = self._op(self.sdsc.opfunc, [d for d in self.labels if d != found], self._inputs(), ())
        count = self.sdsc.valid(found) if found else 1
        return replace(op, along=searched, top=TopK(count))

    def _gather(self) -> TileOp:
        sdsc = self.sdsc
        scatters = tables.is_scatter(sdsc)
        table = self.output if scatters else self.inputs[0]
        numbers = {d: i + 1 for i, d in enumerate(sdsc.gathered(table))}
        indices = tuple(self.operand(i) for i in sdsc.compute.indices)
        if not scatters:
            return self._op("gather", self.labels, (self.operand(table, numbers), *indices), ())
        op = self._op("scatter", self.labels, (self.operand(self.inputs[0]), *indices), ())
        return self._in_row_order(replace(op, output=self.operand(table, numbers)), table)

    def _in_row_order(self, op: TileOp, table: int) -> TileOp:
        """Cores that split the rows of a scatter may name the same row, so one core writes them in order."""
        own = self.moving(table)
        shared = [d.name for d in op.dims if d.slices > 1 and d.name not in own]
        if shared and any(a.component == "lx" for a in self.sdsc.allocations):
            raise UnsupportedOp(f"{self.where}: a scatter from LX whose rows (dim {shared[0]}) are split over cores")
        dims = tuple(replace(d, slices=1, tile=0) if d.name in shared else d for d in op.dims)
        return replace(op, dims=dims, core_order=tuple(d for d in op.core_order if d not in shared))

    def composite(self) -> layer_norms.Composite:
        tensors = [self.operand(i) for i in self.inputs]
        return layer_norms.Composite(
            self._op(self.sdsc.opfunc, self.labels, tuple(tensors), ()),
            class_rules.reduced_dims(self.sdsc) if self.func.reduces else (),
        )

    def _inputs(self) -> tuple[Input, ...]:
        """Tensors in order, around the scalars that constants put at their positions."""
        scalars: dict[int, Immediate] = {}
        for position, name in voc.scalar_operands(self.func.name).items():
            default = self.func.constants[name]
            assert default is not None
            scalars[position] = Immediate(default)
        for c in self.sdsc.constants:
            position_or_none = voc.immediate_position(c.name, self.func.name)
            if position_or_none is not None:
                value = decode(c.bits, c.format)
                scalars[position_or_none] = Immediate(value, c.format)
        rest = iter(self.inputs)
        return tuple(
            scalars[i] if i in scalars else self.operand(next(rest)) for i in range(len(self.inputs) + len(scalars))
        )

    def _dim(self, label: str) -> Dim:
        sdsc = self.sdsc
        if label in _ONE.values():
            return Dim(label, 1)
        slices = sdsc.slices[label]
        return Dim(label, sdsc.valid(label), slices, sdsc.core_sizes[label] if slices > 1 else 0)

    def operand(self, index: int, gathered: dict[str, int] | None = None) -> Operand:
        sdsc = self.sdsc
        allocation, geometry = sdsc.allocations[index], sdsc.geometry(index)
        present = self.moving(index)
        sticks = {level.dim: level for level in geometry.sticks}
        sizes: list[int] = []
        coords: list[Coord] = []
        spare: list[int] = []  # blocks after the iterated ones
        for dim in reversed(allocation.order):
            if dim in (gathered or {}):
                sizes.append(geometry.extents[dim])
                coords.append(Coord(index=(gathered or {})[dim]))
            elif dim in present:
                sizes.append(geometry.extents[dim])
                coords.append(self._along(index, dim, geometry.unit(dim)))
            elif dim in sticks or geometry.extents[dim] > 1:
                sizes.append(geometry.extents[dim])
                coords.append(Coord())
            if len(spare) < len(sizes):
                gap = 0 if dim in (gathered or {}) else allocation.gap(dim) // geometry.unit(dim)
                spare.append(gap)
        lanes = tuple(
            Term(self._name(s.dim), s.stride, mod=s.elements) for s in reversed(geometry.sticks) if s.dim in present
        )
        sizes.append(geometry.stick_elements)
        coords.append(Coord(lanes))
        address = next(iter(allocation.start.values())) - sdsc.core_offset(index, next(iter(allocation.start)))
        space, arg = Space.LX, -1
        if allocation.component == "hbm":
            space, (arg, address) = Space.MEMORY, divmod(address, SEGMENT_BYTES)
        tensor = Tensor("", sdsc.tensors[index].format, space, tuple(sizes), address, arg)
        made = _inside_the_whole(Operand(tensor, tuple(coords)), spare, sdsc.tensors[index].word_bytes)
        return Operand(self.names.name(made.tensor), made.coords)

    def _along(self, tensor: int, dim: str, unit: int) -> Coord:
        window = self.sdsc.window(tensor, dim)
        if window is None:
            return Coord((Term(self._name(dim), div=unit),))
        inner = (Term(window.dim, window.dilation),) if window.dim in self.labels else ()
        return Coord((Term(self._name(dim), window.stride), *inner))

    def _name(self, dim: str) -> str:
        return self.rename.get(dim, dim)

    def constants(self) -> dict[str, float]:
        """Constants by name. The mask value must be neutral, because masked elements are simply not visited here."""
        func = self.func
        given = {c.name: decode(c.bits, c.format) for c in self.sdsc.constants}
        mask, neutral = given.pop(voc.MASK_VALUE, None), func.neutral[0]
        bounded = math.isfinite(neutral)
        if mask is not None and (mask != neutral if bounded else mask * neutral < 0 or abs(mask) < _LARGEST_FP16):
            raise UnsupportedOp(
                f"{self.where}: {voc.MASK_VALUE} {mask}, the neutral element of {func.name} is {neutral}"
            )
        values = {n: v for n, v in given.items() if voc.immediate_position(n, func.name) is None}
        scalars = func.scalars
        for name, default in func.constants.items():
            if name not in scalars and name not in values and default is not None:
                values[name] = default
        if func.reduces:
            count = math.prod(self.sdsc.valid(d) for d in class_rules.reduced_dims(self.sdsc))
            values = {n: 1.0 / count if math.isnan(v) and n in func.constants else v for n, v in values.items()}
        if func.read_as and func.scaled_by:
            values[OPS[func.read_as].scaled_by] = values.pop(func.scaled_by)
        return values


def _inside_the_whole(operand: Operand, spare: Sequence[int], word: int) -> Operand:
    """A view with gaps after it, taken as one with gaps before it where it can be: so it ends where its tensor does.

    How far inside its tensor a view starts, a file does not say; the bytes touched are the same.
    """
    tensor = operand.tensor
    base, coords, stride = tensor.base, list(operand.coords), word
    strides = []
    for size in reversed(tensor.device_size):
        strides.append(stride)
        stride *= size
    if tensor.space is Space.LX and base + stride <= LX_BYTES:
        return operand
    for d, (gap, step) in enumerate(zip((*spare, 0), reversed(strides), strict=True)):
        ahead = min(gap, base // step)
        if ahead > 0:
            coords[d] = replace(coords[d], const=ahead)
            base -= ahead * step
    return Operand(replace(tensor, base=base), tuple(coords))


def core_order(sdsc: SuperDSC) -> tuple[str, ...]:
    """Split dims, fastest first, of a core map that counts them."""
    order = counted(sdsc)
    if order is None:
        raise UnsupportedOp(f"SuperDSC {sdsc.title}: its cores do not count slices in the order of any dims")
    return order


def counted(sdsc: SuperDSC) -> tuple[str, ...] | None:
    """A dim whose slice changes every p cores follows dims with p slices together; None if cores do not count so."""
    split = [d for d in sdsc.sizes if sdsc.slices[d] > 1]
    cores = list(sdsc.core_slices)
    period = {d: next(i for i, c in enumerate(cores) if sdsc.core_slices[c][d] != 0) for d in split}
    order = tuple(sorted(split, key=lambda d: period[d]))
    return order if cores == list(range(len(cores))) and sdsc.core_slices == _counting(sdsc, order) else None


def _counting(sdsc: SuperDSC, order: Sequence[str]) -> dict[int, dict[str, int]]:
    result = {}
    for core in range(sdsc.cores):
        rest, place = core, dict.fromkeys(sdsc.core_slices[next(iter(sdsc.core_slices))], 0)
        for dim in order:
            rest, place[dim] = divmod(rest, sdsc.slices[dim])
        result[core] = place
    return result


def with_counting_cores(sdsc: SuperDSC) -> tuple[SuperDSC, dict[int, int]]:
    """The op with its work dealt to cores 0, 1, … in counting order, and which core took over from which."""
    if counted(sdsc) is not None:
        return sdsc, {c: c for c in sdsc.core_slices}
    dims = [d for d in sdsc.sizes if sdsc.slices[d] > 1]
    places = _counting(sdsc, dims)
    number = {tuple(p[d] for d in dims): core for core, p in places.items()}
    moved = {c: number[tuple(p[d] for d in dims)] for c, p in sdsc.core_slices.items()}
    allocations = tuple(
        replace(a, start=dict(sorted((moved[c], s) for c, s in a.start.items()))) for a in sdsc.allocations
    )
    return replace(sdsc, core_slices=places, allocations=allocations), moved


def with_counting_maps(sdscs: Sequence[SuperDSC]) -> list[SuperDSC]:
    """Ops that share scratchpads must be renumbered alike; an op that uses memory alone may run on any cores."""
    result, shared = [], None
    for sdsc in sdscs:
        made, moved = with_counting_cores(sdsc)
        if len(sdscs) > 1 and any(a.component == "lx" for a in sdsc.allocations):
            common = {c: n for c, n in moved.items() if shared is not None and c in shared}
            if shared is not None and any(shared[c] != n for c, n in common.items()):
                raise UnsupportedOp(
                    f"SuperDSC {sdsc.title}: its core map is a permutation that earlier ops do not have"
                )
            shared = {**(shared or {}), **moved}
        result.append(made)
    return result
