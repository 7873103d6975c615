# SPDX-License-Identifier: Apache-2.0
# make test-serving
"""What the engine says about prompts, against `generate()` of transformers on the card."""

from __future__ import annotations

from typing import Any

import pytest

PROMPTS = ["The capital of France is", "Once upon a time", "def fibonacci(n):"]


@pytest.fixture(scope="module")
def texts(smollm2: str) -> list[list[int]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    made = []
    for prompt in PROMPTS:
        given = tokenizer(prompt, return_tensors="pt")
        made.append(model.generate(**given, max_new_tokens=12, do_sample=False)[0, given.input_ids.shape[1] :].tolist())
    return made


def test_greedy_tokens_are_those_of_the_model_in_fp32(engine: Any, texts: list[list[int]]) -> None:
    from vllm import SamplingParams

    outputs = engine.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    assert [list(o.outputs[0].token_ids) for o in outputs] == texts


def test_nothing_ran_on_the_host(engine: Any) -> None:
    import torch_spyre

    assert torch_spyre.report().fallbacks == ()
