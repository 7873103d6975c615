# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_blocks.py: a decoder block compiled once serves all layers and any length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from torch_spyre.errors import InvalidArgument
from torch_spyre.models.blocks import compile_blocks, restore_blocks
from torch_spyre.models.lengths import BufferLayer, padded_query
from torch_spyre.models.quantised_linear import quantise

LAYERS = 4
SHAPE = {"vocab_size": 160, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": LAYERS}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048}


def _llama(layers: int = LAYERS) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**SHAPE, "num_hidden_layers": layers}, **HEADS)
    return transformers.LlamaForCausalLM(config).eval()


def _gemma() -> Any:
    """Every other layer sees a window of 16 tokens."""
    torch.manual_seed(0)
    kinds = ["sliding_attention", "full_attention"] * (LAYERS // 2)
    config = transformers.Gemma3TextConfig(
        **SHAPE, **HEADS, head_dim=32, sliding_window=16, layer_types=kinds, bos_token_id=0, eos_token_id=0
    )
    return transformers.Gemma3ForCausalLM(config).eval()


@pytest.fixture()
def model() -> Any:
    return _llama()


class Counting:
    """A compiler back end that runs graphs as they are and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        self.graphs += 1
        return graph


def _ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(1, 160, (rows, length), generator=torch.Generator().manual_seed(length))


def _generate(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    return model.generate(
        ids, **{"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, **options}
    ).cpu()


def test_one_graph_for_prefill_and_one_for_decode(model: Any) -> None:
    ids = _ids(1, 7)
    expected = _generate(model, ids)
    counter = Counting()
    compile_blocks(model, backend=counter)
    assert torch.equal(_generate(model, ids, cache_implementation="static"), expected)
    assert torch.equal(_generate(model, ids), expected)
    assert counter.graphs == 2, "both caches use the same graphs"
    restore_blocks(model)
    assert torch.equal(_generate(model, ids), expected)
    assert [layer.self_attn.layer_idx for layer in model.model.layers] == list(range(LAYERS))
    assert "forward" not in model.__dict__


def test_a_head_of_codes_is_compiled_for_one_row(model: Any) -> None:
    """Decoding reads its codes; a prompt's rows of logits, of any number, need no graph."""
    quantise(model, "int8", skip=())
    expected = _generate(model, _ids(1, 7))
    counter = Counting()
    compile_blocks(model, backend=counter)
    assert torch.equal(_generate(model, _ids(1, 7)), expected)
    assert counter.graphs == 3, "a block for the prompt, one for a token, and the head for a row"
    hidden = torch.ones(1, 5, 128)
    with torch.no_grad():
        model.lm_head(hidden)
    assert counter.graphs == 3
    restore_blocks(model)
    assert "forward" not in model.lm_head.__dict__


def test_twenty_lengths_need_seven_graphs() -> None:
    """One per step of the prompt and one to decode, if the cache is as long as the longest text from the start."""
    model, reference, counter = _llama(2), _llama(2), Counting()
    compile_blocks(model, backend=counter)
    for length in (1, 2, 5, 15, 16, 17, 30, 63, 64, 65, 99, 127, 128, 129, 200, 255, 257, 400, 511, 700):
        cache = transformers.StaticCache(config=model.config, max_cache_len=768)
        ids = _ids(1, length)
        assert torch.equal(
            _generate(model, ids, max_new_tokens=3, past_key_values=cache), _generate(reference, ids, max_new_tokens=3)
        ), length
    # One token is a step of decoding. The second chunk of 700 tokens sees more keys than the first: one graph more.
    assert counter.graphs <= 5 + 2, counter.graphs  # 16, 64, 128, 256, 512


def test_growing_cache_needs_a_graph_per_capacity(model: Any) -> None:
    reference, counter = _llama(), Counting()
    compile_blocks(model, backend=counter)
    ids = _ids(1, 100)
    assert torch.equal(_generate(model, ids, max_new_tokens=60), _generate(reference, ids, max_new_tokens=60))
    assert counter.graphs == 3, "prefill, decode up to 128 keys, decode up to 256"


def test_padded_batch_and_beams(model: Any) -> None:
    reference = _llama()
    compile_blocks(model, backend=Counting())
    ids = _ids(2, 9)
    mask = torch.ones_like(ids)
    mask[1, :4] = ids[1, :4] = 0
    for options in ({}, {"num_beams": 3}, {"num_beams": 2, "cache_implementation": "static"}):
        plain = {name: x for name, x in options.items() if name == "num_beams"}
        found = _generate(model, ids, attention_mask=mask, **options)
        assert torch.equal(found, _generate(reference, ids, attention_mask=mask, **plain)), options


@pytest.mark.parametrize("cache", [{}, {"cache_implementation": "static"}])
def test_sliding_window(cache: dict[str, str]) -> None:
    model, reference = _gemma(), _gemma()
    compile_blocks(model, backend=Counting())
    ids = _ids(1, 30)
    assert torch.equal(_generate(model, ids, **cache), _generate(reference, ids))


def test_a_conversation_goes_on_in_its_cache(model: Any) -> None:
    reference = _llama()
    compile_blocks(model, backend=Counting())
    ours, theirs = (transformers.DynamicCache(config=model.config) for _ in range(2))
    text = _ids(1, 20)
    for length in (20, 45):
        text = torch.cat([text, _ids(1, length)], 1) if length != 20 else text
        found = _generate(model, text, past_key_values=ours)
        assert torch.equal(found, _generate(reference, text, past_key_values=theirs))
        text = found
    assert isinstance(ours.layers[0], BufferLayer) and ours.get_seq_length() == theirs.get_seq_length()
    assert torch.allclose(ours.layers[1].keys, theirs.layers[1].keys, atol=1e-5)
    ours.crop(-5), theirs.crop(-5)
    assert ours.layers[0].keys.shape == theirs.layers[0].keys.shape


def test_forward_without_generate(model: Any) -> None:
    reference = _llama()
    compile_blocks(model, backend=Counting())
    ids = _ids(2, 70)
    with torch.no_grad():
        for options in ({}, {"use_cache": False}, {"logits_to_keep": 3}):
            found, expected = model(ids, **options).logits, reference(ids, **options).logits
            assert found.shape == expected.shape and torch.allclose(found, expected, atol=1e-5), options
        hidden = model(ids, output_hidden_states=True).hidden_states
        assert len(hidden) == LAYERS + 1


def test_a_step_of_decoding_is_not_padded() -> None:
    assert [padded_query(n) for n in (1, 2, 16, 17, 512)] == [1, 16, 16, 64, 512]


def test_logits_on_the_card(model: Any) -> None:
    ids = torch.randint(0, 160, (1, 11), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(ids).logits
        compile_blocks(model.half().to("spyre"))
        found = model(ids.to("spyre"), use_cache=False).logits.cpu().float()
    cosine = torch.nn.functional.cosine_similarity(found, expected, dim=-1)
    assert cosine.min() > 0.999


def test_nothing_to_compile() -> None:
    with pytest.raises(InvalidArgument, match="no repeated blocks"):
        compile_blocks(torch.nn.Linear(2, 2))
