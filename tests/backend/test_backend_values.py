# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/backend/test_backend_values.py. Compiled programs compute what numpy computes in float64, rounded.

Programs run on the reference interpreter, and, where the card is built, on the card too; both must give the same bits
wherever the order of operations is defined.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import ktir_kernels as kernels
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_interp import execute, round_sen169, sen169_decode, sen169_encode

from torch_spyre.backend.compile import CompiledProgram, compile_module
from torch_spyre.backend.program import assembler as asm
from torch_spyre.ir.ktir.emit.kernel_function import emit
from torch_spyre.ir.plan.tileops import Access, Immediate, Kernel, KernelArg, LaunchScalar, Space

FP16, FP32 = kernels.FP16, kernels.FP32
ULP = 2.0**-9  # spacing of SEN169 relative to the power of two below


def to_bytes(host: np.ndarray, fmt: str = FP16) -> np.ndarray:
    """A host array in the default stick layout, padding filled with a value that must never be read."""
    stick = kernels.STICK[fmt]
    size = kernels.device_size(host.shape, fmt)
    device = np.full(size, 12345.0, np.float32)
    grid = np.indices(host.shape)
    device[_coordinates(grid, stick)] = host
    codes = sen169_encode(device) if fmt == FP16 else device.astype(np.int32 if fmt == "IEEE_INT32" else np.float32)
    return codes.reshape(-1).view(np.uint8).copy()


def from_bytes(data: np.ndarray, shape: Sequence[int], fmt: str = FP16) -> np.ndarray:
    size = kernels.device_size(shape, fmt)
    if fmt == FP16:
        device = sen169_decode(data.view(np.uint16))
    else:
        device = data.view(np.int32 if fmt == "IEEE_INT32" else np.float32)
    return device.reshape(size)[_coordinates(np.indices(tuple(shape)), kernels.STICK[fmt])]


def _coordinates(grid: np.ndarray, stick: int) -> tuple[np.ndarray, ...]:
    if len(grid) == 1:
        return grid[0] // stick, grid[0] % stick
    return (*grid[1:-1], grid[-1] // stick, grid[0], grid[-1] % stick)


def compile_kernel(kernel: Kernel) -> CompiledProgram:
    return compile_module(emit(kernel))


def run(
    kernel: Kernel, inputs: Sequence[np.ndarray], out_bytes: int, scalars: Sequence[float] = (), exact: bool = True
) -> np.ndarray:
    """Runs a kernel whose output is the argument after the inputs; the output starts as poison."""
    program = compile_kernel(kernel)
    out = np.full(out_bytes, 0xAB, np.uint8)
    buffers = [*inputs, out, *(np.zeros(a.bytes, np.uint8) for a in program.args[len(inputs) + 1 :])]
    execute(program.binary, buffers, scalars, exact=exact)
    return out


def rand(*shape: int, seed: int = 0) -> np.ndarray:
    return round_sen169(np.random.default_rng(seed).standard_normal(shape))


def bytes_of(shape: Sequence[int], fmt: str = FP16) -> int:
    return int(np.prod(kernels.device_size(shape, fmt))) * 128 // kernels.STICK[fmt]


# -- pointwise -------------------------------------------------------------------------------------------------------


BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "realdiv": np.divide, "maximum": np.maximum}


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize(
    "sizes, splits",
    [
        ((64, 256), {"d0": 4, "d1": 4}),
        ((67, 200), {"d0": 4, "d1": 3}),
        ((5,), {}),
        ((3, 70, 130), {"d1": 16}),
        ((33, 64), {"d0": 32}),
    ],
)
def test_pointwise(op: str, sizes: tuple[int, ...], splits: Mapping[str, int]) -> None:
    a, b = rand(*sizes), rand(*sizes, seed=1)
    b[b == 0] = 1
    out = run(kernels.pointwise_kernel(op, sizes, splits), [to_bytes(a), to_bytes(b)], bytes_of(sizes))
    expected = round_sen169(BINARY[op](a, b).astype(np.float32))
    np.testing.assert_array_equal(from_bytes(out, sizes), expected)


def test_pointwise_leaves_padding_alone() -> None:
    sizes = (3, 70)
    out = run(kernels.pointwise_kernel("add", sizes), [to_bytes(rand(*sizes))] * 2, bytes_of(sizes))
    device = out.view(np.uint16).reshape(kernels.device_size(sizes))
    assert (device[1, :, 6:] == 0xABAB).all()


@pytest.mark.parametrize("ones", [("d0",), ("d1",), ("d0", "d1")])
def test_broadcast(ones: tuple[str, ...]) -> None:
    sizes = (20, 150)
    small = [1 if f"d{i}" in ones else n for i, n in enumerate(sizes)]
    a, b = rand(*sizes), rand(*small, seed=1)
    kernel = kernels.pointwise_kernel("mul", sizes, {"d0": 3, "d1": 2}, broadcast={1: ones})
    out = run(kernel, [to_bytes(a), to_bytes(b)], bytes_of(sizes))
    np.testing.assert_array_equal(from_bytes(out, sizes), round_sen169(a * b))


def test_comparison_and_select() -> None:
    sizes = (9, 100)
    a, b = rand(*sizes), rand(*sizes, seed=1)
    less = run(kernels.pointwise_kernel("lesserthan", sizes, {"d0": 3}), [to_bytes(a), to_bytes(b)], bytes_of(sizes))
    np.testing.assert_array_equal(from_bytes(less, sizes), (a < b).astype(np.float32))
    kernel = kernels.pointwise_kernel("where3", sizes, {"d0": 3}, inputs=3)
    out = run(kernel, [less, to_bytes(a), to_bytes(b)], bytes_of(sizes))
    np.testing.assert_array_equal(from_bytes(out, sizes), np.where(a < b, a, b))


@pytest.mark.parametrize(
    "op, function",
    [
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("exp", np.exp),
        ("relufwd", lambda x: np.maximum(x, 0)),
        ("reciprocal", lambda x: 1 / x),
    ],
)
def test_unary(op: str, function: object) -> None:
    sizes = (9, 100)
    a = rand(*sizes) + 3
    a = round_sen169(a)
    out = run(kernels.pointwise_kernel(op, sizes, {"d0": 3}, inputs=1), [to_bytes(a)], bytes_of(sizes), exact=False)
    expected = function(a.astype(np.float64))  # type: ignore[operator]
    np.testing.assert_allclose(from_bytes(out, sizes), expected, rtol=ULP)


def test_scalars_are_fp32_operands() -> None:
    """0.1 has no SEN169 form: the op computes in fp32 and rounds once."""
    sizes = (4, 70)
    a = rand(*sizes)
    kernel = kernels.pointwise_kernel("mul", sizes, inputs=1, scalars=[Immediate(0.1)])
    out = run(kernel, [to_bytes(a)], bytes_of(sizes))
    np.testing.assert_array_equal(from_bytes(out, sizes), round_sen169(a * np.float32(0.1)))
    kernel = kernels.pointwise_kernel("mul", sizes, inputs=1, scalars=[LaunchScalar(0)])
    out = run(kernel, [to_bytes(a)], bytes_of(sizes), [0.3])
    np.testing.assert_array_equal(from_bytes(out, sizes), round_sen169(a * np.float32(0.3)))


def test_casts_between_formats() -> None:
    sizes = (5, 100)
    a = rand(*sizes)
    out = run(
        kernels.pointwise_kernel("add", sizes, {"d0": 2}, out_format=FP32), [to_bytes(a)] * 2, bytes_of(sizes, FP32)
    )
    np.testing.assert_array_equal(from_bytes(out, sizes, FP32), a + a)
    wide = np.random.default_rng(3).standard_normal(sizes).astype(np.float32)
    out = run(
        kernels.pointwise_kernel("add", sizes, {"d0": 2}, format=FP32, out_format=FP16),
        [to_bytes(wide, FP32)] * 2,
        bytes_of(sizes),
    )
    np.testing.assert_array_equal(from_bytes(out, sizes), round_sen169(wide + wide))


@pytest.mark.parametrize("fmt", ["IEEE_INT32"])
def test_integers(fmt: str) -> None:
    sizes = (5, 100)
    a = np.random.default_rng(3).integers(-1000, 1000, sizes)
    out = run(
        kernels.pointwise_kernel("mul", sizes, {"d0": 2}, format=fmt), [to_bytes(a, fmt)] * 2, bytes_of(sizes, fmt)
    )
    np.testing.assert_array_equal(from_bytes(out, sizes, fmt), a * a)


def test_integers_mixed_with_floats() -> None:
    """int32 in, SEN169 out: computes in fp32."""
    sizes = (5, 100)
    a = np.random.default_rng(3).integers(-1000, 1000, sizes)
    kernel = kernels.pointwise_kernel("add", sizes, {"d0": 2}, format="IEEE_INT32", out_format=FP16)
    out = run(kernel, [to_bytes(a, "IEEE_INT32")] * 2, bytes_of(sizes))
    np.testing.assert_array_equal(from_bytes(out, sizes), round_sen169((a + a).astype(np.float32)))


# -- reductions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op, function", [("sum", np.sum), ("max", np.max), ("min", np.min)])
@pytest.mark.parametrize("reduced", [("d0",), ("d1",), ("d0", "d1")])
@pytest.mark.parametrize("splits", [{}, {"d0": 4}, {"d1": 3}, {"d0": 5, "d1": 4}])
def test_reduction(op: str, function: object, reduced: tuple[str, ...], splits: Mapping[str, int]) -> None:
    sizes = (37, 200)
    a = rand(*sizes)
    axes = tuple(int(d[1]) for d in reduced)
    shape = [1 if i in axes else n for i, n in enumerate(sizes)]
    out = run(kernels.reduce_kernel(op, sizes, reduced, splits), [to_bytes(a)], bytes_of(shape))
    expected = function(a.astype(np.float64), axis=axes, keepdims=True)  # type: ignore[operator]
    np.testing.assert_allclose(from_bytes(out, shape), expected, rtol=ULP, atol=1e-4)


def test_cores_without_anything_to_reduce_contribute_nothing() -> None:
    """70 columns are two sticks: of three column slices the last is empty."""
    sizes = (8, 70)
    a = rand(*sizes) - 5
    a = round_sen169(a)
    for op, function in (("sum", np.sum), ("max", np.max)):
        out = run(kernels.reduce_kernel(op, sizes, ("d1",), {"d1": 3}), [to_bytes(a)], bytes_of((8, 1)))
        expected = function(a.astype(np.float64), axis=1, keepdims=True)
        np.testing.assert_allclose(from_bytes(out, (8, 1)), expected, rtol=ULP)


def test_mean() -> None:
    sizes = (37, 200)
    a = rand(*sizes)
    for splits in ({"d0": 5}, {"d1": 2}):
        kernel = kernels.reduce_kernel("mean", sizes, ("d1",), splits, constants={"scaling_factor": 1 / 200})
        out = run(kernel, [to_bytes(a)], bytes_of((37, 1)))
        expected = a.astype(np.float64).mean(1, keepdims=True)
        np.testing.assert_allclose(from_bytes(out, (37, 1)), expected, rtol=ULP, atol=1e-6)


# -- matrix products -------------------------------------------------------------------------------------------------


def matmul_oracle(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("splits", [{}, {"m": 4}, {"n": 2}, {"k": 3}, {"m": 3, "n": 2, "k": 2}, {"m": 8, "k": 4}])
@pytest.mark.parametrize("shape", [(16, 128, 192), (17, 130, 200), (1, 64, 256)])
def test_matmul(shape: tuple[int, int, int], splits: Mapping[str, int]) -> None:
    m, n, k = shape
    a, b = rand(m, k), rand(k, n, seed=1)
    out = run(kernels.matmul_kernel(m, n, k, splits), [to_bytes(a), to_bytes(b)], bytes_of((m, n)))
    np.testing.assert_allclose(from_bytes(out, (m, n)), matmul_oracle(a, b), rtol=ULP, atol=2e-4)


def test_matmul_splits_of_m_and_n_do_not_change_bits() -> None:
    a, b = to_bytes(rand(24, 128)), to_bytes(rand(128, 192, seed=1))
    results = [
        run(kernels.matmul_kernel(24, 192, 128, splits), [a, b], bytes_of((24, 192)))
        for splits in ({}, {"m": 4}, {"n": 3}, {"m": 5, "n": 2})
    ]
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize(
    "batch, splits", [((3,), {"b0": 3, "k": 2}), ((2, 3), {"b0": 2, "b1": 3, "k": 2}), ((2,), {"m": 2})]
)
def test_batched_matmul(batch: tuple[int, ...], splits: Mapping[str, int]) -> None:
    m, n, k = 10, 64, 128
    a, b = rand(*batch, m, k), rand(*batch, k, n, seed=1)
    out = run(kernels.matmul_kernel(m, n, k, splits, batch=batch), [to_bytes(a), to_bytes(b)], bytes_of((*batch, m, n)))
    np.testing.assert_allclose(from_bytes(out, (*batch, m, n)), matmul_oracle(a, b), rtol=ULP, atol=2e-4)


def test_matmul_with_k_split_that_is_not_fastest() -> None:
    """Cohorts are then cores at a distance."""
    a, b = rand(16, 128), rand(128, 64, seed=1)
    kernel = kernels.matmul_kernel(16, 64, 128, {"m": 4, "k": 2}, core_order=("m", "k"))
    out = run(kernel, [to_bytes(a), to_bytes(b)], bytes_of((16, 64)))
    np.testing.assert_allclose(from_bytes(out, (16, 64)), matmul_oracle(a, b), rtol=ULP, atol=2e-4)


# -- copies and chains -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes, splits", [((128, 256), {"d0": 2}), ((70, 100), {"d1": 2}), ((65, 65), {"d0": 2, "d1": 2})]
)
def test_restickify(sizes: tuple[int, int], splits: Mapping[str, int]) -> None:
    a = rand(*sizes)
    out = run(kernels.copy_kernel("ReStickifyOpHBM", sizes, splits), [to_bytes(a)], bytes_of(sizes[::-1]))
    np.testing.assert_array_equal(from_bytes(out, sizes[::-1]), a.T)


@pytest.mark.parametrize("space", list(Space))
@pytest.mark.parametrize("rows, slices", [(64, 4), (37, 8)])
def test_softmax_chain(space: Space, rows: int, slices: int) -> None:
    a = rand(rows, 200)
    out = run(kernels.softmax_kernel(rows, 200, slices, space=space), [to_bytes(a)], bytes_of((rows, 200)), exact=False)
    exact = np.exp(a.astype(np.float64) - a.max(1, keepdims=True))
    np.testing.assert_allclose(from_bytes(out, (rows, 200)), exact / exact.sum(1, keepdims=True), rtol=3 * ULP)


def test_lx_and_memory_chains_give_the_same_bits() -> None:
    a = to_bytes(rand(40, 130))
    in_lx, in_memory = (
        run(kernels.softmax_kernel(40, 130, 5, space=space), [a], bytes_of((40, 130)), exact=False) for space in Space
    )
    np.testing.assert_array_equal(from_bytes(in_lx, (40, 130)), from_bytes(in_memory, (40, 130)))


def test_ops_that_meet_in_memory_are_separated_by_a_barrier() -> None:
    """t = a + b by rows, then o = t * t by columns: every core reads what all others wrote."""
    sizes, names = (8, 256), ["d0", "d1"]
    a, b = rand(*sizes), rand(*sizes, seed=1)
    first = kernels.pointwise_kernel("add", sizes, {"d0": 8}, cores=8)
    second = kernels.pointwise_kernel("mul", sizes, {"d1": 4}, cores=8)
    pool = kernels.memory_tensor("pool", sizes, 3)
    through = kernels.operand(pool, names)
    ops = (
        dataclasses.replace(first.ops[0], output=through),
        dataclasses.replace(second.ops[0], inputs=(through, through)),
    )
    args = (*first.args, KernelArg("pool", bytes_of(sizes), Access.READ | Access.WRITE, "pool"))
    kernel = dataclasses.replace(first, ops=ops, args=args)
    assert sum(isinstance(i, asm.BarrierInst) for i in compile_kernel(kernel).instructions) == 1
    out = run(kernel, [to_bytes(a), to_bytes(b)], bytes_of(sizes))
    total = round_sen169(a + b)
    np.testing.assert_array_equal(from_bytes(out, sizes), round_sen169(total * total))


def test_a_chain_of_k_split_products() -> None:
    """c = a @ b, d = c @ b, both with split k: partials of the second must not disturb readers of the first."""
    a, b = rand(8, 128), rand(128, 128, seed=1)
    base = kernels.matmul_kernel(8, 128, 128, {"m": 4, "k": 2}, cores=8)
    pool = kernels.operand(kernels.memory_tensor("pool", (8, 128), 3), ["m", "n"])
    again = kernels.operand(kernels.memory_tensor("pool", (8, 128), 3), ["m", "k"])
    first = dataclasses.replace(base.ops[0], output=pool)
    second = dataclasses.replace(base.ops[0], inputs=(again, base.ops[0].inputs[1]))
    args = (*base.args, KernelArg("pool", bytes_of((8, 128)), Access.READ | Access.WRITE, "pool"))
    kernel = dataclasses.replace(base, ops=(first, second), args=args)
    out = run(kernel, [to_bytes(a), to_bytes(b)], bytes_of((8, 128)))
    middle = matmul_oracle(a, b)
    expected = matmul_oracle(middle, b)
    np.testing.assert_allclose(from_bytes(out, (8, 128)), expected, rtol=ULP, atol=2 * ULP * np.abs(expected).max())


# -- anything --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_pointwise(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 4))
    sizes = tuple(data.draw(st.integers(1, 9 if d < rank - 1 else 300)) for d in range(rank))
    splits = {f"d{d}": data.draw(st.sampled_from([1, 1, 2, 3, 4])) for d in range(rank)}
    if np.prod(list(splits.values())) > 32:
        splits = {}
    ones = [f"d{d}" for d in range(rank) if data.draw(st.integers(0, 3)) == 0]
    small = [1 if f"d{i}" in ones else n for i, n in enumerate(sizes)]
    a, b = rand(*sizes), rand(*small, seed=1)
    out_format = data.draw(st.sampled_from([FP16, FP32]))
    kernel = kernels.pointwise_kernel("sub", sizes, splits, broadcast={1: ones}, out_format=out_format)
    out = run(kernel, [to_bytes(a), to_bytes(b)], bytes_of(sizes, out_format))
    expected = a - b if out_format == FP32 else round_sen169(a - b)
    np.testing.assert_array_equal(from_bytes(out, sizes, out_format), expected)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_matmul(data: st.DataObject) -> None:
    m, n, k = (data.draw(st.integers(1, high)) for high in (12, 140, 140))
    splits = {d: data.draw(st.integers(1, 3)) for d in "mnk"}
    order = data.draw(st.permutations([d for d in "mnk" if splits[d] > 1]))
    a, b = rand(m, k), rand(k, n, seed=1)
    kernel = kernels.matmul_kernel(m, n, k, splits, core_order=order)
    out = run(kernel, [to_bytes(a), to_bytes(b)], bytes_of((m, n)))
    np.testing.assert_allclose(from_bytes(out, (m, n)), matmul_oracle(a, b), rtol=ULP, atol=2e-4)
