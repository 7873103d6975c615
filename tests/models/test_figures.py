# SPDX-License-Identifier: Apache-2.0
"""pytest tests/models/test_figures.py: the figures of the priority models agree with what is known of the originals.

Numbers of parameters follow from the figures by the formulas here, term by term, and not from any list.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from parameter_counts import FORMULAS, decoder, granite_4

from torch_spyre.errors import InvalidArgument
from torch_spyre.numerics.priority import PRIORITY
from torch_spyre.numerics.sources import SOURCES, described, other_than_default, parameters
from torch_spyre.predict import configs
from torch_spyre.predict.configs import PUBLISHED

# Models that transformers' configuration classes describe without arguments, and figures that those leave open.
_OF_TRANSFORMERS: dict[str, set[str]] = {
    "mixtral-8x7b": set(),
    "phi-3-mini": {"sliding_window"},
    "gpt-2": set(),
    "gpt-neox-20b": set(),
    "olmo-7b": set(),
    "bert-base": set(),
    "roberta-base": {"max_position_embeddings", "type_vocab_size", "layer_norm_eps"},
    "modernbert-base": set(),
    "vit-base": {"num_labels"},
}


def test_every_model_has_a_source() -> None:
    assert set(SOURCES) == set(PRIORITY)


@pytest.mark.parametrize("name", _OF_TRANSFORMERS)
def test_figures_are_those_of_transformers(name: str) -> None:
    assert set(other_than_default(PRIORITY[name])) == _OF_TRANSFORMERS[name]


@pytest.mark.parametrize("name", PRIORITY)
def test_the_parameters_are_those_of_the_figures(name: str) -> None:
    model = PRIORITY[name]
    assert parameters(model) == FORMULAS[name](model.published)


@pytest.mark.parametrize("name", [name for name in PRIORITY if name in PUBLISHED])
def test_predictions_count_the_same_parameters(name: str) -> None:
    assert PUBLISHED[name].parameters == FORMULAS[name](PRIORITY[name].published)


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in PRIORITY])
def test_parameters_of_predicted_models(name: str) -> None:
    c = PUBLISHED[name]
    figures = {"hidden_size": c.hidden, "head_dim": c.head_dim, "num_attention_heads": c.heads}
    figures |= {"num_key_value_heads": c.kv_heads, "intermediate_size": c.intermediate, "vocab_size": c.vocab}
    figures |= {"num_hidden_layers": c.layers, "tie_word_embeddings": c.tied, "num_local_experts": c.experts}
    norms = 4 if c.post_norms else 2
    if c.mamba is not None:
        m, kinds = c.mamba, ["mamba"] * c.mamba.layers + ["attention"] * (c.layers - c.mamba.layers)
        figures |= {"layer_types": kinds, "mamba_n_heads": m.heads, "mamba_d_head": m.head_dim, "mamba_d_conv": m.conv}
        figures |= {"mamba_d_state": m.state, "mamba_n_groups": m.groups, "shared_intermediate_size": c.shared}
        if not c.experts:  # the MLP that all tokens share is the only one
            figures |= {"shared_intermediate_size": c.intermediate}
        assert c.parameters == granite_4(figures)
        return
    assert c.parameters == decoder(figures, qkv_bias=c.attention_bias, head_norms=c.qk_norm, norms=norms)


def test_predictions_read_a_hybrid_as_transformers_writes_it(tmp_path: Path) -> None:
    """granite-4-h-tiny from its config.json, with either name of its layers."""
    for kinds in (
        PRIORITY["granite-4-h-tiny"].published["layer_types"],
        ["linear_attention" if k == "mamba" else k for k in PRIORITY["granite-4-h-tiny"].published["layer_types"]],
    ):
        figures = {**PRIORITY["granite-4-h-tiny"].published, "layer_types": kinds, "model_type": "granitemoehybrid"}
        (tmp_path / "config.json").write_text(json.dumps({**figures, "_name_or_path": "granite-4-h-tiny"}))
        assert configs.find(str(tmp_path)) == PUBLISHED["granite-4-h-tiny"]
    dense = {**figures, "num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope"}
    (tmp_path / "config.json").write_text(json.dumps(dense))
    found = configs.find(str(tmp_path))
    assert (found.intermediate, found.shared, found.experts, found.rotary) == (1024, 0, 0, True)
    del dense["mamba_d_state"]
    (tmp_path / "config.json").write_text(json.dumps(dense))
    with pytest.raises(InvalidArgument, match="mamba_d_state"):
        configs.find(str(tmp_path))


def test_a_figure_that_is_not_the_default_is_named() -> None:
    assert "but for KV heads, MLP, vocabulary" in described(PRIORITY["llama-3.1-8b"])
    assert described(PRIORITY["gpt-2"]) == "openai-community/gpt2 | 124,439,808 | defaults of GPT2Config | –"


@pytest.mark.parametrize("kind", ["mistral", "mixtral", "phi3"])
def test_a_given_window_holds_in_all_layers(kind: str, tmp_path: Path) -> None:
    figures = {"model_type": kind, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
    figures |= {"intermediate_size": 96, "vocab_size": 100, "sliding_window": 2047}
    (tmp_path / "config.json").write_text(json.dumps(figures))
    assert configs.find(str(tmp_path)).kinds() == [("layer", 3, 2047)]
