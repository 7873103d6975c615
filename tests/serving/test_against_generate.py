# SPDX-License-Identifier: Apache-2.0
# make test-serving
"""Greedy tokens of the engine are those of `generate()` on the card, up to a near tie."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

PROMPTS = (Path(__file__).parent / "prompts.txt").read_text().splitlines()
TOKENS = 32
_TIE = 2  # units in the last place between the two best logits


def near_tie(logits: Any) -> bool:
    """Whether the two best of a step are too close for another order of sums."""
    best, second = logits.float().topk(2).values.tolist()
    return best - second <= _TIE * 2.0 ** (math.floor(math.log2(abs(best))) - 9)


def check(prompts: list[str], made: list[list[int]], folder: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from torch_spyre.models.blocks import compile_blocks

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = compile_blocks(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).to("spyre"))
    options = {"max_new_tokens": TOKENS, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    for prompt, tokens in zip(prompts, made, strict=True):
        given = tokenizer(prompt, return_tensors="pt").to("spyre")
        wanted = model.generate(**given, **options)
        exact = wanted.sequences[0, given.input_ids.shape[1] :].tolist()
        parted = next((n for n, (a, b) in enumerate(zip(exact, tokens, strict=False)) if a != b), None)
        if parted is None:
            assert len(exact) == len(tokens), prompt
        else:
            assert near_tie(wanted.logits[parted][0].cpu()), f"{prompt!r} parts at token {parted}"


@pytest.mark.slow
def test_twenty_prompts(engine: Any, smollm2: str) -> None:
    from vllm import SamplingParams

    outputs = engine.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=TOKENS), use_tqdm=False)
    check(PROMPTS, [list(o.outputs[0].token_ids) for o in outputs], smollm2)
