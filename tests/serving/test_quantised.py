# SPDX-License-Identifier: Apache-2.0
# make test-serving
"""Checkpoints of 8-bit weights, and weights that become so when they are loaded: against the same codes in fp32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torch_spyre.models.quantised_linear import FORMATS, encoded

PROMPT = [5, 17, 100, 3, 42, *range(60, 120)]
SIZES = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 256, "max_position_embeddings": 512,
}  # fmt: skip
INPUT_SCALE = 0.02  # where it does not depend on the input
CLOSE = 0.25  # of logprobs: a state that is rounded otherwise before it becomes a code may become the next one


class OfCodes(nn.Module):
    """A linear layer of codes in fp32, with inputs as codes."""

    def __init__(self, layer: nn.Linear, dtype: torch.dtype, static: bool) -> None:
        super().__init__()
        self.codes, self.scale = encoded(layer.weight.detach(), dtype)
        self.static = static

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, by_row = x.reshape(-1, x.shape[-1]), torch.tensor(INPUT_SCALE)
        if self.static:
            codes = (rows / by_row).clamp(-448, 448).to(self.codes.dtype)
        else:
            codes, by_row = encoded(rows, self.codes.dtype)
        product = (codes.float() @ self.codes.float().t()) * by_row * self.scale.reshape(1, -1)
        return product.view(*x.shape[:-1], -1)


def saved(folder: Path, name: str, serialized: bool, static: bool = False) -> Any:
    """A Llama in `folder`, with its weights as codes or not; and the model of codes."""
    from safetensors.torch import load_file, save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    for p in model.parameters():
        p.data = (torch.randn_like(p) * 0.08).half().float() if p.dim() > 1 else p.data
    model.half().save_pretrained(folder)
    model.float()
    dtype, _ = FORMATS[name]
    linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"}
    for path, module in linear.items():
        model.set_submodule(path, OfCodes(module, dtype, static))
    if serialized:
        tensors = load_file(folder / "model.safetensors")
        for path in linear:
            codes = model.get_submodule(path)
            tensors |= {f"{path}.weight": codes.codes, f"{path}.weight_scale": codes.scale.view(-1, 1)}
            if static:
                tensors[f"{path}.input_scale"] = torch.tensor([INPUT_SCALE])
        save_file(tensors, folder / "model.safetensors")
        kind = {"num_bits": 8, "type": "float" if name == "fp8" else "int", "symmetric": True}
        group = {
            "targets": ["Linear"],
            "weights": {**kind, "strategy": "channel", "dynamic": False},
            "input_activations": {**kind, "strategy": "tensor" if static else "token", "dynamic": not static},
        }
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = {
            "quant_method": "compressed-tensors",
            "format": "float-quantized" if name == "fp8" else "int-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": ["lm_head"],
        }
        (folder / "config.json").write_text(json.dumps(config))
    return model


def check(folder: Path, reference: Any, close: float, **options: Any) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(folder), skip_tokenizer_init=True, max_model_len=128, max_num_seqs=2, max_num_batched_tokens=16,
        kv_cache_memory_bytes=16 << 20, **options,
    )  # fmt: skip
    sampling = SamplingParams(temperature=0, max_tokens=6, logprobs=3, ignore_eos=True, detokenize=False)
    made = llm.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)[0].outputs[0]
    whole = torch.tensor([[*PROMPT, *made.token_ids]])
    with torch.no_grad():
        exact = torch.log_softmax(reference(whole).logits[0, len(PROMPT) - 1 : -1], -1)
    worst = max(
        abs(row[token].item() - entry.logprob)
        for row, found in zip(exact, made.logprobs, strict=True)
        for token, entry in found.items()
    )
    assert worst < close
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    layer = runner.model.model.layers[0].mlp.down_proj
    assert layer.weight.dtype.itemsize == 1 and layer.weight.device.type == "spyre"
    assert runner.compiled_in_service == 0


@pytest.mark.parametrize("name", ["fp8", pytest.param("int8", marks=pytest.mark.slow)])
def test_a_compressed_checkpoint(name: str, tmp_path: Path) -> None:
    check(tmp_path, saved(tmp_path, name, serialized=True), CLOSE)


@pytest.mark.slow
def test_inputs_with_a_scale_of_the_checkpoint(tmp_path: Path) -> None:
    check(tmp_path, saved(tmp_path, "fp8", serialized=True, static=True), CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp8", "fp8_per_channel"])
def test_weights_become_codes(name: str, tmp_path: Path) -> None:
    # vLLM gives the weights of a whole layer one scale; the reference has one for each feature
    check(tmp_path, saved(tmp_path, "fp8", serialized=False), 2 * CLOSE, quantization=name)
