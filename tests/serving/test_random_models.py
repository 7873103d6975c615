# SPDX-License-Identifier: Apache-2.0
# make test-serving
"""Other decoders than SmolLM2, small and with random weights, against transformers on the CPU in fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

PROMPTS = [[5, 17, 100, 3, 42], [*range(2, 150)], [9] * 70]
COMMON = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama_wide_heads": ("LlamaConfig", {"head_dim": 256}),
    "llama_one_key_head": ("LlamaConfig", {"head_dim": 80, "num_key_value_heads": 1}),
    "bloom": ("BloomConfig", {"n_layer": 3, "n_head": 4}),
    "cohere2": (
        "Cohere2Config",
        {
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "logit_scale": 1.0,
        },
    ),
    "granite": ("GraniteConfig", {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0}),
    "mistral": ("MistralConfig", {"sliding_window": 64}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True},
    ),
    "granitemoe": ("GraniteMoeConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "logits_scaling": 8.0}),
    "opt": ("OPTConfig", {"ffn_dim": 256, "word_embed_proj_dim": 128}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
}
ONE_MORE = ("cohere2",)  # vLLM lets its windows see one key more than transformers does
MIXTURES = ("mixtral", "qwen3_moe", "granitemoe")
IN_SHORT = ("cohere2", "mixtral")


@pytest.mark.parametrize("name", [m if m in IN_SHORT else pytest.param(m, marks=pytest.mark.slow) for m in MODELS])
def test_a_model_of_random_weights(name: str, tmp_path: Path, own_groups: None) -> None:
    import transformers
    from vllm import LLM, SamplingParams

    kind, more = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**COMMON, **more})
    reference = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    window = getattr(config, "sliding_window", None)
    if name in ONE_MORE:
        reference.config.sliding_window = window - 1  # in the folder that vLLM reads
    with torch.no_grad():
        for p in reference.parameters():
            p.copy_(p.half().float() if p.dim() < 2 else (torch.randn_like(p) * 0.08).half().float())
    reference.to(torch.float16).save_pretrained(tmp_path)
    reference.float().config.sliding_window = window
    llm = LLM(
        str(tmp_path), skip_tokenizer_init=True, max_model_len=192, max_num_seqs=2, max_num_batched_tokens=64,
        kv_cache_memory_bytes=16 << 20, seed=0,
    )  # fmt: skip
    sampling = SamplingParams(temperature=0, max_tokens=8, logprobs=5, ignore_eos=True, detokenize=False)
    results = llm.generate([{"prompt_token_ids": p} for p in PROMPTS], sampling, use_tqdm=False)
    apart = []
    for prompt, result in zip(PROMPTS, results, strict=True):
        tokens = result.outputs[0].token_ids
        with torch.no_grad():
            whole = torch.tensor([[*prompt, *tokens]])
            expected = torch.log_softmax(reference(whole).logits[0, len(prompt) - 1 : -1], -1)
        for place, (row, found) in enumerate(zip(expected, result.outputs[0].logprobs, strict=True)):
            worst = max(abs(row[token].item() - entry.logprob) for token, entry in found.items())
            if worst >= 0.04 or row[tokens[place]] < row.max() - 0.04:
                apart.append(f"token {place} behind {len(prompt)}: logprobs differ by {worst:.3f}")
    # Where two experts are as good as each other, rounding chooses: float16 on the CPU parts from fp32 too.
    assert len(apart) <= (4 if name in MIXTURES else 0), apart


def saved(tmp_path: Path, kind: str, architecture: str, **more: Any) -> str:
    import transformers

    config = getattr(transformers, kind)(**{**COMMON, "architectures": [architecture], **more})
    config.save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize(
    "kind, architecture, said",
    [
        ("Gemma3TextConfig", "Gemma3ForCausalLM", r"gemma3_text.*no other format"),
    ],
)
def test_kinds_that_cannot_work_are_refused(kind: str, architecture: str, said: str, tmp_path: Path) -> None:
    from vllm import LLM

    with pytest.raises(Exception, match=said):
        LLM(saved(tmp_path, kind, architecture), skip_tokenizer_init=True)
