# SPDX-License-Identifier: Apache-2.0
"""Layouts, and tensors that are made or viewed with one."""

from __future__ import annotations

import pickle
import random
from typing import Any

import fuzz_numbers as numbers
import torch
from fuzz_numbers import MOST, nested
from fuzz_views import attempt, values

from torch_spyre import _C

FORMATS = {dtype: _C.get_device_dtype(dtype) for dtype in numbers.DTYPES}


def ints(draw: random.Random, count: int, choices: list[int], absurd: float = 0.04) -> list[int]:
    return [draw.choice(numbers.ABSURD) if draw.random() < absurd else draw.choice(choices) for _ in range(count)]


def layout(draw: random.Random, dtype: torch.dtype, shape: list[int], stride: list[int]) -> Any:
    """A layout of the shape, one of another, or any numbers."""
    way, rank = draw.random(), len(shape)
    if way < 0.25:
        return _C.SpyreTensorLayout(shape, dtype)
    if way < 0.6:
        order = draw.sample(range(rank), rank)
        order += [-1] if draw.random() < 0.2 else []
        if draw.random() < 0.1:
            order = ints(draw, draw.choice([rank, rank + 1]), [-1, 0, 1, 2, 7])
        arrangement = draw.choice([_C.ElementArrangement.STANDARD] * 4 + [_C.ElementArrangement.EXX2])
        return _C.SpyreTensorLayout(shape, stride, dtype, order, arrangement)
    format_ = FORMATS[dtype] if draw.random() < 0.8 else _C.DataFormats(draw.choice([*range(19), *ints(draw, 2, [0])]))
    count = draw.choice([1, 2, 2, 3, 4, 7])
    device_size = ints(draw, count - 1, [1, 1, 2, 3, 5]) + ints(draw, 1, [64, 32, 128, 1, 3])
    stride_map = ints(draw, count if draw.random() < 0.95 else count + 1, [-1, 0, 1, 2, 3, 5, 32, 64, 128])
    return _C.SpyreTensorLayout(device_size, stride_map, format_)


def check_layout(made: Any) -> None:
    assert pickle.loads(pickle.dumps(made)) == made
    assert eval(repr(made), {"SpyreTensorLayout": _C.SpyreTensorLayout, "DataFormats": _C.DataFormats}) == (
        made.with_element_arrangement(_C.ElementArrangement.STANDARD)
    )
    made.device_bytes(), made.elems_per_stick(), hash(made)


def empty(draw: random.Random, shape: list[int], stride: list[int], dtype: torch.dtype, made: Any) -> torch.Tensor:
    if draw.random() < 0.5:
        return _C.spyre_empty_with_layout(shape, stride, dtype, made)
    form = draw.choice([None, torch.contiguous_format, torch.preserve_format, torch.channels_last])
    return torch.empty(shape, dtype=dtype, device="spyre", device_layout=made, memory_format=form)


def check_views(draw: random.Random, host: torch.Tensor, card: torch.Tensor) -> None:
    """Published views read the elements that as_strided reads on the host, and none beyond."""
    shape = numbers.sizes(draw)
    stride, start = numbers.strides(draw, shape), numbers.offset(draw)
    other = _C.SpyreTensorLayout([3], host.dtype) if draw.random() < 0.2 else None
    want = attempt(lambda: host.as_strided(shape, stride, host.storage_offset() + start))

    def named() -> Any:
        return other or _C.get_spyre_tensor_layout(card)  # which changes when a view reaches between rows

    ways = [
        lambda: _C.reinterpret_tensor(card, shape, stride, start),
        lambda: _C.reinterpret_tensor_with_layout(card, shape, stride, start, named()),
        lambda: _C.as_strided_with_layout(card, shape, stride, start, named()),
    ]
    for way in ways:
        got = attempt(way)
        if isinstance(got, Exception):
            refused = isinstance(want, Exception) or other is not None or min(shape, default=0) < 0
            assert refused, (shape, stride, start, got)
            continue
        assert not isinstance(want, Exception), (shape, stride, start, want)
        if want.numel() <= MOST:
            read = attempt(got.cpu)  # a layout of the user's need not hold what lies between rows
            assert isinstance(read, RuntimeError) or torch.equal(read, want), (want, read)


def run(draw: random.Random) -> str:
    dtype, shape = draw.choice(numbers.DTYPES), numbers.sizes(draw)
    stride = numbers.strides(draw, shape)
    made = attempt(lambda: layout(draw, dtype, shape, stride))
    if isinstance(made, Exception):
        return "refused"
    check_layout(made)
    card = attempt(lambda: empty(draw, shape, stride, dtype, made))
    if isinstance(card, Exception):
        return "refused"
    if card.numel() > MOST or not nested(card):
        attempt(lambda: card[tuple(0 for _ in shape)].cpu())
        return "large"
    if numbers.reach(card) > 1 << 20:
        return "large"
    host = torch.empty_strided(card.shape, card.stride(), dtype=dtype)
    torch.empty(0, dtype=torch.uint8).set_(host.untyped_storage()).zero_()
    new = values(draw, host)
    host.copy_(new)
    if isinstance(attempt(lambda: card.copy_(new)), Exception):
        return "unheld"  # the layout has no place for some elements
    assert _C.get_spyre_tensor_layout(card) == made
    assert torch.equal(card.cpu(), host)
    check_views(draw, host, card)
    attempt(lambda: card.untyped_storage().cpu())
    if draw.random() < 0.2:
        attempt(lambda: _C.set_spyre_tensor_layout(card, layout(draw, dtype, shape, stride)))
        attempt(card.cpu)
        attempt(lambda: card.untyped_storage().cpu())
    return "agreed"
