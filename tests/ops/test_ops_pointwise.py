# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_ops_pointwise.py
"""Every pointwise function runs on the card, on floats, integers and truth values, eager and compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from op_cases import check
from oracle import assert_close_dl16, dl16

MODES = ("eager", "compiled")
generator = torch.Generator().manual_seed(5)


def floats(dtype: torch.dtype, low: float = -3, high: float = 3) -> torch.Tensor:
    return (torch.rand(5, 70, generator=generator) * (high - low) + low).to(dtype)


def integers(dtype: torch.dtype, low: int = -60, high: int = 60) -> torch.Tensor:
    return torch.randint(0 if dtype is torch.uint8 else low, high, (5, 70), generator=generator).to(dtype)


UNARY = """abs acosh:1:9 asin:-1:1 acos:-1:1 asinh atan atanh:-0.9:0.9 ceil cos cosh erf erfc erfinv:-0.9:0.9 exp exp2
    expm1 floor frac isfinite isinf isnan log:0.1:9 log10:0.1:9 log1p:-0.5:9 log2:0.1:9 neg reciprocal:0.2:4 round
    rsqrt:0.1:9 sigmoid sign signbit sin sinh sqrt:0:9 square tan:-1:1 tanh trunc logical_not sinc
    logit:0.1:0.9""".split()
ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": lambda x: F.softplus(x, 1.5, 2.0),
    "elu": F.elu,
    "hardswish": F.hardswish,
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "clamp_min": lambda x: x.clamp(min=0.1),
    "leaky_relu": F.leaky_relu,
    "logsigmoid": F.logsigmoid,
    "glu": F.glu,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("spec", UNARY)
def test_unary(spec: str, dtype: torch.dtype) -> None:
    name, *limits = spec.split(":")
    check(getattr(torch, name), floats(dtype, *map(float, limits)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, dtype: torch.dtype) -> None:
    check(ACTIVATIONS[name], floats(dtype))


@pytest.mark.parametrize("name", ["gelufwd", "silu", "mish", "softplus", "clip"])
def test_functions_that_the_card_has_stay_whole(name: str) -> None:
    """One device operation, not the formula."""
    from torch_spyre._inductor.planning import planner

    call = {**ACTIVATIONS, "gelufwd": F.gelu, "clip": ACTIVATIONS["clamp"]}[name]
    seen: list[str] = []
    original = planner.plan

    def spy(graph: Any, inputs: Any, *how: Any) -> Any:
        seen.extend(node.op for node in graph.nodes)
        return original(graph, inputs, *how)

    from torch_spyre._inductor import compile as stages

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "plan", spy)
        patch.setattr("torch_spyre.runtime.cache.load", lambda entry: None)
        call(torch.randn(3, 77).to("spyre"))
    assert seen == [name]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", "add sub mul div atan2 fmod remainder maximum minimum hypot copysign xlogy".split())
def test_binary(name: str, dtype: torch.dtype) -> None:
    check(getattr(torch, name), floats(dtype), floats(dtype, 0.3, 2))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
@pytest.mark.parametrize(
    "name", "add sub mul floor_divide remainder fmod bitwise_and bitwise_or bitwise_xor maximum gt eq".split()
)
def test_integers(name: str, dtype: torch.dtype) -> None:
    check(getattr(torch, name), integers(dtype), integers(dtype, 1, 9).abs() + 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x << 2,
        lambda x: x >> 2,
        torch.bitwise_not,
        lambda x: torch.div(x, 7, rounding_mode="trunc"),
        lambda x: x // -7,
        lambda x: x % -7,
        lambda x: x**3,
        torch.abs,
        torch.sign,
        lambda x: x.clamp(-3, 5),
        lambda x: x / 3,
        lambda x: x.float().sin(),
    ],
)
def test_integer_forms(call) -> None:
    check(call, integers(torch.int64))


def test_integers_wrap_at_32_bits() -> None:
    x = torch.tensor([2**31 - 1, -(2**31)], dtype=torch.int32)
    assert torch.equal((x.to("spyre") + x.to("spyre")).cpu(), x + x)


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float16, torch.int64])
def test_truth(name: str, dtype: torch.dtype) -> None:
    check(getattr(torch, name), integers(torch.int64, -1, 2).to(dtype), integers(torch.int64, 0, 2).to(dtype))


@pytest.mark.parametrize("mode", MODES)
def test_positions_as_values(mode: str) -> None:
    x = floats(torch.float16)
    check(lambda x: torch.tril(x), x, mode=mode)
    check(lambda x: torch.triu(x, 2), x, mode=mode)
    check(lambda x: x + torch.arange(70, device=x.device), x, mode=mode)
    check(lambda x: x * torch.eye(5, 70, device=x.device), x, mode=mode)
    check(lambda x: torch.arange(3, 40, 3, device=x.device), x, mode=mode)
    check(lambda x: torch.linspace(-1, 1, 50, device=x.device), x, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_masks(mode: str) -> None:
    x, mask = floats(torch.float16), integers(torch.int64, 0, 2).bool()
    check(lambda x, m: x.masked_fill(m, -1.0), x, mask, mode=mode)
    check(lambda x, m: torch.where(m, x, x.neg()), x, mask, mode=mode)


def test_a_shared_subexpression_is_computed_once() -> None:
    """A body that uses each value twice in the next takes linear time to build."""

    def deep(x: torch.Tensor) -> torch.Tensor:
        for _ in range(24):
            x = torch.maximum(x, x + 0.5) * x.sigmoid()
        return x

    check(deep, floats(torch.float32), mode="compiled")


# Special values

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0, math.inf, -math.inf, math.nan]
LEFT = torch.tensor([x for x in SPECIAL for _ in SPECIAL])
RIGHT = torch.tensor([y for _ in SPECIAL for y in SPECIAL])
OF_TWO = """hypot pow fmax fmin maximum minimum atan2 copysign xlogy logaddexp logaddexp2 heaviside ldexp fmod
    nextafter add sub mul div floor_divide""".split()


def assert_specials(got: torch.Tensor, want: torch.Tensor) -> None:
    """The same NaNs and infinities; finite results to a few units of fp32."""
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(got), kind(want)), list(zip(got.tolist(), want.tolist(), strict=True))
    finite = torch.isfinite(want)
    torch.testing.assert_close(got[finite], want[finite], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", OF_TWO)
def test_special_values_of_two_operands(name: str) -> None:
    function = getattr(torch, name)
    assert_specials(function(LEFT.to("spyre"), RIGHT.to("spyre")).cpu(), function(LEFT, RIGHT))


def test_special_values_compiled() -> None:
    def all_of_them(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [getattr(torch, name)(x, y) for name in OF_TWO if name not in ("nextafter", "ldexp")]

    torch._dynamo.reset()
    found = torch.compile(all_of_them, dynamic=False)(LEFT.to("spyre"), RIGHT.to("spyre"))
    for got, want in zip(found, all_of_them(LEFT, RIGHT), strict=True):
        assert_specials(got.cpu(), want)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_hypot_of_infinity_and_nan(dtype: torch.dtype, mode: str) -> None:
    torch._dynamo.reset()
    function = torch.compile(torch.hypot, dynamic=False) if mode == "compiled" else torch.hypot
    x, y = LEFT.to(dtype), RIGHT.to(dtype)
    got, want = function(x.to("spyre"), y.to("spyre")).cpu(), torch.hypot(x, y)
    assert torch.equal(torch.isnan(got), torch.isnan(want)) and torch.equal(torch.isinf(got), torch.isinf(want))
    # A finite number of the size of the largest 16-bit code is no infinity in fp32.
    large = torch.tensor([8573157376.0]).to("spyre")
    assert torch.hypot(large, large * math.nan).isnan().item()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 65472.0), (torch.bfloat16, 8556380160.0)])
def test_nan_to_num_is_finite(dtype: torch.dtype, most: float, mode: str) -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, 1.5, -0.0]).to(dtype)
    cases: list[tuple[Any, ...]] = [(), (7.0,), (7.0, 5.0), (7.0, None, -3.0), (0.0, 65504.0, -1e30)]
    for numbers in cases:
        torch._dynamo.reset()
        call = torch.compile(torch.nan_to_num, dynamic=False) if mode == "compiled" else torch.nan_to_num
        want = torch.nan_to_num(x.float(), *numbers).clamp(-most, most).to(dtype)
        got = call(x.to("spyre"), *numbers).cpu()
        assert torch.equal(got, want.to("spyre").cpu()) and got.isfinite().all()


NUMBER_CALLS: dict[str, Callable[..., Any]] = {
    "add": lambda x, mask, at, n: x + n,
    "mul": lambda x, mask, at, n: (x + 1) * n,
    "maximum": lambda x, mask, at, n: torch.maximum(x, torch.tensor(n, dtype=x.dtype)),
    "tensor": lambda x, mask, at, n: x + torch.tensor(n),  # a 0-d tensor of the host
    "clamp": lambda x, mask, at, n: x.clamp(n, n),
    "masked_fill": lambda x, mask, at, n: x.masked_fill(mask, n),
    "where": lambda x, mask, at, n: torch.where(mask, n, x),
    "pad": lambda x, mask, at, n: torch.nn.functional.pad(x, (1, 2), value=n),
    "index_fill": lambda x, mask, at, n: x.index_fill(0, at, n),
    "scatter": lambda x, mask, at, n: x.scatter(0, at, n),
    "full": lambda x, mask, at, n: torch.full_like(x, n),
    "equal": lambda x, mask, at, n: torch.full_like(x, n) == n,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NUMBER_CALLS)
def test_finite_numbers_stay_finite_in_float16(name: str, mode: str) -> None:
    """65504 as a number is what it is in a host tensor; infinity stays infinity."""
    torch._dynamo.reset()
    function = NUMBER_CALLS[name]
    call = torch.compile(function, dynamic=False) if mode == "compiled" else function
    tensors = torch.zeros(5, dtype=torch.float16), torch.tensor([True, False, True, True, False]), torch.tensor([0, 3])
    on_card = [t.to("spyre") for t in tensors]
    for number in (65504.0, -65504.0, 65488.0, 65472.0, 1e4):
        want = function(*tensors, number)
        got = call(*on_card, number).cpu()
        assert torch.equal(got, want.to("spyre").cpu()), number
        assert got.isfinite().all()
    assert torch.equal(call(*on_card, math.inf).cpu(), function(*tensors, math.inf))


def test_float32_operands_keep_numbers_of_float16_exactly() -> None:
    x, number = torch.full((3,), 2.0), torch.tensor(65504.0, dtype=torch.float16)
    assert torch.equal((x.to("spyre") * number).cpu(), x * number)
    assert torch.equal((x.to("spyre") * 65504.0).cpu(), x * 65504.0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("exponent", [-8, -3, -2, 4, 5, 8.0])
def test_a_whole_power_in_16_bits_is_rounded_once(mode: str, exponent: float) -> None:
    x = floats(torch.float16, 0.6, 2)
    call = torch.compile(torch.pow, dynamic=False) if mode == "compiled" else torch.pow
    assert_close_dl16(call(x.to("spyre"), exponent), dl16(x) ** float(exponent))


@pytest.mark.parametrize("function", [torch.exp, torch.sin, torch.tan])
def test_functions_of_bfloat16_take_the_nine_bits_that_the_card_holds(function: Callable[..., torch.Tensor]) -> None:
    """A copy in bfloat16 has seven of them, which is not what the function was given."""
    x = torch.empty(500, dtype=torch.bfloat16, device="spyre").uniform_(-9, 9)
    held, copied = x.float().cpu().double(), x.cpu().double()
    assert (held != copied).sum() > 250
    got = function(x).float().cpu().double()
    assert ((got - function(held)).abs() <= function(held).abs() * 2.0**-10 * 1.001).all()
