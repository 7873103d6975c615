# SPDX-License-Identifier: Apache-2.0
# make test-serving
"""LoRA: requests with different adapters, and with none, in one batch; against weights with the adapter merged in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

PROMPT = [5, 17, 100, 3, 42, *range(60, 90)]
RANK, TOKENS = 4, 6
PARTS = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
SIZES = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 256, "max_position_embeddings": 512,
}  # fmt: skip


def adapter(model: Any, folder: Path, seed: int, scale: float = 2.0) -> None:
    """Writes a random adapter as peft does, and merges it into the model."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for number, layer in enumerate(model.model.layers):
        for part in PARTS:
            weight = layer.get_submodule(part).weight
            a = (torch.randn(RANK, weight.shape[1], generator=generator) * 0.1).half()
            b = (torch.randn(weight.shape[0], RANK, generator=generator) * 0.1).half()
            name = f"base_model.model.model.layers.{number}.{part}"
            tensors |= {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
            weight.data += scale * b.float() @ a.float()
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config: dict[str, Any] = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK * scale}
    config["target_modules"] = sorted({p.rpartition(".")[2] for p in PARTS})
    (folder / "adapter_config.json").write_text(json.dumps({**config, "bias": "none", "task_type": "CAUSAL_LM"}))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A folder with the weights and two adapters, and the three models in fp32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("lora")
    found = []
    for number in range(3):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**SIZES)).half().float().eval()
        for p in model.parameters():
            p.data = (torch.randn_like(p) * 0.08).half().float() if p.dim() > 1 else p.data
        if number:
            adapter(model, folder / f"adapter{number}", number)
        else:
            model.half().save_pretrained(folder)
            model.float()
        found.append(model)
    return folder, found


def test_two_adapters_in_one_batch(models: tuple[Path, list[Any]]) -> None:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    folder, references = models
    llm = LLM(
        str(folder), skip_tokenizer_init=True, max_model_len=128, max_num_seqs=4, max_num_batched_tokens=16,
        kv_cache_memory_bytes=16 << 20, enable_lora=True, max_loras=2, max_lora_rank=8,
    )  # fmt: skip
    requests = [None, *(LoRARequest(f"a{n}", n, str(folder / f"adapter{n}")) for n in (1, 2))]
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, logprobs=3, ignore_eos=True, detokenize=False)

    def made(which: list[int]) -> list[Any]:
        given = [{"prompt_token_ids": PROMPT} for _ in which]
        adapters = [requests[n] for n in which]
        return [o.outputs[0] for o in llm.generate(given, sampling, lora_request=adapters, use_tqdm=False)]

    together = made([1, 0, 2])
    assert len({tuple(o.token_ids) for o in together}) == 3
    for number, output in zip([1, 0, 2], together, strict=True):
        whole = torch.tensor([[*PROMPT, *output.token_ids]])
        with torch.no_grad():
            exact = torch.log_softmax(references[number](whole).logits[0, len(PROMPT) - 1 : -1], -1)
        for row, found in zip(exact, output.logprobs, strict=True):
            assert max(abs(row[token].item() - entry.logprob) for token, entry in found.items()) < 0.04
    for number, output in zip([2, 0, 1], [together[2], together[1], together[0]], strict=True):
        assert made([number])[0].logprobs == output.logprobs
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    assert runner.compiled_in_service == 0
