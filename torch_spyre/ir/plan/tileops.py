# SPDX-License-Identifier: Apache-2.0
"""Planned tile operations: what the planner decided, in the terms that KTIR and SuperDSC share.

Two sources build a `Kernel`: the TileGraph after planning (`_inductor/`) and the SuperDSC reader (`sdsc/`). Two
printers consume it: `ktir.emit` and `sdsc.writer`. A `TileOp` is one device operation, run by all cores of its split
at once; ops run in list order, and an op sees everything earlier ops wrote.

Coordinates. A tensor is an array of `device_size` elements, row-major, in one memory space. Each operand says, for
every device dim, which coordinate the op touches at iteration point (d0, d1, …): a `Coord`, a sum of terms ``scale *
((dim // div) % mod)`` plus a constant. On a core, dim d ranges over its slice ``[s*tile, min((s+1)*tile, size))``
where s is the core's slice index. Memory operands take global indices; `Space.LX` operands take indices relative to
the start of the slice, because each core's scratchpad holds only its own slice.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from torch_spyre.optable import Row, TopK, lookup


class Space(enum.Enum):
    MEMORY = "global"
    LX = "ct_local"


@dataclass(frozen=True)
class Dim:
    """One named iteration dim and how it is cut into slices of `tile` elements (the last may be shorter).

    Inside a tile loop, trip t works on elements ``[t*chunk, (t+1)*chunk)`` of the slice (the last may be shorter).
    """

    name: str
    size: int
    slices: int = 1
    tile: int = 0  # 0: the whole dim
    chunk: int = 0  # 0: not cut by a tile loop

    @property
    def extent(self) -> int:
        """Elements of one (full) slice."""
        return self.tile or self.size

    @property
    def even(self) -> bool:
        return self.slices * self.extent == self.size


@dataclass(frozen=True)
class Term:
    """``scale * ((dim // div) % mod)``; mod 0 means no modulus."""

    dim: str
    scale: int = 1
    div: int = 1
    mod: int = 0


@dataclass(frozen=True)
class Coord:
    """Coordinate along one device dim.

    With `index` >= 0 the coordinate is the value, at the iteration point, of the op's input of that number, an integer
    tensor; terms and constant are then empty. Only the table of a gather or scatter has such coordinates.
    """

    terms: tuple[Term, ...] = ()
    const: int = 0
    index: int = -1


@dataclass(frozen=True)
class Tensor:
    """A buffer: at byte `base` of kernel argument `arg`, or at byte `base` of every core's LX."""

    name: str
    format: str  # name of a DataFormats member
    space: Space
    device_size: tuple[int, ...]
    base: int = 0
    arg: int = -1
    chunked: bool = False  # LX inside a tile loop: holds what one trip works on, not the whole slice
    extent: tuple[int, ...] = ()  # of a table: coordinates that exist, if fewer; device_size then gives the pitches

    @property
    def elements(self) -> int:
        return math.prod(self.device_size)


@dataclass(frozen=True)
class Operand:
    tensor: Tensor
    coords: tuple[Coord, ...]  # one per device dim


@dataclass(frozen=True)
class LinearOperand:
    """A memory tensor touched at a linear host offset that its layout decodes: copies only.

    For views whose device coordinates do not separate (a slice that starts inside a stick, a reshape across sticks).
    `offset` is the host element offset at an iteration point; `host_stride` is the layout's stride_map: device dims
    in descending order of positive host stride take ``offset // stride`` and pass on the remainder; others stay at 0.
    """

    tensor: Tensor
    offset: Coord
    host_stride: tuple[int, ...]


@dataclass(frozen=True)
class Immediate:
    """A scalar operand known at compile time."""

    value: float | int
    format: str = "IEEE_FP32"


@dataclass(frozen=True)
class LaunchScalar:
    """A scalar operand given at launch: index into the kernel's scalars."""

    index: int
    format: str = "IEEE_FP32"


@dataclass(frozen=True)
class Positions:
    """An integer operand computed from the iteration point itself (global, not relative to a slice)."""

    value: Coord
    format: str = "IEEE_INT32"


Input = Operand | LinearOperand | Immediate | LaunchScalar | Positions


@dataclass(frozen=True)
class TileOp:
    """One device operation. `op` names a row of the op table (add, relufwd, sum, batchmatmul, identity, …).

    gather copies from inputs[0], the table, whose indirect coordinates name the other inputs; scatter and scatter_add
    write inputs[0] into the output, the table. cumsum, cumprod, cummax and cummin run along dim `along`; so do
    topkvalue and topkindex, whose output has `top.count` elements there; argmax and argmin reduce it. Dim
    `along` is never split.

    `dims` are all iteration dims, outer to inner; for batchmatmul the last three are m, n, k. `reduced` names the
    dims that the output lacks because they are summed (or maximised …). `core_order` lists the split dims, fastest
    first: with splits p, q, core c works on slice ``c % p`` of the first and ``(c // p) % q`` of the second. Cores at
    or past the product of all splits do nothing. A split reduced dim means partial results that are combined over the
    ring in ascending core order, kept in fp32, rounded once. A handover reads a scratchpad tensor that is split as
    `source` says and writes it split as `dims` say; the slices cross the ring.
    """

    name: str
    op: str
    dims: tuple[Dim, ...]
    inputs: tuple[Input, ...]
    output: Operand | LinearOperand
    reduced: tuple[str, ...] = ()
    core_order: tuple[str, ...] = ()
    constants: dict[str, float] = field(default_factory=dict)
    origin: str = ""  # where it came from: aten op and user line
    along: str = ""
    top: TopK | None = None
    source: tuple[Dim, ...] = ()  # handover: the dims as the input is split, in the order of `dims`
    source_order: tuple[str, ...] = ()

    @property
    def row(self) -> Row:
        return lookup(self.op)

    @property
    def cores(self) -> int:
        return math.prod(d.slices for d in self.dims)

    def dim(self, name: str) -> Dim:
        return next(d for d in self.dims if d.name == name)


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class KernelArg:
    """A launch argument: a device buffer of at least `bytes`. `role` is input, output, pool or constant."""

    name: str
    bytes: int
    access: Access
    role: str = "input"


@dataclass(frozen=True)
class TileLoop:
    """Ops `begin` … `end`-1 run `trips` times, trip by trip; each has one dim with a chunk. An op that is alone in its
    loop may have several: the trips count through their chunks, the last dim fastest."""

    begin: int
    end: int
    trips: int


@dataclass(frozen=True)
class Kernel:
    """A planned kernel: ops in order, over launch arguments and launch scalars (format names)."""

    name: str
    args: tuple[KernelArg, ...]
    ops: tuple[TileOp, ...]
    scalars: tuple[str, ...] = ()
    cores: int = 32
    loops: tuple[TileLoop, ...] = ()  # in order, not nested
    lx_scratch_base: int = 0  # LX bytes below this belong to planned tensors; the back end may use the rest
