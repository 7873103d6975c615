# SPDX-License-Identifier: Apache-2.0
"""The tile kernels through ctypes, and an independent numpy model of formats and address maps.

Used by the test_kernels_*.py files. SPYRE_CARD_LIB names another library than the installed one.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SEN169, FP32, FP8_143, FP8_152, INT8, INT16, INT64, INT32, UINT32, FP16, BOOL, BF16 = (
    0, 1, 3, 4, 8, 9, 11, 12, 13, 15, 16, 17,
)  # fmt: skip
DTYPE = {
    SEN169: np.uint16, FP32: np.float32, FP8_143: np.uint8, FP8_152: np.uint8, INT8: np.int8, INT16: np.int16,
    INT64: np.int64, INT32: np.int32, UINT32: np.uint32, FP16: np.float16, BOOL: np.uint8, BF16: np.uint16,
}  # fmt: skip
VOPS_DEF = Path(__file__).parents[2] / "torch_spyre" / "csrc" / "card" / "include" / "spyre" / "vops.def"
_ROWS = re.findall(r"^VOP\((\d+), (\w+), (\d)\)", VOPS_DEF.read_text(encoding="utf-8"), re.M)
VOPS = {name: int(code) for code, name, _ in _ROWS}
ARITY = {name: int(operands) for _, name, operands in _ROWS}
ROPS = {"sum": 0, "max": 1, "min": 2, "prod": 3}

DEFAULT_LIB = Path(__file__).parents[2] / "torch_spyre" / "lib" / "libspyre_card.so"


class _View(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_void_p),
        ("format", ctypes.c_int64),
        ("maps", ctypes.POINTER(ctypes.c_int64)),
        ("layout", ctypes.POINTER(ctypes.c_int64)),
    ]


Map = tuple[int, int, int]  # block, inner, outer


@dataclass
class View:
    """An operand: a byte buffer, a byte offset, a format and one (block, inner, outer) per iteration dim."""

    buffer: NDArray[np.uint8]
    format: int
    maps: Sequence[Map] = ()
    offset: int = 0
    layout: list[int] | None = None
    keep: list[object] = field(default_factory=list)

    def raw(self) -> _View:
        def array(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
            a = (ctypes.c_int64 * max(1, len(values)))(*values)
            self.keep.append(a)
            return a

        maps = array([x for m in self.maps for x in m])
        layout = array(self.layout) if self.layout is not None else None
        return _View(self.buffer.ctypes.data + self.offset, self.format, maps, layout)

    def offsets(self, shape: Sequence[int]) -> NDArray[np.int64]:
        """Byte offset in the buffer of every point of the iteration box."""
        if self.layout is not None:
            return self.offset + layout_offsets(self.layout, shape)
        total = np.full(tuple(shape), self.offset, dtype=np.int64)
        for d, (block, inner, outer) in enumerate(self.maps):
            v = np.arange(shape[d])
            o = v * inner if block == 0 else (v % block) * inner + (v // block) * outer
            total += o.reshape([-1 if i == d else 1 for i in range(len(shape))])
        return total

    def read(self, shape: Sequence[int]) -> NDArray:
        dtype = np.dtype(DTYPE[self.format])
        at = self.offsets(shape)[..., None] + np.arange(dtype.itemsize)
        return np.ascontiguousarray(self.buffer[at]).view(dtype)[..., 0]

    def write(self, values: NDArray) -> None:
        dtype = np.dtype(DTYPE[self.format])
        at = self.offsets(values.shape)[..., None] + np.arange(dtype.itemsize)
        self.buffer[at] = np.ascontiguousarray(values.astype(dtype))[..., None].view(np.uint8)


class Index(NamedTuple):
    """An index tensor, the map of its values to byte offsets in the table, and how many values there are."""

    view: View
    along: Map
    limit: int


def layout_offsets(layout: Sequence[int], shape: Sequence[int]) -> NDArray[np.int64]:
    rank = len(shape)
    stride, direct, n = layout[1 : 1 + rank], layout[1 + rank : 1 + 2 * rank], layout[1 + 2 * rank]
    dims = [layout[2 + 2 * rank + 3 * i : 5 + 2 * rank + 3 * i] for i in range(n)]
    total = np.zeros(tuple(shape), dtype=np.int64)
    for index in itertools.product(*[range(e) for e in shape]):
        off = layout[0] + sum(i * s for i, s in zip(index, stride, strict=True))
        at = sum(i * s for i, s in zip(index, direct, strict=True))
        for host, _, step in dims:
            at += off // host * step
            off %= host
        total[index] = at
    return total


def dense(values: NDArray, fmt: int) -> View:
    """A row-major operand that owns a copy of the values."""
    a = np.ascontiguousarray(values.astype(DTYPE[fmt]))
    return View(np.frombuffer(bytearray(a.tobytes() or b"\0" * 8), dtype=np.uint8), fmt, [(0, s, 0) for s in a.strides])


def scalar(value: float, rank: int, fmt: int = FP32) -> View:
    v = dense(np.array([value]), fmt)
    v.maps = [(0, 0, 0)] * rank
    return v


class Kernels:
    def __init__(self) -> None:
        self.lib = ctypes.CDLL(os.environ.get("SPYRE_CARD_LIB", str(DEFAULT_LIB)))
        self.lib.spyre_decode.restype = ctypes.c_float
        self.lib.spyre_decode.argtypes = [ctypes.c_uint32, ctypes.c_int]
        self.lib.spyre_encode.restype = ctypes.c_uint32
        self.lib.spyre_encode.argtypes = [ctypes.c_float, ctypes.c_int]
        self.lib.spyre_active_isa.restype = ctypes.c_char_p

    def set_isa(self, name: str | None) -> bool:
        return bool(self.lib.spyre_set_isa(name.encode() if name else None))

    def isas(self) -> list[str]:
        found = [name for name in ("avx512", "avx2", "portable") if self.set_isa(name)]
        self.set_isa(None)
        return found

    @staticmethod
    def _shape(shape: Sequence[int]) -> tuple[int, ctypes.Array[ctypes.c_int64]]:
        return len(shape), (ctypes.c_int64 * max(1, len(shape)))(*shape)

    def vector_op(self, op: str, shape: Sequence[int], out: View, *ins: View, compute: int = 0) -> None:
        rank, extent = self._shape(shape)
        raw = (_View * len(ins))(*[v.raw() for v in ins])
        self.lib.spyre_vector_op(VOPS[op], compute, rank, extent, ctypes.byref(out.raw()), raw, len(ins))

    def reduce(
        self, op: str, shape: Sequence[int], mask: int, out: View, x: View, accumulate: bool = False, compute: int = 0
    ) -> None:
        rank, extent = self._shape(shape)
        self.lib.spyre_reduce(
            ROPS[op], compute, rank, extent, mask, int(accumulate), ctypes.byref(out.raw()), ctypes.byref(x.raw())
        )

    def matmul(self, shape: Sequence[int], c: View, a: View, b: View, accumulate: bool = False, taps: int = 0) -> None:
        rank, extent = self._shape(shape)
        self.lib.spyre_matmul(
            rank, extent, int(accumulate), taps, ctypes.byref(c.raw()), ctypes.byref(a.raw()), ctypes.byref(b.raw())
        )

    def copy(self, shape: Sequence[int], out: View, x: View) -> bool:
        rank, extent = self._shape(shape)
        return bool(self.lib.spyre_copy(rank, extent, ctypes.byref(out.raw()), ctypes.byref(x.raw())))

    def sum_views(self, shape: Sequence[int], out: View, *ins: View) -> None:
        rank, extent = self._shape(shape)
        raw = (_View * len(ins))(*[v.raw() for v in ins])
        self.lib.spyre_sum_views(rank, extent, ctypes.byref(out.raw()), raw, len(ins))

    def _indexed(
        self,
        call: Callable[..., int],
        shape: Sequence[int],
        views: Sequence[View],
        indices: Sequence[Index],
        *rest: int,
    ) -> int | None:
        """None, or the index that lies outside the table."""
        rank, extent = self._shape(shape)
        bad = ctypes.c_int64(0)
        raw = [ctypes.byref(v.raw()) for v in views]
        index = (_View * len(indices))(*[i.view.raw() for i in indices])
        along = [x for i in indices for x in (*i.along, i.limit)]
        ok = call(
            rank, extent, *raw, index, (ctypes.c_int64 * len(along))(*along), len(indices), *rest, ctypes.byref(bad)
        )
        return None if ok else bad.value

    def gather(self, shape: Sequence[int], out: View, table: View, *indices: Index, masked: bool = False) -> int | None:
        return self._indexed(self.lib.spyre_gather, shape, (out, table), indices, int(masked))

    def scatter(
        self,
        shape: Sequence[int],
        table: View,
        x: View,
        *indices: Index,
        accumulate: bool = False,
        masked: bool = False,
    ) -> int | None:
        return self._indexed(self.lib.spyre_scatter, shape, (table, x), indices, int(accumulate), int(masked))

    def iota(self, shape: Sequence[int], out: View, start: int, steps: Sequence[Map]) -> None:
        rank, extent = self._shape(shape)
        flat = [x for step in steps for x in step]
        numbers = (ctypes.c_int64 * max(1, len(flat)))(*flat)
        self.lib.spyre_iota(rank, extent, ctypes.byref(out.raw()), ctypes.c_int64(start), numbers)

    def scan(self, op: str, shape: Sequence[int], dim: int, out: View, x: View, compute: int = 0) -> None:
        rank, extent = self._shape(shape)
        self.lib.spyre_scan(ROPS[op], compute, rank, extent, dim, ctypes.byref(out.raw()), ctypes.byref(x.raw()))

    def arg_reduce(
        self, op: str, shape: Sequence[int], dim: int, index: View | None, value: View | None, x: View
    ) -> None:
        rank, extent = self._shape(shape)
        self.lib.spyre_arg_reduce(ROPS[op], rank, extent, dim, _or_null(index), _or_null(value), ctypes.byref(x.raw()))

    def sort(
        self, shape: Sequence[int], dim: int, descending: bool, k: int, value: View | None, index: View | None, x: View
    ) -> None:
        rank, extent = self._shape(shape)
        self.lib.spyre_sort(
            rank, extent, dim, int(descending), ctypes.c_int64(k), _or_null(value), _or_null(index),
            ctypes.byref(x.raw()),
        )  # fmt: skip


def _or_null(view: View | None) -> object:
    return ctypes.byref(view.raw()) if view else None


def on_every_isa(run: Callable[[], NDArray]) -> NDArray:
    """The result of run(), after checking that every instruction set gives the same bits."""
    results = []
    for name in kernels.isas():
        kernels.set_isa(name)
        results.append(run())
    kernels.set_isa(None)
    assert all(same_bits(r, results[0]) for r in results)
    return results[0]


def sen169_values() -> NDArray[np.float64]:
    """The value of each of the 65,536 codes, from the definition of the format."""
    code = np.arange(65536)
    e, f, s = (code >> 9) & 63, code & 511, code >> 15
    v = np.where(code & 0x7FFF == 0, 0.0, 2.0 ** (e - 31.0) * (1 + f / 512))
    v = np.where(s == 1, -v, v)
    return np.where(code & 0x7FFF == 0x7FFF, np.nan, v)


SEN169_VALUE = sen169_values()


def sen169_encode(x: NDArray) -> NDArray[np.uint16]:
    """Nearest code, ties away from zero, by search in the table of values: no bit tricks."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        x = np.asarray(x, dtype=np.float64)
    positive = SEN169_VALUE[:0x7FFF].copy()
    positive[0] = 2.0**-31  # the code 0 takes the place of 2^-31 when rounding
    mid = (positive[:-1] + positive[1:]) / 2
    a = np.abs(np.where(np.isnan(x), 0, x))
    code = np.searchsorted(mid, a, side="right")
    code = np.where(np.signbit(x), code | 0x8000, code)
    return np.where(np.isnan(x), 0x7FFF, code).astype(np.uint16)


def sen169_decode(codes: NDArray) -> NDArray[np.float32]:
    return SEN169_VALUE[codes.astype(np.int64)].astype(np.float32)


def to_fp32(values: NDArray, fmt: int) -> NDArray[np.float32]:
    return sen169_decode(values) if fmt == SEN169 else values.astype(np.float32)


def from_fp32(values: NDArray, fmt: int) -> NDArray:
    """Store rule of the card for SEN169, FP32 and INT32."""
    with np.errstate(invalid="ignore"):
        if fmt == SEN169:
            return sen169_encode(values)
        if fmt == INT32:
            v = np.nan_to_num(np.trunc(values.astype(np.float64)), nan=0.0, posinf=2.0**31, neginf=-(2.0**31))
            return np.clip(v, -(2**31), 2**31 - 1).astype(np.int32)
    out = values.astype(np.float32)
    bits = out.view(np.uint32)
    return np.where(np.isnan(out), np.uint32(0x7FC00000), bits).astype(np.uint32).view(np.float32)


def same_bits(a: NDArray, b: NDArray) -> bool:
    return a.dtype == b.dtype and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


kernels = Kernels()
