# SPDX-License-Identifier: Apache-2.0
"""One planned op as a SuperDSC: dims become labels by position, tensors become Tensor<i>, argument k becomes segment k.

Sizes are padded to whole sticks; the true size of a padded dim stands in `coordinateMasking_` as [valid, pad], for
every op class, and the true extent of a tensor without that padding in `maxDimSizes_`. A masked reduction also names
the value of the pad: constant 0, `samv-maskvalue`. Where the last slice of a split dim is shorter, `el_` says so.
Tensors with one element per stick, in an op whose dims fill no sticks or in a copy to or from sticks, get a stick dim
of their own, masked to [1, E - 1]. A view that starts inside its tensor starts at a later address; places it never
touches are a dim of one element with a back gap. What the format cannot say raises NotExpressible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from torch_spyre.constants import CORES, SEGMENT_BYTES
from torch_spyre.errors import InvalidProgram, NotExpressible, UnsupportedOp
from torch_spyre.ir.plan.tileops import Dim, Immediate, LaunchScalar, LinearOperand, Operand, Positions, Space, TileOp
from torch_spyre.ir.superdsc import vocabulary as voc
from torch_spyre.ir.superdsc.constant_formats import decode, encode, stick_elements, word_bytes
from torch_spyre.ir.superdsc.rules import MAX_SEGMENTS, derive_folds, problems
from torch_spyre.ir.superdsc.schema import (
    INDEX_TENSOR,
    NO_INDIRECTION,
    VALUE_TENSOR,
    Allocation,
    Compute,
    Constant,
    LabeledDs,
    Primary,
    SuperDSC,
)
from torch_spyre.ir.superdsc.stick_accesses import SKIPPED, TensorAccess, read_access
from torch_spyre.optable import PUBLISHED, SELECT, Gives, Kind, Row


def write_sdsc(op: TileOp, index: int = 0, kernel: str = "kernel") -> SuperDSC:
    """One op as a SuperDSC that passes `verify`."""
    try:
        sdsc = _Writer(op, index).sdsc()
        found = problems(sdsc, MAX_SEGMENTS)
        if found:
            raise NotExpressible("; ".join(map(str, found)))
        return sdsc
    except (NotExpressible, UnsupportedOp) as error:
        raise NotExpressible(f"{kernel}: op {index} ({op.name}, {op.op}) has no SuperDSC form: {error}") from None


def refusal(op: TileOp) -> str:
    """Why an op has no SuperDSC form however its dims are split over the cores; empty if it has one."""
    try:
        found = [p for p in problems(_Writer(op, 0).sdsc(), MAX_SEGMENTS) if p.rule != "span"]
    except (NotExpressible, UnsupportedOp) as error:
        return str(error)
    return "; ".join(map(str, found))


_LONE_STICK = "(stick)"  # stick dim of tensors that keep one element per stick
_FOUND = "(found)"  # dim of the elements that topk finds
_ROW = "(row"  # prefix of dims of one element: the row that an index of one element names
_HALF_STICK = stick_elements("SEN169_FP16")


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class _Writer:
    """One op on its way: accesses by operand position (inputs, then output), labels by dim name."""

    def __init__(self, op: TileOp, index: int) -> None:
        self.op, self.index = op, index
        self.row = _check_op(op)
        self.opfunc = published_name(op, self.row)
        self.constants = _op_constants(op)
        self.valid = {d.name: d.size for d in op.dims}
        self.slices = {d.name: d.slices for d in op.dims}
        self.accesses = self._read_accesses()
        self.labels = self._label_dims()
        self.sticks = self._stick_dims()
        self._check_output()
        self.valid = {d: self.valid.get(d, 1) for d in self.labels}
        self.tails: dict[str, int] = {}  # elements of a shorter last slice
        self.padded = self._padded_sizes()

    def _read_accesses(self) -> list[TensorAccess]:
        """Inputs, then the result. Index tensors come first, as the public front end lists them."""
        op, tensors = self.op, _tensor_inputs(self.op, self.row)
        if self.row.has_table:
            indices = [read_access(op, x) for x in tensors[1:]]
            named = self._gathered_dims(indices)
            tables = (tensors[0], op.output)
            others: dict[int, str] = {}
            indices = [self._with_row(x, named[i]) for i, x in enumerate(indices, start=1)]
            first, last = (named, others) if self.row.kind is Kind.GATHER else (others, named)
            return [*indices, read_access(op, tables[0], first), read_access(op, tables[1], last)]
        if self.row.kind is Kind.SELECTION:
            return [read_access(op, tensors[0]), self._topk_result()]
        return [read_access(op, x) for x in (*tensors, op.output)]

    def _gathered_dims(self, indices: Sequence[TensorAccess]) -> dict[int, str]:
        """For each index tensor one of its dims that the table does not move along: the table's gathered dim."""
        table = self.op.inputs[0] if self.row.kind is Kind.GATHER else self.op.output
        if not isinstance(table, Operand):
            raise NotExpressible(f"table {table} is not touched by device coordinates")
        taken = {t.dim for c in table.coords for t in c.terms}
        result: dict[int, str] = {}
        for number, access in enumerate(indices, start=1):
            own = [d.name for d in self.op.dims if d.name in access.extents]
            free = [d for d in own if d not in taken]
            if not free and any(self.op.dim(d).size > 1 for d in own):
                raise NotExpressible(f"index tensor {access.tensor.name} has no dim that the table lacks")
            result[number] = free[0] if free else f"{_ROW}{number})"
            taken.add(result[number])
        return result

    def _with_row(self, access: TensorAccess, dim: str) -> TensorAccess:
        """An index of one element has a dim of one row."""
        if not dim.startswith(_ROW):
            return access
        self.valid[dim], self.slices[dim] = 1, 1
        return replace(access, extents={}).sticking_on(dim)

    def _topk_result(self) -> TensorAccess:
        """The result has a dim of its own for the k elements found."""
        op, output = self.op, self.op.output
        if op.top is None or op.top.ascending:
            raise NotExpressible(f"{op.op}{'' if op.top is None else ' of the smallest elements'}")
        assert isinstance(output, Operand)
        if op.dim(op.along).slices > 1:
            raise InvalidProgram(f"op {op.name}: dim {op.along} of {op.op} is split")
        count = op.top.count
        narrow = replace(op, dims=tuple(replace(d, size=count) if d.name == op.along else d for d in op.dims))
        access = read_access(narrow, output)
        self.valid[_FOUND], self.slices[_FOUND] = count, 1
        extents = {_FOUND if d == op.along else d: n for d, n in access.extents.items()}
        return replace(access, extents=extents, stick=_FOUND if access.stick == op.along else access.stick)

    def _label_dims(self) -> dict[str, str]:
        """Labels by position; dims that only the file has (results of topk, skipped places) take free ones."""
        names = [d.name for d in self.op.dims]
        labels = voc.dim_labels(len(names), self.row.kind)
        skipped = dict.fromkeys(
            d for a in self.accesses for d in a.extents if d.startswith((SKIPPED, _ROW)) or d == _FOUND
        )
        result = dict(zip(names, labels or (), strict=False))
        free = (x for x in voc.MATMUL_LABELS if x not in (labels or ()))
        for dim in skipped:
            result[dim] = next(free, "")
        if labels is None or "" in result.values():
            count = len(names) + len(skipped)
            raise NotExpressible(f"{count} iteration dims; there are {len(voc.MATMUL_LABELS)} labels for them")
        for dim in skipped:
            self.valid.setdefault(dim, 1)
            self.slices[dim] = 1
        return result

    def sdsc(self) -> SuperDSC:
        own = [d.name for d in self.op.dims]
        lone = [_LONE_STICK] if _LONE_STICK in self.labels else []
        extra = [d for d in self.labels if d not in (*own, *lone)]
        # A matmul's last dims are m, n, k; elsewhere a last dim other than `out` is a lone stick.
        names = [*extra, *own, *lone]
        order = [self.labels[d] for d in names]
        sizes = {self.labels[d]: size for d, size in self.padded.items()}
        slices = {self.labels[d]: self.slices.get(d, 1) for d in names}
        tails = {self.labels[d]: n for d, n in self.tails.items()}
        primary, tensors = self._layouts()
        count = len(self.accesses) - 1
        indices = tuple(range(count - 1)) if self.row.has_table else ()
        inputs = tuple(i for i in range(count) if i not in indices)
        output = count
        sdsc = SuperDSC(
            index=self.index,
            opfunc=self.opfunc,
            sizes={d: sizes[d] for d in order},
            core_sizes={d: -(-(sizes[d] - tails.get(d, 0)) // (slices[d] - (d in tails))) for d in order},
            slices={d: slices[d] for d in order},
            core_slices=self._core_slices(order),
            primary=primary,
            allocations=(),
            tensors=tensors,
            compute=Compute(
                unit=self.row.unit.value,
                opfunc=self.opfunc,
                format=self._compute_format(),
                inputs=(*inputs, output) if self.row.kind is Kind.REDUCTION else inputs,
                outputs=(output,),
                indices=indices,
            ),
            masking=self._masking(),
            constants=self.constants,
            last_sizes=tails,
        )
        sdsc = self._with_mask_constant(sdsc)
        sdsc = replace(sdsc, allocations=tuple(self._allocation(sdsc, i) for i in range(len(tensors))))
        return replace(sdsc, allocations=tuple(_placed(sdsc, a, self.accesses[a.index]) for a in sdsc.allocations))

    def _stick_dims(self) -> list[str]:
        """Stick dim of each tensor's label, by the stick rule of the op's class."""
        if self.row.kind is Kind.MATMUL:
            return self._matmul_sticks()
        used = list(dict.fromkeys(a.stick for a in self.accesses if a.stick is not None))
        if self.row.has_table or (self.row.kind is Kind.COPY and (len(used) > 1 or self._sparse_side(used))):
            return self._restickify_sticks()
        if len(used) > 1:
            raise NotExpressible(f"tensors stick on different dims ({', '.join(used)}); restickify first")
        if not used:
            self.accesses = [a.sticking_on(_LONE_STICK) for a in self.accesses]
        stick = used[0] if used else self._add_lone_stick()
        if self.row.kind is Kind.REDUCTION:
            self._check_reduction(stick)
        if sparse := self._sparse_side([stick]):
            raise NotExpressible(f"tensor {sparse} has dim {stick} outside its sticks, another has it inside")
        return [stick] * len(self.accesses)

    def _sparse_side(self, used: Sequence[str]) -> str | None:
        """Name of a tensor with one element per stick that has a dim which fills another tensor's sticks."""
        return next((a.tensor.name for a in self.accesses if a.stick is None and {*used} & {*a.extents}), None)

    def _restickify_sticks(self) -> list[str]:
        """A copy that changes the stick dim; a side with one element per stick gets a stick dim of its own."""
        if self.row.kind is Kind.COPY and all(a.tensor.space is Space.MEMORY for a in self.accesses):
            self.opfunc = voc.RESTICKIFY
        if any(a.stick is None for a in self.accesses):
            self._add_lone_stick()
        self.accesses = [a if a.stick is not None else a.sticking_on(_LONE_STICK) for a in self.accesses]
        return [a.stick or _LONE_STICK for a in self.accesses]

    def _matmul_sticks(self) -> list[str]:
        m, n, k = (d.name for d in self.op.dims[-3:])
        wanted = {"first": (k, n), "second": (n, m), "result": (n, k)}  # stick dim, and the dim it lacks
        for i, (role, (stick, lacks)) in enumerate(wanted.items()):
            self.accesses[i] = self._require_stick(self.accesses[i], stick)
            if lacks in self.accesses[i].extents:
                raise NotExpressible(f"the {role} tensor of a batchmatmul has dim {lacks}")
        return [stick for stick, _ in wanted.values()]

    def _require_stick(self, access: TensorAccess, dim: str) -> TensorAccess:
        if access.stick is None and self.op.dim(dim).size == 1 and dim not in access.extents:
            return access.sticking_on(dim)
        if access.stick != dim:
            raise NotExpressible(
                f"tensor {access.tensor.name} of a batchmatmul must stick on {dim}, not {access.stick}"
            )
        return access

    def _check_output(self) -> None:
        output = self.accesses[-1]
        if self.row.kind in (Kind.SELECTION, Kind.SCATTER):
            return
        expected = [d for d in self.op.dims if d.size > 1 and d.name not in self.op.reduced]
        copies = output.tensor.space is Space.LX  # of cores that work alike, each in its own scratchpad
        missing = [
            d.name for d in expected if d.name not in output.extents and not (copies and d.slices > 1 and d.extent == 1)
        ]
        if missing:
            raise NotExpressible(f"the result lacks the dims {', '.join(missing)}, which are not reduced")

    def _add_lone_stick(self) -> str:
        label = voc.lone_stick_label(list(self.labels.values()))
        if label is None:
            raise NotExpressible(f"{len(self.op.dims)} iteration dims leave no label for a stick dim")
        self.labels[_LONE_STICK] = label
        return _LONE_STICK

    def _check_reduction(self, stick: str) -> None:
        op, output = self.op, self.accesses[-1]
        present = [d for d in op.reduced if d in output.extents]
        if present or not op.reduced:
            raise NotExpressible(f"a reduction over {op.reduced} whose result has the dims {present}")
        split = [d for d in op.reduced if op.dim(d).slices > 1]
        if len(split) > 1:
            raise NotExpressible(f"reduced dims {', '.join(split)} are all split; at most one may be")
        if stick not in op.reduced:
            self.opfunc += voc.NONSTICK

    def _padded_sizes(self) -> dict[str, int]:
        """Whole sticks in every dim that some tensor sticks on; checks that splits are even in that form."""
        unit = dict.fromkeys(self.labels, 1)
        for access in self.accesses:
            if access.stick is not None:
                unit[access.stick] = max(unit[access.stick], access.elements)
        padded = {d: _round_up(size, unit[d]) for d, size in self.valid.items()}
        for d in self.op.dims:
            if d.slices > 1:
                padded[d.name] = self._split_size(d, unit[d.name])
        return padded

    def _split_size(self, dim: Dim, unit: int) -> int:
        """Padded size of a split dim: even slices, a shorter last slice, or even slices with a masked end."""
        size, whole = dim.slices * dim.extent, _round_up(dim.size, unit)
        if dim.extent % unit:
            raise NotExpressible(f"a slice of {dim.extent} elements of dim {dim.name} is not whole sticks of {unit}")
        # Another op may have cut the dim in its own sticks, so those units count as well.
        units = {unit, _HALF_STICK, *(a.elements for a in self.accesses)}
        last = whole - (dim.slices - 1) * dim.extent
        if size in {_round_up(dim.size, u) for u in units} or last <= 0:
            return size
        if last != dim.extent:
            self.tails[dim.name] = last
        return whole

    def _masking(self) -> dict[str, tuple[int, int]]:
        pads = {d: self.padded[d] - size for d, size in self.valid.items()}
        return {self.labels[d]: (self.valid[d], pad) for d, pad in pads.items() if pad}

    def _with_mask_constant(self, sdsc: SuperDSC) -> SuperDSC:
        """The mask value comes first, so that maskingConstId_ 0 is right however it is resolved."""
        if not {self.labels[d] for d in self.op.reduced} & {*sdsc.masking}:
            return sdsc
        format = self.accesses[0].tensor.format
        mask = Constant(voc.MASK_VALUE, format, encode(self.row.neutral[0], format))
        return replace(sdsc, mask_constant=0, constants=(mask, *self.constants))

    def _core_slices(self, order: Sequence[str]) -> dict[int, dict[str, int]]:
        op = self.op
        split = {d.name: d.slices for d in op.dims if d.slices > 1}
        listed = [d for d in op.core_order if d in split]
        if sorted(listed) != sorted(split):
            raise InvalidProgram(f"op {op.name}: core_order {op.core_order} does not list the split dims {list(split)}")
        if op.cores > CORES:
            raise NotExpressible(f"{op.cores} cores; a card has {CORES}")
        k_fast = self.row.kind is Kind.MATMUL and listed[:1] == [op.dims[-1].name]
        keys = [order[-1], *order[:-1]] if k_fast else order
        result = {}
        for core in range(op.cores):
            rest, place = core, dict.fromkeys(keys, 0)
            for dim in listed:
                rest, place[self.labels[dim]] = divmod(rest, split[dim])
            result[core] = place
        return result

    def _layouts(self) -> tuple[dict[str, Primary], tuple[LabeledDs, ...]]:
        """Tensors with the same stick dim, dims and stick size share a layout label."""
        matmul = self.row.kind is Kind.MATMUL
        names = iter(voc.MATMUL_LAYOUT_LABELS if matmul else voc.LAYOUT_LABELS)
        shared: dict[tuple[str, frozenset[str], int], str] = {}
        primary: dict[str, Primary] = {}
        tensors = []
        for i, (access, stick) in enumerate(zip(self.accesses, self.sticks, strict=True)):
            order, elements = self._order(access), access.elements
            # A matmul's operands have different roles, so each has a label of its own.
            key = (f"{i if matmul else ''}{stick}", frozenset(order), elements)
            if key not in shared:
                shared[key] = next(names)
                primary[shared[key]] = Primary(order, (self.labels[stick],), (elements,))
            label = shared[key]
            back = {label: name for name, label in self.labels.items()}
            scale = tuple(self._scale(access, back[d], stick) for d in primary[label].order)
            format = access.tensor.format
            tensors.append(LabeledDs(i, label, scale, word_bytes(format), format, access.tensor.space is Space.MEMORY))
        return primary, tuple(tensors)

    def _order(self, access: TensorAccess) -> tuple[str, ...]:
        """Labels from inner to outer; dims the tensor lacks follow, outside all others."""
        dims = [d.name for d in reversed(self.op.dims)]
        if self.row.kind is Kind.MATMUL:
            dims = dims[3:]
        if self.row.kind is Kind.SELECTION:
            dims = [*dims, _FOUND]
        missing = [d for d in dims if d not in access.extents]
        return tuple(self.labels[d] for d in (*access.extents, *missing))

    @staticmethod
    def _scale(access: TensorAccess, dim: str, stick: str) -> int:
        if dim in access.extents:
            return 1
        return -2 if dim == stick else -1

    def _allocation(self, sdsc: SuperDSC, tensor: int) -> Allocation:
        access = self.accesses[tensor]
        component = "hbm" if access.tensor.space is Space.MEMORY else "lx"
        gaps, max_sizes = {}, {}
        gathered = access.gathered or {}
        for dim, extent in access.extents.items():
            label = self.labels[dim]
            padded = sdsc.sizes[label] if component == "hbm" else sdsc.core_sizes[label]
            size = extent * (access.elements if dim == access.stick else 1)
            if dim in gathered:
                gaps[label], max_sizes[label] = {-1: size - padded}, 1
            elif size < padded:
                max_sizes[label] = size
            elif size > padded:
                cores = [-1] if component == "hbm" else [-1, *range(sdsc.cores)]
                gaps[label] = dict.fromkeys(cores, size - padded)
        folds = {d: derive_folds(sdsc, tensor, d) for d in sdsc.primary[sdsc.tensors[tensor].label].order}
        kind, related = NO_INDIRECTION, None
        if tensor in sdsc.compute.indices or gathered:
            kind = VALUE_TENSOR if gathered else INDEX_TENSOR
            scatters = self.row.kind is Kind.SCATTER
            table = sdsc.compute.outputs[0] if scatters else sdsc.compute.inputs[0]
            other = sdsc.compute.indices[0] if gathered else table
            related = f"allocate-Tensor{other}_{'hbm' if sdsc.tensors[other].in_memory else 'lx'}"
        return Allocation(
            tensor, component, self._order(access), {}, folds, gaps or None, max_sizes, kind, related=related
        )

    def _compute_format(self) -> str:
        """The first operand's format. The values that an op computes with must share it."""
        used = self.accesses
        if self.row.kind is Kind.CAST:
            return used[0].tensor.format  # the name of the cast says both
        if self.row.has_table:
            used = used[-2:]
        elif self.row.kind is Kind.MATMUL:
            used = used[:2]
        elif self.row.gives is not Gives.VALUES:
            used = used[:-1]  # the result is a truth value, or a position
        elif self.row is SELECT and isinstance(self.op.inputs[0], Operand):
            used = used[1:]  # the condition is one
        # A scalar that the launch gives is a 0-d fp32 tensor beside tensors of any format.
        formats = [a.tensor.format for a in used if a.extents] or [a.tensor.format for a in used]
        if not formats:
            raise NotExpressible("an op whose operands are all numbers or positions, which no tensor holds")
        first = formats[0]
        if len({*formats}) > 1:
            raise NotExpressible(f"tensors of formats {', '.join(dict.fromkeys(formats))} in one op; cast them first")
        # The copy engine has no integer form: an int32 copy moves the words as fp32.
        if self.row.kind is Kind.COPY and first == "IEEE_INT32":
            return "IEEE_FP32"
        return first


def _check_op(op: TileOp) -> Row:
    row = op.row
    if row.kind is Kind.MATMUL and len(op.reduced) > 1:
        raise NotExpressible(f"a batchmatmul that sums over {len(op.reduced)} dims; a file names one")
    if row.kind is Kind.MATMUL and (len(op.dims) < 3 or op.reduced != (op.dims[-1].name,)):
        raise InvalidProgram(f"op {op.name}: batchmatmul needs dims (…, m, n, k) and reduces k, got {op.reduced}")
    if any(d.chunk for d in op.dims):
        raise NotExpressible("a tile loop over chunks of slices; a file names whole slices")
    if row.element_for_element and op.reduced:
        raise InvalidProgram(f"op {op.name}: {op.op} reduces nothing, got {op.reduced}")
    if math.prod(d.size for d in op.dims) == 0:
        raise NotExpressible(f"an empty iteration space {[(d.name, d.size) for d in op.dims]}")
    return row


# (format of the operand, format of the result) -> opfunc
_CONVERSIONS = {
    pair: row.superdsc for row in PUBLISHED.values() if row.formats is not None for pair in product(*row.formats)
}


def has_word(row: Row) -> bool:
    """Is there an opfunc for some form of the op?"""
    return bool(row.superdsc) or row.is_move or row.is_matmul or row.has_table


def published_name(op: TileOp, row: Row) -> str:
    """The opfunc's name in a file; NotExpressible if the public front end emits none that does this."""
    if row.kind in (Kind.COPY, Kind.GATHER) or op.op == "scatter":  # one that adds has no word
        return voc.COPY
    if row.kind is Kind.CAST and row.formats is None:
        source = op.inputs[0]
        formats = (source.tensor.format if isinstance(source, Operand) else "", op.output.tensor.format)
        if formats not in _CONVERSIONS:
            raise NotExpressible(f"no opfunc converts {formats[0] or 'a scalar'} to {formats[1]}")
        return _CONVERSIONS[formats]
    if row.kind is Kind.MATMUL:
        small = any(x.tensor.format.endswith("FP8") for x in op.inputs if isinstance(x, Operand))
        return "batchmatmulfp8" if small else op.op
    if not row.superdsc:
        raise NotExpressible(f"opfunc {row.name!r} is not among those that a front end emits")
    return row.superdsc


def _tensor_inputs(op: TileOp, row: Row) -> list[Operand | LinearOperand]:
    if not row.takes(len(op.inputs)):
        raise InvalidProgram(f"op {op.name}: {op.op} has {len(op.inputs)} inputs, it takes {row.operands}")
    scalars = [x for x in op.inputs if isinstance(x, LaunchScalar)]
    if scalars:
        raise NotExpressible(f"launch scalar {scalars[0].index} is an operand; a bundle has no scalar arguments")
    if any(isinstance(x, Positions) for x in op.inputs):
        raise NotExpressible("an operand is the position itself; a file has tensors and constants")
    if row.kind in (Kind.REDUCTION, Kind.MATMUL) and any(isinstance(x, Immediate) for x in op.inputs):
        raise InvalidProgram(f"op {op.name}: {op.op} has a scalar operand")
    return [x for x in op.inputs if isinstance(x, Operand | LinearOperand)]


def _op_constants(op: TileOp) -> tuple[Constant, ...]:
    """Constants of the op, then its scalar operands, each named after its position."""
    clash = [name for name in op.constants if voc.immediate_position(name, op.op) is not None]
    if clash:
        raise NotExpressible(f"constant {clash[0]} has the name of a scalar operand")
    constants = [_constant(name, value, "IEEE_FP32") for name, value in op.constants.items()]
    for position, operand in enumerate(op.inputs):
        if isinstance(operand, Immediate):
            constants.append(_constant(voc.immediate_name(position, op.op), operand.value, operand.format))
    return tuple(constants)


def _constant(name: str, value: float, format: str) -> Constant:
    try:
        bits = encode(value, format)
    except OverflowError:
        raise NotExpressible(f"constant {name} = {value} is not an fp32 number") from None
    if format == "IEEE_INT32" and decode(bits, format) != value:
        raise NotExpressible(f"constant {name} = {value} is not an int32 number")
    return Constant(name, format, bits)


def _placed(sdsc: SuperDSC, allocation: Allocation, access: TensorAccess) -> Allocation:
    tensor = access.tensor
    base = tensor.base
    if allocation.component == "hbm":
        if not 0 <= tensor.arg < MAX_SEGMENTS:
            raise NotExpressible(f"tensor {tensor.name} is in argument {tensor.arg}; there are 0..{MAX_SEGMENTS - 1}")
        base += tensor.arg * SEGMENT_BYTES
    start = {c: base + sdsc.core_offset(allocation.index, c) for c in range(sdsc.cores)}
    return replace(allocation, start=start)
