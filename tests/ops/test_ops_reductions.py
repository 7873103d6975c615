# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_ops_reductions.py
"""Reductions over any dims, running sums and order along a dim, on the card."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from op_cases import check

from torch_spyre import knobs

MODES = ("eager", "compiled")
generator = torch.Generator().manual_seed(4)


def floats(*size: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*size, generator=generator).to(dtype)


def distinct(*size: int) -> torch.Tensor:
    """Values that stay different in 16 bits: halves of small integers, in random order."""
    count = torch.Size(size).numel()
    return ((torch.randperm(count, generator=generator) - count // 2) / 2).reshape(size).half()


X, Y, B = floats(5, 70), floats(3, 4, 70, dtype=torch.float32), torch.rand(5, 70, generator=generator) > 0.4
CASES = {
    "prod": (lambda x: x.prod(1), (floats(5, 9, dtype=torch.float32),)),
    "prod_of_integers": (lambda x: x.prod(0), (torch.randint(1, 4, (5, 70)),)),
    "any": (lambda x: x.any(1), (B,)),
    "any_of_floats": (lambda x: x.any(), (X,)),
    "all": (lambda x: x.all(0), (B,)),
    "mean": (lambda x: x.mean((0, 2)), (Y,)),
    "var": (lambda x: x.var(1), (X,)),
    "var_population": (lambda x: x.var((0, 2), correction=0), (Y,)),
    "std": (lambda x: x.std(), (X,)),
    "var_mean": (lambda x: torch.var_mean(x, 1), (Y,)),
    "logsumexp": (lambda x: x.logsumexp(1), (X,)),
    "amax": (lambda x: x.amax((0, 1)), (X,)),
    "norm": (lambda x: x.norm(dim=1), (X,)),
    "norm_1": (lambda x: torch.linalg.vector_norm(x, 1, (0, 2)), (Y,)),
    "count_nonzero": (lambda x: x.count_nonzero(1), (B,)),
    "argmax": (lambda x: x.argmax(1), (distinct(5, 70),)),
    "argmin_rows": (lambda x: x.argmin(0), (distinct(5, 70),)),
    "argmax_all": (lambda x: x.argmax(), (distinct(5, 70),)),
    "argmax_of_integers": (lambda x: x.argmax(1), (torch.randint(-99, 99, (5, 70)),)),
    "max_dim": (lambda x: x.max(1), (distinct(5, 70),)),
    "median": (lambda x: x.median(1), (distinct(5, 70),)),
    "cumsum": (lambda x: x.cumsum(1), (floats(5, 70, dtype=torch.float32),)),
    "cumsum_rows": (lambda x: x.cumsum(0), (torch.randint(-9, 9, (5, 70)),)),
    "cumprod": (lambda x: x.cumprod(1), (torch.rand(5, 70) + 0.5,)),
    "cummax": (lambda x: x.cummax(1), (distinct(5, 70),)),
    "cummin": (lambda x: x.cummin(0), (distinct(5, 70),)),
    "sort": (lambda x: x.sort(1), (distinct(5, 70),)),
    "sort_rows": (lambda x: x.sort(0, descending=True), (distinct(5, 70),)),
    "argsort": (lambda x: x.argsort(1), (distinct(5, 70),)),
    "topk": (lambda x: x.topk(5), (distinct(5, 70),)),
    "topk_smallest": (lambda x: x.topk(3, 0, largest=False), (distinct(5, 70),)),
    "topk_all": (lambda x: x.topk(70), (distinct(5, 70),)),
    "kthvalue": (lambda x: x.kthvalue(4, 1), (distinct(5, 70),)),
    "isin": (lambda x, y: torch.isin(x, y), (torch.randint(0, 9, (5, 70)), torch.tensor([1, 4]))),
    "bucketize": (lambda x, b: torch.bucketize(x, b), (X, torch.tensor([-1.0, 0.0, 1.0]).half())),
    "searchsorted": (
        lambda b, x: torch.searchsorted(b, x, right=True),
        (torch.tensor([[-1.0, 0.0], [0.0, 1.0]]), floats(2, 7, dtype=torch.float32)),
    ),
    "softmax": (lambda x: x.softmax(0), (X,)),
    "log_softmax": (lambda x: x.log_softmax(1), (X,)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_against_the_host(name: str, mode: str) -> None:
    call, inputs = CASES[name]
    check(call, *inputs, mode=mode)


@pytest.mark.parametrize("call", [torch.sum, torch.prod, torch.any, torch.all, torch.cumsum])
def test_over_nothing(call) -> None:
    check(lambda x: call(x, 1), torch.ones(3, 0))
    check(lambda x: call(x, 0), torch.ones(0, 3))


def test_the_first_of_equals_wins_and_nan_is_largest() -> None:
    x = torch.tensor([[1.0, 3, 3, 2], [2, float("nan"), 5, float("nan")]]).to("spyre")
    assert x.argmax(1).tolist() == [1, 1]
    assert x.cpu().argmax(1).tolist() == [1, 1]


def test_variance_of_a_large_mean() -> None:
    check(lambda x: x.var(1), torch.randn(4, 1000) + 1000.0)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_dims(data: st.DataObject) -> None:
    size = data.draw(st.lists(st.sampled_from([1, 2, 3, 33, 64, 65]), min_size=1, max_size=4))
    dims = data.draw(st.sets(st.integers(0, len(size) - 1), min_size=1))
    x = torch.randn(size)
    check(lambda x: x.std(tuple(dims), correction=0), x)
    check(lambda x: x.amin(tuple(dims)), x)
    dim = min(dims)
    check(lambda x: x.argmax(dim), x)
    check(lambda x: x.cumsum(dim), x)
    check(lambda x: x.sort(dim).values, x)


def test_lines_are_sorted_in_strips_along_an_inner_dim() -> None:
    """A core's lines exceed its scratchpad, and one step of the outermost dim still does."""
    x = torch.randn(64, 2, 65, 65, generator=generator)
    with knobs.patch(sencores=1):
        check(lambda x: x.sort(0).values, x)
