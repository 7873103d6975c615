# SPDX-License-Identifier: Apache-2.0
# make test-serving SLOW=1
"""Speculative decoding by n-grams of the prompt: the tokens are those of plain decoding."""

from __future__ import annotations

from typing import Any

import pytest

PROMPTS = ["one two three one two three one two three one two", "The capital of France is"]


@pytest.mark.slow
def test_drafts_change_no_token(engine: Any, smollm2: str) -> None:
    from vllm import LLM, SamplingParams

    params = SamplingParams(temperature=0, max_tokens=16)
    plain = [list(o.outputs[0].token_ids) for o in engine.generate(PROMPTS, params, use_tqdm=False)]
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 2}
    limits = {"max_model_len": 128, "max_num_seqs": 2, "max_num_batched_tokens": 16, "kv_cache_memory_bytes": 32 << 20}
    drafting = LLM(smollm2, speculative_config=drafts, disable_log_stats=False, **limits)
    made = [list(o.outputs[0].token_ids) for o in drafting.generate(PROMPTS, params, use_tqdm=False)]
    accepted = {m.name: m for m in drafting.get_metrics()}["vllm:spec_decode_num_accepted_tokens"]
    assert made == plain and accepted.value > 0
