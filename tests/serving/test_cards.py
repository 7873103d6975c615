# SPDX-License-Identifier: Apache-2.0
# make test-serving
"""Tensor parallelism: vLLM's executor starts a process for each card, and layers are shared between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

PROMPTS = [[5, 17, 100, 3, 42], [*range(60, 160)]]
SIZES = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 256, "max_position_embeddings": 512,
}  # fmt: skip


def numbers(worker: Any) -> dict[str, int]:
    return dict(worker.model_runner.numbers())


def test_a_random_llama_on_two_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from vllm import LLM, SamplingParams

    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # to ask workers by a function
    torch.manual_seed(0)
    reference = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    for p in reference.parameters():
        p.data = (torch.randn_like(p) * 0.08).half().float() if p.dim() > 1 else p.data
    reference.half().save_pretrained(tmp_path)
    reference.float()
    llm = LLM(
        str(tmp_path), skip_tokenizer_init=True, max_model_len=192, max_num_seqs=2, max_num_batched_tokens=16,
        kv_cache_memory_bytes=16 << 20, tensor_parallel_size=2,
    )  # fmt: skip
    sampling = SamplingParams(temperature=0, max_tokens=6, logprobs=3, ignore_eos=True, detokenize=False)

    def made(prompts: list[list[int]]) -> list[Any]:
        given = [{"prompt_token_ids": p} for p in prompts]
        return [o.outputs[0] for o in llm.generate(given, sampling, use_tqdm=False)]

    together = made(PROMPTS)
    for prompt, output in zip(PROMPTS, together, strict=True):
        with torch.no_grad():
            whole = torch.tensor([[*prompt, *output.token_ids]])
            exact = torch.log_softmax(reference(whole).logits[0, len(prompt) - 1 : -1], -1)
        for row, found in zip(exact, output.logprobs, strict=True):
            assert max(abs(row[token].item() - entry.logprob) for token, entry in found.items()) < 0.04
    assert [made([p])[0].logprobs for p in PROMPTS] == [output.logprobs for output in together]
    counts = llm.collective_rpc(numbers)
    assert len(counts) == 2 and counts[0]["steps"] == counts[1]["steps"] > 0
    assert all(c["compiles"] == 0 for c in counts)
    llm.llm_engine.engine_core.shutdown()


@pytest.mark.slow
def test_smollm2_on_three_cards(engine: Any, smollm2: str) -> None:
    from vllm import LLM, SamplingParams

    prompts = ["The capital of France is", "Once upon a time"]
    sampling = SamplingParams(temperature=0, max_tokens=8)
    alone = [o.outputs[0].token_ids for o in engine.generate(prompts, sampling, use_tqdm=False)]
    llm = LLM(
        smollm2, max_model_len=128, max_num_seqs=2, max_num_batched_tokens=16, kv_cache_memory_bytes=32 << 20,
        tensor_parallel_size=3,
    )  # fmt: skip
    assert [o.outputs[0].token_ids for o in llm.generate(prompts, sampling, use_tqdm=False)] == alone
    llm.llm_engine.engine_core.shutdown()
