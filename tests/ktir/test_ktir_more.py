# SPDX-License-Identifier: Apache-2.0
"""pytest tests/ktir/test_ktir_more.py: integers are exact in every width and signedness, functions at the ends
of their range, and linalg.generic with several results in MLIR's spelling; against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from torch_spyre import ktir

UNSIGNED = {"i8": np.uint8, "i16": np.uint16, "i32": np.uint32}
SIGNED = {"i8": np.int8, "i16": np.int16, "i32": np.int32}
FLOATS = np.array([0, 1, -1, 0.5, 15, -100.3, 1e10, -1e10, 1e30, -3e37, np.inf, -np.inf, np.nan], np.float32)


def _view(name: str, argument: str, shape: str, count: int, element: str) -> str:
    points = f"affine_set<(d0) : (d0 >= 0, -d0 + {count - 1} >= 0)>"
    return f"""
  %{name}v = ktdp.construct_memory_view %{argument}, sizes: [{count}], strides: [1]
    {{coordinate_set = {points}, memory_space = #ktdp.memory_space<global>}} : memref<{count}x{element}>
  %{name}t = ktdp.construct_access_tile %{name}v[%c0] {{access_tile_set = {points},
    access_tile_order = affine_map<(d0) -> (d0)>}} : memref<{count}x{element}> -> {shape}"""


def run(body: str, inputs: list[np.ndarray], element: str, out: np.ndarray, result: str) -> np.ndarray:
    """`body` computes %r from %x0, %x1, …; T and R stand for the tensor types, N for the number of elements."""
    count = len(out)
    shape = f"!ktdp.access_tile<{count}xindex>"
    names = [f"x{i}" for i in range(len(inputs))]
    text = f"func.func @f({', '.join(f'%{n}a: index' for n in [*names, 'r'])}) {{\n  %c0 = arith.constant 0 : index"
    for name in names:
        text += _view(name, name + "a", shape, count, element)
        text += f"\n  %{name} = ktdp.load %{name}t : {shape} -> tensor<{count}x{element}>"
    text += _view("r", "ra", shape, count, result)
    types = {"T": f"tensor<{count}x{element}>", "R": f"tensor<{count}x{result}>", "B": f"tensor<{count}xi1>"}
    for short, long in types.items():
        body = body.replace(f" {short}", f" {long}")
    text += f"\n  {body}\n  ktdp.store %r, %rt : tensor<{count}x{result}>, {shape}\n  return\n}}"
    values = [torch.from_numpy(np.array(a)) for a in (*inputs, out)]
    ktir.load(text).run(*values)
    return values[-1].numpy()


def numbers(element: str, seed: int = 0) -> np.ndarray:
    info = np.iinfo(SIGNED[element])
    ends = [0, 1, -1, info.max, info.min, info.max - 1, info.min + 1, 7, -7]
    return np.array([*ends, *np.random.default_rng(seed).integers(info.min, info.max, 91)], SIGNED[element])


def divisors(element: str) -> np.ndarray:
    values = np.random.default_rng(9).permutation(numbers(element, 1))
    return np.where(values == 0, SIGNED[element](3), values)


def _ceil(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return -(-a.astype(np.int64) // b)


@pytest.mark.parametrize("element", UNSIGNED)
@pytest.mark.parametrize("divisor", ["any", "constant"])
@pytest.mark.parametrize("op", ["divui", "remui", "ceildivui", "maxui", "minui"])
def test_unsigned_division_and_order(op: str, divisor: str, element: str) -> None:
    a, b = numbers(element), divisors(element)
    body = f"%r = arith.{op} %x0, %x1 : T"
    if divisor == "constant":
        b = np.full_like(a, 7)
        body = f"%k = arith.constant dense<7> : T\n  %r = arith.{op} %x0, %k : T"
    oracle = {"divui": np.floor_divide, "remui": np.remainder, "ceildivui": _ceil, "maxui": np.maximum}
    want = oracle.get(op, np.minimum)(a.view(UNSIGNED[element]), b.view(UNSIGNED[element]))
    got = run(body, [a, b], element, np.zeros_like(a), element)
    np.testing.assert_array_equal(got, want.astype(UNSIGNED[element]).view(SIGNED[element]))


@pytest.mark.parametrize("element", UNSIGNED)
def test_unsigned_shift(element: str) -> None:
    a = numbers(element)
    shift = (np.arange(len(a)) % (8 * a.itemsize)).astype(a.dtype)
    got = run("%r = arith.shrui %x0, %x1 : T", [a, shift], element, np.zeros_like(a), element)
    np.testing.assert_array_equal(
        got.view(UNSIGNED[element]), a.view(UNSIGNED[element]) >> shift.view(UNSIGNED[element])
    )


@pytest.mark.parametrize("element", ["i8", "i16", "i32"])
@pytest.mark.parametrize("op", ["addi", "subi", "muli"])
def test_integers_of_every_width_wrap_around(op: str, element: str) -> None:
    a, b = numbers(element), numbers(element, 2)
    oracle = {"addi": np.add, "subi": np.subtract, "muli": np.multiply}[op]
    got = run(f"%r = arith.{op} %x0, %x1 : T", [a, b], element, np.zeros_like(a), element)
    np.testing.assert_array_equal(got, oracle(a, b))


def test_arithmetic_of_truth_values_is_modulo_two() -> None:
    a, b = numbers("i32"), numbers("i32", 2)
    body = "%p = arith.cmpi slt, %x0, %x1 : T\n  %t = arith.constant dense<true> : B\n  %q = arith.addi %p, %t : B"
    got = run(body + "\n  %r = arith.extui %q : B to R", [a, b], "i32", np.zeros_like(a), "i32")
    np.testing.assert_array_equal(got, a >= b)


@pytest.mark.parametrize("element", UNSIGNED)
def test_unsigned_numbers_become_floats_and_wider(element: str) -> None:
    a = numbers(element)
    unsigned = a.view(UNSIGNED[element])
    got = run("%r = arith.uitofp %x0 : T to R", [a], element, np.zeros(len(a), np.float32), "f32")
    np.testing.assert_array_equal(got, unsigned.astype(np.float32))
    if element != "i32":
        got = run("%r = arith.extui %x0 : T to R", [a], element, np.zeros(len(a), np.int32), "i32")
        np.testing.assert_array_equal(got, unsigned)


def test_unsigned_constants_are_read_as_their_bits() -> None:
    a = np.zeros(4, np.float32)
    body = "%k = arith.constant dense<-1> : tensor<4xi32>\n  %u = arith.uitofp %k : tensor<4xi32> to T"
    got = run(body + "\n  %r = arith.addf %x0, %u : T", [a], "f32", np.zeros(4, np.float32), "f32")
    np.testing.assert_array_equal(got, np.float32(2**32))


def test_floats_become_unsigned_numbers() -> None:
    a = np.array([0, 1.9, 255.5, 2.0**31 - 128, 2.0**31, 3e9, 2.0**32 - 256], np.float32)
    got = run("%r = arith.fptoui %x0 : T to R", [a], "f32", np.zeros(len(a), np.int32), "i32")
    np.testing.assert_array_equal(got.view(np.uint32), a.astype(np.uint32))
    got = run("%r = arith.fptoui %x0 : T to R", [a[:3]], "f32", np.zeros(3, np.int8), "i8")
    np.testing.assert_array_equal(got.view(np.uint8), a[:3].astype(np.uint8))


def test_the_least_number_divides_upwards() -> None:
    a = np.array([-(2**31), 2**31 - 1, -7, 7, 0], np.int32)
    b = np.array([7, 7, 2, -2, 5], np.int32)
    got = run("%r = arith.ceildivsi %x0, %x1 : T", [a, b], "i32", np.zeros_like(a), "i32")
    np.testing.assert_array_equal(got, _ceil(a, b))


@pytest.mark.parametrize(("op", "oracle"), [("asinh", np.arcsinh), ("acosh", np.arccosh), ("cbrt", np.cbrt)])
def test_functions_at_the_ends_of_their_range(op: str, oracle: Callable[..., np.ndarray]) -> None:
    with np.errstate(invalid="ignore"):
        want = oracle(FLOATS.astype(np.float64))
    got = run(f"%r = math.{op} %x0 : T", [FLOATS], "f32", np.zeros_like(FLOATS), "f32")
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_generic_with_several_results_in_parentheses() -> None:
    a = np.random.default_rng(0).standard_normal(40).astype(np.float32)
    body = """%e = tensor.empty() : T
  %s:2 = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
    iterator_types = ["parallel"]} ins(%x0 : T) outs(%e, %e : T, T) {
  ^bb0(%i: f32, %o: f32, %p: f32):
    %d = arith.addf %i, %i : f32
    %n = arith.negf %i : f32
    linalg.yield %d, %n : f32, f32
  } -> (tensor<40xf32>, T)
  %r = arith.mulf %s#0, %s#1 : T"""
    np.testing.assert_allclose(run(body, [a], "f32", np.zeros_like(a), "f32"), -2 * a * a, rtol=1e-6)


@pytest.mark.parametrize("element", ["i8", "i16", "i32"])
@pytest.mark.parametrize("op", ["addi", "muli"])
def test_reductions_of_every_width_wrap_around(op: str, element: str) -> None:
    a = numbers(element) | 1
    body = f"""%k = arith.constant dense<{int(op == "muli")}> : tensor<{element}>
  %s = linalg.reduce {{ arith.{op} }} ins(%x0 : T) outs(%k : tensor<{element}>) dimensions = [0]
  %e = tensor.empty() : T
  %r = linalg.broadcast ins(%s : tensor<{element}>) outs(%e : T) dimensions = [0]"""
    got = run(body, [a], element, np.zeros_like(a), element)
    want = (np.add if op == "addi" else np.multiply).reduce(a, dtype=a.dtype)
    np.testing.assert_array_equal(got, np.full_like(a, want))


@pytest.mark.parametrize("value", [5, -3])
def test_integer_arguments_become_floats(value: int) -> None:
    text = """func.func @f(%x: index, %n: i32) {
  %c0 = arith.constant 0 : index
  %f = arith.sitofp %n : i32 to f32
  %h = arith.constant 0.5 : f32
  %g = arith.mulf %f, %h : f32
  %s = tensor.splat %g : tensor<40xf32>
  %v = ktdp.construct_memory_view %x, sizes: [40], strides: [1] {coordinate_set = #s,
    memory_space = #ktdp.memory_space<global>} : memref<40xf32>
  %t = ktdp.construct_access_tile %v[%c0] {access_tile_set = #s, access_tile_order = affine_map<(d0) -> (d0)>}
    : memref<40xf32> -> <40xindex>
  ktdp.store %s, %t : tensor<40xf32>, <40xindex>
  return
}"""
    x = torch.zeros(40)
    ktir.load("#s = affine_set<(d0) : (d0 >= 0, -d0 + 39 >= 0)>\n" + text).run(x=x, n=value)
    np.testing.assert_array_equal(x.numpy(), value * 0.5)


@pytest.mark.parametrize(
    ("op", "want"),
    [("divui", 2147483644), ("remui", 1), ("minui", 2), ("ceildivui", 2147483645), ("shrui", 1073741822)],
)
def test_unsigned_scalars(op: str, want: int) -> None:
    text = f"""#s = affine_set<(d0) : (d0 >= 0, -d0 + 39 >= 0)>
func.func @f(%x: index, %n: i32) {{
  %c0 = arith.constant 0 : index
  %two = arith.constant 2 : i32
  %r = arith.{op} %n, %two : i32
  %s = tensor.splat %r : tensor<40xi32>
  %v = ktdp.construct_memory_view %x, sizes: [40], strides: [1] {{coordinate_set = #s,
    memory_space = #ktdp.memory_space<global>}} : memref<40xi32>
  %t = ktdp.construct_access_tile %v[%c0] {{access_tile_set = #s, access_tile_order = affine_map<(d0) -> (d0)>}}
    : memref<40xi32> -> <40xindex>
  ktdp.store %s, %t : tensor<40xi32>, <40xindex>
  return
}}"""
    x = torch.zeros(40, dtype=torch.int32)
    ktir.load(text).run(x=x, n=-7)
    np.testing.assert_array_equal(x.numpy(), want)
