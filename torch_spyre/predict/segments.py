# SPDX-License-Identifier: Apache-2.0
"""What one of several cards computes between two collectives.

Made for the share of a model that `sharding` gives to a card. `reduced` is what the collective before brought: the sum
over all cards of what the segment before left on each.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_spyre.predict.decoder_parts import Attention, Mlp, Router, matrix, norm_of, product, weight
from torch_spyre.predict.dimensions import ModelConfig
from torch_spyre.predict.mamba_parts import Mixer, Scan


class Join(nn.Module):
    """Adds what the cards found to the residual, and norms for what follows."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.bias = weight(c.hidden, device=device) if c.biases else None  # added once, not on every card
        self.after = norm_of(c, device, c.post_norms)
        self.norm = norm_of(c, device, c.pre_norms)

    def forward(self, x: Tensor, reduced: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.after(reduced if self.bias is None else reduced + self.bias)
        return x, self.norm(x)


class EmbeddingRows(nn.Module):
    """The embeddings of tokens whose rows are stored here, zero for the others. Positions are added on one card."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.table = weight(c.vocab, c.hidden, device=device)
        self.positions = weight(c.positions, c.hidden, device=device) if c.positions else None

    def forward(self, tokens: Tensor, here: Tensor, positions: Tensor | None = None) -> Tensor:
        found = F.embedding(tokens, self.table) * here
        return found if positions is None else found + F.embedding(positions, self.positions)


def _attention(c: ModelConfig, device: str) -> Attention:
    return Attention(replace(c, biases=False), device)


class AttentionSegment(nn.Module):
    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.join, self.attention = Join(c, device), _attention(c, device)

    def forward(self, x: Tensor, reduced: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.join(x, reduced)
        return x, self.attention(y, *inputs)


class ProjectSegment(nn.Module):
    """Attention up to a norm over the heads of all cards, for which these add up the squares of their own."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.join, self.attention = Join(c, device), _attention(c, device)

    def forward(self, x: Tensor, reduced: Tensor) -> tuple[Tensor, ...]:
        x, y = self.join(x, reduced)
        q, k, v = self.attention.project(y)
        return x, q, k, v, torch.stack(((q * q).mean(-1), (k * k).mean(-1)))


class AttendSegment(nn.Module):
    """The rest of it. `squares` are the means of all cards, added up."""

    def __init__(self, c: ModelConfig, cards: int, device: str) -> None:
        super().__init__()
        self.cards = cards
        self.attention = _attention(c, device)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, squares: Tensor, *inputs: Tensor) -> Tensor:
        scales = torch.rsqrt(squares[..., None] / self.cards + 1e-5)
        q = q * scales[0] * self.attention.q_norm.weight
        k = k * scales[1] * self.attention.k_norm.weight
        return self.attention.attend(q, k, v, *inputs)


class AttentionCore(nn.Module):
    """Attention without its projections: the part whose time depends on the cache."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.attention = _attention(c, device)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *inputs: Tensor) -> Tensor:
        return self.attention.core(q, k, v, *inputs)


class ColumnsMlp(Mlp):
    """A card's part of an MLP; the bias of what leaves it is added after the sum."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__(c, device)
        self.down_bias = None


class ParallelSegment(nn.Module):
    """A whole layer whose MLP reads what attention reads: both are summed at once."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.join, self.attention, self.mlp = Join(c, device), _attention(c, device), ColumnsMlp(c, device)
        self.norm = norm_of(c, device)

    def forward(self, x: Tensor, reduced: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.join(x, reduced)
        return x, self.attention(y, *inputs) + self.mlp(self.norm(x))


class MambaSegment(nn.Module):
    """A whole Mamba layer whose norms are over groups of heads, none of which is on two cards."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.join, self.mixer = Join(c, device), Mixer(c, device)

    def forward(self, x: Tensor, reduced: Tensor, *states: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.join(x, reduced)
        return x, self.mixer(y, *states)


class ScanSegment(nn.Module):
    """A Mamba layer up to a norm over all its heads, for which all cards add up the squares of theirs."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.join, self.scan = Join(c, device), Scan(c, device)

    def forward(self, x: Tensor, reduced: Tensor, *states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, y = self.join(x, reduced)
        found = self.scan(y, *states)
        return x, found, (found * found).mean(-1)


class OutSegment(nn.Module):
    """The rest of a Mamba layer. `squares` are the means of all cards, added up."""

    def __init__(self, c: ModelConfig, cards: int, device: str) -> None:
        super().__init__()
        assert c.mamba is not None
        self.cards = cards
        self.norm = weight(c.mamba.inner, device=device)
        self.out = matrix(c.mamba.inner, c.hidden, device, c.weights)

    def forward(self, found: Tensor, squares: Tensor) -> Tensor:
        return product(found * torch.rsqrt(squares[..., None] / self.cards + 1e-5) * self.norm, self.out)


class MlpSegment(nn.Module):
    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.join, self.mlp = Join(c, device), ColumnsMlp(c, device)

    def forward(self, x: Tensor, reduced: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.join(x, reduced)
        return x, self.mlp(y)


class RouterSegment(nn.Module):
    """The router, and this card's part of the MLP that all tokens share; experts add to the last result."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.join, self.router = Join(c, device), Router(c, device)
        self.shared = Mlp(c, device, c.shared) if c.shared else None

    def forward(self, x: Tensor, reduced: Tensor) -> tuple[Tensor, ...]:
        x, y = self.join(x, reduced)
        return x, y, *self.router(y), torch.zeros_like(y) if self.shared is None else self.shared(y)


class HeadColumns(nn.Module):
    """The scores of this card's part of the vocabulary."""

    def __init__(self, c: ModelConfig, device: str) -> None:
        super().__init__()
        self.join = Join(replace(c, pre_norms=True), device)  # the last norm is always there
        self.table = weight(c.hidden, c.vocab, device=device)

    def forward(self, x: Tensor, reduced: Tensor) -> Tensor:
        return self.join(x, reduced)[1] @ self.table
