# SPDX-License-Identifier: Apache-2.0
"""The ops ``torch.ops.spyre.*`` that the published backend documents.

Each is a formula of PyTorch's ops, so that it runs eager and compiled, has gradients where its steps have some, and
works on the CPU for comparison. Nothing in the compiler depends on them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_library = torch.library.Library("spyre", "FRAGMENT")
_FP8_MOST = 448.0  # the largest number of float8_e4m3fn


def _exx2(x: Tensor, scale: float, zero_mean: bool = False) -> Tensor:
    """Sums of x and of its squares along the last dim, times `scale` (1/n gives means), side by side in a dim of 2."""
    wide = x.to(torch.float32)
    first = torch.zeros_like(wide[..., 0]) if zero_mean else wide.sum(-1) * scale
    return torch.stack([first, (wide * wide).sum(-1) * scale], -1)


def _layernormscale(moments: Tensor, eps: float) -> Tensor:
    """1 / deviation, from what exx2 gives."""
    mean, squares = moments[..., 0], moments[..., 1]
    return torch.rsqrt((squares - mean * mean).clamp(min=0) + eps)


def _layernormnorm(x: Tensor, moments: Tensor, scale: Tensor, weight: Any = None, bias: Any = None) -> Tensor:
    normed = (x.to(torch.float32) - moments[..., :1]) * scale.unsqueeze(-1)
    normed = normed if weight is None else normed * weight
    return (normed if bias is None else normed + bias).to(x.dtype)


def _qfp8ch(x: Tensor) -> Tensor:
    return x.clamp(-_FP8_MOST, _FP8_MOST).to(torch.float8_e4m3fn)


def _quantize(x: Tensor, scale: Tensor) -> Tensor:
    return _qfp8ch(x * scale.reciprocal())


def _dequantize(x: Tensor, scale: Tensor) -> Tensor:
    return x.to(torch.float16) * scale


def _part(whole: Tensor, size: Sequence[int], dims: Sequence[int], offsets: Sequence[int]) -> Tensor:
    for dim, offset in zip(dims, offsets, strict=True):
        whole = whole.narrow(dim, offset, size[dim])
    return whole


def _overwrite(x: Tensor, output: Tensor, dims: Sequence[int], offsets: Sequence[int]) -> None:
    message = "torch.ops.spyre.overwrite is deprecated: assign to a slice of the tensor"
    warnings.warn(message, FutureWarning, stacklevel=2)
    _part(output, x.shape, dims, offsets).copy_(x)


def _overwritten(x: Tensor, output: Tensor, dims: Sequence[int], offsets: Sequence[int]) -> Tensor:
    whole = output.clone()
    _part(whole, x.shape, dims, offsets).copy_(x)
    return whole


def _copy_from_d2d(src: Tensor, dst: Tensor) -> None:
    dst.copy_(src)


def _extreme(op: Callable[..., Any]) -> Callable[..., Any]:
    def along(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        values, indices = op(x, dim, keepdim)
        return values, indices

    return along


def _constant(value: Any, dtype: Any = None, device: Any = None) -> Tensor:
    return torch.full((), value, dtype=dtype, device=device)


def _empty(size: Sequence[int], dtype: Any = None, device: Any = None) -> Tensor:
    return torch.empty(tuple(size), dtype=dtype, device=device)


OPS: dict[str, Callable[..., Any]] = {
    "softplus(Tensor x, float beta=1.0, float threshold=20.0) -> Tensor": F.softplus,
    "gelu(Tensor x, str approximate='none') -> Tensor":
        lambda x, approximate="none": F.gelu(x, approximate=approximate),
    "silu(Tensor x) -> Tensor": F.silu,
    "logical_not(Tensor x) -> Tensor": torch.logical_not,
    "clamp(Tensor x, Scalar? min=None, Scalar? max=None) -> Tensor": torch.clamp,
    "layer_norm(Tensor x, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-5) -> Tensor":
        F.layer_norm,
    "rms_norm(Tensor x, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor": F.rms_norm,
    "exx2(Tensor x, float scale, bool zero_mean=False) -> Tensor": _exx2,
    "layernormscale(Tensor moments, float eps) -> Tensor": _layernormscale,
    "layernormnorm(Tensor x, Tensor moments, Tensor scale, Tensor? weight=None, Tensor? bias=None) -> Tensor":
        _layernormnorm,
    "topkvalue(Tensor x, int k, int dim=-1, bool largest=True) -> Tensor":
        lambda x, k, dim=-1, largest=True: torch.topk(x, k, dim, largest).values,
    "topkindex(Tensor x, int k, int dim=-1, bool largest=True) -> Tensor":
        lambda x, k, dim=-1, largest=True: torch.topk(x, k, dim, largest).indices,
    "batched_matmul(Tensor a, Tensor b) -> Tensor": torch.matmul,
    "restickify(Tensor x) -> Tensor": lambda x: x.clone(memory_format=torch.contiguous_format),
    "unfold(Tensor x, SymInt[] kernel_size, SymInt[] dilation, SymInt[] padding, SymInt[] stride) -> Tensor":
        torch.ops.aten.im2col.default,
    "reshape_via_cpu(Tensor x, SymInt[] size) -> Tensor": lambda x, size: x.reshape(tuple(size)).clone(),
    "to_dtype_cpu(Tensor x, ScalarType dtype) -> Tensor": lambda x, dtype: x.to(dtype, copy=True),
    "qfp8ch(Tensor x) -> Tensor": _qfp8ch,
    "quantize_fp8_with_scale(Tensor x, Tensor scale) -> Tensor": _quantize,
    "dequantize_fp8_with_scale(Tensor x, Tensor scale) -> Tensor": _dequantize,
    "max_dim_int64_fallback(Tensor x, int dim, bool keepdim=False) -> (Tensor, Tensor)": _extreme(torch.max),
    "min_dim_int64_fallback(Tensor x, int dim, bool keepdim=False) -> (Tensor, Tensor)": _extreme(torch.min),
    "max_default_int64_fallback(Tensor x) -> Tensor": torch.max,
    "constant(Scalar value, ScalarType? dtype=None, Device? device=None) -> Tensor": _constant,
    "empty(SymInt[] size, ScalarType? dtype=None, Device? device=None) -> Tensor": _empty,
    "copy_from_d2d(Tensor src, Tensor(a!) dst) -> ()": _copy_from_d2d,
    "overwrite(Tensor input, Tensor(a!) output, int[] dims, int[] offsets) -> ()": _overwrite,
    "overwrite_f(Tensor input, Tensor output, int[] dims, int[] offsets) -> Tensor": _overwritten,
}  # fmt: skip


def register() -> None:
    """Called once, when the device is loaded."""
    for schema, formula in OPS.items():
        name = _library.define(schema)
        _library.impl(name.split("::")[-1], formula, "CompositeImplicitAutograd")
