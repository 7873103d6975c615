# SPDX-License-Identifier: Apache-2.0
"""Ops that PyTorch lacks: they stand in traced graphs only, between the decompositions and the lowerings."""

from __future__ import annotations

import torch

_library = torch.library.Library("spyre", "DEF")
_library.define("matmul(Tensor a, Tensor b, *, ScalarType? out_dtype=None) -> Tensor")
_library.define("windows(Tensor x, Tensor weight, int[] stride, int[] dilation, int groups) -> Tensor")
_library.define("kept(Tensor x) -> Tensor")
_library.define("put(Tensor x, int dim, Tensor index, Tensor values, bool accumulate) -> Tensor")
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
# window is read where it lies; sums run over the kernel and then the channels, in fp32, rounded once.
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


@torch.library.impl(_library, "checked", "CompositeExplicitAutograd")
def _checked(result: torch.Tensor, in_floats: torch.Tensor, what: str) -> torch.Tensor:
    return result.clone()


@torch.library.register_fake("spyre::checked", lib=_library)
def _fake_checked(result: torch.Tensor, in_floats: torch.Tensor, what: str) -> torch.Tensor:
    return torch.empty_like(result)


# The result itself, int32 that stands for int64. Far from the same in fp32 it has wrapped, and the launch fails.
checked = torch.ops.spyre.checked.default
