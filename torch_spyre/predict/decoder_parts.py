# SPDX-License-Identifier: Apache-2.0
"""The parts of a decoder as plain PyTorch modules, for whatever device they are made on.

Weights are (in, out), so that the card stores them as a matmul reads them. For a prediction the contents of all tensors
are undefined; only shapes matter.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_spyre.predict.dimensions import ModelConfig

DTYPE = torch.float16
CODES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}


def empty(*size: int, device: str) -> Tensor:
    return torch.empty(*size, dtype=DTYPE, device=device)


def weight(*size: int, device: str) -> nn.Parameter:
    return nn.Parameter(empty(*size, device=device), requires_grad=False)


class Codes(nn.Module):
    """A weight of eight bits, whose output features have a scale each."""

    def __init__(self, inputs: int, outputs: int, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        made = torch.empty(inputs, outputs, dtype=dtype, device=device)
        self.weight = nn.Parameter(made, requires_grad=False)
        self.register_buffer("scale", torch.empty(outputs, dtype=torch.float32, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return ((x @ self.weight.to(x.dtype)) * self.scale).to(x.dtype)


def matrix(inputs: int, outputs: int, device: str, weights: str) -> nn.Parameter | Codes:
    """`weights` as `ModelConfig.weights`."""
    if weights in CODES:
        return Codes(inputs, outputs, device, CODES[weights])
    return weight(inputs, outputs, device=device)


def product(x: Tensor, by: Tensor | Codes) -> Tensor:
    found: Tensor = by(x) if isinstance(by, Codes) else x @ by
    return found


class Norm(nn.Module):
    """Over the last dim. `kind` as `ModelConfig.norm`."""

    def __init__(self, size: int, device: str, kind: str = "rms") -> None:
        super().__init__()
        self.size = size
        self.weight = weight(size, device=device) if kind != "plain" else None
        self.bias = weight(size, device=device) if kind == "layer" else None
        self.rms = kind == "rms"

    def forward(self, x: Tensor) -> Tensor:
        if not self.rms:
            return F.layer_norm(x, (self.size,), self.weight, self.bias, 1e-5)
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the first elements of each head; cos and sin cover half of them."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = (a * cos - b * sin, b * cos + a * sin)
    return torch.cat((*turned, rest) if rest.shape[-1] else turned, -1)


class Attention(nn.Module):
    """Grouped-query attention over a cache; the query heads of one KV head are rows of one product."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.c = c
        queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.q = matrix(c.hidden, queries, device, c.weights)
        self.k = matrix(c.hidden, keys, device, c.weights)
        self.v = matrix(c.hidden, keys, device, c.weights)
        self.o = matrix(queries, c.hidden, device, c.weights)
        if c.attention_bias:
            self.q_bias = weight(queries, device=device)
            self.k_bias = weight(keys, device=device)
            self.v_bias = weight(keys, device=device)
        if c.biases:
            self.o_bias = weight(c.hidden, device=device)
        if c.qk_norm:
            sizes = (queries, keys) if c.wide_qk_norm else (c.head_dim, c.head_dim)
            self.q_norm, self.k_norm = (Norm(size, device) for size in sizes)

    def forward(self, x: Tensor, *inputs: Tensor) -> Tensor:
        q, k, v = self.project(x)
        if self.c.wide_qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return self.attend(q, k, v, *inputs)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = product(x, self.q), product(x, self.k), product(x, self.v)
        if self.c.attention_bias:
            q, k, v = q + self.q_bias, k + self.k_bias, v + self.v_bias
        return q, k, v

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        c = self.c
        found = product(self.core(q, k, v, cos, sin, mask, keys, values), self.o)
        return found + self.o_bias if c.biases else found

    def core(
        self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """What has no weights. `keys` and `values` are the cache, whose last rows belong to these tokens."""
        c = self.c
        batch, tokens, _ = q.shape
        q, k, v = (t.view(batch, tokens, -1, c.head_dim).transpose(1, 2) for t in (q, k, v))
        if c.qk_norm and not c.wide_qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if c.rotary:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        context = keys.shape[2]
        keys[:, :, context - tokens :].copy_(k)
        values[:, :, context - tokens :].copy_(v)
        if context > tokens:
            k, v = keys, values
        q = q.reshape(batch, c.kv_heads, c.heads // c.kv_heads * tokens, c.head_dim)
        scores = (q @ k.transpose(2, 3)) * c.head_dim**-0.5 + mask
        found = torch.softmax(scores, -1) @ v
        found = found.view(batch, c.heads, tokens, c.head_dim).transpose(1, 2)
        return found.reshape(batch, tokens, c.heads * c.head_dim)


class Mlp(nn.Module):
    def __init__(self, c: ModelConfig, device: str, width: int = 0, weights: str = "") -> None:
        super().__init__()
        self.c = c
        width, weights = width or c.intermediate, weights or c.weights
        self.up = matrix(c.hidden, width, device, weights)
        self.down = matrix(width, c.hidden, device, weights)
        self.up_bias = weight(width, device=device) if c.biases else None
        self.down_bias = weight(c.hidden, device=device) if c.biases else None
        if c.gated:
            self.gate = matrix(c.hidden, width, device, weights)

    def forward(self, x: Tensor) -> Tensor:
        act = F.silu if self.c.activation == "silu" else _gelu
        up = product(x, self.up)
        if self.up_bias is not None:
            up = up + self.up_bias
        found = product(act(product(x, self.gate)) * up if self.c.gated else act(up), self.down)
        return found if self.down_bias is None else found + self.down_bias


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def norm_of(c: ModelConfig, device: str, there: bool = True) -> nn.Module:
    """A norm of hidden states, if there is one."""
    return Norm(c.hidden, device, c.norm) if there else nn.Identity()


Mixer = Callable[[ModelConfig, str], nn.Module]  # what lets the tokens of a sequence meet


class Dense(nn.Module):
    """A layer whose MLP all tokens share."""

    def __init__(self, c: ModelConfig, device: str, mixer: Mixer = Attention) -> None:
        super().__init__()
        self.c = c
        self.attention, self.mlp = mixer(c, device), Mlp(c, device)
        there = (c.pre_norms, c.pre_norms, c.post_norms, c.post_norms)
        self.norms = nn.ModuleList(norm_of(c, device, t) for t in there)

    def forward(self, x: Tensor, *inputs: Tensor) -> Tensor:
        before, before_mlp, after, after_mlp = self.norms
        found = after(self.attention(before(x), *inputs))
        if self.c.parallel:
            return x + found + after_mlp(self.mlp(before_mlp(x)))
        x = x + found
        return x + after_mlp(self.mlp(before_mlp(x)))


class Embedding(nn.Module):
    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.table = weight(c.vocab, c.hidden, device=device)
        self.positions = weight(c.positions, c.hidden, device=device) if c.positions else None

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        found = F.embedding(tokens, self.table)
        return found if positions is None else found + F.embedding(positions, self.positions)


class Router(nn.Module):
    """The experts of each token, and their shares."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.chosen = c.experts_per_token
        self.weight = weight(c.hidden, c.experts, device=device)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shares, experts = torch.topk(torch.softmax(x @ self.weight, -1), self.chosen)
        return shares / shares.sum(-1, keepdim=True), experts


class Routed(nn.Module):
    """A mixture-of-experts layer up to its experts, which are blocks of their own: attention, the router, and the MLP
    that all tokens share, if there is one."""

    def __init__(self, c: ModelConfig, device: str, mixer: Mixer = Attention) -> None:
        super().__init__()
        self.attention, self.router = mixer(c, device), Router(c, device)
        self.norms = nn.ModuleList(norm_of(c, device) for _ in range(2))
        self.shared = Mlp(c, device, c.shared) if c.shared else None

    def forward(self, x: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = x + self.attention(self.norms[0](x), *inputs)
        y = self.norms[1](x)
        shares, experts = self.router(y)
        return x if self.shared is None else x + self.shared(y), shares, experts


class Expert(nn.Module):
    """One expert on the tokens that chose it: gathered, and added to the result with the router's weights."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.mlp = Mlp(c, device, weights="fp16")  # stacked weights are not quantised

    def forward(self, x: Tensor, tokens: Tensor, share: Tensor, out: Tensor) -> Tensor:
        if len(tokens) == len(x):  # all of them
            return out + self.mlp(x) * share
        return out.index_add_(0, tokens, self.mlp(x.index_select(0, tokens)) * share)


class Head(nn.Module):
    """Final norm and the scores of the whole vocabulary for the last token of each sequence."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.norm = norm_of(c, device)
        self.table = weight(c.hidden, c.vocab, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) @ self.table
