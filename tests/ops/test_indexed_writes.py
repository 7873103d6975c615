# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_indexed_writes.py
"""Writes at given places, in place: what they leave behind, bit for bit, and that they cost what they write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_spyre import _C
from torch_spyre.errors import IndexOutOfRange
from torch_spyre.ops import fallbacks
from torch_spyre.ops.kernels import masks

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
Write = Callable[..., Any]
HALF = torch.float16


@pytest.fixture(autouse=True)
def nothing_on_the_host() -> Iterator[None]:
    with fallbacks.disabled():
        yield


# A write of rows x, at places i along a dim, of values v.
ROWS: dict[str, Write] = {
    "index_put": lambda x, d, i, v: x.movedim(d, 0).index_put_((i,), v.movedim(d, 0)),
    "index_put, adding": lambda x, d, i, v: x.movedim(d, 0).index_put_((i,), v.movedim(d, 0), accumulate=True),
    "index_copy": lambda x, d, i, v: x.index_copy_(d, i, v),
    "index_add": lambda x, d, i, v: x.index_add_(d, i, v),
    "index_fill": lambda x, d, i, v: x.index_fill_(d, i, 1),
}
# The same with a place for each element.
ELEMENTS: dict[str, Write] = {
    "scatter": lambda x, d, i, v: x.scatter_(d, i, v),
    "scatter of a number": lambda x, d, i, v: x.scatter_(d, i, 1),
    "scatter_add": lambda x, d, i, v: x.scatter_add_(d, i, v),
    "scatter_reduce, amax": lambda x, d, i, v: x.scatter_reduce_(d, i, v, "amax"),
    "scatter_reduce, sum without self": lambda x, d, i, v: x.scatter_reduce_(d, i, v, "sum", include_self=False),
    "scatter_reduce, prod": lambda x, d, i, v: x.scatter_reduce_(d, i, v, "prod"),
}
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64, torch.bool)
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all": lambda b: b,
    "rows": lambda b: b[2:],
    "columns": lambda b: b[:, 3:-1],
    "every other row": lambda b: b[1::2],
    "every other column": lambda b: b[:, 1::2],
    "transposed": lambda b: b.t()[1:],
    "one dim more": lambda b: b.unflatten(0, (-1, 2))[1:],
}


def numbers(size: list[int] | torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers: sums and products of a few are exact in fp32."""
    return torch.randint(0, 2, size).bool() if dtype == torch.bool else torch.randint(-4, 5, size).to(dtype)


def expected(write: Write, view: Callable[..., Any], base: torch.Tensor, *rest: Any) -> torch.Tensor:
    """What the CPU leaves in the base: sums of 16-bit floats in fp32, rounded once, as the card rounds."""
    wide = base.float() if base.dtype in (torch.float16, torch.bfloat16) else base.clone()
    write(view(wide), *(r.to(wide.dtype) if isinstance(r, torch.Tensor) and r.dtype == base.dtype else r for r in rest))
    if wide.dtype == base.dtype:
        return wide
    return torch.from_numpy(oracle.round_dl16(wide)).to(base.dtype)


def run(write: Write, compiled: bool) -> Write:
    torch._dynamo.reset()
    return torch.compile(write, backend="spyre", fullgraph=True, dynamic=False) if compiled else write


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_write_leaves_what_the_cpu_leaves(data: st.DataObject) -> None:
    """Also everything outside of the view, and every element that no index names."""
    dtype = data.draw(st.sampled_from(DTYPES))
    name = data.draw(st.sampled_from([*ROWS, *ELEMENTS]))
    view = VIEWS[data.draw(st.sampled_from(list(VIEWS)))]
    torch.manual_seed(data.draw(st.integers(0, 99)))
    base = numbers([data.draw(st.sampled_from([6, 12, 40])), data.draw(st.sampled_from([7, 64, 130]))], dtype)
    shape = view(base).shape
    dim = data.draw(st.integers(0, len(shape) - 1))
    count = data.draw(st.sampled_from([1, 2, 5]))
    size = [*shape[:dim], count, *shape[dim + 1 :]]
    if name in ROWS:
        write, index = ROWS[name], torch.randint(0, shape[dim], (count,))
        if name.startswith("index_put"):
            index -= shape[dim] * torch.randint(0, 2, (count,))  # from the end
    else:
        size = [data.draw(st.integers(1, n)) if d != dim else n for d, n in enumerate(size)]
        write, index = ELEMENTS[name], torch.randint(0, shape[dim], size)
    if name in ("index_copy", "scatter", "index_put"):  # of several values for one place, any one stays
        write = in_order(write)
    values = numbers(size, dtype)
    want = expected(write, view, base, dim, index, values)
    card = base.to("spyre")
    write(view(card), dim, index.to("spyre"), values.to("spyre"))
    assert torch.equal(card.cpu(), want), (name, dtype, shape, dim)


def in_order(write: Write) -> Write:
    """On the CPU one value after the other, so that the last one stays, as on the card."""

    def call(x: torch.Tensor, dim: int, index: torch.Tensor, values: torch.Tensor) -> None:
        if x.device.type == "spyre":
            write(x, dim, index, values)
            return
        for k in range(values.shape[dim]):
            part = (
                index[k : k + 1]
                if index.dim() == 1 and values.dim() > 1
                else index.narrow(min(dim, index.dim() - 1), k, 1)
            )
            write(x, dim, part, values.narrow(dim, k, 1))

    return call


WRITES: dict[str, Write] = {
    "setitem": lambda x, i, j, v: x.__setitem__(i, v),
    "index_put, adding": lambda x, i, j, v: x.index_put_((i,), v, accumulate=True),
    "pairs": lambda x, i, j, v: x.index_put_((i, j[0, :2] % 130), v[:, 0]),
    "pairs, adding": lambda x, i, j, v: x.index_put_((i, j[0, :2] % 130), v[:, 0], accumulate=True),
    "columns": lambda x, i, j, v: x.__setitem__((slice(None), i), v[:1, :2]),
    "index_copy": lambda x, i, j, v: x.index_copy_(0, i, v),
    "index_add": lambda x, i, j, v: x.index_add_(0, i, v, alpha=2),
    "index_fill": lambda x, i, j, v: x.index_fill_(0, i, 3.0),
    "scatter": lambda x, i, j, v: x.scatter_(0, j, v),
    "scatter_add": lambda x, i, j, v: x.scatter_add_(0, j, v),
    "scatter_reduce": lambda x, i, j, v: x.scatter_reduce_(0, j, v, "amax"),
}


def moved_bytes(action: Callable[[], Any]) -> int:
    action()  # plans
    torch.spyre.synchronize()
    before = _C._card_counters(0)
    action()
    torch.spyre.synchronize()
    after = _C._card_counters(0)
    return sum(after[name] - before[name] for name in ("memory_read_bytes", "memory_write_bytes"))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [HALF, torch.float32, torch.int64])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_costs_what_it_writes(name: str, dtype: torch.dtype, compiled: bool) -> None:
    """The traffic does not grow with the tensor, and the result is right."""
    write = run(WRITES[name], compiled)
    traffic = []
    for rows in (256, 1024):
        index, each = torch.tensor([3, 100]), torch.randint(0, rows, (2, 130))
        base, values = numbers([rows, 130], dtype), numbers([2, 130], dtype)
        card, on_card = base.to("spyre"), [x.to("spyre") for x in (index, each, values)]
        write(card, *on_card)
        want = expected(WRITES[name], lambda b: b, base, index, each, values)
        assert torch.equal(card.cpu(), want)
        lines = rows if name == "columns" else 1
        traffic.append(moved_bytes(lambda card=card, on_card=on_card: write(card, *on_card)) / lines)
    assert traffic[1] <= traffic[0] * 1.01


THROUGH_VIEWS: dict[str, Write] = {
    "rows": lambda x, i, v: x[2:].__setitem__(i, v),
    "columns": lambda x, i, v: x[:, 1:].__setitem__(i, v[:, 1:]),
    "every other row": lambda x, i, v: x[::2].index_copy_(0, i, v),
    "a layer": lambda x, i, v: x.view(4, -1, 128)[2].index_copy_(0, i, v),
    "a reshaped part": lambda x, i, v: x.view(-1, 2, 128)[1:].__setitem__((i, 0), v),
    "transposed": lambda x, i, v: x.t().__setitem__((slice(None), i), v.t()),
    "sums": lambda x, i, v: x[2:].index_add_(0, i, v),
    "elements": lambda x, i, v: x[2:].scatter_(0, i[:, None].expand(2, 128), v),
    "sums of elements": lambda x, i, v: x[2:].scatter_add_(0, i[:, None].expand(2, 128), v),
    "one after the other": lambda x, i, v: (x[2:].index_add_(0, i, v), x[1:].__setitem__(i, v * 2)),
    "what was there is returned": lambda x, i, v: (x * 2, x[2:].__setitem__(i, v))[0],
}


@pytest.mark.parametrize("name", THROUGH_VIEWS)
def test_a_compiled_write_through_a_view(name: str) -> None:
    """Only what is written moves, and nothing outside of the view changes."""
    write, traffic = run(THROUGH_VIEWS[name], True), []
    for rows in (256, 1024):
        index, base, values = torch.tensor([3, 60]), numbers([rows, 128], HALF), numbers([2, 128], HALF)
        card, on_card = base.to("spyre"), [x.to("spyre") for x in (index, values)]
        got, want = write(card, *on_card), THROUGH_VIEWS[name](base, index, values)
        assert torch.equal(card.cpu(), base)
        if isinstance(want, torch.Tensor):
            assert torch.equal(got.cpu(), want)
        traffic.append(moved_bytes(lambda card=card, on_card=on_card: write(card, *on_card)))
    assert traffic[1] == traffic[0] or name == "what was there is returned"


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("view", ["rows", "columns"])
def test_an_index_outside_of_a_view_is_outside(view: str, compiled: bool) -> None:
    """Even if there are elements of the base."""
    x, index = torch.zeros(64, 130, dtype=HALF, device="spyre"), torch.tensor([7, 8], device="spyre")
    writes: dict[str, Write] = {
        "rows": lambda x, i: x[2:10].__setitem__(i, 1.0),
        "columns": lambda x, i: x[:, 2:10].__setitem__((slice(None), i), 1.0),
    }
    torch.spyre.synchronize()
    try:
        with pytest.raises(IndexOutOfRange):
            run(writes[view], compiled)(x, index)
            torch.spyre.synchronize()
    finally:
        torch.spyre.reset()


def test_a_write_in_a_compiled_graph_reads_what_was_there() -> None:
    """Values, and places, that are made from the tensor that is written."""

    def write(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        first = x[0] * 2
        x[i] = x[i + 1] + 1
        x.index_add_(0, i, x[1:3] * 2)
        return first + x[3]

    base, index = numbers([8, 70], torch.float32), torch.tensor([0, 3])
    card = base.to("spyre")
    got = run(write, True)(card, index.to("spyre"))
    assert torch.equal(got.cpu(), write(base, index)) and torch.equal(card.cpu(), base)


def test_indices_that_are_written() -> None:
    base = torch.tensor([2, 0, 1, 3], dtype=torch.int64)
    for compiled in (False, True):
        card = base.to("spyre")
        run(lambda x: x.index_put_((x[:2].clone(),), x[2:].clone()), compiled)(card)
        assert card.tolist() == [3, 0, 1, 3]


@pytest.mark.parametrize("dtype", [HALF, torch.float32])
def test_sums_at_one_place_round_once(dtype: torch.dtype) -> None:
    base, values = torch.ones(64, 70, dtype=dtype), torch.full((9, 70), 2.0**-10, dtype=dtype)
    index = torch.full((9,), 5)
    card = base.to("spyre").index_add_(0, index.to("spyre"), values.to("spyre"))
    want = base.double().index_add_(0, index, values.double())
    want = oracle.round_dl16(want) if dtype == HALF else want.numpy()
    assert np.array_equal(card.cpu().double().numpy(), want)


@pytest.mark.parametrize("name", WRITES)
def test_an_index_outside_is_named(name: str) -> None:
    x, values = torch.zeros(64, 130, dtype=HALF, device="spyre"), torch.ones(2, 130, dtype=HALF, device="spyre")
    index, each = torch.tensor([3, 6400], device="spyre"), torch.full((2, 130), 64, device="spyre")
    try:
        with pytest.raises(IndexOutOfRange):
            WRITES[name](x, index, each, values)
            torch.spyre.synchronize()
    finally:
        torch.spyre.reset()


@pytest.mark.parametrize("padding", [-1, 7])
@pytest.mark.parametrize("rows", [40, 4000], ids=["dense", "few"])
def test_the_gradient_of_an_embedding_sums_in_fp32(rows: int, padding: int) -> None:
    grad, places = numbers([5, 6, 70], HALF) / 64, torch.randint(0, 20, (5, 6))
    got = torch.ops.aten.embedding_dense_backward(grad.to("spyre"), places.to("spyre"), rows, padding, False)
    want = torch.ops.aten.embedding_dense_backward(grad.double(), places, rows, padding, False)
    assert np.array_equal(got.cpu().double().numpy(), oracle.round_dl16(want))


# Masks

MASKED: dict[str, tuple[list[int], int, int, Callable[[int], tuple[int, ...]]]] = {
    "rows": ([12, 30, 9], 0, 1, lambda n: (n, 30, 9)),
    "rows, one for all": ([12, 30, 9], 0, 1, lambda n: (30, 9)),
    "columns": ([12, 30, 9], 1, 1, lambda n: (12, n, 9)),
    "columns, the same in all rows": ([12, 30, 9], 1, 1, lambda n: (n, 1)),
    "columns, one number": ([12, 30, 9], 1, 1, lambda n: ()),
    "two dims": ([12, 30, 9], 1, 2, lambda n: (12, n)),
    "all dims": ([12, 30, 9], 0, 3, lambda n: (n,)),
}


@pytest.mark.parametrize("large", [False, True], ids=["whole", "by places"])
@pytest.mark.parametrize("accumulate", [False, True], ids=["put", "add"])
@pytest.mark.parametrize("name", MASKED)
def test_masks_among_indices(name: str, accumulate: bool, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "_LARGE", 1 if large else 1 << 40)
    size, dim, dims, values_of = MASKED[name]
    for share in (0.0, 0.1, 0.6):
        base = numbers(size, HALF)
        mask = torch.rand(size[dim : dim + dims]) < share
        indices = [None] * dim + [mask]
        on_card = [None if i is None else i.to("spyre") for i in indices]
        card = base.to("spyre")
        got = torch.ops.aten.index.Tensor(card, on_card)
        assert got.device.type == "spyre" and torch.equal(got.cpu(), torch.ops.aten.index.Tensor(base, indices))
        values = numbers(list(values_of(int(mask.sum()))), HALF)
        torch.ops.aten.index_put_(card, on_card, values.to("spyre"), accumulate)
        assert torch.equal(card.cpu(), torch.ops.aten.index_put_(base, indices, values, accumulate))


def test_masks_beside_other_indices_and_their_gradients() -> None:
    x = torch.randn(5, 70)
    mask, places = torch.tensor([True, False, True, True, False]), torch.tensor([3, 0, 69])

    def both(x: torch.Tensor, mask: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = x.clone().requires_grad_()
        result = leaf[mask, places] * 2 + leaf[:, places][mask].sum(1) + leaf.masked_select(leaf > 0).sum()
        return result, torch.autograd.grad(result.sum(), leaf)[0]

    for got, want in zip(both(*(t.to("spyre") for t in (x, mask, places))), both(x, mask, places), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-4)


def test_a_mask_of_another_size_is_refused() -> None:
    x = torch.zeros(5, 70, device="spyre")
    with pytest.raises(IndexError, match="shape of the mask"):
        x[:, torch.ones(60, dtype=torch.bool, device="spyre")]
    with pytest.raises((IndexError, RuntimeError), match=r"mask|mismatch"):
        x[:, torch.ones(60, dtype=torch.bool, device="spyre")] = 1.0
