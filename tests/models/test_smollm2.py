# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_smollm2.py: SmolLM2 writes on the card what it writes in fp32 on the CPU.

Both sides use the same dequantised weights. Where the texts part, the step is examined: the two tokens must be a near
tie in fp32, closer to each other than the card's logits of that step are to the fp32 ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import torch_spyre
from torch_spyre.models.blocks import compile_blocks
from torch_spyre.models.checkpoint import load
from torch_spyre.models.smollm2 import checkpoint
from torch_spyre.ops import fallbacks

PROMPTS = (Path(__file__).parent / "data/prompts.txt").read_text().splitlines()
TOKENS = 32
# Logits of this model span about 40; DL16 keeps 10 bits of each hidden value, so a logit is off by a few hundredths.
MOST_ERROR = 0.5


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any, Any]:
    folder = checkpoint()
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    reference = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return tokenizer, reference, compile_blocks(load(folder))


def _ids(tokenizer: Any, prompt: str) -> torch.Tensor:
    messages = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)[
        "input_ids"
    ]


def _write(model: Any, ids: torch.Tensor, cache: Any) -> Any:
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        past_key_values=cache,
        max_new_tokens=TOKENS,
        min_new_tokens=TOKENS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )


def _agree(models: tuple[Any, Any, Any], prompt: str) -> bool:
    """Whether the texts are equal. If not, the first token that differs was a near tie."""
    tokenizer, reference, card = models
    ids = _ids(tokenizer, prompt)
    with torch.no_grad():
        expected = _write(reference, ids, transformers.DynamicCache(config=reference.config))
        found = _write(card, ids, transformers.StaticCache(config=card.config, max_cache_len=128))
    theirs, ours = expected.sequences[0, ids.shape[1] :], found.sequences[0, ids.shape[1] :]
    assert len(ours) == len(theirs) == TOKENS
    differs = (theirs != ours).nonzero()
    last = int(differs[0]) if len(differs) else TOKENS - 1
    for step in range(last + 1):  # up to there both saw the same text
        error = (found.logits[step][0].float() - expected.logits[step][0]).abs().max()
        assert error < MOST_ERROR, (prompt, step, float(error))
    if not len(differs):
        return True
    logits = expected.logits[last][0]
    gap, error = logits[theirs[last]] - logits[ours[last]], (found.logits[last][0].float() - logits).abs().max()
    print(f"{prompt!r} parts at token {last}: gap {gap:.4f} in fp32, error of the card {error:.4f}")
    assert 0 <= gap <= error, prompt
    return False


def test_three_prompts(models: tuple[Any, Any, Any]) -> None:
    fallbacks.reset()
    agreed = [_agree(models, prompt) for prompt in PROMPTS[:3]]
    assert sum(agreed) >= 2, agreed
    assert not torch_spyre.report(), torch_spyre.report()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_prompts(models: tuple[Any, Any, Any]) -> None:
    agreed = [_agree(models, prompt) for prompt in PROMPTS]
    assert len(agreed) == 10 and sum(agreed) >= 8, agreed
