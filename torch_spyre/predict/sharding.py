# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism: the share of a model that one of several cards holds.

Columns of what enters attention, a Mamba layer or an MLP, rows of what leaves it, so that a card computes its own heads
and its own part of the MLP or of every expert; rows of the embedding and columns of the head. Norms, routers, and the B
and C that all Mamba heads share are on every card.
"""

from __future__ import annotations

from dataclasses import replace

from torch_spyre.errors import InvalidArgument
from torch_spyre.predict.dimensions import Mamba, ModelConfig

MAX_CARDS = 16  # that PCIe switches connect


def shard(c: ModelConfig, cards: int) -> ModelConfig:
    """What one card has, as a model with fewer heads and narrower MLPs. Vocabularies are padded."""
    if not 1 <= cards <= MAX_CARDS:
        raise InvalidArgument(f"{cards} cards: predictions are for 1 to {MAX_CARDS}")
    wrong = _undivided(c, cards)
    if wrong:
        possible = ", ".join(str(n) for n in counts(c))
        raise InvalidArgument(
            f"{c.name} on {cards} cards: {wrong} do not divide by {cards}; {possible} cards are possible"
        )
    return replace(
        c,
        heads=c.heads // cards,
        kv_heads=c.kv_heads // cards,
        intermediate=c.intermediate // cards,
        shared=c.shared // cards,
        vocab=-(-c.vocab // cards),
        mamba=_mamba(c.mamba, cards) if c.mamba else None,
    )


def counts(c: ModelConfig) -> list[int]:
    """Numbers of cards that the model can be divided by."""
    return [n for n in range(1, MAX_CARDS + 1) if not _undivided(c, n)]


def _undivided(c: ModelConfig, cards: int) -> str:
    """What of a model cannot be shared evenly."""
    sizes = {
        "heads": c.heads,
        "KV heads": c.kv_heads,
        "columns of an expert" if c.experts else "columns of the MLP": c.intermediate,
        "columns of the shared MLP": c.shared,
    }
    if c.mamba:
        sizes["Mamba heads"] = c.mamba.heads
        sizes["Mamba groups"] = c.mamba.groups if c.mamba.groups > 1 else 0
    return ", ".join(f"{size} {name}" for name, size in sizes.items() if size % cards)


def _mamba(m: Mamba, cards: int) -> Mamba:
    return replace(m, heads=m.heads // cards, groups=max(1, m.groups // cards))
