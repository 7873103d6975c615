# SPDX-License-Identifier: Apache-2.0
# pytest tests/models/test_torchao.py
"""torchao's `quantize_` with its int8 and float8 configs, on the card and before the move to it. Part of
`make test-ecosystem`; elsewhere it is skipped where torchao is not installed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from torch_spyre.ops import fallbacks

torchao = pytest.importorskip("torchao", reason="torchao is not installed: make test-ecosystem installs it")
from torchao import quantization  # noqa: E402

CONFIGS = {
    "int8 weights": quantization.Int8WeightOnlyConfig,
    "int8": quantization.Int8DynamicActivationInt8WeightConfig,
    "float8 weights": quantization.Float8WeightOnlyConfig,
    "float8": quantization.Float8DynamicActivationFloat8WeightConfig,
    "float8 by row": lambda: quantization.Float8DynamicActivationFloat8WeightConfig(granularity=quantization.PerRow()),
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.SiLU(), nn.Linear(512, 128, bias=False)).bfloat16().eval()


@pytest.mark.parametrize("where", ["card", "host"])
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_configs(name: str, where: str) -> None:
    """Next to the layers before quantising in float64: no further off than the same config on the CPU. Codes may differ
    from the CPU's, which computes scales in bf16; the card's numbers have two bits more."""
    x = torch.randn(4, 16, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    exact = model().double()(x.double())
    host, card = model(), model()
    quantization.quantize_(host, CONFIGS[name]())
    allowed = 1.1 * (host(x).double() - exact).norm()
    if where == "card":
        quantization.quantize_(card.to("spyre"), CONFIGS[name]())
    else:
        card = copy.deepcopy(host).to("spyre")
    with fallbacks.disabled():
        eager = card(x.to("spyre")).cpu()
        torch._dynamo.reset()
        compiled = torch.compile(card, dynamic=False)(x.to("spyre")).cpu()
    assert (eager.double() - exact).norm() < allowed
    assert (compiled.double() - exact).norm() < allowed


def test_codes_stay_codes_in_a_move_with_a_dtype() -> None:
    layers = model()
    quantization.quantize_(layers, quantization.Float8WeightOnlyConfig())
    moved = layers.to("spyre", torch.float16)
    assert moved[0].weight.qdata.dtype == torch.float8_e4m3fn and moved[0].weight.qdata.device.type == "spyre"
    assert moved[0].weight.scale.device.type == "spyre" and moved[0].bias.dtype == torch.float16
