# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_offsets.py

Which part of a storage offset a launch adds to the address of an argument, against a decoder of single elements.
"""

from __future__ import annotations

import itertools
import math
from random import Random
from typing import Any

import pytest
import torch

from torch_spyre import _C
from torch_spyre.errors import InvalidArgument

LANES = 64


def decode(offset: int, strides: list[int], extents: list[int]) -> tuple[int, ...]:
    """Device coordinates of one element: the largest stride first takes what it can."""
    place = [0] * len(strides)
    for d in sorted((d for d, s in enumerate(strides) if s > 0 and extents[d] > 1), key=lambda d: -strides[d]):
        place[d], offset = divmod(offset, strides[d])
    return tuple(place)


def pitches(extents: list[int]) -> list[int]:
    """Bytes of one step along each dim but the lanes."""
    return [128 * math.prod(extents[d + 1 : -1]) for d in range(len(extents) - 1)]


def elements(size: list[int], stride: list[int]) -> list[int]:
    return [
        sum(i * s for i, s in zip(place, stride, strict=True)) for place in itertools.product(*(range(n) for n in size))
    ]


def random_view(draw: Random) -> tuple[torch.Tensor, Any]:
    """A part of a tensor with any order of dims in its layout, sometimes seen through other dims."""
    sizes = [1, 2, 3, 5, 8, 32, 64, 70, 130, 200]
    host = [draw.choice(sizes[: draw.choice([4, 10])]) for _ in range(draw.randint(1, 4))]
    while math.prod(host) > 40000:
        host[draw.randrange(len(host))] = draw.randint(1, 3)
    order = draw.sample(range(len(host)), len(host)) + ([-1] if draw.random() < 0.2 and len(host) < 4 else [])
    x = torch.empty(host, device="meta")
    layout = _C.SpyreTensorLayout(host, list(x.stride()), torch.float16, order)
    if draw.random() < 0.3 and len(host) > 1:
        x = x.flatten(*sorted(draw.sample(range(len(host)), 2)))
    for d in range(x.dim()):
        begin = draw.randrange(x.shape[d])
        x = x.narrow(d, begin, draw.randint(1, x.shape[d] - begin))
        if draw.random() < 0.2:
            x = x[(slice(None),) * d + (slice(None, None, draw.randint(1, 3)),)]
    if draw.random() < 0.2:
        x = x.select(draw.randrange(x.dim()), 0)
    return x, layout


@pytest.mark.parametrize("seed", range(20))
def test_a_displaced_view_touches_the_same_places_further_on(seed: int) -> None:
    draw = Random(seed)
    moved = 0
    for _ in range(100):
        x, layout = random_view(draw)
        size, stride, offset = list(x.shape), list(x.stride()), x.storage_offset()
        strides, extents = list(layout.stride_map), list(layout.device_size)
        begin, displacement = _C.view_start(layout, size, stride, offset)
        touched = _C.view_extents(layout, size, stride, begin)
        assert _C.view_start(layout, size, stride, begin) == (begin, 0)
        steps = pitches(extents)
        for e in elements(size, stride):
            true, seen = decode(offset + e, strides, extents), decode(begin + e, strides, extents)
            assert sum(t * p for t, p in zip(true, steps, strict=False)) == displacement + sum(
                s * p for s, p in zip(seen, steps, strict=False)
            )
            assert true[-1] == seen[-1]
            assert all(s < n for s, n in zip(seen, touched, strict=True))
        last = sum((n - 1) * p for n, p in zip(touched, steps, strict=False)) + 128
        assert displacement + last <= layout.device_bytes()
        moved += displacement > 0
    assert moved > 40


def start(x: torch.Tensor, layout: Any) -> tuple[int, int]:
    return _C.view_start(layout, list(x.shape), list(x.stride()), x.storage_offset())


def test_rows_and_sticks_are_displaced_lanes_are_not() -> None:
    """[5, 10, 200] lies as [10, 4, 5, 64]."""
    x = torch.empty(5, 10, 200, device="meta")
    layout = _C.SpyreTensorLayout([5, 10, 200], torch.float16)
    assert list(layout.device_size) == [10, 4, 5, LANES]
    for i in range(10):
        assert start(x[3, i], layout) == (0, i * 4 * 5 * 128 + 3 * 128)
    for i in range(200):
        assert start(x[:, :, i], layout) == (i % LANES, i // LANES * 5 * 128)
    assert start(x[2:, 4, 70:90], layout) == (6, 4 * 4 * 5 * 128 + 5 * 128 + 2 * 128)
    # It begins in lane 6 and ends in the next stick: one program for all rows, and for both sticks it may begin in.
    assert start(x[2:, 4, 6:130], layout)[0] == start(x[1:4, 3, 70:194], layout)[0] == 6


def test_what_may_carry_stays_with_the_program() -> None:
    """Rows 3 to 12 of the 50 rows that [5, 10, 200] has: the tenth is in the next block."""
    x = torch.empty(5, 10, 200, device="meta").view(50, 200)
    layout = _C.SpyreTensorLayout([5, 10, 200], torch.float16)
    assert start(x[3:13, 64:100], layout) == (3 * 200, 5 * 128)
    assert start(x[13:23, 64:100], layout) == (3 * 200, 5 * 128 + 128)
    assert start(x[13:17, 64:100], layout) == (0, 3 * 4 * 5 * 128 + 5 * 128 + 128)
    assert start(x.view(-1)[150:300], layout) == (150, 0)


def test_odd_views_stay_as_they_are() -> None:
    layout = _C.SpyreTensorLayout([5, 200], torch.float16)
    assert _C.view_start(layout, [0, 3], [200, 1], 400) == (400, 0)  # empty
    assert _C.view_start(layout, [9], [200], 400) == (400, 0)  # not all of it is stored
    assert _C.view_start(layout, [1 << 40, 3], [1 << 40, 1], 400) == (400, 0)
    assert _C.view_start(layout, [2], [-200], 400) == (400, 0)
    assert _C.view_extents(layout, [2], [-200], 400) == list(layout.device_size)
    arranged = layout.with_element_arrangement(_C.ElementArrangement.EXX2)
    assert _C.view_start(arranged, [3], [1], 400) == (400, 0)
    with pytest.raises(InvalidArgument, match="2 sizes and 1 strides"):
        _C.view_start(layout, [2, 3], [1], 0)
    with pytest.raises(InvalidArgument, match="0 sizes and 1 strides"):
        _C.view_extents(layout, [], [1], 0)
