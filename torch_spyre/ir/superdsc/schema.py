# SPDX-License-Identifier: Apache-2.0
"""One SuperDSC (`sdsc_<i>.json`) as dataclasses; `json_read` and `json_write` hold its JSON form.

`from_json(to_json(x)) == x`. Fields with one legal value here (time folds, schedules) are checked and not stored;
fields that are not known are listed in `notes`, so nothing that a file says is dropped silently.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.optable import NONSTICK, PUBLISHED, Row, lookup

Json = Any

NO_INDIRECTION = "no_indirection"
INDEX_TENSOR = "index_tensor"
VALUE_TENSOR = "value_tensor"


@dataclass(frozen=True)
class Fold:
    """One affine level of a coordinate: index i of `factor` means ``alpha * i + beta``."""

    label: str
    factor: int
    alpha: int
    beta: int = 0


@dataclass(frozen=True)
class Window:
    """A dim of results that each take a window of the operand: result i reads elements ``stride * i + dilation * w``,
    w below the size of dim `dim`, of the `total` that the operand has."""

    dim: str
    stride: int
    dilation: int
    total: int


@dataclass(frozen=True)
class Primary:
    """A layout label: dims from inner to outer and the dims that fill the sticks, inner first as well."""

    order: tuple[str, ...]
    stick_dims: tuple[str, ...]
    stick_sizes: tuple[int, ...]


@dataclass(frozen=True)
class Allocation:
    """Where a tensor starts on each core, the order of its dims (inner to outer), and its coordinates."""

    index: int
    component: str  # hbm or lx
    order: tuple[str, ...]
    start: dict[int, int]  # core -> byte address, or negative symbol id
    folds: dict[str, tuple[Fold, ...]]
    back_gap: dict[str, dict[int, int]] | None = None  # dim -> core (-1: all) -> elements after the iterated ones
    max_sizes: dict[str, int] = field(default_factory=dict)  # dim -> elements, where the tensor ends before the padding
    indirect: str | None = NO_INDIRECTION  # absent in files of older front ends
    symbolic: bool = False
    related: str | None = None  # the other allocation of a gather
    windows: tuple[str, ...] = ()  # dims along which windows are read

    def gap(self, dim: str) -> int:
        """Elements that the tensor has past the iterated ones; the same on all cores."""
        gaps = set((self.back_gap or {}).get(dim, {}).values())
        if len(gaps) > 1:
            raise UnsupportedOp(f"backGapCore_ of Tensor{self.index}, dim {dim} differs between cores: {sorted(gaps)}")
        return gaps.pop() if gaps else 0


@dataclass(frozen=True)
class LabeledDs:
    """A tensor of the op: layout label, format, and a scale per dim of the label (1, -1 lacking, -2 lacking stick)."""

    index: int
    label: str
    scale: tuple[int, ...]
    word_bytes: int
    format: str
    in_memory: bool


@dataclass(frozen=True)
class Constant:
    name: str
    format: str
    bits: int


@dataclass(frozen=True)
class Compute:
    unit: str  # pt or sfp
    opfunc: str
    format: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    indices: tuple[int, ...] = ()  # index tensors of a gather


@dataclass(frozen=True)
class StickLevel:
    """A dim that fills part of each stick: `elements` of it, each `stride` elements after the one before."""

    dim: str
    elements: int
    stride: int


@dataclass(frozen=True)
class Geometry:
    """Strides in elements of one tensor. A stick dim's counts blocks of its level, that of a dim it lacks is 0."""

    sticks: tuple[StickLevel, ...]
    extents: dict[str, int]  # blocks for stick dims; inner to outer
    strides: dict[str, int]

    def unit(self, dim: str) -> int:
        """Elements of a dim inside one stick; 1 for dims outside."""
        return next((level.elements for level in self.sticks if level.dim == dim), 1)

    @property
    def stick_elements(self) -> int:
        count = 1
        for level in self.sticks:
            count *= level.elements
        return count


@dataclass(frozen=True)
class SuperDSC:
    """One device operation. Dims are labels (mb, out, in, …), outer to inner, with padded sizes."""

    index: int
    opfunc: str
    sizes: dict[str, int]
    core_sizes: dict[str, int]
    slices: dict[str, int]
    core_slices: dict[int, dict[str, int]]
    primary: dict[str, Primary]
    allocations: tuple[Allocation, ...]
    tensors: tuple[LabeledDs, ...]
    compute: Compute
    masking: dict[str, tuple[int, int]] = field(default_factory=dict)  # dim -> (valid, pad)
    mask_constant: int = -1
    constants: tuple[Constant, ...] = ()
    last_sizes: dict[str, int] = field(default_factory=dict)  # dim -> elements of its last slice, where it is shorter
    notes: tuple[str, ...] = ()  # fields that the file has and this reader does not know
    windows: dict[str, Window] = field(default_factory=dict)

    @property
    def cores(self) -> int:
        return len(self.core_slices)

    @property
    def title(self) -> str:
        return f"{self.index}_{self.opfunc}"

    @property
    def row(self) -> Row:
        """The op that the opfunc names; UnsupportedOp for any that the public front end does not emit."""
        return lookup(self.opfunc, PUBLISHED)

    @property
    def keeps_stick(self) -> bool:
        """Does the opfunc say that the reduced dim is not in the sticks?"""
        return self.opfunc == f"{self.row.superdsc}{NONSTICK}"

    def valid(self, dim: str) -> int:
        """Elements of a dim that exist: the size without its masked padding."""
        return self.masking[dim][0] if dim in self.masking else self.sizes[dim]

    def slice_size(self, dim: str, core: int) -> int:
        last = self.core_slices[core][dim] == self.slices[dim] - 1
        return self.last_sizes.get(dim, self.core_sizes[dim]) if last else self.core_sizes[dim]

    def scale(self, tensor: int) -> dict[str, int]:
        ds = self.tensors[tensor]
        return dict(zip(self.primary[ds.label].order, ds.scale, strict=True))

    def present(self, tensor: int) -> list[str]:
        """Dims that a tensor has, outer to inner."""
        scale = self.scale(tensor)
        return [d for d in self.sizes if scale.get(d, -1) > 0]

    def window(self, tensor: int, dim: str) -> Window | None:
        return self.windows.get(dim) if dim in self.allocations[tensor].windows else None

    def moves(self, tensor: int) -> list[str]:
        """Dims along which an op moves in a tensor: those that it has, and those of the windows."""
        own = {*self.present(tensor), *(w.dim for d in self.sizes if (w := self.window(tensor, d)) is not None)}
        return [d for d in self.sizes if d in own]

    def reach(self, tensor: int, dim: str, count: int) -> int:
        """Elements of a tensor that `count` results in a row take along a dim."""
        window = self.window(tensor, dim)
        if window is None or not count:
            return count
        return (count - 1) * window.stride + (self.sizes[window.dim] - 1) * window.dilation + 1

    def is_table(self, tensor: int) -> bool:
        return self.allocations[tensor].indirect == VALUE_TENSOR

    def geometry(self, tensor: int) -> Geometry:
        """Extents and strides from the layout order, the sizes (one core's in LX), the back gaps and true sizes."""
        allocation, scale = self.allocations[tensor], self.scale(tensor)
        primary = self.primary[self.tensors[tensor].label]
        sticks, stride = [], 1
        for dim, elements in zip(primary.stick_dims, primary.stick_sizes, strict=True):
            sticks.append(StickLevel(dim, elements, stride))
            stride *= elements
        units = dict(zip(primary.stick_dims, primary.stick_sizes, strict=True))
        sizes = self.sizes if allocation.component == "hbm" else self.core_sizes
        gathered = self.gathered(tensor)
        extents, strides = {}, {}
        for dim in allocation.order:
            present = scale[dim] > 0
            # On a gathered dim, maxDimSizes_ 1 says that one element is taken at a time, not how long the dim is.
            own = None if dim in gathered else allocation.max_sizes.get(dim)
            window = self.window(tensor, dim)
            size = sizes[dim] if window is None else window.total
            extent = (own if own is not None else size + allocation.gap(dim)) if present else 1
            extent = -(-extent // units.get(dim, 1)) if present else 1
            extents[dim], strides[dim] = extent, stride if present else 0
            stride *= extent
        return Geometry(tuple(sticks), extents, strides)

    def core_offset(self, tensor: int, core: int) -> int:
        """Bytes from the tensor's start to the start of a core's slice (0 in LX, where each core holds its own)."""
        if self.allocations[tensor].component != "hbm":
            return 0
        geometry, offset = self.geometry(tensor), 0
        gathered = self.gathered(tensor)
        for dim, stride in geometry.strides.items():
            window = self.window(tensor, dim)
            step = self.core_sizes[dim] if window is None else self.core_sizes[dim] * window.stride
            if dim not in gathered:
                offset += self.core_slices[core][dim] * (step // geometry.unit(dim)) * stride
        return offset * self.tensors[tensor].word_bytes

    def gathered(self, tensor: int) -> tuple[str, ...]:
        """Dims of a table whose coordinate is the value of an index tensor."""
        allocation = self.allocations[tensor]
        if allocation.indirect != VALUE_TENSOR:
            return ()
        marked = tuple(d for d in allocation.order if allocation.max_sizes.get(d) == 1 and self.scale(tensor)[d] > 0)
        if marked:
            return marked
        index_dims = {d for i in self.compute.indices for d in self.present(i)}
        candidates = [d for d in allocation.order if d in index_dims]
        return tuple(candidates[-1:])

    def verify(self) -> None:
        """Raise InvalidProgram that names each broken rule, the tensor and the core."""
        from torch_spyre.ir.superdsc.rules import problems  # late: written over this class

        found = problems(self)
        if found:
            raise InvalidProgram(f"SuperDSC {self.title} breaks the format: " + "; ".join(map(str, found)))

    def to_json(self) -> Json:
        from torch_spyre.ir.superdsc.json_write import sdsc_json  # late: written over this class

        return sdsc_json(self)

    @staticmethod
    def from_json(data: Json) -> SuperDSC:
        """Parse one file's JSON; InvalidProgram names the field that is missing or has a value it cannot have."""
        from torch_spyre.ir.superdsc.json_read import parse  # late: written over this class

        try:
            return parse(data)
        except RecursionError:
            raise InvalidProgram(f"SuperDSC {_key(data)!r} is malformed: it is nested too deeply") from None
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            key = _key(data)
            raise InvalidProgram(f"SuperDSC {key!r} is malformed: {type(error).__name__}: {error}") from error


def _key(data: Json) -> str:
    return str(next(iter(data), "")) if isinstance(data, dict) else type(data).__name__
