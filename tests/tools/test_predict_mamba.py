# SPDX-License-Identifier: Apache-2.0
"""pytest -q tests/tools/test_predict_mamba.py

The Mamba-2 blocks that predictions time compute what transformers' layer computes, in chunks and step by step.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from torch_spyre.errors import InvalidArgument
from torch_spyre.predict import configs, model
from torch_spyre.predict.dimensions import Mamba, ModelConfig
from torch_spyre.predict.mamba_parts import Mixer
from torch_spyre.predict.passes import Request, passes

HYBRID = ModelConfig("hybrid", 128, 4, 4, 2, 64, 192, 512, rotary=False, tied=True, mamba=Mamba(3, 4, 64, 64, chunk=16))


def random_mixer(c: ModelConfig, spread: float = 0.1) -> Mixer:
    mixer = Mixer(c, "cpu").double()
    for p in mixer.parameters():
        torch.nn.init.normal_(p, std=spread)
    mixer.scan.decay.data = -torch.exp(mixer.scan.decay.data)
    mixer.norm.data += 1
    return mixer


def states(c: ModelConfig, tokens: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    m = c.mamba
    chunk = min(m.chunk, tokens)
    sizes = ((2, m.conv - 1, m.inner), (2, m.conv - 1, m.shared_channels), (2, m.heads, m.head_dim, m.state))
    causal = torch.full((chunk, chunk), -math.inf, dtype=dtype).triu(1)
    return [*(torch.zeros(size, dtype=dtype) for size in sizes), causal]


def transformers_layer(c: ModelConfig, mixer: Mixer) -> torch.nn.Module:
    from transformers import GraniteMoeHybridConfig
    from transformers.models.granitemoehybrid.modeling_granitemoehybrid import GraniteMoeHybridMambaLayer

    m, scan = c.mamba, mixer.scan
    config = GraniteMoeHybridConfig(
        hidden_size=c.hidden,
        num_hidden_layers=1,
        layer_types=["mamba"],
        mamba_n_heads=m.heads,
        mamba_d_head=m.head_dim,
        mamba_d_state=m.state,
        mamba_n_groups=m.groups,
        mamba_d_conv=m.conv,
        mamba_expand=m.inner // c.hidden,
        mamba_chunk_size=m.chunk,
        rms_norm_eps=1e-5,
    )
    layer = GraniteMoeHybridMambaLayer(config, 0).double()
    taps = torch.cat((scan.conv_values.weight, scan.conv_b_and_c.weight), 1)
    named = {
        "in_proj.weight": torch.cat((scan.gate, scan.values, scan.b_and_c, scan.steps), 1).T,
        "conv1d.weight": taps.T[:, None],
        "conv1d.bias": torch.cat((scan.conv_values.bias, scan.conv_b_and_c.bias)),
        "dt_bias": scan.steps_bias,
        "A_log": torch.log(-scan.decay),
        "D": scan.skip,
        "norm.weight": mixer.norm,
        "out_proj.weight": mixer.out.T,
    }
    layer.load_state_dict(named)
    return layer


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("tokens", [7, 16, 32, 41])
def test_a_mixer_is_that_of_transformers(tokens: int, groups: int) -> None:
    torch.manual_seed(0)
    c = replace(HYBRID, mamba=replace(HYBRID.mamba, groups=groups))
    mixer = random_mixer(c)
    x = torch.randn(2, tokens, c.hidden, dtype=torch.float64)
    layer = transformers_layer(c, mixer)
    if groups > 1 and not hasattr(layer.norm, "group_size"):
        pytest.skip("this version of transformers norms over all groups together, unlike Mamba-2")
    with torch.no_grad():
        wanted = layer(x)
        found = mixer(x, *states(c, tokens))
    # transformers computes the recurrence in fp32
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_step_goes_on_where_the_prompt_ended(groups: int) -> None:
    torch.manual_seed(1)
    c = replace(HYBRID, mamba=replace(HYBRID.mamba, groups=groups))
    mixer = random_mixer(c)
    x = torch.randn(2, 23, c.hidden, dtype=torch.float64)
    with torch.no_grad():
        wanted = mixer(x, *states(c, 23))
        kept = states(c, 20)
        found = [mixer(x[:, :20], *kept)] + [mixer(x[:, i : i + 1], *kept) for i in range(20, 23)]
    torch.testing.assert_close(torch.cat(found, 1), wanted)


@pytest.mark.parametrize("tokens", [1, 24])
def test_a_compiled_mixer_computes_on_the_card(tokens: int) -> None:
    """What is timed is what would run."""
    torch.manual_seed(2)
    mixer = random_mixer(HYBRID)
    x = torch.randn(2, tokens, HYBRID.hidden, dtype=torch.float64)
    held = states(HYBRID, tokens)
    for i in range(3):
        held[i] = torch.randn_like(held[i])
    rounded = [t.half() for t in (x, *held)]
    wanted = mixer.half().double()
    with torch.no_grad():
        expected = wanted(*(t.double() for t in rounded))
        found = torch.compile(mixer.half().to("spyre"), dynamic=False)(*(t.to("spyre") for t in rounded)).cpu().double()
    assert float((found - expected).norm() / expected.norm()) < 0.02


def test_a_hybrid_has_layers_of_both_kinds_and_states_of_fixed_size() -> None:
    c = configs.find("granite-4-h-small")
    parts = {p.label: n for p, n in passes(c, Request(1, 512, 0))[0].counts.items()}
    assert parts == {"embedding": 1, "attention": 4, "mamba": 36, "expert": 72 * 40, "head": 1}
    state = 128 * 64 * 128 + (128 * 64 + 2 * 128) * 3
    assert c.cache_elements(4096) == 4 * 2 * 8 * 128 * 4096 + 36 * state
    assert configs.find("granite-4-h-30b") is c
    assert (c.with_layers(10).mamba_layers, c.with_layers(10).attention_layers) == (9, 1)
    assert c.with_layers(1).mamba_layers == 0
    with pytest.raises(InvalidArgument, match="0 layers"):
        c.with_layers(0)


def test_prediction_of_a_hybrid() -> None:
    found = model.predict(HYBRID, Request(1, 32, 1))
    assert {p.label for p in found.blocks} == {"embedding", "attention layer", "mamba layer", "head"}
    assert all(b.transfers == 0 and b.ns > 0 for b in found.blocks.values()), "nothing falls back to the host"
