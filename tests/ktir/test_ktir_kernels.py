# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ktir/test_ktir_kernels.py: the kernels in tests/support/ktir/ give what NumPy gives in float64.

Inputs are drawn in the card's own 16-bit format, so that only the kernel rounds. Tolerances are in units of that
format's spacing at the size of the largest result.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from xdsl.printer import Printer

from torch_spyre import ktir

FOLDER = Path(__file__).parents[1] / "support" / "ktir"
SPACING = 2.0**-10  # of the 16-bit format, relative

Arrays = dict[str, Any]


def half(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> torch.Tensor:
    """Values that both float16 and the card's format hold exactly."""
    values = rng.standard_normal(shape) * scale
    steps = np.exp2(np.floor(np.log2(np.abs(values) + 1e-30)) - 8)
    return torch.from_numpy(np.round(values / steps) * steps).half()


def f64(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy()


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layernorm(x: np.ndarray, w: np.ndarray, b: np.ndarray, eps: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * w + b


def rmsnorm(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w


def vector_add(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    a, b = half(rng, 4096), half(rng, 4096)
    return {"a": a, "b": b, "c": torch.zeros(4096).half()}, {"c": f64(a) + f64(b)}


def vector_add_dynamic(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    a, b = torch.randn(1024), torch.randn(1024)
    c = torch.full((1024,), 7.0)
    expected = np.where(np.arange(1024) < 300, f64(a) + f64(b), 7.0)
    return {"a": a, "b": b, "c": c, "n": 300}, {"c": expected}


def vector_add_symbols(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    a, b = half(rng, 4096), half(rng, 4096)
    expected = np.where(np.arange(4096) < 2500, f64(a) + f64(b), 7.0)
    return {"a": a, "b": b, "c": torch.full((4096,), 7.0).half(), "length": 2500}, {"c": expected}


def softmax_rows(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = -half(rng, 64, 64, scale=3.0).abs()  # a maximum that starts from 0 would show
    return {"x": x, "y": torch.zeros(64, 64).half()}, {"y": softmax(f64(x))}


def softmax_large(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = half(rng, 4096, 1024)
    return {"input": x, "output": torch.zeros(4096, 1024).half()}, {"output": softmax(f64(x))}


def matmul_2x2(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    a, b = half(rng, 16, 64), half(rng, 64, 64)
    return {"a": a, "b": b, "c": torch.zeros(16, 64).half()}, {"c": f64(a) @ f64(b)}


def matmul_large(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    a, b = half(rng, 64, 2048), half(rng, 2048, 8192)
    return {"a": a, "b": b, "c": torch.zeros(64, 8192).half()}, {"c": f64(a) @ f64(b)}


def layernorm_blocks(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x, w, b = half(rng, 50, 512), half(rng, 512), half(rng, 512)
    arguments = {"x": x, "weight": w, "bias": b, "y": torch.zeros(50, 512).half(), "eps": 1e-5}
    return arguments, {"y": layernorm(f64(x), f64(w), f64(b), 1e-5)}


def layernorm_large(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x, w, b = half(rng, 1151, 8192), half(rng, 8192), half(rng, 8192)
    y, mean, rstd = torch.zeros(1151, 8192).half(), torch.zeros(1151), torch.zeros(1151)
    arguments = {"x": x, "weight": w, "bias": b, "y": y, "mean": mean, "rstd": rstd, "eps": 1e-5}
    wide = f64(x)
    expected = {"y": layernorm(wide, f64(w), f64(b), 1e-5), "mean": wide.mean(1)}
    return arguments, {**expected, "rstd": 1 / np.sqrt(wide.var(1) + 1e-5)}


def indexed_add(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x, table = half(rng, 2, 32, 8, 128), half(rng, 100, 8, 128)
    index = torch.from_numpy(rng.integers(0, 100, (2, 32)).astype(np.int32))
    arguments = {"x": x, "table": table, "index": index, "out": torch.zeros(2, 32, 8, 128).half()}
    return arguments, {"out": f64(x) + f64(table)[index.numpy()]}


def paged_attention(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    query, keys, values = half(rng, 8, 32, 128), half(rng, 64, 16, 8, 128), half(rng, 64, 16, 8, 128)
    table = torch.from_numpy(rng.permutation(64)[:8].astype(np.int32))
    k, v = (f64(cache)[table.numpy()].reshape(128, 8, 128) for cache in (keys, values))
    scores = np.einsum("tgrd,kgd->tgrk", f64(query).reshape(8, 8, 4, 128), k) / 128**0.5
    expected = np.einsum("tgrk,kgd->tgrd", softmax(scores), v).reshape(8, 32, 128)
    arguments = {"query": query, "key_cache": keys, "value_cache": values, "block_table": table}
    return {**arguments, "output": torch.zeros(8, 32, 128).half(), "scale": 128**-0.5}, {"output": expected}


def ring_reduce(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = half(rng, 4, 128)
    return {"x": x, "y": torch.zeros(4, 128).half()}, {"y": f64(x) + f64(x).sum(0)}


def ring_reduce_older(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = half(rng, 16, 128)
    sums = f64(x).reshape(4, 4, 128).sum(1, keepdims=True).repeat(4, 1).reshape(16, 128)
    return {"x": x, "y": torch.zeros(16, 128).half()}, {"y": sums}


def ksplit(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    p, v = half(rng, 1, 8192), half(rng, 8192, 128)
    return {"p": p, "v": v, "out": torch.zeros(1, 128).half()}, {"out": f64(p) @ f64(v)}


def rope(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x, cos, sin = half(rng, 8, 64, 128), half(rng, 64, 64, scale=0.5), half(rng, 64, 64, scale=0.5)
    a, b, c, s = f64(x)[..., :64], f64(x)[..., 64:], f64(cos), f64(sin)
    expected = np.concatenate([a * c - b * s, b * c + a * s], -1)
    return {"x": x, "cos": cos, "sin": sin, "out": torch.zeros(8, 64, 128).half()}, {"out": expected}


def swiglu(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x, gate, up = half(rng, 4, 64), half(rng, 64, 256, scale=0.2), half(rng, 64, 256, scale=0.2)
    down = half(rng, 256, 64, scale=0.2)
    g = f64(x) @ f64(gate)
    expected = (g / (1 + np.exp(-g)) * (f64(x) @ f64(up))) @ f64(down)
    arguments = {"x": x, "gate": gate, "up": up, "down": down, "out": torch.zeros(4, 64).half()}
    return arguments, {"out": expected}


def rmsnorm_case(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x, w = half(rng, 32, 512), half(rng, 512)
    arguments = {"x": x, "weight": w, "y": torch.zeros(32, 512).half(), "eps": 1e-6}
    return arguments, {"y": rmsnorm(f64(x), f64(w), 1e-6)}


def triton_style(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = half(rng, 16, 64)
    values, index = torch.zeros(16), torch.zeros(16, dtype=torch.int32)
    arguments = {"x_ptr": x, "values_ptr": values, "index_ptr": index, "rows": 4}
    return arguments, {"values_ptr": f64(x).max(1), "index_ptr": f64(x).argmax(1)}


def relayout(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = half(rng, 8, 32)
    wide = f64(x)
    outputs = {
        "gathered": torch.zeros(4, 8, 32).half(),
        "scattered": torch.zeros(8, 8).half(),
        "traded": torch.zeros(8, 32).half(),
        "reduced": torch.zeros(8, 8).half(),
    }
    expected = {
        "gathered": np.broadcast_to(wide, (4, 8, 32)),
        "scattered": wide[:, :8],
        "traded": wide,
        "reduced": wide.reshape(8, 4, 8).sum(1),
    }
    return {"x": x, **outputs}, expected


def distributed_view(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = half(rng, 256)
    swapped = np.concatenate([f64(x)[128:], f64(x)[:128]])
    return {"x": x, "y": torch.zeros(2, 256).half()}, {"y": np.stack([swapped, swapped])}


def topk(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = torch.from_numpy(rng.standard_normal((16, 96)).astype(np.float32))
    wide = f64(x)
    order = np.argsort(-wide, axis=1, kind="stable")[:, :4]
    outputs = {
        "sums": torch.zeros(16, 96),
        "places": torch.zeros(16, dtype=torch.int32),
        "values": torch.zeros(16),
        "top": torch.zeros(16, 4),
        "where": torch.zeros(16, 4, dtype=torch.int32),
    }
    expected = {
        "sums": wide.cumsum(1),
        "places": wide.argmax(1),
        "values": wide.max(1),
        "top": np.take_along_axis(wide, order, 1),
        "where": order,
    }
    return {"x": x, **outputs}, expected


# file -> arguments and results, tolerance in spacings of the 16-bit format
KERNELS: dict[str, tuple[Callable[[np.random.Generator], tuple[Arrays, Arrays]], float]] = {
    "vector_add": (vector_add, 1),
    "vector_add_dynamic": (vector_add_dynamic, 1e-3),
    "vector_add_symbols": (vector_add_symbols, 1),
    "softmax_rows": (softmax_rows, 6),
    "softmax_4096x1024": (softmax_large, 6),
    "matmul_2x2": (matmul_2x2, 6),
    "matmul_64x8192x2048": (matmul_large, 1),
    "layernorm_blocks": (layernorm_blocks, 1.5),
    "layernorm_1151x8192": (layernorm_large, 1.5),
    "indexed_add": (indexed_add, 1),
    "paged_attention": (paged_attention, 4),
    "ring_reduce": (ring_reduce, 4),
    "ring_reduce_older": (ring_reduce_older, 4),
    "ksplit": (ksplit, 1),
    "rope": (rope, 4),
    "swiglu": (swiglu, 4),
    "rmsnorm_4x1": (rmsnorm_case, 1.5),
    "rmsnorm_2x2": (rmsnorm_case, 1.5),
    "triton_style": (triton_style, 1e-3),
    "relayout": (relayout, 4),
    "distributed_view": (distributed_view, 1e-3),
    "topk": (topk, 1e-2),
}


def load(name: str) -> ktir.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ktir.load(FOLDER / f"{name}.mlir")


def assert_close(name: str, actual: np.ndarray, expected: np.ndarray, spacings: float) -> None:
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all(), f"{name} holds NaN or infinity"
    limit = spacings * SPACING * np.abs(expected).max()
    error = np.abs(actual - expected).max()
    assert error <= limit, f"{name}: error {error:.3g}, allowed {limit:.3g}"


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("where", ["cpu", "spyre"])
def test_kernel(name: str, where: str) -> None:
    make, spacings = KERNELS[name]
    arguments, expected = make(np.random.default_rng(7))
    given = {k: v.to(where) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    load(name).run(**given)
    for key, values in expected.items():
        assert_close(key, f64(given[key].cpu()), np.asarray(values, dtype=np.float64), spacings)
    for key, value in arguments.items():
        if isinstance(value, torch.Tensor) and key not in expected:
            assert torch.equal(given[key].cpu(), value), f"input {key} has changed"


@pytest.mark.parametrize("name", KERNELS)
def test_the_normalised_text_and_the_generic_form_give_the_same_program(name: str) -> None:
    module = load(name)
    stream = StringIO()
    Printer(stream, print_generic_format=True).print_op(module.op)
    values = {a.name: 4 for a in module.function().arguments if a.role == "integer"}
    binary = module.compile(**values).binary
    for text in (module.text, stream.getvalue() + "\n"):
        again = ktir.load(text)
        assert not again.warnings
        assert again.text == module.text
        assert again.compile(**values).binary == binary
