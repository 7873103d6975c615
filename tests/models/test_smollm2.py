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


def _agree(models: tuple[Any, Any, Any], prompt: str) -> bool:
    """Whether both write the same TOKENS tokens. If not, the first one that differs was a near tie.

    One pass of the reference over the card's text gives the token that it would have written at each place; up to the
    first other one, that is its own greedy text.
    """
    tokenizer, reference, card = models
    ids = _ids(tokenizer, prompt)
    length = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS}  # the end of the text is no token to choose
    made = card.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        past_key_values=transformers.StaticCache(config=card.config, max_cache_len=128),
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        **length,
    )
    ours, found = made.sequences[0, ids.shape[1] :], torch.stack([x[0].float() for x in made.logits])
    assert len(ours) == TOKENS
    with torch.no_grad():
        expected = reference(made.sequences).logits[0, ids.shape[1] - 1 : -1]
    errors = (found - expected).abs().amax(-1)
    assert errors.max() < MOST_ERROR, (prompt, errors)
    expected[:, tokenizer.eos_token_id] = -torch.inf
    theirs = expected.argmax(-1)
    differs = (theirs != ours).nonzero()
    if not len(differs):
        return True
    step = int(differs[0])
    gap = expected[step, theirs[step]] - expected[step, ours[step]]
    print(f"{prompt!r} parts at token {step}: gap {gap:.4f} in fp32, error of the card {errors[step]:.4f}")
    assert 0 <= gap <= errors[step], prompt
    return False


def test_ten_prompts(models: tuple[Any, Any, Any]) -> None:
    fallbacks.reset()
    agreed = [_agree(models, prompt) for prompt in PROMPTS]
    print(f"{sum(agreed)} of {len(agreed)} texts are equal")
    assert len(agreed) == 10 and sum(agreed) >= 8, agreed
    assert not torch_spyre.report(), torch_spyre.report()
