# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_full_size.py

`examples/full_size.py` with small checkpoints of several files, and the tensors of experts in the files of their own.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from torch_spyre.errors import InvalidArgument
from torch_spyre.models.checkpoint import load
from torch_spyre.models.quantised_linear import EightBitLinear
from torch_spyre.models.tensor_files import INDEX
from torch_spyre.numerics.priority import PRIORITY, build

ROOT = Path(__file__).parents[2]


def example() -> Any:
    spec = importlib.util.spec_from_file_location("full_size_example", ROOT / "examples" / "full_size.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sharded(folder: Path, name: str) -> Any:
    model = build(PRIORITY[name], "tiny", 2).half()
    model.save_pretrained(folder, max_shard_size="200KB")
    assert len(list(folder.glob("*.safetensors"))) > 2 and (folder / INDEX).exists()
    return model


@pytest.mark.parametrize("weights", [pytest.param("fp16", marks=pytest.mark.slow), "fp8"])
def test_a_sharded_folder(
    tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sharded(tmp_path, "llama-3.1-8b")
    words = ["full_size.py", str(tmp_path), "--weights", weights, "--prompt", "9", "--tokens", "7", "--json"]
    monkeypatch.setattr(sys, "argv", words)
    assert example().main() == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layers"] == len(found["cosines"]) == 2 and len(found["tokens"]) == 7
    assert 0.9995 <= found["worst"] < 1 and found["on_host"] == []
    assert all(row["own"] >= row["drift"] - 1e-3 for row in found["cosines"])


def test_codes_are_made_while_loading(tmp_path: Path) -> None:
    expected = sharded(tmp_path, "llama-3.1-8b")
    shown: list[tuple[int, int]] = []
    model = load(tmp_path, weights="fp8", progress=lambda done, whole: shown.append((done, whole)))
    assert shown == sorted(shown) and shown[-1][0] == shown[-1][1] == sum(p.nbytes for p in expected.parameters())
    layer = model.model.layers[1].mlp.up_proj
    assert isinstance(layer, EightBitLinear) and not isinstance(model.lm_head, EightBitLinear)
    whole = layer.weight.cpu().float() * layer.scale.cpu()[:, None]
    wanted = expected.model.layers[1].mlp.up_proj.weight.float()
    assert ((whole - wanted).abs() <= wanted.abs().amax(1, keepdim=True) * 2**-4).all()
    with pytest.raises(InvalidArgument, match="weights as 'int3': the choices are fp16, fp8, int8"):
        load(tmp_path, weights="int3")


def test_a_file_that_the_index_names_is_missing(tmp_path: Path) -> None:
    sharded(tmp_path, "llama-3.1-8b")
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(InvalidArgument, match=rf"1 of \d+ files that {INDEX} names are not there, {gone.name}"):
        load(tmp_path)
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(InvalidArgument, match="holds no weight_map"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "granite-4-h-tiny"])
def test_experts(tmp_path: Path, name: str) -> None:
    """As they are published: Mixtral's matrices one by one, Granite's under older names."""
    expected = sharded(tmp_path, name)
    names = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    published = "experts.3.w1.weight" if name == "mixtral-8x7b" else "block_sparse_moe.input_linear.weight"
    assert any(published in n for n in names)
    found = dict(load(tmp_path).named_parameters())
    for parameter, value in expected.named_parameters():
        assert torch.equal(found[parameter].cpu(), value), parameter


def test_experts_generate(tmp_path: Path) -> None:
    expected = sharded(tmp_path, "mixtral-8x7b").float()
    ids = torch.randint(4, 500, (1, 7), generator=torch.Generator().manual_seed(2))
    logits = load(tmp_path)(ids.to("spyre"), use_cache=False).logits.cpu().float()
    with torch.no_grad():
        wanted = expected(ids, use_cache=False).logits
    assert torch.cosine_similarity(logits, wanted, -1).min() > 0.999


def test_a_model_of_transformers_own_names(tmp_path: Path) -> None:
    """An encoder saved without its head loads into the model with it by prefix, and refuses what has no place."""
    config = transformers.LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
                                      num_attention_heads=1, tie_word_embeddings=True)  # fmt: skip
    base = transformers.LlamaModel(config).half()
    base.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": ["LlamaForCausalLM"]}))
    found = load(tmp_path)
    assert torch.allclose(found.model.norm.weight.cpu(), base.norm.weight)
