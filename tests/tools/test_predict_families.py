# SPDX-License-Identifier: Apache-2.0
"""pytest -q tests/tools/test_predict_families.py

The blocks that predictions time, put together, are the models of transformers: same scores in float64. Their
dimensions come from the config.json that transformers writes.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from torch_spyre.errors import InvalidArgument
from torch_spyre.numerics.priority import PRIORITY
from torch_spyre.predict import configs, model
from torch_spyre.predict.configs import PUBLISHED
from torch_spyre.predict.decoder_parts import Dense, Embedding, Head
from torch_spyre.predict.dimensions import ModelConfig
from torch_spyre.predict.passes import Request, passes

TOKENS = 9
SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 192}
SIZES |= {"vocab_size": 500}
GROUPED = {**SIZES, "num_key_value_heads": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**GROUPED, "rms_norm_eps": 1e-5}),
    "olmo": ("Olmo", {**SIZES, "pad_token_id": 0}),
    "olmo2": ("Olmo2", {**SIZES, "rms_norm_eps": 1e-5, "pad_token_id": 0}),
    "gpt_neox": ("GPTNeoX", {**SIZES, "hidden_act": "gelu_new", "rotary_pct": 0.25}),
    "gpt_neox in turn": ("GPTNeoX", {**SIZES, "hidden_act": "gelu_new", "use_parallel_residual": False}),
    "gpt2": ("GPT2", {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 500}),
}
# ours -> theirs, of a layer; matrices of theirs are (out, in)
LLAMA = {f"attention.{x}": f"self_attn.{x}_proj.weight" for x in "qkvo"}
LLAMA |= {f"mlp.{x}": f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")}
OLMO2 = {"attention.q_norm.weight": "self_attn.q_norm.weight", "attention.k_norm.weight": "self_attn.k_norm.weight"}
OLMO2 |= {"norms.2.weight": "post_attention_layernorm.weight", "norms.3.weight": "post_feedforward_layernorm.weight"}
BEFORE = {"norms.0.": "input_layernorm.", "norms.1.": "post_attention_layernorm."}
WEIGHTS = {f"{ours}weight": f"{theirs}weight" for ours, theirs in BEFORE.items()}
BOTH = WEIGHTS | {f"{ours}bias": f"{theirs}bias" for ours, theirs in BEFORE.items()}
NEOX = {"attention.o": "attention.dense.weight", "attention.o_bias": "attention.dense.bias", **BOTH}
NEOX |= {"mlp.up": "mlp.dense_h_to_4h.weight", "mlp.up_bias": "mlp.dense_h_to_4h.bias"}
NEOX |= {"mlp.down": "mlp.dense_4h_to_h.weight", "mlp.down_bias": "mlp.dense_4h_to_h.bias"}
GPT2 = {"attention.o": "attn.c_proj.weight", "attention.o_bias": "attn.c_proj.bias"}
GPT2 |= {"mlp.up": "mlp.c_fc.weight", "mlp.up_bias": "mlp.c_fc.bias"}
GPT2 |= {"mlp.down": "mlp.c_proj.weight", "mlp.down_bias": "mlp.c_proj.bias"}
GPT2 |= {f"norms.{i}.{x}": f"ln_{i + 1}.{x}" for i in (0, 1) for x in ("weight", "bias")}
NAMES = {"llama": LLAMA | WEIGHTS, "olmo": LLAMA, "olmo2": LLAMA | OLMO2, "gpt_neox": NEOX, "gpt2": GPT2}


def theirs(name: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    family, figures = FAMILIES[name]
    config = getattr(transformers, f"{family}Config")(**figures, attn_implementation="eager")
    lm = {"GPT2": "GPT2LMHeadModel"}.get(family, f"{family}ForCausalLM")
    made = getattr(transformers, lm)(config).double().eval()
    for p in made.parameters():
        nn.init.normal_(p, std=0.1)
    return config, made


def query_key_value(kind: str, given: dict[str, Tensor], c: ModelConfig) -> dict[str, Tensor]:
    """Theirs are fused: for each head (GPT-NeoX), or side by side (GPT-2)."""
    if kind == "gpt_neox":
        found = given["attention.query_key_value.weight"].view(c.heads, 3, c.head_dim, c.hidden)
        bias = given["attention.query_key_value.bias"].view(c.heads, 3, c.head_dim)
        parts = [(found[:, i].flatten(0, 1).T, bias[:, i].flatten()) for i in range(3)]
    elif kind == "gpt2":
        whole, biases = given["attn.c_attn.weight"], given["attn.c_attn.bias"]
        parts = list(zip(whole.chunk(3, -1), biases.chunk(3), strict=True))
    else:
        return {}
    named = zip("qkv", parts, strict=True)
    return {k: v for x, (w, b) in named for k, v in ((f"attention.{x}", w), (f"attention.{x}_bias", b))}


def our_layer(kind: str, given: dict[str, Tensor], c: ModelConfig) -> Dense:
    layer = Dense(c, "cpu").double()
    values = query_key_value(kind, given, c)
    for ours, name in NAMES[kind].items():
        matrix = given[name].dim() == 2 and kind != "gpt2"  # GPT-2's are (in, out) as ours
        values[ours] = given[name].T if matrix else given[name]
    layer.load_state_dict(values)
    return layer


def our_scores(kind: str, c: ModelConfig, made: Any, tokens: Tensor) -> Tensor:
    base, lm = made.base_model, made.get_output_embeddings()
    embedding, head = Embedding(c, "cpu").double(), Head(c, "cpu").double()
    embedding.table.data = base.get_input_embeddings().weight.data
    if kind == "gpt2":
        embedding.positions.data = base.wpe.weight.data
    last = next(getattr(base, n) for n in ("norm", "ln_f", "final_layer_norm") if hasattr(base, n))
    head.norm.load_state_dict(last.state_dict())
    head.table.data = lm.weight.data.T
    turning = c.rotary_dim or c.head_dim
    angles = torch.outer(torch.arange(TOKENS), 10000.0 ** (-torch.arange(0, turning, 2) / turning)).double()
    causal = torch.full((TOKENS, TOKENS), -math.inf, dtype=torch.float64).triu(1).repeat(c.heads // c.kv_heads, 1)
    x = embedding(tokens.flatten(), *([torch.arange(TOKENS).repeat(2)] if c.positions else [])).view(2, TOKENS, -1)
    for theirs_layer in base.h if kind == "gpt2" else base.layers:
        cache = [torch.zeros(2, c.kv_heads, TOKENS, c.head_dim, dtype=torch.float64) for _ in range(2)]
        x = our_layer(kind, dict(theirs_layer.state_dict()), c)(x, angles.cos(), angles.sin(), causal, *cache)
    return head(x)


@pytest.mark.parametrize("name", FAMILIES)
def test_blocks_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    kind = name.split()[0]
    config, made = theirs(name)
    config.save_pretrained(tmp_path)
    c = configs.find(str(tmp_path))
    assert c.parameters == sum(p.numel() for p in made.parameters())
    tokens = torch.randint(500, (2, TOKENS))
    with torch.no_grad():
        wanted = made(tokens).logits
        found = our_scores(kind, c, made, tokens)
    # transformers computes rotary factors and norms in fp32
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("name", ["gpt-2", "gpt-neox-20b", "olmo-7b", "olmo-2-7b"])
def test_published_dimensions_are_those_of_the_priority_models(name: str, tmp_path: Path) -> None:
    kind = {"gpt-2": "gpt2", "gpt-neox-20b": "gpt_neox", "olmo-7b": "olmo", "olmo-2-7b": "olmo2"}[name]
    figures = {"model_type": kind, "_name_or_path": name, **PRIORITY[name].published}
    (tmp_path / "config.json").write_text(json.dumps({"hidden_act": "gelu" if "gpt" in name else "silu", **figures}))
    assert configs.find(str(tmp_path)) == PUBLISHED[name]


def test_mistral_small_is_the_text_part_of_transformers_defaults(tmp_path: Path) -> None:
    """Those of Mistral3Config, which names Mistral Small 3.1 as its checkpoint."""
    text = transformers.Mistral3Config().text_config.to_dict()
    figures = {**text, "_name_or_path": "mistral-small-24b", "sliding_window": None}
    (tmp_path / "config.json").write_text(json.dumps(figures))
    assert configs.find(str(tmp_path)) == PUBLISHED["mistral-small-24b"]


def test_confirmed_dimensions_of_granite_4_small() -> None:
    default, c = transformers.GraniteMoeHybridConfig(), PUBLISHED["granite-4-h-small"]
    assert (c.hidden, c.heads) == (default.hidden_size, default.num_attention_heads)
    m = c.mamba
    assert (m.heads, m.head_dim) == (default.mamba_n_heads, default.mamba_d_head)
    assert (m.groups, m.conv, m.chunk) == (default.mamba_n_groups, default.mamba_d_conv, default.mamba_chunk_size)
    idle = c.layers * (c.experts - c.experts_per_token) * c.mlp_parameters
    assert round(c.parameters / 1e9) == 32 and round((c.parameters - idle) / 1e9) == 9


@pytest.mark.parametrize("cards", [1, 2])
@pytest.mark.parametrize("name", ["gpt-2", "gpt-neox-20b", "olmo-7b", "olmo-2-7b"])
def test_they_are_predicted(name: str, cards: int) -> None:
    """With few and narrow layers: what counts is that every kind of block compiles and stays on the card."""
    c = PUBLISHED[name]
    small = replace(c, hidden=256, layers=1, heads=4, kv_heads=4, head_dim=64, intermediate=512, vocab=1000)
    found = model.predict(small, Request(1, 64, 1), cards=cards)
    assert all(b.ns > 0 and b.transfers == 0 for b in found.blocks.values())
    assert (found.communication(True) > 0) == (cards > 1)


def test_positions_come_to_an_end() -> None:
    passes(PUBLISHED["gpt-2"], Request(1, 1000, 24))
    with pytest.raises(InvalidArgument, match="gpt-2 has 1024 positions: prompt 1000 and 25 tokens"):
        passes(PUBLISHED["gpt-2"], Request(1, 1000, 25))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": "wide"}, "no size"),
        ({"num_attention_heads": 0}, "no size"),
        ({"num_hidden_layers": -3}, "layers is -3"),
        ({"vocab_size": 1.5}, "vocabulary is 1.5"),
        ({"num_key_value_heads": 3}, "4 heads do not share 3 KV heads"),
        ({"intermediate_size": None}, "intermediate is None"),
    ],
)
def test_sizes_that_are_none_are_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **GROUPED, **changes}))
    with pytest.raises(InvalidArgument, match=words):
        configs.find(str(tmp_path))
