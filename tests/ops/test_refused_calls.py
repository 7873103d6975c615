# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_refused_calls.py
"""Calls that PyTorch refuses for memory, devices, dtypes, sizes or places raise on the card what they raise on the CPU,
and their neighbours that it takes work."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torch_spyre.errors import IndexOutOfRange

aten = torch.ops.aten
Call = Callable[[str], Any]


def repeated(device: str) -> torch.Tensor:
    return torch.ones(1, device=device).expand(3)


def ones(*size: int, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(size, dtype=dtype, device=device)


def line(device: str) -> torch.Tensor:
    return torch.arange(6.0, device=device)


def places(device: str, *values: int) -> torch.Tensor:
    return torch.tensor(values, device=device)


def assigned(x: torch.Tensor, key: Any, value: Any) -> torch.Tensor:
    x[key] = value
    return x


def part_of_itself(device: str, write: Callable[[torch.Tensor], Any]) -> Any:
    return write(line(device))


REFUSED: dict[str, Call] = {
    # An element that is written twice
    "add out=": lambda d: torch.add(ones(3, device=d), 1, out=repeated(d)),
    "cat out=": lambda d: torch.cat([ones(2, device=d), ones(1, device=d)], out=repeated(d)),
    "cumsum out=": lambda d: torch.cumsum(ones(3, device=d), 0, out=repeated(d)),
    "arange out=": lambda d: torch.arange(3, out=repeated(d)),
    "add_": lambda d: repeated(d).add_(1),
    "sin_": lambda d: repeated(d).sin_(),
    "uniform_": lambda d: repeated(d).uniform_(),
    "scatter_": lambda d: repeated(d).scatter_(0, places(d, 0), 2.0),
    # Memory that is read and written
    "a part, out=": lambda d: part_of_itself(d, lambda x: torch.add(x[:-1], 1, out=x[1:])),
    "a part, in place": lambda d: part_of_itself(d, lambda x: x[1:].add_(x[:-1])),
    "a part, copied": lambda d: part_of_itself(d, lambda x: x[1:].copy_(x[:-1])),
    "scattered to itself": lambda d: part_of_itself(d, lambda x: x.scatter_(0, places(d, 1, 2), x)),
    "gathered to itself": lambda d: part_of_itself(
        d, lambda x: torch.gather(x, 0, places(d, 5, 4, 3, 2, 1, 0), out=x)
    ),
    # An out= of a dtype that cannot hold the result
    **{
        f"{name} out=int": lambda d, name=name: getattr(torch, name)(
            ones(3, device=d), out=ones(3, device=d, dtype=torch.int32)
        )
        for name in ("neg", "floor", "round", "abs", "sqrt", "square")
    },
    "mm out=int": lambda d: torch.mm(
        ones(3, 3, device=d), ones(3, 3, device=d), out=ones(3, 3, device=d, dtype=torch.int32)
    ),
    # Random numbers that a dtype does not hold
    "random_ of half": lambda d: torch.empty(3, dtype=torch.float16, device=d).random_(0, 2**20),
    "random_ of int8": lambda d: torch.empty(3, dtype=torch.int8, device=d).random_(-129, 3),
    "random_ of bool": lambda d: torch.empty(3, dtype=torch.bool, device=d).random_(0, 3),
    "randperm of half": lambda d: torch.randperm(4000, dtype=torch.float16, device=d),
    "randperm of bytes": lambda d: torch.randperm(300, dtype=torch.uint8, device=d),
    "uniform_ of half": lambda d: torch.empty(3, dtype=torch.float16, device=d).uniform_(-1e6, 1e6),
    "uniform_ of int": lambda d: torch.empty(3, dtype=torch.int32, device=d).uniform_(),
    "normal_ of a negative deviation": lambda d: torch.empty(3, device=d).normal_(0, -1),
    # Sizes
    "indices": lambda d: ones(3, 3, device=d)[[0, 1], [0, 1, 2]],
    "a value too large": lambda d: assigned(ones(2, 3, device=d), True, ones(4, 5, device=d)),
    "index_put of nothing": lambda d: ones(2, 3, device=d).index_put_([], ones(4, device=d)),
    "roll": lambda d: torch.roll(ones(3, 3, device=d), (1, 2), (0,)),
    # Arguments
    "clamp": lambda d: ones(3, device=d).clamp(),
    "addcdiv of int": lambda d: torch.addcdiv(*(ones(3, device=d, dtype=torch.int64) for _ in range(3))),
    "masked_fill by bytes": lambda d: ones(2, device=d).masked_fill(places(d, 1, 0).to(torch.uint8), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_on_the_cpu(name: str) -> None:
    with pytest.raises(Exception) as expected:
        REFUSED[name]("cpu")
    with pytest.raises(type(expected.value), match=re.escape(str(expected.value)[:60])):
        REFUSED[name]("spyre")


def put_where(x: torch.Tensor, values: list[float]) -> None:
    x[x > 1] = torch.tensor(values).to(x.device)


@pytest.mark.parametrize("values", [[], [1.0, 2.0, 3.0]])
def test_sizes_are_compared_before_dtypes_where_a_mask_marks(values: list[float]) -> None:
    words = rf"value tensor of shape \[{len(values)}\] cannot be broadcast to indexing result of shape \[4\]"
    for device in ("cpu", "spyre"):
        with pytest.raises(RuntimeError, match=words):
            put_where(places(device, 1, 2, 3, 4, 5), values)


TAKEN: dict[str, Call] = {
    "fill_ of repeated elements": lambda d: repeated(d).fill_(3),
    "zero_ of repeated elements": lambda d: repeated(d).zero_(),
    "fill_ of windows": lambda d: ones(2, 3, device=d).as_strided((2, 2), (1, 1)).fill_(4),
    "masked_fill_": lambda d: repeated(d).masked_fill_(ones(3, device=d, dtype=torch.bool), 2),
    "index_fill_": lambda d: repeated(d).index_fill_(0, places(d, 0), 2),
    "index_put_": lambda d: repeated(d).index_put_((places(d, 0),), torch.tensor(3.0, device=d)),
    "an operand that is written": lambda d: part_of_itself(d, lambda x: torch.add(x, x, out=x)),
    "neighbours": lambda d: part_of_itself(d, lambda x: x[:3].add_(x[3:])),
    "a mask of bytes": lambda d: line(d)[places(d, 1, 0, 1, 0, 0, 1).to(torch.uint8)],
    "a condition of bytes": lambda d: torch.where(places(d, 1, 0).to(torch.uint8), ones(2, device=d), 0.0),
    "normal without a deviation": lambda d: torch.normal(torch.zeros(3, device=d)) * 0,
    "index_fill from the end": lambda d: ones(4, device=d).index_fill(0, places(d, -1), 2.0),
    "take from the end": lambda d: line(d).take(places(d, -1, 0)),
    "along a dim, by a number": lambda d: line(d).take_along_dim(places(d, 1, -1), 0),
}


@pytest.mark.parametrize("name", TAKEN)
def test_taken_as_on_the_cpu(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(TAKEN[name]("spyre").cpu(), TAKEN[name]("cpu"))


def test_a_call_does_not_write_to_another_device() -> None:
    x = ones(3, device="spyre")
    for call in (
        lambda: torch.sum(x, 0, out=torch.empty(())),
        lambda: torch.add(x[0], 1, out=torch.empty(())),
        lambda: torch.nonzero(x, out=torch.empty(0, dtype=torch.int64)),
        lambda: torch.addr(ones(3, 3, device="spyre"), x, x, out=torch.empty(3, 3)),
        lambda: torch.ones(()).add_(x[0]),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            call()


def test_a_refused_sharing_is_refused_after_a_plan_is_known() -> None:
    """A plan for tensors of their own must not serve those that share memory."""
    x, y, where = line("spyre"), line("spyre"), places("spyre", 1, 2)
    x.scatter_(0, where, y)
    with pytest.raises(RuntimeError, match="some elements of the input tensor"):
        x.scatter_(0, where, x)
    assert x.cpu().tolist() == [0.0, 0.0, 1.0, 3.0, 4.0, 5.0]


NOT_FROM_THE_END: dict[str, Call] = {
    "embedding_bag": lambda d: F.embedding_bag(places(d, 0, -1), ones(4, 2, device=d), places(d, 0)),
    "embedding_bag of maxima": lambda d: F.embedding_bag(places(d, -1), ones(4, 2, device=d), places(d, 0), mode="max"),
    "index_add": lambda d: ones(4, 2, device=d).index_add(0, places(d, -1), ones(1, 2, device=d)),
    "index_copy": lambda d: ones(4, 2, device=d).index_copy(0, places(d, -1), ones(1, 2, device=d)),
    "scatter_reduce": lambda d: ones(4, device=d).scatter_reduce(0, places(d, -1), ones(1, device=d), "prod"),
    "max_unpool": lambda d: F.max_unpool1d(ones(1, 1, 2, device=d), places(d, 0, -1)[None, None], 2),
    "gather": lambda d: ones(4, device=d).gather(0, places(d, -1)),
}


@pytest.mark.parametrize("name", NOT_FROM_THE_END)
def test_a_negative_place_is_refused_and_named(name: str) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        NOT_FROM_THE_END[name]("cpu")
    try:
        with pytest.raises(IndexOutOfRange, match="index -1 lies below 0"):
            NOT_FROM_THE_END[name]("spyre").cpu()
    finally:
        torch.spyre.reset()


@pytest.mark.parametrize("size", [(4,), (4, 32), (3, 70)])
def test_a_place_past_the_end_is_named_with_its_bound(size: tuple[int, ...]) -> None:
    """Also where the card stores whole sticks, which have room for more."""
    x, n = ones(*size, device="spyre"), size[-1]
    try:
        with pytest.raises(IndexOutOfRange) as found:
            x.gather(-1, torch.full_like(x, 75, dtype=torch.int64)).cpu()
    finally:
        torch.spyre.reset()
    said = str(found.value)
    assert f"index 75 lies outside [0, {n})" in said or f"(indices below {n}): index 75 lies outside" in said


def maxima(n: int, *size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return ones(1, n, *size, device="spyre"), torch.zeros(1, n, *size, dtype=torch.int64, device="spyre")


UNCHECKED_BY_PYTORCH: dict[str, Callable[[], Any]] = {
    "average": lambda: aten._adaptive_avg_pool2d_backward(maxima(2, 3, 3)[0], maxima(3, 6, 6)[0]),
    "average in 3d": lambda: aten._adaptive_avg_pool3d_backward(maxima(2, 3, 3, 3)[0], maxima(3, 6, 6, 6)[0]),
    "maximum": lambda: aten.adaptive_max_pool2d_backward(maxima(2, 3, 3)[0], maxima(3, 6, 6)[0], maxima(2, 3, 3)[1]),
    "places": lambda: aten.adaptive_max_pool2d_backward(maxima(3, 3, 3)[0], maxima(3, 6, 6)[0], maxima(3, 2, 3)[1]),
    "dims of places": lambda: aten.adaptive_max_pool3d_backward(
        maxima(3, 7, 7, 7)[0], maxima(3, 3, 3, 3)[0], maxima(3, 3, 3)[1]
    ),
    "dims": lambda: aten._adaptive_avg_pool2d_backward(maxima(3, 3, 3)[0], maxima(3, 6, 6)[0][0]),
    "padding": lambda: aten.reflection_pad2d_backward(maxima(2, 8, 8)[0], maxima(3, 6, 6)[0], [1, 1, 1, 1]),
    "repeated padding": lambda: aten.replication_pad2d_backward(maxima(3, 8, 7)[0], maxima(3, 6, 6)[0], [1, 1, 1, 1]),
    "rows": lambda: aten.embedding_dense_backward(
        ones(2, 3, device="spyre"), places("spyre", 0, 1, 2, 3), 5, -1, False
    ),
}


@pytest.mark.parametrize("name", UNCHECKED_BY_PYTORCH)
def test_a_gradient_of_other_sizes_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match=r": expected (sizes|dimensions) |^Expected dimensions "):
        UNCHECKED_BY_PYTORCH[name]()


def test_values_that_a_distribution_refuses() -> None:
    for call, words in (
        (lambda: torch.normal(line("spyre"), line("spyre") - 1), "all elements of std >= 0.0"),
        (lambda: torch.multinomial(line("spyre") - 1, 2), "element < 0"),
        (lambda: torch.multinomial(line("spyre") * 0, 2, True), "sum of probabilities <= 0"),
    ):
        try:
            with pytest.raises(RuntimeError, match=words):
                call().cpu()
        finally:
            torch.spyre.reset()


def test_strides_of_a_pool_without_a_batch() -> None:
    def strides(device: str) -> list[tuple[int, ...]]:
        x = torch.ones(2, 4, 4, 4, device=device).permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)
        return [r.stride() for r in F.max_pool3d(x, 2, return_indices=True)]

    assert strides("spyre") == strides("cpu")


def test_an_output_that_is_resized_warns_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.add(ones(3, device="spyre"), 1, out=ones(2, device="spyre"))
    assert [str(w.message)[:40] for w in caught] == ["An output with one or more elements was "]


def test_the_question_draws_no_random_numbers() -> None:
    before = torch.default_generator.get_state()
    torch.randperm(7, device="spyre")
    torch.empty(5, device="spyre").random_(0, 9)
    F.dropout(ones(11, device="spyre"))
    assert torch.equal(torch.default_generator.get_state(), before)


@pytest.mark.parametrize("rows", [2, 2000])  # calls of large tensors are checked by shapes only
def test_complex_numbers_for_real_tensors(rows: int) -> None:
    for device in ("cpu", "spyre"):
        x, y = (torch.ones(rows, 200, device=device) for _ in range(2))
        for call in (
            lambda x, y: torch._foreach_addcdiv_([x, y], [x, y], [y, x], value=1j),
            lambda x, y: torch._foreach_addcmul([x, y], [x, y], [y, x], [1j, 2.0]),
            lambda x, y: x.addcmul_(x, y, value=0.5j),
            lambda x, y: x.add_(y, alpha=1j),
            lambda x, y: torch.sub(x, y, alpha=1j),
            lambda x, y: x.clamp(min=1j),
            lambda x, y: x.lerp(y, 1j),
            lambda x, y: x.masked_fill(x > 0, 1j),
        ):
            with pytest.raises(RuntimeError, match=r"cannot be converted to type|must not be a complex number"):
                call(x, y)


@pytest.mark.parametrize("kind", ["Avg", "Max"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_adaptive_pools_of_whole_numbers_are_refused_in_compiled_graphs_too(kind: str, dims: int) -> None:
    pool = getattr(torch.nn, f"Adaptive{kind}Pool{dims}d")(5)
    x = torch.ones([1] * (dims + 1), dtype=torch.int64, device="spyre")
    for call in (pool, torch.compile(pool, fullgraph=True)):
        with pytest.raises(RuntimeError, match=f"adaptive_{kind.lower()}_pool.* not implemented for 'Long'"):
            call(x)
