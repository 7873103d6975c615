# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_replay.py: replayed decoding steps give the bits of steps that ran, whatever changes."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from torch_spyre.models.blocks import compile_blocks

SIZES = {"vocab_size": 160, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
OPTIONS: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}


class Counts(transformers.LlamaForCausalLM):
    """A model whose logits depend on a number of the host."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        outputs.logits = outputs.logits + kwargs["past_key_values"].get_seq_length() / 100
        return outputs


def _model(kind: type[Any] = transformers.LlamaForCausalLM, replay: bool = True) -> Any:
    torch.manual_seed(0)
    model = kind(transformers.LlamaConfig(**SIZES, **HEADS)).eval().half().to("spyre")
    compile_blocks(model)
    model.forward.steps.enabled = replay
    return model


@pytest.fixture(scope="module")
def replayed() -> Any:
    return _model()


@pytest.fixture(scope="module")
def plain() -> Any:
    return _model(replay=False)


def _ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(1, 160, (rows, length), generator=torch.Generator().manual_seed(length))


def _replays(model: Any, cache: Any) -> bool:
    step = model.forward.steps.steps.get(cache.layers[0])
    return step is not None and step.recording is not None


class Talk:
    """A conversation token by token. All logits are kept, so that one overwritten by a later step shows."""

    def __init__(self, model: Any, cache: Any = None, rows: int = 1) -> None:
        self.model, self.rows, self.logits = model, rows, []
        self.cache = transformers.DynamicCache(config=model.config) if cache is None else cache

    def say(self, tokens: int) -> Talk:
        with torch.no_grad():
            for _ in range(tokens):
                ids = _ids(self.rows, len(self.logits) + 1)[:, -1:]
                outputs = self.model(input_ids=ids, past_key_values=self.cache, logits_to_keep=1)
                assert outputs.past_key_values is self.cache
                self.logits.append(outputs.logits)
        return self

    def heard(self) -> torch.Tensor:
        return torch.stack([x.cpu() for x in self.logits])


@pytest.mark.parametrize(
    ("static", "rows"),
    [(False, 1), pytest.param(True, 1, marks=pytest.mark.slow), pytest.param(True, 2, marks=pytest.mark.slow)],
)
def test_bits(replayed: Any, plain: Any, static: bool, rows: int) -> None:
    def cache() -> Any:
        return transformers.StaticCache(config=plain.config, max_cache_len=100) if static else None

    with torch.no_grad():
        ours, theirs = Talk(replayed, cache(), rows).say(7), Talk(plain, cache(), rows).say(7)
    assert torch.equal(ours.heard(), theirs.heard())
    assert _replays(replayed, ours.cache) and not _replays(plain, theirs.cache)
    for mine, other in zip(ours.cache.layers, theirs.cache.layers, strict=True):
        assert torch.equal(mine.keys.cpu(), other.keys.cpu()) and torch.equal(mine.values.cpu(), other.values.cpu())


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"num_beams": 2}])
def test_generation_with_padding_on_the_left(replayed: Any, plain: Any, options: dict[str, Any]) -> None:
    ids = _ids(2, 9)
    mask = torch.ones_like(ids)
    mask[1, :4] = ids[1, :4] = 0
    made = [m.generate(ids, attention_mask=mask, max_new_tokens=8, **OPTIONS, **options) for m in (replayed, plain)]
    assert torch.equal(made[0], made[1])


@pytest.mark.slow
def test_a_cache_that_grows(replayed: Any, plain: Any) -> None:
    """From 128 to 256 rows, and on in the same cache after a part of it was taken back."""
    texts = []
    for model in (replayed, plain):
        cache = transformers.DynamicCache(config=model.config)
        text = model.generate(_ids(1, 120), max_new_tokens=14, past_key_values=cache, **OPTIONS)
        cache.crop(-5)
        text = torch.cat([text[:, :-4], _ids(1, 3)], 1)
        texts.append(model.generate(text, max_new_tokens=6, past_key_values=cache, **OPTIONS))
        assert _replays(model, cache) == (model is replayed)
    assert torch.equal(*texts)


def _new_parameter(model: Any) -> None:
    norm = model.model.layers[1].input_layernorm
    norm.weight = torch.nn.Parameter(norm.weight.detach() * 2, requires_grad=False)


def _other_data(model: Any) -> None:
    model.lm_head.weight.data = model.lm_head.weight.data * 0.5


def _in_place(model: Any) -> None:
    with torch.no_grad():
        model.model.norm.weight.mul_(3)


def _other_number(model: Any) -> None:
    model.model.norm.variance_epsilon = 0.5


def _other_configuration(model: Any) -> None:
    model.config.num_hidden_layers = 1


def _hook(model: Any) -> None:
    model.model.norm.register_forward_hook(lambda module, args, output: output * 2)


def _other_forward(model: Any) -> None:
    model.model.norm.forward = lambda hidden: hidden * 3


CHANGES = [_other_data, _hook, _new_parameter, _in_place, _other_number, _other_configuration, _other_forward]


@pytest.mark.parametrize("change", [*CHANGES[:2], *(pytest.param(c, marks=pytest.mark.slow) for c in CHANGES[2:])])
def test_a_changed_model(change: Callable[[Any], None]) -> None:
    heard = []
    for replay in (True, False):
        model = _model(replay=replay)
        talk = Talk(model).say(4)
        assert _replays(model, talk.cache) is replay
        change(model)
        heard.append(talk.say(4).heard())
    assert torch.equal(heard[0], heard[1])
    assert not torch.equal(heard[0][4:], Talk(_model(), None).say(8).heard()[4:]), "the change has an effect"


def test_hooks_see_every_step() -> None:
    model, seen = _model(), []
    model.model.norm.register_forward_hook(lambda module, args, output: seen.append(output))
    Talk(model).say(6)
    assert len(seen) == 6


def test_a_number_of_the_host_is_not_replayed() -> None:
    ours, theirs = Talk(_model(Counts)).say(5), Talk(_model(Counts, replay=False)).say(5)
    assert torch.equal(ours.heard(), theirs.heard())
    assert not _replays(ours.model, ours.cache)


def test_copies(replayed: Any, plain: Any) -> None:
    """Of a cache, as people do with the prompt that many questions share, and of a model."""
    talk = Talk(replayed).say(4)
    fork = Talk(replayed, copy.deepcopy(talk.cache))
    fork.logits = list(talk.logits)
    twin = Talk(copy.deepcopy(replayed), copy.deepcopy(talk.cache))
    twin.logits = list(talk.logits)
    expected = Talk(plain).say(8).heard()
    for one in (talk, fork, twin):
        assert torch.equal(one.say(4).heard(), expected)
        assert _replays(one.model, one.cache)


def test_a_cache_takes_its_recording_with_it(replayed: Any) -> None:
    before = len(replayed.forward.steps.steps)
    talk = Talk(replayed).say(4)
    assert len(replayed.forward.steps.steps) == before + 1
    del talk
    assert len(replayed.forward.steps.steps) == before


def test_a_model_can_be_collected() -> None:
    """What is compared before a replay holds the model, which holds it."""
    model = _model()
    talk = Talk(model).say(4)
    assert _replays(model, talk.cache)
    weight = weakref.ref(model.model.layers[0].mlp.up_proj.weight)
    del model, talk
    gc.collect()
    assert weight() is None
