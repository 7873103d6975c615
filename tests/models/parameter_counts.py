# SPDX-License-Identifier: Apache-2.0
"""How many parameters a model of given figures has, by the sizes of its tables, matrices, norms and biases.

Written from the descriptions of the architectures; nothing here asks transformers or the code under test. Figures that
a model's publishers fixed and our table leaves to transformers (positions of BERT, for instance) stand here as numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

Figures = dict[str, Any]


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


def layer_norm(width: int) -> int:
    return 2 * width  # weight and bias


def mlp(width: int, inner: int, bias: bool = True) -> int:
    return linear(width, inner, bias) + linear(inner, width, bias)


def gated_mlp(width: int, inner: int) -> int:
    return 3 * width * inner  # gate, up, down; no biases


def decoder(f: Figures, *, qkv_bias: bool = False, head_norms: bool = False, norms: int = 2) -> int:
    """Llama and its relatives: RMS norms with a weight only, grouped-query attention, gated MLP or experts."""
    width, head = f["hidden_size"], f["head_dim"]
    queries, keys = f["num_attention_heads"] * head, f["num_key_value_heads"] * head
    attention = linear(width, queries, qkv_bias) + 2 * linear(width, keys, qkv_bias) + queries * width
    attention += 2 * head if head_norms else 0
    experts = f.get("num_local_experts", 0)
    inside = gated_mlp(width, f["intermediate_size"]) * max(1, experts) + width * experts  # the last: the router
    tables = f["vocab_size"] * width * (1 if f["tie_word_embeddings"] else 2)
    return tables + f["num_hidden_layers"] * (attention + inside + norms * width) + width


def granite_4(f: Figures) -> int:
    width, inner = f["hidden_size"], f["mamba_n_heads"] * f["mamba_d_head"]
    channels = inner + 2 * f["mamba_n_groups"] * f["mamba_d_state"]  # what the convolution sees: x, B and C
    mamba = width * (inner + channels + f["mamba_n_heads"])  # gate, convolved channels, time steps
    mamba += channels * f["mamba_d_conv"] + channels  # the convolution and its bias
    mamba += 3 * f["mamba_n_heads"] + inner + inner * width  # A, D, bias of the time steps; norm; back
    head = width // f["num_attention_heads"]
    attention = 2 * width * width + 2 * width * f["num_key_value_heads"] * head
    experts = f["num_local_experts"]
    inside = experts * gated_mlp(width, f["intermediate_size"]) + width * experts
    inside += gated_mlp(width, f["shared_intermediate_size"])
    mixers = sum(mamba if kind == "mamba" else attention for kind in f["layer_types"])
    layers = f["num_hidden_layers"]
    return f["vocab_size"] * width + mixers + layers * (inside + 2 * width) + width


def gpt_2(f: Figures) -> int:
    width = f["n_embd"]
    layer = linear(width, 3 * width) + linear(width, width) + mlp(width, 4 * width) + 2 * layer_norm(width)
    return (f["vocab_size"] + f["n_positions"]) * width + f["n_layer"] * layer + layer_norm(width)


def gpt_neox(f: Figures) -> int:
    width = f["hidden_size"]
    layer = linear(width, 3 * width) + linear(width, width) + mlp(width, f["intermediate_size"])
    return 2 * f["vocab_size"] * width + f["num_hidden_layers"] * (layer + 2 * layer_norm(width)) + layer_norm(width)


def olmo(f: Figures, norms: int, last: int) -> int:
    """Full attention without biases; `norms`: vectors of a layer, `last`: of the end. The first OLMo has none."""
    width = f["hidden_size"]
    layer = 4 * width * width + gated_mlp(width, f["intermediate_size"]) + norms * width
    return 2 * f["vocab_size"] * width + f["num_hidden_layers"] * layer + last * width


def encoder_layer(width: int, inner: int) -> int:
    return 4 * linear(width, width) + mlp(width, inner) + 2 * layer_norm(width)


def bert(f: Figures, positions: int = 512, kinds: int = 2) -> int:
    """With the head that predicts masked words: a dense layer, a norm, the embedding again, and a bias per word."""
    width = f["hidden_size"]
    tables = (f["vocab_size"] + positions + kinds) * width + layer_norm(width)
    head = linear(width, width) + layer_norm(width) + f["vocab_size"]
    return tables + f["num_hidden_layers"] * encoder_layer(width, f["intermediate_size"]) + head


def roberta(f: Figures) -> int:
    return bert(f, f["max_position_embeddings"], f["type_vocab_size"])


def modern_bert(f: Figures) -> int:
    """No biases but those of the words; the first layer has no norm in front of its attention."""
    width, layers = f["hidden_size"], f["num_hidden_layers"]
    layer = 4 * width * width + gated_mlp(width, f["intermediate_size"]) + 2 * width
    tables = f["vocab_size"] * width + width
    return tables + layers * layer - width + width + (width * width + width + f["vocab_size"])


def patches(f: Figures) -> int:
    return int((f["image_size"] // f["patch_size"]) ** 2)


def siglip(f: Figures) -> int:
    """Ends in a pooling head: a learned query, attention, a norm and an MLP."""
    width, inner = f["hidden_size"], f["intermediate_size"]
    tables = linear(3 * f["patch_size"] ** 2, width) + patches(f) * width
    head = width + 4 * linear(width, width) + layer_norm(width) + mlp(width, inner)
    return tables + f["num_hidden_layers"] * encoder_layer(width, inner) + layer_norm(width) + head


def vit(f: Figures) -> int:
    width = f["hidden_size"]
    tables = linear(3 * f["patch_size"] ** 2, width) + (patches(f) + 2) * width  # the class token, and its position
    layers = f["num_hidden_layers"] * encoder_layer(width, f["intermediate_size"])
    return tables + layers + layer_norm(width) + linear(width, f["num_labels"])


def whisper(f: Figures, text_positions: int = 448) -> int:
    """Keys have no bias; sound passes two convolutions of three steps; positions of both sides are tables."""
    width = f["d_model"]
    attention = 3 * linear(width, width) + linear(width, width, bias=False)
    sound = linear(3 * f["num_mel_bins"], width) + linear(3 * width, width) + f["max_source_positions"] * width
    encoder = attention + mlp(width, f["encoder_ffn_dim"]) + 2 * layer_norm(width)
    decoder = 2 * attention + mlp(width, f["decoder_ffn_dim"]) + 3 * layer_norm(width)
    text = (f["vocab_size"] + text_positions) * width
    ends = 2 * layer_norm(width)
    return sound + text + f["encoder_layers"] * encoder + f["decoder_layers"] * decoder + ends


FORMULAS: dict[str, Callable[[Figures], int]] = {
    "llama-3.1-8b": decoder,
    "granite-3.3-8b": decoder,
    "mistral-7b": decoder,
    "qwen-2.5-7b": partial(decoder, qkv_bias=True),
    "qwen-3-8b": partial(decoder, head_norms=True),
    "phi-3-mini": decoder,
    "gemma-3-1b": partial(decoder, head_norms=True, norms=4),
    "mixtral-8x7b": decoder,
    "granite-4-h-tiny": granite_4,
    "gpt-2": gpt_2,
    "gpt-neox-20b": gpt_neox,
    "olmo-7b": partial(olmo, norms=0, last=0),
    "olmo-2-7b": partial(olmo, norms=4, last=1),
    "bert-base": bert,
    "roberta-base": roberta,
    "modernbert-base": modern_bert,
    "siglip-so400m": siglip,
    "vit-base": vit,
    "whisper-small": whisper,
}
