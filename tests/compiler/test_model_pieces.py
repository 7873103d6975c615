# SPDX-License-Identifier: Apache-2.0
# pytest tests/compiler/test_model_pieces.py
"""Pieces of models as libraries write them: caches set through slices, numbers as host tensors, experts counted."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from op_cases import check

from torch_spyre.ops import fallbacks

MODES = ("eager", "compiled")
generator = torch.Generator().manual_seed(11)


def floats(*size: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*size, generator=generator).to(dtype)


def assigned(cache: torch.Tensor, place: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    cache = cache.clone()
    cache[:, :, place] = new
    return cache


@pytest.mark.parametrize("mode", MODES)
def test_cache_assigned_at_an_index_behind_slices(mode: str) -> None:
    check(assigned, floats(2, 3, 17, 24), torch.tensor([5, 9]), floats(2, 3, 2, 24), mode=mode)


JOINED = {
    "flat": (lambda x: x.t().reshape(-1)[:13] * 2, (floats(8, 2),)),
    "sticks": (lambda x: x.t().reshape(-1)[:201] * 2, (floats(70, 3),)),
    "broadcast": (lambda x, y: x.t().reshape(-1)[:13] + y, (floats(8, 2, dtype=torch.float32), floats(5, 13))),
    "chunks_of_a_scan": (
        lambda x, y: (x.cumsum(-1).exp().permute(0, 2, 3, 1)[..., None] * y).reshape(2, 16, 128)[:, :13] + 1,
        (floats(2, 8, 2, 8, dtype=torch.float32), floats(2, 2, 8, 8, 16, dtype=torch.float32)),
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", JOINED)
def test_slice_that_ends_inside_joined_dims(case: str, mode: str) -> None:
    call, inputs = JOINED[case]
    check(call, *inputs, mode=mode)


HOST_NUMBER_FIRST = """
import torch
from torch_spyre.ops import fallbacks
ops = (torch.mul, torch.sub, torch.div, torch.pow, torch.maximum, torch.lt, lambda s, x: torch.where(x > 1, s, x))
s, x = torch.tensor(0.5), torch.rand(3, 70, generator=torch.Generator().manual_seed(0)) + 0.5
with fallbacks.disabled():
    results = torch.compile(lambda s, x: [op(s, x) for op in ops], fullgraph=True)(s, x.to("spyre"))
for op, y in zip(ops, results, strict=True):
    assert y.device.type == "spyre", y.device
    torch.testing.assert_close(y.cpu(), op(s, x))
"""


def test_host_number_as_first_operand_of_compiled_code() -> None:
    """In a process of its own: code for the host would read the card's tensor by its address and end the process."""
    done = subprocess.run([sys.executable, "-c", HOST_NUMBER_FIRST], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr


def test_foreach_by_a_number_stays_on_the_card() -> None:
    host = [floats(3, 4, dtype=torch.float32), floats(5, dtype=torch.float32)]
    card = [x.to("spyre") for x in host]
    with fallbacks.disabled():
        torch._foreach_mul_(card, 0.9)
    torch._foreach_mul_(host, 0.9)
    for a, b in zip(card, host, strict=True):
        assert torch.equal(a.cpu(), b)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_experts_are_counted(dtype: torch.dtype) -> None:
    experts = torch.randint(0, 9, (50,), generator=generator)  # the last one lies outside and is dropped
    with fallbacks.disabled():
        counted = torch.histc(experts.to(dtype).to("spyre"), bins=8, min=0, max=7)
    assert counted.dtype == dtype and counted.device.type == "spyre"
    assert torch.equal(counted.cpu().long(), torch.bincount(experts, minlength=8)[:8])


@pytest.mark.parametrize(("bins", "low", "high"), [(10, -1.0, 2.0), (3, 0.0, 0.5), (64, -3.0, 3.0)])
def test_a_histogram_counts_like_the_cpu(bins: int, low: float, high: float) -> None:
    x = torch.arange(-200, 300).float() / 128  # steps that fp32 computes exactly, ends included
    with fallbacks.disabled():
        assert torch.equal(torch.histc(x.to("spyre"), bins, low, high).cpu(), torch.histc(x, bins, low, high))


def test_padding_a_view_whose_strides_look_like_channels_last() -> None:
    x = torch.arange(192).reshape(2, 4, 8, 3).half()
    expected = torch.nn.functional.pad(x.permute(0, 3, 1, 2), (0, 0, 0, 1))
    assert torch.equal(torch.nn.functional.pad(x.to("spyre").permute(0, 3, 1, 2), (0, 0, 0, 1)).cpu(), expected)
