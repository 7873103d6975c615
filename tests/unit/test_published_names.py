# SPDX-License-Identifier: Apache-2.0
# pytest tests/unit/test_published_names.py
"""Names that the published documents use: modules, registration of fallbacks and decompositions, fused attention."""

from __future__ import annotations

import importlib.resources
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from torch_spyre._inductor.decompositions import register_spyre_decomposition
from torch_spyre.ops.fallbacks import FallbackWarning, register_fallback, register_fallback_default, unregister_fallback

aten = torch.ops.aten


def test_modules() -> None:
    from torch_spyre import streams
    from torch_spyre.device.interface import SpyreDeviceProperties, SpyreInterface

    assert streams.Stream is torch.spyre.Stream and streams.synchronize is torch.spyre.synchronize
    assert SpyreInterface.get_device_properties().multi_processor_count == 32
    assert SpyreDeviceProperties().type == "dd2" and SpyreInterface.Worker.current_device() == 0
    with pytest.raises(NotImplementedError):
        SpyreInterface.Worker.set_device(0)


def test_type_checkers_find_the_package_typed() -> None:
    """PEP 561: without this file they take every name of an installed package for Any."""
    marker = "py.typed"
    assert (importlib.resources.files("torch_spyre") / marker).is_file()
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert marker in project["tool"]["setuptools"]["package-data"]["*"]


def test_from_device() -> None:
    x = torch.arange(5.0)
    assert torch.equal(torch.spyre.from_device(x.to("spyre")), x) and torch.spyre.from_device(x) is x


@pytest.fixture
def sine() -> Iterator[list[torch.device]]:
    """A fallback for sin that adds 10, so that it can be told from the card's own."""
    places: list[torch.device] = []

    @register_fallback([aten.sin.default, aten.sin.out])
    def fallback(x: torch.Tensor) -> torch.Tensor:
        places.append(x.device)
        return torch.sin(x) + 10

    yield places
    unregister_fallback([aten.sin])


def test_a_fallback_of_the_user(sine: list[torch.device]) -> None:
    x = torch.tensor([0.0, 1.0])
    with pytest.warns(FallbackWarning, match="sin"):
        torch_spyre_reset()
        got = torch.sin(x.to("spyre"))
    assert got.device.type == "spyre" and torch.equal(got.cpu(), torch.sin(x) + 10)
    out = torch.empty(2, device="spyre")
    assert torch.sin(x.to("spyre"), out=out) is out
    assert torch.equal(out.cpu(), torch.sin(x) + 10) and {d.type for d in sine} == {"cpu"}


def torch_spyre_reset() -> None:
    from torch_spyre.ops import fallbacks

    fallbacks.reset()  # an op warns once


def test_a_fallback_as_it_is() -> None:
    register_fallback_default([aten.cos])
    try:
        x = torch.tensor([0.0, 1.0])
        assert torch.equal(torch.cos(x.to("spyre")).cpu(), torch.cos(x))
    finally:
        unregister_fallback([aten.cos])


def test_a_decomposition_of_the_user() -> None:
    """Of an op that nothing else uses; it stays for the process, so it gives what the op gives but for its sign."""

    @register_spyre_decomposition(aten.rad2deg.default)
    def turned(x: torch.Tensor) -> torch.Tensor:
        return x * -57.0 if x.dim() == 3 else NotImplemented

    x = torch.ones(2, 2, 2, device="spyre")
    torch._dynamo.reset()
    assert torch.rad2deg(x).cpu().unique().tolist() == [-57.0]
    assert torch.compile(torch.rad2deg, dynamic=False)(x).cpu().unique().tolist() == [-57.0]
    assert torch.allclose(torch.rad2deg(x[0]).cpu(), torch.rad2deg(x[0].cpu()))


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention(causal: bool) -> None:
    torch.manual_seed(1)
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    if causal:
        k, v = k[:, :, :5], v[:, :, :5]
    want = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    parts = aten._scaled_dot_product_fused_attention_overrideable(
        *(x.to("spyre") for x in (q, k, v)), None, 0.0, causal, False
    )
    assert len(parts) == 9 and (parts[4], parts[5]) == (5, k.shape[2])
    assert (parts[0].cpu() - want).abs().max() <= 2.0**-18
    scores = (q.double() @ k.repeat_interleave(2, 1).double().transpose(-2, -1)) / 8**0.5
    scores = scores.masked_fill(~torch.ones(5, k.shape[2]).tril().bool(), -torch.inf) if causal else scores
    assert (parts[1].cpu().double() - scores.logsumexp(-1)).abs().max() <= 2.0**-18


def test_fused_attention_has_gradients() -> None:
    torch.manual_seed(1)
    host = [torch.randn(1, 2, 5, 8, requires_grad=True) for _ in range(3)]
    card = [x.detach().to("spyre").requires_grad_() for x in host]
    F.scaled_dot_product_attention(*host).square().sum().backward()
    aten._scaled_dot_product_fused_attention_overrideable(*card)[0].square().sum().backward()
    for x, y in zip(host, card, strict=True):
        assert (x.grad - y.grad.cpu()).abs().max() <= 2.0**-17
