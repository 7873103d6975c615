# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ktir/test_ktir_ops.py: each operation of the standard dialects gives what NumPy gives in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from ktir_text import box, function, load, order, shape, store, tile, unary, view, whole

from torch_spyre import ktir
from torch_spyre.errors import InvalidProgram

SIZES = (6, 40)
erf = np.vectorize(math.erf)


def reals(seed: int = 0, low: float = -3.0, high: float = 3.0, sizes: tuple[int, ...] = SIZES) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(low, high, sizes).astype(np.float32))


def integers(seed: int = 0, low: int = -9, high: int = 10, sizes: tuple[int, ...] = SIZES) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(low, high, sizes).astype(np.int32))


def check(actual: torch.Tensor, expected: Any, relative: float = 3e-6) -> None:
    wanted = np.asarray(expected, dtype=np.float64)
    error = np.abs(actual.double().numpy() - wanted)
    assert (error <= relative * np.maximum(np.abs(wanted), 1.0)).all(), f"largest error {error.max():.3g}"


MATH: dict[str, tuple[Callable[..., Any], float, float]] = {
    "math.absf": (np.abs, -3, 3),
    "math.acos": (np.arccos, -0.9, 0.9),
    "math.acosh": (np.arccosh, 1.1, 5),
    "math.asin": (np.arcsin, -0.9, 0.9),
    "math.asinh": (np.arcsinh, -3, 3),
    "math.atan": (np.arctan, -3, 3),
    "math.atanh": (np.arctanh, -0.9, 0.9),
    "math.cbrt": (np.cbrt, -3, 3),
    "math.ceil": (np.ceil, -3, 3),
    "math.cos": (np.cos, -3, 3),
    "math.cosh": (np.cosh, -3, 3),
    "math.erf": (erf, -3, 3),
    "math.exp": (np.exp, -3, 3),
    "math.exp2": (np.exp2, -3, 3),
    "math.expm1": (np.expm1, -3, 3),
    "math.floor": (np.floor, -3, 3),
    "math.log": (np.log, 0.1, 9),
    "math.log10": (np.log10, 0.1, 9),
    "math.log1p": (np.log1p, -0.5, 9),
    "math.log2": (np.log2, 0.1, 9),
    "math.round": (lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), -3, 3),
    "math.roundeven": (np.round, -3, 3),
    "math.rsqrt": (lambda x: 1 / np.sqrt(x), 0.1, 9),
    "math.sin": (np.sin, -3, 3),
    "math.sinh": (np.sinh, -3, 3),
    "math.sqrt": (np.sqrt, 0.1, 9),
    "math.tan": (np.tan, -1, 1),
    "math.tanh": (np.tanh, -3, 3),
    "math.trunc": (np.trunc, -3, 3),
    "arith.negf": (np.negative, -3, 3),
}


@pytest.mark.parametrize("op", MATH)
def test_functions_of_one_tensor(op: str) -> None:
    oracle, low, high = MATH[op]
    x, y = reals(low=low, high=high), torch.zeros(SIZES)
    ktir.load(unary(f"%r = {op} %v : tensor<6x40xf32>", SIZES, "f32")).run(x, y)
    check(y, oracle(x.double().numpy()))


def binary(op: str, kind: str) -> str:
    body = "".join(whole(n, SIZES, kind) for n in "xwy") + load("v", "tx", SIZES, kind) + load("u", "tw", SIZES, kind)
    return function(body + op + "\n" + store("r", "ty", SIZES, kind), "%x: index, %w: index, %y: index")


FLOATS: dict[str, Callable[..., Any]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.remf": np.fmod,
    "math.atan2": np.arctan2,
    "math.copysign": np.copysign,
    "math.powf": lambda a, b: np.abs(a) ** b,
}
INTEGERS: dict[str, Callable[..., Any]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divsi": lambda a, b: np.trunc(a / b),
    "arith.remsi": np.fmod,
    "arith.floordivsi": np.floor_divide,
    "arith.ceildivsi": lambda a, b: np.ceil(a / b),
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
}


@pytest.mark.parametrize("op", FLOATS)
def test_functions_of_two_float_tensors(op: str) -> None:
    x, w, y = reals(0), reals(1), torch.zeros(SIZES)
    if op == "math.powf":
        x = x.abs() + 0.1
    ktir.load(binary(f"%r = {op} %v, %u : tensor<6x40xf32>", "f32")).run(x, w, y)
    check(y, FLOATS[op](x.double().numpy(), w.double().numpy()))


@pytest.mark.parametrize("op", INTEGERS)
def test_functions_of_two_integer_tensors(op: str) -> None:
    x, w, y = integers(0), integers(1, 1, 7), torch.zeros(SIZES, dtype=torch.int32)
    if op in ("arith.divsi", "arith.remsi", "arith.floordivsi", "arith.ceildivsi"):
        w = w * torch.where(integers(2) > 0, 1, -1).int()
    ktir.load(binary(f"%r = {op} %v, %u : tensor<6x40xi32>", "i32")).run(x, w, y)
    check(y, INTEGERS[op](x.numpy().astype(np.int64), w.numpy().astype(np.int64)))


@pytest.mark.parametrize(("op", "oracle"), [("shli", np.left_shift), ("shrsi", np.right_shift)])
def test_shifts(op: str, oracle: Callable[..., Any]) -> None:
    x, w, y = integers(0), integers(1, 0, 5), torch.zeros(SIZES, dtype=torch.int32)
    ktir.load(binary(f"%r = arith.{op} %v, %u : tensor<6x40xi32>", "i32")).run(x, w, y)
    check(y, oracle(x.numpy(), w.numpy()))


NAMED: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "powf": np.power,
}  # fmt: skip
NAMED_UNARY: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "log": np.log, "abs": np.abs, "ceil": np.ceil, "floor": np.floor, "negf": np.negative,
    "reciprocal": np.reciprocal, "round": lambda x: np.floor(x + 0.5), "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "square": np.square, "tanh": np.tanh, "erf": erf,
}  # fmt: skip


@pytest.mark.parametrize("op", NAMED)
def test_named_operations_of_two_tensors(op: str) -> None:
    text = "%e = tensor.empty() : tensor<6x40xf32>\n%r = linalg." + op
    text += " ins(%v, %u : tensor<6x40xf32>, tensor<6x40xf32>) outs(%e : tensor<6x40xf32>) -> tensor<6x40xf32>"
    x, w, y = reals(0, 0.2), reals(1, 0.2), torch.zeros(SIZES)
    ktir.load(binary(text, "f32")).run(x, w, y)
    check(y, NAMED[op](x.double().numpy(), w.double().numpy()))


@pytest.mark.parametrize("op", NAMED_UNARY)
def test_named_operations_of_one_tensor(op: str) -> None:
    text = f"%e = tensor.empty() : tensor<6x40xf32>\n%r = linalg.{op} ins(%v : tensor<6x40xf32>)"
    x, y = reals(0, 0.2), torch.zeros(SIZES)
    ktir.load(unary(text + " outs(%e : tensor<6x40xf32>) -> tensor<6x40xf32>", SIZES, "f32")).run(x, y)
    check(y, NAMED_UNARY[op](x.double().numpy()))


# text between the load of %v: 6x40 f32 and the store of %r, sizes of the result, oracle
SHAPES: dict[str, tuple[str, tuple[int, ...], Callable[[np.ndarray], np.ndarray]]] = {
    "map": (
        "%e = tensor.empty() : tensor<6x40xf32>\n%r = linalg.map ins(%v, %v : tensor<6x40xf32>, tensor<6x40xf32>) "
        "outs(%e : tensor<6x40xf32>) (%a: f32, %b: f32) {\n%p = arith.mulf %a, %b : f32\n%q = arith.subf %p, %a : f32\n"
        "linalg.yield %q : f32\n}",
        SIZES,
        lambda x: x * x - x,
    ),
    "generic with indices": (
        "%e = tensor.empty() : tensor<6x40xf32>\n%r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, "
        'affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%v : tensor<6x40xf32>) '
        "outs(%e : tensor<6x40xf32>) {\n^bb0(%a: f32, %o: f32):\n%i = linalg.index 0 : index\n"
        "%j = linalg.index 1 : index\n%c = arith.constant 3 : index\n%k = arith.muli %i, %c : index\n"
        "%s = arith.addi %k, %j : index\n%n = arith.index_cast %s : index to i32\n%f = arith.sitofp %n : i32 to f32\n"
        "%t = arith.addf %a, %f : f32\nlinalg.yield %t : f32\n} -> tensor<6x40xf32>",
        SIZES,
        lambda x: x + 3 * np.arange(6)[:, None] + np.arange(40),
    ),
    "generic transposing and broadcasting": (
        "%e = tensor.empty() : tensor<40x6xf32>\n%w = arith.constant dense<[0.0, 1.0, 2.0, 3.0, 4.0, "
        "5.0]> : tensor<6xf32>\n"
        "%r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (j, i)>, affine_map<(i, j) -> (j)>, "
        'affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} '
        "ins(%v, %w : tensor<6x40xf32>, tensor<6xf32>) outs(%e : tensor<40x6xf32>) {\n^bb0(%a: f32, "
        "%b: f32, %o: f32):\n"
        "%t = arith.addf %a, %b : f32\nlinalg.yield %t : f32\n} -> tensor<40x6xf32>",
        (40, 6),
        lambda x: x.T + np.arange(6),
    ),
    "generic reduction": (
        "%e = arith.constant dense<0.0> : tensor<6xf32>\n%r = linalg.generic {indexing_maps = "
        "[affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>], "
        'iterator_types = ["parallel", "reduction"]} ins(%v : tensor<6x40xf32>) outs(%e : tensor<6xf32>) {\n'
        "^bb0(%a: f32, %o: f32):\n%q = arith.mulf %a, %a : f32\n%t = arith.addf %o, %q : f32\nlinalg.yield %t : f32\n"
        "} -> tensor<6xf32>",
        (6,),
        lambda x: (x * x).sum(1),
    ),
    "transpose": (
        "%e = tensor.empty() : tensor<40x6xf32>\n"
        "%r = linalg.transpose ins(%v : tensor<6x40xf32>) outs(%e : tensor<40x6xf32>) permutation = [1, 0]",
        (40, 6),
        lambda x: x.T,
    ),
    "collapse and expand": (
        "%c = tensor.collapse_shape %v [[0, 1]] : tensor<6x40xf32> into tensor<240xf32>\n"
        "%r = tensor.expand_shape %c [[0, 1, 2]] output_shape [8, 3, 10] : tensor<240xf32> into tensor<8x3x10xf32>",
        (8, 3, 10),
        lambda x: x.reshape(8, 3, 10),
    ),
    "reshape": (
        "%n = arith.constant dense<[16, 15]> : tensor<2xindex>\n"
        "%r = tensor.reshape %v(%n) : (tensor<6x40xf32>, tensor<2xindex>) -> tensor<16x15xf32>",
        (16, 15),
        lambda x: x.reshape(16, 15),
    ),
    "extract_slice": (
        "%r = tensor.extract_slice %v[1, 4] [3, 8] [2, 3] : tensor<6x40xf32> to tensor<3x8xf32>",
        (3, 8),
        lambda x: x[1:6:2, 4:28:3],
    ),
    "extract_slice dropping a dim": (
        "%i = arith.constant 4 : index\n%r = tensor.extract_slice %v[%i, 0] [1, 40] [1, 1] : "
        "tensor<6x40xf32> to tensor<40xf32>",
        (40,),
        lambda x: x[4],
    ),
    "insert_slice": (
        "%s = tensor.extract_slice %v[0, 0] [2, 10] [1, 1] : tensor<6x40xf32> to tensor<2x10xf32>\n"
        "%r = tensor.insert_slice %s into %v[3, 20] [2, 10] [1, 1] : tensor<2x10xf32> into tensor<6x40xf32>",
        SIZES,
        lambda x: _inserted(x),
    ),
    "concat": (
        "%r = tensor.concat dim(0) %v, %v : (tensor<6x40xf32>, tensor<6x40xf32>) -> tensor<12x40xf32>",
        (12, 40),
        lambda x: np.concatenate([x, x]),
    ),
    "generate": (
        "%g = tensor.generate {\n^bb0(%i: index, %j: index):\n%s = arith.addi %i, %j : index\n"
        "%n = arith.index_cast %s : index to i32\n%f = arith.sitofp %n : i32 to f32\ntensor.yield %f : f32\n"
        "} : tensor<6x40xf32>\n%r = arith.addf %g, %v : tensor<6x40xf32>",
        SIZES,
        lambda x: x + np.arange(6)[:, None] + np.arange(40),
    ),
    "extract and splat": (
        "%i = arith.constant 2 : index\n%s = tensor.extract %v[%i, %i] : tensor<6x40xf32>\n"
        "%r = tensor.splat %s : tensor<6x40xf32>",
        SIZES,
        lambda x: np.full(SIZES, x[2, 2]),
    ),
    "reduce over several dims": (
        "%z = arith.constant dense<0.0> : tensor<f32>\n"
        "%s = linalg.reduce { arith.addf } ins(%v : tensor<6x40xf32>) outs(%z : tensor<f32>) dimensions = [0, 1]\n"
        "%r = tensor.expand_shape %s [] output_shape [1] : tensor<f32> into tensor<1xf32>",
        (1,),
        lambda x: x.sum().reshape(1),
    ),
    "reduce over the first dim": (
        "%z = arith.constant dense<0xFF800000> : tensor<40xf32>\n"
        "%r = linalg.reduce { arith.maximumf } ins(%v : tensor<6x40xf32>) outs(%z : tensor<40xf32>) dimensions = [0]",
        (40,),
        lambda x: x.max(0),
    ),
    "reduce with a body": (
        "%z = arith.constant dense<1.0> : tensor<6xf32>\n"
        "%r = linalg.reduce ins(%v : tensor<6x40xf32>) outs(%z : tensor<6xf32>) dimensions = [1] (%a: f32, %o: f32) {\n"
        "%q = math.exp %a : f32\n%t = arith.addf %q, %o : f32\nlinalg.yield %t : f32\n}",
        (6,),
        lambda x: np.exp(x).sum(1) + 1,
    ),
    "select by a scalar": (
        "%a = arith.constant 1 : index\n%b = arith.constant 2 : index\n%c = arith.cmpi slt, %a, %b : index\n"
        "%n = arith.negf %v : tensor<6x40xf32>\n%r = arith.select %c, %n, %v : tensor<6x40xf32>",
        SIZES,
        lambda x: -x,
    ),
    "if with a result": (
        "%a = arith.constant 1 : index\n%b = ktdp.get_compute_tile_id : index\n%c = arith.cmpi slt, %a, %b : index\n"
        "%r = scf.if %c -> (tensor<6x40xf32>) {\n%n = arith.negf %v : tensor<6x40xf32>\nscf.yield %n "
        ": tensor<6x40xf32>\n"
        "} else {\n%m = arith.addf %v, %v : tensor<6x40xf32>\nscf.yield %m : tensor<6x40xf32>\n}",
        SIZES,
        lambda x: 2 * x,
    ),
    "loop with a scalar and a tensor": (
        "%c0 = arith.constant 0 : i32\n%c1 = arith.constant 1 : i32\n%c5 = arith.constant 5 : i32\n"
        "%r, %n = scf.for %i = %c0 to %c5 step %c1 iter_args(%acc = %v, %k = %c0) -> (tensor<6x40xf32>, i32) : i32 {\n"
        "%t = arith.addf %acc, %v : tensor<6x40xf32>\n%m = arith.addi %k, %i : i32\n"
        "scf.yield %t, %m : tensor<6x40xf32>, i32\n}",
        SIZES,
        lambda x: 6 * x,
    ),
    "matmul with a transposed operand": (
        "%z = arith.constant dense<0.0> : tensor<6x6xf32>\n%r = linalg.matmul_transpose_b "
        "ins(%v, %v : tensor<6x40xf32>, tensor<6x40xf32>) outs(%z : tensor<6x6xf32>) -> tensor<6x6xf32>",
        (6, 6),
        lambda x: x @ x.T,
    ),
    "matvec": (
        "%w = tensor.extract_slice %v[0, 0] [1, 40] [1, 1] : tensor<6x40xf32> to tensor<40xf32>\n"
        "%z = arith.constant dense<0.0> : tensor<6xf32>\n%r = linalg.matvec ins(%v, %w : "
        "tensor<6x40xf32>, tensor<40xf32>) "
        "outs(%z : tensor<6xf32>) -> tensor<6xf32>",
        (6,),
        lambda x: x @ x[0],
    ),
    "batch_matmul": (
        "%a = tensor.expand_shape %v [[0, 1], [2]] output_shape [2, 3, 40] : tensor<6x40xf32> into tensor<2x3x40xf32>\n"
        "%e = tensor.empty() : tensor<2x40x3xf32>\n%b = linalg.transpose ins(%a : tensor<2x3x40xf32>) "
        "outs(%e : tensor<2x40x3xf32>) permutation = [0, 2, 1]\n%z = arith.constant dense<0.0> : tensor<2x3x3xf32>\n"
        "%r = linalg.batch_matmul ins(%a, %b : tensor<2x3x40xf32>, tensor<2x40x3xf32>) outs(%z : tensor<2x3x3xf32>) "
        "-> tensor<2x3x3xf32>",
        (2, 3, 3),
        lambda x: x.reshape(2, 3, 40) @ x.reshape(2, 3, 40).transpose(0, 2, 1),
    ),
}  # fmt: skip


def _inserted(x: np.ndarray) -> np.ndarray:
    copy = x.copy()
    copy[3:5, 20:30] = x[:2, :10]
    return copy


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_reductions_and_control_flow(name: str) -> None:
    text, sizes, oracle = SHAPES[name]
    body = whole("x", SIZES, "f32") + whole("y", sizes, "f32") + load("v", "tx", SIZES, "f32")
    x, y = reals(), torch.zeros(sizes)
    ktir.load(function(body + text + "\n" + store("r", "ty", sizes, "f32"), "%x: index, %y: index")).run(x, y)
    check(y, oracle(x.double().numpy()), 1e-5)


@pytest.mark.parametrize(
    "loop",
    [
        "scf.forall (%i, %j) in (6, 5) {{\n{}}}\n",
        "scf.parallel (%i, %j) = (%c0, %c0) to (%c6, %c5) step (%c1, %c1) {{\n{}scf.reduce\n}}\n",
        "scf.for %i = %c0 to %c6 step %c1 {{\nscf.for %j = %c0 to %c5 step %c1 {{\n{}}}\n}}\n",
    ],
    ids=["forall", "parallel", "for"],
)
def test_loops_over_tiles(loop: str) -> None:
    body = view("Vx", "%x", SIZES, "f32") + view("Vy", "%y", SIZES, "f32")
    body += "".join(f"%c{n} = arith.constant {n} : index\n" for n in (0, 1, 5, 6, 8))
    inner = "%k = arith.muli %j, %c8 : index\n" + tile("tx", "Vx", SIZES, ("%i", "%k"), (1, 8), "f32")
    inner += tile("ty", "Vy", SIZES, ("%i", "%k"), (1, 8), "f32") + load("v", "tx", (1, 8), "f32")
    inner += "%r = arith.mulf %v, %v : tensor<1x8xf32>\n" + store("r", "ty", (1, 8), "f32")
    x, y = reals(), torch.zeros(SIZES)
    ktir.load(function(body + loop.format(inner), "%x: index, %y: index")).run(x, y)
    check(y, x.double().numpy() ** 2)


def test_forall_with_outputs() -> None:
    body = whole("x", SIZES, "f32") + whole("y", SIZES, "f32") + load("v", "tx", SIZES, "f32")
    body += "%e = tensor.empty() : tensor<6x40xf32>\n"
    body += "%r = scf.forall (%i) in (6) shared_outs(%o = %e) -> (tensor<6x40xf32>) {\n"
    body += "%s = tensor.extract_slice %v[%i, 0] [1, 40] [1, 1] : tensor<6x40xf32> to tensor<1x40xf32>\n"
    body += "%n = arith.negf %s : tensor<1x40xf32>\nscf.forall.in_parallel {\n"
    body += (
        "tensor.parallel_insert_slice %n into %o[%i, 0] [1, 40] [1, 1] : tensor<1x40xf32> into tensor<6x40xf32>\n}\n}\n"
    )
    x, y = reals(), torch.zeros(SIZES)
    ktir.load(function(body + store("r", "ty", SIZES, "f32"), "%x: index, %y: index")).run(x, y)
    check(y, -x.double().numpy())


def test_parallel_reduction() -> None:
    """The sum of all rows, by a loop whose iterations may come in any order."""
    body = view("Vx", "%x", SIZES, "f32") + whole("y", (1, 40), "f32")
    body += "".join(f"%c{n} = arith.constant {n} : index\n" for n in (0, 1, 6))
    body += "%z = arith.constant dense<0.0> : tensor<1x40xf32>\n"
    body += "%r = scf.parallel (%i) = (%c0) to (%c6) step (%c1) init (%z) -> tensor<1x40xf32> {\n"
    body += tile("tx", "Vx", SIZES, ("%i", "0"), (1, 40), "f32") + load("v", "tx", (1, 40), "f32")
    body += "scf.reduce(%v : tensor<1x40xf32>) {\n^bb0(%l: tensor<1x40xf32>, %q: tensor<1x40xf32>):\n"
    body += "%s = arith.addf %l, %q : tensor<1x40xf32>\nscf.reduce.return %s : tensor<1x40xf32>\n}\n}\n"
    x, y = reals(), torch.zeros(1, 40)
    ktir.load(function(body + store("r", "ty", (1, 40), "f32"), "%x: index, %y: index")).run(x, y)
    check(y, x.double().numpy().sum(0, keepdims=True), 1e-5)


def test_subview() -> None:
    body = view("Vx", "%x", SIZES, "f32") + whole("y", (2, 10), "f32")
    kind = "memref<2x10xf32, strided<[80, 1], offset: 45>>"
    body += f"%s = memref.subview %Vx[1, 5] [2, 10] [2, 1] : memref<6x40xf32> to {kind}\n"
    body += (
        f"%t = ktdp.construct_access_tile %s[0, 0] {{access_tile_set = {box((2, 10))}, access_tile_order = {order(2)}}}"
    )
    body += (
        f" : {kind} -> <{shape((2, 10), 'index')}>\n"
        + load("v", "t", (2, 10), "f32")
        + store("v", "ty", (2, 10), "f32")
    )
    x, y = reals(), torch.zeros(2, 10)
    ktir.load(function(body, "%x: index, %y: index")).run(x, y)
    check(y, x.double().numpy()[1:4:2, 5:15])


@pytest.mark.parametrize(
    ("call", "beta", "threshold"),
    [
        ("%a", 1.0, 20.0),
        ("%a {beta = 2.0 : f32, threshold = 1.5 : f32}", 2.0, 1.5),
        ("%a, %two, %limit", 2.0, 1.5),
    ],
)
def test_softplus_takes_its_parameters_as_attributes_or_operands(call: str, beta: float, threshold: float) -> None:
    text = (
        "%e = tensor.empty() : tensor<6x40xf32>\n%two = arith.constant 2.0 : f32\n%limit = arith.constant 1.5 : f32\n"
    )
    text += "%r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], "
    text += 'iterator_types = ["parallel", "parallel"]} ins(%v : tensor<6x40xf32>) outs(%e : tensor<6x40xf32>) {\n'
    text += (
        f"^bb0(%a: f32, %o: f32):\n%s = spyreop.softplus {call} : f32\nlinalg.yield %s : f32\n}} -> tensor<6x40xf32>"
    )
    x, y = reals(), torch.zeros(SIZES)
    ktir.load(unary(text, SIZES, "f32"), strict=True).run(x, y)
    wide = x.double().numpy() * beta
    check(y, np.where(wide > threshold, x.double().numpy(), np.log1p(np.exp(wide)) / beta), 1e-5)


@pytest.mark.parametrize("permutation", [None, (1, 0)])
def test_a_tile_of_a_tensor_value_is_a_slice(permutation: tuple[int, ...] | None) -> None:
    sizes = (3, 8) if permutation is None else (8, 3)
    body = whole("x", SIZES, "f32") + whole("y", sizes, "f32") + load("v", "tx", SIZES, "f32")
    body += "%i = arith.constant 1 : index\n"
    body += tile("t", "v", SIZES, ("2 * %i", "%i + 4"), (3, 8), "f32", permutation=permutation).replace(
        "memref", "tensor"
    )
    body += load("w", "t", sizes, "f32") + store("w", "ty", sizes, "f32")
    x, y = reals(), torch.zeros(sizes)
    ktir.load(function(body, "%x: index, %y: index")).run(x, y)
    expected = x.double().numpy()[2:5, 5:13]
    check(y, expected if permutation is None else expected.T)
    with pytest.raises(InvalidProgram, match="store through a tile of a tensor value"):
        ktir.load(function(body + store("w", "t", sizes, "f32"), "%x: index, %y: index"))


def test_scatter_and_scatter_with_addition() -> None:
    for flags, accumulates in (("", False), (" {accumulate}", True)):
        body = whole("x", (5, 64), "f32") + view("I", "%i", (5,), "i32") + view("Y", "%y", (8, 64), "f32")
        body += load("v", "tx", (5, 64), "f32")
        body += (
            "%t = ktdp.construct_indirect_access_tile intermediate_variables(%a, %b) %Y[ind(%I[%a]), (%b)] "
            f"{{variables_space_set = {box((5, 64))}, variables_space_order = {order(2)}}} "
            ": memref<8x64xf32>, memref<5xi32> -> <5x64xindex>\n"
        )
        body += f"ktdp.store %v, %t{flags} : tensor<5x64xf32>, <5x64xindex>\n"
        x, index = reals(sizes=(5, 64)), torch.tensor([3, 0, 7, 3, 1], dtype=torch.int32)
        y = torch.ones(8, 64)
        ktir.load(function(body, "%x: index, %i: index, %y: index")).run(x, index, y)
        expected = np.ones((8, 64))
        if accumulates:
            np.add.at(expected, index.numpy(), x.double().numpy())
        else:
            expected[index.numpy()] = x.double().numpy()
        check(y, expected)


def test_gather_with_two_indices() -> None:
    body = view("X", "%x", (8, 9, 16), "f32") + view("I", "%i", (4,), "i32") + view("J", "%j", (4,), "si32")
    body += whole("y", (4, 16), "f32")
    body += (
        "%t = ktdp.construct_indirect_access_tile intermediate_variables(%a, %b) %X[ind(%I[%a]), ind(%J[%a]), (%b)] "
        f"{{variables_space_set = {box((4, 16))}, variables_space_order = {order(2)}}} "
        ": memref<8x9x16xf32>, memref<4xi32>, memref<4xsi32> -> <4x16xindex>\n"
    )
    body += load("v", "t", (4, 16), "f32") + store("v", "ty", (4, 16), "f32")
    x, y = reals(sizes=(8, 9, 16)), torch.zeros(4, 16)
    i, j = torch.tensor([7, 0, 3, 3], dtype=torch.int32), torch.tensor([8, 1, 0, 8], dtype=torch.int32)
    ktir.load(function(body, "%x: index, %i: index, %j: index, %y: index")).run(x, i, j, y)
    check(y, x.double().numpy()[i.numpy(), j.numpy()])


def test_exchange_inside_a_loop_that_uses_its_group() -> None:
    """Four tiles in two groups; each round adds the group's sum to every row."""
    kind = "tensor<1x64xf32>"
    future = f"<({kind}), groups = affine_set<(g) : (g >= 0, 1 - g >= 0)>>"
    members = "affine_set<(i)[g] : (i - 2 * g >= 0, 2 * g + 1 - i >= 0)>"
    body = "%id = ktdp.get_compute_tile_id : index\n"
    for name in "xy":
        body += view(f"V{name}", f"%{name}", (4, 64), "f32") + tile(
            f"t{name}", f"V{name}", (4, 64), ("%id", "0"), (1, 64), "f32"
        )
    body += load("v", "tx", (1, 64), "f32") + f"%z = arith.constant dense<0.0> : {kind}\n"
    body += "%c0 = arith.constant 0 : index\n%c1 = arith.constant 1 : index\n%c3 = arith.constant 3 : index\n"
    body += (
        f"%r = scf.for %k = %c0 to %c3 step %c1 iter_args(%acc = %v) -> ({kind}) {{\n"
        f"%f = ktdp.inter_tile_produce producer_tiles_per_group = {members} -> {future} {{\n^bb0(%g: index):\n"
        f"ktdp.yield_partial %acc : {kind}\n}}\n"
        f"%s = ktdp.inter_tile_reduce(%f) consumer_tiles_per_group = {members}, identity(%z : {kind}) "
        f": {future} -> {kind} "
        f"{{\n^bb0(%l: {kind}, %q: {kind}):\n%t = arith.addf %l, %q : {kind}\nktdp.yield_reduced %t : {kind}\n}}\n"
        f"%n = arith.addf %acc, %s : {kind}\nscf.yield %n : {kind}\n}}\n"
    )
    x, y = reals(sizes=(4, 64)), torch.zeros(4, 64)
    ktir.load(function(body + store("r", "ty", (1, 64), "f32"), "%x: index, %y: index", "[4]")).run(x, y)
    expected = x.double().numpy()
    for _ in range(3):
        expected = expected + expected.reshape(2, 2, 64).sum(1, keepdims=True).repeat(2, 1).reshape(4, 64)
    check(y, expected, 1e-5)
