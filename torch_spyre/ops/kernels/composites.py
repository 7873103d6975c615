# SPDX-License-Identifier: Apache-2.0
"""Ops of this device made of others, where PyTorch's own formula for a device would go through the host."""

from __future__ import annotations

from typing import Any

import torch

_library = torch.library.Library("aten", "IMPL")


def _prod(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Over one dim: the gradient of a product of everything asks for the places of its zeros."""
    return x.reshape(-1).prod(0, dtype=dtype)


def _zeros(size: Any, **options: Any) -> torch.Tensor:
    """PyTorch's zero that takes no memory exists for its own devices only."""
    return torch.zeros(size, **options)


def _renorm(x: torch.Tensor, p: float, dim: int, maxnorm: float) -> torch.Tensor:
    """Differentiated step by step: PyTorch's formula for the gradient takes the norm in float64 on every other device
    than its own."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.aten.renorm.default(x, p, dim, maxnorm)
    others = [d for d in range(x.dim()) if d != dim % x.dim()]
    wide = x.to(torch.float32)
    norm = torch.linalg.vector_norm(wide, p, others, keepdim=True)
    return (wide * torch.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1.0)).to(x.dtype)


def _batch_norm(x: torch.Tensor, weight: Any, bias: Any, *form: Any) -> Any:
    """Of no elements: PyTorch's formula for a device makes the unused statistics of a float32 tensor in float64."""
    if x.numel():
        return torch.ops.aten._batch_norm_impl_index.default.decompose(x, weight, bias, *form)
    result = x.clone()  # not a view, and in the graph of what made it
    if weight is not None:
        result = result * weight[0]
    if bias is not None:
        result = result + bias[0]
    unused = torch.empty(x.shape[1], dtype=torch.float32, device=x.device)
    return result, unused, unused.clone(), torch.empty(0, dtype=torch.uint8, device=x.device), 0


def _cross_entropy(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The mean of smoothed labels with weights: PyTorch's formula picks out the targets that are not ignored, so many
    as there are."""
    mean = 1
    if weight is None or not label_smoothing or reduction != mean or target.is_floating_point():
        form = (reduction, ignore_index, label_smoothing)
        return torch.ops.aten.cross_entropy_loss.default.decompose(x, target, weight, *form)
    classes = 0 if x.dim() == 1 else 1
    logs = torch.log_softmax(x, classes)
    loss = torch.nn.functional.nll_loss(logs, target, weight, ignore_index=ignore_index)
    ignored = target == ignore_index
    each = -(logs * weight.reshape([-1 if d == classes else 1 for d in range(x.dim())])).sum(classes)
    total = torch.where(ignored, 0, weight[torch.where(ignored, 0, target)]).sum()
    smooth = torch.where(ignored, 0, each).sum() / total
    return (1 - label_smoothing) * loss + smooth * (label_smoothing / x.shape[classes])


def _max_pool1d(x: torch.Tensor, *form: Any, **named: Any) -> torch.Tensor:
    """Without places the host pools floats only, unlike in two dims."""
    from torch_spyre.decompositions.images import pooling  # late: start-up

    pooling.demand_floats(x, "max_pool1d_impl")
    return torch.ops.aten.max_pool1d.default.decompose(x, *form, **named)


def _kaiser_window(length: int, periodic: bool = True, beta: float = 12.0, **options: Any) -> torch.Tensor:
    """PyTorch's own is a kernel without a dispatcher."""
    device, dtype = options["device"], options.get("dtype") or torch.get_default_dtype()
    steps = length if periodic and length > 1 else max(length - 1, 1)
    place = torch.arange(length, dtype=torch.float32, device=device) * (2 / steps) - (1 if length > 1 else 0)
    window = torch.i0(beta * (1 - place * place).clamp(min=0).sqrt()) / torch.i0(torch.full_like(place, beta))
    return window.to(dtype)


def _pinverse(x: torch.Tensor, rcond: float = 1e-15, hermitian: bool = False) -> torch.Tensor:
    return _pinv(x, rtol=rcond, hermitian=hermitian)


def _pinv(
    x: torch.Tensor, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False
) -> torch.Tensor:
    """With bounds in fp32: PyTorch makes float64 tensors of them."""
    if rtol is None:
        rtol = 0.0 if atol else torch.finfo(x.dtype).eps * max(x.shape[-2:])
    bounds = [torch.full((), bound, device=x.device) for bound in (atol or 0.0, rtol)]
    return torch.linalg.pinv(x, atol=bounds[0], rtol=bounds[1], hermitian=hermitian)


def _rank(x: torch.Tensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> torch.Tensor:
    """How many singular values exceed the bounds, which PyTorch makes float64 tensors of."""
    sizes = torch.linalg.eigvalsh(x).abs() if hermitian else torch.linalg.svdvals(x)
    if sizes.shape[-1] == 0:
        return torch.zeros(sizes.shape[:-1], dtype=torch.int64, device=x.device)
    absolute = torch.as_tensor(0.0 if atol is None else atol, device=x.device)
    if rtol is None:
        rtol = torch.where(absolute > 0, 0.0, torch.finfo(x.dtype).eps * max(x.shape[-2:]))
    bound = torch.maximum(absolute.to(sizes.dtype), rtol * sizes.amax(-1))
    return (sizes > bound.unsqueeze(-1)).sum(-1)


def _rank_above(x: torch.Tensor, tol: Any, hermitian: bool = False) -> torch.Tensor:
    return _rank(x, atol=tol, rtol=0.0, hermitian=hermitian)


def register() -> None:
    """Called once, when the device is loaded."""
    for window in ("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta"):
        _library.impl(window, _kaiser_window, "PrivateUse1")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        _library.impl("pinverse", _pinverse, key)
        _library.impl("linalg_pinv", _pinverse, key)
        _library.impl("linalg_pinv.atol_rtol_float", _pinv, key)
        _library.impl("linalg_matrix_rank", _rank_above, key)
        _library.impl("linalg_matrix_rank.tol_tensor", _rank_above, key)
        _library.impl("linalg_matrix_rank.atol_rtol_float", _rank, key)
        _library.impl("linalg_matrix_rank.atol_rtol_tensor", _rank, key)
    _library.impl("prod", _prod, "AutogradPrivateUse1")
    _library.impl("renorm", _renorm, "AutogradPrivateUse1")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):  # the former alone in inference mode
        _library.impl("_batch_norm_impl_index", _batch_norm, key)
        _library.impl("cross_entropy_loss", _cross_entropy, key)
        _library.impl("max_pool1d", _max_pool1d, key)
    _library.impl("_efficientzerotensor", _zeros, "PrivateUse1")
