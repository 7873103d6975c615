# SPDX-License-Identifier: Apache-2.0
# make test-triton, or in its environment: pytest tests/triton_kernels/test_examples.py
"""Kernels of examples/triton_kernels against PyTorch in float64, rounded to the card's format, and the interpreter."""

from __future__ import annotations

import runpy
from pathlib import Path

import dropout
import flash_attention
import grouped_gemm
import layer_norm
import layer_norm_backward
import matmul
import persistent_matmul
import pytest
import softmax
import torch
import vector_add
from interpreted import Interpreter
from oracle import U32, assert_close_dl16, matmul_error

EXAMPLES = Path(__file__).parents[2] / "examples" / "triton_kernels"


def stored(*shape: int) -> torch.Tensor:
    """Random numbers that the card holds exactly: three significant digits of a binary fraction."""
    return (torch.randint(-255, 256, shape) / 128).half()


@pytest.mark.parametrize("length, block", [(1, 16), (1000, 256), (100_000, 1024)])
def test_vector_add(interpreter: Interpreter, length: int, block: int) -> None:
    left, right = stored(length), stored(length)
    found = vector_add.add(left.to("spyre"), right.to("spyre"), block).cpu()
    assert_close_dl16(found, left.double() + right.double())
    arguments = (left, right, torch.zeros_like(left), length)
    expected = interpreter(vector_add.add_blocks, (-(-length // block),), *arguments, BLOCK=block)[2]
    assert_close_dl16(found, expected.double(), extra=2.0**-11 * expected.double().abs().numpy())


@pytest.mark.parametrize("rows, columns, programs", [(3, 5, 32), (50, 781, 32), (100, 128, 7)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_softmax(interpreter: Interpreter, rows: int, columns: int, programs: int, dtype: torch.dtype) -> None:
    source = stored(rows, columns).to(dtype)
    found = softmax.softmax(source.to("spyre"), programs).cpu()
    expected = source.double().softmax(-1)
    room = 16 * U32 * expected.numpy() + columns * U32 * expected.numpy()  # exp, sum and quotient in float32
    grid, block = (min(programs, rows),), 1 << (columns - 1).bit_length()
    arguments = (torch.zeros_like(source), source, columns, columns, rows, columns)
    interpreted = interpreter(softmax.softmax_rows, grid, *arguments, BLOCK=block)[0]
    if dtype is torch.float16:
        assert_close_dl16(found, expected, extra=room)
        assert_close_dl16(found, interpreted.double(), extra=room + 2.0**-11 * expected.numpy() + 2.0**-24)
    else:
        for other in (expected, interpreted.double()):
            assert ((found.double() - other).abs() <= 2 * torch.from_numpy(room)).all()


@pytest.mark.parametrize("M, N, K", [(64, 64, 64), (100, 130, 70), (300, 33, 128)])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_matmul(interpreter: Interpreter, M: int, N: int, K: int, relu: bool, transposed: bool) -> None:
    left, right = stored(M, K), stored(N, K).t() if transposed else stored(K, N)
    placed = right.t().to("spyre").t() if transposed else right.to("spyre")
    found = matmul.multiply(left.to("spyre"), placed, relu).cpu()
    exact = left.double() @ right.double()
    room = matmul_error(left, right)
    assert_close_dl16(found, exact.relu() if relu else exact, extra=room)
    strides = (*left.stride(), *right.stride(), N, 1)
    sizes = {"BM": 64, "BN": 64, "BK": 64, "GROUP": 4, "RELU": relu}
    grid = (-(-M // 64) * -(-N // 64),)
    arguments = (left, right, torch.zeros(M, N).half(), M, N, K, *strides)
    interpreted = interpreter(matmul.multiply_blocks, grid, *arguments, **sizes)[2].double()
    assert_close_dl16(found, interpreted, extra=2 * room + 2.0**-11 * interpreted.abs().numpy())


@pytest.mark.parametrize("rows, columns, block", [(3, 40, 64), (40, 1000, 512), (33, 512, 128)])
def test_layer_norm(interpreter: Interpreter, rows: int, columns: int, block: int) -> None:
    source, weight, bias = stored(rows, columns), stored(columns), stored(columns)
    found = [t.cpu() for t in layer_norm.layer_norm(*(t.to("spyre") for t in (source, weight, bias)), block=block)]
    wide = source.double()
    mean, scale = wide.mean(1), 1 / (wide.var(1, unbiased=False) + 1e-5).sqrt()
    expected = (wide - mean[:, None]) * scale[:, None] * weight.double() + bias.double()
    terms = (wide.abs() + mean[:, None].abs()) * scale[:, None] * weight.double().abs() + bias.double().abs()
    room = (columns + 16) * U32 * terms.numpy()  # sums of a row in float32, then a few operations
    assert_close_dl16(found[0], expected, extra=room)
    zeros = (torch.zeros_like(source), torch.zeros(rows), torch.zeros(rows))
    arguments = (source, weight, bias, *zeros, columns, columns, 1e-5)
    interpreted = interpreter(layer_norm.normalise_rows, (rows,), *arguments, BLOCK=block)
    assert_close_dl16(found[0], interpreted[3].double(), extra=2 * room + 2.0**-11 * interpreted[3].abs().numpy())
    for mine, theirs, exact in zip(found[1:], interpreted[4:6], (mean, scale), strict=True):
        near = (columns + 16) * U32 * exact.abs().clamp(min=1)
        assert ((mine.double() - exact).abs() <= near).all() and ((mine - theirs).abs() <= 2 * near).all()


@pytest.mark.parametrize("probability", [0.0, 0.25, 0.9])
def test_dropout(interpreter: Interpreter, probability: float) -> None:
    source = torch.randn(5000)
    found = dropout.dropout(source.to("spyre"), probability, 42).cpu()
    arguments = (source, torch.zeros(5000), 5000, probability, 42)
    expected = interpreter(dropout.drop_blocks, (5,), *arguments, BLOCK=1024)[1]
    assert torch.equal(found == 0, expected == 0)
    # The interpreter computes 1 - p of the Python float; on the card p is a float32.
    torch.testing.assert_close(found, expected, rtol=(4 + probability / (1 - probability)) * U32, atol=0)


@pytest.mark.parametrize("heads, length, dim, block", [(3, 100, 32, 64), (1, 64, 64, 32), (2, 5, 16, 16)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_flash_attention(heads: int, length: int, dim: int, block: int, is_causal: bool) -> None:
    q, k, v = (torch.randn(heads, length, dim) for _ in range(3))
    found = flash_attention.attention(*(t.to("spyre") for t in (q, k, v)), causal=is_causal, block=block).cpu()
    wide = (t.double() for t in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=is_causal)
    assert ((found - expected).abs() <= (length + dim + 32) * U32 * v.abs().max() * 4).all()


@pytest.mark.parametrize("M, N, K", [(64, 64, 64), (300, 500, 70), (17, 130, 33)])
def test_persistent_matmul(M: int, N: int, K: int) -> None:
    left, right = stored(M, K), stored(K, N)
    found = persistent_matmul.multiply(left.to("spyre"), right.to("spyre")).cpu()
    assert_close_dl16(found, left.double() @ right.double(), extra=matmul_error(left, right))


@pytest.mark.parametrize("sizes", [[5, 0, 70, 33], [0, 0, 1], [64]])
def test_grouped_gemm(sizes: list[int]) -> None:
    starts = torch.tensor([0, *sizes]).cumsum(0).int()
    rows, weights = stored(sum(sizes), 50), stored(len(sizes), 50, 90)
    found = grouped_gemm.multiply(rows.to("spyre"), weights.to("spyre"), starts.to("spyre")).cpu()
    for mine, left, right in zip(found.split(sizes), rows.split(sizes), weights, strict=True):
        assert_close_dl16(mine, left.double() @ right.double(), extra=matmul_error(left, right))


@pytest.mark.parametrize("rows, columns", [(100, 300), (3, 16), (1, 5)])
def test_layer_norm_backward(rows: int, columns: int) -> None:
    inputs, grad = (torch.randn(rows, columns), torch.rand(columns), torch.rand(columns)), torch.randn(rows, columns)
    wide = [t.double().requires_grad_() for t in inputs]
    torch.layer_norm(wide[0], (columns,), wide[1], wide[2]).backward(grad.double())
    placed = [t.to("spyre").requires_grad_() for t in inputs]
    layer_norm_backward.LayerNorm.apply(*placed).backward(grad.to("spyre"))
    for mine, exact in zip(placed, wide, strict=True):
        room = (rows + columns + 32) * U32 * exact.grad.abs().max()
        assert ((mine.grad.cpu() - exact.grad).abs() <= room).all()


@pytest.mark.parametrize("name", sorted(file.stem for file in EXAMPLES.glob("*.py")))
def test_examples_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out
