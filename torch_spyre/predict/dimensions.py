# SPDX-License-Identifier: Apache-2.0
"""What of a model decides its time: the sizes and kinds of its parts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch_spyre.errors import InvalidArgument


@dataclass(frozen=True)
class Mamba:
    """The Mamba-2 layers of a hybrid, which stand in for attention in most of its layers."""

    layers: int
    heads: int
    head_dim: int
    state: int
    groups: int = 1  # of heads that share B and C
    conv: int = 4  # taps
    chunk: int = 256  # tokens that a prefill takes at once

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def shared_channels(self) -> int:
        """B and C of one token."""
        return 2 * self.groups * self.state

    def parameters(self, hidden: int) -> int:
        channels = self.inner + self.shared_channels
        return self.projections(hidden) + channels * (self.conv + 1) + 3 * self.heads + self.inner

    def projections(self, hidden: int) -> int:
        return hidden * (2 * self.inner + self.shared_channels + self.heads) + self.inner * hidden

    @property
    def cache_elements(self) -> int:
        """States of one sequence, of all layers; their size does not depend on the tokens."""
        channels = self.inner + self.shared_channels
        return self.layers * (self.inner * self.state + channels * (self.conv - 1))


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer. Sizes in elements; `window` 0 means full attention."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool = False  # the head is the embedding table
    activation: str = "silu"
    gated: bool = True
    attention_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False  # a norm after attention and after the MLP as well
    experts: int = 0
    experts_per_token: int = 0
    window: int = 0
    window_every: int = 1  # of so many layers, all but one use the window; 1: all of them
    rotary: bool = True
    rotary_dim: int = 0  # elements of a head that turn; 0: all
    positions: int = 0  # rows of a learned table of positions
    norm: str = "rms"  # or layer: with mean and bias; plain: the same without weights
    pre_norms: bool = True  # a norm before attention and before the MLP
    wide_qk_norm: bool = False  # `qk_norm` is over all heads together
    parallel: bool = False  # the MLP reads what attention reads
    biases: bool = False  # of what leaves attention, and of the MLP
    shared: int = 0  # width of an MLP that all tokens use beside the experts
    mamba: Mamba | None = None
    weights: str = "fp16"  # or fp8, int8: of the linear layers but the head, routers and experts

    def with_layers(self, layers: int) -> ModelConfig:
        """As if the model had so many layers, of each kind about the same share."""
        if layers < 1:
            raise InvalidArgument(f"{layers} layers: a model has at least one")
        mamba = self.mamba and replace(self.mamba, layers=layers * self.mamba.layers // self.layers)
        return replace(self, layers=layers, mamba=mamba)

    @property
    def mamba_layers(self) -> int:
        return self.mamba.layers if self.mamba else 0

    @property
    def attention_layers(self) -> int:
        return self.layers - self.mamba_layers

    def kinds(self) -> list[tuple[str, int, int]]:
        """(name, how many layers, window) of each distinct kind of layer with attention."""
        layers = self.attention_layers
        if not self.window:
            return [("attention layer" if self.mamba else "layer", layers, 0)] if layers else []
        if self.window_every <= 1:
            return [("layer", layers, self.window)]
        full = layers // self.window_every
        return [("local layer", layers - full, self.window), ("global layer", full, 0)]

    @property
    def norm_parameters(self) -> int:
        """Of a norm of hidden states."""
        return {"rms": 1, "layer": 2, "plain": 0}[self.norm] * self.hidden

    @property
    def layer_norms(self) -> int:
        return 2 * self.pre_norms + 2 * self.post_norms

    @property
    def attention_parameters(self) -> int:
        queries, width = self.heads * self.head_dim, (self.heads + 2 * self.kv_heads) * self.head_dim
        bias = width * self.attention_bias + self.hidden * self.biases
        heads = self.heads + self.kv_heads if self.wide_qk_norm else 2
        return self.hidden * width + queries * self.hidden + bias + heads * self.head_dim * self.qk_norm

    @property
    def mlp_parameters(self) -> int:
        """Of one MLP or expert."""
        bias = (self.intermediate + self.hidden) * self.biases
        return (3 if self.gated else 2) * self.hidden * self.intermediate + bias

    @property
    def feed_forward_parameters(self) -> int:
        """What follows attention or Mamba in a layer, and the norms of the layer."""
        router = self.hidden * self.experts
        shared = (3 if self.gated else 2) * self.hidden * self.shared
        norms = self.layer_norms * self.norm_parameters
        return max(1, self.experts) * self.mlp_parameters + router + shared + norms

    @property
    def parameters(self) -> int:
        tables = (self.vocab * (1 if self.tied else 2) + self.positions) * self.hidden
        mixers = self.attention_layers * self.attention_parameters
        if self.mamba:
            mixers += self.mamba.layers * self.mamba.parameters(self.hidden)
        return mixers + self.layers * self.feed_forward_parameters + tables + self.norm_parameters

    @property
    def weight_bytes(self) -> int:
        if self.weights == "fp16":
            return 2 * self.parameters
        queries, width = self.heads * self.head_dim, (self.heads + 2 * self.kv_heads) * self.head_dim
        mlp = (3 if self.gated else 2) * self.hidden * ((0 if self.experts else self.intermediate) + self.shared)
        codes = self.attention_layers * self.hidden * (width + queries) + self.layers * mlp
        if self.mamba:
            codes += self.mamba.layers * self.mamba.projections(self.hidden)
        return 2 * self.parameters - codes

    def cache_elements(self, tokens: int) -> int:
        """K and V of one sequence, and the states of Mamba layers."""
        attention = sum(
            count * 2 * self.kv_heads * self.head_dim * (min(tokens, window) if window else tokens)
            for _, count, window in self.kinds()
        )
        return attention + (self.mamba.cache_elements if self.mamba else 0)
