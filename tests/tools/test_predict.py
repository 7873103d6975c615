# SPDX-License-Identifier: Apache-2.0
"""pytest -q tests/tools/test_predict.py

spyre-predict: published dimensions, blocks that compute a decoder layer, sums over layers, what-if, sweeps.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from torch_spyre.errors import InvalidArgument, UnsupportedOp
from torch_spyre.perf import device as devices
from torch_spyre.predict import cli, configs, coverage, decoder_parts, model, passes, whatif
from torch_spyre.predict.dimensions import ModelConfig
from torch_spyre.predict.passes import Part, Request

TINY = ModelConfig("tiny", 128, 3, 4, 2, 64, 256, 512)
REQUEST = Request(1, 64, 2)


# Dimensions


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3.1-8b", 8.03),
        ("llama-3.1-70b", 70.55),
        ("llama-3.2-1b", 1.236),
        ("granite-3.3-8b", 8.17),
        ("mistral-7b", 7.25),
        ("mixtral-8x7b", 46.70),
        ("qwen-2.5-7b", 7.62),
        ("qwen-3-8b", 8.19),
        ("qwen-3-30b-a3b", 30.53),
        ("phi-4", 14.66),
        ("gemma-3-27b", 27.01),
        ("granite-4-h-tiny", 6.939),
        ("granite-4-h-small", 32.21),
        ("smollm2-135m", 0.1345),
        ("mistral-small-24b", 23.57),
    ],
)
def test_published_sizes(name: str, billions: float) -> None:
    assert configs.find(name).parameters / 1e9 == pytest.approx(billions, rel=2e-3)


def test_config_json(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    data = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }
    path.write_text(json.dumps(data))
    assert replace(configs.find(str(tmp_path)), name="llama-3.1-8b") == configs.find("llama-3.1-8b")
    path.write_text(json.dumps({**data, "model_type": "bert"}))
    with pytest.raises(UnsupportedOp, match="bert"):
        configs.find(str(path))
    del data["vocab_size"]
    path.write_text(json.dumps(data))
    with pytest.raises(InvalidArgument, match="vocab_size"):
        configs.find(str(path))
    with pytest.raises(InvalidArgument, match="known are llama"):
        configs.find("gpt-5")


def test_windows_make_two_kinds_of_layers() -> None:
    c = configs.find("gemma-3-27b")
    assert c.kinds() == [("local layer", 52, 1024), ("global layer", 10, 0)]
    assert c.cache_elements(4096) == 2 * 16 * 128 * (52 * 1024 + 10 * 4096)


# Blocks


def test_a_layer_is_a_decoder_layer() -> None:
    """Against PyTorch's own attention, in float64."""
    torch.manual_seed(0)
    layer = decoder_parts.Dense(TINY, "cpu").double()
    for p in layer.parameters():
        torch.nn.init.normal_(p, std=0.1)
    tokens, angle = 16, torch.rand(16, 32, dtype=torch.float64)
    x = torch.randn(2, tokens, TINY.hidden, dtype=torch.float64)
    causal = torch.full((tokens, tokens), -math.inf, dtype=torch.float64).triu(1)
    cache = [torch.zeros(2, TINY.kv_heads, tokens, TINY.head_dim, dtype=torch.float64) for _ in range(2)]
    out = layer(x, angle.cos(), angle.sin(), causal.repeat(2, 1), *cache)

    def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), w, eps=1e-5)

    def heads(x: torch.Tensor, w: torch.Tensor, n: int) -> torch.Tensor:
        return (x @ w).view(2, tokens, n, 64).transpose(1, 2)

    def turned(x: torch.Tensor) -> torch.Tensor:
        z = torch.complex(x[..., :32], x[..., 32:]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat((z.real, z.imag), -1)

    a, m = layer.attention, layer.mlp
    y = norm(x, layer.norms[0].weight)
    q, k, v = turned(heads(y, a.q, 4)), turned(heads(y, a.k, 2)), heads(y, a.v, 2)
    found = F.scaled_dot_product_attention(q, k, v, attn_mask=causal, enable_gqa=True)
    z = x + found.transpose(1, 2).reshape(2, tokens, -1) @ a.o
    y = norm(z, layer.norms[1].weight)
    torch.testing.assert_close(out, z + (F.silu(y @ m.gate) * (y @ m.up)) @ m.down)
    torch.testing.assert_close(cache[0], k)
    torch.testing.assert_close(cache[1], v)


def test_a_compiled_layer_computes_on_the_card() -> None:
    """What is timed is what would run: the same module, compiled, against float64."""
    torch.manual_seed(0)
    layer = decoder_parts.Dense(TINY, "cpu")
    for p in layer.parameters():
        torch.nn.init.normal_(p, std=0.08)
    tokens, context = 64, 128
    angle = torch.rand(tokens, 32)
    mask = torch.zeros(tokens, context).masked_fill(torch.ones(tokens, context).triu(context - tokens + 1).bool(), -1e4)
    x = torch.randn(1, tokens, TINY.hidden)
    cache = [torch.randn(1, TINY.kv_heads, context, TINY.head_dim) for _ in range(2)]
    inputs = [t.half() for t in (x, angle.cos(), angle.sin(), mask.repeat(2, 1), *cache)]
    with torch.no_grad():
        wanted = decoder_parts.Dense(TINY, "cpu").double()
        wanted.load_state_dict(layer.state_dict())
        expected = wanted(*(t.double() for t in inputs))
        found = torch.compile(layer.to("spyre"), dynamic=False)(*(t.to("spyre") for t in inputs)).cpu().double()
    assert float((found - expected).norm() / expected.norm()) < 0.01


def test_experts_share_the_tokens() -> None:
    c = configs.find("mixtral-8x7b")
    assert passes.spread(c, 1) == (2, 1)
    assert passes.spread(c, 512) == (8, 128)
    parts = {p.kind: n for p, n in passes.passes(c, Request(1, 512, 0))[0].counts.items()}
    assert parts == {"embedding": 1, "routed": 32, "expert": 8 * 32, "head": 1}


# Sums


def test_contexts_cover_every_token() -> None:
    r = Request(1, 500, 128)
    assert sum(r.contexts().values()) == 128
    assert all(length % 64 == 0 for length in r.contexts())
    assert r.longest == 640
    with pytest.raises(InvalidArgument):
        Request(0)


def test_memory_of_llama() -> None:
    needed = model.memory(configs.find("llama-3.1-8b"), Request(4, 1024, 1024))
    assert needed.weights == pytest.approx(16.06e9, rel=1e-3)
    assert needed.cache == 4 * 32 * 2 * 8 * 128 * 2048 * 2
    assert needed.cards == 1


def test_prompts_one_after_another_or_together() -> None:
    c = configs.find("llama-3.1-8b")
    one, together = (passes.passes(c, Request(4, 512, 0, t))[0] for t in (False, True))
    assert one.times == 4 and {p.batch for p in one.counts} == {1}
    assert together.times == 1 and {p.batch for p in together.counts} == {4}


def test_a_model_that_does_not_fit_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["llama-3.1-70b"]) == 1
    text = capsys.readouterr().out
    assert "does not fit one card" in text and "at least 2 cards" in text


@pytest.fixture(scope="module")
def tiny() -> model.Prediction:
    return model.predict(TINY, REQUEST)


def test_prediction_adds_up(tiny: model.Prediction) -> None:
    layer = Part("layer", "layer", 1, 64, 64)
    head = Part("head", "head", 1, 1)
    table = Part("embedding", "embedding", 1, 64)
    blocks_ns = tiny.blocks[table].ns + 3 * tiny.blocks[layer].ns + tiny.blocks[head].ns
    assert tiny.first_token_ns == pytest.approx(blocks_ns + tiny.host_ns)
    assert tiny.total_ns == pytest.approx(tiny.first_token_ns + 2 * tiny.token_ns)
    assert tiny.decode_tokens_per_s == pytest.approx(1e9 / tiny.token_ns)
    for b in tiny.blocks.values():
        assert b.transfers == 0, "nothing falls back to the host"
        assert sum(b.classes.values()) == pytest.approx(b.ns, rel=0.2, abs=2000 * b.launches)
    macs = 64 * TINY.hidden * (2 * 256 + 2 * 128 + 3 * 256) + 2 * 4 * 64 * 64 * 64
    assert tiny.blocks[layer].macs == macs
    assert 0 <= coverage.checked_share(tiny.classes()) <= 1


def test_the_same_request_gives_the_same_time(tiny: model.Prediction) -> None:
    assert model.predict(TINY, REQUEST).total_ns == tiny.total_ns


def test_every_class_that_counts_as_checked_has_rows() -> None:
    assert all(e.rows > 0 and 0 <= e.median < 1 for e in coverage.errors().values())
    known = coverage.errors()["batched"].mean
    assert coverage.expected_error({"batched": 3.0}) == pytest.approx(known)
    half = coverage.expected_error({"batched": 1.0, f"{coverage.UNCHECKED}: sort": 1.0})
    assert half == pytest.approx((known + coverage.UNCHECKED_ERROR) / 2)
    assert "weight streaming" in coverage.errors()


# What if


def test_settings() -> None:
    changed = whatif.described(None, ["memory.bandwidth=300", "cores.clock=2"])
    assert changed["memory.bandwidth"] == 300 and changed["cores.clock"] == 2
    assert whatif.described("half_spyre", [])["cores.count"] == 16
    wrong_ones = ("", "=fast", "=-1", "=0", "=nan", "=inf")
    for wrong in (*(f"memory.bandwidth{text}" for text in wrong_ones), "memory.speed=2"):
        with pytest.raises(InvalidArgument):
            whatif.described(None, [wrong])
    with pytest.raises(InvalidArgument, match="32 cores"), whatif.assumed(whatif.described(None, ["cores.count=64"])):
        pass


def test_another_device_gets_other_plans_and_times(tiny: model.Prediction) -> None:
    part = Part("layer", "layer", 1, 64, 64)
    with whatif.assumed(whatif.described("half_spyre", [])):
        half = model.predict(TINY, replace(REQUEST, decode=0))
    assert devices.load()["cores.count"] == 32
    assert half.blocks[part].ns != tiny.blocks[part].ns
    assert all(int(plan.split()[0]) <= 16 for plan in half.blocks[part].plans)
    assert any(int(plan.split()[0]) > 16 for plan in tiny.blocks[part].plans)


@pytest.mark.slow
def test_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
    path.write_text(json.dumps({"model_type": "llama", "vocab_size": 512, **sizes}))
    base = [str(path), "--prompt", "64", "--decode", "1"]
    assert cli.main([*base, "--plans"]) == 0
    text = capsys.readouterr().out
    for word in ("time to first token", "tokens/s", "memory", "traffic", "bottleneck", "class of work", "cores x"):
        assert word in text
    assert cli.main([*base, "--set", "memory.bandwidth=300"]) == 0
    assert "Plans of the matmuls that differ" in capsys.readouterr().out
    plot = tmp_path / "sweep.html"
    assert cli.main([*base, "--sweep", "batch=1,2", "--plot", str(plot)]) == 0
    assert plot.read_text().count("<svg") == 3
    capsys.readouterr()
    assert cli.main([*base, "--plot", str(plot), "--json", "--quiet"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["predictions"]
    assert said["token_ms"] > 0 and said["blocks"]
    assert "where a token" in plot.read_text() and plot.read_text().count("<svg") == 2
    assert cli.main([*base, "--sweep", "batch=1,2", "--json"]) == 0
    assert [p["batch"] for p in json.loads(capsys.readouterr().out)["predictions"]] == [1, 2]
    assert cli.main([*base, "--sweep", "colour=1"]) == 2
    assert cli.main(["--list"]) == 0


@pytest.mark.slow
def test_llama_8b_decodes_at_the_speed_of_memory() -> None:
    found = model.predict(configs.find("llama-3.1-8b"), Request(1, 512, 128))
    streamed = found.config.parameters * 2 - found.config.vocab * found.config.hidden * 2
    assert found.token_ns > streamed / devices.load()["memory.bandwidth"], "faster than memory can be read"
    assert found.token_ns < 1.3 * streamed / devices.load()["memory.bandwidth"]
    assert coverage.checked_share(found.classes()) > 0.9


def test_weights_of_eight_bits() -> None:
    """A layer with codes streams half the bytes, and its memory is said."""
    c = replace(configs.find("llama-3.1-8b"), layers=1, vocab=512)
    request = passes.Request(1, 64, 1)
    whole, codes = (model.predict(replace(c, weights=weights), request) for weights in ("fp16", "fp8"))
    layers = [
        next(b for p, b in found.blocks.items() if p.kind == "layer" and p.tokens == 1) for found in (whole, codes)
    ]
    assert 0.5 < layers[1].read_bytes / layers[0].read_bytes < 0.52
    assert 0.5 < layers[1].ns / layers[0].ns < 0.7 and layers[1].transfers == 0
    linear = 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336)
    assert whole.memory().weights - codes.memory().weights == linear
