# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_ops_on_card.py
"""Ops whose PyTorch formula for a new device goes through the host: here they run on the card, with their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torch_spyre._inductor.lowering import overflow
from torch_spyre.errors import AssertionFailed, Overflow, SpyreError
from torch_spyre.ops import fallbacks

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def nothing_on_the_host() -> Iterator[None]:
    with fallbacks.disabled():
        yield


def floats(*size: int) -> torch.Tensor:
    """Whole quarters: sums and products of a few are exact, and some are equal."""
    return torch.randint(-12, 13, size).float() / 4


def run(function: Function, inputs: list[torch.Tensor], compiled: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The result, and the gradients of its weighted sum."""
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
    result = (torch.compile(function, backend="spyre", dynamic=False) if compiled else function)(*leaves)
    wanted = [x for x in leaves if x.requires_grad]
    if not result.requires_grad:
        return result, []
    weights = (torch.arange(result.numel()) % 3 + 1).reshape(result.shape).to(result.dtype).to(result.device)
    return result, list(torch.autograd.grad(result, wanted, weights))


def check(function: Function, inputs: list[torch.Tensor], compiled: bool = False) -> None:
    torch._dynamo.reset()
    want, gradients = run(function, inputs, False)
    got, card = run(function, [x.to("spyre") for x in inputs], compiled)
    for a, b in zip([got, *card], [want, *gradients], strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-5, equal_nan=True)


INDEX = torch.tensor([[0, 3, 1, 0], [0, 0, 2, 4], [3, 3, 1, 0]])


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce: str, include_self: bool) -> None:
    def call(x: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(0, INDEX.to(x.device), src, reduce, include_self=include_self)

    torch.manual_seed(1)
    check(call, [floats(5, 4) + 3.125, floats(3, 4) + 3.125])  # no zero: its product has another gradient on the CPU
    check(call, [torch.randint(-9, 9, (5, 4)), torch.randint(-9, 9, (4, 4))], compiled=include_self)


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_nan_wins_a_scattered_extreme(reduce: str) -> None:
    src = torch.tensor([1.0, float("nan"), -2.0, 5.0])
    place = torch.tensor([0, 0, 1, 0])
    check(lambda x, s: x.scatter_reduce(0, place.to(x.device), s, reduce).detach(), [torch.zeros(3), src])


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
def test_index_reduce(reduce: str) -> None:
    place = torch.tensor([2, 0, 2])
    check(lambda x, s: x.index_reduce(1, place.to(x.device), s, reduce).detach(), [floats(4, 5), floats(4, 3)])


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("compiled", [False, True])
def test_writes_that_add(dtype: torch.dtype, compiled: bool) -> None:
    place = torch.tensor([4, 0, 4])

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        p = place.to(x.device)
        once = x.index_add(0, p, y).index_put((p,), y, accumulate=True)
        return once.scatter_add(0, p.unsqueeze(1).expand(3, 2), y).detach()

    torch.manual_seed(0)
    check(call, [torch.randint(0, 2, (6, 2)).to(dtype), torch.randint(0, 2, (3, 2)).to(dtype)], compiled)


def test_masked_scatter_takes_the_source_in_order() -> None:
    mask = torch.tensor([[True, False, True], [False, True, True]])
    check(lambda x, s: x.masked_scatter(mask.to(x.device), s), [floats(2, 3), floats(7)])


def test_embedding_with_a_norm_and_with_frequencies() -> None:
    place = torch.tensor([1, 3, 3, 0])

    def renormed(w: torch.Tensor) -> torch.Tensor:
        return F.embedding(place.to(w.device), w.detach().clone(), max_norm=1.5)

    check(renormed, [floats(5, 3)])
    check(lambda w: F.embedding(place.to(w.device), w, scale_grad_by_freq=True), [floats(5, 3)])


RESAMPLED: dict[str, tuple[Function, tuple[int, ...]]] = {
    "replicate 1d": (lambda x: F.pad(x, (2, 3), mode="replicate"), (2, 3, 5)),
    "replicate 2d": (lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate"), (2, 3, 4, 5)),
    "replicate 3d": (lambda x: F.pad(x, (1, 0, 2, 1, 1, 1), mode="replicate"), (1, 2, 3, 4, 5)),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, (2, 3, 2)), (2, 2, 5, 4, 3)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), (2, 2, 7, 5)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2, 1), (1, 2, 4, 4, 4)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, (2, 3, 2), 2, 1, ceil_mode=True), (1, 2, 4, 5, 6)),
    "avg_pool3d inside": (lambda x: F.avg_pool3d(x, 2, 2, 1, True, count_include_pad=False), (1, 2, 4, 5, 6)),
    "nearest 1d": (lambda x: F.interpolate(x, 7, mode="nearest"), (2, 3, 5)),
    "nearest 3d": (lambda x: F.interpolate(x, scale_factor=1.7, mode="nearest"), (1, 2, 3, 4, 5)),
    "exact 2d": (lambda x: F.interpolate(x, (7, 3), mode="nearest-exact"), (2, 3, 5, 6)),
    "linear": (lambda x: F.interpolate(x, 9, mode="linear"), (2, 3, 5)),
    "bilinear": (lambda x: F.interpolate(x, (7, 3), mode="bilinear", align_corners=True), (2, 3, 5, 6)),
    "trilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), (1, 2, 3, 4, 2)),
    "bicubic": (lambda x: F.interpolate(x, (7, 9), mode="bicubic"), (2, 2, 5, 6)),
}
SOON = ("replicate 2d", "adaptive_max_pool2d", "nearest 1d", "linear")  # the others take minutes together


@pytest.mark.parametrize("name", [n if n in SOON else pytest.param(n, marks=pytest.mark.slow) for n in RESAMPLED])
def test_resampling_and_its_gradient(name: str) -> None:
    function, size = RESAMPLED[name]
    torch.manual_seed(2)
    check(function, [torch.randn(size)], compiled=name in ("replicate 2d", "linear"))


MORE: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "addbmm": (lambda x, a, b: torch.addbmm(x, a, b, beta=2), [floats(4, 5), floats(3, 4, 6), floats(3, 6, 5)]),
    "bilinear": (lambda a, b, w: F.bilinear(a, b, w), [floats(4, 5), floats(4, 6), floats(3, 5, 6)]),
    "hardshrink": (lambda x: F.hardshrink(x, 0.5), [floats(40)]),
    "softshrink": (lambda x: F.softshrink(x, 0.5), [floats(40)]),
    "sgn": (torch.sgn, [floats(9)]),
    "prod": (torch.prod, [torch.tensor([[2.0, -3.0], [0.5, 4.0]])]),
    "prod with a zero": (torch.prod, [torch.tensor([[2.0, 0.0], [0.5, 4.0]])]),
    "pow of integers": (torch.pow, [torch.tensor([-3, 2, 0, 5]), torch.tensor([3, 10, 0, 1])]),
    "pow of an integer": (lambda x: torch.pow(3, x), [torch.arange(8)]),
    "nanmedian": (lambda x: x.nanmedian(1).values, [torch.tensor([[1.0, float("nan"), -2.0], [float("nan")] * 3])]),
    "linspace": (lambda x: torch.linspace(-7, 20, 10, dtype=torch.int64, device=x.device), [floats(1)]),
    "seven dims": (lambda x: x.permute(6, 1, 4, 3, 2, 5, 0) * 2 + 1, [floats(2, 3, 2, 1, 3, 2, 5)]),
    "seven dims summed": (lambda x: (x * 2).sum((1, 3)), [floats(2, 3, 2, 2, 3, 2, 5)]),
}  # fmt: skip


@pytest.mark.parametrize("name", MORE)
@pytest.mark.parametrize("compiled", [False, True])
def test_more(name: str, compiled: bool) -> None:
    check(*MORE[name], compiled)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_layers_train(kind: Any) -> None:
    torch.manual_seed(0)
    layer, x = kind(4, 5), floats(3, 2, 4)
    card = kind(4, 5)
    card.load_state_dict(layer.state_dict())
    card.to("spyre")
    want, got = layer(x)[0], card(x.to("spyre"))[0]
    torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)
    want.square().sum().backward()
    got.square().sum().backward()
    for a, b in zip(card.parameters(), layer.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-4)


LARGE = 2**30
OVERFLOWS: dict[str, tuple[Function, list[int], list[int]]] = {
    "sum": (torch.sum, [LARGE, LARGE - 1, -5], [LARGE, LARGE]),
    "prod": (torch.prod, [2**15, 2**15, -1], [2**16, 2**16]),
    "cumsum": (lambda x: x.cumsum(0), [LARGE, -LARGE, LARGE, LARGE - 1], [LARGE, LARGE, -LARGE, -LARGE]),
    "cumprod": (lambda x: x.cumprod(0), [3, 7, 11], [2**20, 2**20, 0]),
    "add": (lambda x: x + x, [LARGE - 1, -LARGE, 5], [LARGE, 0, 0]),
    "sub": (lambda x: -5 - x, [2**31 - 5, 0], [2**31 - 1, 0]),
    "mul": (lambda x: x * x, [46340, -46340, 0], [46341, 0, 0]),
    "alpha": (lambda x: torch.add(x, x, alpha=-3), [LARGE, 1 - LARGE, 3], [LARGE + 1, 0, 0]),
}


@pytest.mark.parametrize("name", OVERFLOWS)
@pytest.mark.parametrize("compiled", [False, True])
def test_an_int64_result_outside_int32_fails(name: str, compiled: bool) -> None:
    function, good, bad = OVERFLOWS[name]
    torch._dynamo.reset()
    call = torch.compile(function, backend="spyre", dynamic=False) if compiled else function
    assert torch.equal(call(torch.tensor(good, device="spyre")).cpu(), function(torch.tensor(good)))
    fails(lambda: call(torch.tensor(bad, device="spyre")), "leaves int32", Overflow)


def test_only_int64_that_may_leave_int32_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    monkeypatch.setattr(overflow, "check", lambda result, in_floats, what: checked.append(what))
    x, few = torch.arange(50, device="spyre"), torch.ones(50, device="spyre", dtype=torch.int32)

    def small(x: torch.Tensor, few: torch.Tensor) -> tuple[torch.Tensor, ...]:
        place = torch.arange(50, device=x.device)
        return (x > 3).long() * 32 + 1, place * place - 7, few * few + few, place / 3 + x

    def large(x: torch.Tensor, few: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, x * few

    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        torch.compile(small, dynamic=False)(x, few)
        assert not checked
        torch.compile(large, dynamic=False)(x, few)
    assert checked == ["sum", "product"]


@pytest.mark.parametrize("compiled", [False, True])
def test_an_assertion_fails_the_launch(compiled: bool) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "every weight is positive")
        return x * 2

    torch._dynamo.reset()
    run = torch.compile(call, backend="spyre") if compiled else call
    assert run(torch.ones(70, device="spyre")).cpu().sum() == 140
    fails(lambda: run(-torch.ones(70, device="spyre")), "assertion failed: every weight is positive", AssertionFailed)


def fails(call: Callable[[], object], message: str, kind: type[SpyreError]) -> None:
    try:
        with pytest.raises(kind, match=message):
            call()
            torch.spyre.synchronize()
    finally:
        torch.spyre.reset()


OPTIMISERS = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "RAdam", "Adamax")
WAYS = ("fused", "foreach", "single")
CASES = [(n, w) for n in OPTIMISERS for w in WAYS if w != "fused" or n in OPTIMISERS[:4]]


def optimised(name: str, way: str, device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    weights = [torch.randn(5, 7).to(device).requires_grad_(), torch.randn(9).to(device).requires_grad_()]
    slopes = [torch.randn(w.shape).to(device) for w in weights]
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    how = {"foreach": way == "foreach"} if way != "fused" else {"fused": True}
    optimiser = getattr(torch.optim, name)(weights, lr=0.01, weight_decay=0.1, **how, **options)
    for _ in range(3):
        for w, g in zip(weights, slopes, strict=True):
            w.grad = g.clone()
        optimiser.step()
    return [w.detach().cpu() for w in weights]


@pytest.mark.parametrize(
    ("name", "way"),
    [c if c in CASES[:2] + CASES[3:5] else pytest.param(*c, marks=pytest.mark.slow) for c in CASES],
)
def test_optimisers(name: str, way: str) -> None:
    for card, host in zip(optimised(name, way, "spyre"), optimised(name, way, "cpu"), strict=True):
        torch.testing.assert_close(card, host, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_a_step_compiles_nothing_that_an_earlier_one_had(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of Adam change with every step."""
    optimised("Adam", way, "spyre")
    compiled: list[object] = []
    real = fallbacks.compile_op
    monkeypatch.setattr(fallbacks, "compile_op", lambda op, *rest: compiled.append(op) or real(op, *rest))
    optimised("Adam", way, "spyre")
    weights = [torch.ones(5, 7, device="spyre").requires_grad_(), torch.ones(9, device="spyre").requires_grad_()]
    optimiser = torch.optim.Adam(
        weights, lr=0.3, weight_decay=0.1, **({way: True} if way != "single" else {"foreach": False})
    )
    for _ in range(2):
        for w in weights:
            w.grad = torch.ones_like(w)
        optimiser.step()
    assert not [op for op in compiled if "fill" not in str(op) and "ones" not in str(op)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("p", [1, 2, 3.5, math.inf])
def test_renorm_and_its_gradient(dtype: torch.dtype, p: float) -> None:
    """PyTorch's formula for the gradient asks every device but its own for float64."""
    x = ((torch.arange(60) % 17 - 7) / 4).reshape(3, 4, 5)
    card, host = x.to("spyre", dtype).requires_grad_(), x.clone().requires_grad_()
    want, got = torch.renorm(host, p, 1, 2.0), torch.renorm(card, p, 1, 2.0)
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.cpu().float(), want, rtol=bound, atol=bound)
    (want * x).sum().backward()
    (got * x.to("spyre", dtype)).sum().backward()
    assert card.grad is not None and card.grad.dtype == dtype
    torch.testing.assert_close(card.grad.cpu().float(), host.grad, rtol=bound, atol=bound)
