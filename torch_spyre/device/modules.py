# SPDX-License-Identifier: Apache-2.0
"""Modules onto the card, with weights in the layout that matmul reads.

A matmul reads its weight with the output features in the stick. PyTorch keeps the weight of a linear layer as
(out_features, in_features); laid out in dim order [1, 0] it needs no copy before each product. Weights of experts that
are in one parameter are laid out alike, one expert after the other, and so is the weight of a convolution at each
place of its kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torch_spyre import _C
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device.tensors import device_tensor_layout, to_with_layout
from torch_spyre.errors import InvalidArgument


def load_to_spyre(
    module: nn.Module, device: torch.device, dtype: torch.dtype | None = None, non_blocking: bool = False
) -> nn.Module:
    """Moves parameters and buffers in place, as ``nn.Module.to`` does. Parameters stay the same objects where nothing
    else refers to their data, and tied ones stay tied in any case."""
    if dtype is not None and not _C.is_supported_dtype(dtype):
        raise InvalidArgument(f"Spyre backend does not support dtype {dtype}; use float16, bfloat16 or float32")
    index = _C.current_device() if device.index is None else device.index
    weights = {id(w): order for w, order in matmul_weights(module)}
    mover = _Mover(torch.device(DEVICE_NAME, index), dtype, non_blocking, weights)
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                owner._parameters[name] = mover.parameter(parameter)
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                owner._buffers[name] = mover.buffer(buffer)
    if any(type(owner)._apply is not nn.Module._apply for owner in module.modules()):
        module._apply(mover.anything)  # such modules hold tensors that are neither parameters nor buffers
    return module


Order = tuple[int, ...]
_TRANSPOSED: Order = (1, 0)  # of an (out_features, in_features) weight
_EXPERTS_TRANSPOSED: Order = (2, 0, 1)  # the same of (experts, out_features, in_features): experts outermost
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d)
_EXPERTS: Order = (1, 0, 2)  # of (experts, in_features, out_features)


def matmul_weights(module: nn.Module) -> Iterator[tuple[torch.Tensor, Order]]:
    """Parameters that `module` and its children multiply with, and the dim order in which matmul reads them."""
    for owner in module.modules():
        order = _TRANSPOSED
        if isinstance(owner, nn.Linear):
            names = ["weight"]
        elif isinstance(owner, _CONVOLUTIONS):
            names, order = ["weight"], _order_of_kernel(owner)
        elif isinstance(owner, nn.MultiheadAttention):
            names = ["in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"]
        elif isinstance(owner, (nn.RNNBase, nn.RNNCellBase)):
            names = [n for n in owner._parameters if n.startswith("weight_")]
        else:
            names, order = [*owner._parameters], _order_of_experts(owner)
        for name in names:
            weight = owner._parameters.get(name)
            if weight is not None and weight.dim() == len(order):
                yield weight, order


def _order_of_kernel(owner: Any) -> Order:
    """Of the weight (out_channels, in_channels / groups, *kernel) of a convolution: the kernel outermost, then the rows
    of one matrix for each of its places. The first two change places if the convolution is transposed."""
    kernel = range(2, 2 + len(owner.kernel_size))
    return (0, *kernel, 1) if owner.transposed else (1, *kernel, 0)


def _order_of_experts(owner: nn.Module) -> Order:
    """Of the stacked weights of a module of experts, () if it is none. Modules that transformers lets choose among
    implementations say how their weights are stored; the older kind names its sizes."""
    if hasattr(owner, "is_transposed") and hasattr(owner, "has_gate"):
        return _EXPERTS if owner.is_transposed else _EXPERTS_TRANSPOSED
    if all(hasattr(owner, name) for name in ("num_experts", "input_size", "output_size")):
        return _EXPERTS_TRANSPOSED
    return ()


def weight_layout(size: torch.Size, dtype: torch.dtype, order: Order = _TRANSPOSED) -> Any:
    """Layout of a contiguous weight with its dims in `order`, the last one in the stick."""
    strides = [math.prod(size[i + 1 :]) for i in range(len(size))]
    return _C.SpyreTensorLayout(list(size), strides, dtype, list(order))


class _Mover:
    """Converts each tensor once, so that what was shared stays shared."""

    def __init__(
        self, device: torch.device, dtype: torch.dtype | None, non_blocking: bool, weights: dict[int, Order]
    ) -> None:
        self.device, self.dtype, self.non_blocking, self.weights = device, dtype, non_blocking, weights
        self.done: dict[int, tuple[torch.Tensor, Any]] = {}  # id -> (what it was, kept alive; what it became)

    def parameter(self, old: nn.Parameter) -> nn.Parameter:
        known = self.done.get(id(old))
        if known is None:
            known = self.done[id(old)] = (old, self._moved(old))
            self.done[id(known[1])] = (known[1], known[1])
        return known[1]

    def buffer(self, old: torch.Tensor) -> torch.Tensor:
        known = self.done.get(id(old))
        if known is None:
            known = self.done[id(old)] = (old, self._convert(old))
            self.done[id(known[1])] = (known[1], known[1])
        return known[1]

    def anything(self, old: torch.Tensor) -> torch.Tensor:
        """What ``Module._apply`` calls: parameters and buffers have been moved, and stay."""
        known = self.done.get(id(old))
        return self.buffer(old) if known is None else known[1]

    def _moved(self, old: nn.Parameter) -> nn.Parameter:
        with torch.no_grad():
            data = self._convert(old, self.weights.get(id(old)))
            if data is old:
                return old
            new = nn.Parameter(data, old.requires_grad)
            if old.grad is not None:
                new.grad = self._convert(old.grad, self.weights.get(id(old)))
        if type(old) is not nn.Parameter:
            return new
        try:
            torch.utils.swap_tensors(old, new)
        except RuntimeError:  # something else holds on to the old data, a graph for backward for instance
            return new
        return old

    def _convert(self, old: torch.Tensor, order: Order | None = None) -> torch.Tensor:
        floating = old.is_floating_point() or old.is_complex()
        dtype = self.dtype if self.dtype is not None and floating else old.dtype
        if old.device == self.device and old.dtype == dtype:
            return old
        if _is_of_parts(old):
            return self._parts_of(old if old.dtype == dtype else old.to(dtype), order)
        if order is not None and old.is_contiguous() and old.device.type != "meta":
            layout = weight_layout(old.shape, dtype, order)
            return to_with_layout(old.detach(), layout, dtype, self.device, self.non_blocking)
        layout = device_tensor_layout(old)
        if layout is not None and layout.device_dtype == _C.get_device_dtype(dtype):  # from another card
            return to_with_layout(old.detach(), layout, dtype, self.device, self.non_blocking)
        return old.detach().to(self.device, dtype, non_blocking=self.non_blocking)

    def _parts_of(self, old: Any, order: Order | None) -> torch.Tensor:
        """A tensor made of others, codes and scales for instance: each is moved, those of its size in its order."""
        whole = _Mover(self.device, None, self.non_blocking, {})
        names, context = old.__tensor_flatten__()
        moved = {n: whole._convert(p, order if p.shape == old.shape else None) for n, p in _parts(old, names)}
        return cast("torch.Tensor", type(old).__tensor_unflatten__(moved, context, old.shape, old.stride()))


def _is_of_parts(tensor: torch.Tensor) -> bool:
    """Quantised weights of libraries. A part of a distributed tensor is another matter."""
    return is_traceable_wrapper_subclass(tensor) and not type(tensor).__module__.startswith("torch.distributed")


def _parts(tensor: Any, names: Sequence[str]) -> list[tuple[str, torch.Tensor]]:
    return [(name, getattr(tensor, name)) for name in names]
