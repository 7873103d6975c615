# SPDX-License-Identifier: Apache-2.0
"""The parts of a decoder as plain PyTorch modules, for whatever device they are made on.

Weights are (in, out), so that they lie on the card as a matmul reads them. For a prediction the contents of all tensors
are undefined; only shapes matter.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_spyre.predict.configs import ModelConfig

DTYPE = torch.float16


def empty(*size: int, device: str) -> Tensor:
    return torch.empty(*size, dtype=DTYPE, device=device)


def weight(*size: int, device: str) -> nn.Parameter:
    return nn.Parameter(empty(*size, device=device), requires_grad=False)


class Norm(nn.Module):
    """RMS norm over the last dim."""

    def __init__(self, size: int, device: str) -> None:
        super().__init__()
        self.weight = weight(size, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding; cos and sin cover half of the head's elements."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    """Grouped-query attention over a cache; the query heads of one KV head are rows of one product."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.c = c
        self.q = weight(c.hidden, c.heads * c.head_dim, device=device)
        self.k = weight(c.hidden, c.kv_heads * c.head_dim, device=device)
        self.v = weight(c.hidden, c.kv_heads * c.head_dim, device=device)
        self.o = weight(c.heads * c.head_dim, c.hidden, device=device)
        if c.attention_bias:
            self.q_bias = weight(c.heads * c.head_dim, device=device)
            self.k_bias = weight(c.kv_heads * c.head_dim, device=device)
            self.v_bias = weight(c.kv_heads * c.head_dim, device=device)
        if c.qk_norm:
            self.q_norm, self.k_norm = Norm(c.head_dim, device), Norm(c.head_dim, device)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """`keys` and `values` are the cache, whose last rows belong to these tokens."""
        c = self.c
        batch, tokens, _ = x.shape
        q, k, v = self._project(x)
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
        return found.reshape(batch, tokens, c.heads * c.head_dim) @ self.o

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        c = self.c
        batch, tokens, _ = x.shape
        q, k, v = x @ self.q, x @ self.k, x @ self.v
        if c.attention_bias:
            q, k, v = q + self.q_bias, k + self.k_bias, v + self.v_bias
        q = q.view(batch, tokens, c.heads, c.head_dim).transpose(1, 2)
        k = k.view(batch, tokens, c.kv_heads, c.head_dim).transpose(1, 2)
        v = v.view(batch, tokens, c.kv_heads, c.head_dim).transpose(1, 2)
        if c.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v


class Mlp(nn.Module):
    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.c = c
        self.up = weight(c.hidden, c.intermediate, device=device)
        self.down = weight(c.intermediate, c.hidden, device=device)
        if c.gated:
            self.gate = weight(c.hidden, c.intermediate, device=device)

    def forward(self, x: Tensor) -> Tensor:
        act = F.silu if self.c.activation == "silu" else _gelu
        up = x @ self.up
        return (act(x @ self.gate) * up if self.c.gated else act(up)) @ self.down


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


class Dense(nn.Module):
    """A layer whose MLP all tokens share."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.c = c
        self.attention, self.mlp = Attention(c, device), Mlp(c, device)
        self.norms = nn.ModuleList(Norm(c.hidden, device) for _ in range(4 if c.post_norms else 2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        found = self.attention(self.norms[0](x), cos, sin, mask, keys, values)
        if self.c.post_norms:
            x = x + self.norms[2](found)
            return x + self.norms[3](self.mlp(self.norms[1](x)))
        x = x + found
        return x + self.mlp(self.norms[1](x))


class Embedding(nn.Module):
    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.table = weight(c.vocab, c.hidden, device=device)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.table)


class Routed(nn.Module):
    """Attention and the router of a mixture-of-experts layer; the experts are blocks of their own."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.chosen = c.experts_per_token
        self.attention = Attention(c, device)
        self.norms = nn.ModuleList(Norm(c.hidden, device) for _ in range(2))
        self.router = weight(c.hidden, c.experts, device=device)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = x + self.attention(self.norms[0](x), cos, sin, mask, keys, values)
        shares, experts = torch.topk(torch.softmax(self.norms[1](x) @ self.router, -1), self.chosen)
        return x, shares / shares.sum(-1, keepdim=True), experts


class Expert(nn.Module):
    """One expert on the tokens that chose it: gathered, and added to the result with the router's weights."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.mlp = Mlp(c, device)

    def forward(self, x: Tensor, tokens: Tensor, share: Tensor, out: Tensor) -> Tensor:
        if len(tokens) == len(x):  # all of them
            return out + self.mlp(x) * share
        return out.index_add_(0, tokens, self.mlp(x.index_select(0, tokens)) * share)


class Head(nn.Module):
    """Final norm and the scores of the whole vocabulary for the last token of each sequence."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.norm = Norm(c.hidden, device)
        self.table = weight(c.hidden, c.vocab, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) @ self.table
