# SPDX-License-Identifier: Apache-2.0
"""The priority models: published figures, the reduced sizes that are run, and random weights.

Decoders of Llama's kind take their figures from `torch_spyre.predict.configs`; the rest stands here. There is no hub:
weights are random, with the spread that keeps activations near one, and values that the card's format has exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from torch_spyre.errors import InvalidArgument
from torch_spyre.numerics.format import round_dl16
from torch_spyre.predict.configs import PUBLISHED

Figures = dict[str, Any]
Inputs = dict[str, Tensor]

SIZES = ("tiny", "real")
WHOLE = "whole"  # a size too, which `streamed.py` walks
_LAYERS = ("num_hidden_layers", "n_layer", "encoder_layers", "decoder_layers")
_DRAWN_AT_ONCE = 1 << 15  # values: few enough for caches, and for PyTorch to start no threads that wait for each other
SEED = 0  # of the weights
TOKENS = 41  # of each of two sequences: no multiple of a stick's 64
_TINY = {"hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 192}
_TINY_GROUPED = {**_TINY, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}


@dataclass(frozen=True)
class Priority:
    """One model. `published` are arguments of its transformers configuration; `tiny` and `real` replace some of them:
    a few layers and a small vocabulary, and for `tiny` a small width."""

    name: str
    config: str
    model: str
    published: Figures
    tiny: Figures
    real: Figures
    inputs: Callable[[Any], Inputs]
    cached: bool = False  # a decoder that also runs prefill and a decode step with a static cache
    router: str = ""  # end of the names of modules that choose experts

    @property
    def layers(self) -> int:
        return layers(self.published)

    def figures(self, size: str, count: int | None = None) -> Figures:
        """Arguments of the configuration that is run. `size`: tiny, real, whole (as published); with `count`, that many
        layers."""
        if size not in (*SIZES, WHOLE):
            raise InvalidArgument(f"size {size!r}: tiny, real or {WHOLE}")
        changed = {"tiny": self.tiny, "real": self.real}.get(size, {})
        return _with_layers({**self.published, **changed}, count)


def _with_layers(figures: Figures, count: int | None) -> Figures:
    if count is None:
        return figures
    changed = {name: count for name in _LAYERS if name in figures}
    kinds = {"layer_types": figures["layer_types"][:count]} if "layer_types" in figures else {}
    return {**figures, **changed, **kinds}


def layers(figures: Any) -> int:
    """Layers of a configuration, or of its arguments; those of the encoder for an encoder-decoder."""
    values = figures if isinstance(figures, dict) else figures.to_dict()
    return int(next(values[k] for k in _LAYERS if k in values))


def _token_ids(vocab: int, rows: int = 2, count: int = TOKENS) -> Tensor:
    return torch.randint(4, vocab, (rows, count), generator=torch.Generator().manual_seed(1))


def _tokens(config: Any) -> Inputs:
    return {"input_ids": _token_ids(config.vocab_size)}


def _padded(config: Any) -> Inputs:
    """An encoder's batch: the second sequence is shorter."""
    mask = torch.ones(2, TOKENS, dtype=torch.int64)
    mask[1, TOKENS - 9 :] = 0
    return {"input_ids": _token_ids(config.vocab_size), "attention_mask": mask}


def _pixels(config: Any) -> Inputs:
    size = (2, config.num_channels, config.image_size, config.image_size)
    return {"pixel_values": round_dl16(torch.randn(size, generator=torch.Generator().manual_seed(1)).half())}


def _speech(config: Any) -> Inputs:
    size = (2, config.num_mel_bins, 2 * config.max_source_positions)
    features = round_dl16(torch.randn(size, generator=torch.Generator().manual_seed(1)).half())
    return {"input_features": features, "decoder_input_ids": _token_ids(config.vocab_size, count=13)}


def _rope(theta: float, **more: Any) -> Figures:
    return {"rope_theta": theta, "rope_type": "default", **more}


def _decoder(
    name: str, config: str, *, tiny: Figures | None = None, real: Figures | None = None, router: str = "", **more: Any
) -> Priority:
    """A decoder of the table of published configurations."""
    c = PUBLISHED[name]
    figures: Figures = {
        "hidden_size": c.hidden,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.intermediate,
        "vocab_size": c.vocab,
        "tie_word_embeddings": c.tied,
        **({"num_local_experts": c.experts, "num_experts_per_tok": c.experts_per_token} if c.experts else {}),
        **({"sliding_window": c.window} if c.window else {}),
        **more,
    }
    heads = {"num_key_value_heads": 4} if c.heads == c.kv_heads else {}
    small = {**_TINY_GROUPED, **heads, "vocab_size": 512, **(tiny or {})}
    large = {"num_hidden_layers": 1, "vocab_size": 4096, **(real or {})}
    lm = f"{config.removesuffix('Text')}ForCausalLM"
    return Priority(name, f"{config}Config", lm, figures, small, large, _tokens, True, router)


_GRANITE_4_KINDS = ["attention" if i % 10 == 5 else "mamba" for i in range(40)]

_DECODERS = (
    _decoder(
        "llama-3.1-8b",
        "Llama",
        rms_norm_eps=1e-5,
        rope_parameters={
            **_rope(500000.0),
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        max_position_embeddings=131072,
    ),
    _decoder(
        "granite-3.3-8b",
        "Granite",
        rms_norm_eps=1e-5,
        rope_parameters=_rope(1e7),
        embedding_multiplier=12.0,
        attention_multiplier=0.0078125,
        residual_multiplier=0.22,
        logits_scaling=16.0,
    ),
    _decoder("mistral-7b", "Mistral", rms_norm_eps=1e-5, rope_parameters=_rope(1e6), sliding_window=None),
    _decoder("qwen-2.5-7b", "Qwen2", rms_norm_eps=1e-6, rope_parameters=_rope(1e6)),
    _decoder("qwen-3-8b", "Qwen3", rms_norm_eps=1e-6, rope_parameters=_rope(1e6)),
    _decoder(
        "phi-3-mini",
        "Phi3",
        rms_norm_eps=1e-5,
        rope_parameters=_rope(10000.0),
        tiny={"pad_token_id": 0},
        real={"pad_token_id": 0},
    ),
    _decoder(
        "gemma-3-1b",
        "Gemma3Text",
        rms_norm_eps=1e-6,
        query_pre_attn_scalar=256,
        hidden_activation="gelu_pytorch_tanh",
        tiny={"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16},
        real={"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16},
    ),
    _decoder(
        "mixtral-8x7b",
        "Mixtral",
        rms_norm_eps=1e-5,
        rope_parameters=_rope(1e6),
        sliding_window=None,
        router="mlp.gate",
        tiny={"num_local_experts": 4},
    ),
)

_OTHERS = (
    Priority(
        "granite-4-h-tiny",
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {
            "hidden_size": 1536,
            "num_hidden_layers": 40,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "intermediate_size": 512,
            "shared_intermediate_size": 1024,
            "num_local_experts": 64,
            "num_experts_per_tok": 6,
            "mamba_n_heads": 48,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_n_groups": 1,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_chunk_size": 256,
            "vocab_size": 100352,
            "tie_word_embeddings": True,
            "position_embedding_type": "nope",
            "attention_multiplier": 0.0078125,
            "embedding_multiplier": 12.0,
            "logits_scaling": 6.0,
            "residual_multiplier": 0.22,
            "rms_norm_eps": 1e-5,
            "layer_types": _GRANITE_4_KINDS,
        },
        {
            **_TINY,
            "num_hidden_layers": 2,
            "layer_types": ["mamba", "attention"],
            "num_key_value_heads": 1,
            "intermediate_size": 64,
            "shared_intermediate_size": 128,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "mamba_n_heads": 4,
            "mamba_d_head": 64,
            "mamba_d_state": 64,
            "mamba_chunk_size": 16,
            "vocab_size": 512,
        },
        {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"], "vocab_size": 4096, "mamba_chunk_size": 32},
        _tokens,
        True,
        "router",
    ),
    Priority(
        "gpt-2",
        "GPT2Config",
        "GPT2LMHeadModel",
        {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
        {"n_embd": 128, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 512},
        {"n_layer": 2, "vocab_size": 4096},
        _tokens,
        True,
    ),
    Priority(
        "gpt-neox-20b",
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        {
            "hidden_size": 6144,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "intermediate_size": 24576,
            "vocab_size": 50432,
            "rope_parameters": {**_rope(10000.0), "partial_rotary_factor": 0.25},
            "use_parallel_residual": True,
        },
        {**_TINY, "vocab_size": 512},
        {"num_hidden_layers": 1, "vocab_size": 4096},
        _tokens,
        True,
    ),
    Priority(
        "olmo-7b",
        "OlmoConfig",
        "OlmoForCausalLM",
        {
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "intermediate_size": 11008,
            "vocab_size": 50304,
            "rope_parameters": _rope(10000.0),
        },
        {**_TINY, "vocab_size": 512},
        {"num_hidden_layers": 1, "vocab_size": 4096},
        _tokens,
        True,
    ),
    Priority(
        "olmo-2-7b",
        "Olmo2Config",
        "Olmo2ForCausalLM",
        {
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "intermediate_size": 11008,
            "vocab_size": 100352,
            "rms_norm_eps": 1e-6,
            "rope_parameters": _rope(500000.0),
        },
        {**_TINY, "vocab_size": 512},
        {"num_hidden_layers": 1, "vocab_size": 4096},
        _tokens,
        True,
    ),
    Priority(
        "bert-base",
        "BertConfig",
        "BertForMaskedLM",
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "vocab_size": 30522,
        },
        {**_TINY, "vocab_size": 512},
        {"num_hidden_layers": 2, "vocab_size": 4096},
        _padded,
    ),
    Priority(
        "roberta-base",
        "RobertaConfig",
        "RobertaForMaskedLM",
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "vocab_size": 50265,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
        },
        {**_TINY, "vocab_size": 512},
        {"num_hidden_layers": 2, "vocab_size": 4096},
        _padded,
    ),
    Priority(
        "modernbert-base",
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        {
            "hidden_size": 768,
            "num_hidden_layers": 22,
            "num_attention_heads": 12,
            "intermediate_size": 1152,
            "vocab_size": 50368,
            "local_attention": 128,
        },
        {
            **_TINY,
            "num_hidden_layers": 2,
            "layer_types": ["full_attention", "sliding_attention"],
            "vocab_size": 512,
            "local_attention": 16,
            "pad_token_id": 0,
        },
        {
            "num_hidden_layers": 2,
            "layer_types": ["full_attention", "sliding_attention"],
            "vocab_size": 4096,
            "local_attention": 16,
            "pad_token_id": 0,
        },
        _padded,
    ),
    Priority(
        "siglip-so400m",
        "SiglipVisionConfig",
        "SiglipVisionModel",
        {
            "hidden_size": 1152,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "intermediate_size": 4304,
            "image_size": 384,
            "patch_size": 14,
        },
        {**_TINY, "image_size": 70, "patch_size": 14},
        {"num_hidden_layers": 1},
        _pixels,
    ),
    Priority(
        "vit-base",
        "ViTConfig",
        "ViTForImageClassification",
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "image_size": 224,
            "patch_size": 16,
            "num_labels": 1000,
        },
        {**_TINY, "image_size": 80, "patch_size": 16, "num_labels": 100},
        {"num_hidden_layers": 2},
        _pixels,
    ),
    Priority(
        "whisper-small",
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {
            "d_model": 768,
            "encoder_layers": 12,
            "decoder_layers": 12,
            "encoder_attention_heads": 12,
            "decoder_attention_heads": 12,
            "encoder_ffn_dim": 3072,
            "decoder_ffn_dim": 3072,
            "vocab_size": 51865,
            "num_mel_bins": 80,
            "max_source_positions": 1500,
        },
        {
            "d_model": 128,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "pad_token_id": 0,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 192,
            "decoder_ffn_dim": 192,
            "vocab_size": 512,
            "max_source_positions": 24,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        {
            "encoder_layers": 1,
            "decoder_layers": 1,
            "vocab_size": 4096,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        _speech,
        True,
    ),
)

PRIORITY: dict[str, Priority] = {p.name: p for p in (*_DECODERS, *_OTHERS)}

# Larger than memory: walked layer by layer only. `predict.configs.UNCONFIRMED` says where its figures come from.
_GRANITE_4_SMALL = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 768,
    "shared_intermediate_size": 1536,
    "num_local_experts": 72,
    "num_experts_per_tok": 10,
    "mamba_n_heads": 128,
    "logits_scaling": 16.0,
}
_GRANITE_4_TINY = PRIORITY["granite-4-h-tiny"]
STREAMED: dict[str, Priority] = {
    **PRIORITY,
    "granite-4-h-small": replace(
        _GRANITE_4_TINY, name="granite-4-h-small", published={**_GRANITE_4_TINY.published, **_GRANITE_4_SMALL}
    ),
}


def find(name: str) -> Priority:
    """A priority model by its name; InvalidArgument lists the names if there is none."""
    try:
        return PRIORITY[name.lower()]
    except KeyError:
        raise InvalidArgument(f"no priority model {name!r}; known are {', '.join(PRIORITY)}") from None


def build(priority: Priority, size: str = "tiny", layers: int | None = None) -> nn.Module:
    """The model in fp32 with random weights that fp16 and the card's format both have. `size`: tiny, real."""
    import transformers

    figures = priority.figures(size)
    if layers is not None:
        figures["num_hidden_layers"] = layers
    config = getattr(transformers, priority.config)(**figures)
    model = getattr(transformers, priority.model)(config).eval()
    randomise(model)
    return model


def randomise(model: nn.Module, seed: int = SEED) -> None:
    """Matrices with variance 1/fan-in, vectors (norms, biases) spread by 0.1 around their initial values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            fan_in = p.numel() / p.shape[0] if p.dim() != 3 else p.shape[-1]
            for part in p.view(-1).split(_DRAWN_AT_ONCE):
                noise = torch.randn(part.shape, generator=generator)
                values = part.add(noise, alpha=0.1) if p.dim() < 2 else noise.mul_(fan_in**-0.5)
                part.copy_(round_dl16(values.half()))


def to_card(model: nn.Module, dtype: torch.dtype = torch.float16) -> nn.Module:
    """Moves a model as `from_pretrained(dtype=…)` would make it: parameters in `dtype`, tables of positions in fp32."""
    for p in model.parameters():
        p.data = p.data.to(dtype)
    return model.to("spyre")
