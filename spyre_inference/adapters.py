# SPDX-License-Identifier: Apache-2.0
"""LoRA: the adapters of a batch on the card.

vLLM gives each adapter that is in use a slot, and each row of a step the slot of its request. Here all slots of a layer
are stored one behind the other: a row meets the first matrices of all of them in one product, what belongs to other
slots is multiplied with 0, and the second matrices are one product again. So one compiled block serves every mix of
adapters, and a row's bits do not depend on what is in the other slots, unless weights there are NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from spyre_inference.vllm_api import (
    BaseLayerWithLoRA,
    BaseLinearLayerWithLoRA,
    LogitsProcessorWithLoRA,
    PunicaWrapperCPU,
    VocabParallelEmbeddingWithLoRA,
)
from torch_spyre.device.modules import weight_layout
from torch_spyre.device.tensors import to_with_layout
from torch_spyre.errors import UnsupportedOp


class CardAdapters(PunicaWrapperCPU):
    """What layers with adapters compute. vLLM tells it the slots of the rows of each step."""

    chosen: torch.Tensor  # [rows, slots] of the running step: 1 in the slot of the row, if it has one

    def slots_of_rows(self, rows: int, padded: int, slots: int) -> np.ndarray:
        """What `chosen` is to hold; vLLM says -1 for a row without an adapter."""
        numbers = self.token_lora_indices[:rows].numpy()
        made = np.zeros((padded, slots), np.float16)
        made[:rows] = numbers[:, None] == np.arange(slots)
        return made

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        *,
        buffer: tuple[torch.Tensor, ...] | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        parts = []
        for first, second in zip(lora_a_stacked, lora_b_stacked, strict=True):
            narrow = F.linear(x, first).unflatten(1, (self.chosen.shape[1], -1)) * self.chosen.unsqueeze(-1)
            parts.append(narrow.flatten(1) @ second)
        return y + scale * (parts[0] if len(parts) == 1 else torch.cat(parts, -1))


def become(model: nn.Module, card: torch.device) -> CardAdapters | None:
    """Puts the slots of all layers of a model onto the card. vLLM fills them on the host; what it fills is copied."""
    found: CardAdapters | None = None
    for name, layer in [*model.named_modules()]:
        if isinstance(layer, (VocabParallelEmbeddingWithLoRA, LogitsProcessorWithLoRA)):
            model.set_submodule(name, layer.base_layer)
            layer.set_lora = _refused(name)
        elif isinstance(layer, BaseLinearLayerWithLoRA):
            _Slots(layer, card)
            found = layer.punica_wrapper
        elif isinstance(layer, BaseLayerWithLoRA):
            raise UnsupportedOp(
                f"--enable-lora with {name}, a {type(layer).__name__}: only linear layers have adapters"
            )
    return found


def _refused(name: str) -> Callable[..., None]:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise UnsupportedOp(f"an adapter for {name}: adapters of embeddings and heads are not computed on the card")

    return refuse


class _Slots:
    """The slots of one layer, on the host as vLLM writes them and on the card as blocks read them."""

    def __init__(self, layer: Any, card: torch.device) -> None:
        self.layer = layer
        self.host = layer.lora_a_stacked, layer.lora_b_stacked
        first, second = self._joined()
        self.card = (
            tuple(to_with_layout(x, weight_layout(x.shape, x.dtype), x.dtype, card) for x in first),
            tuple(x.to(card) for x in second),
        )
        layer.lora_a_stacked, layer.lora_b_stacked = self.card
        for name in ("set_lora", "reset_lora"):
            setattr(layer, name, self._followed(getattr(layer, name)))

    def _joined(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """[slots, 1, rank, inputs] -> [slots * rank, inputs], [slots, 1, outputs, rank] -> [slots * rank, outputs]."""
        first, second = self.host
        return [x.flatten(0, 2) for x in first], [x.transpose(2, 3).flatten(0, 2).contiguous() for x in second]

    def _followed(self, change: Callable[..., None]) -> Callable[..., None]:
        layer = self.layer

        def changed(*args: Any, **kwargs: Any) -> None:
            outer = layer.lora_a_stacked is not self.host[0]  # setting a slot resets it first
            layer.lora_a_stacked, layer.lora_b_stacked = self.host
            try:
                change(*args, **kwargs)
            finally:
                if outer:
                    layer.lora_a_stacked, layer.lora_b_stacked = self.card
            if outer:
                for to, given in zip(self.card, self._joined(), strict=True):
                    for x, value in zip(to, given, strict=True):
                        x.copy_(value)

        return changed
