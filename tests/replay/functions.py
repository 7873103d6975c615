# SPDX-License-Identifier: Apache-2.0
"""The functions of the replay corpus: name -> (function, shapes of its inputs). They are never removed or changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Shape = tuple[Any, ...]


def make(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the card. A shape that begins with "index" holds int64 numbers, with "mask" booleans."""
    generator = torch.Generator().manual_seed(0)
    if shape and shape[0] == "index":
        return torch.randint(0, shape[1], shape[2:], generator=generator).to("spyre")
    if shape and shape[0] == "mask":
        return (torch.rand(shape[1:], generator=generator) > 0.5).to("spyre")
    return torch.randn(shape, generator=generator).to(dtype).to("spyre")


def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[1:5].add_(y[1:5])
    x[:, 3] = 0
    return x


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return (F.silu(x @ gate) * (x @ up)) @ down


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Shape, ...]]] = {
    "add": (torch.add, ((128, 256), (128, 256))),
    "add_odd": (torch.add, ((67, 131), (131,))),
    "add_broadcast": (torch.add, ((8, 1, 192), (1, 33, 192))),
    "scalar": (lambda x: (x * 2 + 1) / 3, ((5, 7, 200),)),
    "gelu": (F.gelu, ((64, 512),)),
    "exp_log": (lambda x: (x.abs() + 1).log().exp(), ((33, 100),)),
    "where": (lambda m, x, y: torch.where(m, x, y), (("mask", 40, 70), (40, 70), (40, 70))),
    "clamp_compare": (lambda x: x.clamp(-1, 1) > 0.5, ((129, 65),)),
    "cast": (lambda x: x.float().half().to(torch.int32), ((64, 130),)),
    "transpose": (lambda x: x.t().contiguous(), ((200, 300),)),
    "permute": (lambda x: x.permute(2, 0, 1).contiguous(), ((6, 70, 130),)),
    "reshape": (lambda x: x.reshape(7, 60, 10) + 1, ((70, 60),)),
    "cat": (lambda x, y: torch.cat([x, y], -1), ((20, 70), (20, 33))),
    "stack_flip_roll": (lambda x: torch.stack([x.flip(0), x.roll(3, 1)]), ((20, 70),)),
    "pad": (lambda x: F.pad(x, (3, 5, 1, 2)), ((9, 64),)),
    "slice_step": (lambda x: x[2:60:3, 5:] * 2, ((64, 100),)),
    "written": (written, ((16, 80), (16, 80))),
    "sum_last": (lambda x: x.sum(-1), ((96, 400),)),
    "sum_first": (lambda x: x.sum(0), ((96, 400),)),
    "mean_all": (torch.mean, ((96, 400),)),
    "amax_argmax": (lambda x: (x.amax(-1), x.argmax(-1)), ((64, 200),)),
    "var": (lambda x: x.var(-1), ((64, 200),)),
    "cumsum": (lambda x: x.cumsum(-1), ((32, 100),)),
    "softmax": (lambda x: x.softmax(-1), ((512, 1024),)),
    "softmax_first": (lambda x: x.softmax(0), ((64, 128),)),
    "log_softmax": (lambda x: x.log_softmax(-1), ((77, 500),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (256,), w, b), ((128, 256), (256,), (256,))),
    "rms_norm": (rms_norm, ((128, 2048), (2048,))),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), ((4, 8, 6, 6),)),
    "matmul": (torch.matmul, ((512, 1024), (1024, 512))),
    "matmul_row": (torch.matmul, ((1, 4096), (4096, 4096))),
    "matmul_odd": (torch.matmul, ((67, 129), (129, 200))),
    "linear": (F.linear, ((64, 512), (1024, 512), (1024,))),
    "bmm": (torch.bmm, ((8, 64, 128), (8, 128, 64))),
    "matmul_t": (lambda x, y: x @ y.transpose(-1, -2), ((4, 64, 128), (4, 96, 128))),
    "attention": (attention, ((1, 8, 128, 64), (1, 8, 128, 64), (1, 8, 128, 64))),
    "attention_row": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        ((1, 8, 1, 64),) + ((1, 8, 300, 64),) * 2,
    ),
    "mlp": (mlp, ((128, 512), (512, 1376), (512, 1376), (1376, 512))),
    "softmax_relu_matmul": (lambda x, w: torch.relu(x @ w).softmax(-1), ((512, 1024), (1024, 4096))),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), ((2, 16, 14, 14), (32, 16, 3, 3))),
    "conv1d": (lambda x, w: F.conv1d(x, w, stride=2), ((2, 8, 100), (16, 8, 5))),
    "max_pool": (lambda x: F.max_pool2d(x, 2), ((2, 8, 16, 16),)),
    "avg_pool": (lambda x: F.adaptive_avg_pool2d(x, 1), ((2, 8, 16, 16),)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2), ((1, 4, 8, 8),)),
    "embedding": (F.embedding, (("index", 1000, 4, 17), (1000, 256))),
    "gather": (lambda i, x: x.gather(1, i), (("index", 100, 20, 30), (20, 100))),
    "index_select": (lambda i, x: x.index_select(0, i), (("index", 50, 11), (50, 130))),
    "index_put": (lambda i, x, v: x.index_put((i,), v), (("index", 50, 11), (50, 130), (11, 130))),
    "scatter_add": (lambda i, x, v: x.scatter_add(0, i, v), (("index", 50, 11, 130), (50, 130), (11, 130))),
    "sort": (lambda x: x.sort(-1), ((8, 300),)),
    "topk": (lambda x: x.topk(5), ((16, 1000),)),
    "mask": (lambda m, x: x.masked_fill(m, -1), (("mask", 40, 70), (40, 70))),
    "tril": (torch.tril, ((70, 70),)),
    "dropout": (lambda x: F.dropout(x, 0.5), ((64, 100),)),
    "cross_entropy": (lambda t, x: F.cross_entropy(x, t), (("index", 100, 32), (32, 100))),
    "six_dims": (lambda x: x.permute(5, 0, 2, 1, 4, 3) * 2, ((2, 3, 4, 5, 6, 7),)),
    "empty": (lambda x: x[:0] + 1, ((4, 5),)),
    "zero_dims": (lambda x: x * x + 1, ((),)),
}
