# SPDX-License-Identifier: Apache-2.0
# pytest tests/upstream/test_rng.py
"""Random numbers on spyre: the device's generator, ranges and moments of each distribution."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

N = 20_000
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

Draw = Callable[..., torch.Tensor]
# name -> (draw, mean, standard deviation, least, most)
DISTRIBUTIONS: dict[str, tuple[Draw, float, float, float, float]] = {
    "rand": (lambda **k: torch.rand(N, **k), 0.5, 12**-0.5, 0, 1),
    "randn": (lambda **k: torch.randn(N, **k), 0, 1, -8, 8),
    "uniform_": (lambda **k: torch.empty(N, **k).uniform_(-2, 4), 1, 3**0.5, -2, 4),
    "normal_": (lambda **k: torch.empty(N, **k).normal_(3, 2), 3, 2, -13, 19),
    "exponential_": (lambda **k: torch.empty(N, **k).exponential_(2), 0.5, 0.5, 0, 20),
    "bernoulli_": (lambda **k: torch.empty(N, **k).bernoulli_(0.25), 0.25, 0.1875**0.5, 0, 1),
    "bernoulli": (lambda **k: torch.bernoulli(torch.full((N,), 0.75, **k)), 0.75, 0.1875**0.5, 0, 1),
    "dropout": (lambda **k: torch.nn.functional.dropout(torch.ones(N, **k), 0.5), 1, 1, 0, 2),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_moments(name: str, dtype: torch.dtype) -> None:
    draw, mean, deviation, least, most = DISTRIBUTIONS[name]
    torch.spyre.manual_seed(5)
    x = draw(device="spyre", dtype=dtype)
    assert x.device.type == "spyre" and x.dtype == dtype and x.shape == (N,)
    values = x.cpu().double()
    assert values.min() >= least and values.max() <= most
    slack = 2.0**-7 * max(abs(mean), deviation)  # bfloat16 keeps 8 bits
    assert abs(values.mean() - mean) < 5 * deviation / math.sqrt(N) + slack
    assert abs(values.std() - deviation) < 0.05 * deviation + slack


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int8, torch.float16], ids=str)
def test_randint_covers_its_range(dtype: torch.dtype) -> None:
    x = torch.randint(-3, 7, (N,), device="spyre", dtype=dtype)
    values, counts = x.cpu().unique(return_counts=True)
    assert values.tolist() == list(range(-3, 7))
    assert (counts - N / 10).abs().max() < 6 * math.sqrt(N / 10)


def test_randperm_is_a_permutation() -> None:
    x = torch.randperm(1000, device="spyre")
    assert x.device.type == "spyre" and x.dtype == torch.int64
    assert x.cpu().sort().values.tolist() == list(range(1000)) != x.tolist()


def test_multinomial_follows_the_weights() -> None:
    weights = torch.tensor([1.0, 0.0, 3.0], device="spyre")
    counts = torch.multinomial(weights, N, replacement=True).cpu().bincount(minlength=3)
    assert counts[1] == 0 and abs(counts[2] / N - 0.75) < 0.02


@pytest.mark.parametrize("seed", [lambda s: torch.spyre.manual_seed(s), lambda s: torch.manual_seed(s)])
def test_seed_repeats_and_draws_go_on(seed: Callable[[int], None]) -> None:
    def draws() -> list[torch.Tensor]:
        x = torch.zeros(64, device="spyre")
        return [torch.randn(64, device="spyre"), torch.randn(64, device="spyre"),
                torch.nn.functional.dropout(x + 1), torch.multinomial(x + 1, 8)]  # fmt: skip

    seed(3)
    first = [x.cpu() for x in draws()]
    seed(3)
    second = [x.cpu() for x in draws()]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1])


def test_only_the_device_generator_moves() -> None:
    x = torch.ones(64, device="spyre")
    for draw in (
        lambda: torch.rand(8, device="spyre"),
        lambda: torch.nn.functional.dropout(x),
        lambda: x.multinomial(4),
    ):
        host, card = torch.get_rng_state(), torch.spyre.get_rng_state()
        draw()
        assert torch.equal(torch.get_rng_state(), host)
        assert not torch.equal(torch.spyre.get_rng_state(), card)


def test_own_generator() -> None:
    def draws(generator: torch.Generator) -> list[torch.Tensor]:
        weights = torch.ones(64, device="spyre")
        return [torch.rand(32, device="spyre", generator=generator).cpu(),
                torch.multinomial(weights, 8, generator=generator).cpu(),
                torch.randperm(32, device="spyre", generator=generator).cpu()]  # fmt: skip

    default = torch.spyre.get_rng_state()
    first = draws(torch.Generator("spyre").manual_seed(9))
    second = draws(torch.Generator("spyre").manual_seed(9))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(torch.spyre.get_rng_state(), default)
