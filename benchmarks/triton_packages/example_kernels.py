# SPDX-License-Identifier: Apache-2.0
"""The kernels of examples/triton_kernels, which cover the algorithms of Triton's tutorials."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from case import Case, Values

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "triton_kernels"))

import dropout
import flash_attention
import grouped_gemm
import layer_norm
import layer_norm_backward
import matmul
import persistent_matmul
import softmax
import vector_add


def some(*shapes: tuple[int, ...]) -> Any:
    return lambda: [torch.randn(shape) for shape in shapes]


def case(name: str, inputs: Any, call: Any, formula: Any, gradients: bool = False) -> Case:
    return Case(name, inputs, call, formula, gradients)


def grouped_inputs() -> Values:
    sizes = [5, 0, 70, 33]
    return [torch.randn(108, 100), torch.randn(4, 100, 130), torch.tensor([0, *sizes]).cumsum(0).int()]


def grouped(rows: Any, weights: Any, starts: Any) -> Any:
    return torch.cat([a @ b for a, b in zip(rows.split(starts.diff().tolist()), weights, strict=True)])


def attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v)


def causal(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


QKV = some((4, 200, 32), (4, 200, 32), (4, 200, 32))

CASES = [
    case("vector_add", some((10_000,), (10_000,)), vector_add.add, torch.add),
    case("softmax", some((100, 781)), softmax.softmax, lambda x: x.softmax(-1)),
    case("matmul, grouped order", some((300, 200), (200, 250)), matmul.multiply, torch.matmul),
    # What is dropped follows from Triton's random numbers, which the interpreter's column checks.
    case("dropout, p = 0", some((5000,)), lambda x: dropout.dropout(x, 0.0, 42), lambda x: x),
    case(
        "layer_norm",
        some((100, 300), (300,), (300,)),
        lambda *a: layer_norm.layer_norm(*a)[0],
        lambda x, w, b: F.layer_norm(x, (300,), w, b),
    ),
    case(
        "layer_norm, forward and backward",
        some((100, 300), (300,), (300,)),
        layer_norm_backward.LayerNorm.apply,
        lambda x, w, b: F.layer_norm(x, (300,), w, b),
        True,
    ),
    case("flash_attention", QKV, flash_attention.attention, attention),
    case("flash_attention, causal", QKV, lambda *a: flash_attention.attention(*a, causal=True), causal),
    case("persistent_matmul", some((300, 200), (200, 450)), persistent_matmul.multiply, torch.matmul),
    case("grouped_gemm", grouped_inputs, grouped_gemm.multiply, grouped),
]
