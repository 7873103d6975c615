# SPDX-License-Identifier: Apache-2.0
"""make test-ecosystem: sentence-transformers with the real weights of all-MiniLM-L6-v2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from losses import assert_same_fp32, losses, training_arguments
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from torch_spyre.models import minilm

SENTENCES = ["A man is eating food.", "Somebody eats.", "The card has 32 cores.", "Rings join the cores of the card."]


def model(device: str | None = None, layers: int | None = None) -> Any:
    transformer = Transformer(str(minilm.checkpoint()))
    if layers is not None:
        encoder = transformer.auto_model.encoder
        encoder.layer = encoder.layer[:layers]
    pooling = Pooling(transformer.get_embedding_dimension())
    return SentenceTransformer(modules=[transformer, pooling, Normalize()], device=device)


def test_embeddings(host_ops: set[str]) -> None:
    found = model()
    assert found.device.type == "spyre"
    on_card = found.encode(SENTENCES, convert_to_tensor=True)
    assert on_card.device.type == "spyre"
    on_cpu = model("cpu").encode(SENTENCES, convert_to_tensor=True)
    assert_same_fp32(on_card, on_cpu)
    near = found.similarity(on_card, on_card).cpu()
    assert near[0, 1] > near[0, 2] and near[2, 3] > near[2, 0]


def test_training(tmp_path: Path, host_ops: set[str]) -> None:
    import datasets
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    pairs = {"anchor": SENTENCES * 5, "positive": [s.upper() for s in SENTENCES] * 5}
    results = []
    for cpu in (True, False):
        torch.manual_seed(0)
        net = model("cpu" if cpu else None, layers=1)
        for part in net.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0  # the card's random numbers are its own
        arguments = training_arguments(tmp_path, SentenceTransformerTrainingArguments, use_cpu=cpu)
        data = datasets.Dataset.from_dict(pairs)
        loss = MultipleNegativesRankingLoss(net)
        results.append(losses(SentenceTransformerTrainer(net, arguments, train_dataset=data, loss=loss)))
    assert_same_fp32(results[1], results[0])
