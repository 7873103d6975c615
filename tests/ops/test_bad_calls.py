# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_bad_calls.py
"""Calls that PyTorch refuses raise an error of that kind here too, and the next correct op works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torch_spyre.errors import IndexOutOfRange

ONES = torch.ones


def whole(*values: Any) -> torch.Tensor:
    return torch.tensor(values, device="spyre")


def ones(*size: int) -> torch.Tensor:
    return ONES(size, device="spyre")


# Values that only the card sees: the launch fails, and the error comes when somebody waits for it.
VALUES: dict[str, Callable[[], torch.Tensor]] = {
    "embedding": lambda: F.embedding(whole(1, 10), ones(10, 4)),
    "embedding below 0": lambda: F.embedding(whole(-1, 1), ones(10, 4)),
    "embedding_bag": lambda: F.embedding_bag(whole(1, 10), ones(10, 4), whole(0)),
    "gather": lambda: ones(3, 4).gather(1, whole([4], [0], [0])),
    "gather below 0": lambda: ones(3, 4).gather(1, whole([-1], [0], [0])),
    "index_select": lambda: ones(3, 4).index_select(0, whole(3)),
    "index_select below 0": lambda: ones(3, 4).index_select(0, whole(-1)),
    "index": lambda: ones(3, 4)[whole(3)],
    "index below": lambda: ones(3, 4)[whole(-4)],
    "take": lambda: ones(3, 4).take(whole(12)),
    "scatter": lambda: ones(3, 4).scatter(1, whole([4], [0], [0]), 2.0),
    "scatter_add": lambda: ones(3, 4).scatter_add(1, whole([9]), ones(1, 1)),
    "index_put": lambda: ones(3, 4).index_put((whole(3),), ones()),
    "index_add": lambda: ones(3, 4).index_add(0, whole(3), ones(1, 4)),
    "cross_entropy": lambda: F.cross_entropy(ones(2, 3), whole(0, 3)),
    "floor by 0": lambda: whole(2, 3) // 0,
    "floor by zeros": lambda: whole(2, 3) // whole(0, 1),
    "quotient by zeros": lambda: torch.div(whole(2, 3), whole(0, 1), rounding_mode="trunc"),
    "remainder by zeros": lambda: whole(2, 3) % whole(0, 1),
    "fmod by 0": lambda: torch.fmod(whole(2, 3).int(), 0),
}
# What the call itself tells: kinds of errors as on the CPU.
CALLS: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "shapes": (lambda: ones(2) + ones(3), RuntimeError),
    "matmul": (lambda: ones(2, 3) @ ones(2, 3), RuntimeError),
    "matmul dtypes": (lambda: ones(2, 3) @ ones(3, 2).half(), RuntimeError),
    "linear": (lambda: F.linear(ones(2, 3), ones(4, 5)), RuntimeError),
    "convolution": (lambda: F.conv2d(ones(1, 3, 8, 8), ones(4, 2, 3, 3)), RuntimeError),
    "pooling": (lambda: F.max_pool2d(ones(1, 3, 2, 2), 5), RuntimeError),
    "layer_norm": (lambda: F.layer_norm(ones(2, 3), (4,)), RuntimeError),
    "reflection": (lambda: F.pad(ones(1, 2, 3), (4, 4), mode="reflect"), RuntimeError),
    "interpolation": (lambda: F.interpolate(ones(1, 1, 4, 4), size=(0, 2)), RuntimeError),
    "a dim": (lambda: ones(2, 3).sum(-3), IndexError),
    "softmax of a dim": (lambda: F.softmax(ones(2, 3), 5), IndexError),
    "a vector of places": (lambda: ones(3, 4).index_select(0, whole([0])), IndexError),
    "dtype of places": (lambda: ones(3, 4).gather(1, ones(3, 1)), RuntimeError),
    "dtype of values": (lambda: ones(3, 4).index_put((whole(0),), whole(1)[0]), RuntimeError),
    "word": (lambda: ones(3, 4).scatter_reduce(1, whole([0]), ones(1, 1), "foo"), RuntimeError),
    "clamp": (lambda: ones(2).clamp(), (RuntimeError, ValueError)),
    "topk": (lambda: ones(2).topk(3), RuntimeError),
    "nothing to choose": (lambda: ones(0).max(), (RuntimeError, ValueError)),
    "no line to choose from": (lambda: ones(2, 0).amax(1), (IndexError, RuntimeError)),
    "view": (lambda: ones(2, 3).T.view(6), RuntimeError),
    "whole numbers": (lambda: whole(1).add_(0.5), RuntimeError),
    "bits of floats": (lambda: ones(2) & ones(2), (RuntimeError, NotImplementedError)),
    "devices": (lambda: F.embedding(torch.tensor([1]), ones(4, 4)), RuntimeError),
    "devices of a list": (lambda: torch.cat([ones(2), ONES(2)]), RuntimeError),
    "devices of a target": (lambda: torch.add(ones(2), ones(2), out=ONES(2)), RuntimeError),
    "complex": (lambda: ones(2) * 1j, (RuntimeError, NotImplementedError)),
    "float64": (lambda: ones(2).double(), NotImplementedError),
    "sparse": (lambda: torch.eye(3).to_sparse().to("spyre"), NotImplementedError),
    "quantised": (lambda: torch.quantize_per_tensor(ones(3), 0.1, 0, torch.qint8), NotImplementedError),
}  # fmt: skip


def works() -> None:
    x = torch.arange(6.0)
    assert torch.equal((x.to("spyre") + 1).cpu(), x + 1)


@pytest.mark.parametrize("name", VALUES)
def test_values(name: str) -> None:
    try:
        with pytest.raises((IndexOutOfRange, RuntimeError)):
            VALUES[name]()
            torch.spyre.synchronize()
    finally:
        torch.spyre.reset()
    works()


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    call, kind = CALLS[name]
    with pytest.raises(kind):
        call()
    works()


@pytest.mark.parametrize(
    "call, kind",
    [
        (lambda x, places: F.embedding(places, x), IndexError),
        (lambda x, places: x.index_select(0, places), IndexError),
        (lambda x, places: x.gather(0, places[:, None]), IndexError),
        (lambda x, places: x.scatter_add(0, places[:, None], x), IndexError),
        (lambda x, places: places // (places + 1), ZeroDivisionError),
    ],
)
def test_values_in_a_compiled_function(call: Callable[..., torch.Tensor], kind: type[Exception]) -> None:
    torch._dynamo.reset()
    try:
        with pytest.raises(kind):
            torch.compile(call, backend="spyre", dynamic=False)(ones(4, 4), whole(-1, 1))
            torch.spyre.synchronize()
    finally:
        torch.spyre.reset()
    works()


@pytest.mark.parametrize("name", ["matmul", "a dim", "linear", "dtype of places", "devices"])
def test_calls_in_a_compiled_function(name: str) -> None:
    call, _ = CALLS[name]
    torch._dynamo.reset()
    with pytest.raises((RuntimeError, IndexError)):  # Dynamo wraps some
        torch.compile(call, backend="spyre", dynamic=False)()
    works()
