# SPDX-License-Identifier: Apache-2.0
"""Calls of every operator on tensors of a given size, for tests/planner/test_large_ops.py.

A call gets a maker of uninitialised card tensors and a shape; nothing is computed, so values do not matter. Operators
that the card leaves to the host (docs/operators.md) are not here: they need the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Shape = tuple[int, ...]
Call = Callable[[Shape, torch.dtype], Any]

FORMS = ("rows", "cube", "odd", "wide", "tall", "line")


def shape(form: str, elements: int) -> Shape:
    """About so many elements; the names say which dim is long."""
    match form:
        case "rows":
            return (elements // 4096, 4096)
        case "cube":
            return (32, elements // (32 * 512), 512)
        case "odd":
            return (7, elements // (7 * 333) | 1, 333)
        case "wide":
            return (33, elements // 33 | 1)
        case "tall":
            return (elements // 64, 64)
    return (elements,)


def new(*size: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.empty(size, dtype=dtype, device="spyre")


def places(*size: int) -> Tensor:
    """Indices; 0 is one in any table."""
    return torch.empty(size, dtype=torch.int64, device="spyre")


def _named(name: str) -> Callable[..., Any]:
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part) if part != "nn" else torch.nn
    return found  # type: ignore[no-any-return]


UNARY = """
    abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad erf erfc erfinv exp exp2 expm1 floor frac isfinite isinf
    isnan isneginf isposinf log log10 log1p log2 logit logical_not nan_to_num neg nn.functional.celu nn.functional.elu
    nn.functional.gelu nn.functional.hardshrink nn.functional.hardsigmoid nn.functional.hardswish
    nn.functional.hardtanh nn.functional.leaky_relu nn.functional.logsigmoid nn.functional.mish nn.functional.relu
    nn.functional.relu6 nn.functional.selu nn.functional.silu nn.functional.softplus nn.functional.softshrink
    nn.functional.softsign nn.functional.tanhshrink positive rad2deg reciprocal round rsqrt sgn sigmoid sign signbit sin
    sinc sinh sqrt square tan tanh trunc clone ones_like zeros_like
""".split()
BINARY = """
    add atan2 copysign div eq floor_divide fmax fmin fmod ge gt heaviside hypot isclose le logaddexp logaddexp2
    logical_and logical_or logical_xor lt maximum minimum mul ne pow remainder rsub sub xlogy
""".split()
BITS = "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split()
ALL_OR_ONE = "all amax amin any count_nonzero logsumexp mean nanmean nansum prod std sum var norm".split()
ONE_DIM = "argmax argmin cummax cummin cumprod cumsum log_softmax softmax max min median sort".split()
LOSSES = "binary_cross_entropy_with_logits huber_loss kl_div l1_loss mse_loss smooth_l1_loss".split()


def _on(f: Callable[..., Any], count: int, dtype: torch.dtype | None = None) -> Call:
    """A call on that many tensors of the shape."""
    return lambda s, t: f(*(new(*s, dtype=dtype or t) for _ in range(count)))


def _with_rows(f: Callable[..., Any]) -> Call:
    return lambda s, t: f(new(*s, dtype=t), new(s[-1], dtype=t))


def _over(f: Callable[..., Any], dim: int) -> Call:
    return lambda s, t: f(new(*s, dtype=t), dim=min(dim, len(s) - 1))


def calls() -> dict[str, Call]:
    """Name -> call on one large tensor (and as many more of its shape as it takes)."""
    found: dict[str, Call] = {}
    for name in UNARY:
        found[name] = _on(_named(name), 1)
    for name in BINARY:
        found[name] = _on(_named(name), 2)
        found[f"{name} of rows"] = _with_rows(_named(name))
    for name in BITS:
        found[name] = _on(_named(name), 2, torch.int32)
    for name in LOSSES:
        found[name] = _on(getattr(F, name), 2)
    for name in (*ALL_OR_ONE, *ONE_DIM):
        for dim in (0, 1, -1):
            found[f"{name} over {dim}"] = _over(_named(name), dim)
    for name in (*(n for n in ALL_OR_ONE if n != "logsumexp"), "argmax", "argmin"):
        found[f"{name} over all"] = _on(_named(name), 1)
    return {**found, **_moves(), **_others()}


def _moves() -> dict[str, Call]:
    def like(s: Shape) -> Tensor:
        return places(*s)

    return {
        "transpose": lambda s, t: new(*s, dtype=t).transpose(0, -1).contiguous(),
        "permute": lambda s, t: new(*s, dtype=t).permute(*reversed(range(len(s)))).contiguous(),
        "transpose 0 1": lambda s, t: new(*s, dtype=t).transpose(0, min(1, len(s) - 1)).contiguous(),
        "flat": lambda s, t: new(*s, dtype=t).transpose(0, -1).reshape(-1),
        "slice": lambda s, t: new(*s, dtype=t)[..., 3:].contiguous(),
        "steps": lambda s, t: new(*s, dtype=t)[..., ::3].contiguous(),
        "slice of rows": lambda s, t: new(*s, dtype=t)[5:] + 1,
        "flip 0": lambda s, t: new(*s, dtype=t).flip(0),
        "flip -1": lambda s, t: new(*s, dtype=t).flip(-1),
        "roll 0": lambda s, t: new(*s, dtype=t).roll(3, 0),
        "roll -1": lambda s, t: new(*s, dtype=t).roll(3, -1),
        "cat 0": lambda s, t: torch.cat([new(*s, dtype=t), new(*s, dtype=t)], 0),
        "cat -1": lambda s, t: torch.cat([new(*s, dtype=t), new(*s, dtype=t)], -1),
        "stack": lambda s, t: torch.stack([new(*s, dtype=t), new(*s, dtype=t)], -1 if len(s) > 1 else 0),
        "repeat": lambda s, t: new(*s, dtype=t).repeat(2, *([1] * (len(s) - 1))),
        "repeat and slice": lambda s, t: new(*s, dtype=t).repeat(2, *([1] * (len(s) - 1)))[7:] + 1,
        "repeat_interleave": lambda s, t: new(*s, dtype=t).repeat_interleave(2, 0),
        "pad": lambda s, t: F.pad(new(*s, dtype=t), (3, 5)),
        "tril": lambda s, t: new(*s, dtype=t).tril() if len(s) > 1 else None,
        "index_select 0": lambda s, t: new(*s, dtype=t).index_select(0, places(s[0])),
        "index_select -1": lambda s, t: new(*s, dtype=t).index_select(-1, places(s[-1])),
        "gather 0": lambda s, t: new(*s, dtype=t).gather(0, like(s)),
        "gather -1": lambda s, t: new(*s, dtype=t).gather(-1, like(s)),
        "take": lambda s, t: new(*s, dtype=t).take(places(1000)),
        "embedding": lambda s, t: F.embedding(places(s[0]), new(*s, dtype=t)) if len(s) == 2 else None,
        "scatter 0": lambda s, t: new(*s, dtype=t).scatter(0, like(s), new(*s, dtype=t)),
        "scatter -1": lambda s, t: new(*s, dtype=t).scatter(-1, like(s), new(*s, dtype=t)),
        "scatter_add 0": lambda s, t: new(*s, dtype=t).scatter_add(0, like(s), new(*s, dtype=t)),
        "index_add 0": lambda s, t: new(*s, dtype=t).index_add(0, places(s[0]), new(*s, dtype=t)),
        "index_copy -1": lambda s, t: new(*s, dtype=t).index_copy(-1, places(s[-1]), new(*s, dtype=t)),
        "index_fill": lambda s, t: new(*s, dtype=t).index_fill(0, places(9), 1.0),
        "index_put": lambda s, t: new(*s, dtype=t).index_put((places(100),), new(*s[1:], dtype=t)),
        "masked_fill": lambda s, t: new(*s, dtype=t).masked_fill(new(*s, dtype=torch.bool), 1.0),
        "masked_scatter": lambda s, t: new(*s, dtype=t).masked_scatter(new(*s, dtype=torch.bool), new(*s, dtype=t)),
        "where": lambda s, t: torch.where(new(*s, dtype=torch.bool), new(*s, dtype=t), new(*s, dtype=t)),
        "convert": lambda s, t: new(*s, dtype=t).to(torch.float32 if t == torch.float16 else torch.float16),
        "to int": lambda s, t: new(*s, dtype=t).to(torch.int32),
        "copy_": lambda s, t: new(*s, dtype=t)[1:].copy_(new(*s, dtype=t)[:-1]),
        "fill_": lambda s, t: new(*s, dtype=t).fill_(2.0),
        "arange": lambda s, t: torch.arange(math.prod(s), dtype=torch.int32, device="spyre"),
        "rand": lambda s, t: torch.rand(*s, dtype=t, device="spyre"),
        "topk": lambda s, t: new(*s, dtype=t).topk(5, -1),
        "topk 0": lambda s, t: new(*s, dtype=t).topk(5, 0),
        "unfold": lambda s, t: new(*s, dtype=t).unfold(0, 64, 64).contiguous(),
    }


def _others() -> dict[str, Call]:
    def images(s: Shape, t: torch.dtype) -> Tensor:
        elements = math.prod(s)
        return new(max(1, elements // (64 * 112 * 112)), 64, 112, 112, dtype=t)

    def matrix(s: Shape, t: torch.dtype) -> Tensor:
        return new(*s, dtype=t) if len(s) > 1 else new(s[0] // 4096, 4096, dtype=t)

    def flat(s: Shape, t: torch.dtype) -> Tensor:
        return matrix(s, t).flatten(0, -2)

    return {
        "addcmul": lambda s, t: torch.addcmul(new(*s, dtype=t), new(*s, dtype=t), new(*s, dtype=t)),
        "lerp": lambda s, t: torch.lerp(new(*s, dtype=t), new(*s, dtype=t), 0.3),
        "clamp": lambda s, t: new(*s, dtype=t).clamp(0.1, 0.7),
        "glu": lambda s, t: F.glu(images(s, t)),
        "layer_norm": lambda s, t: F.layer_norm(new(*s, dtype=t), s[-1:]),
        "rms_norm": lambda s, t: F.rms_norm(new(*s, dtype=t), s[-1:]),
        "group_norm": lambda s, t: F.group_norm(images(s, t), 32),
        "batch_norm": lambda s, t: F.batch_norm(images(s, t), new(64, dtype=t), new(64, dtype=t), training=True),
        "instance_norm": lambda s, t: F.instance_norm(images(s, t)),
        "normalize": lambda s, t: F.normalize(new(*s, dtype=t), dim=-1),
        "linear": lambda s, t: F.linear(matrix(s, t), new(333, matrix(s, t).shape[-1], dtype=t)),
        "large weight": lambda s, t: F.linear(new(64, matrix(s, t).shape[-1], dtype=t), flat(s, t)),
        "matmul": lambda s, t: matrix(s, t) @ new(matrix(s, t).shape[-1], 130, dtype=t),
        "matmul from the right": lambda s, t: new(130, matrix(s, t).shape[-2], dtype=t) @ matrix(s, t),
        "mv": lambda s, t: flat(s, t).mv(new(matrix(s, t).shape[-1], dtype=t)),
        "dot": lambda s, t: new(*s, dtype=t).flatten().dot(new(*s, dtype=t).flatten()),
        "outer": lambda s, t: torch.outer(*(new(math.isqrt(math.prod(s)), dtype=t) for _ in range(2))),
        "bmm": lambda s, t: torch.bmm(new(32, 1, 2880, dtype=t), new(32, 2880, math.prod(s) // (32 * 2880), dtype=t)),
        "attention": lambda s, t: F.scaled_dot_product_attention(
            *(new(1, 32, math.isqrt(math.prod(s) // 32), 64, dtype=t) for _ in range(3))
        ),
        "cross_entropy": lambda s, t: F.cross_entropy(flat(s, t), places(len(flat(s, t)))),
        "conv2d": lambda s, t: F.conv2d(images(s, t), new(32, 64, 3, 3, dtype=t), padding=1),
        "avg_pool2d": lambda s, t: F.avg_pool2d(images(s, t), 2),
        "max_pool2d": lambda s, t: F.max_pool2d(images(s, t), 3, 2),
        "adaptive_avg_pool2d": lambda s, t: F.adaptive_avg_pool2d(images(s, t), 7),
        "interpolate": lambda s, t: F.interpolate(images(s, t), scale_factor=2.0),
        "pixel_shuffle": lambda s, t: F.pixel_shuffle(images(s, t), 4),
    }  # fmt: skip
