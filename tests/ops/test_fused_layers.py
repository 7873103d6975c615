# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ops/test_fused_layers.py

Attention and encoder layers in eval mode without gradients, which PyTorch calls as one op: right, and on the card.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from torch_spyre.errors import UnsupportedOp
from torch_spyre.ops import fallbacks

PADDED = torch.zeros(2, 7, dtype=torch.bool)
PADDED[0, 5:] = True
LATER = torch.ones(7, 7).triu(1).bool()


@pytest.fixture(autouse=True)
def all_on_the_card() -> Iterator[None]:
    with fallbacks.disabled(), torch.no_grad():
        yield


def same(module: nn.Module, x: torch.Tensor, mode: str = "eager", copies: int = 1, **masks: Any) -> None:
    """Where the CPU gives 0 it has packed the batch: what stands in the padding is nobody's."""
    expected = module(*[x] * copies, **masks)
    card: Any = copy.deepcopy(module).to("spyre")
    if mode == "compiled":
        torch._dynamo.reset()
        card = torch.compile(card, backend="spyre", dynamic=False)
    there = x.to("spyre")
    on_card = {k: v.to("spyre") if isinstance(v, torch.Tensor) else v for k, v in masks.items()}
    actual = card(*[there] * copies, **on_card)
    for a, e in zip(*((r if isinstance(r, tuple) else (r,)) for r in (actual, expected)), strict=True):
        if e is None:
            assert a is None
            continue
        packed = e.new_tensor(0.0) if copies == 1 else e
        torch.testing.assert_close(torch.where(e == 0, packed, a.cpu()), e, rtol=1e-5, atol=1e-5, equal_nan=True)


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "no_weights": {"need_weights": False},
    "each_head": {"average_attn_weights": False},
    "padding": {"key_padding_mask": PADDED},
    "later": {"attn_mask": LATER, "need_weights": False},
    "both": {"key_padding_mask": PADDED, "attn_mask": LATER},
    "of_heads": {"attn_mask": LATER.expand(8, 7, 7)},
    "everything": {"key_padding_mask": torch.tensor([[True], [False]]).expand(2, 7)},
}


QUICK = ("none", "both", "everything")


@pytest.mark.parametrize("masks", [m if m in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in MASKS])
def test_self_attention(masks: str) -> None:
    module = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    same(module, torch.randn(2, 7, 32), copies=3, **MASKS[masks])


@pytest.mark.parametrize(
    ("norm_first", "activation"), [(False, "relu"), pytest.param(True, "gelu", marks=pytest.mark.slow)]
)
def test_encoder_layer(norm_first: bool, activation: str) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first, activation=activation)
    for masks in ({}, {"src_key_padding_mask": PADDED}, {"src_mask": LATER}):
        same(layer.eval(), torch.randn(2, 7, 32), **masks)


@pytest.mark.parametrize("mode", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])
def test_encoder_of_a_padded_batch(mode: str) -> None:
    """The CPU packs it into a nested tensor, the card computes it padded."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    same(encoder, torch.randn(2, 7, 32), mode, src_key_padding_mask=PADDED)


def test_padding_keeps_its_gradient() -> None:
    """In eval mode with gradients PyTorch asks first whether the mask could be packed."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 1).eval().to("spyre")
    with torch.enable_grad():
        encoder(torch.randn(2, 7, 32, device="spyre"), src_key_padding_mask=PADDED.to("spyre")).sum().backward()
    assert encoder.layers[0].linear1.weight.grad is not None


def test_nested_tensors_are_refused_by_name() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, mask_check=False).eval().to("spyre")
    with pytest.raises(UnsupportedOp, match="enable_nested_tensor=False"):
        encoder(torch.randn(2, 7, 32, device="spyre"), src_key_padding_mask=PADDED.to("spyre"))


def test_half_precision() -> None:
    module = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = torch.randn(2, 7, 32)
    expected = module(x, x, x)[0]
    there = x.half().to("spyre")
    actual = module.half().to("spyre")(there, there, there)[0]
    torch.testing.assert_close(actual.cpu().float(), expected, rtol=2**-6, atol=2**-6)
