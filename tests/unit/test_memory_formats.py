# SPDX-License-Identifier: Apache-2.0
# pytest tests/unit/test_memory_formats.py
"""channels_last and other orders of strides: values and strides are those of the CPU, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

Call = Callable[[torch.Tensor], torch.Tensor]
LAST, LAST3 = torch.channels_last, torch.channels_last_3d


def flat(device: str) -> torch.Tensor:
    return (torch.arange(2 * 3 * 6 * 4) % 23 - 11).reshape(2, 3, 6, 4).to(torch.float32).to(device)


def ordered(device: str) -> torch.Tensor:
    return flat("cpu").contiguous(memory_format=LAST).to(device)


def weight(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(4, 3, 3, 3, device=x.device)


def agrees(call: Call, source: Callable[[str], torch.Tensor], compiled: bool = False) -> None:
    torch._dynamo.reset()
    want = call(source("cpu"))
    got = (torch.compile(call, dynamic=False) if compiled else call)(source("spyre"))
    assert got.stride() == want.stride()
    torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)


MADE: dict[str, Call] = {
    "to": lambda x: x.to(memory_format=LAST),
    "contiguous": lambda x: x.contiguous(memory_format=LAST),
    "3d": lambda x: x.reshape(1, 2, 3, 6, 4).contiguous(memory_format=LAST3),
    "clone": lambda x: x.clone(memory_format=LAST),
    "zeros_like": lambda x: torch.zeros_like(x, memory_format=LAST),
    "empty": lambda x: torch.empty(2, 3, 4, 5, device=x.device, memory_format=LAST).fill_(1),
    "resize": lambda x: x.new_empty(0).resize_(2, 3, 4, 5, memory_format=LAST).fill_(2),
    "permuted clone": lambda x: x.permute(3, 1, 0, 2).clone(),
    "permuted like": lambda x: torch.ones_like(x.permute(3, 1, 0, 2), dtype=torch.int32),
}
KEPT: dict[str, Call] = {
    "add": lambda x: x + 1,
    "convolution": lambda x: F.conv2d(x, weight(x), padding=1),
    "transposed": lambda x: F.conv_transpose2d(x, weight(x).transpose(0, 1), stride=2),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 1),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "max_unpool2d": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "back": lambda x: x.clone(memory_format=torch.contiguous_format),
}


@pytest.mark.parametrize("name", MADE)
def test_made(name: str) -> None:
    agrees(MADE[name], flat)


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    agrees(KEPT[name], ordered)


@pytest.mark.parametrize("call", [MADE["contiguous"], KEPT["convolution"], KEPT["adaptive_avg_pool2d"]])
def test_compiled(call: Call) -> None:
    agrees(call, ordered, compiled=True)


def test_a_format_of_another_rank() -> None:
    with pytest.raises(RuntimeError, match="required rank 4 tensor to use channels_last format"):
        torch.empty(2, 3, device="spyre", memory_format=LAST)


def test_gradients() -> None:
    def gradient(device: str) -> torch.Tensor:
        x = ordered(device).requires_grad_()
        F.max_unpool2d(*F.max_pool2d(F.conv2d(x, weight(x)), 2, return_indices=True), 2).square().sum().backward()
        assert x.grad is not None
        return x.grad

    want, got = gradient("cpu"), gradient("spyre")
    assert got.stride() == want.stride()
    torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)


def test_a_module_in_channels_last() -> None:
    layer = torch.nn.Conv2d(3, 4, 3).to("spyre", memory_format=LAST)
    assert layer.weight.is_contiguous(memory_format=LAST)
    assert layer(flat("spyre")).is_contiguous(memory_format=LAST)
