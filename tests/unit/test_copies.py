# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_copies.py

copy_ and .to between any two layouts, dtypes, views and cards give what the host gives, exact to the format.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_spyre._C import SpyreTensorLayout
from torch_spyre.errors import Overflow
from torch_spyre.ops import fallbacks

DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.bool,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
# Exact in each dtype that they are given in.
SMALL = torch.tensor([[0, 1, 2, 3, 64, 7.5, 0.25], [1, -1, -2.5, 32, 0, 5, -96]])


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.to(torch.float64), b.to(torch.float64))


@pytest.mark.parametrize("target", DTYPES, ids=str)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_every_pair_of_dtypes_on_the_card(source: torch.dtype, target: torch.dtype) -> None:
    """Compiled for the card: nothing falls back to the host."""
    values = SMALL.abs() if torch.uint8 in (source, target) else SMALL
    host = values.to(source)
    with fallbacks.disabled():
        assert same(host.to("spyre").to(target).cpu(), host.to(target))


@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("source", INTEGERS, ids=str)
def test_integers_wrap_when_they_narrow(source: torch.dtype, target: torch.dtype) -> None:
    edges = [0, 1, -1, 127, 128, 255, 256, 300, -128, -129, 32767, 32768, 65535, 65536, -32769, 2**31 - 1, -(2**31)]
    host = torch.tensor(edges).to(source)
    assert torch.equal(host.to("spyre").to(target).cpu(), host.to(target))


def test_float_to_integer_truncates_and_saturates() -> None:
    card = torch.tensor([-1.9, 3.7, 3e9, -3e9, torch.nan, 200.0]).to("spyre")
    assert card.to(torch.int32).tolist() == [-1, 3, 2**31 - 1, -(2**31), 0, 200]
    assert card[4:].to(torch.int64).tolist() == [0, 200]  # tests/ops/test_int64.py: what leaves int32
    assert card.to(torch.int8).tolist() == [-1, 3, 127, -128, 0, 127]


def test_int64_out_of_range_changes_nothing() -> None:
    card = torch.zeros(3, dtype=torch.int64, device="spyre")
    with pytest.raises(Overflow, match="4294967296"):
        card.copy_(torch.tensor([1, 2**32, 3]))
    with pytest.raises(Overflow, match="-2147483649"):
        torch.full((2, 2), -(2**31) - 1).to("spyre")
    with pytest.raises(Overflow, match="int32"):
        card.fill_(2**40)
    assert card.tolist() == [0, 0, 0]


@dataclass(frozen=True)
class View:
    """A strided view of a fresh tensor: sizes of the tensor, a slice per dim, an order of dims, a dim in the stick."""

    size: tuple[int, ...]
    slices: tuple[slice, ...]
    order: tuple[int, ...]
    stick: int

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x[self.slices].permute(self.order)


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...]) -> View:
    """A view of this shape into some tensor that is large enough."""
    order = tuple(draw(st.permutations(range(len(shape)))))
    size, slices = [0] * len(shape), [slice(None)] * len(shape)
    for n, dim in zip(shape, order, strict=True):
        start, step, rest = draw(st.integers(0, 3)), draw(st.integers(1, 3)), draw(st.integers(0, 2))
        size[dim] = start + (n - 1) * step + 1 + rest
        slices[dim] = slice(start, start + (n - 1) * step + 1, step)
    return View(tuple(size), tuple(slices), order, draw(st.integers(0, len(shape) - 1)))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[View, View, torch.dtype, torch.dtype]:
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 70 if d == rank - 1 else 5)) for d in range(rank))
    return (
        draw(views(shape)),
        draw(views(shape)),
        draw(st.sampled_from(DTYPES)),
        draw(st.sampled_from(DTYPES)),
    )


def numbers(size: tuple[int, ...], dtype: torch.dtype, first: int) -> torch.Tensor:
    count = 1
    for n in size:
        count *= n
    return ((torch.arange(count) + first) % 15).reshape(size).to(dtype)


def on_card(host: torch.Tensor, stick: int) -> torch.Tensor:
    """The tensor with one of its dims in the stick."""
    order = [d for d in range(host.dim()) if d != stick] + [stick]
    layout = SpyreTensorLayout(list(host.shape), list(host.stride()), host.dtype, order)
    return torch.spyre.to_with_layout(host, layout)


@given(pairs())
@settings(max_examples=60, deadline=None)
def test_any_view_to_any_view(case: tuple[View, View, torch.dtype, torch.dtype]) -> None:
    source, target, source_dtype, target_dtype = case
    read, written = numbers(source.size, source_dtype, 0), numbers(target.size, target_dtype, 7)
    card_read, card_written = on_card(read, source.stick), on_card(written, target.stick)
    target.apply(written).copy_(source.apply(read))
    target.apply(card_written).copy_(source.apply(card_read))
    assert same(card_written.cpu(), written)


@given(pairs())
@settings(max_examples=100, deadline=None)
def test_any_view_in_and_out(case: tuple[View, View, torch.dtype, torch.dtype]) -> None:
    """Host to card and back through views, layouts and dtypes on both sides."""
    source, target, source_dtype, target_dtype = case
    read, written = numbers(source.size, source_dtype, 0), numbers(target.size, target_dtype, 7)
    card = on_card(written, target.stick)
    target.apply(written).copy_(source.apply(read))
    target.apply(card).copy_(source.apply(read))
    assert same(card.cpu(), written)
    source.apply(read).copy_(target.apply(card))
    assert same(source.apply(read), target.apply(written).to(source_dtype))


def test_layouts_survive_copies() -> None:
    """A copy never changes the layout of its target; a clone of a whole tensor keeps its own."""
    host = torch.randn(100, 70).half()
    card = on_card(host, 0)
    layout = card.device_tensor_layout()
    card.copy_(torch.zeros(100, 70))
    assert card.device_tensor_layout() == layout == card.clone().device_tensor_layout()
    assert torch.zeros(100, 70).half().to("spyre").device_tensor_layout() != layout


def test_cards_copy_to_each_other() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TWO_CARDS)],
        capture_output=True,
        text=True,
        timeout=1500,
        env={**os.environ, "AIU_WORLD_SIZE": "2"},
    )
    assert done.returncode == 0, done.stderr


TWO_CARDS = """
    import torch
    host = torch.arange(6 * 70.0).reshape(6, 70) % 200
    for dtype in (torch.float16, torch.float32, torch.int64, torch.int8, torch.uint8, torch.bool):
        a = host.to(dtype).to("spyre:0")
        b = a[1:, ::3].to("spyre:1")
        assert b.device.index == 1 and torch.equal(b.cpu(), host.to(dtype)[1:, ::3]), dtype
    c = torch.zeros(70, 6, dtype=torch.float16, device="spyre:1")
    c.t()[2:4].copy_(host.to("spyre:0")[2:4])
    expected = torch.zeros(70, 6, dtype=torch.float16)
    expected.t()[2:4].copy_(host[2:4])
    assert torch.equal(c.cpu(), expected)
    linear = torch.nn.Linear(64, 128, dtype=torch.float16).to("spyre:0")
    layout = linear.weight.device_tensor_layout()
    linear.to("spyre:1")
    assert linear.weight.device.index == 1 and linear.weight.device_tensor_layout() == layout
    with torch.spyre.device(1):
        assert torch.equal((c + c).cpu(), expected + expected)
    """


def test_copies_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.arange(70.0).to("spyre")
        x.to(torch.float16).to(torch.int32).to(torch.bool).cpu()
