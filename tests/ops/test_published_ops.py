# SPDX-License-Identifier: Apache-2.0
# pytest tests/ops/test_published_ops.py
"""``torch.ops.spyre.*`` as published: eager and compiled on the card against the same op on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_spyre.ops.published import OPS

ops = torch.ops.spyre
NAMES = [schema.partition("(")[0] for schema in OPS]


def grid(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Different quarters, so that every format of the card holds them and no order is a matter of taste."""
    return (((torch.arange(48) * 29 % 48) - 20) / 4).reshape(6, 8).to(dtype).to(device)


def written(device: str, op: Callable[..., Any]) -> torch.Tensor:
    target = torch.zeros(8, 8, device=device)
    op(grid(device)[:4], target)
    return target


def scale(device: str) -> torch.Tensor:
    return torch.full((1,), 0.5, device=device)


def normed(device: str) -> torch.Tensor:
    x = grid(device)
    moments = ops.exx2(x, 1 / 8)
    return ops.layernormnorm(x, moments, ops.layernormscale(moments, 1e-5), torch.ones(8, device=device))


CALLS: dict[str, Callable[[str], Any]] = {
    "softplus": lambda d: ops.softplus(grid(d)),
    "gelu": lambda d: ops.gelu(grid(d)),
    "silu": lambda d: ops.silu(grid(d)),
    "logical_not": lambda d: ops.logical_not(grid(d)),
    "clamp": lambda d: ops.clamp(grid(d), -1, 2),
    "layer_norm": lambda d: ops.layer_norm(grid(d), [8]),
    "rms_norm": lambda d: ops.rms_norm(grid(d), [8], torch.ones(8, device=d), 1e-5),
    "exx2": lambda d: ops.exx2(grid(d), 1 / 8),
    "layernormscale": lambda d: ops.layernormscale(ops.exx2(grid(d), 1 / 8), 1e-5),
    "layernormnorm": normed,
    "topkvalue": lambda d: ops.topkvalue(grid(d), 3),
    "topkindex": lambda d: ops.topkindex(grid(d), 3),
    "batched_matmul": lambda d: ops.batched_matmul(grid(d).expand(2, 3, 6, 8), grid(d).t()),
    "restickify": lambda d: ops.restickify(grid(d).t()),
    "unfold": lambda d: ops.unfold(grid(d)[None, None], [2, 2], [1, 1], [0, 0], [1, 1]),
    "reshape_via_cpu": lambda d: ops.reshape_via_cpu(grid(d), [4, 12]),
    "to_dtype_cpu": lambda d: ops.to_dtype_cpu(grid(d), torch.float16),
    "qfp8ch": lambda d: ops.qfp8ch(grid(d, torch.float16)).to(torch.float16),
    "quantize_fp8_with_scale": lambda d: ops.quantize_fp8_with_scale(grid(d), scale(d)).to(torch.float16),
    "dequantize_fp8_with_scale": lambda d: ops.dequantize_fp8_with_scale(
        ops.qfp8ch(grid(d, torch.float16)), scale(d).half()
    ),
    "max_dim_int64_fallback": lambda d: ops.max_dim_int64_fallback((grid(d) * 4).long(), 1),
    "min_dim_int64_fallback": lambda d: ops.min_dim_int64_fallback((grid(d) * 4).long(), 0, True),
    "max_default_int64_fallback": lambda d: ops.max_default_int64_fallback((grid(d) * 4).long()),
    "constant": lambda d: ops.constant(2.5, torch.float32, d),
    "empty": lambda d: ops.empty([3, 4], torch.float16, d).shape,
    "copy_from_d2d": lambda d: written(d, lambda x, y: ops.copy_from_d2d(x, y[2:6])),
    "overwrite": lambda d: written(d, lambda x, y: ops.overwrite(x, y, [0], [3])),
    "overwrite_f": lambda d: ops.overwrite_f(grid(d)[:4], torch.zeros(8, 8, device=d), [0], [3]),
}


def same(got: Any, want: Any) -> None:
    if not isinstance(want, torch.Tensor):
        assert type(got) is type(want) and len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            same(a, b) if isinstance(b, torch.Tensor) else None
        return
    assert got.dtype == want.dtype and got.shape == want.shape
    if want.is_floating_point():  # a few units in the last place of fp32, at the size of the operands
        assert (got.cpu().double() - want.double()).abs().max() <= 2.0**-17
    else:
        assert torch.equal(got.cpu(), want)


def test_every_op_is_tried() -> None:
    assert sorted(CALLS) == sorted(NAMES)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", CALLS)
def test_eager(name: str) -> None:
    same(CALLS[name]("spyre"), CALLS[name]("cpu"))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", [n for n in CALLS if n != "empty"])
def test_compiled(name: str) -> None:
    torch._dynamo.reset()
    same(torch.compile(CALLS[name], dynamic=False)("spyre"), CALLS[name]("cpu"))


def test_overwrite_is_deprecated() -> None:
    with pytest.warns(FutureWarning, match="assign to a slice"):
        written("spyre", lambda x, y: ops.overwrite(x, y, [0], [3]))


def test_gradients() -> None:
    for call in (ops.silu, ops.softplus, lambda x: ops.layer_norm(x, [8])):
        x, y = grid("cpu").requires_grad_(), grid("spyre").requires_grad_()
        (call(x) ** 2).sum().backward()
        (call(y) ** 2).sum().backward()
        assert (y.grad.cpu() - x.grad).abs().max() <= 2.0**-15
