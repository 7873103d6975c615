# SPDX-License-Identifier: Apache-2.0
"""Dimensions from a transformers config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_spyre import files
from torch_spyre.errors import InvalidArgument, UnsupportedOp
from torch_spyre.predict.dimensions import Mamba, ModelConfig

_FAMILIES = (
    *("llama", "granite", "granitemoe", "granitemoehybrid", "mistral", "mixtral"),
    *("qwen2", "qwen3", "qwen3_moe", "phi3", "gemma3_text", "gemma3", "gpt2", "gpt_neox", "olmo", "olmo2"),
)
_MAX_FILE_BYTES = 16 << 20
_WINDOWED = ("mistral", "mixtral", "phi3")  # a window that is given holds in every layer
_SPELLINGS = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}  # of GPT-2


def from_json(path: Path) -> ModelConfig:
    try:
        data = files.read_json(path, _MAX_FILE_BYTES)
    except (OSError, ValueError) as e:
        raise InvalidArgument(f"{path} is not a config.json: {e}") from None
    if not isinstance(data, dict):
        raise InvalidArgument(f"{path} is not a config.json: it holds no object")
    data = {**data, **data.get("text_config", {})}
    kind = data.get("model_type", "")
    if kind not in _FAMILIES:
        raise UnsupportedOp(f"{path}: model_type {kind!r} is not a known decoder; known are {', '.join(_FAMILIES)}")
    data = {_SPELLINGS.get(name, name): value for name, value in data.items()} if kind == "gpt2" else data
    try:
        found = _from_transformers(data, kind, path)
    except KeyError as e:
        raise InvalidArgument(f"{path} has no {e.args[0]!r}") from None
    except (TypeError, ValueError, ZeroDivisionError) as e:
        raise InvalidArgument(f"{path} has a figure that is no size: {e}") from None
    _check(found, path)
    return found


def _check(c: ModelConfig, path: Path) -> None:
    sizes = {"hidden": c.hidden, "layers": c.layers, "heads": c.heads, "KV heads": c.kv_heads, "head_dim": c.head_dim}
    sizes |= {"intermediate": c.intermediate, "vocabulary": c.vocab}
    if c.mamba:
        sizes |= {"Mamba heads": c.mamba.heads, "Mamba head": c.mamba.head_dim, "state": c.mamba.state}
        sizes |= {"groups": c.mamba.groups, "taps": c.mamba.conv - 1, "chunk": c.mamba.chunk}
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise InvalidArgument(f"{path}: {name} is {size!r}; sizes are positive whole numbers")
    if c.heads % c.kv_heads:
        raise InvalidArgument(f"{path}: {c.heads} heads do not share {c.kv_heads} KV heads evenly")
    if c.mamba and c.mamba.heads % c.mamba.groups:
        raise InvalidArgument(f"{path}: {c.mamba.heads} Mamba heads do not share {c.mamba.groups} groups evenly")


def _from_transformers(data: dict[str, Any], kind: str, path: Path) -> ModelConfig:
    heads = data["num_attention_heads"]
    head_dim = data.get("head_dim") or data["hidden_size"] // heads
    experts = data.get("num_local_experts") or data.get("num_experts") or 0
    width = data.get("moe_intermediate_size") if experts else None
    gemma, hybrid, gpt = kind.startswith("gemma3"), kind == "granitemoehybrid", kind.startswith("gpt")
    shared = data.get("shared_intermediate_size") or 0 if hybrid else 0
    windowed = data.get("sliding_window") and (gemma or data.get("use_sliding_window", kind in _WINDOWED))
    return ModelConfig(
        data.get("_name_or_path") or path.parent.name or "model",
        data["hidden_size"],
        data["num_hidden_layers"],
        heads,
        data.get("num_key_value_heads") or heads,
        head_dim,
        shared if hybrid and not experts else width or _intermediate(data, kind),
        data["vocab_size"],
        tied=bool(data.get("tie_word_embeddings", gemma or kind == "gpt2")),
        activation=_activation(data),
        gated=not gpt,
        attention_bias=bool(data.get("attention_bias", kind == "qwen2" or gpt)),
        qk_norm=kind.startswith(("qwen3", "gemma3")) or kind == "olmo2",
        wide_qk_norm=kind == "olmo2",
        pre_norms=kind != "olmo2",
        post_norms=gemma or kind == "olmo2",
        norm="layer" if gpt else "plain" if kind == "olmo" else "rms",
        parallel=kind == "gpt_neox" and bool(data.get("use_parallel_residual", True)),
        biases=gpt,
        experts=experts,
        experts_per_token=data.get("num_experts_per_tok") or 0,
        window=int(data["sliding_window"]) if windowed else 0,
        window_every=int(data.get("sliding_window_pattern") or 6) if gemma else 1,
        rotary=kind != "gpt2" and (not hybrid or data.get("position_embedding_type") == "rope"),
        rotary_dim=_turning(data, head_dim) if kind == "gpt_neox" else 0,
        positions=data["n_positions"] if kind == "gpt2" else 0,
        shared=shared if experts else 0,
        mamba=_mamba(data) if hybrid else None,
    )


def _intermediate(data: dict[str, Any], kind: str) -> Any:
    if kind == "gpt2":
        return data.get("n_inner") or 4 * data["hidden_size"]
    return data["intermediate_size"]


def _activation(data: dict[str, Any]) -> str:
    name = data.get("hidden_act") or data.get("hidden_activation") or data.get("activation_function") or ""
    return "gelu" if "gelu" in name else "silu"


def _turning(data: dict[str, Any], head_dim: int) -> int:
    """Elements of a head that rotary embeddings turn."""
    share = (data.get("rope_parameters") or {}).get("partial_rotary_factor") or data.get("rotary_pct", 0.25)
    return int(head_dim * share)


def _mamba(data: dict[str, Any]) -> Mamba | None:
    kinds = data.get("layer_types") or data["layers_block_type"]
    layers = sum(kind in ("mamba", "linear_attention") for kind in kinds)
    if not layers:
        return None
    heads = data["mamba_n_heads"]
    head_dim = data.get("mamba_d_head", "auto")
    return Mamba(
        layers,
        heads,
        data.get("mamba_expand", 2) * data["hidden_size"] // heads if head_dim == "auto" else head_dim,
        data["mamba_d_state"],
        data.get("mamba_n_groups", 1),
        data.get("mamba_d_conv", 4),
        data.get("mamba_chunk_size", 256),
    )
