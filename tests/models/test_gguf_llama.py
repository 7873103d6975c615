# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_gguf_llama.py: GGUF weights come out in Hugging Face's names and row order."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import transformers

from torch_spyre.errors import InvalidArgument
from torch_spyre.models.gguf_llama import GGUF, convert, rotary_halves


def _file(path: Path, architecture: str = "llama") -> dict[str, np.ndarray]:
    """A one-block model of width 8 with 2 heads, written as llama.cpp's tools write it."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(32)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(4)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<e>", "a", "b", "ab", "c"])
    writer.add_token_types([3, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    for kind in ("bos", "eos", "unk", "pad"):
        getattr(writer, f"add_{kind}_token_id")(0)
    writer.add_chat_template("{{ messages }}")
    random = np.random.default_rng(0)
    shapes = {"token_embd": (5, 8), "output_norm": (8,), "blk.0.attn_q": (8, 8), "blk.0.attn_k": (4, 8)}
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for name, values in tensors.items():
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_rotary_halves_undoes_the_pairing(heads: int) -> None:
    halves = np.arange(heads * 6 * 2).reshape(heads * 6, 2)
    pairs = halves.reshape(heads, 2, 3, 2).swapaxes(1, 2).reshape(heads * 6, 2)  # what llama.cpp's converter does
    assert np.array_equal(rotary_halves(pairs, heads), halves)


def test_names_values_and_configuration(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    tensors = _file(tmp_path / "m.gguf")
    folder = convert(tmp_path / "m.gguf", tmp_path / "out")
    weights = load_file(folder / "model.safetensors")
    assert np.array_equal(weights["model.embed_tokens.weight"], tensors["token_embd"].astype(np.float16))
    expected = rotary_halves(tensors["blk.0.attn_q"], 2).astype(np.float16)
    assert np.array_equal(weights["model.layers.0.self_attn.q_proj.weight"], expected)
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_key_value_heads"], config["rope_theta"], config["tie_word_embeddings"]) == (1, 10000.0, True)


def test_the_tokenizer_speaks(tmp_path: Path) -> None:
    _file(tmp_path / "m.gguf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(convert(tmp_path / "m.gguf", tmp_path / "out"))
    assert tokenizer("abc")["input_ids"] == [3, 4]
    assert tokenizer.decode([3, 4]) == "abc"
    assert tokenizer.eos_token == "<e>"


def test_a_folder_is_made_once(tmp_path: Path) -> None:
    _file(tmp_path / "m.gguf")
    folder = convert(tmp_path / "m.gguf", tmp_path / "out")
    made = (folder / "model.safetensors").stat().st_mtime_ns
    convert(tmp_path / "m.gguf", tmp_path / "out")
    assert (folder / "model.safetensors").stat().st_mtime_ns == made


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    _file(tmp_path / "m.gguf", "gemma")
    with pytest.raises(InvalidArgument, match="gemma"):
        GGUF(tmp_path / "m.gguf")
