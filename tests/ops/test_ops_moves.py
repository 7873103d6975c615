# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_ops_moves.py
"""Putting tensors together, turning them round, and addressing them by index tensors, on the card."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from op_cases import check

MODES = ("eager", "compiled")
generator = torch.Generator().manual_seed(3)


def floats(*size: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*size, generator=generator).to(dtype)


def places(limit: int, *size: int) -> torch.Tensor:
    return torch.randint(0, limit, size, generator=generator)


MOVES = {
    "cat": (lambda a, b: torch.cat([a, b, a], 1), (floats(5, 70), floats(5, 3))),
    "cat_rows": (lambda a, b: torch.cat([a, b], 0), (floats(5, 70), floats(2, 70))),
    "cat_dtypes": (lambda a, b: torch.cat([a, b]), (floats(5, 70), floats(2, 70, dtype=torch.float32))),
    "stack": (lambda a: torch.stack([a, a + 1], 1), (floats(5, 70),)),
    "pad": (lambda a: F.pad(a, (1, 2, 3, 4), value=2.5), (floats(5, 70),)),
    "pad_negative": (lambda a: F.pad(a, (-1, 2, 0, -1)), (floats(5, 70),)),
    "pad_reflect": (lambda a: F.pad(a, (3, 2), mode="reflect"), (floats(1, 5, 70),)),
    "pad_circular": (lambda a: F.pad(a, (3, 2), mode="circular"), (floats(1, 5, 70),)),
    "flip": (lambda a: a.flip(1), (floats(5, 70),)),
    "flip_both": (lambda a: a.flip(0, 1), (floats(5, 70),)),
    "roll": (lambda a: a.roll((3, 1), (1, 0)), (floats(5, 70),)),
    "repeat": (lambda a: a.repeat(2, 3), (floats(5, 70),)),
    "repeat_interleave": (lambda a: a.repeat_interleave(2, 1), (floats(5, 70),)),
    "split": (lambda a: [x + 1 for x in a.split(32, 1)], (floats(5, 70),)),
    "slice_scatter": (lambda a, b: torch.slice_scatter(a, b, 1, 3, 13), (floats(5, 70), floats(5, 10))),
    "pixel_shuffle": (lambda a: F.pixel_shuffle(a, 2), (floats(1, 8, 3, 3),)),
    "upsample_nearest": (lambda a: F.interpolate(a, scale_factor=2), (floats(1, 2, 5, 9),)),
    "upsample_bilinear": (
        lambda a: F.interpolate(a, scale_factor=2, mode="bilinear"),
        (floats(1, 2, 5, 9, dtype=torch.float32),),
    ),
    "im2col": (lambda a: F.unfold(a, 3), (floats(2, 3, 6, 7),)),
}
INDEXED = {
    "gather": (lambda x, i: x.gather(1, i), (floats(5, 70), places(70, 5, 9))),
    "gather_rows": (lambda x, i: x.gather(0, i), (floats(5, 70), places(5, 3, 70))),
    "index_select": (lambda x, i: x.index_select(0, i), (floats(5, 70), places(5, 7))),
    "index_select_lanes": (lambda x, i: x.index_select(1, i), (floats(5, 70), places(70, 9))),
    "negative": (lambda x, i: x[i], (floats(5, 70), torch.tensor([3, 0, -1, -5]))),
    "pairs": (lambda x, i, j: x[i, j], (floats(5, 70), places(5, 6), places(70, 6))),
    "of_a_slice": (lambda x, i: x[1:4, 5:][i], (floats(5, 70), places(3, 6))),
    "of_a_transpose": (lambda x, i: x.t()[i], (floats(5, 70), places(70, 6))),
    "embedding": (lambda w, i: F.embedding(i, w), (floats(40, 128), places(40, 3, 7))),
    "take": (torch.take, (floats(5, 70), places(350, 11))),
    "take_along_dim": (lambda x, i: x.take_along_dim(i, 1), (floats(5, 70), places(70, 5, 2))),
    "of_integers": (lambda x, i: x[i], (places(1000, 9, 40), places(9, 4))),
    "one_hot": (lambda i: F.one_hot(i, 10), (places(10, 6),)),
}
WRITTEN = {
    "index_put": (lambda x, i, v: x.index_put((i,), v), (floats(5, 70), torch.tensor([1, 3]), floats(2, 70))),
    "index_put_lanes": (
        lambda x, i, j, v: x.index_put((i, j), v),
        (floats(5, 70), torch.tensor([1, 3]), torch.tensor([69, 0]), floats(2)),
    ),
    "accumulate": (
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        (floats(5, 70, dtype=torch.float32), torch.tensor([1, 1, 4]), floats(3, 70, dtype=torch.float32)),
    ),
    "index_copy": (lambda x, i, v: x.index_copy(0, i, v), (floats(5, 70), torch.tensor([4, 0]), floats(2, 70))),
    "index_add": (
        lambda x, i, v: x.index_add(1, i, v),
        (floats(5, 70, dtype=torch.float32), torch.tensor([1, 3]), floats(5, 2, dtype=torch.float32)),
    ),
    "index_fill": (lambda x, i: x.index_fill(1, i, 2.5), (floats(5, 70), torch.tensor([1, 66]))),
    "scatter": (
        lambda x, i, v: x.scatter(1, i, v),
        (floats(5, 70), (torch.arange(9) * 7).expand(5, 9), floats(5, 9)),
    ),
    "scatter_add": (
        lambda x, i, v: x.scatter_add(1, i, v),
        (floats(5, 70, dtype=torch.float32), places(70, 5, 9), floats(5, 9, dtype=torch.float32)),
    ),
    "embedding_gradient": (
        lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 10, -1, False),
        (floats(6, 70, dtype=torch.float32), places(10, 6)),
    ),
}
WRITTEN["whole_slice"] = (lambda x, y: torch.slice_scatter(x, y, 0, 0, 5), (floats(5, 70), floats(5, 70)))
WRITTEN["one_element"] = (
    lambda x, i, v: x.index_add(0, i, v),
    (floats(1, 1, dtype=torch.float32), places(1, 3), floats(3, 1, dtype=torch.float32)),
)
WRITTEN["fixed_place"] = (
    lambda x, v: x.scatter_add(1, torch.zeros_like(v, dtype=torch.int64), v),
    (floats(5, 70, dtype=torch.float32), floats(5, 9, dtype=torch.float32)),
)
WRITTEN["sums_round_once"] = (
    lambda x, i, v: x.index_put((i,), v, accumulate=True),
    (floats(3, 70), torch.zeros(40, dtype=torch.int64), floats(40, 70)),
)
CASES = {**MOVES, **INDEXED, **WRITTEN}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_against_the_host(name: str, mode: str) -> None:
    call, inputs = CASES[name]
    check(call, *inputs, mode=mode)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_gather_of_any_shape(data: st.DataObject) -> None:
    size = data.draw(st.lists(st.sampled_from([1, 2, 3, 33, 64, 65]), min_size=1, max_size=3))
    dim = data.draw(st.integers(0, len(size) - 1))
    count = data.draw(st.sampled_from([1, 4, 65]))
    dtype = data.draw(st.sampled_from([torch.float16, torch.float32, torch.int64]))
    x = (torch.randn(size) * 50).to(dtype)
    index = torch.randint(0, size[dim], [*size[:dim], count, *size[dim + 1 :]])
    check(lambda x, i: x.gather(dim, i), x, index)
    check(lambda x, i: x.index_select(dim, i), x, index.reshape(-1)[:count])


OUTSIDE = """
import torch
from torch_spyre.errors import IndexOutOfRange
base = torch.randn(9, 75, device="spyre")
for dim, table in ((0, base[2:7]), (1, base[2:7, 3:8]), (0, base[:5]), (1, base[:, :5])):
    for bad in (5, 70, -6):
        index = torch.tensor([0, bad], device="spyre")
        stream = torch.spyre.Stream()  # the error sticks to the stream it happened on
        with torch.spyre.stream(stream):
            table.index_select(dim, index)
            try:
                stream.synchronize()
            except IndexOutOfRange:
                print("refused")
import os
os._exit(0)
"""


def test_an_index_outside_is_an_error() -> None:
    """Also one that falls into the padding of a stick, or into other rows of a slice's base."""
    done = subprocess.run([sys.executable, "-u", "-c", OUTSIDE], capture_output=True, text=True, timeout=1500)
    assert done.stdout.split() == ["refused"] * 12, done.stderr


def test_in_place_writes_by_index() -> None:
    x, want = floats(5, 70).to("spyre"), None
    want = x.cpu()
    index, rows = torch.tensor([1, 4]), floats(2, 70)
    x[index.to("spyre")] = rows.to("spyre")
    want[index] = rows.to("spyre").cpu()
    assert torch.equal(x.cpu(), want)


# More dims than an instruction of the card or a transfer has.
MANY = torch.rand((2, 3, 1, 4) * 3, generator=generator)
PLACES = torch.randint(0, 4, MANY.shape, generator=generator)
TWOS = torch.rand((2,) * 12, generator=generator)
SHUFFLED = (7, 2, 11, 0, 5, 9, 1, 10, 3, 8, 6, 4)
MANY_DIMS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "all": (lambda x: (x > -1).all(), (MANY,)),
    "amax": (lambda x: x.amax((0, 1, 4, 8, 11)), (MANY,)),
    "argmax": (lambda x: x.argmax(3), (MANY,)),
    "flip": (lambda x: x.flip(1, 3), (MANY,)),
    "gather": (lambda x, i: x.gather(3, i), (MANY, PLACES)),
    "index_select": (lambda x, i: x.index_select(3, i), (MANY, torch.tensor([1, 0, 3]))),
    "scatter": (lambda x, i: x.scatter(3, i, -1.0), (MANY, PLACES)),
    "sort": (lambda x: x.sort(7).values, (MANY,)),
    "permuted": (lambda x: x.permute(SHUFFLED), (TWOS,)),
    "permuted_copy": (lambda x: x.permute(SHUFFLED).contiguous(), (TWOS,)),
    "permuted_maximum": (lambda x: torch.maximum(x.permute(SHUFFLED), x), (TWOS,)),
    "sliced": (lambda x: x.permute(SHUFFLED)[:, 1:], (TWOS,)),
}


@pytest.mark.parametrize("name", MANY_DIMS)
def test_twelve_dims(name: str) -> None:
    function, tensors = MANY_DIMS[name]
    assert torch.equal(function(*(t.to("spyre") for t in tensors)).cpu(), function(*tensors))


def test_sums_over_some_of_twelve_dims() -> None:
    """In the card's order of addition nothing is said about the host's: whole numbers are exact in any."""
    whole = (MANY * 100).round()
    for dims in ((), (1, 3), (0, 2, 4, 5, 7, 9, 11)):
        assert torch.equal(whole.to("spyre").sum(dims).cpu(), whole.sum(dims))
    assert torch.equal(whole.to("spyre").cumsum(3).cpu(), whole.cumsum(3))
    torch.testing.assert_close(MANY.to("spyre"), MANY.to("spyre").clone())


def test_copies_of_twelve_dims_in_another_order() -> None:
    """Between host and card, both ways, where no two dims follow each other on both sides."""
    card = torch.zeros_like(TWOS, device="spyre")
    card.permute(SHUFFLED).copy_(TWOS)
    host = torch.zeros_like(TWOS)
    host.permute(SHUFFLED).copy_(TWOS)
    assert torch.equal(card.cpu(), host)
    back = torch.empty_like(TWOS)
    back.copy_(card.permute(SHUFFLED))
    assert torch.equal(back, TWOS)
    assert torch.equal(TWOS.byte().to("spyre").permute(SHUFFLED).cpu(), TWOS.byte().permute(SHUFFLED))


SIXTEEN = torch.randint(-50, 50, (2,) * 16, generator=generator)
TURNED = (11, 4, 0, 13, 7, 2, 15, 9, 1, 6, 12, 3, 10, 5, 14, 8)
OF_SIXTEEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum of two orders": lambda x: x.permute(TURNED) + x,
    "copy": lambda x: x.permute(TURNED).contiguous(),
    "selection": lambda x: torch.where(x.permute(TURNED) > 0, x, 1),
    "total": lambda x: x.permute(TURNED).sum((1, 5, 9)),
    "running total": lambda x: x.permute(TURNED).cumsum(3),
    "by index": lambda x: x.permute(TURNED)[1, :, torch.tensor([1, 0], device=x.device)],
}


@pytest.mark.parametrize("name", OF_SIXTEEN)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64, torch.uint8])
def test_sixteen_dims_in_an_order_where_no_two_join(name: str, dtype: torch.dtype) -> None:
    """More than a tile instruction has: it runs in a loop over the others."""
    host = SIXTEEN.to(dtype)
    assert torch.equal(OF_SIXTEEN[name](host.to("spyre")).cpu(), OF_SIXTEEN[name](host))
