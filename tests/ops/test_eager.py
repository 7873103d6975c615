# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_eager.py
"""Eager operations equal the oracle, share a plan across scalars and tensors, and work from inside any mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from oracle import Bounded, assert_close_dl16, assert_close_fp32, assert_same, dl16, sum_error, to64

import torch_spyre
from torch_spyre import _C
from torch_spyre.ops import eager

FP16, FP32 = torch.float16, torch.float32
pytestmark = pytest.mark.filterwarnings("error:.*falling back to cpu")


def half(*size: int) -> torch.Tensor:
    return torch.randn(size).to(FP16)


def card(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [t.to("spyre") for t in tensors]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the ops that were compiled; starts with nothing planned."""
    seen: list[str] = []

    def counting(op: Any, args: Any, kwargs: Any) -> Any:
        seen.append(op.name())
        return eager.compile_op(op, args, kwargs)

    _C.clear_eager_cache()
    _C.set_eager_compiler(counting)
    yield seen
    _C.set_eager_compiler(torch_spyre._compile_op)
    _C.clear_eager_cache()


SHAPES = [(64,), (33, 100), (4, 7, 130), (2, 3, 5, 65), (1,), (1, 1), ()]
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
}


@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, size: tuple[int, ...]) -> None:
    a, b = half(*size), (half(*size).abs() + 0.5).to(FP16)
    got = BINARY[name](*card(a, b)).cpu()
    assert got.shape == a.shape
    BINARY[name](Bounded.of(a), Bounded.of(b)).store().check(got)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("number", [2, 0.1, -3.5, 7])
def test_numbers_on_either_side(name: str, number: float) -> None:
    x = (half(5, 70).abs() + 0.5).to(FP16)
    (on_card,) = card(x)
    op, value = BINARY[name], torch.from_numpy(dl16(x))
    as_fp32 = float(np.float32(number))  # a launch scalar is fp32
    assert_close_dl16(op(on_card, number).cpu(), to64(op(value, as_fp32)))
    extra = np.abs(to64(op(as_fp32, value))) * 2.0**-8 if name == "div" else None  # c / x is reciprocal(x) * c
    assert_close_dl16(op(number, on_card).cpu(), to64(op(as_fp32, value)), extra)


def test_another_number_needs_no_other_plan_and_is_not_forgotten(compiled: list[str]) -> None:
    (x,) = card(torch.arange(-100, 100, dtype=FP16))
    host = x.cpu()
    for number in (1, 2, 3, -5):
        assert torch.equal((x * number).cpu(), host * number)
        assert torch.equal((x + number).cpu(), host + number)
    assert torch.equal((x * 0.5).cpu(), host * 0.5)
    assert torch.equal((x * 0.25).cpu(), host * 0.25)
    # An int and a float are two signatures.
    assert sorted(compiled) == ["aten::add.Tensor", "aten::mul.Tensor", "aten::mul.Tensor"]


def test_cpu_scalar_tensors_are_launch_scalars(compiled: list[str]) -> None:
    (x,) = card(torch.arange(-100, 100, dtype=FP16))
    for dtype in (FP16, FP32, torch.float64, torch.int64, torch.bool):
        for value in (1, 0):
            scalar = torch.tensor(value, dtype=dtype)
            got = x * scalar
            assert got.dtype == FP16
            assert torch.equal(got.cpu(), (x.cpu() * scalar).to(FP16))
    assert len(compiled) == 5


def test_one_tensor_twice_and_two_tensors_share_a_plan_that_knows_neither(compiled: list[str]) -> None:
    a, b = half(5, 70), half(5, 70)
    x, y = card(a, b)
    assert_same((x * x).cpu(), np.float64(to64((x * x).cpu())))
    (Bounded.of(a) * Bounded.of(a)).store().check((x * x).cpu())
    (Bounded.of(a) * Bounded.of(b)).store().check((x * y).cpu())
    mask = x > 0
    torch.where(mask, x, x)
    assert torch.equal(torch.where(mask, x, y).cpu(), torch.where(mask.cpu(), x.cpu(), y.cpu()))
    assert compiled.count("aten::mul.Tensor") == 1
    assert compiled.count("aten::where.self") == 1


def test_ranges_keep_their_plan(compiled: list[str]) -> None:
    """PyTorch would write into an empty tensor that grows with each call."""
    calls: list[tuple[Any, ...]] = [(7,), (3, 10), (10, 2, -3), (0.0, 1.0, 0.25), (5, 5)]
    for _ in range(2):
        for args in calls:
            got = torch.arange(*args, device="spyre")
            want = torch.arange(*args)
            assert got.dtype == want.dtype
            torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0)
    assert compiled == ["aten::arange.start_out"] * 4  # nothing to do for the empty one


def test_a_hit_equals_the_miss(compiled: list[str]) -> None:
    x, w, b = card(half(33, 100), half(100, 70), half(70))
    calls: list[Callable[[], torch.Tensor]] = [
        lambda: x + x,
        lambda: x * 0.3,
        lambda: torch.softmax(x, -1),
        lambda: torch.addmm(b, x, w),
        lambda: x.sum(0),
        lambda: x[3:, 5:60].t() - 1,
    ]
    first = [call().cpu() for call in calls]
    planned = len(compiled)
    for call, want in zip(calls, first, strict=True):
        assert torch.equal(call().cpu(), want)
    assert len(compiled) == planned
    _C.clear_eager_cache()  # from the program cache on disk
    for call, want in zip(calls, first, strict=True):
        assert torch.equal(call().cpu(), want)


@pytest.mark.parametrize(
    ("left", "right"),
    [((33, 100), (100,)), ((33, 100), (33, 1)), ((33, 1), (1, 100)), ((4, 1, 65), (7, 1)), ((5,), ())],
)
def test_broadcasting(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = half(*left), half(*right)
    x, y = card(a, b)
    (Bounded.of(a) + Bounded.of(b)).store().check((x + y).cpu())
    (Bounded.of(b) - Bounded.of(a)).store().check((y - x).cpu())


@pytest.mark.parametrize("size", SHAPES)
def test_unary(size: tuple[int, ...]) -> None:
    a = half(*size)
    (x,) = card(a)
    Bounded.of(a).relu().check(torch.relu(x).cpu())
    Bounded.of(a).exp().store().check(torch.exp(x).cpu())
    assert torch.equal((-x).cpu(), -x.cpu())
    assert torch.equal(x.abs().cpu(), x.cpu().abs())


@pytest.mark.parametrize("size", [(64,), (33, 100), (4, 7, 130), (2, 3, 5, 65)])
def test_reductions_over_any_dims(size: tuple[int, ...]) -> None:
    a = half(*size)
    (x,) = card(a)
    value, rank = dl16(a), len(size)
    for dims in {(0,), (rank - 1,), tuple(range(rank)), (0, rank - 1), tuple(range(rank - 1)) or (0,)}:
        axes = tuple(sorted(set(dims)))
        for keepdim in (False, True):
            total = x.sum(axes, keepdim=keepdim).cpu()
            assert_close_dl16(total, value.sum(axis=axes, keepdims=keepdim), sum_error(value, axes, keepdim))
            assert_same(x.amax(axes, keepdim=keepdim).cpu(), value.max(axis=axes, keepdims=keepdim))
    assert_close_dl16(x.sum().cpu(), value.sum(), sum_error(value, tuple(range(rank))))
    assert_same(x.max().cpu(), value.max())
    assert_close_fp32(x.sum(-1, dtype=FP32).cpu(), value.sum(axis=-1), sum_error(value, rank - 1))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(dim: int) -> None:
    a = half(5, 40, 70)
    exact = torch.softmax(torch.from_numpy(dl16(a)), dim).numpy()
    got = torch.softmax(card(a)[0], dim).cpu()
    assert_close_dl16(got, exact, extra=exact * (70 + 16) * 2.0**-23)


def test_matmul_family() -> None:
    a, b, c, v = half(33, 100), half(100, 70), half(70), half(100)
    x, w, bias, vec = card(a, b, c, v)
    p, q, r, s = (Bounded.of(t) for t in (a, b, c, v))
    (p @ q).store().check(torch.mm(x, w).cpu())
    (p @ s).store().check((x @ vec).cpu())
    (s @ q).store().check((vec @ w).cpu())
    ((p @ q).store() + r).store().check(torch.addmm(bias, x, w).cpu())
    scaled = ((p @ q).store() * 0.5).store() + (r * 2.0).store()
    scaled.store().check(torch.addmm(bias, x, w, alpha=0.5, beta=2).cpu())
    d, e = half(3, 20, 65), half(3, 65, 9)
    (Bounded.of(d) @ Bounded.of(e)).store().check(torch.bmm(*card(d, e)).cpu())
    (Bounded.of(d) @ Bounded.of(e[0])).store().check((card(d)[0] @ card(e)[0][0]).cpu())
    (Bounded.of(a.t()) @ Bounded.of(a)).store().check((x.t() @ x).cpu())


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[3:17],
        lambda x: x[:, 64:100],
        lambda x: x[:, 3:50],
        lambda x: x[::2, 1::3],
        lambda x: x[5],
        lambda x: x[:, 7],
        lambda x: x[4, 9],
        lambda x: x.unsqueeze(1).expand(26, 3, 200),
        lambda x: x[:, :1].expand(26, 200),
        lambda x: x.reshape(13, 2, 4, 50).permute(3, 1, 0, 2),
        lambda x: x.reshape(2, 13, 2, 4, 5, 5),
        lambda x: torch.as_strided(x, (20, 25), (7, 200), 5),
        lambda x: x.unfold(1, 10, 10),
    ],
)
def test_views_as_operands(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    a = half(26, 200)
    (x,) = card(a)
    value = view(torch.from_numpy(dl16(a)))
    assert_close_dl16((view(x) + 1).cpu(), to64(value) + 1)
    assert_same(view(x).contiguous().cpu(), value)
    assert_same(view(x).amax().cpu(), value.max())
    kept = card(a)[0]
    if 0 not in view(kept).stride():  # every element once
        view(kept).copy_(torch.ones_like(view(kept)))
        want = torch.from_numpy(dl16(a))
        view(want).fill_(1)
        assert_same(kept.cpu(), want)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: -x,
        lambda x: x.transpose(0, 1) + 1,
        lambda x: x.permute(3, 1, 0, 2) * 2,
        lambda x: x + x.permute(0, 1, 2, 3).contiguous(),
        lambda x: x[:, 3:50] * 2,
        lambda x: x[::2] - x[::2],
        lambda x: x[:, :1].expand(5, 100, 2, 7) + 1,
        lambda x: x.permute(3, 1, 0, 2).sum(1, keepdim=True),
        lambda x: torch.softmax(x.transpose(1, 2), 1),
        lambda x: x[0].transpose(0, 1) @ x[0].permute(1, 2, 0),
        lambda x: x.permute(3, 1, 0, 2).clone(),
        lambda x: torch.where(x > 0, x, x.permute(0, 1, 2, 3)),
        lambda x: x.permute(1, 0, 2, 3).float(),
    ],
)
def test_results_have_the_strides_that_pytorch_gives_them(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = half(5, 100, 2, 7)  # a stride of 1400: large enough for Inductor to pad
    got, want = call(x.to("spyre")), call(x)
    assert (got.shape, got.stride()) == (want.shape, want.stride())


def test_in_place() -> None:
    a, b = half(33, 100), half(33, 100)
    x, y = card(a, b)
    same = x
    x += y
    x.mul_(2)
    x.sub_(1).relu_()
    assert x is same
    want = ((Bounded.of(a) + Bounded.of(b)).store() * 2.0).store()
    (want - 1.0).store().relu().check(x.cpu())
    z = card(a)[0]
    z.add_(z)
    (Bounded.of(a) + Bounded.of(a)).store().check(z.cpu())
    z[3:9, 5:50].mul_(0)
    z.t()[60:].fill_(4)
    assert torch.count_nonzero(z.cpu()[3:9, 5:50]) == 0
    assert (z.cpu()[:, 60:] == 4).all()


def test_out_variants() -> None:
    a, b = half(33, 100), half(33, 100)
    x, y = card(a, b)
    want = (Bounded.of(a) + Bounded.of(b)).store()
    for out in (torch.empty_like(x), torch.empty(100, 33, dtype=FP16, device="spyre").t()):
        assert torch.add(x, y, out=out) is out
        want.check(out.cpu())
    wide = torch.empty(33, 100, dtype=FP32, device="spyre")
    torch.add(x, y, out=wide)
    want.check(wide.cpu())
    for _ in range(2):  # the second call must resize too
        empty = torch.empty(0, dtype=FP16, device="spyre")
        torch.add(x, y, out=empty)
        want.check(empty.cpu())
    product = torch.empty(33, 33, dtype=FP16, device="spyre")
    torch.mm(x, y.t(), out=product)
    (Bounded.of(a) @ Bounded.of(b.t())).store().check(product.cpu())
    column = torch.empty(33, dtype=FP16, device="spyre")
    torch.sum(x, -1, out=column)
    assert_close_dl16(column.cpu(), dl16(a).sum(-1), sum_error(dl16(a), -1))


def test_writing_over_a_part_of_an_operand_is_refused() -> None:
    (x,) = card(half(10, 64))
    before = x.cpu()
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
        x[1:].add_(x[:-1])
    assert torch.equal(x.cpu(), before)
    x[1:].add_(x[:-1].clone())
    assert not torch.equal(x.cpu(), before)


@pytest.mark.parametrize(
    ("call", "size"),
    [
        (lambda x: x + 1, (0, 5)),
        (lambda x: x * x, (0, 5)),
        (lambda x: x.sum(0), (5,)),
        (lambda x: x.sum(1), (0,)),
        (lambda x: x.sum(), ()),
        (lambda x: x.amax(1), (0,)),
        (lambda x: torch.softmax(x, -1), (0, 5)),
        (lambda x: x.t() @ x, (5, 5)),
        (lambda x: x @ x.t(), (0, 0)),
        (lambda x: x.t().contiguous(), (5, 0)),
        (lambda x: x.add_(1), (0, 5)),
        (lambda x: torch.where(x > 0, x, x), (0, 5)),
    ],
)
def test_empty_tensors(call: Callable[[torch.Tensor], torch.Tensor], size: tuple[int, ...]) -> None:
    got = call(torch.empty(0, 5, dtype=FP16, device="spyre")).cpu()
    assert got.shape == size
    assert not got.any()


def test_mixed_dtypes_promote() -> None:
    a, b = half(33, 100), torch.randn(33, 100)
    x, y = card(a, b)
    both = x + y
    assert both.dtype == FP32
    assert_close_fp32(both.cpu(), dl16(a) + to64(b))
    assert (x + x.to(torch.bfloat16)).dtype == FP32
    assert (x[0, 0] * y).dtype == FP32 and (x * y[0, 0]).dtype == FP16
    assert (x[0, 0] + 1.5).dtype == FP16
    assert_same(x.float().cpu(), dl16(a))
    assert_close_dl16(y.half().cpu(), to64(b), extra=0.0)


def test_masks() -> None:
    a, b = half(33, 100), half(33, 100)
    mask = torch.rand(33, 100) > 0.5
    x, y, m = card(a, b, mask)
    assert torch.equal((x > y).cpu(), torch.from_numpy(dl16(a) > dl16(b)))
    assert torch.equal(torch.where(m, x, y).cpu(), torch.where(mask, x.cpu(), y.cpu()))
    assert torch.equal((m & (x > 0)).cpu(), mask & (a > 0))
    assert torch.equal((~m | (x > 0)).cpu(), ~mask | (a > 0))
    assert torch.equal((x * m).cpu(), x.cpu() * mask)
    assert torch.equal(x.masked_fill(m, -2.0).cpu(), x.cpu().masked_fill(mask, -2.0))
    assert torch.equal(torch.where(m, x, 0.25).cpu(), torch.where(mask, x.cpu(), torch.tensor(0.25, dtype=FP16)))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers(dtype: torch.dtype) -> None:
    a, b = (torch.randint(-(2**30), 2**30, (33, 70), dtype=dtype) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, y = card(a, b)
    assert torch.equal((x + y).cpu(), a + b)
    assert torch.equal((x - 5).cpu(), a - 5)
    assert torch.equal((3 - x).cpu(), 3 - a)
    assert torch.equal((x > y).cpu(), a > b)
    assert torch.equal(torch.where(x > 0, x, y).cpu(), torch.where(a > 0, a, b))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inside_modes(mode: Callable[[], Any], compiled: list[str]) -> None:
    a, w = half(7, 65), half(65, 9)
    with mode():
        x, y = card(a, w)
        got = torch.relu(x @ y)
    (Bounded.of(a) @ Bounded.of(w)).store().relu().check(got.cpu())
    assert compiled
    again = torch.relu(card(a)[0] @ card(w)[0])  # the plan made inside serves outside
    assert torch.equal(got.cpu(), again.cpu())


def test_from_inside_a_fake_tensor_region(compiled: list[str]) -> None:
    """Code that traces may still run an operation on real tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

    a = half(7, 65)
    (x,) = card(a)
    with FakeTensorMode():
        fake = torch.empty(7, 65, dtype=FP16, device="spyre")
        assert (fake + fake).device.type == "spyre"
        with unset_fake_temporarily():
            got = torch.exp(x)
    assert compiled == ["aten::exp"]
    Bounded.of(a).exp().store().check(got.cpu())


def test_autograd_runs_through_eager_ops() -> None:
    a, w = half(7, 65), half(65, 9)
    x, y = card(a, w)
    y.requires_grad_()
    torch.relu(x @ y).sum().backward()
    grad = to64(a).T @ (dl16(a) @ dl16(w) > 0)
    assert y.grad is not None
    assert_close_dl16(y.grad.cpu(), grad, extra=np.abs(dl16(a)).T.sum(1, keepdims=True) * 2.0**-8)


def test_threads_compile_and_run_side_by_side(compiled: list[str]) -> None:
    import threading

    a = half(40, 70)
    (x,) = card(a)
    results: dict[int, torch.Tensor] = {}

    def work(i: int) -> None:
        results[i] = ((x + x) * (i + 1)).cpu()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i in range(4):
        (((Bounded.of(a) + Bounded.of(a)).store()) * float(i + 1)).store().check(results[i])
