# SPDX-License-Identifier: Apache-2.0
# make test-serving SLOW=1
"""Speculative decoding by a second model: the tokens are those of plain decoding, whatever the second one proposes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

PROMPTS = [[5, 17, 100, 3, 42], [*range(60, 140)]]
SIZES = {
    "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": 256, "max_position_embeddings": 512,
}  # fmt: skip
LIMITS = {
    "skip_tokenizer_init": True, "max_model_len": 128, "max_num_seqs": 2, "max_num_batched_tokens": 32,
    "kv_cache_memory_bytes": 16 << 20, "seed": 0,
}  # fmt: skip


def saved(folder: Path, layers: int) -> str:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(layers)
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **SIZES))
    for p in model.parameters():
        p.data = torch.randn_like(p) * 0.08 if p.dim() > 1 else p.data
    model.half().save_pretrained(folder)
    return str(folder)


def tokens(llm: Any) -> list[list[int]]:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    given = [{"prompt_token_ids": p} for p in PROMPTS]
    return [list(o.outputs[0].token_ids) for o in llm.generate(given, params, use_tqdm=False)]


@pytest.mark.slow
@pytest.mark.parametrize("same", [True, False])
def test_drafts_change_no_token(same: bool, tmp_path: Path) -> None:
    from vllm import LLM

    target, other = saved(tmp_path / "target", 3), saved(tmp_path / "other", 2)
    plain = tokens(LLM(target, **LIMITS))
    drafts = {"model": target if same else other, "num_speculative_tokens": 3, "method": "draft_model"}
    llm = LLM(target, speculative_config=drafts, disable_log_stats=False, **LIMITS)
    assert tokens(llm) == plain
    found = {
        m.name: m.value for m in llm.get_metrics() if m.name.startswith("vllm:spec_decode_num_") and hasattr(m, "value")
    }
    proposed, accepted = (found[f"vllm:spec_decode_num_{what}_tokens"] for what in ("draft", "accepted"))
    assert proposed > 0
    if same:  # the same bits, so every proposal is right
        assert accepted == pytest.approx(proposed, rel=0.2)
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    assert len(runner.models) == 2 and runner.compiled_in_service == 0
