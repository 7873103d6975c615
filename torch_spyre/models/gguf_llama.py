# SPDX-License-Identifier: Apache-2.0
"""A Llama-family GGUF file as a Hugging Face checkpoint folder: configuration, float weights, tokenizer.

llama.cpp stores the rows of q and k so that the two halves of each rotary pair are neighbours; Hugging Face keeps the
halves apart. Everything else is a change of names and a dequantisation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from torch_spyre.errors import InvalidArgument

Array = np.ndarray[Any, np.dtype[Any]]

# GGUF name of a block's tensor -> name inside a Hugging Face decoder layer.
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_NORMAL, _CONTROL = 1, 3  # token types

Progress = Callable[[int, int], None]


class GGUF:
    """An open GGUF file of the llama architecture."""

    def __init__(self, path: Path) -> None:
        import gguf

        self._gguf = gguf
        self.path = path
        self.reader = gguf.GGUFReader(path)
        if self["general.architecture"] != "llama":
            raise InvalidArgument(f"{path}: architecture {self['general.architecture']!r}; only llama is read here")

    def __getitem__(self, key: str) -> Any:
        field = self.reader.fields.get(key)
        if field is None:
            raise InvalidArgument(f"{self.path}: no field {key!r}; is the file whole?")
        return field.contents()

    def config(self) -> dict[str, Any]:
        """config.json of the checkpoint."""
        heads = int(self["llama.attention.head_count"])
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": int(self["llama.embedding_length"]),
            "intermediate_size": int(self["llama.feed_forward_length"]),
            "num_hidden_layers": int(self["llama.block_count"]),
            "num_attention_heads": heads,
            "num_key_value_heads": int(self["llama.attention.head_count_kv"]),
            "head_dim": int(self["llama.rope.dimension_count"]),
            "max_position_embeddings": int(self["llama.context_length"]),
            "rms_norm_eps": float(f"{self['llama.attention.layer_norm_rms_epsilon']:.6g}"),
            "rope_theta": float(self["llama.rope.freq_base"]),
            "vocab_size": int(self["llama.vocab_size"]),
            "tie_word_embeddings": all(t.name != "output.weight" for t in self.reader.tensors),
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": int(self["tokenizer.ggml.bos_token_id"]),
            "eos_token_id": int(self["tokenizer.ggml.eos_token_id"]),
            "pad_token_id": int(self["tokenizer.ggml.padding_token_id"]),
            "torch_dtype": "float16",
        }

    def weights(self) -> Iterator[tuple[str, Array]]:
        """(Hugging Face name, fp32 array) of every tensor, one at a time."""
        heads = {"attn_q": self["llama.attention.head_count"], "attn_k": self["llama.attention.head_count_kv"]}
        for tensor in self.reader.tensors:
            values = self._gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
            if block is not None and block[2] in BLOCK:
                if block[2] in heads:
                    values = rotary_halves(values, int(heads[block[2]]))
                yield f"model.layers.{block[1]}.{BLOCK[block[2]]}.weight", values
            elif tensor.name.removesuffix(".weight") in OUTSIDE:
                yield f"{OUTSIDE[tensor.name.removesuffix('.weight')]}.weight", values
            else:
                raise InvalidArgument(f"{self.path}: tensor {tensor.name!r} has no place in a Llama model")

    def tokenizer(self) -> tuple[Any, dict[str, Any]]:
        """(a `tokenizers.Tokenizer`, tokenizer_config.json): byte-level BPE, digits one by one."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        if (self["tokenizer.ggml.model"], self["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
            raise InvalidArgument(f"{self.path}: tokenizer {self['tokenizer.ggml.pre']!r}; only smollm is read here")
        tokens, kinds = self["tokenizer.ggml.tokens"], self["tokenizer.ggml.token_type"]
        merges = [tuple(m.split(" ", 1)) for m in self["tokenizer.ggml.merges"]]
        tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
        tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special])
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[self["tokenizer.ggml.bos_token_id"]],
            "eos_token": tokens[self["tokenizer.ggml.eos_token_id"]],
            "unk_token": tokens[self["tokenizer.ggml.unknown_token_id"]],
            "pad_token": tokens[self["tokenizer.ggml.padding_token_id"]],
            "additional_special_tokens": special,
            "chat_template": self["tokenizer.chat_template"],
            "clean_up_tokenization_spaces": False,
            "model_max_length": int(self["llama.context_length"]),
        }
        return tokenizer, config


def rotary_halves(rows: Array, heads: int) -> Array:
    """Undoes llama.cpp's order of the rows of q and k: pairs (0, 1), (2, 3), … back to halves."""
    outputs, inputs = rows.shape
    pairs = rows.reshape(heads, outputs // heads // 2, 2, inputs)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(outputs, inputs))


def convert(path: Path, folder: Path, progress: Progress | None = None) -> Path:
    """Writes the checkpoint folder once; a folder that is there and whole is left alone."""
    from safetensors.numpy import save_file

    done = folder / "model.safetensors"
    if done.exists():
        return folder
    source = GGUF(path)
    folder.mkdir(parents=True, exist_ok=True)
    count = len(source.reader.tensors)
    weights: dict[str, Array] = {}
    for number, (name, values) in enumerate(source.weights(), start=1):
        weights[name] = values.astype(np.float16)
        if progress is not None:
            progress(number, count)
    tokenizer, tokenizer_config = source.tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    config = source.config()
    _write_json(folder / "config.json", config)
    special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", special)
    partial = folder / "model.safetensors.partial"  # renamed when whole, so that a broken-off run is no checkpoint
    try:
        save_file(weights, partial, metadata={"format": "pt"})
        partial.replace(done)
    finally:
        partial.unlink(missing_ok=True)
    return folder


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
