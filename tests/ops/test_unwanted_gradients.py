# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ops/test_unwanted_gradients.py: ops with an output_mask return None for what it omits, as on the CPU.

DTensor looks: it expects nothing where its rule for the op says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

aten = torch.ops.aten
Call = Callable[[str, list[bool]], tuple[Any, ...]]


def values(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


def layer_norm(device: str, mask: list[bool]) -> tuple[Any, ...]:
    grad, x, weight = (values(*size).to(device) for size in ((6, 70), (6, 70), (70,)))
    _, mean, rstd = aten.native_layer_norm(x, [70], weight, weight, 1e-5)
    return aten.native_layer_norm_backward(grad, x, [70], mean, rstd, weight, weight, mask)


def group_norm(device: str, mask: list[bool]) -> tuple[Any, ...]:
    grad, x, weight = (values(*size).to(device) for size in ((2, 4, 3, 3), (2, 4, 3, 3), (4,)))
    _, mean, rstd = aten.native_group_norm(x, weight, weight, 2, 4, 9, 2, 1e-5)
    return aten.native_group_norm_backward(grad, x, mean, rstd, weight, 2, 4, 9, 2, mask)


def batch_norm(device: str, mask: list[bool]) -> tuple[Any, ...]:
    grad, x, weight = (values(*size).to(device) for size in ((2, 4, 3, 3), (2, 4, 3, 3), (4,)))
    _, mean, rstd = aten.native_batch_norm(x, weight, weight, None, None, True, 0.1, 1e-5)
    return aten.native_batch_norm_backward(grad, x, weight, None, None, mean, rstd, True, 1e-5, mask)


def convolution(device: str, mask: list[bool]) -> tuple[Any, ...]:
    grad, x, weight = (values(*size).to(device) for size in ((2, 4, 3, 3), (2, 4, 3, 3), (4, 4, 3, 3)))
    return aten.convolution_backward(grad, x, weight, [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)


@pytest.mark.parametrize("call", [layer_norm, group_norm, batch_norm, convolution])
@pytest.mark.parametrize("mask", [[True, False, False], [False, True, True], [True, True, False]])
def test_what_the_mask_leaves_out_is_no_tensor(call: Call, mask: list[bool]) -> None:
    for expected, found in zip(call("cpu", mask), call("spyre", mask), strict=True):
        assert (found is None) == (expected is None)
        if expected is not None:
            torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_sizes_that_vary() -> None:
    """From the third size on, the plan is one for a bucket of sizes."""
    for rows in (3, 5, 7, 9):
        grad, x = values(rows, 70).to("spyre"), values(rows, 70).to("spyre")
        weight = torch.ones(70, device="spyre")
        _, mean, rstd = aten.native_layer_norm(x, [70], weight, weight, 1e-5)
        found = aten.native_layer_norm_backward(grad, x, [70], mean, rstd, weight, weight, [True, False, False])
        assert found[0].shape == (rows, 70) and found[1] is None and found[2] is None
