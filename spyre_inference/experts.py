# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts of vLLM's models: its layer, with the rows given to experts on the card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from spyre_inference.vllm_api import FusedTopKRouter, MoERunner
from torch_spyre.errors import UnsupportedOp
from torch_spyre.ops.kernels.experts import chosen_experts, experts

_BETWEEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class CardExperts(MoERunner):
    """Takes the place of the class of vLLM's layer; parameters and routing rules are the layer's own."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        input_ids: torch.Tensor | None = None,
        shared_experts_input: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self.gate is not None:
            router_logits, _ = self.gate(hidden_states)
        router, layer = self.router, self.routed_experts
        shares, numbers = chosen_experts(router_logits, router.top_k, router.renormalize)
        made = experts(hidden_states, shares, numbers, layer.w13_weight, layer.w2_weight, self._between)
        shared = None if self._shared_experts is None else self._shared_experts._layer(hidden_states)
        shared, made = self._maybe_apply_routed_scale_to_output(shared, made)
        return self._maybe_reduce_final_output(made if shared is None else shared + made, None, False)

    def _between(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        return _BETWEEN[self.routed_experts.activation.value](gate) * up


def become(model: nn.Module) -> None:
    """All such layers of a model whose weights are loaded and on the host."""
    for layer in model.modules():
        if isinstance(layer, MoERunner):
            _refuse(layer)
            layer.__class__ = CardExperts
            weights: Any = layer.routed_experts
            for name in ("w13_weight", "w2_weight"):  # [experts, outputs, inputs] -> as a product reads them
                turned = getattr(weights, name).detach().transpose(1, 2).contiguous()
                setattr(weights, name, nn.Parameter(turned, requires_grad=False))


def _refuse(layer: Any) -> None:
    weights, router, config = layer.routed_experts, layer.router, layer.moe_config
    found = {
        f"routing by {type(router).__name__}": type(router) is not FusedTopKRouter,
        f"scores by {getattr(router, 'scoring_func', '')}": getattr(router, "scoring_func", "softmax") != "softmax",
        f"activation {weights.activation.value}": weights.activation.value not in _BETWEEN,
        "experts with biases": config.has_bias,
        "weights of the router on the input": weights.apply_router_weight_on_input,
        "transforms around experts": layer.routed_input_transform or layer.routed_output_transform,
        "a gate of shared experts": layer.shared_expert_gate is not None,
        "experts on several cards": config.ep_size > 1,
    }
    for what, there in found.items():
        if there:
            raise UnsupportedOp(f"mixture of experts with {what}: not implemented on the card")
