# SPDX-License-Identifier: Apache-2.0
"""Ops that PyTorch lacks: they stand in traced graphs only, between the decompositions and the lowerings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_library = torch.library.Library("spyre", "DEF")
_library.define("matmul(Tensor a, Tensor b, *, ScalarType? out_dtype=None) -> Tensor")
_library.define("windows(Tensor x, Tensor weight, int[] stride, int[] dilation, int groups) -> Tensor")
_library.define("kept(Tensor x) -> Tensor")
_library.define("put(Tensor x, int dim, Tensor index, Tensor values, bool accumulate) -> Tensor")
_library.define("put_(Tensor(a!) x, int dim, Tensor index, Tensor values, bool accumulate) -> Tensor(a!)")
_VIEW = "Tensor?[] operands, int[] size, int[] stride, int offset, str form, int dim, bool add"
_library.define(f"write_view(Tensor x, {_VIEW}) -> Tensor")
_library.define(f"write_view_(Tensor(a!) x, {_VIEW}) -> Tensor(a!)")
_library.define("checked(Tensor result, Tensor in_floats, str what) -> Tensor")


@torch.library.impl(_library, "matmul", "CompositeExplicitAutograd")
def _matmul(a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.matmul(a, b).to(out_dtype or a.dtype)


@torch.library.register_fake("spyre::matmul", lib=_library)
def _fake(a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]), dtype=out_dtype or a.dtype)


# A batched matrix product whose batch dims broadcast without a copy; sums are fp32, rounded once to out_dtype.
matmul = torch.ops.spyre.matmul.default


def _windows_size(x: torch.Tensor, weight: torch.Tensor, stride: list[int], dilation: list[int]) -> list[int]:
    sizes = zip(x.shape[1:-1], weight.shape[2:], stride, dilation, strict=True)
    return [x.shape[0], weight.shape[0], *((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in sizes)]


@torch.library.impl(_library, "windows", "CompositeExplicitAutograd")
def _windows(
    x: torch.Tensor, weight: torch.Tensor, stride: list[int], dilation: list[int], groups: int
) -> torch.Tensor:
    plain = [0] * len(stride)
    return torch.convolution(x.movedim(-1, 1), weight, None, stride, plain, dilation, False, plain, groups)


@torch.library.register_fake("spyre::windows", lib=_library)
def _fake_windows(
    x: torch.Tensor, weight: torch.Tensor, stride: list[int], dilation: list[int], groups: int
) -> torch.Tensor:
    return x.new_empty(_windows_size(x, weight, stride, dilation))


# A convolution of x, [N, *input, C], with weight, [out, C / groups, *kernel], without padding: [N, out, *output]. Each
# window is read where it is; sums run over the kernel and then the channels, in fp32, rounded once.
windows = torch.ops.spyre.windows.default


@torch.library.impl(_library, "kept", "CompositeExplicitAutograd")
def _kept(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@torch.library.register_fake("spyre::kept", lib=_library)
def _fake_kept(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


# The value itself, computed once. A formula that reads it several times is otherwise written out as often.
kept = torch.ops.spyre.kept.default


@torch.library.impl(_library, "put", "CompositeExplicitAutograd")
def _put(x: torch.Tensor, dim: int, index: torch.Tensor, values: torch.Tensor, accumulate: bool) -> torch.Tensor:
    return x.index_add(dim, index, values) if accumulate else x.index_copy(dim, index, values)


@torch.library.register_fake("spyre::put", lib=_library)
def _fake_put(x: torch.Tensor, dim: int, index: torch.Tensor, values: torch.Tensor, accumulate: bool) -> torch.Tensor:
    return torch.empty_like(x)


# x with values written to, or added at, the places of a vector along a dim. Unlike `x[index] = values`, it refuses a
# negative place.
put = torch.ops.spyre.put.default


@torch.library.impl(_library, "put_", "CompositeExplicitAutograd")
def _put_(x: torch.Tensor, dim: int, index: torch.Tensor, values: torch.Tensor, accumulate: bool) -> torch.Tensor:
    return x.index_add_(dim, index, values) if accumulate else x.index_copy_(dim, index, values)


# The same in place. No decomposition makes it: graphs do, where nobody needs the old x (patches/inductor.py).
put_ = torch.ops.spyre.put_.default


def form_in_place(form: str, operands: Sequence[Any], dim: int, add: bool) -> tuple[Any, list[Any]]:
    """The op in place that a write is, and its arguments behind the tensor: "index_put" of values and indices, "put" of
    an index and values, "scatter" of an index and values."""
    aten = torch.ops.aten
    if form == "index_put":
        return aten.index_put_.default, [list(operands[1:]), operands[0], add]
    if form == "put":
        return put_, [dim, *operands, add]
    return (aten.scatter_add_.default if add else aten.scatter_.src), [dim, *operands]


@torch.library.impl(_library, "write_view_", "CompositeExplicitAutograd")
def _write_view_(
    x: torch.Tensor, operands: Any, size: Any, stride: Any, offset: int, form: str, dim: int, add: bool
) -> torch.Tensor:
    op, arguments = form_in_place(form, operands, dim, add)
    op(x.as_strided(size, stride, x.storage_offset() + offset), *arguments)
    return x


@torch.library.impl(_library, "write_view", "CompositeExplicitAutograd")
def _write_view(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return _write_view_(x.clone(), *rest)


@torch.library.register_fake("spyre::write_view", lib=_library)
def _fake_write_view(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.empty_like(x)


# A write at given places of a view of x. A pass over compiled graphs makes it (lowering/view_writes.py).
write_view, write_view_ = torch.ops.spyre.write_view.default, torch.ops.spyre.write_view_.default


@torch.library.impl(_library, "checked", "CompositeExplicitAutograd")
def _checked(result: torch.Tensor, in_floats: torch.Tensor, what: str) -> torch.Tensor:
    return result.clone()


@torch.library.register_fake("spyre::checked", lib=_library)
def _fake_checked(result: torch.Tensor, in_floats: torch.Tensor, what: str) -> torch.Tensor:
    return torch.empty_like(result)


# The result itself, int32 that stands for int64. Far from the same in fp32 it has wrapped, and the launch fails.
checked = torch.ops.spyre.checked.default
