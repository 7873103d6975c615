# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_walk.py

Models whose weights come and go: random tensors by name, a walk that finds the errors of the whole model, and never
more than one layer's weights in memory.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from torch_spyre import dl16
from torch_spyre.errors import InvalidArgument
from torch_spyre.models.random_weights import RandomWeights, described
from torch_spyre.numerics import layers, streamed
from torch_spyre.numerics.cli import main
from torch_spyre.numerics.priority import PRIORITY, STREAMED, Priority, build


def tiny(name: str, count: int | None = None) -> Any:
    """Without memory for its matrices."""
    model = PRIORITY[name]
    config = getattr(transformers, model.config)(**model.figures("tiny", count))
    return described(getattr(transformers, model.model), config)


def inputs_of(model: Priority, config: Any) -> dict[str, Any]:
    return {**model.inputs(config), **({"use_cache": False} if model.cached else {})}


def test_random_weights_are_the_same_at_any_time() -> None:
    config = transformers.LlamaConfig(vocab_size=512, hidden_size=256, num_hidden_layers=1, intermediate_size=512)
    model = described(transformers.LlamaForCausalLM, config)
    weights = RandomWeights(model)
    name = "model.layers.0.mlp.down_proj.weight"
    first = weights.tensor(name)
    assert torch.equal(RandomWeights(model).tensor(name), first)
    assert not torch.equal(RandomWeights(model, seed=1).tensor(name), first)
    assert torch.equal(torch.from_numpy(dl16.rounded(first.float().numpy())).half(), first)
    assert abs(float(first.float().std()) * 512**0.5 - 1) < 0.02
    norm = weights.tensor("model.norm.weight").float()
    assert abs(float(norm.mean()) - 1) < 0.03 and abs(float(norm.std()) - 0.1) < 0.02
    assert weights.bytes_of(name) == 2 * 256 * 512


def test_tied_weights_are_one_tensor() -> None:
    model = tiny("granite-4-h-tiny")
    weights = RandomWeights(model)
    assert "lm_head.weight" not in weights.names()
    assert torch.equal(weights.tensor("lm_head.weight"), weights.tensor("model.embed_tokens.weight"))
    assert float(weights.initial["model.layers.0.mamba.A_log"].max()) == pytest.approx(math.log(4))


@pytest.mark.parametrize("name", ["llama-3.1-8b", pytest.param("granite-4-h-tiny", marks=pytest.mark.slow)])
def test_a_walk_finds_what_the_whole_model_shows(name: str) -> None:
    """The same weights at once: errors of every layer agree."""
    model = PRIORITY[name]
    weights = RandomWeights(tiny(name, 2))
    whole = build(model, "tiny", 2).requires_grad_(False)
    for parameter_name, parameter in whole.named_parameters():
        parameter.copy_(weights.tensor(parameter_name).float())
    inputs = inputs_of(model, whole.config)
    expected = layers.compare(whole, inputs)
    found = streamed.compare(tiny(name, 2), weights, inputs, name)
    assert [(x.name, x.kind) for x in found.layers] == [(x.name, x.kind) for x in expected.layers]
    for ours, theirs in zip(found.layers, expected.layers, strict=True):
        assert ours.error.relative == pytest.approx(theirs.error.relative, rel=0.05, abs=1e-6)
        assert ours.own.relative == pytest.approx(theirs.own.relative, rel=0.05, abs=1e-6)
    assert found.card_us > 0 and all(x.card_us > 0 for x in found.layers if "layers" in x.name)
    assert found.parameters == sum(p.numel() for p in whole.parameters())


@pytest.mark.parametrize("name", [n if n == "vit-base" else pytest.param(n, marks=pytest.mark.slow) for n in PRIORITY])
def test_all_models_can_be_walked(name: str) -> None:
    module = tiny(name)
    found = streamed.compare(module, RandomWeights(module), inputs_of(PRIORITY[name], module.config), name)
    assert found.layers and found.layers[-1].error.cosine > 0.9995 and not found.fallbacks


def test_figures_of_a_whole_model() -> None:
    figures = STREAMED["granite-4-h-small"].figures("whole", 6)
    assert figures["vocab_size"] == 100352 and figures["layer_types"] == ["mamba"] * 5 + ["attention"]
    small = STREAMED["granite-4-h-small"]
    config = transformers.GraniteMoeHybridConfig(**small.figures("whole"))
    with torch.device("meta"):
        count = sum(p.numel() for p in transformers.GraniteMoeHybridForCausalLM(config).parameters())
    assert 32.0e9 < count < 32.5e9
    with pytest.raises(InvalidArgument, match="tiny, real or whole"):
        small.figures("huge")


PEAK = """
import json, resource, sys, torch
from torch_spyre.numerics import streamed
from torch_spyre.numerics.priority import PRIORITY
from dataclasses import replace
figures = dict(hidden_size=1024, num_attention_heads=16, num_key_value_heads=4, head_dim=64, intermediate_size=4096)
known = PRIORITY["llama-3.1-8b"]
model = replace(known, published={**known.figures("tiny"), **figures})
peaks = []
for count in (1, 10):
    found = streamed.compare_random(model, "eager", count)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
print(json.dumps({"peaks": peaks, "parameters": found.parameters}))
"""


def test_memory_does_not_grow_with_depth() -> None:
    made = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, timeout=1500)
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout.splitlines()[-1])
    assert found["parameters"] > 150e6
    grown = found["peaks"][1] - found["peaks"][0]
    assert grown < found["parameters"], "nine layers more: far less than their two bytes per parameter"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    torch.manual_seed(0)
    sizes = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    transformers.LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="300KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    page = tmp_path / "page.html"
    assert main([str(folder), "--stream", "--json", "--plot", str(page)]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert [x["name"] for x in found["layers"]][-4:] == ["model.layers.0", "model.layers.1", "model.norm", "lm_head"]
    assert found["card_us"] > 0 and "<svg" in page.read_text()
    assert main(["llama-3.1-8b", "--stream", "--depth", "1"]) != 0
