# SPDX-License-Identifier: Apache-2.0
"""python -m pytest tests/ops/test_convolution_windows.py: convolutions read windows in place and sum them in fp32.

Shapes, strides, dilations, paddings, groups and dtypes at random, against the CPU in float64.
"""

from __future__ import annotations

import oracle
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch_spyre

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d}


def as_card(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(oracle.dl16(x)).double()


@st.composite
def calls(draw: st.DrawFn) -> tuple[dict[str, object], list[int], list[int], torch.dtype]:
    dims = draw(st.sampled_from([1, 2, 2]))
    kernel = [draw(st.integers(1, 4)) for _ in range(dims)]
    form = {
        "stride": [draw(st.integers(1, 3)) for _ in range(dims)],
        "dilation": [draw(st.integers(1, 2)) for _ in range(dims)],
        "padding": [draw(st.integers(0, 2)) for _ in range(dims)],
    }
    channels, out = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    groups = draw(st.sampled_from([1, 1, channels]))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, form["dilation"], strict=True)]
    sizes = [draw(st.integers(r, r + 6)) for r in reach]
    x = [draw(st.integers(1, 3)), channels, *sizes]
    weight = [out if groups == 1 else channels, channels // groups, *kernel]
    dtype = draw(st.sampled_from([torch.float16, torch.float32]))
    return {**form, "groups": groups}, x, weight, dtype


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calls())
def test_windows(call: tuple[dict[str, object], list[int], list[int], torch.dtype]) -> None:
    form, size, kernel, dtype = call
    torch.manual_seed(0)
    x, weight = torch.randn(size).to(dtype), torch.randn(kernel).to(dtype)
    convolve = CONVOLUTIONS[len(size) - 2]
    found = convolve(x.to("spyre"), weight.to("spyre"), **form)
    a, b = (as_card(t) if dtype == torch.float16 else t.double() for t in (x, weight))
    want, terms = convolve(a, b, **form), convolve(a.abs(), b.abs(), **form)
    n = weight[0].numel() + 1
    sums = n * 2.0**-24 / (1 - n * 2.0**-24) * terms
    assert found.stride() == convolve(x, weight, **form).stride()
    if dtype == torch.float16:
        oracle.assert_close_dl16(found.cpu(), want.numpy(), extra=sums.numpy())
    else:
        assert ((found.cpu().double() - want).abs() <= sums + 2.0**-24 * want.abs()).all()


@pytest.mark.parametrize("groups", [1, 96])
def test_windows_are_not_copied(groups: int) -> None:
    """A module's weight lies as the product reads it, and neither it nor the windows are laid out anew."""
    module = torch.nn.Conv2d(96, 96, 3, padding=1, groups=groups, dtype=torch.float16).to("spyre")
    x = torch.nn.Conv2d(96, 96, 1, dtype=torch.float16).to("spyre")(torch.randn(1, 96, 6, 6).half().to("spyre"))
    torch_spyre.explain.start()
    earlier = len(torch_spyre.explain.last_kernels())
    with torch.no_grad():
        torch.compile(module)(x)
    ops = [op for record in torch_spyre.explain.last_kernels()[earlier:] for op in record.plan.kernel.ops]
    assert [len(op.reduced) for op in ops if op.op == "batchmatmul"] == [3]
    assert "ReStickifyOpHBM" not in [op.op for op in ops]


def test_eager_and_compiled_are_equal() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(20, 33, 3, 2, 1), torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1)).half()
    net, x = net.to("spyre"), torch.randn(2, 20, 13, 15).half().to("spyre")
    with torch.no_grad():
        assert torch.equal(net(x).cpu(), torch.compile(net)(x).cpu())


def test_sizes_that_vary() -> None:
    weight = torch.randn(8, 5, 3, 3).half()
    for n in (8, 9, 12, 17):
        x = torch.randn(1, 5, n, 7).half()
        a, b = as_card(x), as_card(weight)
        found = F.conv2d(x.to("spyre"), weight.to("spyre"), padding=1).cpu()
        extra = 46 * 2.0**-23 * F.conv2d(a.abs(), b.abs(), padding=1)
        oracle.assert_close_dl16(found, F.conv2d(a, b, padding=1).numpy(), extra=extra.numpy())


@pytest.mark.parametrize(("shape", "groups"), [((2, 20, 9, 11), 4), ((2, 12, 30), 12), ((1, 6, 5, 4, 3), 1)])
def test_group_norm(shape: tuple[int, ...], groups: int) -> None:
    x, weight, bias = torch.randn(shape) * 3 + 1, torch.randn(shape[1]), torch.randn(shape[1])
    found = F.group_norm(x.to("spyre"), groups, weight.to("spyre"), bias.to("spyre")).cpu()
    want = F.group_norm(x.double(), groups, weight.double(), bias.double())
    torch.testing.assert_close(found.double(), want, rtol=2.0**-18, atol=2.0**-18)
