# SPDX-License-Identifier: Apache-2.0
"""Where the figures of the priority models come from, and what vouches for them without a hub.

A figure is the default of transformers' own configuration class, or another package states it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_spyre.numerics.priority import Priority


@dataclass(frozen=True)
class Source:
    checkpoint: str  # whose config.json
    stated_by: str = ""  # a package with the same figures, and what it lacks


_LITGPT, _TIMM = "litgpt 0.5.13", "timm 1.0.30"

SOURCES: dict[str, Source] = {
    "llama-3.1-8b": Source("meta-llama/Llama-3.1-8B", _LITGPT),
    "granite-3.3-8b": Source(
        "ibm-granite/granite-3.3-8b-instruct",
        "ibm-fms 1.13.1 (Granite 3.0: vocabulary 49155, rotary base 10000)",
    ),
    "mistral-7b": Source("mistralai/Mistral-7B-v0.3", _LITGPT),
    "qwen-2.5-7b": Source("Qwen/Qwen2.5-7B", _LITGPT),
    "qwen-3-8b": Source("Qwen/Qwen3-8B", _LITGPT),
    "phi-3-mini": Source("microsoft/Phi-3-mini-4k-instruct", _LITGPT),
    "gemma-3-1b": Source("google/gemma-3-1b-it", _LITGPT),
    "mixtral-8x7b": Source("mistralai/Mixtral-8x7B-v0.1", _LITGPT),
    "granite-4-h-tiny": Source("ibm-granite/granite-4.0-h-tiny"),
    "gpt-2": Source("openai-community/gpt2"),
    "gpt-neox-20b": Source("EleutherAI/gpt-neox-20b"),
    "olmo-7b": Source("allenai/OLMo-7B-hf", _LITGPT),
    "olmo-2-7b": Source("allenai/OLMo-2-1124-7B", _LITGPT),
    "bert-base": Source("google-bert/bert-base-uncased"),
    "roberta-base": Source("FacebookAI/roberta-base"),
    "modernbert-base": Source("answerdotai/ModernBERT-base"),
    "siglip-so400m": Source("google/siglip-so400m-patch14-384", _TIMM),
    "vit-base": Source("google/vit-base-patch16-224", _TIMM),
    "whisper-small": Source("openai/whisper-small"),
}

# Names of the figures that matter to shapes, as the table shows them.
SHOWN = {
    "hidden_size": "width", "n_embd": "width", "d_model": "width",
    "num_hidden_layers": "layers", "n_layer": "layers", "encoder_layers": "layers", "decoder_layers": "layers",
    "num_attention_heads": "heads", "n_head": "heads", "encoder_attention_heads": "heads",
    "num_key_value_heads": "KV heads", "head_dim": "head", "intermediate_size": "MLP", "encoder_ffn_dim": "MLP",
    "num_local_experts": "experts", "num_experts_per_tok": "chosen", "mamba_n_heads": "Mamba heads",
    "mamba_d_state": "state", "vocab_size": "vocabulary", "image_size": "image", "patch_size": "patch",
    "max_source_positions": "source positions", "sliding_window": "window", "local_attention": "window",
    "mamba_chunk_size": "chunk",
}  # fmt: skip


def other_than_default(model: Priority) -> dict[str, Any]:
    """The published figures that transformers' configuration class does not have by itself."""
    import transformers

    figures = model.published
    config = getattr(transformers, model.config)
    plain, whole = config(), config(**figures)
    found = {}
    for name, value in figures.items():
        default = getattr(plain, name, None)
        if name == "head_dim" and default is None:  # then it is the width of one head
            default = whole.hidden_size // whole.num_attention_heads
        if not _agree(default, value):
            found[name] = value
    return found


def _agree(default: Any, value: Any) -> bool:
    if isinstance(default, dict) and isinstance(value, dict):  # the rotary parameters may leave neutral ones out
        return all(default.get(k) == v for k, v in value.items())
    return bool(default == value)


def parameters(model: Priority) -> int:
    """Of the whole model, tied ones once; made without memory."""
    import torch
    import transformers

    with torch.device("meta"):
        config = getattr(transformers, model.config)(**model.published)
        whole = getattr(transformers, model.model)(config)
    return sum(p.numel() for p in whole.parameters())


def described(model: Priority) -> str:
    """One line: checkpoint, parameters, what else says so."""
    source, own = SOURCES[model.name], other_than_default(model)
    shown = list(dict.fromkeys(SHOWN.get(name, name.replace("_", " ")) for name in own))
    defaults = f"defaults of {model.config}" + (f" but for {', '.join(shown)}" if shown else "")
    return " | ".join((source.checkpoint, f"{parameters(model):,}", defaults, source.stated_by or "–"))
