# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_int64.py
"""int64 is int32 on the card: what does not fit raises and names it, eager and compiled, and what fits is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torch_spyre.errors import Overflow

Function = Callable[..., torch.Tensor]
B = 2**31
ZEROS = [0, 0]


def places(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(2, dtype=torch.int64, device=x.device)


def foreach(name: str, *args: object) -> Function:
    def call(x: torch.Tensor) -> torch.Tensor:
        given = [[x.clone()] if a is ... else a for a in args]
        (result,) = getattr(torch, f"_foreach_{name}")([x], *given)
        return result

    return call


# (function, operand whose result fits, operand whose result does not)
CASES: dict[str, tuple[Function, list[float], list[float]]] = {
    "shift by a number": (lambda x: x << 5, [2**25, -(2**26)], [2**26, 1]),
    "shift by a tensor": (lambda x: 1 << x, [30, 0, 64, 70, -1], [31, 0]),
    "shift in place": (lambda x: x.clone().bitwise_left_shift_(40), ZEROS, [1, 0]),
    "power by a number": (lambda x: x**2, [46340, -46340], [46341, 0]),
    "power of a number": (lambda x: torch.pow(3, x), [19, 0], [20, 1]),
    "power by a tensor": (lambda x: x**x.abs(), [-9, 9, 0], [10, 1]),
    "least power": (lambda x: (-2) ** x, [31, 30], [32, 1]),
    "neg": (torch.neg, [B - 1, 1 - B], [-B, 0]),
    "abs": (torch.abs, [B - 1, 1 - B], [-B, 0]),
    "quotient": (lambda x: x // -1, [B - 1, 1 - B], [-B, 0]),
    "quotient of tensors": (lambda x: torch.div(x, x.sign(), rounding_mode="trunc"), [B - 1, 1 - B], [-B, 1]),
    "gcd": (lambda x: torch.gcd(x, x), [B - 1, 1 - B], [-B, 6]),
    "addcmul": (lambda x: torch.addcmul(x, x, x, value=3), [26754, -5], [26755, 0]),
    "matmul": (lambda x: x.reshape(2, 2) @ x.reshape(2, 2), [30000, 30000, 40000, -3], [46341, 0, 0, 0]),
    "addmm": (lambda x: torch.addmm(x[:1], x[:, None], x[None]), [46000, -46000], [46341, 5]),
    "scatter_add": (lambda x: x.scatter_add(0, places(x), x), [2**30, -1], [2**30, 1]),
    "index_put": (lambda x: x.index_put((places(x),), x, accumulate=True), [2**30, -1], [2**30, 1]),
    "index_add": (lambda x: x.index_add(0, places(x), x), [2**30, -1], [2**30, 1]),
    "scatter_reduce": (lambda x: x.scatter_reduce(0, places(x), x, "prod"), [30000, 2], [46341, 1]),
    "conversion": (lambda x: x.long(), [2147483520.0, -2147483648.0, 0.9], [2147483648.0, 1.0]),
    "conversion of 16 bits": (lambda x: x.bfloat16().long(), [-2147483648.0, 3.5], [2147483648.0, 1.0]),
    "copy": (lambda x: torch.zeros(2, dtype=torch.int64, device=x.device).copy_(x), [1e9, -1.5], [-3e9, 0.0]),
    "sum of floats": (lambda x: x.sum(dtype=torch.int64), [1e9, 0.5], [3e9, 0.0]),
    "foreach add": (foreach("add", ...), [2**30 - 1, 0], [2**30, 0]),
    "foreach sub": (foreach("sub", 5), [5 - B, 0], [4 - B, 0]),
    "foreach mul": (foreach("mul", ...), [46340, 0], [46341, 0]),
    "foreach neg": (foreach("neg"), [B - 1, 0], [-B, 0]),
    "foreach abs": (foreach("abs"), [B - 1, 0], [-B, 0]),
    "foreach pow": (foreach("pow", 3), [1290, 0], [1291, 0]),
    "foreach addcmul": (foreach("addcmul", ..., ...), [46339, 0], [46341, 0]),
}  # fmt: skip


# Eager lists are taken apart by PyTorch; compiled ones are lowered whole.
_SHORT = ("shift by a number", "power by a tensor", "neg", "conversion", "scatter_add", "matmul")


def ways() -> Iterator[Any]:
    for name in CASES:
        listed = name.startswith("foreach")
        yield pytest.param(name, True, marks=() if listed or name in _SHORT else pytest.mark.slow)
        yield pytest.param(name, False, marks=pytest.mark.slow if listed or name in ("gcd", "addmm") else ())


@pytest.mark.parametrize(("name", "compiled"), ways())
def test_what_leaves_int32_fails(name: str, compiled: bool) -> None:
    function, good, bad = CASES[name]
    torch._dynamo.reset()
    call = torch.compile(function, backend="spyre", dynamic=False) if compiled else function
    assert torch.equal(call(torch.tensor(good).to("spyre")).cpu(), function(torch.tensor(good)))
    try:
        with pytest.raises(Overflow, match=r"an int64 .* leaves int32"):
            call(torch.tensor(bad).to("spyre")).cpu()
    finally:
        torch.spyre.reset()


@pytest.mark.parametrize("call", [lambda x, n: x << n, lambda x, n: x**n, lambda x, n: x * n, lambda x, n: n**x])
def test_operands_that_are_sizes(call: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return call(x, x.shape[0])

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="spyre", dynamic=True)
    good, bad = torch.tensor([4, 3, 2, 5]), torch.tensor([B - 1, 3, 2, 5])
    assert torch.equal(compiled(good.to("spyre")).cpu(), function(good))
    try:
        with pytest.raises(Overflow, match=r"an int64 .* leaves int32"):
            compiled(bad.to("spyre")).cpu()
    finally:
        torch.spyre.reset()


def test_what_lies_past_a_varying_size_is_not_checked() -> None:
    compiled = torch.compile(lambda x: x * 3, backend="spyre", dynamic=True)
    for n in (5, 9, 12):
        left = [torch.full((64,), B - 1, dtype=torch.int64, device="spyre") for _ in range(64)]
        del left  # memory that the program will get, full of values whose product leaves int32
        x = torch.arange(n) * 1000
        assert torch.equal(compiled(x.to("spyre")).cpu(), x * 3)


@pytest.mark.parametrize("ends", [(B - 2, B + 2, 1), (0, 4 * B, B), (-B - 3, -B, 1)])
def test_arange_beyond_int32(ends: tuple[int, int, int]) -> None:
    with pytest.raises(Overflow, match="arange reaches"):
        torch.arange(*ends, device="spyre")
    torch._dynamo.reset()
    with pytest.raises(Exception, match="arange reaches"):
        torch.compile(lambda x: torch.arange(*ends, device=x.device) + x)(torch.ones(1, device="spyre"))
    assert torch.equal(torch.arange(B - 4, B, device="spyre").cpu(), torch.arange(B - 4, B))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.full((2,), B, device=x.device),
        lambda x: x.masked_fill(x > 0, -B - 1),
        lambda x: torch.where(x > 0, x, 2**62),
        lambda x: x + 2**32,
        lambda x: x * 2**32,
        lambda x: x & 0xFFFFFFFF,
    ],
)
def test_numbers_beyond_int32(call: Function) -> None:
    x = torch.tensor([1, 2]).to("spyre")
    with pytest.raises(Overflow, match="outside int32"):
        call(x)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"outside int32|does not fit into 32 bits"):
        torch.compile(call, backend="spyre", dynamic=False)(x)


def test_indices_made_from_positions_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpolation computes places in floats whose range the sizes tell."""
    from torch_spyre._inductor.lowering import overflow

    asked: list[str] = []
    monkeypatch.setattr(overflow, "_demand", lambda holds, what: asked.append(what))

    def small(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        places = (torch.arange(50, device=x.device) * 0.7).floor().long()
        return places << 3, (x > 0).long() ** 5, -places.abs(), places // 3

    x = torch.arange(50).to("spyre")
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        torch.compile(lambda x: x.float().long(), dynamic=False)(x)  # 2**31 - 1 is 2**31 in fp32
        assert asked == ["value"]
        asked.clear()
        torch.compile(small, dynamic=False)(x)
    assert not asked
