# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_dma_copies.py

Copies between host and card: any shape, stride, offset and dtype comes back exactly as the card's format holds it.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_spyre._C import DataFormats, SpyreTensorLayout, empty_with_layout, get_spyre_tensor_layout

LARGEST = (2 - 2**-8) * 2.0**32  # of SEN169_FP16: the code below the merged NaN/Inf

EXACT = [torch.float32, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
EXACT += [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e5m2fnuz]


def sen169(values: torch.Tensor) -> torch.Tensor:
    """What 1-6-9 with bias 31 keeps of finite values in its range: nine fraction bits, ties away from zero."""
    x = values.double()
    mantissa, exponent = torch.frexp(x)
    rounded = torch.sign(mantissa) * torch.floor(mantissa.abs() * 2**10 + 0.5) / 2**10
    return torch.ldexp(rounded, exponent)


def host_values(size: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, size, generator=generator).bool()
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return torch.randn(size, generator=generator).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(size, generator=generator).to(dtype)
    low, high = (0, 256) if dtype == torch.uint8 else (-100, 100)
    return torch.randint(low, high, size, generator=generator).to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype.itemsize == 1 and a.dtype.is_floating_point:
        a, b = a.view(torch.uint8), b.view(torch.uint8)
    return a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("size", [(), (1,), (65,), (3, 70), (5, 7, 129), (2, 3, 4, 5), (0, 4), (1, 2, 1, 2, 1, 2, 3)])
def test_round_trip_is_exact(size: tuple[int, ...], dtype: torch.dtype) -> None:
    host = host_values(size, dtype)
    assert same(host.to("spyre").cpu(), host)


@pytest.mark.parametrize("size", [(), (65,), (3, 70), (40, 60), (5, 100, 150)])
def test_float16_keeps_nine_fraction_bits(size: tuple[int, ...]) -> None:
    host = host_values(size, torch.float16)
    back = host.to("spyre").cpu()
    expected = sen169(host).to(torch.float16)
    assert same(back, expected)
    assert same(back.to("spyre").cpu(), back), "a second trip changes nothing"


def test_bfloat16_in_range_is_exact() -> None:
    host = host_values((64, 130), torch.bfloat16)
    assert same(host.to("spyre").cpu(), host)


def test_special_values() -> None:
    inf, nan = math.inf, math.nan
    host = torch.tensor([inf, -inf, nan, 0.0, -0.0, 65504.0, -65504.0, 65488.0, 6.1e-5], dtype=torch.float16)
    back = host.to("spyre").cpu()
    assert back[:2].tolist() == [inf, -inf]
    assert back[2].isnan()
    assert back[3:5].tolist() == [0.0, 0.0]
    assert back[5:8].isfinite().all(), "a finite float16 never comes back infinite"
    wide = torch.tensor([LARGEST, -3e38, 3e38, nan]).to("spyre", torch.float16)
    as_float = wide.to("cpu", torch.float32)
    assert as_float[:3].tolist() == [inf, -inf, inf]
    assert as_float[3].isnan()
    exact = torch.tensor([inf, -inf, nan, 1e-45, -0.0, 3.4e38])
    assert torch.equal(exact.to("spyre").cpu().view(torch.int32), exact.view(torch.int32)), "float32 is stored as it is"


def test_masks_of_infinity_round_trip() -> None:
    mask = torch.full((70, 70), -math.inf, dtype=torch.float16).triu(1)
    assert torch.equal(mask.to("spyre").cpu(), mask)


@st.composite
def strided_cases(draw: st.DrawFn) -> tuple[list[int], list[slice], list[int], torch.dtype]:
    rank = draw(st.integers(1, 4))
    size = [draw(st.integers(1, 9)) for _ in range(rank - 1)] + [draw(st.integers(1, 140))]
    slices = []
    for n in size:
        start = draw(st.integers(0, n - 1))
        stop = draw(st.integers(start + 1, n))
        slices.append(slice(start, stop, draw(st.integers(1, 3))))
    order = draw(st.permutations(range(rank)))
    return size, slices, list(order), draw(st.sampled_from(EXACT))


@given(strided_cases())
@settings(max_examples=150, deadline=None)
def test_views_copy_out(case: tuple[list[int], list[slice], list[int], torch.dtype]) -> None:
    """A view of the device tensor gives the same view of the host tensor."""
    size, slices, order, dtype = case
    host = host_values(tuple(size), dtype)
    device = host.to("spyre")
    view = tuple(slices)
    assert same(device[view].permute(order).cpu(), host[view].permute(order).contiguous())


@given(strided_cases())
@settings(max_examples=150, deadline=None)
def test_copy_into_views(case: tuple[list[int], list[slice], list[int], torch.dtype]) -> None:
    """Writing through a view changes exactly the elements of the view, from a strided host tensor."""
    size, slices, order, dtype = case
    host, view = host_values(tuple(size), dtype), tuple(slices)
    device = host.to("spyre")
    target, on_card = host[view].permute(order), device[view].permute(order)
    source = host_values(tuple(target.shape[::-1]), dtype, 1).permute(list(range(target.dim()))[::-1])
    target.copy_(source)
    on_card.copy_(source)
    assert same(device.cpu(), host)


@given(strided_cases())
@settings(max_examples=80, deadline=None)
def test_strided_host_tensors_copy_in(case: tuple[list[int], list[slice], list[int], torch.dtype]) -> None:
    size, slices, order, dtype = case
    host = host_values(tuple(size), dtype)[tuple(slices)].permute(order)
    device = host.to("spyre")
    assert device.stride() == host.to("cpu", copy=True).stride()
    assert same(device.cpu(), host)


@pytest.mark.parametrize(("size", "stride"), [((4, 3), (1, 1)), ((5, 5), (3, 2)), ((2, 3), (0, 1))])
def test_unusual_strides(size: tuple[int, int], stride: tuple[int, int]) -> None:
    """Overlapping, interleaved and repeated elements have one place each in card memory."""
    device = torch.empty_strided(size, stride, dtype=torch.float32, device="spyre")
    span = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    values = torch.arange(span, dtype=torch.float32)
    device.as_strided((span,), (1,)).copy_(values)
    assert torch.equal(device.cpu(), values.as_strided(size, stride))


def test_padded_strides() -> None:
    """Elements between the rows are not on the card until a view asks for them: they begin as zeros."""
    device = torch.empty_strided((3, 70), (1000, 1), dtype=torch.float32, device="spyre")
    host = host_values((3, 70), torch.float32)
    device.copy_(host)
    assert torch.equal(device.cpu(), host)
    layout = get_spyre_tensor_layout(device)
    assert torch.equal(device[1:, ::3].cpu(), host[1:, ::3]) and get_spyre_tensor_layout(device) == layout
    flat = device.as_strided((2070,), (1,))
    expected = torch.zeros(2070)
    expected.as_strided((3, 70), (1000, 1)).copy_(host)
    assert torch.equal(flat.cpu(), expected)
    flat[500:600] = 7
    assert torch.equal(device.cpu(), host) and flat[500:600].eq(7).all()


def test_overlapping_destinations_raise() -> None:
    device = torch.zeros(4, dtype=torch.float16, device="spyre").expand(3, 4)
    with pytest.raises(RuntimeError, match="single memory location"):
        device.copy_(torch.ones(3, 4))


@pytest.mark.parametrize(
    "source", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.bool]
)
@pytest.mark.parametrize("target", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool])
def test_copies_convert(source: torch.dtype, target: torch.dtype) -> None:
    """Small integers exist in every dtype: copying in and out of any pair gives what the host gives."""
    host = torch.tensor([[-3, 0, 1], [2, 100, 7]]).to(source)
    device = torch.empty(2, 3, dtype=target, device="spyre")
    device.copy_(host)
    assert same(device.cpu(), host.to(target))
    back = torch.empty(2, 3, dtype=source)
    back.copy_(device)
    assert same(back, host.to(target).to(source))


def test_copy_broadcasts() -> None:
    device = torch.empty(3, 70, dtype=torch.float16, device="spyre")
    device.copy_(torch.arange(70, dtype=torch.float16))
    assert torch.equal(device.cpu(), torch.arange(70, dtype=torch.float16).expand(3, 70))


def test_int64_outside_int32_raises() -> None:
    with pytest.raises(RuntimeError, match=r"(?i)int32"):
        torch.tensor([2**31]).to("spyre")
    assert torch.tensor([2**31 - 1, -(2**31)]).to("spyre").cpu().tolist() == [2**31 - 1, -(2**31)]


LAYOUTS = [
    ([40, 60], [1, 60, 64], [3840, 1, 60]),
    ([40, 60], [1, 512, 64], [64, 60, 1]),
    ([60], [1, 512, 64], [64, 0, 1]),
    ([60], [1, 1, 1, 1, 1, 64], [60, 60, 60, 64, 60, 1]),
    ([60], [1, 1, 60, 64], [1, 64, 1, 1]),
    ([4800], [3, 2, 14, 64], [120, 64, 360, 1]),
    ([40, 60], [3, 4, 3, 1, 2, 64], [600, 180, 60, 64, 1800, 1]),
    ([512, 256], [2048, 64], [64, 1]),
]


@pytest.mark.parametrize(("size", "device_size", "stride_map"), LAYOUTS)
def test_explicit_layouts_round_trip(size: list[int], device_size: list[int], stride_map: list[int]) -> None:
    layout = SpyreTensorLayout(device_size, stride_map, DataFormats.SEN169_FP16)
    device = empty_with_layout(size, layout, torch.float16)
    host = host_values(tuple(size), torch.bfloat16).to(torch.float16)
    device.copy_(host)
    assert get_spyre_tensor_layout(device) == layout
    assert torch.equal(device.cpu(), host)


def test_scalars_and_fills() -> None:
    device = torch.full((3, 70), 2.5, dtype=torch.float16, device="spyre")
    assert device[1, 65].item() == 2.5
    device[:, ::2].zero_()
    device[0].fill_(torch.tensor(7.0))
    expected = torch.full((3, 70), 2.5, dtype=torch.float16)
    expected[:, ::2] = 0
    expected[0] = 7
    assert torch.equal(device.cpu(), expected)
    assert torch.ones(2, 2, device="spyre").tolist() == [[1.0, 1.0], [1.0, 1.0]]
