# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_generate.py: `generate()` of unmodified transformers on the card, eager and compiled.

Tokens are those of fp32 on the CPU, or differ first where fp32 sees a near tie.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers

import torch_spyre
from torch_spyre.models.blocks import compile_blocks
from torch_spyre.ops import fallbacks

VOCABULARY = 160
PROMPT, TOKENS = 9, 5
OPTIONS = {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
# Largest error of a logit. It is a sum of 128 products of hidden values near 1 and weights near 0.02, 0.23 in all; the
# hidden values went through about 24 roundings of 2^-10 each, 5 of them in the mean, so a logit is off by 0.0011. The
# largest of a thousand is four times that, the logit itself is rounded too: 0.006. Three times as much is an error.
NEAR = 0.02

SIZES = {"vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}


def _model(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "llama":
        model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **HEADS))
    elif kind == "qwen3":
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, **HEADS, head_dim=32))
    else:
        shape = {"vocab_size": VOCABULARY, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 256}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    return model.eval()


def _batch() -> dict[str, torch.Tensor]:
    """Two prompts, the second padded on the left."""
    ids = torch.randint(1, VOCABULARY, (2, PROMPT), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :4] = ids[1, :4] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _generate(model: Any, **options: Any) -> torch.Tensor:
    inputs = {name: x.to(model.device) for name, x in _batch().items()}
    made = model.generate(**inputs, **{**OPTIONS, **options})
    assert made.device.type == model.device.type, "the result is where the ids were"
    return made[:, PROMPT:].cpu()


def _assert_same(found: torch.Tensor, kind: str) -> None:
    """Row by row: equal, or the first other token is a near tie in fp32."""
    reference = _model(kind)
    batch = _batch()
    expected = _generate(reference)
    for row in range(2):
        differs = (found[row] != expected[row]).nonzero()
        if not len(differs):
            continue
        step = int(differs[0])
        prompt = batch["input_ids"][row][batch["attention_mask"][row].bool()]
        ids = torch.cat([prompt, expected[row, :step]])
        with torch.no_grad():
            logits = reference(ids[None]).logits[0, -1]
        gap = logits[expected[row, step]] - logits[found[row, step]]
        assert gap < NEAR, f"row {row}, token {step}: fp32 prefers another token by {gap:.4f}"


KINDS = ["llama", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gpt2", "qwen3"))]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    fallbacks.reset()
    return str(request.param)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_eager(kind: str, cache: str) -> None:
    """The default cache grows by one with each token, so a few tokens are enough."""
    model = _model(kind).half().to("spyre")
    options = {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
    _assert_same(_generate(model, **options), kind)
    assert not torch_spyre.report(), torch_spyre.report()


def test_static_cache_compiles_the_decoding_step(kind: str) -> None:
    model = _model(kind).half().to("spyre")
    _assert_same(_generate(model, cache_implementation="static"), kind)
    assert hasattr(model, "_compiled_call"), "transformers compiled nothing"
    assert not torch_spyre.report(), torch_spyre.report()


@pytest.mark.slow
def test_compiled_forward(kind: str) -> None:
    """The way of transformers' documentation to compile prefill as well."""
    model = _model(kind).half().to("spyre")
    model.forward = torch.compile(model.forward, dynamic=False)
    _assert_same(_generate(model, cache_implementation="static"), kind)
    assert not torch_spyre.report(), torch_spyre.report()


@pytest.mark.slow
def test_whole_model_compiled(kind: str) -> None:
    """`torch.compile(model)` hands `generate` to the model inside, which is not compiled; its own call is."""
    model = _model(kind).half().to("spyre")
    compiled = torch.compile(model, dynamic=False)
    _assert_same(_generate(compiled, cache_implementation="static", disable_compile=True), kind)
    batch = _batch()
    with torch.no_grad():
        expected = _model(kind)(**batch).logits
        found = compiled(**{name: x.to("spyre") for name, x in batch.items()}, use_cache=False).logits.cpu().float()
    seen = batch["attention_mask"].bool()
    assert (found - expected)[seen].abs().max() < NEAR


class Kept:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.values.append(value)

    def end(self) -> None:
        self.ended = True


def test_compiled_blocks(kind: str) -> None:
    """Greedy with both caches, beams, sampling and streaming on one pair of compiled blocks."""
    model = compile_blocks(_model(kind).half().to("spyre"))
    _assert_same(_generate(model), kind)
    _assert_same(_generate(model, cache_implementation="static"), kind)

    _assert_same_beams(model, kind)

    sampling = {"do_sample": True, "top_k": 20, "top_p": 0.95, "temperature": 0.9}
    drawn = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        drawn.append(_generate(model, **sampling))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])

    streamer, ids = Kept(), _batch()["input_ids"][:1].to("spyre")
    made = model.generate(ids, **OPTIONS, streamer=streamer).cpu()
    assert streamer.ended and torch.equal(torch.cat([v.flatten().cpu() for v in streamer.values]), made[0])
    assert not torch_spyre.report(), torch_spyre.report()


class Beams(transformers.LogitsProcessor):
    """Keeps the running beams of every step, and the log-probabilities of what may follow them."""

    def __init__(self) -> None:
        self.steps: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.steps.append((input_ids[:, PROMPT:].cpu().clone(), scores.float().cpu().clone()))
        return scores

    def of(self, row: int) -> Iterator[dict[tuple[int, ...], torch.Tensor]]:
        for ids, logs in self.steps:
            texts, follow = (x.unflatten(0, (2, -1))[row] for x in (ids, logs))
            yield {tuple(text.tolist()): x for text, x in zip(texts, follow, strict=True)}


def _assert_same_beams(model: Any, kind: str) -> None:
    """Step by step: the same beams as in fp32, or those that were exchanged score as close as the errors allow.

    A score is a sum of log-probabilities. If each step's are off by at most e, then after n steps the scores of two
    beams may change places if fp32 has them less than 2·(e1 + … + en) apart. A logit that is off by d moves a
    log-probability by at most 2·d: once itself, once through the sum of all.
    """
    card, host = Beams(), Beams()
    found = _generate(model, num_beams=2, logits_processor=[card], cache_implementation="static")
    expected = _generate(_model(kind), num_beams=2, logits_processor=[host])
    for row in range(2):
        allowed = 1e-5  # rounding of fp32 sums
        ends = [{tuple(text[row].tolist()): torch.zeros(1)} for text in (found, expected)]
        chosen = [*card.of(row), ends[0]], [*host.of(row), ends[1]]
        for ours, theirs in zip(*chosen, strict=True):
            if set(ours) != set(theirs):
                lost = max(_score(kind, row, x) for x in set(theirs) - set(ours))
                gap = lost - min(_score(kind, row, x) for x in set(ours) - set(theirs))
                assert gap <= allowed, f"row {row}: fp32 prefers other beams by {gap:.4f}, allowed are {allowed:.4f}"
                break
            errors = [float((ours[x] - theirs[x]).abs().max()) for x in ours]
            assert all(e < 2 * NEAR for e in errors), errors
            allowed += 2 * max(errors)


def _score(kind: str, row: int, tokens: tuple[int, ...]) -> float:
    """Sum of the log-probabilities of a continuation in fp32."""
    batch = _batch()
    prompt = batch["input_ids"][row][batch["attention_mask"][row].bool()]
    made = torch.tensor(tokens)
    with torch.no_grad():
        logs = _model(kind)(torch.cat([prompt, made])[None]).logits[0].log_softmax(-1)
    return float(logs[len(prompt) - 1 : -1].gather(1, made[:, None]).sum())


def test_logits_of_every_step(kind: str) -> None:
    model = compile_blocks(_model(kind).half().to("spyre"))
    batch = _batch()
    asked = {"output_logits": True, "return_dict_in_generate": True}
    found = model.generate(**{n: x.to("spyre") for n, x in batch.items()}, **OPTIONS, **asked)
    fixed = found.sequences.cpu()
    mask = torch.cat([batch["attention_mask"], torch.ones(2, TOKENS, dtype=torch.int64)], 1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        expected = _model(kind)(fixed, attention_mask=mask, position_ids=positions).logits
    for step, logits in enumerate(found.logits):
        error = (logits.cpu().float() - expected[:, PROMPT - 1 + step]).abs().max()
        assert error < NEAR, (step, float(error))
