# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_eight_bit.py
"""Products of 8-bit operands, and quantising: against float64, eager and compiled, without a step on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import ScalingType, scaled_mm

from torch_spyre._inductor.debug import inspect
from torch_spyre.errors import InvalidArgument
from torch_spyre.ops import fallbacks

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
generator = torch.Generator().manual_seed(22)
Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def all_on_the_card() -> Iterator[None]:
    with fallbacks.disabled():
        yield


def floats(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=generator)


def codes(*size: int, dtype: torch.dtype = E4M3) -> torch.Tensor:
    return (floats(*size) * 8).to(dtype)


def bytes_(*size: int) -> torch.Tensor:
    return torch.randint(-128, 128, size, generator=generator, dtype=torch.int8)


def scales(*size: int) -> torch.Tensor:
    return torch.rand(size, generator=generator) + 0.1


def on_card(fn: Function, *args: Any) -> torch.Tensor:
    """Eager and compiled: the same bits."""
    moved = [x.to("spyre") if isinstance(x, torch.Tensor) else x for x in args]
    eager = fn(*moved).cpu()
    torch._dynamo.reset()
    assert_equal(torch.compile(fn, dynamic=False)(*moved).cpu(), eager)
    return eager


def assert_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    assert torch.equal(actual.double(), expected.double())


def spread(scale: torch.Tensor, rows: int, columns: int) -> np.ndarray[Any, Any]:
    """One scale for each element of an operand with k as its columns."""
    whole = scale.double().reshape(scale.shape if scale.dim() == 2 else (1, 1))
    for dim, size in ((0, rows), (1, columns)):
        if whole.shape[dim] not in (1, size):
            whole = whole.repeat_interleave(128, dim).narrow(dim, 0, size)
    return whole.expand(rows, columns).numpy()


def check_scaled(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor,
                 bias: torch.Tensor | None = None) -> None:  # fmt: skip
    """b and its scales transposed: a row for each column of the product."""
    left = oracle.to64(a) * spread(scale_a, *a.shape)
    right = (oracle.to64(b) * spread(scale_b, *b.shape)).T
    expected = left @ right
    error = oracle.matmul_error(left, right, splits=8 + a.shape[1] // 128)
    if bias is not None:
        expected = expected + oracle.dl16(bias)
        error = error + oracle.elementwise_error(expected)
    check = oracle.assert_close_fp32 if got.dtype == torch.float32 else oracle.assert_close_dl16
    check(got, expected, error)


FORMS = {
    "tensor": lambda m, n, k: (scales(), scales()),
    "tensor in two dims": lambda m, n, k: (scales(1, 1), scales(1, 1)),
    "rows": lambda m, n, k: (scales(m, 1), scales(n, 1)),
    "rows of one": lambda m, n, k: (scales(), scales(n, 1)),
    "blocks of a row": lambda m, n, k: (scales(m, -(-k // 128)), scales(n, -(-k // 128))),
    "blocks of 128 rows": lambda m, n, k: (scales(m, -(-k // 128)), scales(-(-n // 128), -(-k // 128))),
}


@pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)], ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(3, 200, 256), (40, 72, 300), (1, 128, 96)])
@pytest.mark.parametrize("form", FORMS)
def test_scaled_products(form: str, m: int, n: int, k: int, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    a, b = codes(m, k, dtype=dtypes[0]), codes(n, k, dtype=dtypes[1])
    scale_a, scale_b = FORMS[form](m, n, k)

    def product(a: Any, b: Any, scale_a: Any, scale_b: Any) -> torch.Tensor:
        right = scale_b.t() if scale_b.dim() == 2 else scale_b
        return torch._scaled_mm(a, b.t(), scale_a, right, out_dtype=torch.bfloat16)

    check_scaled(on_card(product, a, b, scale_a, scale_b), a, b, scale_a, scale_b)


@pytest.mark.parametrize("out", [torch.float32, torch.float16])
def test_bias_and_result_dtype(out: torch.dtype) -> None:
    a, b, bias = codes(5, 192), codes(64, 192), floats(64).to(torch.bfloat16)
    one = scales()

    def product(a: Any, b: Any, bias: Any, one: Any) -> torch.Tensor:
        return torch._scaled_mm(a, b.t(), one, one, bias=bias, out_dtype=out)

    check_scaled(on_card(product, a, b, bias, one), a, b, one, one, bias)


def test_an_eight_bit_result_saturates() -> None:
    a, b, scale = codes(4, 64), codes(32, 64), torch.tensor(0.5)

    def product(a: Any, b: Any, scale: Any) -> torch.Tensor:
        return torch._scaled_mm(a, b.t(), scale, scale, scale_result=scale)

    expected = (a.double() @ b.double().t() / 8).clamp(-448, 448).to(E4M3)
    got = on_card(product, a, b, scale)
    assert got.dtype == E4M3
    distance = (got.view(torch.uint8).int() - expected.view(torch.uint8).int()).abs()  # fp32 sums beside a tie
    assert distance.max() <= 1 and (distance > 0).sum() <= 1


RECIPES = {
    (ScalingType.TensorWise, ScalingType.TensorWise): "tensor",
    (ScalingType.RowWise, ScalingType.RowWise): "rows",
    (ScalingType.BlockWise1x128, ScalingType.BlockWise128x128): "blocks of 128 rows",
}


@pytest.mark.parametrize("recipes", RECIPES, ids=str)
def test_recipes(recipes: tuple[ScalingType, ScalingType]) -> None:
    a, b = codes(8, 256), codes(256, 256)
    scale_a, scale_b = FORMS[RECIPES[recipes]](8, 256, 256)

    def product(a: Any, b: Any, scale_a: Any, scale_b: Any) -> torch.Tensor:
        right = scale_b.t() if scale_b.dim() == 2 else scale_b
        return scaled_mm(a, b.t(), scale_a, recipes[0], right, recipes[1], output_dtype=torch.float32)

    check_scaled(on_card(product, a, b, scale_a, scale_b), a, b, scale_a, scale_b)


@given(st.integers(1, 40), st.integers(1, 200), st.integers(1, 400), st.sampled_from(sorted(FORMS)))
@settings(max_examples=12)
def test_any_size(m: int, n: int, k: int, form: str) -> None:
    a, b = codes(m, k), codes(n, k)
    scale_a, scale_b = FORMS[form](m, n, k)
    card = [x.to("spyre") for x in (a, b, scale_a, scale_b)]
    right = card[3].t() if scale_b.dim() == 2 else card[3]
    check_scaled(
        torch._scaled_mm(card[0], card[1].t(), card[2], right, out_dtype=torch.float32), a, b, scale_a, scale_b
    )


@pytest.mark.parametrize(("m", "n", "k"), [(1, 64, 128), (33, 72, 200), (17, 200, 3000)])
def test_products_of_bytes(m: int, n: int, k: int) -> None:
    a, b = bytes_(m, k), bytes_(n, k)
    got = on_card(lambda a, b: torch._int_mm(a, b.t()), a, b)
    assert got.dtype == torch.int32 and torch.equal(got.long(), a.long() @ b.long().t())


def test_products_of_unsigned_bytes() -> None:
    a, b = torch.randint(0, 256, (20, 96), generator=generator, dtype=torch.uint8), bytes_(40, 96)
    got = on_card(lambda a, b: torch._int_mm(a, b.t()), a, b)
    assert torch.equal(got.long(), a.long() @ b.long().t())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_of_bytes(dtype: torch.dtype) -> None:
    x, weight, scale = floats(9, 160).to(dtype), bytes_(96, 160), scales(96).to(dtype)
    got = on_card(lambda x, w, s: torch._weight_int8pack_mm(x, w, s), x, weight, scale)
    right = oracle.to64(weight).T * oracle.dl16(scale)
    expected, error = oracle.dl16(x) @ right, oracle.matmul_error(oracle.dl16(x), right, splits=8)
    check = oracle.assert_close_fp32 if dtype == torch.float32 else oracle.assert_close_dl16
    check(got, expected, error)


WEIGHTS = [torch.int8, E4M3, E5M2]


@pytest.mark.parametrize("kind", WEIGHTS, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 130])
def test_weights_only(kind: torch.dtype, rows: int) -> None:
    """A float times an 8-bit weight: nothing makes floats of the weight, and the bits are those of the two steps."""
    x = floats(2, rows, 192).half()
    weight = bytes_(264, 192) if kind == torch.int8 else codes(264, 192, dtype=kind)
    scale = scales(264).half()

    def linear(x: Any, weight: Any, scale: Any) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight.to(x.dtype)) * scale

    card = [t.to("spyre") for t in (x, weight, scale)]
    before = len(inspect.records())
    inspect.start()
    torch._dynamo.reset()
    got = torch.compile(linear, dynamic=False)(*card).cpu()
    ops = [op.op for r in inspect.records()[before:] for op in r.plan.kernel.ops]
    assert "batchmatmul" in ops and not {"convert", "fp8todl16"} & set(ops)
    assert_equal(got, linear(*card).cpu())
    product = (oracle.Bounded.of(x) @ oracle.Bounded.of(weight.double().t())).store()
    (product * oracle.Bounded.of(scale)).store().check(got)


def test_two_weights_of_bytes_as_floats() -> None:
    """As integers the array would sum them without rounding."""
    a, b = bytes_(4, 64 * 40), bytes_(8, 64 * 40)
    got = on_card(lambda a, b: a.float() @ b.float().t(), a, b)
    oracle.assert_close_fp32(got, oracle.to64(a) @ oracle.to64(b).T, oracle.matmul_error(a, b.t(), splits=8))


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
def test_quantising_rows_fuses_with_the_product(dtype: torch.dtype) -> None:
    """Scales of rows, codes, the product and its activation are one program; the codes are those of PyTorch."""
    x, weight, scale_b = floats(24, 256), codes(128, 256), scales(128, 1)
    most = torch.finfo(dtype).max

    def quantised(x: Any) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.abs().amax(1, keepdim=True) / most
        return (x / scale).clamp(-most, most).to(dtype), scale

    def layer(x: Any, weight: Any, scale_b: Any) -> torch.Tensor:
        small, scale = quantised(x)
        return torch.relu(torch._scaled_mm(small, weight.t(), scale, scale_b.t(), out_dtype=torch.float32))

    small, scale = quantised(x)
    card = [t.to("spyre") for t in (x, weight, scale_b)]
    on, on_scale = quantised(card[0])
    assert_equal(on.cpu(), small)
    assert torch.equal(on_scale.cpu(), scale)
    before = len(inspect.records())
    inspect.start()
    torch._dynamo.reset()
    got = torch.compile(layer, dynamic=False)(*card)
    assert len(inspect.records()) == before + 1, "one kernel"
    left, right = oracle.to64(small) * oracle.to64(scale), (oracle.to64(weight) * oracle.to64(scale_b)).T
    oracle.assert_close_fp32(got.cpu(), np.maximum(left @ right, 0), oracle.matmul_error(left, right, splits=8))


def test_quantising_to_bytes_and_back() -> None:
    x = floats(33, 200)

    def round_trip(x: Any) -> torch.Tensor:
        scale = x.abs().amax(1, keepdim=True) / 127
        return torch.round(x / scale).clamp(-128, 127).to(torch.int8).to(torch.float32) * scale

    assert_equal(on_card(round_trip, x), round_trip(x))


def test_five_exponent_bits_travel() -> None:
    """Every code of float8_e5m2 comes back, but infinity as the largest number and -0 as 0."""
    host = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(E5M2)
    back = host.to("spyre").cpu()
    finite = torch.nan_to_num(host.float(), nan=0.0, posinf=57344.0, neginf=-57344.0)
    assert torch.equal(torch.nan_to_num(back.float()), finite)
    assert torch.equal(back.float().isnan(), host.float().isnan())
    assert back.view(torch.uint8)[host.view(torch.uint8) == 0x80] == 0
    strided = torch.zeros(6, 40, dtype=E5M2)
    strided[:, ::2] = host[:120].view(torch.uint8).reshape(6, 20).view(E5M2)
    assert_equal(strided[:, ::2].to("spyre").cpu(), strided[:, ::2])
    assert_equal(strided.t().to("spyre")[3:9].cpu(), strided.t()[3:9])


@given(st.floats(width=32, allow_nan=False, min_value=-70000, max_value=70000))
@settings(max_examples=60)
def test_five_exponent_bits_round(value: float) -> None:
    """To the card's grid, which is twice as fine below the smallest normal number, then to the host's."""
    x = torch.tensor([value])
    most = x.clamp(-57344, 57344)
    expected = most.to(torch.float8_e5m2fnuz).float().to(E5M2)
    assert torch.equal(x.to("spyre").to(E5M2).cpu().float(), expected.float())


REFUSED: dict[str, tuple[str, Function]] = {
    "rows": (r"scale_a has size \(3, 2\) for 4 rows and k = 256; expected",
             lambda a, b, one: torch._scaled_mm(a, b.t(), one.expand(3, 2), one)),
    "dtype of scales": ("scale_b is torch.float16, expected torch.float32",
                        lambda a, b, one: torch._scaled_mm(a, b.t(), one, one.half())),
    "dtype": ("self is torch.float16 of 2 dims", lambda a, b, one: torch._scaled_mm(a.half(), b.t(), one, one)),
    "k": ("self has 256 columns, mat2 8 rows", lambda a, b, one: torch._scaled_mm(a, b, one, one)),
    "recipe": (r"recipe \['BlockWise1x32'\]: the card scales",
               lambda a, b, one: scaled_mm(a, b.t(), one.expand(4, 8), ScalingType.BlockWise1x32, one.expand(8, 8),
                                           ScalingType.BlockWise1x32)),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    text, call = REFUSED[case]
    a, b, one = codes(4, 256).to("spyre"), codes(8, 256).to("spyre"), torch.ones((), device="spyre")
    with pytest.raises(InvalidArgument, match=text):
        call(a, b, one)
    assert torch.equal(one.cpu(), torch.ones(())), "the device goes on"


def test_the_clock_prices_what_is_stored() -> None:
    """Products that the array bounds: int8 at four times the rate of fp16, fp8 at twice; a float with an 8-bit weight
    at the float's. One row: the bytes of the weight."""

    def time(m: int, left: torch.dtype, right: torch.dtype) -> float:
        a, b = torch.zeros(m, 2048, device="spyre").to(left), torch.zeros(2048, 2048, device="spyre").to(right)

        def product(a: Any, b: Any) -> torch.Tensor:
            if left == right == torch.int8:
                return torch._int_mm(a, b.t())
            if left == right and left != torch.float16:
                one = torch.ones((), device=a.device)
                return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.float16)
            return a @ b.to(a.dtype).t()

        torch._dynamo.reset()
        compiled = torch.compile(product, dynamic=False)
        compiled(a, b)
        first, last = (torch.spyre.Event(enable_timing=True) for _ in range(2))
        first.record()
        compiled(a, b)
        last.record()
        torch.spyre.synchronize()
        return float(first.elapsed_time(last))

    half = torch.float16
    many = {kind: time(1024, kind, kind) for kind in (half, E4M3, torch.int8)}
    assert many[half] > 1.5 * many[E4M3] > 1.5 * many[torch.int8]
    assert time(1024, half, E4M3) > 0.8 * many[half]
    few = {kind: time(1, half, kind) for kind in (half, E4M3, torch.int8)}
    assert few[half] > 1.4 * few[E4M3] and few[half] > 1.4 * few[torch.int8]
