# SPDX-License-Identifier: Apache-2.0
"""Dimensions of published models, and of any transformers config.json."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch_spyre import files
from torch_spyre.errors import InvalidArgument, UnsupportedOp


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer. Sizes in elements; `window` 0 means full attention."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool = False  # the head is the embedding table
    activation: str = "silu"
    gated: bool = True
    attention_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False  # a norm after attention and after the MLP as well
    experts: int = 0
    experts_per_token: int = 0
    window: int = 0
    window_every: int = 1  # of so many layers, all but one use the window; 1: all of them

    def kinds(self) -> list[tuple[str, int, int]]:
        """(name, how many layers, window) of each distinct kind of layer."""
        if not self.window:
            return [("layer", self.layers, 0)]
        if self.window_every <= 1:
            return [("layer", self.layers, self.window)]
        full = self.layers // self.window_every
        return [("local layer", self.layers - full, self.window), ("global layer", full, 0)]

    @property
    def attention_parameters(self) -> int:
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        bias = width if self.attention_bias else 0
        return self.hidden * width + self.heads * self.head_dim * self.hidden + bias

    @property
    def mlp_parameters(self) -> int:
        """Of one MLP or expert."""
        return (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def layer_parameters(self) -> int:
        router = self.hidden * self.experts
        norms = (4 if self.post_norms else 2) * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return self.attention_parameters + max(1, self.experts) * self.mlp_parameters + router + norms

    @property
    def parameters(self) -> int:
        tables = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * self.layer_parameters + tables + self.hidden

    def cache_elements(self, tokens: int) -> int:
        """K and V of one sequence."""
        return sum(
            count * 2 * self.kv_heads * self.head_dim * (min(tokens, window) if window else tokens)
            for _, count, window in self.kinds()
        )


def _qwen(*c: ModelConfig) -> list[ModelConfig]:
    return [replace(x, attention_bias=True) for x in c]


def _qwen3(*c: ModelConfig) -> list[ModelConfig]:
    return [replace(x, qk_norm=True) for x in c]


def _gemma3(*c: ModelConfig) -> list[ModelConfig]:
    return [replace(x, tied=True, activation="gelu", qk_norm=True, post_norms=True, window_every=6) for x in c]


# name, hidden, layers, heads, KV heads, head dim, intermediate, vocabulary; from the models' published config.json
PUBLISHED: dict[str, ModelConfig] = {
    c.name: c
    for c in (
        ModelConfig("llama-3.1-8b", 4096, 32, 32, 8, 128, 14336, 128256),
        ModelConfig("llama-3.1-70b", 8192, 80, 64, 8, 128, 28672, 128256),
        ModelConfig("llama-3.2-1b", 2048, 16, 32, 8, 64, 8192, 128256, tied=True),
        ModelConfig("llama-3.2-3b", 3072, 28, 24, 8, 128, 8192, 128256, tied=True),
        ModelConfig("granite-3.3-2b", 2048, 40, 32, 8, 64, 8192, 49159, tied=True),
        ModelConfig("granite-3.3-8b", 4096, 40, 32, 8, 128, 12800, 49159, tied=True),
        ModelConfig("mistral-7b", 4096, 32, 32, 8, 128, 14336, 32768),
        ModelConfig("mixtral-8x7b", 4096, 32, 32, 8, 128, 14336, 32000, experts=8, experts_per_token=2),
        *_qwen(
            ModelConfig("qwen-2.5-0.5b", 896, 24, 14, 2, 64, 4864, 151936, tied=True),
            ModelConfig("qwen-2.5-1.5b", 1536, 28, 12, 2, 128, 8960, 151936, tied=True),
            ModelConfig("qwen-2.5-3b", 2048, 36, 16, 2, 128, 11008, 151936, tied=True),
            ModelConfig("qwen-2.5-7b", 3584, 28, 28, 4, 128, 18944, 152064),
            ModelConfig("qwen-2.5-14b", 5120, 48, 40, 8, 128, 13824, 152064),
            ModelConfig("qwen-2.5-32b", 5120, 64, 40, 8, 128, 27648, 152064),
            ModelConfig("qwen-2.5-72b", 8192, 80, 64, 8, 128, 29568, 152064),
        ),
        *_qwen3(
            ModelConfig("qwen-3-0.6b", 1024, 28, 16, 8, 128, 3072, 151936, tied=True),
            ModelConfig("qwen-3-4b", 2560, 36, 32, 8, 128, 9728, 151936, tied=True),
            ModelConfig("qwen-3-8b", 4096, 36, 32, 8, 128, 12288, 151936),
            ModelConfig("qwen-3-14b", 5120, 40, 40, 8, 128, 17408, 151936),
            ModelConfig("qwen-3-32b", 5120, 64, 64, 8, 128, 25600, 151936),
            ModelConfig("qwen-3-30b-a3b", 2048, 48, 32, 4, 128, 768, 151936, experts=128, experts_per_token=8),
        ),
        ModelConfig("phi-3-mini", 3072, 32, 32, 32, 96, 8192, 32064, window=2047),
        ModelConfig("phi-4-mini", 3072, 32, 24, 8, 128, 8192, 200064, tied=True),
        ModelConfig("phi-4", 5120, 40, 40, 10, 128, 17920, 100352),
        *_gemma3(
            ModelConfig("gemma-3-1b", 1152, 26, 4, 1, 256, 6912, 262144, window=512),
            ModelConfig("gemma-3-4b", 2560, 34, 8, 4, 256, 10240, 262208, window=1024),
            ModelConfig("gemma-3-12b", 3840, 48, 16, 8, 256, 15360, 262208, window=1024),
            ModelConfig("gemma-3-27b", 5376, 62, 32, 16, 128, 21504, 262208, window=1024),
        ),
    )
}

_FAMILIES = "llama granite granitemoe mistral mixtral qwen2 qwen3 qwen3_moe phi3 gemma3_text gemma3".split()
_MAX_FILE_BYTES = 16 << 20
_WINDOWED = ("mistral", "mixtral", "phi3")  # a window that is given holds in every layer


def find(name: str) -> ModelConfig:
    """A published model by name, or a transformers config.json by path (or the directory that holds it)."""
    found = PUBLISHED.get(name.lower())
    if found is not None:
        return found
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return from_json(path)
    raise InvalidArgument(f"no model {name!r}; known are {', '.join(PUBLISHED)}, or give a transformers config.json")


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
    try:
        return _from_transformers(data, kind, path)
    except KeyError as e:
        raise InvalidArgument(f"{path} has no {e.args[0]!r}") from None


def _from_transformers(data: dict[str, Any], kind: str, path: Path) -> ModelConfig:
    heads = data["num_attention_heads"]
    experts = data.get("num_local_experts") or data.get("num_experts") or 0
    width = data.get("moe_intermediate_size") if experts else None
    gemma = kind.startswith("gemma3")
    windowed = data.get("sliding_window") and (gemma or data.get("use_sliding_window", kind in _WINDOWED))
    return ModelConfig(
        data.get("_name_or_path") or path.parent.name or "model",
        data["hidden_size"],
        data["num_hidden_layers"],
        heads,
        data.get("num_key_value_heads") or heads,
        data.get("head_dim") or data["hidden_size"] // heads,
        width or data["intermediate_size"],
        data["vocab_size"],
        tied=bool(data.get("tie_word_embeddings", gemma)),
        activation="gelu" if "gelu" in (data.get("hidden_act") or data.get("hidden_activation") or "") else "silu",
        attention_bias=bool(data.get("attention_bias", kind == "qwen2")),
        qk_norm=kind.startswith(("qwen3", "gemma3")),
        post_norms=gemma,
        experts=experts,
        experts_per_token=data.get("num_experts_per_tok") or 0,
        window=int(data["sliding_window"]) if windowed else 0,
        window_every=int(data.get("sliding_window_pattern") or 6) if gemma else 1,
    )
