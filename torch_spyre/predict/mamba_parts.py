# SPDX-License-Identifier: Apache-2.0
"""Mamba-2 as a plain module: a prefill takes chunks of tokens with matmuls, a decoding step updates the state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_spyre.predict.decoder_parts import matrix, product, weight
from torch_spyre.predict.dimensions import ModelConfig


class Convolution(nn.Module):
    """Causal and by channel: every token sees itself and the few before it."""

    def __init__(self, taps: int, channels: int, device: str) -> None:
        super().__init__()
        self.weight, self.bias = weight(taps, channels, device=device), weight(channels, device=device)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """`before` holds the tokens before these, and afterwards the last of these."""
        tokens, taps = x.shape[1], len(self.weight)
        x = torch.cat((before, x), 1)
        before.copy_(x[:, tokens:])
        found = self.bias
        for k in range(taps):
            found = found + x[:, k : k + tokens] * self.weight[k]
        return F.silu(found)


class Scan(nn.Module):
    """From hidden states to gated values of all heads: projections, convolution, recurrence, gate."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        assert c.mamba is not None
        self.m = m = c.mamba
        self.gate = matrix(c.hidden, m.inner, device, c.weights)
        self.values = matrix(c.hidden, m.inner, device, c.weights)
        self.b_and_c = matrix(c.hidden, m.shared_channels, device, c.weights)
        self.steps = matrix(c.hidden, m.heads, device, c.weights)
        self.steps_bias, self.decay, self.skip = (weight(m.heads, device=device) for _ in range(3))
        self.conv_values = Convolution(m.conv, m.inner, device)
        self.conv_b_and_c = Convolution(m.conv, m.shared_channels, device)

    def forward(self, x: Tensor, before: Tensor, before_b_and_c: Tensor, state: Tensor, causal: Tensor) -> Tensor:
        """`causal`, (chunk, chunk), is 0 where a token sees another and -inf elsewhere. Changes the three states."""
        m = self.m
        tokens = x.shape[1]
        values = self.conv_values(product(x, self.values), before)
        b, c = self.conv_b_and_c(product(x, self.b_and_c), before_b_and_c).split(m.groups * m.state, -1)
        steps = F.softplus(product(x, self.steps) + self.steps_bias)
        found = (self._chunks if tokens > 1 else self._one)(values, b, c, steps, state, causal)
        return found * F.silu(product(x, self.gate))

    def _one(self, values: Tensor, b: Tensor, c: Tensor, steps: Tensor, state: Tensor, causal: Tensor) -> Tensor:
        m = self.m
        batch = len(values)
        v = values.view(batch, m.heads, m.head_dim, 1)
        s = steps.view(batch, m.heads, 1, 1)
        b, c = (_each_head(t.view(batch, m.groups, 1, m.state), m.heads) for t in (b, c))
        state.copy_(state * torch.exp(s * self.decay[:, None, None]) + (v * s) * b)
        found = (state * c).sum(-1) + values.view(batch, m.heads, m.head_dim) * self.skip[:, None]
        return found.view(batch, 1, m.inner)

    def _chunks(self, values: Tensor, b: Tensor, c: Tensor, steps: Tensor, state: Tensor, causal: Tensor) -> Tensor:
        """Inside a chunk, tokens meet in a masked product like attention's; between chunks the state is handed on."""
        m = self.m
        batch, tokens, _ = values.shape
        size = len(causal)
        more = -tokens % size
        if more:  # steps of zero change no state
            values, b, c, steps = (F.pad(t, (0, 0, 0, more)) for t in (values, b, c, steps))
        count = (tokens + more) // size
        v = values.view(batch, count, size, m.heads, m.head_dim).transpose(2, 3)
        s = steps.view(batch, count, size, m.heads).transpose(2, 3)
        b, c = (t.view(batch, count, size, m.groups, m.state).transpose(2, 3) for t in (b, c))
        total = torch.cumsum(s * self.decay[:, None], -1)  # logarithm of the decay since the start of the chunk
        fading = torch.exp(total[..., :, None] - total[..., None, :] + causal)
        scores = _each_head(c @ b.transpose(3, 4), m.heads, 2)
        stepped = v * s[..., None]
        found = (scores * fading) @ stepped + v * self.skip[:, None, None]
        b, c = _each_head(b, m.heads, 2), _each_head(c, m.heads, 2)
        last = total[..., -1:]
        added = (stepped * torch.exp(last - total)[..., None]).transpose(3, 4) @ b
        states = []
        now = state
        for i in range(count):
            states.append(now)
            now = now * torch.exp(last[:, i])[..., None] + added[:, i]
        old = torch.stack(states, 1)
        state.copy_(now)
        found = found + (c @ old.transpose(3, 4)) * torch.exp(total)[..., None]
        return found.transpose(2, 3).reshape(batch, count * size, m.inner)[:, :tokens]


def _each_head(x: Tensor, heads: int, dim: int = 1) -> Tensor:
    """One entry for each head, or one for all."""
    groups = x.shape[dim]
    return x if groups == 1 else x.repeat_interleave(heads // groups, dim)


class Mixer(nn.Module):
    """A whole Mamba-2 mixer: the scan, a norm over the heads of each group, and back to the hidden size."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        assert c.mamba is not None
        self.scan = Scan(c, device)
        self.norm = weight(c.mamba.inner, device=device)
        self.out = matrix(c.mamba.inner, c.hidden, device, c.weights)

    def forward(self, x: Tensor, *states: Tensor) -> Tensor:
        found = self.scan(x, *states)
        groups = self.scan.m.groups
        normed = _normed(found) if groups == 1 else _normed(found.unflatten(-1, (groups, -1))).flatten(-2)
        return product(normed * self.norm, self.out)


def _normed(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
