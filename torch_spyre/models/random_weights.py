# SPDX-License-Identifier: Apache-2.0
"""Random weights of any model, tensor by tensor: those of a model that is larger than memory.

Each tensor is drawn from a seed of its own, so any of them can be made again at any time and in any order. A matrix
has the variance 1/fan-in, a vector (norms, biases) is spread by 0.1 around its initial values. All values are numbers
that the card's format has, and fp16 too.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from torch_spyre import dl16

_LEVELS = 1 << 16  # values of a distribution: what two random bytes choose among
_AT_ONCE = 1 << 22  # values that are drawn together
_SPREAD = 0.1  # of vectors
_LARGE = 1 << 16  # elements of a matrix that is not initialised


class _NoMatrices(TorchDispatchMode):
    """Leaves out the ops that would write initial values into matrices, whose memory is not even committed then."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable and isinstance(args[0], Tensor) and args[0].dim() > 1 and args[0].numel() > _LARGE:
            return args[0]
        return func(*args, **(kwargs or {}))


def described(kind: Any, config: Any, dtype: torch.dtype = torch.float32) -> Any:
    """A model in evaluation mode whose vectors have their initial values, and whose matrices nobody wrote."""
    with _NoMatrices():
        model = kind(config).eval()
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data = _as(parameter.data, dtype)
        model.tie_weights()
    return model.requires_grad_(False)


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype == dtype:
        return tensor
    return tensor.to(dtype) if tensor.dim() < 2 else torch.empty_like(tensor, dtype=dtype)


class RandomWeights:
    """The weights of `model`, which only tells their names and sizes. Names of tied ones stand for the same tensor."""

    def __init__(self, model: nn.Module, seed: int = 0) -> None:
        self.seed = seed
        self.shapes: dict[str, torch.Size] = {}
        self.initial: dict[str, Tensor] = {}
        self.first: dict[str, str] = {}  # name -> the first of its ties
        owners: dict[int, str] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self.first[name] = owners.setdefault(id(parameter), name)
            if self.first[name] == name:
                self.shapes[name] = parameter.shape
                if parameter.dim() < 2:
                    self.initial[name] = parameter.detach().float().clone()

    def names(self) -> Sequence[str]:
        return list(self.shapes)

    def bytes_of(self, name: str) -> int:
        return 2 * int(self.shapes[self.first[name]].numel())

    def tensor(self, name: str, dtype: torch.dtype = torch.float16) -> Tensor:
        name = self.first[name]
        shape, start = self.shapes[name], self.initial.get(name)
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        if start is not None:
            noise = torch.randn(shape, generator=generator)
            return torch.from_numpy(dl16.rounded((start + _SPREAD * noise).half().float().numpy())).to(dtype)
        fan_in = shape[-1] if len(shape) == 3 else math.prod(shape[1:])
        levels = _levels(fan_in).to(dtype).numpy()
        made = torch.empty(shape, dtype=dtype)
        flat = made.view(-1)
        for begin in range(0, len(flat), _AT_ONCE):
            part = flat[begin : begin + _AT_ONCE]
            words = torch.randint(-(2**63), 2**63 - 1, (-(-len(part) // 4),), generator=generator)
            part.copy_(torch.from_numpy(levels[words.numpy().view("uint16")[: len(part)]]))
        return made


@cache
def _levels(fan_in: int) -> Tensor:
    """The quantiles of the normal distribution with the variance 1/fan-in, in numbers of the card's format."""
    places = (torch.arange(_LEVELS, dtype=torch.float64) + 0.5) / _LEVELS
    values = torch.special.ndtri(places) * fan_in**-0.5
    return torch.from_numpy(dl16.rounded(values.half().float().numpy()))
