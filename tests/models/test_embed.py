# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_embed.py: MiniLM's sentence vectors on the card are those of fp32 on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch

import torch_spyre
from torch_spyre.models.minilm import Embedder
from torch_spyre.ops import fallbacks

SENTENCES = (Path(__file__).parent / "data/sentences.txt").read_text().splitlines()
# A cosine of two vectors moves by at most twice the distance of one of them to its rounded form,
# which is measured at 3e-3 (a cosine of 1 - 5e-6).
SWAP = 4e-3


def test_vectors_and_ranking_of_fifty_sentences() -> None:
    expected = Embedder("cpu", torch.float32, compile=False)(SENTENCES).double()
    fallbacks.reset()
    found = Embedder()(SENTENCES).double()
    assert not torch_spyre.report(), torch_spyre.report()
    cosine = (found * expected).sum(-1)
    print(f"smallest cosine {cosine.min():.7f}")
    assert len(SENTENCES) == 50 and cosine.min() >= 0.9995
    scores, ours = expected @ expected.T, found @ found.T
    for row in range(50):
        others = [i for i in range(50) if i != row]
        order = sorted(others, key=lambda i: -float(scores[row, i]))
        for place, high in enumerate(order):
            for low in order[place + 1 :]:
                if scores[row, high] - scores[row, low] > SWAP:
                    assert ours[row, high] > ours[row, low], (SENTENCES[row], SENTENCES[high], SENTENCES[low])
        assert max(others, key=lambda i: float(ours[row, i])) == order[0], SENTENCES[row]
