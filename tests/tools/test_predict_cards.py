# SPDX-License-Identifier: Apache-2.0
"""pytest -q tests/tools/test_predict_cards.py

spyre-predict --cards: shares of a model that add up to the whole, collectives between them, memory, refusals, sweeps.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from torch_spyre.errors import InvalidArgument
from torch_spyre.perf.device import Device, load
from torch_spyre.perf.fabric import Fabric, collective_seconds
from torch_spyre.predict import cli, configs, decoder_parts, mamba_parts, model, segments, whatif
from torch_spyre.predict.dimensions import Mamba, ModelConfig
from torch_spyre.predict.measure import Timed
from torch_spyre.predict.model import Prediction, enough_cards, memory
from torch_spyre.predict.passes import Exchange, Request, passes
from torch_spyre.predict.sharding import counts, shard

TINY = ModelConfig("tiny", 128, 2, 4, 2, 64, 256, 512)
EXPERTS = replace(TINY, experts=4, experts_per_token=2, shared=128)
HYBRID = replace(TINY, rotary=False, mamba=Mamba(1, 4, 64, 64, chunk=16))
CARDS = 2


# A model's shares compute what the model computes


def drawn(module: nn.Module) -> nn.Module:
    for p in module.double().parameters():
        nn.init.normal_(p, std=0.1)
    return module


def cut(whole: nn.Module, part: nn.Module, rank: int) -> nn.Module:
    """Gives a share its columns or rows; along which dim is seen from the sizes."""
    names = dict(whole.named_parameters())
    for name, p in part.double().named_parameters():
        value = names[name]
        for dim, size in enumerate(p.shape):
            if size != value.shape[dim]:
                value = value.narrow(dim, rank * size, size)
        p.data.copy_(value)
    return part


def joined(join: segments.Join, norm: nn.Module, after: nn.Module | None = None, bias: Tensor | None = None) -> None:
    join.norm.load_state_dict(norm.state_dict())
    if after is not None:
        join.after.load_state_dict(after.state_dict())
    if bias is not None:
        join.bias.data.copy_(bias)


def attention_inputs(c: ModelConfig, tokens: int) -> list[Tensor]:
    angle = torch.rand(tokens, (c.rotary_dim or c.head_dim) // 2, dtype=torch.float64)
    causal = torch.full((tokens, tokens), -math.inf, dtype=torch.float64).triu(1)
    cache = [torch.zeros(2, c.kv_heads, tokens, c.head_dim, dtype=torch.float64) for _ in range(2)]
    return [angle.cos(), angle.sin(), causal.repeat(c.heads // c.kv_heads, 1), *cache]


@pytest.mark.parametrize(
    "c",
    [
        TINY,
        replace(TINY, attention_bias=True, qk_norm=True),
        replace(TINY, post_norms=True, gated=False),
        replace(TINY, norm="layer", attention_bias=True, biases=True, gated=False, rotary=False),
        replace(TINY, norm="plain", kv_heads=4),
    ],
    ids=["plain", "bias and head norms", "norms after", "as GPT-2", "as OLMo"],
)
def test_shares_of_a_layer_add_up(c: ModelConfig) -> None:
    torch.manual_seed(0)
    layer, one, tokens = drawn(decoder_parts.Dense(c, "cpu")), shard(c, CARDS), 8
    x = torch.randn(2, tokens, c.hidden, dtype=torch.float64)
    inputs = attention_inputs(c, tokens)
    bias = (layer.attention.o_bias, layer.mlp.down_bias) if c.biases else (None, None)
    partial, halves = [], []
    for rank in range(CARDS):
        first, second = drawn(segments.AttentionSegment(one, "cpu")), drawn(segments.MlpSegment(one, "cpu"))
        cut(layer.attention, first.attention, rank)
        cut(layer.mlp, second.mlp, rank)
        joined(first.join, layer.norms[0], bias=torch.zeros(c.hidden) if c.biases else None)
        joined(second.join, layer.norms[1], layer.norms[2], bias[0])
        partial.append(first(x, torch.zeros_like(x), *of_heads(inputs, one, rank))[1])
        halves.append(second)
    found = [half(x, sum(partial)) for half in halves]
    reduced = sum(y for _, y in found) + (bias[1] if c.biases else 0)
    torch.testing.assert_close(found[0][0] + layer.norms[3](reduced), layer(x, *inputs))


def of_heads(inputs: list[Tensor], one: ModelConfig, rank: int) -> list[Tensor]:
    """Rotary factors, mask, and this card's part of the cache."""
    return [*inputs[:3], *(t.narrow(1, rank * one.kv_heads, one.kv_heads).clone() for t in inputs[3:])]


def test_shares_of_a_layer_with_one_sum_add_up() -> None:
    torch.manual_seed(0)
    c = replace(TINY, norm="layer", parallel=True, attention_bias=True, biases=True, gated=False, rotary_dim=16)
    layer, one = drawn(decoder_parts.Dense(c, "cpu")), shard(c, CARDS)
    x = torch.randn(2, 8, c.hidden, dtype=torch.float64)
    inputs = attention_inputs(c, 8)
    total = layer.attention.o_bias + layer.mlp.down_bias
    for rank in range(CARDS):
        segment = drawn(segments.ParallelSegment(one, "cpu"))
        cut(layer.attention, segment.attention, rank)
        cut(layer.mlp, segment.mlp, rank)
        joined(segment.join, layer.norms[0], bias=torch.zeros(c.hidden))
        segment.norm.load_state_dict(layer.norms[1].state_dict())
        total = total + segment(x, torch.zeros_like(x), *of_heads(inputs, one, rank))[1]
    torch.testing.assert_close(x + total, layer(x, *inputs))
    assert passes(c, Request(1, 64, 0), CARDS)[0].exchanges[Exchange("all_reduce", 64 * 128 * 2)] == 1 + c.layers


def test_shares_of_attention_with_a_norm_over_all_heads_add_up() -> None:
    torch.manual_seed(0)
    c = replace(TINY, qk_norm=True, wide_qk_norm=True, pre_norms=False, post_norms=True)
    layer, one = drawn(decoder_parts.Dense(c, "cpu")), shard(c, CARDS)
    x = torch.randn(2, 8, c.hidden, dtype=torch.float64)
    inputs = attention_inputs(c, 8)
    first, second = [], []
    for rank in range(CARDS):
        project, attend = drawn(segments.ProjectSegment(one, "cpu")), segments.AttendSegment(one, CARDS, "cpu")
        cut(layer.attention, project.attention, rank)
        cut(layer.attention, attend.attention, rank)
        first.append(project(x, torch.zeros_like(x)))
        second.append(attend)
    squares = sum(found[-1] for found in first)
    total = 0
    for rank, (attend, (_, q, k, v, _)) in enumerate(zip(second, first, strict=True)):
        total = total + attend(q, k, v, squares, *of_heads(inputs, one, rank))
    torch.testing.assert_close(total, layer.attention(x, *inputs))


def test_shares_of_experts_add_up() -> None:
    torch.manual_seed(0)
    c, one = EXPERTS, shard(EXPERTS, CARDS)
    layer, expert = drawn(decoder_parts.Routed(c, "cpu")), drawn(decoder_parts.Expert(c, "cpu"))
    x = torch.randn(2, 8, c.hidden, dtype=torch.float64)
    inputs = attention_inputs(c, 8)
    after_attention = x + layer.attention(layer.norms[0](x), *inputs)
    wanted, wanted_shares, wanted_experts = layer(x, *inputs)
    total = torch.zeros_like(x)
    for rank in range(CARDS):
        segment = drawn(segments.RouterSegment(one, "cpu"))
        joined(segment.join, layer.norms[1])
        segment.router.load_state_dict(layer.router.state_dict())
        cut(layer.shared, segment.shared, rank)
        kept, y, shares, experts, partial = segment(x, after_attention - x)
        torch.testing.assert_close(kept, after_attention)
        torch.testing.assert_close(shares, wanted_shares)
        assert torch.equal(experts, wanted_experts)
        mine = cut(expert, decoder_parts.Expert(one, "cpu"), rank)
        total += partial + mine.mlp(y)
    torch.testing.assert_close(after_attention + total, wanted + expert.mlp(layer.norms[1](after_attention)))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("tokens", [1, 20])
def test_shares_of_a_mamba_layer_add_up(tokens: int, groups: int) -> None:
    torch.manual_seed(0)
    c = replace(HYBRID, mamba=replace(HYBRID.mamba, groups=groups))
    m, one = c.mamba, shard(c, CARDS)
    mixer, norm = drawn(mamba_parts.Mixer(c, "cpu")), drawn(decoder_parts.Norm(c.hidden, "cpu"))
    mixer.scan.decay.data = -mixer.scan.decay.data.abs()
    x = torch.randn(2, tokens, c.hidden, dtype=torch.float64)
    chunk = min(m.chunk, tokens)
    causal = torch.full((chunk, chunk), -math.inf, dtype=torch.float64).triu(1)
    sizes = ((2, 3, m.inner), (2, 3, 2 * groups, m.state), (2, m.heads, m.head_dim, m.state))
    before, b_and_c, state = (torch.randn(size, dtype=torch.float64) for size in sizes)
    ranks = []
    for rank in range(CARDS):
        if groups > 1:
            first = segments.MambaSegment(one, "cpu").double()
            scan, out = first.mixer.scan, first.mixer
        else:
            first, out = segments.ScanSegment(one, "cpu").double(), segments.OutSegment(one, CARDS, "cpu").double()
            scan = first.scan
        joined(first.join, norm)
        cut_scan(mixer.scan, scan, rank)
        out.norm.data = mixer.norm.data.narrow(0, rank * one.mamba.inner, one.mamba.inner)
        out.out.data = mixer.out.data.narrow(0, rank * one.mamba.inner, one.mamba.inner)
        held = [before, of_groups(b_and_c.flatten(2), rank, groups, 2), state]
        held = [t if i == 1 else t.chunk(CARDS, (2, 0, 1)[i])[rank] for i, t in enumerate(held)]
        ranks.append((out, first(x, torch.zeros_like(x), *(t.clone() for t in held), causal)))
    if groups > 1:
        total = sum(found[1] for _, found in ranks)
    else:
        squares = sum(found[2] for _, found in ranks)
        total = sum(out(found[1], squares) for out, found in ranks)
    torch.testing.assert_close(total, mixer(norm(x), before.clone(), b_and_c.flatten(2), state.clone(), causal))


def of_groups(t: Tensor, rank: int, groups: int, dim: int) -> Tensor:
    """This card's part of B and C, which stand one after another; all of them if there is one group."""
    if groups == 1:
        return t
    return torch.cat([half.chunk(CARDS, dim)[rank] for half in t.chunk(2, dim)], dim)


def cut_scan(whole: mamba_parts.Scan, part: mamba_parts.Scan, rank: int) -> None:
    groups = whole.m.groups
    shared = ("b_and_c", "conv_b_and_c.weight", "conv_b_and_c.bias")
    names = dict(part.named_parameters())
    for name, value in whole.named_parameters():
        here = of_groups(value, rank, groups, -1) if name in shared else value.chunk(CARDS, -1)[rank]
        names[name].data.copy_(here)


def test_rows_of_the_embedding_and_columns_of_the_head_add_up() -> None:
    torch.manual_seed(0)
    c, one = replace(TINY, vocab=511), shard(replace(TINY, vocab=511), CARDS)
    assert one.vocab == 256, "padded"
    table, head = torch.randn(512, c.hidden).double(), drawn(decoder_parts.Head(replace(c, vocab=512), "cpu"))
    tokens = torch.randint(511, (20,))
    total, scores = torch.zeros(20, c.hidden).double(), []
    for rank in range(CARDS):
        rows, columns = segments.EmbeddingRows(one, "cpu").double(), segments.HeadColumns(one, "cpu").double()
        rows.table.data = table[rank * 256 : rank * 256 + 256]
        here = (tokens // 256 == rank).double()[:, None]
        total += rows(tokens % 256, here)
        joined(columns.join, head.norm)
        columns.table.data = head.table.data[:, rank * 256 : rank * 256 + 256]
        scores.append(columns(table[:4], table[4:8]))
    assert torch.equal(total, table[tokens])
    torch.testing.assert_close(torch.cat(scores, -1), head(table[:4] + table[4:8]))


# What cards tell one another


def test_two_sums_for_each_layer_and_a_gather_of_the_scores() -> None:
    c = configs.find("llama-3.1-8b")
    prefill, decode = passes(c, Request(2, 512, 1), 4)
    assert prefill.times == 2
    hidden, vocabulary = 4096 * 2, 128256 * 2
    assert prefill.exchanges == {Exchange("all_reduce", 512 * hidden): 65, Exchange("all_gather", vocabulary): 1}
    assert decode.exchanges == {Exchange("all_reduce", 2 * hidden): 65, Exchange("all_gather", 2 * vocabulary): 1}
    assert not passes(c, Request(2, 512, 1))[0].exchanges


def test_a_mamba_layer_adds_up_squares_too() -> None:
    decode = passes(configs.find("granite-4-h-small"), Request(1, 64, 1), 4)[1]
    stick = 64 * 2
    sums = {Exchange("all_reduce", 4096 * 2): 81, Exchange("all_reduce", stick): 36}
    assert decode.exchanges == {**sums, Exchange("all_gather", 100352 * 2): 1}


def test_a_prediction_adds_up() -> None:
    one, two = (model.predict(TINY, Request(1, 64, 1), cards=n) for n in (1, 2))
    assert one.communication(True) == one.communication(False) == 0
    prefill = two.phases[0]
    spent = sum(collective_seconds(e.kind, e.nbytes, 2, Fabric.of()).seconds * n for e, n in prefill.exchanges.items())
    blocks = sum(two.blocks[part].ns * n for part, n in prefill.counts.items())
    assert two.first_token_ns == pytest.approx(blocks + spent * 1e9 + two.host_ns)
    assert two.communication(True) == pytest.approx(spent * 1e9 / two.first_token_ns)
    macs = [sum(p.blocks[part].macs * n for part, n in p.phases[0].counts.items()) for p in (one, two)]
    assert macs[0] == 2 * macs[1], "each card does half of the work"
    assert all(b.transfers == 0 for b in two.blocks.values()), "nothing falls back to the host"


# Memory


def test_memory_of_each_card() -> None:
    c, request = configs.find("llama-3.1-70b"), Request(4, 1024, 1024)
    whole, half = memory(c, request), memory(c, request, 2)
    norms = (2 * c.layers + 1) * c.hidden * 2
    assert 2 * half.weights == whole.weights + norms, "all but the norms is shared"
    assert 2 * half.cache == whole.cache
    assert enough_cards(c, Request()) == 2
    assert enough_cards(configs.find("llama-3.1-8b"), Request()) == 1
    assert enough_cards(configs.find("gemma-3-1b"), Request(64, 400000)) is None


@pytest.mark.parametrize("name", configs.PUBLISHED)
def test_every_published_model_can_be_divided(name: str) -> None:
    c = configs.find(name)
    for cards in counts(c):
        one = shard(c, cards)
        assert one.heads * cards == c.heads and one.kv_heads * cards == c.kv_heads
        assert one.parameters * cards >= c.parameters
    assert counts(configs.find("smollm2-135m")) == [1, 3]
    assert counts(configs.find("granite-4-h-small")) == [1, 2, 4, 8]


# The command


def fake(made: list[tuple[int, Request, Device]]) -> object:
    """A prediction without compiling: every block takes as long as its card's memory has gigabytes a second."""

    def predict(c: ModelConfig, request: Request, progress: object = None, cards: int = 1) -> Prediction:
        device = load()
        made.append((cards, request, device))
        phases = passes(c, request, cards)
        timed = Timed("x", 1e6 / device["memory.bandwidth"], 1, 0, 1, 1, 1, {"memory": 1.0}, {}, ("a plan",), 1)
        return Prediction(c, request, tuple(phases), {part: timed for p in phases for part in p.counts}, cards, device)

    return predict


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Request, Device]]:
    calls: list[tuple[int, Request, Device]] = []
    monkeypatch.setattr(model, "predict", fake(calls))
    return calls


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--cards 0", "0 cards: predictions are for 1 to 16"),
        ("--cards 17", "17 cards: predictions are for 1 to 16"),
        ("--cards=-2", "-2 cards"),
        ("--cards x", "--cards x: write 4, or 1,2,4,8"),
        ("--cards=", "--cards : write"),
        ("--cards 1,,2", "--cards 1,,2: write"),
        ("--cards 2.5", "--cards 2.5: write"),
        (
            "--cards 3",
            "32 heads, 8 KV heads, 14336 columns of the MLP do not divide by 3; 1, 2, 4, 8 cards are possible",
        ),
        ("--cards 1,16", "8 KV heads do not divide by 16"),
        ("--cards 2,4 --sweep batch=1,2", "vary one thing at a time"),
        ("--cards 2 --sweep cards=1,2", "vary one thing at a time"),
        ("--sweep cards=", "--sweep cards=: write"),
        ("--sweep heads=1", "--sweep heads=1: write"),
        ("--layers 0", "0 layers"),
    ],
)
def test_bad_input_is_named(options: str, words: str, made: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["llama-3.1-8b", *options.split()]) == 2
    assert words in capsys.readouterr().err
    assert not made, "refused before anything is predicted"


def test_a_description_without_a_fabric_has_one_card() -> None:
    bare = Device("bare", "", {k: v for k, v in load().constants.items() if not k.startswith("fabric.")})
    with whatif.assumed(bare), pytest.raises(InvalidArgument, match="bare has no constant fabric"):
        model.predict(TINY, Request(1, 64, 1), cards=2)


def test_too_few_cards_say_how_many_would_do(made: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["llama-3.1-70b", "--cards", "1"]) == 1
    assert "does not fit 1 card: 141" in (text := capsys.readouterr().out) and "2 cards would do" in text
    assert cli.main(["llama-3.1-70b", "--cards", "1,2,4"]) == 0
    text = capsys.readouterr().out
    assert "does not fit 1 card" in text and [line.split()[0] for line in text.splitlines()[3:]] == ["2", "4"]
    huge = ["llama-3.1-70b", "--batch", "512", "--prompt", "8192", "--cards", "2"]
    assert cli.main(huge) == 1
    assert "needed on each" in (text := capsys.readouterr().out) and "would do" in text


def test_one_number_of_cards_is_a_report(made: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["mixtral-8x7b", "--cards", "4"]) == 0
    text = capsys.readouterr().out
    for words in (
        "4, tensor parallel",
        "communication:",
        "on each card",
        "all_reduce",
        "chain+multicast",
        "all_gather",
    ):
        assert words in text
    assert "not checked: collectives" in text and "nothing overlaps" in text and "evenly over the experts" in text
    assert "its dimensions" not in text
    assert cli.main(["granite-4-h-30b", "--cards", "4"]) == 0
    assert "Assumed: its dimensions, except" in capsys.readouterr().out
    assert cli.main(["mixtral-8x7b", "--cards", "1"]) == 0
    text = capsys.readouterr().out
    assert "all_reduce" not in text and "tensor parallel" not in text


def test_sweep_over_cards(made: list[object], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "cards.html"
    assert cli.main(["granite-4-h-small", "--cards", "1,2,4,8", "--plot", str(page)]) == 0
    text = capsys.readouterr().out
    header, _, *rows, note, _ = text.splitlines()
    assert note.startswith("note: assumed: its dimensions")
    assert "comm. % per token" in header and "memory per card" in header
    assert [r.split()[0] for r in rows] == ["1", "2", "4", "8"]
    drawing = page.read_text()
    assert drawing.count("<svg") == 6 and "memory per card (GB)" in drawing
    assert cli.main(["granite-4-h-small", "--sweep", "cards=1,2,4,8"]) == 0
    assert capsys.readouterr().out.splitlines() == text.splitlines()[:-1]


def test_sweeps_follow_the_other_options(
    made: list[tuple[int, Request, Device]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Another device, cards and plans hold for every point of a sweep."""
    page = tmp_path / "page.html"
    options = ["--sweep", "batch=1,2", "--set", "memory.bandwidth=300", "--cards", "2", "--plans", "--plot", str(page)]
    assert cli.main(["llama-3.2-1b", "--decode", "1", *options]) == 0
    text = capsys.readouterr().out
    assert [(n, r.batch, d["memory.bandwidth"]) for n, r, d in made] == [
        *((2, batch, 151.0) for batch in (1, 2)),
        *((2, batch, 300.0) for batch in (1, 2)),
    ]
    assert "spyre:\n" in text and "memory.bandwidth=300:\n" in text
    assert "memory.bandwidth=300, batch 2, head" in text and "a plan" in text
    assert page.read_text().count("<svg") == 12
    made.clear()
    assert cli.main(["llama-3.2-1b", "--sweep", "prompt=64,128", "--device", "half_spyre"]) == 0
    assert [d["cores.count"] for _, _, d in made] == [32, 32, 16, 16]


def test_what_if_on_several_cards(made: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["llama-3.1-8b", "--cards", "4", "--set", "fabric.link_bandwidth=57", "--plans"]) == 0
    text = capsys.readouterr().out
    assert "llama-3.1-8b on 4 cards" in text and "a plan" in text
    row = next(line for line in text.splitlines() if line.startswith("communication, % of first token"))
    slow, fast = map(float, row.split()[-2:])
    assert fast < slow
