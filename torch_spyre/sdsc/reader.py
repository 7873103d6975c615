# SPDX-License-Identifier: Apache-2.0
"""Read a SuperDSC bundle, ours or the public front end's, as a planned Kernel: the inverse of the writer.

A memory address names its launch argument by 16 GiB segment and a byte offset in it; an LX address holds on every
core. Start addresses and folds are redundant in the format: the reader checks them against the sizes, InvalidProgram
says where they disagree. An LX tensor that no op of the bundle writes is an input that an earlier bundle left there;
it is represented like any other, and whoever compiles the kernel decides whether to accept it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch_spyre.constants import CORES, SEGMENT_BYTES
from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ktir import opfuncs
from torch_spyre.ktir.opfuncs import OpFunc
from torch_spyre.ktir.tileops import (
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
    TileOp,
)
from torch_spyre.sdsc import vocabulary as voc
from torch_spyre.sdsc.canonical import argument_use, lx_bytes
from torch_spyre.sdsc.formats import decode
from torch_spyre.sdsc.schema import Json, SuperDSC

_EXECUTE = re.compile(r'sdscbundle\.sdsc_execute \(\) \{sdsc_filename="([^"/]+)"\}')
_FRAME = ("module {", "func.func @sdsc_bundle() {", "return", "}", "}")


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


def read_bundle(directory: str | Path, cores: int = CORES) -> Kernel:
    """The kernel of a bundle directory, named after it. `cores` is the grid, which the format does not carry."""
    path = Path(directory)
    bundle = path / "bundle.mlir"
    if not bundle.is_file():
        raise InvalidProgram(f"Bundle not found: {bundle}; expected a directory with bundle.mlir and sdsc_<i>.json")
    files = [path / name for name in executed_files(bundle.read_text())]
    missing = [f.name for f in files if not f.is_file()]
    if missing:
        raise InvalidProgram(f"{bundle} executes {', '.join(missing)}, which the directory lacks")
    return read_kernel([_load(f) for f in files], path.name, cores)


def _load(file: Path) -> Json:
    try:
        return json.loads(file.read_text())
    except ValueError as error:
        raise InvalidProgram(f"{file} is not JSON: {error}") from None


def executed_files(text: str) -> list[str]:
    """Files that bundle.mlir executes, in order. Loops and symbolic addresses are outside this vocabulary."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    files = []
    for line in lines[2:-3]:
        match = _EXECUTE.fullmatch(line)
        if match is None:
            raise UnsupportedOp(f"bundle.mlir: {line!r}; only sdsc_execute with literal addresses is known")
        files.append(match[1])
    if (*lines[:2], *lines[-3:]) != _FRAME:
        raise UnsupportedOp(f"bundle.mlir is not a plain list of sdsc_execute: it starts with {lines[:2]}")
    return files


def read_kernel(sdscs: Sequence[Json], name: str = "bundle", cores: int = CORES) -> Kernel:
    """A kernel from the JSON of its files, in execution order."""
    names = TensorNames()
    ops = tuple(read_sdsc(data, names) for data in sdscs)
    widest = max((op.cores for op in ops), default=1)
    if widest > cores:
        raise InvalidProgram(f"{name}: an op uses {widest} cores, the grid has {cores}")
    args = []
    for i, (size, access) in enumerate(argument_use(ops)):
        role = "output" if access & Access.WRITE else "input"
        args.append(KernelArg(f"arg{i}", size, access or Access.READ, role))
    return Kernel(name, tuple(args), ops, (), cores, lx_bytes(ops))


def read_sdsc(data: Json, names: TensorNames | None = None) -> TileOp:
    """One file's JSON as a TileOp; dims keep the file's labels."""
    sdsc = SuperDSC.from_json(data)
    sdsc.verify()
    return _Reader(sdsc, opfuncs.lookup(sdsc.opfunc), names or TensorNames()).tile_op()


class _Reader:
    def __init__(self, sdsc: SuperDSC, func: OpFunc, names: TensorNames) -> None:
        self.sdsc, self.func, self.names = sdsc, func, names
        self.where = f"SuperDSC {sdsc.index}_{sdsc.opfunc}"
        labels = list(sdsc.sizes)
        # A last label that is not the usual one is a stick dim the op does not have; masked to 1, it is only a lane.
        last = labels[-1]
        lone = func.kind != opfuncs.MATMUL and last != voc.LAST_LABEL and sdsc.masking.get(last, (0, 0))[0] == 1
        self.labels = labels[:-1] if lone else labels

    def tile_op(self) -> TileOp:
        sdsc = self.sdsc
        if self.func.kind == opfuncs.MATMUL and tuple(self.labels[-3:]) != voc.MATMUL_LABELS[-3:]:
            raise InvalidProgram(f"{self.where}: the last dims are {self.labels[-3:]}, expected mb, out, in")
        op = opfuncs.base_name(sdsc.opfunc)
        return TileOp(
            name=f"{sdsc.index}_{sdsc.opfunc}",
            op=op,
            dims=tuple(self._dim(d) for d in self.labels),
            inputs=self._inputs(),
            output=self._operand(sdsc.compute.outputs[0]),
            reduced=self._reduced(),
            core_order=self._core_order(),
            constants=self._constants(op),
            origin=self.where,
        )

    def _inputs(self) -> tuple[Input, ...]:
        """Tensors in order, around the scalars that constants put at their positions."""
        sdsc, arity = self.sdsc, self.func.operands
        tensors = [i for i in sdsc.compute.inputs if i not in sdsc.compute.outputs]
        scalars = {
            voc.immediate_position(c.name): Immediate(decode(c.bits, c.format), c.format) for c in sdsc.constants
        }
        scalars.pop(None, None)
        if len(tensors) + len(scalars) != arity or len(sdsc.compute.outputs) != 1:
            counts = f"{len(tensors) + len(scalars)} inputs and {len(sdsc.compute.outputs)} outputs"
            raise InvalidProgram(f"{self.where}: {counts}, the opfunc takes {arity} and gives 1")
        if not scalars.keys() <= {*range(arity)}:
            raise InvalidProgram(f"{self.where}: scalars at positions {list(scalars)}, the opfunc takes {arity} inputs")
        rest = iter(tensors)
        return tuple(scalars[i] if i in scalars else self._operand(next(rest)) for i in range(arity))

    def _dim(self, label: str) -> Dim:
        sdsc = self.sdsc
        size = sdsc.masking[label][0] if label in sdsc.masking else sdsc.sizes[label]
        slices = sdsc.slices[label]
        return Dim(label, size, slices, sdsc.core_sizes[label] if slices > 1 else 0)

    def _operand(self, index: int) -> Operand:
        sdsc = self.sdsc
        allocation, geometry, scale = sdsc.allocations[index], sdsc.geometry(index), sdsc.scale(index)
        sizes, coords = [], []
        stick, elements = geometry.stick, geometry.stick_elements
        present = {d for d in allocation.order if scale[d] > 0 and d in self.labels}
        for dim in reversed(allocation.order):
            if dim not in present and dim != stick:
                continue
            sizes.append(geometry.extents[dim])
            term = Term(dim, div=elements if dim == stick else 1)
            coords.append(Coord((term,)) if dim in present else Coord())
        sizes.append(elements)
        coords.append(Coord((Term(stick, mod=elements),)) if stick in present else Coord())
        address, format = allocation.start[0], sdsc.tensors[index].format
        if allocation.component == "hbm":
            arg, base = divmod(address, SEGMENT_BYTES)
            tensor = Tensor("", format, Space.MEMORY, tuple(sizes), base, arg)
        else:
            tensor = Tensor("", format, Space.LX, tuple(sizes), address)
        return Operand(self.names.name(tensor), tuple(coords))

    def _reduced(self) -> tuple[str, ...]:
        if self.func.kind == opfuncs.MATMUL:
            return (self.labels[-1],)
        if self.func.kind != opfuncs.REDUCTION:
            return ()
        scale = self.sdsc.scale(self.sdsc.compute.outputs[0])
        return tuple(d for d in self.labels if scale[d] < 0)

    def _core_order(self) -> tuple[str, ...]:
        """Split dims, fastest first: a dim whose slice changes every p cores follows dims with p slices together."""
        sdsc = self.sdsc
        split = [d for d in sdsc.sizes if sdsc.slices[d] > 1]
        period = {d: next(c for c, place in sdsc.core_slices.items() if place[d] != 0) for d in split}
        order = tuple(sorted(split, key=lambda d: period[d]))
        for core, place in sdsc.core_slices.items():
            rest = core
            for dim in order:
                rest, expected = divmod(rest, sdsc.slices[dim])
                if place[dim] != expected:
                    raise UnsupportedOp(
                        f"{self.where}: core {core} has slice {place[dim]} of {dim}; counting {order} gives {expected}"
                    )
        return order

    def _constants(self, op: str) -> dict[str, float]:
        """Constants by name. The mask value must be neutral, because masked elements are simply not visited here."""
        constants = [c for c in self.sdsc.constants if voc.immediate_position(c.name) is None]
        values = {c.name: decode(c.bits, c.format) for c in constants}
        mask, neutral = values.pop(voc.MASK_VALUE, None), voc.neutral(op)
        largest_fp16 = 65504.0
        if mask is not None and (mask != 0.0 if neutral == 0.0 else mask * neutral < 0 or abs(mask) < largest_fp16):
            raise UnsupportedOp(f"{self.where}: {voc.MASK_VALUE} {mask}, the neutral element of {op} is {neutral}")
        return values
