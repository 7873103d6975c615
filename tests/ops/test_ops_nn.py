# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_ops_nn.py
"""Convolution, pooling, norms, attention and products on the card, with their gradients; small models train there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from op_cases import check, close
from torch import nn

from torch_spyre import knobs
from torch_spyre.ops import fallbacks
from torch_spyre.predict import timing_only

MODES = ("eager", "compiled")
generator = torch.Generator().manual_seed(6)


def floats(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=generator)


IMAGE, LINE = floats(2, 6, 9, 11), floats(2, 6, 20)
Q, K, V = floats(2, 8, 5, 64), floats(2, 8, 7, 64), floats(2, 8, 7, 64)
MASK = torch.rand(2, 1, 5, 7, generator=generator) > 0.3
COUNTED = torch.tensor([[1, 2, 2], [4, 3, 2]])
CLASSES, WEIGHTS = torch.arange(15).reshape(5, 3) % 10, torch.arange(1, 11) / 8
sdpa = F.scaled_dot_product_attention
CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), (IMAGE, floats(8, 6, 3, 3), floats(8))),
    "conv2d_sparse": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=(1, 2), dilation=2),
        (IMAGE, floats(8, 6, 3, 3)),
    ),
    "conv2d_groups": (lambda x, w: F.conv2d(x, w, groups=3), (IMAGE, floats(9, 2, 3, 3))),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=2), (LINE, floats(8, 6, 5), floats(8))),
    "conv1d_depthwise": (lambda x, w: F.conv1d(x, w, groups=6, padding=3), (LINE, floats(6, 1, 4))),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1),
        (IMAGE, floats(6, 8, 3, 3), floats(8)),
    ),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), (IMAGE,)),
    "avg_pool1d_ceil": (lambda x: F.avg_pool1d(x, 7, 3, 2, ceil_mode=True), (LINE[..., :18],)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), (IMAGE,)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), (LINE,)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (70,), w, b), (floats(5, 70), floats(70), floats(70))),
    "layer_norm_two_dims": (lambda x: F.layer_norm(x, (6, 70)), (floats(5, 6, 70),)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (70,), w), (floats(5, 70), floats(70))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 3, w, b), (IMAGE, floats(6), floats(6))),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), (IMAGE,)),
    "attention": (sdpa, (Q, K, V)),
    "attention_causal": (lambda q, k, v: sdpa(q, k, v, is_causal=True), (Q, Q + 1, Q * 2)),
    "attention_masked": (lambda q, k, v: sdpa(q, k, v, MASK.to(q.device)), (Q, K, V)),
    "attention_groups": (lambda q, k, v: sdpa(q, k, v, enable_gqa=True), (Q, K[:, :2], V[:, :2])),
    "attention_decode": (sdpa, (Q[:, :, :1], K, V)),
    "einsum": (lambda a, b: torch.einsum("bij,kj->bik", a, b), (floats(3, 4, 65), floats(7, 65))),
    "baddbmm": (
        lambda a, b, c: torch.baddbmm(a, b, c, alpha=0.5),
        (floats(3, 4, 6), floats(3, 4, 5), floats(3, 5, 6)),
    ),
    "bmm_transposed": (
        lambda a, b: torch.bmm(a.transpose(1, 2), b.transpose(1, 2)),
        (floats(3, 5, 4), floats(3, 6, 5)),
    ),
    "matmul_broadcast": (torch.matmul, (floats(3, 1, 4, 65), floats(2, 65, 5))),
    "mv": (torch.mv, (floats(5, 70), floats(70))),
    "cdist": (torch.cdist, (floats(5, 7), floats(4, 7))),
    "embedding_bag_of_one": (lambda w: F.embedding(torch.arange(4, device=w.device), w), (floats(9, 70),)),
    "embedding_scaled_by_count": (
        lambda w: F.embedding(COUNTED.to(w.device), w, padding_idx=1, scale_grad_by_freq=True),
        (floats(9, 70),),
    ),
    "weight_norm": (torch._weight_norm, (floats(6, 4, 3), floats(6, 1, 1))),
    "weight_norm_of_columns": (lambda v, g: torch._weight_norm(v, g, 1), (floats(6, 70), floats(1, 70))),
    "cross_entropy": (
        lambda x: F.cross_entropy(x, torch.arange(5, device=x.device)),
        (floats(5, 10),),
    ),
    "cross_entropy_smoothed_and_weighted": (
        lambda x: F.cross_entropy(x, CLASSES.to(x.device), WEIGHTS.to(x), ignore_index=2, label_smoothing=0.1),
        (floats(5, 10, 3),),
    ),
    "conv_transpose1d_padded_beyond_the_stride": (
        lambda x, w: F.conv_transpose1d(x, w, stride=2, output_padding=2, dilation=3),
        (LINE, floats(6, 8, 3)),
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_forward(name: str, mode: str) -> None:
    call, inputs = CASES[name]
    check(call, *inputs, mode=mode)


def gradients(call: Callable[..., Any], inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    inputs = [x.detach().requires_grad_() for x in inputs]
    result = call(*inputs)
    weight = (torch.arange(result.numel()) % 5 - 2).reshape(result.shape).to(result.dtype).to(result.device)
    return torch.autograd.grad(result, inputs, weight)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str, mode: str) -> None:
    call, inputs = CASES[name]
    wanted = gradients(call, [x.double() for x in inputs])
    if mode == "compiled":
        torch._dynamo.reset()
        call = torch.compile(call, backend="spyre", fullgraph=True, dynamic=False)
    with fallbacks.disabled():
        found = gradients(call, [x.to("spyre") for x in inputs])
    for got, want in zip(found, wanted, strict=True):
        close(got, want.float())


def test_half_precision_convolution() -> None:
    check(lambda x, w: F.conv2d(x, w, padding=1), IMAGE.half(), (floats(8, 6, 3, 3) / 8).half())


def test_fp8_matmul() -> None:
    a, b = floats(16, 128).to(torch.float8_e4m3fn), floats(32, 128).to(torch.float8_e4m3fn)
    one = torch.tensor(0.5)
    got = torch._scaled_mm(a.to("spyre"), b.to("spyre").t(), one.to("spyre"), one.to("spyre"), out_dtype=torch.float16)
    close(got, (a.double() @ b.double().t() / 4).half())


def test_key_and_value_heads_are_not_repeated() -> None:
    """Grouped attention reads each head in place: nothing of the expanded size is stored."""
    from torch_spyre._inductor import compile as stages

    sizes: list[int] = []
    original = stages.plan

    def spy(graph: Any, inputs: Any, *how: Any) -> Any:
        planned = original(graph, inputs, *how)
        sizes.extend(b.numel for b in planned.graph.buffers.values() if b.kind == "temp")
        return planned

    q, k = floats(1, 32, 8, 64).half(), floats(1, 4, 256, 64).half()
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "plan", spy)
        patch.setattr("torch_spyre.runtime.cache.load", lambda entry: None)
        call = torch.compile(lambda q, k: sdpa(q, k, k, enable_gqa=True), backend="spyre", dynamic=False)
        call(q.to("spyre"), k.to("spyre"))
    assert sizes and max(sizes) < 32 * 256 * 64


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_small_model_learns(optimizer: str, mode: str) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 4)
    ).to("spyre")
    x, y = torch.randn(16, 1, 8, 8).to("spyre"), (torch.arange(16) % 4).to("spyre")
    stepper = OPTIMIZERS[optimizer](model.parameters())
    torch._dynamo.reset()
    forward = torch.compile(model, backend="spyre") if mode == "compiled" else model
    losses = []
    for _ in range(12):
        stepper.zero_grad()
        loss = F.cross_entropy(forward(x), y)
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize("mode", MODES)
def test_maximum_pooling_of_whole_numbers(mode: str) -> None:
    """The neutral element of int64 has no place on the card; the values have."""
    values = torch.randint(-9, 9, (2, 3, 7, 8), generator=generator)
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), values, mode=mode)


@pytest.mark.parametrize("inference", [False, True])
def test_batch_norm_of_no_batch(inference: bool) -> None:
    module = nn.BatchNorm1d(9).to("spyre")
    with torch.inference_mode(inference):
        result = module(torch.randn(0, 9, 4, device="spyre"))
    assert result.shape == (0, 9, 4) and module.running_var.cpu().tolist() == [1] * 9
    if not inference:
        result.sum().backward()
        assert module.weight.grad.cpu().tolist() == [0] * 9


# Maximum pooling

POOLS: dict[str, tuple[int, dict[str, Any]]] = {
    "3d": (3, {"kernel_size": 3, "stride": 2, "padding": 1}),
    "3d, ceil": (3, {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    "3d, uneven": (3, {"kernel_size": (2, 4, 4), "stride": (1, 2, 3), "padding": (1, 2, 2)}),
    "3d, dilated": (3, {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2}),
    "2d": (2, {"kernel_size": 6, "stride": 2, "padding": 3}),
    "2d, ceil": (2, {"kernel_size": (4, 8), "stride": 3, "ceil_mode": True}),
}


@pytest.mark.parametrize("name", POOLS)
def test_large_windows_of_maximum_pooling(name: str) -> None:
    """Values and places as on the CPU: ties, NaN, and windows of nothing but -inf and padding."""
    dims, form = POOLS[name]
    x = torch.randint(-5, 6, (2, 3, 9, 10, 11)[: dims + 2]).float()
    x[0, 0, :4, :4] = -math.inf
    x[1, 1, 3, 3] = math.nan
    pool = {2: F.max_pool2d, 3: F.max_pool3d}[dims]
    want, found = (pool(v, return_indices=True, **form) for v in (x, x.to("spyre")))
    assert torch.equal(found[1].cpu(), want[1])
    torch.testing.assert_close(found[0].cpu(), want[0], rtol=0, atol=0, equal_nan=True)


def test_large_maximum_pooling_has_a_plan() -> None:
    """Windows are not written out in memory, where three elements take a stick."""
    with timing_only():
        x = torch.empty(2, 8, 64, 64, 64, dtype=torch.float16, device="spyre")
        assert F.max_pool3d(x, 3, 2, 1).shape == (2, 8, 32, 32, 32)


def test_positions_of_long_rows_fit_the_scratchpad() -> None:
    """On one core: more elements than its scratchpad holds."""
    n = 600_001
    x = torch.arange(n).remainder(1000).float()
    with knobs.patch(sencores=1):
        value, place = F.max_pool1d(x.reshape(1, 1, n).to("spyre"), 1, return_indices=True)
        assert torch.equal(value.cpu().flatten(), x) and torch.equal(place.cpu().flatten(), torch.arange(n))
        assert torch.equal(torch.arange(n, device="spyre").cpu(), torch.arange(n))
