# SPDX-License-Identifier: Apache-2.0
# make test-serving
"""Encoders: embeddings, classification, rerank; attention over a batch of whole sentences, without a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

LIMITS = {"runner": "pooling", "max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 128, "seed": 0}
SENTENCES = ["The cat sits outside.", "word " * 70, "A man is playing a guitar.", "x", "I love pasta. " * 25]


def nothing_compiled(llm: Any) -> bool:
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    return bool(runner.serving and runner.compiled_in_service == 0)


@pytest.fixture(scope="module")
def minilm() -> str:
    from torch_spyre.models.minilm import checkpoint

    return str(checkpoint())


def test_embeddings_are_those_of_fp32(minilm: str) -> None:
    from transformers import AutoModel, AutoTokenizer
    from vllm import LLM

    llm = LLM(minilm, **LIMITS)
    found = [torch.tensor(o.outputs.embedding) for o in llm.embed(SENTENCES, use_tqdm=False)]
    model, tokenizer = AutoModel.from_pretrained(minilm, dtype=torch.float32), AutoTokenizer.from_pretrained(minilm)
    for sentence, embedding in zip(SENTENCES, found, strict=True):
        with torch.no_grad():
            exact = model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state[0].mean(0)
        assert torch.cosine_similarity(embedding, exact, 0) > 0.9999
    alone = [torch.tensor(llm.embed([s], use_tqdm=False)[0].outputs.embedding) for s in SENTENCES]
    assert all(torch.equal(a, b) for a, b in zip(alone, found, strict=True))
    assert nothing_compiled(llm)


def encoder(folder: Path, minilm: str, labels: int) -> Any:
    """A small encoder of random weights with a head, in `folder`; it comes back in fp32."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(minilm)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=512, num_labels=labels, **sizes)
    model = BertForSequenceClassification(config).half()
    model.save_pretrained(folder)
    return model.float().eval(), tokenizer


def test_pairs_are_scored(minilm: str, tmp_path: Path) -> None:
    from vllm import LLM

    model, tokenizer = encoder(tmp_path, minilm, labels=1)
    llm = LLM(str(tmp_path), **{**LIMITS, "max_model_len": 64, "max_num_batched_tokens": 64})
    question = "What is the capital of France?"
    sentences = [s for s in SENTENCES if len(s) < 100]
    scores = [o.outputs.score for o in llm.score(question, sentences, use_tqdm=False)]
    with torch.no_grad():
        exact = [model(**tokenizer(question, s, return_tensors="pt")).logits.sigmoid().item() for s in sentences]
    assert len({*scores}) > 1
    assert max(abs(a - b) for a, b in zip(scores, exact, strict=True)) < 2.0**-9
    assert nothing_compiled(llm)


@pytest.mark.slow
def test_sentences_are_classified(minilm: str, tmp_path: Path) -> None:
    from vllm import LLM

    model, tokenizer = encoder(tmp_path, minilm, labels=3)
    llm = LLM(str(tmp_path), **LIMITS)
    found = torch.tensor([o.outputs.probs for o in llm.classify(SENTENCES, use_tqdm=False)])
    with torch.no_grad():
        exact = torch.cat([model(**tokenizer(s, return_tensors="pt")).logits for s in SENTENCES]).softmax(-1)
    assert (found - exact).abs().max() < 2.0**-9
    assert nothing_compiled(llm)
