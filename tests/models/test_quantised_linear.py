# SPDX-License-Identifier: Apache-2.0
# pytest tests/models/test_quantised_linear.py
"""Linear layers with 8-bit weights: their numbers against float64, and whole models with them."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from torch import nn

from torch_spyre.errors import InvalidArgument
from torch_spyre.models import quantised_linear as layers
from torch_spyre.ops import fallbacks

generator = torch.Generator().manual_seed(8)


def linear(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    made = nn.Linear(inputs, outputs, bias=bias)
    for parameter in made.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) / inputs**0.5
    return made.half().requires_grad_(False)


def run(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Eager and compiled on the card, with the same result."""
    card, moved = layer.to("spyre"), x.to("spyre")
    with fallbacks.disabled(), torch.no_grad():
        eager = card(moved).cpu()
        torch._dynamo.reset()
        assert torch.equal(torch.compile(card, dynamic=False)(moved).cpu(), eager)
    return eager


@pytest.mark.parametrize("weights", layers.FORMATS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 9])
def test_weights_only(weights: str, bias: bool, rows: int) -> None:
    x, plain = torch.randn(2, rows, 192, generator=generator).half(), linear(192, 136, bias)
    layer = layers.quantised(plain, layers.FORMATS[weights][0])
    whole = oracle.to64(layer.weight) * oracle.to64(layer.scale)[:, None]
    step = oracle.to64(plain.weight.abs().amax(1, keepdim=True)) * (2**-4 if weights == "fp8" else 1 / 254)
    assert (np.abs(whole - oracle.to64(plain.weight)) <= step * 1.001).all()
    product = (oracle.Bounded.of(x) @ oracle.Bounded.of(layer.weight.double().t())).store()
    scaled = product * oracle.Bounded.of(layer.scale)
    (scaled + oracle.Bounded.of(plain.bias) if bias else scaled).store().check(run(layer, x))


@pytest.mark.parametrize("weights", layers.FORMATS)
def test_codes_by_codes(weights: str) -> None:
    x, plain = torch.randn(3, 5, 256, generator=generator).half(), linear(256, 72, True)
    layer = layers.quantised(plain, layers.FORMATS[weights][0], activations=True)
    seen = torch.from_numpy(oracle.dl16(x)).float().reshape(15, 256)
    codes, scale = layers.encoded(seen, layer.weight.dtype)  # fp32 on both sides: the same codes
    left = oracle.to64(codes) * oracle.to64(scale)
    right = (oracle.to64(layer.weight) * oracle.to64(layer.scale)[:, None]).T
    expected = left @ right + oracle.dl16(plain.bias)
    error = oracle.matmul_error(left, right, splits=12) + oracle.elementwise_error(expected)
    got = run(layer, x)
    oracle.assert_close_dl16(got.reshape(15, 72), expected, error)


def test_rows_of_zeros() -> None:
    plain = linear(64, 64, False)
    plain.weight[3] = 0
    layer = layers.quantised(plain, torch.int8, activations=True)
    x = torch.zeros(2, 64).half()
    assert torch.equal(run(layer, x), torch.zeros(2, 64).half())


def test_what_is_replaced() -> None:
    model = nn.ModuleDict({"first": linear(64, 64, False), "lm_head": linear(64, 64, True)})
    layers.quantise(model, "int8")
    assert isinstance(model["first"], layers.EightBitLinear) and type(model["lm_head"]) is nn.Linear
    assert "weights only" in str(model["first"])
    with pytest.raises(InvalidArgument, match="weights as 'int3': the choices are fp8, int8"):
        layers.quantise(model, "int3")
    with pytest.raises(InvalidArgument, match="ModuleDict has no linear layers to quantise"):
        layers.quantise(model, "fp8")


def test_a_layer_on_the_card_keeps_the_layout_that_products_read() -> None:
    card = layers.quantised(linear(256, 384, False).to("spyre"), torch.int8)
    assert card.weight.device_tensor_layout().device_size == [3, 256, 128]


def test_a_conversation() -> None:
    from torch_spyre.models.chat import Chat

    with fallbacks.disabled():
        answer = Chat(context=256, weights="int8").answer("What is the capital of France?", 12)
    assert "Paris" in answer.text
