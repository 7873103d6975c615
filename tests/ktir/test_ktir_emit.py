# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ktir/test_ktir_emit.py: planned kernels printed as KTIR compute what the plan says, race-free."""

from __future__ import annotations

import dataclasses
import re

import ktir_kernels as kernels
import numpy as np
import pytest
import torch
from effort import python_calls
from ktir_eval import from_device, run, to_device

from torch_spyre import ktir
from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ir.ktir.emit.kernel_function import emit
from torch_spyre.ir.plan.barriers import barriers_before
from torch_spyre.ir.plan.tileops import (
    Access,
    Coord,
    Immediate,
    Kernel,
    KernelArg,
    LaunchScalar,
    LinearOperand,
    Space,
    Term,
)
from torch_spyre.optable import OPS, Kind, lookup

rng = np.random.default_rng(7)
ORDER = 140 * 2.0**-53 * 140  # what the order of a float64 sum of 140 normal numbers may change, however small the sum


def emitted(kernel: Kernel) -> object:
    """The module, after checking that its text parses back to the same module."""
    module = emit(kernel)
    printed = ktir.print_module(module)
    again = ktir.parse(printed)
    assert ktir.print_module(again) == printed
    assert module.is_structurally_equivalent(again)
    return module


def evaluate(kernel: Kernel, hosts: list[np.ndarray], out_shape: tuple[int, ...], scalars: tuple[float, ...] = ()):
    """Run the kernel on host arrays; the output is the argument after them, further arguments are scratch."""
    buffers = [to_device(h) for h in hosts]
    buffers.append(np.full(to_device(np.zeros(out_shape)).size, np.nan))
    buffers.extend(np.full(arg.bytes // 2, np.nan) for arg in kernel.args[len(buffers) :])
    meetings = run(emitted(kernel), buffers, scalars)
    return from_device(buffers[len(hosts)], out_shape), meetings


def text(kernel: Kernel) -> str:
    return ktir.print_module(emit(kernel))


# -- pointwise ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("splits", [{}, {"d0": 4}, {"d0": 2, "d1": 2}, {"d1": 3}])
@pytest.mark.parametrize("sizes", [(4, 128), (5, 70), (3, 2, 65)])
def test_pointwise_with_stick_tails_and_broadcast(sizes: tuple[int, ...], splits: dict[str, int]) -> None:
    if len(sizes) == 3:
        splits = {{"d0": "d0", "d1": "d2"}[k]: v for k, v in splits.items()}
    kernel = kernels.pointwise_kernel("add", sizes, splits, broadcast={1: ("d0",)}, cores=4)
    a, b = rng.normal(size=sizes), rng.normal(size=(1, *sizes[1:]))
    result, meetings = evaluate(kernel, [a, b], sizes)
    np.testing.assert_array_equal(result, a + b)
    assert meetings == 0


ORACLES = {
    "sub": np.subtract,
    "mul": np.multiply,
    "realdiv": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "neg": np.negative,
    "abs": np.abs,
    "relufwd": lambda x: np.maximum(x, 0),
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "floor": np.floor,
    "equal": np.equal,
    "notequal": np.not_equal,
    "greaterthan": np.greater,
    "greaterequal": np.greater_equal,
    "lesserthan": np.less,
    "lesserequal": np.less_equal,
    "where3": lambda c, a, b: np.where(c != 0, a, b),
    "gelufwd": lambda x: torch.nn.functional.gelu(torch.from_numpy(x)).numpy(),
    "gelu_tanh": lambda x: torch.nn.functional.gelu(torch.from_numpy(x), approximate="tanh").numpy(),
    "silu": lambda x: torch.nn.functional.silu(torch.from_numpy(x)).numpy(),
    "mish": lambda x: torch.nn.functional.mish(torch.from_numpy(x)).numpy(),
    "softplus": lambda x, b, t: np.where(b * x > t, x, np.log(1 + np.exp(b * x)) / b),
    "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "fma": lambda a, b, c: a * b + c,
    "round": np.rint,
    "erf": lambda x: torch.erf(torch.from_numpy(x)).numpy(),
    "asin": lambda x: np.arcsin(x),
    "acos": lambda x: np.arccos(x),
    "atan": np.arctan,
    "atan2": np.arctan2,
    "pow": np.power,
    "remainder": lambda a, b: a - b * np.floor(a / b),
    "floordiv": lambda a, b: np.floor(a / b),
    **{name: getattr(np, name) for name in "ceil trunc sign sin cos tan sinh cosh log2 log1p expm1 exp2 fmod".split()},
    **{name: getattr(np, name) for name in "isnan isinf".split()},
}


@pytest.mark.parametrize("op", ORACLES)
def test_every_pointwise_opfunc(op: str) -> None:
    inputs = OPS[op].operands
    kernel = kernels.pointwise_kernel(op, (2, 66), {"d1": 2}, inputs=inputs, cores=2)
    hosts = [np.round(rng.uniform(0.5, 3, size=(2, 66)) * 2) / 2 for _ in range(inputs)]
    if op == "where3":
        hosts[0] = (hosts[0] > 1.5) * 1.0
    if op in ("asin", "acos"):
        hosts[0] /= 4
    result, _ = evaluate(kernel, hosts, (2, 66))
    np.testing.assert_allclose(result, ORACLES[op](*hosts), rtol=1e-12)


def test_every_known_pointwise_opfunc_has_an_oracle() -> None:
    # See test_ops_pointwise.py and test_ops_random.py.
    integers_only = {"truncdiv", "bit_and", "bit_or", "bit_xor", "bit_not", "shl", "shr", "random"}
    assert {row.name for row in OPS.values() if row.kind is Kind.POINTWISE} == {*ORACLES, "add"} | integers_only


def test_constants_keep_their_precision() -> None:
    """An immediate that fits f16 exactly stays there; any other is computed in f32 and rounded once."""
    exact = text(kernels.pointwise_kernel("mul", inputs=1, scalars=[Immediate(0.5)]))
    assert "arith.mulf" in exact and "f32" not in exact
    inexact = text(kernels.pointwise_kernel("mul", inputs=1, scalars=[Immediate(0.1)]))
    assert "arith.extf" in inexact and "arith.truncf" in inexact and "1.000000e-01 : f32" in inexact


def test_constants_outside_the_range_of_a_type() -> None:
    assert "0x7f800000 : f32" in text(kernels.pointwise_kernel("mul", inputs=1, scalars=[Immediate(1e300)]))
    assert "0xfc00 : f16" in text(kernels.pointwise_kernel("maximum", inputs=1, scalars=[Immediate(-np.inf)]))
    halves = text(kernels.pointwise_kernel("mul", inputs=1, scalars=[Immediate(2.5)], format="IEEE_INT32"))
    assert "arith.mulf" in halves and "arith.fptosi" in halves


def test_scalars() -> None:
    kernel = kernels.pointwise_kernel("mul", (3, 70), {"d0": 2}, inputs=1, scalars=[LaunchScalar(0)], cores=2)
    a = rng.normal(size=(3, 70))
    np.testing.assert_array_equal(evaluate(kernel, [a], (3, 70), (0.3,))[0], a * 0.3)
    fill = kernels.pointwise_kernel("identity", (3, 70), {"d0": 2}, inputs=0, scalars=[Immediate(2.5)], cores=2)
    np.testing.assert_array_equal(evaluate(fill, [], (3, 70))[0], np.full((3, 70), 2.5))


def test_casts_and_integers() -> None:
    assert "arith.extf" in text(kernels.pointwise_kernel("dl16tofp32", inputs=1, out_format=kernels.FP32))
    assert "arith.truncf" in text(
        kernels.pointwise_kernel("fp32todl16", inputs=1, format=kernels.FP32, out_format=kernels.FP16)
    )
    integers = text(kernels.pointwise_kernel("mul", format="IEEE_INT32"))
    assert "arith.muli" in integers and "memref<8x64x32xi32>" in integers
    assert "arith.cmpi sgt" in text(
        kernels.pointwise_kernel("greaterthan", format="IEEE_INT32", out_format=kernels.FP16)
    )
    assert "arith.sitofp" in text(
        kernels.pointwise_kernel("identity", inputs=1, format="IEEE_INT32", out_format=kernels.FP32)
    )


# -- copies ------------------------------------------------------------------------------------------------------------


def test_copy_and_restickify() -> None:
    a = rng.normal(size=(100, 70))
    np.testing.assert_array_equal(
        evaluate(kernels.copy_kernel(sizes=(100, 70), splits={"d0": 3}), [a], (100, 70))[0], a
    )
    restickify = kernels.copy_kernel("ReStickifyOpHBM", (100, 70), {"d0": 2})
    np.testing.assert_array_equal(evaluate(restickify, [a], (70, 100))[0], a.T)


def test_linear_operand_is_decoded_greedily() -> None:
    """Host [5, 100] seen as 5 * 100 elements from element 7 on: coordinates do not separate into dims."""
    kernel = kernels.copy_kernel(sizes=(6, 50), splits={"d0": 2})
    source = kernels.memory_tensor("in0", (5, 100), 0)
    offset = Coord((Term("d0", 50), Term("d1")), 7)
    op = dataclasses.replace(kernel.ops[0], inputs=(LinearOperand(source, offset, (64, 100, 1)),))
    kernel = dataclasses.replace(kernel, ops=(op,))
    a = rng.normal(size=(5, 100))
    result, _ = evaluate(kernel, [a], (6, 50))
    np.testing.assert_array_equal(result, a.reshape(-1)[7:307].reshape(6, 50))
    wrong = dataclasses.replace(op, op="neg")
    with pytest.raises(InvalidProgram, match="linear offset"):
        emit(dataclasses.replace(kernel, ops=(wrong,)))


# -- reductions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["sum", "max", "min", "mean", "sumnonstick", "maxnonstick"])
@pytest.mark.parametrize("splits", [{"d0": 4}, {"d0": 2, "d1": 2}])
def test_reduction(op: str, splits: dict[str, int]) -> None:
    kernel = kernels.reduce_kernel(op, (6, 140), ("d1",), splits, constants={"scaling_factor": 1 / 140}, cores=4)
    a = rng.normal(size=(6, 140))
    fold = getattr(np, op.removesuffix("nonstick"))
    result, _ = evaluate(kernel, [a], (6, 1))
    rtol = 2**-23 if op == "mean" else 1e-12  # the scaling factor is an f32 constant
    np.testing.assert_allclose(result, fold(a, axis=1, keepdims=True), rtol=rtol, atol=ORDER)


def test_reduction_over_the_outer_dim() -> None:
    kernel = kernels.reduce_kernel("sum", (6, 140), ("d0",), {"d1": 3}, cores=4)
    a = rng.normal(size=(6, 140))
    np.testing.assert_allclose(evaluate(kernel, [a], (1, 140))[0], a.sum(0, keepdims=True), rtol=1e-12, atol=ORDER)


def test_partial_results_stay_f32() -> None:
    whole, split = (text(kernels.reduce_kernel("sum", splits=s)) for s in ({"d0": 4}, {"d1": 4}))
    assert "f32" not in whole
    assert re.search(r"ktdp.yield_partial %\w+ : tensor<64xf32>", split)
    assert split.count("arith.truncf") == 1


# -- matmul ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("splits", "core_order"),
    [
        ({}, None),
        ({"m": 3, "n": 2}, None),
        ({"k": 2}, None),
        ({"m": 2, "n": 2, "k": 2}, None),
        ({"m": 2, "n": 2, "k": 2}, ("n", "k", "m")),
        ({"m": 2, "n": 2, "k": 2}, ("n", "m", "k")),
    ],
)
@pytest.mark.parametrize("cores", [8, 9])
def test_matmul(splits: dict[str, int], core_order: tuple[str, ...] | None, cores: int) -> None:
    kernel = kernels.matmul_kernel(5, 70, 100, splits, cores=cores, core_order=core_order)
    a, b = rng.normal(size=(5, 100)), rng.normal(size=(100, 70))
    np.testing.assert_allclose(evaluate(kernel, [a, b], (5, 70))[0], a @ b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("batch", [(3,), (2, 3)])
def test_batch_matmul(batch: tuple[int, ...]) -> None:
    kernel = kernels.matmul_kernel(2, 66, 65, {"b0": batch[0], "k": 2}, batch=batch, cores=8)
    a, b = rng.normal(size=(*batch, 2, 65)), rng.normal(size=(*batch, 65, 66))
    np.testing.assert_allclose(evaluate(kernel, [a, b], (*batch, 2, 66))[0], a @ b, rtol=1e-9, atol=1e-12)
    name = "linalg.batch_matmul" if len(batch) == 1 else "linalg.generic"
    assert name in text(kernel)


# -- several ops, scratchpad, barriers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("space", list(Space))
def test_softmax_needs_no_barrier(space: Space) -> None:
    kernel = kernels.softmax_kernel(7, 70, 3, space=space, cores=4)
    a = rng.normal(size=(7, 70))
    result, meetings = evaluate(kernel, [a], (7, 70))
    powers = np.exp(a - a.max(1, keepdims=True))
    np.testing.assert_allclose(result, powers / powers.sum(1, keepdims=True), rtol=1e-12)
    assert meetings == 0


def two_ops(first: dict[str, int], second: dict[str, int], cores: int = 4) -> Kernel:
    """out = -(-in), through a pool; the two ops are split as given."""
    sizes = (8, 128)
    source, pool, out = (kernels.memory_tensor(n, sizes, i) for i, n in enumerate(("in0", "pool", "out")))

    def op(name: str, a: object, b: object, splits: dict[str, int]) -> object:
        dims = kernels.make_dims({"d0": 8, "d1": 128}, splits, {"d1": 64})
        order = kernels.make_core_order(dims)
        operands = kernels.operand(a, ("d0", "d1")), kernels.operand(b, ("d0", "d1"))
        return kernels.TileOp(name, "neg", dims, operands[:1], operands[1], (), order)

    args = (*kernels.make_args([source, out], [2]), KernelArg("pool", 2048, Access.READ | Access.WRITE, "pool"))
    tensors = [dataclasses.replace(t, arg=i) for t, i in ((source, 0), (pool, 2), (out, 1))]
    ops = (op("first", tensors[0], tensors[1], first), op("second", tensors[1], tensors[2], second))
    return Kernel("two", args, ops, (), cores)


@pytest.mark.parametrize(
    ("first", "second", "barriers"),
    [
        ({"d0": 4}, {"d0": 4}, 0),
        ({"d0": 4}, {"d1": 2}, 1),
        ({"d0": 4}, {"d0": 2}, 1),
        ({"d0": 2, "d1": 2}, {"d0": 2, "d1": 2}, 0),
        ({"d0": 4}, {}, 1),
    ],
)
def test_barrier_between_ops(first: dict[str, int], second: dict[str, int], barriers: int) -> None:
    kernel = two_ops(first, second)
    a = rng.normal(size=(8, 128))
    result, meetings = evaluate(kernel, [a], (8, 128))
    np.testing.assert_array_equal(result, a)
    assert meetings == barriers == sum(barriers_before(kernel))


def test_barrier_before_overwriting_what_others_read() -> None:
    """Op 1 reads the input by rows; op 2 writes it by columns."""
    kernel = two_ops({"d0": 4}, {"d1": 2})
    first, second = kernel.ops
    overwrite = dataclasses.replace(second, inputs=(Immediate(1.0),), op="identity", output=first.inputs[0])
    assert barriers_before(dataclasses.replace(kernel, ops=(first, overwrite))) == (False, True)
    elsewhere = dataclasses.replace(
        overwrite,
        output=dataclasses.replace(overwrite.output, tensor=dataclasses.replace(overwrite.output.tensor, base=2048)),
    )
    assert barriers_before(dataclasses.replace(kernel, ops=(first, elsewhere))) == (False, False)


def test_split_reduction_is_not_its_readers_own_part() -> None:
    """Only one core of a cohort stores the result, so a reader needs a barrier even if it is split alike."""
    matmul = kernels.matmul_kernel(8, 128, 128, {"m": 2, "k": 2}, cores=4)
    c = kernels.memory_tensor("c", (8, 128), 2)
    d = kernels.memory_tensor("d", (8, 128), 3)
    dims = matmul.ops[0].dims[:2]
    after = kernels.TileOp(
        "neg", "neg", dims, (kernels.operand(c, ("m", "n")),), kernels.operand(d, ("m", "n")), (), ("m",)
    )
    args = (*matmul.args, KernelArg("d", 2048, Access.WRITE, "output"))
    kernel = dataclasses.replace(matmul, ops=(*matmul.ops, after), args=args)
    assert barriers_before(kernel) == (False, True)
    a, b = rng.normal(size=(8, 128)), rng.normal(size=(128, 128))
    buffers = [to_device(a), to_device(b), np.full(1024, np.nan), np.full(1024, np.nan)]
    run(emitted(kernel), buffers)
    np.testing.assert_allclose(from_device(buffers[3], (8, 128)), -(a @ b), rtol=1e-9, atol=1e-12)


def test_one_core_needs_no_barrier() -> None:
    assert barriers_before(two_ops({}, {}, cores=1)) == (False, False)


# -- rules and speed ---------------------------------------------------------------------------------------------------


def test_unknown_opfunc() -> None:
    with pytest.raises(UnsupportedOp, match="frobnicate"):
        emit(kernels.pointwise_kernel("frobnicate"))
    with pytest.raises(UnsupportedOp, match="exp on elements of type i32"):
        emit(kernels.pointwise_kernel("exp", inputs=1, format="IEEE_INT32"))
    assert lookup("maxnonstick") is lookup("max")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"core_order": ()}, "not in core_order"),
        ({"inputs": ()}, "takes 2 inputs, got 0"),
        ({"dims": (kernels.Dim("d0", 64, 2, 16), kernels.Dim("d1", 256))}, "do not cover dim d0"),
        ({"dims": (kernels.Dim("d0", 64, 64, 1), kernels.Dim("d1", 256))}, "split over 64 cores"),
        ({"dims": (kernels.Dim("d0", 64, 4, 16),)}, "dims not available here: \\['d1'\\]"),
    ],
)
def test_invalid_plans(change: dict[str, object], message: str) -> None:
    kernel = kernels.pointwise_kernel(splits={"d0": 4})
    with pytest.raises(InvalidProgram, match=message):
        emit(dataclasses.replace(kernel, ops=(dataclasses.replace(kernel.ops[0], **change),)))


def test_values_are_shared() -> None:
    kernel = kernels.softmax_kernel(row_slices=4)
    printed = text(dataclasses.replace(kernel, ops=kernel.ops * 3))
    assert printed.count("construct_memory_view") == 6
    assert printed.count("arith.muli") == 1
    assert printed.count("get_compute_tile_id") == 1


def test_emission_grows_with_the_ops_and_not_faster() -> None:
    kernel = kernels.softmax_kernel(row_slices=32)
    few, many = (dataclasses.replace(kernel, ops=kernel.ops * repeat) for repeat in (2, 20))
    assert python_calls(lambda: emit(many)) < 15 * python_calls(lambda: emit(few))
