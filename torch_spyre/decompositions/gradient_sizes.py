# SPDX-License-Identifier: Apache-2.0
"""Gradients whose sizes PyTorch does not check: its kernels read past the end of a tensor that is too small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_MAXIMA = ("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
_AVERAGES = ("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
_PADS = tuple(f"{kind}_pad{n}d_backward" for kind in ("reflection", "replication") for n in (1, 2, 3))


def _demand(name: str, what: str, found: torch.Tensor, wanted: Sequence[int]) -> None:
    if found.dim() != len(wanted):
        raise RuntimeError(f"{name}: expected dimensions {len(wanted)} of {what}, but got {found.dim()}")
    if list(found.shape) != list(wanted):
        raise RuntimeError(f"{name}: expected sizes {list(wanted)} of {what}, but got {list(found.shape)}")


def _pooled(dims: int) -> Callable[..., None]:
    def check(name: str, grad: torch.Tensor, x: torch.Tensor, indices: torch.Tensor | None = None, *_: Any) -> None:
        if grad.dim() != x.dim() or x.dim() not in (dims + 1, dims + 2):
            raise RuntimeError(
                f"Expected dimensions {dims + 1} or {dims + 2} of grad_output and input of {name}, the same of both, "
                f"but got {grad.dim()} and {x.dim()}"
            )
        _demand(name, "grad_output", grad, [*x.shape[:-dims], *grad.shape[-dims:]])
        if indices is not None:
            _demand(name, "indices", indices, grad.shape)

    return check


def _padded(name: str, grad: torch.Tensor, x: torch.Tensor, padding: Sequence[int], *_: Any) -> None:
    size = list(x.shape)
    for i in range(0, len(padding) - 1, 2):
        size[-1 - i // 2] += padding[i] + padding[i + 1]
    _demand(name, "grad_output", grad, size)


def _embedded(name: str, grad: torch.Tensor, indices: torch.Tensor, *_: Any) -> None:
    _demand(name, "grad_output", grad, [*indices.shape, *grad.shape[-1:]])


_CHECKS: dict[str, Callable[..., None]] = {
    **{name: _pooled(int(name[-11])) for name in (*_MAXIMA, *_AVERAGES)},
    **dict.fromkeys(_PADS, _padded),
    "embedding_dense_backward": _embedded,
}


def check(name: str, args: Sequence[Any]) -> None:
    """Raises if the gradient that a call of this op passes does not fit its input."""
    if name in _CHECKS:
        _CHECKS[name](name, *args)
