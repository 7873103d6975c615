# SPDX-License-Identifier: Apache-2.0
"""A model of vLLM onto the card, with weights in the layout that matmul reads. What makes the answer of the states that
come back, the pooler, is on the host."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from spyre_inference.vllm_api import LinearBase, Pooler, VocabParallelEmbedding
from torch_spyre.device.modules import weight_layout
from torch_spyre.device.tensors import to_with_layout


def onto_card(model: nn.Module, device: torch.device) -> None:
    """Parameters and buffers, in place. vLLM's kinds of parameters know how to be loaded; now they are plain ones."""
    done: dict[int, torch.Tensor] = {}
    kept: list[torch.Tensor] = []  # so that no id is given twice

    def moved(x: torch.Tensor, multiplied: bool, scale: bool = False) -> torch.Tensor:
        if id(x) not in done:
            kept.append(x)
            data = x.detach()
            narrow = data.dtype in (torch.bfloat16, torch.float32) and not scale
            dtype = torch.float16 if narrow else data.dtype
            if multiplied and data.dim() == 2:
                data = to_with_layout(data.contiguous(), weight_layout(data.shape, dtype), dtype, device)
            else:
                data = data.to(device, dtype)
            done[id(x)] = nn.Parameter(data, requires_grad=False) if isinstance(x, nn.Parameter) else data
        return done[id(x)]

    on_host = {part for pooler in _poolers(model) for part in pooler.modules()}
    for owner in model.modules():
        if owner in on_host:
            continue
        multiplied = isinstance(owner, (LinearBase, VocabParallelEmbedding))
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                owner._parameters[name] = moved(
                    parameter, multiplied and name == "weight", name in ("weight_scale", "input_scale")
                )
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                owner._buffers[name] = moved(buffer, False)


def off_card(model: nn.Module, keep: bool) -> None:
    """The inverse of `onto_card`, in place. Without `keep`, parameters are dropped: the checkpoint has them. Buffers
    are not: vLLM shares some, such as those of positions, with models that it makes later."""
    done: dict[int, torch.Tensor] = {}
    kept: list[torch.Tensor] = []

    def moved(x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cpu":
            return x
        if id(x) not in done:
            kept.append(x)
            parameter = isinstance(x, nn.Parameter)
            data = x.detach().cpu() if keep or not parameter else torch.empty(0, dtype=x.dtype)
            done[id(x)] = nn.Parameter(data, requires_grad=False) if parameter else data
        return done[id(x)]

    for owner in model.modules():
        for held in (owner._parameters, owner._buffers):
            held.update({name: moved(x) for name, x in held.items() if x is not None})


def _poolers(model: nn.Module) -> Iterator[nn.Module]:
    """Also those that vLLM keeps in a dict, where `modules()` does not look."""
    for module in model.modules():
        if isinstance(module, Pooler):
            yield module
            yield from getattr(module, "poolers_by_task", {}).values()
