# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_blocks.py: a decoder block compiled once serves all layers of an unmodified model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from torch_spyre.errors import InvalidArgument
from torch_spyre.models.blocks import compile_blocks, restore_blocks

LAYERS = 4


@pytest.fixture()
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=160,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    return transformers.LlamaForCausalLM(config).eval()


class Counting:
    """A compiler back end that runs graphs as they are and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        self.graphs += 1
        return graph


def _generate(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    with torch.no_grad():
        made = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0, **options)
    return made.cpu()


def test_one_graph_for_prefill_and_one_for_decode(model: Any) -> None:
    ids = torch.arange(7)[None]
    expected = _generate(model, ids)
    counter = Counting()
    compile_blocks(model, backend=counter)
    assert torch.equal(_generate(model, ids, cache_implementation="static"), expected)
    assert counter.graphs == 2
    assert torch.equal(_generate(model, ids), expected), "a growing cache runs the block as it is"
    restore_blocks(model)
    assert torch.equal(_generate(model, ids), expected)
    assert [layer.self_attn.layer_idx for layer in model.model.layers] == list(range(LAYERS))


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
