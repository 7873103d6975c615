# SPDX-License-Identifier: Apache-2.0
# make test-triton, or in its environment: pytest tests/triton_kernels/test_control.py
"""Control flow and functions of kernels as they are found in the wild, against the interpreter and PyTorch."""

from __future__ import annotations

import time

import control_kernels as k
import pytest
import torch
import torch.nn.functional as F
import triton
from interpreted import Interpreter
from test_features import check, launch

from torch_spyre.errors import IndexOutOfRange, UnsupportedOp


def test_returns_whose_branches_meet(interpreter: Interpreter) -> None:
    x = torch.randn(400)
    found = check(interpreter, k.returns_meet, (7,), x, torch.zeros(400), 400, 6, BLOCK=64)[1]
    expected = torch.zeros(400)
    for p, part in enumerate(x.split(64)[:6]):
        inside = part if p % 2 == 0 else part * 2 + 1
        expected[p * 64 : p * 64 + len(part)] = inside if part.double().sum() > 0 else 1 - part
    assert torch.equal(found, expected)


def test_locks() -> None:
    x, locks = torch.randn(20, 50), torch.zeros(8, dtype=torch.int32)
    _, out, after, *_ = launch(k.sums_under_a_lock, (20,), x, torch.zeros(4, 50), locks, 50, GROUPS=4, BLOCK=64)
    expected = torch.stack([x[g::4].double().sum(0) for g in range(4)])
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    assert after.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_lock_that_nobody_releases() -> None:
    x, locks = torch.randn(4, 50), torch.tensor([0, 1, 0, 0, 0, 0, 0, 0], dtype=torch.int32)
    with pytest.raises(IndexOutOfRange, match=r"this loop waits for a later program.*control_kernels\.py"):
        launch(k.sums_under_a_lock, (4,), x, torch.zeros(4, 50), locks, 50, GROUPS=4, BLOCK=64)
    torch.spyre.reset()


def test_waiting_for_an_earlier_program() -> None:
    x = torch.randint(-9, 9, (40,)).float()
    found = launch(k.waits, (40,), x, torch.zeros(40, dtype=torch.int32), DISTANCE=1)[0]
    assert torch.equal(found, x.cumsum(0))


def test_waiting_for_a_later_program() -> None:
    with pytest.raises(IndexOutOfRange, match="this loop waits for a later program"):
        launch(k.waits, (4,), torch.randn(4), torch.zeros(4, dtype=torch.int32), DISTANCE=0)
    torch.spyre.reset()


@pytest.mark.parametrize("n", [128, 100])
def test_chosen_pointers(interpreter: Interpreter, n: int) -> None:
    a, b = torch.randn(2, n)
    found = check(interpreter, k.chooses_a_pointer, (4,), a, b, torch.zeros(n), n, BLOCK=32)[2]
    assert torch.equal(found, torch.where(torch.arange(n) // 32 % 2 == 0, a, b))


def test_pointers_chosen_by_memory(interpreter: Interpreter) -> None:
    n, flags = 100, torch.tensor([1, 0, 1, 0], dtype=torch.int32)
    a, b = torch.randn(2, n)
    out = check(interpreter, k.branches_on_pointers, (4,), a, b, torch.zeros(2 * n), flags, n, BLOCK=32)[2]
    first = torch.arange(n) // 32 % 2 == 0
    assert torch.equal(out, torch.cat([torch.where(first, a, 0), torch.where(first, 0, b.flip(0))]))


@pytest.mark.parametrize("shape", [(3, 13, 17), (1, 4, 4)])
def test_windows_over_the_edge(interpreter: Interpreter, shape: tuple[int, int, int]) -> None:
    x = torch.randn(shape)
    expected = F.max_pool2d(x, 3, 2, 1)
    grid = shape[0], triton.cdiv(expected[0].numel(), 32)
    sizes = shape[1:] + tuple(expected.shape[1:])
    found = check(interpreter, k.windows_peaks, grid, x, torch.zeros_like(expected), *sizes, 3, 2, 1, 32)[1]
    assert torch.equal(found, expected)


def test_stores_over_the_edge(interpreter: Interpreter) -> None:
    x = torch.randn(5, 7)
    found = check(interpreter, k.spreads, (1,), x, torch.zeros(5, 7), 5, 7, 64)[1]
    assert torch.equal(found, F.pad(x[1:, 1:], (0, 1, 0, 1)))


def test_libdevice() -> None:
    n = 60
    x, y = torch.randn(n) * 2, torch.rand(n) + 0.1
    x[:4] = torch.tensor([0.5, -1.5, 2.5, -0.5])
    out = launch(k.library, (1,), x, y, torch.zeros(30, n), n, BLOCK=64)[2].double()
    a, b = x.double(), y.double()
    away, ones = torch.sign(a) * torch.floor(a.abs() + 0.5), torch.ones(n).double()
    expected = [
        a.round(),
        away,
        a.trunc(),
        a.round(),
        a.atan(),
        (a * 0.1).asin(),
        (a * 0.1).acos(),
        b.sinh(),
        b.cosh(),
        a.asinh(),
        torch.atan2(a, b),
        b.log10(),
        torch.erfc(a),
        a.sign() * a.abs() ** (1 / 3),
        torch.hypot(a, b),
        torch.fmod(a, b),
        torch.copysign(b, a),
        10**b,
        a / b,
        b.rsqrt(),
        a * b + a,
        (a - b).clamp(min=0),
        a.clamp(0, 1),
        torch.special.ndtr(b),
        torch.sin(b * torch.pi),
        a.round(),
        a.round(),
        0 * ones,
        ones,
        (a < 0).double(),
    ]  # fmt: skip  a number over 0 is infinite, not NaN
    for i, (mine, theirs) in enumerate(zip(out, expected, strict=True)):
        torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=2e-6, msg=lambda text, i=i: f"function {i}: {text}")


def test_unknown_function_of_libdevice() -> None:
    @triton.jit
    def gamma(x):
        triton.language.store(x, triton.language.extra.cuda.libdevice.lgamma(triton.language.load(x)))

    with pytest.raises(
        UnsupportedOp, match=r"test_control\.py:\d+:\d+: tt.extern_elementwise.*__nv_lgammaf; there are"
    ):
        gamma[(1,)](torch.ones(1, device="spyre"))


def test_bytes_without_sign(interpreter: Interpreter) -> None:
    x = torch.arange(0, 256, 3).to(torch.uint8)
    n = len(x)
    doubled, found = launch(k.bytes_doubled, (1,), x, torch.zeros(n), n, BLOCK=128)[:2]
    assert torch.equal(found, x.float() * 2)
    assert torch.equal(doubled, x + 1)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_integers_keep_their_low_bits(interpreter: Interpreter, dtype: torch.dtype) -> None:
    x = torch.tensor([1.9, -1.9, 200.0, -300.0, 40000.0, 127.5])
    found = check(interpreter, k.narrowed, (1,), x, torch.zeros(6, dtype=dtype), 6, BLOCK=8)[1]
    assert torch.equal(found, x.to(torch.int32).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bit_floats(dtype: torch.dtype) -> None:
    x = torch.randn(100)
    packed = launch(k.narrowed, (1,), x, torch.zeros(100, dtype=dtype), 100, BLOCK=128)[1]
    wide = launch(k.narrowed, (1,), packed, torch.zeros(100), 100, BLOCK=128)[1]
    steps = 2.0**-3 if dtype is torch.float8_e4m3fn else 2.0**-2
    torch.testing.assert_close(packed.float(), x, rtol=steps / 2, atol=2.0**-10)
    assert torch.equal(wide, packed.float())


def test_benchmarks_take_few_calls() -> None:
    """One call, and tens of calls, give the same time on the card's clock; a call of nothing takes no time."""
    x = torch.randn(4096).to("spyre")
    out = torch.zeros(4096, device="spyre")
    calls = []

    def add() -> None:
        calls.append(time.monotonic())
        k.narrowed[(1,)](x, out, 4096, BLOCK=4096)

    mean = triton.testing.do_bench(add)
    assert len(calls) < 100
    times = triton.testing.do_bench(add, quantiles=[0.5, 0.2, 0.8])
    assert mean > 0
    assert times == pytest.approx([mean] * 3)
    assert triton.testing.do_bench(lambda: None) < 1e-3
