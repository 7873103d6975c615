# SPDX-License-Identifier: Apache-2.0
"""What `torch.nn.DataParallel` moves tensors with, for cards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_spyre.constants import DEVICE_NAME


def moves_between_cards() -> None:
    """``torch.nn.DataParallel`` and `torch.nn.parallel.comm`. They call functions that only builds for CUDA have, and
    that take tensors of CUDA only. Missing hook: the same as operations of the dispatcher."""
    torch._C._scatter = _for_cards("_scatter", _scatter)
    torch._C._scatter_out = _for_cards("_scatter_out", _scatter_out)
    torch._C._gather = _for_cards("_gather", _gather)
    torch._C._gather_out = _for_cards("_gather_out", _gather_out)
    torch._C._broadcast = _for_cards("_broadcast", _broadcast)
    torch._C._broadcast_out = _for_cards("_broadcast_out", _broadcast_out)
    torch._C._broadcast_coalesced = _for_cards("_broadcast_coalesced", _broadcast_coalesced)


def _for_cards(name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
    """Devices are numbers here: they are cards where cards are the accelerator of the process."""
    original = getattr(torch._C, name, None)

    def move(*args: Any) -> Any:
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None and accelerator.type == DEVICE_NAME:
            return ours(*args)
        if original is None:
            raise AttributeError(f"module 'torch._C' has no attribute {name!r}")
        return original(*args)

    return move


def _card(index: int) -> torch.device:
    return torch.device(DEVICE_NAME, index)


def _scatter(
    tensor: Tensor, devices: Sequence[int], sizes: Sequence[int] | None, dim: int, streams: object
) -> list[Tensor]:
    """One part for each device. The copies are made in the current stream, for which nobody has to wait."""
    parts = tensor.chunk(len(devices), dim) if sizes is None else tensor.split([*sizes], dim)
    return [part.to(_card(index)) for part, index in zip(parts, devices, strict=False)]


def _scatter_out(tensor: Tensor, out: Sequence[Tensor], dim: int, streams: object) -> list[Tensor]:
    parts = tensor.split([target.size(dim) for target in out], dim)
    return [target.copy_(part) for target, part in zip(out, parts, strict=True)]


def _gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    if destination is None:
        destination = torch.accelerator.current_device_index()
    target = torch.device("cpu") if destination == -1 else _card(destination)
    return torch.cat([tensor.to(target) for tensor in tensors], dim)


def _gather_out(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    return torch.cat([tensor.to(out.device) for tensor in tensors], dim, out=out)


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    return [tensor.to(_card(index)) for index in devices]


def _broadcast_out(tensor: Tensor, out: Sequence[Tensor]) -> list[Tensor]:
    return [target.copy_(tensor) for target in out]


def _broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int) -> list[list[Tensor]]:
    return [[tensor.to(_card(index)) for tensor in tensors] for index in devices]
