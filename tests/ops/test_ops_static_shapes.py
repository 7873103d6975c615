# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_ops_static_shapes.py
"""Ops that other devices do in loops over values or windows, here in steps over whole tensors, none on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_ops_on_card import check, floats, nothing_on_the_host

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
__all__ = ["nothing_on_the_host"]  # a fixture: a host fallback is an error
slow = pytest.mark.slow


def pell() -> list[int]:
    """Neighbours in 1, 2, 5, 12, ... take the most steps of a division that rounds to the nearest."""
    numbers = [1, 2]
    while 2 * numbers[-1] + numbers[-2] < 2**31:
        numbers.append(2 * numbers[-1] + numbers[-2])
    return numbers


def test_gcd_needs_no_more_steps_than_it_takes() -> None:
    numbers = pell()
    fibonacci = [1836311903, 1134903170]
    a = torch.tensor([*numbers[1:], *numbers[:-1], *fibonacci, 0, 0, -18, -(2**31), 12])
    b = torch.tensor([*numbers[:-1], *numbers[1:], *reversed(fibonacci), 0, 7, 12, 6, -(2**31)])
    assert torch.equal(torch.gcd(a.to("spyre"), b.to("spyre")).cpu(), torch.gcd(a, b))


@pytest.mark.parametrize(
    "dtype", [torch.int8, pytest.param(torch.int16, marks=slow), pytest.param(torch.uint8, marks=slow)]
)
def test_gcd_and_lcm_of_small_integers(dtype: torch.dtype) -> None:
    low, high = (0, 255) if dtype == torch.uint8 else (-11, 11)
    a = torch.arange(low, high, dtype=dtype).unsqueeze(1)
    b = a.t().contiguous()
    for op in (torch.gcd, torch.lcm):
        assert torch.equal(op(a.to("spyre"), b.to("spyre")).cpu(), op(a, b))


@slow
def test_gcd_compiled() -> None:
    a, b = torch.randint(-120, 120, (3, 70)), torch.randint(-120, 120, (70,))
    check(torch.gcd, [a.to(torch.int8), b.to(torch.int8)], compiled=True)


@pytest.mark.parametrize("dim", [0, pytest.param(1, marks=slow)])
def test_logcumsumexp(dim: int) -> None:
    x = torch.randn(9, 70) * 20
    x[3], x[4, 5] = -torch.inf, 200
    got = torch.logcumsumexp(x.to("spyre"), dim).cpu()
    torch.testing.assert_close(got, torch.logcumsumexp(x.double(), dim).float(), rtol=1e-5, atol=1e-5)
    check(lambda x: torch.logcumsumexp(x, dim), [floats(9, 70)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float16])
@pytest.mark.parametrize("dim", [0, -1])
def test_mode(dim: int, dtype: torch.dtype) -> None:
    """The value is the smallest of the most frequent ones; which of its places is told is not defined."""
    x = torch.randint(-4, 5, (12, 5, 70)).to(dtype)
    want = x.mode(dim, keepdim=True).values
    values, places = x.to("spyre").mode(dim, keepdim=True)
    assert torch.equal(values.cpu(), want) and torch.equal(x.gather(dim, places.cpu()), want)
    assert torch.equal(x.to("spyre").mode(dim).values.cpu(), want.squeeze(dim))


def test_mode_of_one_element_and_its_gradient() -> None:
    check(lambda x: x.mode(0).values, [floats(1, 7)])
    check(lambda x: x.mode(1).values, [torch.randperm(40).float().reshape(4, 10)], compiled=True)


@pytest.mark.parametrize("values", [[0.5, -3.0, 2.5, 2.0, -2.875], [2.0, 2.0]], ids=["spread", "one value"])
def test_histc_between_its_own_bounds(values: list[float]) -> None:
    x = torch.tensor(values)
    assert torch.equal(torch.histc(x.to("spyre"), 11).cpu(), torch.histc(x, 11))


@pytest.mark.parametrize("shape", [(0,), (5, 0), (0, 3, 2), ()])
def test_nonzero_static_of_nothing(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    assert torch.equal(torch.nonzero_static(x.to("spyre"), size=3).cpu(), torch.nonzero_static(x, size=3))


@pytest.mark.parametrize("size", [5, 80])
def test_nonzero_static(size: int) -> None:
    x = floats(3, 4, 5).clamp(min=0)
    want = torch.nonzero_static(x, size=size, fill_value=-7)
    assert torch.equal(torch.nonzero_static(x.to("spyre"), size=size, fill_value=-7).cpu(), want)


def test_take_by_one_number() -> None:
    check(lambda x: torch.take(x, torch.tensor(-3, device=x.device)), [floats(4, 5)])


WINDOWS = {
    "avg2d": lambda x: F.avg_pool2d(x, 7, 2, 3),
    "avg2d_ceil": lambda x: F.avg_pool2d(x, (6, 7), 4, 2, ceil_mode=True, count_include_pad=False),
    "avg2d_divisor": lambda x: F.avg_pool2d(x, 6, 5, divisor_override=3),
    "avg3d": lambda x: F.avg_pool3d(x.unsqueeze(1), (2, 4, 5), (1, 2, 3), (1, 0, 2)),
    "lp": lambda x: F.lp_pool2d(x.abs() + 1, 2, 6, 2),
    "adaptive_avg": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "adaptive_max": lambda x: F.adaptive_max_pool2d(x, (3, 4)),
    "adaptive_max_places": lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True)[1],
    "adaptive_max3d": lambda x: F.adaptive_max_pool3d(x, (2, 3, 4)),
    "adaptive_max3d_places": lambda x: F.adaptive_max_pool3d(x, (2, 3, 4), return_indices=True)[1],
    "max3d_ceil": lambda x: F.max_pool3d(x.unsqueeze(0).expand(2, -1, -1, -1, -1)[..., :6], 3, 2, ceil_mode=True),
}
QUICK = ("avg2d_ceil", "adaptive_avg", "adaptive_max3d_places", "max3d_ceil")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=slow) for n in WINDOWS])
def test_pooling_over_large_windows(name: str) -> None:
    """The last one reads a table of five dims through a mask."""
    check(WINDOWS[name], [floats(2, 3, 17, 19)])


@slow
@pytest.mark.parametrize("name", ["avg2d", "adaptive_max3d"])
def test_pooling_compiled(name: str) -> None:
    check(WINDOWS[name], [floats(2, 3, 17, 19)], compiled=True)


def test_an_infinite_value_stays_in_its_windows() -> None:
    x = floats(1, 1, 17, 19)
    x[0, 0, 3, 3] = torch.inf
    for call in (WINDOWS["avg2d"], WINDOWS["adaptive_avg"]):
        torch.testing.assert_close(call(x.to("spyre")).cpu(), call(x))


GRIDS = [
    (dims, mode, padding, corners)
    for dims in (2, 3)
    for mode in ("bilinear", "nearest", "bicubic")[: 5 - dims]
    for padding in ("zeros", "border", "reflection")
    for corners in (False, True)
]


@pytest.mark.parametrize(
    "form",
    [
        f if f in ((2, "bilinear", "zeros", False), (3, "nearest", "border", True)) else pytest.param(f, marks=slow)
        for f in GRIDS
    ],
    ids=str,
)
def test_grid_sample(form: tuple[int, str, str, bool]) -> None:
    dims, mode, padding, corners = form
    x, grid = floats(2, 3, *(4, 7, 9)[3 - dims :]), (torch.rand(2, *(3, 5, 6)[3 - dims :], dims) - 0.5) * 2.8
    check(lambda x, g: F.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=corners), [x, grid])


@pytest.mark.parametrize("mode", ["bilinear", pytest.param("bicubic", marks=slow)])
@pytest.mark.parametrize("corners", [False, pytest.param(True, marks=slow)])
def test_antialiased_interpolation(mode: str, corners: bool) -> None:
    check(lambda x: F.interpolate(x, (5, 30), mode=mode, antialias=True, align_corners=corners), [floats(2, 3, 17, 23)])


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_antialiased_interpolation_of_bytes(mode: str, memory_format: torch.memory_format) -> None:
    """Rounded and kept in 0 … 255, in the order of dims of the input, as on the CPU. Values of 0 and 255 make the cubic
    filter leave that range; the oracle computes in float64 what the CPU computes with weights of 16 bits."""
    x = (torch.rand(2, 3, 17, 23) > 0.5).to(torch.uint8).mul(255).contiguous(memory_format=memory_format)
    host = F.interpolate(x.double(), (5, 30), mode=mode, antialias=True)
    got = F.interpolate(x.to("spyre"), (5, 30), mode=mode, antialias=True)
    assert got.dtype == torch.uint8 and got.is_contiguous(memory_format=memory_format)
    assert (got.cpu().double() - host.clamp(0, 255)).abs().max() <= 0.5 + 1e-4  # fp32 sums before they are rounded


@pytest.mark.parametrize("reduction", ["mean", pytest.param("none", marks=slow)])
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss(p: int, reduction: str) -> None:
    target, weight = torch.tensor([3, 0, 6, 6]), floats(7) + 4

    def call(x: torch.Tensor) -> torch.Tensor:
        return F.multi_margin_loss(
            x, target.to(x.device), p=p, margin=0.7, weight=weight.to(x.device), reduction=reduction
        )

    check(call, [torch.randn(4, 7)])


@pytest.mark.parametrize("reduction", ["sum", pytest.param("none", marks=slow)])
def test_multilabel_margin_loss(reduction: str) -> None:
    target = torch.tensor([[3, 0, -1, 1, 2], [-1, 0, 0, 0, 0], [4, 3, 2, 1, 0]])
    check(lambda x: F.multilabel_margin_loss(x, target.to(x.device), reduction=reduction), [torch.randn(3, 5)])


@pytest.mark.parametrize("padding", [None, pytest.param(2, marks=slow)])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode: str, padding: int | None) -> None:
    """The second bag is empty, the last one holds a row twice."""
    indices, offsets = torch.tensor([4, 1, 2, 2, 0, 5, 5]), torch.tensor([0, 3, 3, 5])

    def call(table: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(
            indices.to(table.device), table, offsets.to(table.device), mode=mode, padding_idx=padding
        )

    check(call, [torch.randn(6, 70)])


@slow
def test_embedding_bag_with_weights() -> None:
    indices, offsets = torch.tensor([4, 1, 2, 2, 0, 5, 5]), torch.tensor([0, 3, 3, 5, 7])

    def call(table: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        places, starts = indices.to(table.device), offsets.to(table.device)
        options = {"mode": "sum", "per_sample_weights": weights, "include_last_offset": True}
        return F.embedding_bag(places, table, starts, **options)

    check(call, [torch.randn(6, 70), torch.randn(7)])


@pytest.mark.parametrize("kinds", [(torch.int64, torch.int32), (torch.int32, torch.int64)])
def test_embedding_bag_of_indices_and_offsets_of_two_dtypes(kinds: tuple[torch.dtype, torch.dtype]) -> None:
    indices, offsets = torch.tensor([4, 1, 2, 2], dtype=kinds[0]), torch.tensor([0, 3], dtype=kinds[1])

    def call(table: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        places, starts = indices.to(table.device), offsets.to(table.device)
        return F.embedding_bag(places, table, starts, mode="sum", per_sample_weights=weights)

    check(call, [torch.randn(6, 4), torch.randn(4)])


def test_embedding_bag_of_empty_bags_only() -> None:
    def call(table: torch.Tensor) -> torch.Tensor:
        places, starts = torch.zeros(0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
        return F.embedding_bag(places.to(table.device), table, starts.to(table.device), mode="max")

    check(call, [torch.randn(6, 4)])


def test_embedding_bag_gradient_by_frequency() -> None:
    """Spelled out: PyTorch's CPU takes the frequency of another row here."""
    indices, bags, sizes = [4, 1, 2, 2, 0, 5, 5], [0, 0, 0, 2, 2, 3, 3], [3, 0, 2, 2]
    table = torch.randn(6, 70).to("spyre").requires_grad_()
    starts = torch.tensor([0, 3, 3, 5]).to("spyre")
    result = F.embedding_bag(torch.tensor(indices).to("spyre"), table, starts, scale_grad_by_freq=True)
    grad = torch.randn(4, 70)
    result.backward(grad.to("spyre"))
    want = torch.zeros(6, 70, dtype=torch.float64)
    for row, bag in zip(indices, bags, strict=True):
        want[row] += grad[bag].double() / sizes[bag] / indices.count(row)
    assert table.grad is not None
    torch.testing.assert_close(table.grad.cpu(), want.float())


@pytest.mark.parametrize(
    "call",
    [
        WINDOWS["avg2d"],
        lambda x: F.avg_pool2d(x, 4),  # windows side by side
        lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
        pytest.param(lambda x: F.adaptive_avg_pool3d(x, (1, 3, 4)), marks=slow),
        pytest.param(lambda x: F.avg_pool3d(x, (1, 4, 5), (1, 2, 3), (0, 0, 2)), marks=slow),
    ],
)
def test_an_infinite_gradient_stays_in_its_window(call: Callable[..., Any]) -> None:
    x = floats(1, 1, 17, 19)
    gradients = []
    for device in ("cpu", "spyre"):
        there = x.detach().to(device).requires_grad_()
        result = call(there)
        given = torch.ones(result.shape)
        for place, value in enumerate((torch.inf, -torch.inf, torch.nan)):
            given.view(-1)[5 * place] = value
        result.backward(given.to(device))
        gradients.append(there.grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0], equal_nan=True)
