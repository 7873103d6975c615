# SPDX-License-Identifier: Apache-2.0
"""Print a planned Kernel as a SuperDSC bundle: `sdsc_<i>.json` per op and `bundle.mlir`.

Dims become labels by position, tensors become Tensor<i>, launch argument k becomes segment k. Sizes are padded to whole
sticks; the true size of a padded dim stands in `coordinateMasking_` as [valid, pad], for every op class, and the true
extent of a tensor without that padding in `maxDimSizes_`. A masked reduction also names the value of the pad: constant
0, `samv-maskvalue`. Tensors with one element per stick, in an op whose dims fill no sticks or in a copy to or from
sticks, get a stick dim of their own, masked to [1, E - 1]. What the format cannot say raises NotExpressible.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch_spyre.constants import CORES, DATA_SEGMENTS, SEGMENT_BYTES
from torch_spyre.errors import InvalidProgram, NotExpressible, UnsupportedOp
from torch_spyre.ktir import opfuncs
from torch_spyre.ktir.opfuncs import OpFunc
from torch_spyre.ktir.tileops import Dim, Immediate, Kernel, LaunchScalar, LinearOperand, Operand, Space, TileOp
from torch_spyre.sdsc import vocabulary as voc
from torch_spyre.sdsc.access import TensorAccess, read_access
from torch_spyre.sdsc.formats import decode, encode, stick_elements, word_bytes
from torch_spyre.sdsc.rules import derive_folds, problems
from torch_spyre.sdsc.schema import Allocation, Compute, Constant, LabeledDs, Primary, SuperDSC


def write_bundle(kernel: Kernel, directory: str | Path) -> None:
    """Write the bundle's files into a directory, created if needed; a kernel that is not expressible writes nothing."""
    files = bundle_files(kernel)
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name).write_text(text)


def bundle_files(kernel: Kernel) -> dict[str, str]:
    """File name -> text. Raises NotExpressible that names the kernel, the op and the reason."""
    if len(kernel.args) > DATA_SEGMENTS:
        raise NotExpressible(f"{kernel.name}: {len(kernel.args)} arguments; a bundle has {DATA_SEGMENTS} segments")
    files = {}
    for i, op in enumerate(kernel.ops):
        files[f"sdsc_{i}.json"] = json.dumps(write_sdsc(op, i, kernel.name).to_json(), indent=2)
    if kernel.scalars:
        raise NotExpressible(f"{kernel.name}: launch scalars {list(kernel.scalars)}; a bundle has no scalar arguments")
    executes = "".join(f'\t\tsdscbundle.sdsc_execute () {{sdsc_filename="{name}"}}\n' for name in files)
    files["bundle.mlir"] = f"module {{\n\tfunc.func @sdsc_bundle() {{\n{executes}\t\treturn\n\t}}\n}}\n"
    return files


def write_sdsc(op: TileOp, index: int = 0, kernel: str = "kernel") -> SuperDSC:
    """One op as a SuperDSC that passes `verify`."""
    try:
        sdsc = _Writer(op, index).sdsc()
        found = problems(sdsc)
        if found:
            raise NotExpressible("; ".join(map(str, found)))
        return sdsc
    except (NotExpressible, UnsupportedOp) as error:
        raise NotExpressible(f"{kernel}: op {index} ({op.name}, {op.op}) has no SuperDSC form: {error}") from None


_LONE_STICK = "(stick)"  # stick dim of tensors that keep one element per stick
_HALF_STICK = stick_elements("SEN169_FP16")


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class _Writer:
    """One op on its way: accesses by operand position (inputs, then output), labels by dim name."""

    def __init__(self, op: TileOp, index: int) -> None:
        self.op, self.index = op, index
        self.func = _check_op(op)
        self.constants = _op_constants(op)
        self.accesses = [read_access(op, x) for x in (*_tensor_inputs(op, self.func), op.output)]
        labels = voc.dim_labels(len(op.dims), self.func.kind)
        if labels is None:
            raise NotExpressible(f"{len(op.dims)} iteration dims; there are {len(voc.MATMUL_LABELS)} labels for them")
        self.labels = dict(zip((d.name for d in op.dims), labels, strict=True))
        self.opfunc = voc.COPY if self.func.kind == opfuncs.COPY else opfuncs.base_name(op.op)
        self.sticks = self._stick_dims()
        self._check_output()
        sizes = {d.name: d.size for d in op.dims}
        self.valid = {d: sizes.get(d, 1) for d in self.labels}
        self.padded = self._padded_sizes()

    def sdsc(self) -> SuperDSC:
        dims = self.op.dims
        order = [self.labels[d.name] for d in dims]
        sizes = {self.labels[d]: size for d, size in self.padded.items()}
        slices = {self.labels[d.name]: d.slices for d in dims}
        if _LONE_STICK in self.labels:
            order.append(self.labels[_LONE_STICK])
            slices[order[-1]] = 1
        primary, tensors = self._layouts()
        inputs = tuple(range(len(self.accesses) - 1))
        output = len(inputs)
        sdsc = SuperDSC(
            index=self.index,
            opfunc=self.opfunc,
            sizes={d: sizes[d] for d in order},
            core_sizes={d: sizes[d] // slices[d] for d in order},
            slices={d: slices[d] for d in order},
            core_slices=self._core_slices(order),
            primary=primary,
            allocations=(),
            tensors=tensors,
            compute=Compute(
                unit=self.func.unit,
                opfunc=self.opfunc,
                format=self._compute_format(),
                inputs=(*inputs, output) if self.func.kind == opfuncs.REDUCTION else inputs,
                outputs=(output,),
            ),
            masking=self._masking(),
            constants=self.constants,
        )
        sdsc = self._with_mask_constant(sdsc)
        sdsc = replace(sdsc, allocations=tuple(self._allocation(sdsc, i) for i in range(len(tensors))))
        return replace(sdsc, allocations=tuple(_placed(sdsc, a, self.accesses[a.index]) for a in sdsc.allocations))

    def _stick_dims(self) -> list[str]:
        """Stick dim of each tensor's label, by the stick rule of the op's class."""
        if self.func.kind == opfuncs.MATMUL:
            return self._matmul_sticks()
        used = list(dict.fromkeys(a.stick for a in self.accesses if a.stick is not None))
        if self.func.kind == opfuncs.COPY and (len(used) > 1 or self._sparse_side(used)):
            return self._restickify_sticks()
        if len(used) > 1:
            raise NotExpressible(f"tensors stick on different dims ({', '.join(used)}); restickify first")
        if not used:
            self.accesses = [a.sticking_on(_LONE_STICK) for a in self.accesses]
        stick = used[0] if used else self._add_lone_stick()
        if self.func.kind == opfuncs.REDUCTION:
            self._check_reduction(stick)
        if sparse := self._sparse_side([stick]):
            raise NotExpressible(f"tensor {sparse} has dim {stick} outside its sticks, another has it inside")
        return [stick] * len(self.accesses)

    def _sparse_side(self, used: Sequence[str]) -> str | None:
        """Name of a tensor with one element per stick that has a dim which fills another tensor's sticks."""
        return next((a.tensor.name for a in self.accesses if a.stick is None and {*used} & {*a.extents}), None)

    def _restickify_sticks(self) -> list[str]:
        """A copy that changes the stick dim; a side with one element per stick gets a stick dim of its own."""
        if all(a.tensor.space is Space.MEMORY for a in self.accesses):
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
        expected = [d.name for d in self.op.dims if d.size > 1 and d.name not in self.op.reduced]
        missing = [d for d in expected if d not in self.accesses[-1].extents]
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
        """Padded size of a split dim. Another op may have cut it in its own sticks, so those units count as well."""
        size = dim.slices * dim.extent
        units = {unit, _HALF_STICK, *(a.elements for a in self.accesses)}
        if size not in {_round_up(dim.size, u) for u in units}:
            raise NotExpressible(
                f"uneven split: {dim.slices} slices of {dim.extent} elements of dim {dim.name}, whose padded size is "
                f"{_round_up(dim.size, unit)}"
            )
        if dim.extent % unit:
            raise NotExpressible(f"a slice of {dim.extent} elements of dim {dim.name} is not whole sticks of {unit}")
        return size

    def _masking(self) -> dict[str, tuple[int, int]]:
        pads = {d: self.padded[d] - size for d, size in self.valid.items()}
        return {self.labels[d]: (self.valid[d], pad) for d, pad in pads.items() if pad}

    def _with_mask_constant(self, sdsc: SuperDSC) -> SuperDSC:
        """The mask value comes first, so that maskingConstId_ 0 is right however it is resolved."""
        if not {self.labels[d] for d in self.op.reduced} & {*sdsc.masking}:
            return sdsc
        format = self.accesses[0].tensor.format
        mask = Constant(voc.MASK_VALUE, format, encode(voc.neutral(self.op.op), format))
        return replace(sdsc, mask_constant=0, constants=(mask, *self.constants))

    def _core_slices(self, order: Sequence[str]) -> dict[int, dict[str, int]]:
        op = self.op
        split = {d.name: d.slices for d in op.dims if d.slices > 1}
        listed = [d for d in op.core_order if d in split]
        if sorted(listed) != sorted(split):
            raise InvalidProgram(f"op {op.name}: core_order {op.core_order} does not list the split dims {list(split)}")
        if op.cores > CORES:
            raise NotExpressible(f"{op.cores} cores; a card has {CORES}")
        k_fast = self.func.kind == opfuncs.MATMUL and listed[:1] == [op.dims[-1].name]
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
        matmul = self.func.kind == opfuncs.MATMUL
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
        if self.func.kind == opfuncs.MATMUL:
            dims = dims[3:]
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
        for dim, extent in access.extents.items():
            label = self.labels[dim]
            padded = sdsc.sizes[label] if component == "hbm" else sdsc.core_sizes[label]
            size = extent * (access.elements if dim == access.stick else 1)
            if size < padded:
                max_sizes[label] = size
            elif size > padded:
                cores = [-1] if component == "hbm" else [-1, *range(sdsc.cores)]
                gaps[label] = dict.fromkeys(cores, size - padded)
        folds = {d: derive_folds(sdsc, tensor, d) for d in sdsc.primary[sdsc.tensors[tensor].label].order}
        return Allocation(tensor, component, self._order(access), {}, folds, gaps or None, max_sizes)

    def _compute_format(self) -> str:
        """The first operand's format. The values that an op computes with must share it."""
        formats = [a.tensor.format for a in self.accesses]
        first = formats[0]
        if self.op.op in voc.CASTS:
            if (*formats,) not in (voc.CASTS[self.op.op], voc.CASTS[self.op.op][1:]):
                raise NotExpressible(f"{self.op.op} between tensors of formats {', '.join(formats)}")
            return first
        if self.op.op in voc.COMPARISONS:
            formats = formats[:-1]  # the result is a truth value
        elif self.op.op == voc.SELECT and isinstance(self.op.inputs[0], Operand):
            formats = formats[1:]  # the condition is one
        if len({*formats}) > 1:
            raise NotExpressible(f"tensors of formats {', '.join(dict.fromkeys(formats))} in one op; cast them first")
        # The copy engine has no integer form: an int32 copy moves the words as fp32.
        if self.func.kind == opfuncs.COPY and first == "IEEE_INT32":
            return "IEEE_FP32"
        return first


def _check_op(op: TileOp) -> OpFunc:
    func = opfuncs.lookup(op.op)
    if func.kind == opfuncs.MATMUL and (len(op.dims) < 3 or op.reduced != (op.dims[-1].name,)):
        raise InvalidProgram(f"op {op.name}: batchmatmul needs dims (…, m, n, k) and reduces k, got {op.reduced}")
    if func.kind in (opfuncs.POINTWISE, opfuncs.COPY, opfuncs.CAST) and op.reduced:
        raise InvalidProgram(f"op {op.name}: {op.op} reduces nothing, got {op.reduced}")
    if math.prod(d.size for d in op.dims) == 0:
        raise NotExpressible(f"an empty iteration space {[(d.name, d.size) for d in op.dims]}")
    return func


def _tensor_inputs(op: TileOp, func: OpFunc) -> list[Operand | LinearOperand]:
    if len(op.inputs) != func.operands:
        raise InvalidProgram(f"op {op.name}: {op.op} has {len(op.inputs)} inputs, it takes {func.operands}")
    scalars = [x for x in op.inputs if isinstance(x, LaunchScalar)]
    if scalars:
        raise NotExpressible(f"launch scalar {scalars[0].index} is an operand; a bundle has no scalar arguments")
    if func.kind in (opfuncs.REDUCTION, opfuncs.MATMUL) and any(isinstance(x, Immediate) for x in op.inputs):
        raise InvalidProgram(f"op {op.name}: {op.op} has a scalar operand")
    return [x for x in op.inputs if isinstance(x, Operand | LinearOperand)]


def _op_constants(op: TileOp) -> tuple[Constant, ...]:
    """Constants of the op, then its scalar operands, each named after its position."""
    clash = [name for name in op.constants if voc.immediate_position(name) is not None]
    if clash:
        raise NotExpressible(f"constant {clash[0]} has the name of a scalar operand")
    constants = [_constant(name, value, "IEEE_FP32") for name, value in op.constants.items()]
    for position, operand in enumerate(op.inputs):
        if isinstance(operand, Immediate):
            constants.append(_constant(voc.immediate_name(position), operand.value, operand.format))
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
        if not 0 <= tensor.arg < DATA_SEGMENTS:
            raise NotExpressible(
                f"tensor {tensor.name} is in argument {tensor.arg}; there are segments 0..{DATA_SEGMENTS - 1}"
            )
        base += tensor.arg * SEGMENT_BYTES
    start = {c: base + sdsc.core_offset(allocation.index, c) for c in range(sdsc.cores)}
    return replace(allocation, start=start)
