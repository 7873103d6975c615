# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/backend/test_backend_ops.py. Tensor operations of the standard dialects, each against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ktir_write import Writer, f16, shaped
from program_interp import round_sen169

from torch_spyre.backend.options import Options
from torch_spyre.backend.program import assembler as asm
from torch_spyre.errors import UnsupportedOp

NAN = math.nan
SPECIAL = np.array([0.0, 1.0, -1.0, 2.5, -2.5, NAN, 3.0, NAN], np.float32)
ULP = 2.0**-9


def unary(text: str, a: np.ndarray, kind: str = "f16", out: str | None = None, exact: bool = True) -> np.ndarray:
    """`text` with {x}, {T} and {U}: the input, its type and the result's."""
    w = Writer()
    x = w.input("a", a, kind)
    out = out or kind
    types = {"T": f"tensor<{shaped(a.shape, kind)}>", "U": f"tensor<{shaped(a.shape, out)}>"}
    w.output("o", w.op(text.format(x=x, **types)), a.shape, out)
    return w.run(exact=exact)["o"]


def binary(text: str, a: np.ndarray, b: np.ndarray, kind: str = "f16") -> np.ndarray:
    w = Writer()
    x, y = w.input("a", a, kind), w.input("b", b, kind)
    w.output("o", w.op(text.format(x=x, y=y, T=f"tensor<{shaped(a.shape, kind)}>")), a.shape, kind)
    return w.run()["o"]


# -- A10: conversions and predicates -----------------------------------------------------------------------------------


def test_conversions_honour_the_result_type() -> None:
    a = np.array([1.75, -1.75, 0.5, -0.5, 100.25], np.float32)
    np.testing.assert_array_equal(unary("arith.fptosi {x} : {T} to {U}", a, "f16", "i32"), np.trunc(a))
    np.testing.assert_array_equal(unary("arith.extf {x} : {T} to {U}", a, "f16", "f32"), a)
    wide = np.array([1.1, 1e-3, 3e5], np.float32)
    np.testing.assert_array_equal(unary("arith.truncf {x} : {T} to {U}", wide, "f32", "f16"), round_sen169(wide))
    whole = np.array([-5, 0, 70000, 2**24 + 1], np.int32)
    np.testing.assert_array_equal(unary("arith.sitofp {x} : {T} to {U}", whole, "i32", "f32"), whole.astype(np.float32))
    np.testing.assert_array_equal(
        unary("arith.sitofp {x} : {T} to {U}", whole, "i32", "f16"), round_sen169(whole.astype(np.float32))
    )


def test_truncation_of_integers_keeps_low_bits() -> None:
    w = Writer()
    a = np.array([1, 127, 128, 255, 256, -129], np.int32)
    x = w.input("a", a, "i32")
    small = w.op(f"arith.trunci {x} : tensor<6xi32> to tensor<6xi8>")
    w.output("o", w.op(f"arith.extsi {small} : tensor<6xi8> to tensor<6xi32>"), [6], "i32")
    np.testing.assert_array_equal(w.run()["o"], a.astype(np.int8))


def test_bits_of_floats() -> None:
    a = np.array([1.0, -2.5, 0.0], np.float32)
    np.testing.assert_array_equal(unary("arith.bitcast {x} : {T} to {U}", a, "f32", "i32"), a.view(np.int32))
    with pytest.raises(UnsupportedOp, match="bitcast"):
        unary("arith.bitcast {x} : {T} to {U}", a, "f16", "i16")


PREDICATES = {
    "oeq": lambda a, b: a == b,
    "ogt": lambda a, b: a > b,
    "oge": lambda a, b: a >= b,
    "olt": lambda a, b: a < b,
    "ole": lambda a, b: a <= b,
    "one": lambda a, b: (a < b) | (a > b),
    "ord": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "ueq": lambda a, b: ~((a < b) | (a > b)),
    "ugt": lambda a, b: ~(a <= b),
    "uge": lambda a, b: ~(a < b),
    "ult": lambda a, b: ~(a >= b),
    "ule": lambda a, b: ~(a > b),
    "une": lambda a, b: a != b,
    "uno": lambda a, b: np.isnan(a) | np.isnan(b),
    "true": lambda a, b: np.ones(a.shape, bool),
    "false": lambda a, b: np.zeros(a.shape, bool),
}


@pytest.mark.parametrize("predicate", PREDICATES)
def test_float_predicates_are_ieee(predicate: str) -> None:
    a, b = (x.reshape(-1) for x in np.meshgrid(SPECIAL, SPECIAL))
    w = Writer()
    x, y = w.input("a", a), w.input("b", b)
    c = w.op(f"arith.cmpf {predicate}, {x}, {y} : tensor<64xf16>")
    w.output("o", w.op(f"arith.uitofp {c} : tensor<64xi1> to tensor<64xf16>"), [64])
    np.testing.assert_array_equal(w.run()["o"], PREDICATES[predicate](a, b))


@pytest.mark.parametrize("predicate", ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"])
def test_integer_predicates(predicate: str) -> None:
    numbers = np.array([0, 1, -1, 7, -(2**31), 2**31 - 1], np.int32)
    a, b = (x.reshape(-1) for x in np.meshgrid(numbers, numbers))
    w = Writer()
    c = w.op(f"arith.cmpi {predicate}, {w.input('a', a, 'i32')}, {w.input('b', b, 'i32')} : tensor<36xi32>")
    w.output("o", w.op(f"arith.extui {c} : tensor<36xi1> to tensor<36xi32>"), [36], "i32")
    left, right = (a, b) if predicate[0] != "u" else (a.view(np.uint32), b.view(np.uint32))
    functions = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal}
    functions |= {"gt": np.greater, "ge": np.greater_equal}
    name = predicate if predicate in ("eq", "ne") else predicate[1:]
    np.testing.assert_array_equal(w.run()["o"], functions[name](left, right))


def test_maxima_with_and_without_nan() -> None:
    a, b = (x.reshape(-1) for x in np.meshgrid(SPECIAL, SPECIAL))
    cases = {"maximumf": np.maximum, "minimumf": np.minimum, "maxnumf": np.fmax, "minnumf": np.fmin}
    for name, function in cases.items():
        np.testing.assert_array_equal(binary(f"arith.{name} {{x}}, {{y}} : {{T}}", a, b), function(a, b), name)


def test_logic_on_truth_values_and_bits() -> None:
    a, b = np.array([0, 1, 0, 1, 12], np.int32), np.array([0, 0, 1, 1, 10], np.int32)
    for name, function in (("andi", np.bitwise_and), ("ori", np.bitwise_or), ("xori", np.bitwise_xor)):
        np.testing.assert_array_equal(binary(f"arith.{name} {{x}}, {{y}} : {{T}}", a, b, "i32"), function(a, b))
        w = Writer()
        zero = w.op("arith.constant dense<0> : tensor<5xi32>")
        truths = [
            w.op(f"arith.cmpi ne, {w.input(n, v, 'i32')}, {zero} : tensor<5xi32>") for n, v in (("a", a), ("b", b))
        ]
        c = w.op(f"arith.{name} {truths[0]}, {truths[1]} : tensor<5xi1>")
        w.output("o", w.op(f"arith.uitofp {c} : tensor<5xi1> to tensor<5xf16>"), [5])
        np.testing.assert_array_equal(w.run()["o"], function(a != 0, b != 0))


def test_integer_division_of_tensors() -> None:
    """A4: rounds toward zero."""
    a, b = np.array([7, -7, 7, -7, 6], np.int32), np.array([2, 2, -2, -2, 3], np.int32)
    quotient = np.trunc(a / b).astype(np.int32)
    np.testing.assert_array_equal(binary("arith.divsi {x}, {y} : {T}", a, b, "i32"), quotient)
    np.testing.assert_array_equal(binary("arith.remsi {x}, {y} : {T}", a, b, "i32"), a - quotient * b)
    np.testing.assert_array_equal(binary("arith.floordivsi {x}, {y} : {T}", a, b, "i32"), a // b)
    np.testing.assert_array_equal(binary("arith.ceildivsi {x}, {y} : {T}", a, b, "i32"), -(-a // b))


def test_functions_without_an_instruction_of_their_own() -> None:
    a = np.array([0.5, -0.5, 1.5, 2.5, -2.5, 0.25, 7.0], np.float32)
    np.testing.assert_array_equal(unary("math.round {x} : {T}", a), np.copysign(np.floor(np.abs(a) + 0.5), a))
    b = np.array([-1, 1, -0.0, 0.0, 3, -3, -1], np.float32)
    np.testing.assert_array_equal(binary("math.copysign {x}, {y} : {T}", a, b), np.copysign(a, b))
    c = np.array([1.0, 10, 1000, 0.5], np.float32)
    np.testing.assert_allclose(unary("math.log10 {x} : {T}", c, exact=False), np.log10(c), rtol=ULP, atol=1e-6)
    np.testing.assert_array_equal(binary("arith.remf {x}, {y} : {T}", a, np.full(7, 0.75)), np.fmod(a, 0.75))


# -- scalars -----------------------------------------------------------------------------------------------------------


def test_scalars_from_tensors_spread_over_tensors() -> None:
    """o = a * (s[1] / n + 0.5) with scalar arithmetic in f32."""
    a, s = f16(4, 70), f16(3)
    w = Writer()
    x, y = w.input("a", a), w.input("s", s)
    n = w.scalar("n", 3.0, "f32")
    e = w.op(f"tensor.extract {y}[{w.index(1)}] : tensor<3xf16>")
    wide = w.op(f"arith.extf {e} : f16 to f32")
    half = w.op("arith.constant 0.5 : f32")
    total = w.op(f"arith.addf {w.op(f'arith.divf {wide}, {n} : f32')}, {half} : f32")
    factor = w.op(f"tensor.splat {w.op(f'arith.truncf {total} : f32 to f16')} : tensor<4x70xf16>")
    w.output("o", w.op(f"arith.mulf {x}, {factor} : tensor<4x70xf16>"), [4, 70])
    expected = round_sen169(s[1] / np.float32(3) + np.float32(0.5))
    np.testing.assert_array_equal(w.run()["o"], round_sen169(a * expected))


def test_select_by_one_truth_value() -> None:
    a, b = f16(3, 8), f16(3, 8, seed=1)
    w = Writer((3,))
    (i,) = w.ids()
    at = [i, w.index(0)]
    x, y = (w.load(w.tile(w.array(n, v), v.shape, "f16", at, [1, 8])) for n, v in (("a", a), ("b", b)))
    c = w.op(f"arith.cmpi eq, {i}, {w.index(1)} : index")
    z = w.op(f"arith.select {c}, {x}, {y} : tensor<1x8xf16>")
    w.store(z, w.tile(w.array("o", np.zeros_like(a)), a.shape, "f16", at, [1, 8]))
    np.testing.assert_array_equal(w.run()["o"], [b[0], a[1], b[2]])


def test_select_by_a_truth_value_that_is_data() -> None:
    for first in (1.0, -1.0):
        a = f16(8)
        a[0] = first
        w = Writer()
        x = w.input("a", a)
        e = w.op(f"tensor.extract {x}[{w.index(0)}] : tensor<8xf16>")
        c = w.op(f"arith.cmpf ogt, {e}, {w.op('arith.constant 0.0 : f16')} : f16")
        y = w.op(f"arith.negf {x} : tensor<8xf16>")
        w.output("o", w.op(f"arith.select {c}, {x}, {y} : tensor<8xf16>"), [8])
        np.testing.assert_array_equal(w.run()["o"], a if first > 0 else -a)


# -- A3: empty ---------------------------------------------------------------------------------------------------------


def test_empty_is_neutral_for_reductions_and_zero_elsewhere() -> None:
    a = -np.abs(f16(4, 8)) - 1
    a = round_sen169(a)
    w = Writer()
    x = w.input("a", a)
    e = w.op("tensor.empty() : tensor<4xf16>")
    peak = w.op(
        f"linalg.reduce {{ arith.maximumf }} ins({x} : tensor<4x8xf16>) outs({e} : tensor<4xf16>) dimensions = [1]"
    )
    w.output("m", peak, [4])
    empty = w.op("tensor.empty() : tensor<4x8xf16>")
    w.output("z", w.op(f"arith.addf {x}, {empty} : tensor<4x8xf16>"), [4, 8])
    square = w.op("tensor.empty() : tensor<4x4xf16>")
    y = w.op(
        f"linalg.transpose ins({x} : tensor<4x8xf16>) outs({w.op('tensor.empty() : tensor<8x4xf16>')} : "
        "tensor<8x4xf16>) permutation = [1, 0]"
    )
    product = w.op(
        f"linalg.matmul ins({x}, {y} : tensor<4x8xf16>, tensor<8x4xf16>) outs({square} : tensor<4x4xf16>) "
        "-> tensor<4x4xf16>"
    )
    w.output("p", product, [4, 4])
    out = w.run()
    np.testing.assert_array_equal(out["m"], a.max(1))
    np.testing.assert_array_equal(out["z"], a)
    np.testing.assert_allclose(out["p"], a.astype(np.float64) @ a.T.astype(np.float64), rtol=ULP)
    assert np.isnan(w.run(options=Options(poison_empty=True))["z"]).all()


# -- A6, A7: accumulation ----------------------------------------------------------------------------------------------


def test_products_accumulate_wide_and_round_once() -> None:
    a, b, c = f16(5, 300), f16(300, 7, seed=1), f16(5, 7, seed=2)
    w = Writer()
    x, y, z = w.input("a", a), w.input("b", b), w.input("c", c)
    product = w.op(
        f"linalg.matmul ins({x}, {y} : tensor<5x300xf16>, tensor<300x7xf16>) outs({z} : tensor<5x7xf16>) "
        "-> tensor<5x7xf16>"
    )
    w.output("o", product, [5, 7])
    exact = a.astype(np.float64) @ b.astype(np.float64) + c
    np.testing.assert_allclose(w.run()["o"], exact, rtol=ULP / 2 * 1.01, atol=1e-4)


def test_a_loop_over_k_rounds_every_step_of_an_f16_sum() -> None:
    a, b = f16(4, 64), f16(64, 8, seed=1)
    w = Writer()
    va, vb = w.array("a", a), w.array("b", b)
    zero = w.op("arith.constant dense<0.0> : tensor<4x8xf16>")
    name = w.name()
    w.add(
        f"{name} = scf.for %k = {w.index(0)} to {w.index(64)} step {w.index(16)} iter_args(%acc = {zero}) "
        f"-> (tensor<4x8xf16>) {{"
    )
    x = w.load(w.tile(va, a.shape, "f16", [w.index(0), "%k"], [4, 16]))
    y = w.load(w.tile(vb, b.shape, "f16", ["%k", w.index(0)], [16, 8]))
    n = w.op(
        f"linalg.matmul ins({x}, {y} : tensor<4x16xf16>, tensor<16x8xf16>) outs(%acc : tensor<4x8xf16>) "
        "-> tensor<4x8xf16>"
    )
    w.add(f"scf.yield {n} : tensor<4x8xf16>\n}}")
    w.output("o", name, [4, 8])
    total = np.zeros((4, 8), np.float32)
    for k in range(0, 64, 16):
        step = total.astype(np.float32)
        for i in range(k, k + 16):
            step = (a[:, i, None].astype(np.float64) * b[None, i].astype(np.float64) + step).astype(np.float32)
        total = round_sen169(step)
    np.testing.assert_array_equal(w.run()["o"], total)


def test_wide_accumulation_keeps_a_carried_sum_in_fp32() -> None:
    a, b = f16(4, 640), f16(640, 8, seed=1)
    w = Writer()
    va, vb = w.array("a", a), w.array("b", b)
    kind = "tensor<4x8xf16>"
    zero = w.op(f"arith.constant dense<0.0> : {kind}")
    name = w.name()
    w.add(
        f"{name} = scf.for %k = {w.index(0)} to {w.index(640)} step {w.index(16)} iter_args(%acc = "
        f"{zero}) -> ({kind}) {{"
    )
    x = w.load(w.tile(va, a.shape, "f16", [w.index(0), "%k"], [4, 16]))
    y = w.load(w.tile(vb, b.shape, "f16", ["%k", w.index(0)], [16, 8]))
    n = w.op(f"linalg.matmul ins({x}, {y} : tensor<4x16xf16>, tensor<16x8xf16>) outs(%acc : {kind}) -> {kind}")
    w.add(f"scf.yield {n} : {kind}\n}}")
    w.output("o", name, [4, 8])
    exact = a.astype(np.float64) @ b.astype(np.float64)
    errors = [np.abs(w.run(options=Options(wide_accumulate=wide))["o"] - exact).max() for wide in (False, True)]
    assert errors[1] <= np.abs(exact).max() * ULP / 2 * 1.01 < errors[0]


def test_padding() -> None:
    a = f16(3, 5)
    w = Writer()
    x = w.input("a", a)
    y = w.op(
        f"tensor.pad {x} low[1, 2] high[0, 3] {{\n^bb0(%i: index, %j: index):\n%c = arith.constant 7.0 : f16\n"
        "tensor.yield %c : f16\n} : tensor<3x5xf16> to tensor<4x10xf16>"
    )
    w.output("o", y, [4, 10])
    np.testing.assert_array_equal(w.run()["o"], np.pad(a, ((1, 0), (2, 3)), constant_values=7))


# -- shapes ------------------------------------------------------------------------------------------------------------


def test_reshapes_of_tiles_in_place_and_copied() -> None:
    a = f16(6, 4, 10)
    w = Writer()
    x = w.input("a", a)
    flat = w.op(f"tensor.collapse_shape {x} [[0, 1], [2]] : tensor<6x4x10xf16> into tensor<24x10xf16>")
    w.output("c", flat, [24, 10])
    more = w.op(
        f"tensor.expand_shape {flat} [[0, 1, 2], [3]] output_shape [2, 3, 4, 10] : tensor<24x10xf16> into "
        "tensor<2x3x4x10xf16>"
    )
    w.output("e", more, [2, 3, 4, 10])
    turned = w.op(
        f"linalg.transpose ins({x} : tensor<6x4x10xf16>) outs({w.op('tensor.empty() : tensor<10x6x4xf16>')} : "
        "tensor<10x6x4xf16>) permutation = [2, 0, 1]"
    )
    w.output("t", w.op(f"tensor.collapse_shape {turned} [[0, 1, 2]] : tensor<10x6x4xf16> into tensor<240xf16>"), [240])
    shape = w.op("arith.constant dense<[8, 30]> : tensor<2xi64>")
    w.output(
        "r",
        w.op(f"tensor.reshape {turned}({shape}) : (tensor<10x6x4xf16>, tensor<2xi64>) -> tensor<8x30xf16>"),
        [8, 30],
    )
    out = w.run()
    np.testing.assert_array_equal(out["c"], a.reshape(24, 10))
    np.testing.assert_array_equal(out["e"], a.reshape(2, 3, 4, 10))
    np.testing.assert_array_equal(out["t"], a.transpose(2, 0, 1).reshape(-1))
    np.testing.assert_array_equal(out["r"], a.transpose(2, 0, 1).reshape(8, 30))


def test_slices() -> None:
    a, b = f16(6, 8), f16(2, 3, seed=1)
    w = Writer()
    x, y = w.input("a", a), w.input("b", b)
    part = w.op(f"tensor.extract_slice {x}[1, 2] [2, 3] [2, 1] : tensor<6x8xf16> to tensor<2x3xf16>")
    w.output("s", part, [2, 3])
    row = w.op(f"tensor.extract_slice {x}[4, 0] [1, 8] [1, 1] : tensor<6x8xf16> to tensor<8xf16>")
    w.output("r", row, [8])
    put = w.op(f"tensor.insert_slice {y} into {x}[3, 5] [2, 3] [1, 1] : tensor<2x3xf16> into tensor<6x8xf16>")
    w.output("p", put, [6, 8])
    w.output("x", x, [6, 8])
    both = w.op(f"tensor.concat dim(1) {x}, {x} : (tensor<6x8xf16>, tensor<6x8xf16>) -> tensor<6x16xf16>")
    w.output("c", both, [6, 16])
    out = w.run()
    expected = a.copy()
    expected[3:5, 5:8] = b
    np.testing.assert_array_equal(out["s"], a[1:5:2, 2:5])
    np.testing.assert_array_equal(out["r"], a[4])
    np.testing.assert_array_equal(out["p"], expected)
    np.testing.assert_array_equal(out["x"], a)
    np.testing.assert_array_equal(out["c"], np.concatenate([a, a], 1))


def test_a_slice_past_the_end_is_refused() -> None:
    w = Writer()
    x = w.input("a", f16(6, 8))
    w.output("o", w.op(f"tensor.extract_slice {x}[5, 0] [2, 8] [1, 1] : tensor<6x8xf16> to tensor<2x8xf16>"), [2, 8])
    with pytest.raises(UnsupportedOp, match="inside the tensor"):
        w.compile()


# -- bodies ------------------------------------------------------------------------------------------------------------

MAP2 = "affine_map<(d0, d1) -> (d0, d1)>"


def test_generic_with_any_body_and_permuted_maps() -> None:
    """o[j, i] = a[i, j] > c[i] ? a[i, j] * 2 : i - j, computed in f32."""
    a, c = f16(5, 9), f16(5, seed=1)
    w = Writer()
    x, y = w.input("a", a), w.input("c", c)
    e = w.op("tensor.empty() : tensor<9x5xf32>")
    z = w.op(
        f"linalg.generic {{indexing_maps = [{MAP2}, affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d1, d0)>], "
        'iterator_types = ["parallel", '
        f'"parallel"]}} ins({x}, {y} : tensor<5x9xf16>, tensor<5xf16>) outs({e} : tensor<9x5xf32>) {{\n'
        "^bb0(%p: f16, %q: f16, %r: f32):\n%two = arith.constant 2.0 : f32\n%i = linalg.index 0 : index\n"
        "%j = linalg.index 1 : index\n%d = arith.subi %i, %j : index\n%n = arith.index_cast %d : index to i32\n"
        "%f = arith.sitofp %n : i32 to f32\n%w = arith.extf %p : f16 to f32\n%m = arith.mulf %w, %two : f32\n"
        "%g = arith.cmpf ogt, %p, %q : f16\n%s = arith.select %g, %m, %f : f32\nlinalg.yield %s : "
        "f32\n} -> tensor<9x5xf32>"
    )
    w.output("o", z, [9, 5], "f32")
    i, j = np.indices(a.shape)
    np.testing.assert_array_equal(w.run()["o"], np.where(a > c[:, None], a * 2, i - j).T)


def test_generic_reduction_of_an_expression() -> None:
    """Sum of squares per row."""
    a = f16(6, 200)
    w = Writer()
    x = w.input("a", a)
    zero = w.op("arith.constant dense<0.0> : tensor<6xf32>")
    z = w.op(
        f"linalg.generic {{indexing_maps = [{MAP2}, affine_map<(d0, d1) -> (d0)>], "
        f'iterator_types = ["parallel", "reduction"]}} ins({x} : tensor<6x200xf16>) outs({zero} : tensor<6xf32>) {{\n'
        "^bb0(%p: f16, %r: f32):\n%w = arith.extf %p : f16 to f32\n%m = arith.mulf %w, %w : f32\n"
        "%s = arith.addf %r, %m : f32\nlinalg.yield %s : f32\n} -> tensor<6xf32>"
    )
    w.output("o", z, [6], "f32")
    np.testing.assert_allclose(w.run()["o"], (a.astype(np.float64) ** 2).sum(1), rtol=1e-5)


def test_windows_are_sums_in_the_indexing_map() -> None:
    """o[i] = sum over k of a[2 i + k] * b[k]."""
    a, b = f16(21), f16(3, seed=1)
    w = Writer()
    x, y = w.input("a", a), w.input("b", b)
    zero = w.op("arith.constant dense<0.0> : tensor<10xf32>")
    z = w.op(
        "linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0 * 2 + d1)>, affine_map<(d0, d1) -> (d1)>, "
        'affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} '
        f"ins({x}, {y} : tensor<21xf16>, tensor<3xf16>) outs({zero} : tensor<10xf32>) {{\n"
        "^bb0(%p: f16, %q: f16, %r: f32):\n%u = arith.extf %p : f16 to f32\n%v = arith.extf %q : f16 to f32\n"
        "%m = arith.mulf %u, %v : f32\n%s = arith.addf %r, %m : f32\nlinalg.yield %s : f32\n} -> tensor<10xf32>"
    )
    w.output("o", z, [10], "f32")
    expected = [(a[2 * i : 2 * i + 3].astype(np.float64) * b).sum() for i in range(10)]
    np.testing.assert_allclose(w.run()["o"], expected, rtol=1e-5, atol=1e-6)


def test_arg_max_as_a_reduction_of_pairs() -> None:
    """linalg.reduce of values and places with a combiner of its own; the first of equal values wins."""
    a = np.round(f16(7, 40) * 2)
    w = Writer()
    x = w.input("a", a)
    places = w.input("i", np.broadcast_to(np.arange(40), (7, 40)).copy(), "i32")
    low = w.op("arith.constant dense<0xFC00> : tensor<7xf16>")
    none = w.op("arith.constant dense<2147483647> : tensor<7xi32>")
    value, place = w.name(), w.name()
    w.add(
        f"{value}, {place} = linalg.reduce ins({x}, {places} : tensor<7x40xf16>, tensor<7x40xi32>) "
        f"outs({low}, {none} : tensor<7xf16>, tensor<7xi32>) dimensions = [1] "
        "(%u: f16, %p: i32, %v: f16, %q: i32) "
        "{\n%gt = arith.cmpf ogt, %u, %v : f16\n%eq = arith.cmpf oeq, %u, %v : f16\n"
        "%lt = arith.cmpi slt, %p, %q : i32\n%tie = arith.andi %eq, %lt : i1\n%take = arith.ori %gt, %tie : i1\n"
        "%r = arith.select %take, %u, %v : f16\n%s = arith.select %take, %p, %q : i32\nlinalg.yield %r, "
        "%s : f16, i32\n}"
    )
    w.output("v", value, [7])
    w.output("p", place, [7], "i32")
    out = w.run()
    np.testing.assert_array_equal(out["v"], a.max(1))
    np.testing.assert_array_equal(out["p"], a.argmax(1))


def test_map_generate_and_named_operations() -> None:
    a, b = f16(4, 9), f16(4, 9, seed=1)
    w = Writer()
    x, y = w.input("a", a), w.input("b", b)
    e = w.op("tensor.empty() : tensor<4x9xf16>")
    w.output(
        "m",
        w.op(
            f"linalg.map {{ arith.subf }} ins({x}, {y} : tensor<4x9xf16>, tensor<4x9xf16>) outs({e} : tensor<4x9xf16>)"
        ),
        [4, 9],
    )
    g = w.op(
        "tensor.generate {\n^bb0(%i: index, %j: index):\n%s = arith.addi %i, %j : index\n"
        "%t = arith.index_cast %s : index to i32\ntensor.yield %t : i32\n} : tensor<4x9xi32>"
    )
    w.output("g", g, [4, 9], "i32")
    s = w.op(f"linalg.square ins({x} : tensor<4x9xf16>) outs({e} : tensor<4x9xf16>) -> tensor<4x9xf16>")
    w.output("s", s, [4, 9])
    out = w.run()
    np.testing.assert_array_equal(out["m"], round_sen169(a - b))
    np.testing.assert_array_equal(out["g"], np.indices((4, 9)).sum(0))
    np.testing.assert_array_equal(out["s"], round_sen169(a * a))


@pytest.mark.parametrize(
    "name, shapes",
    [
        ("matvec", ([5, 70], [70], [5])),
        ("vecmat", ([70], [70, 5], [5])),
        ("dot", ([70], [70], [])),
        ("matmul_transpose_b", ([4, 70], [5, 70], [4, 5])),
        ("batch_matmul", ([3, 4, 70], [3, 70, 5], [3, 4, 5])),
    ],
)
def test_named_products(name: str, shapes: tuple[list[int], list[int], list[int]]) -> None:
    a, b = f16(*shapes[0]), f16(*shapes[1], seed=1)
    w = Writer()
    x, y = w.input("a", a), w.input("b", b)
    zero = w.op(f"arith.constant dense<0.0> : tensor<{shaped(shapes[2], 'f32')}>")
    types = [f"tensor<{shaped(s, k)}>" for s, k in zip(shapes, ("f16", "f16", "f32"), strict=True)]
    z = w.op(f"linalg.{name} ins({x}, {y} : {types[0]}, {types[1]}) outs({zero} : {types[2]}) -> {types[2]}")
    w.output("o", z, shapes[2], "f32")
    wide = b.astype(np.float64).T if name.endswith("_b") else b.astype(np.float64)
    np.testing.assert_allclose(w.run()["o"], a.astype(np.float64) @ wide, rtol=1e-5, atol=1e-5)


def test_products_of_8_bit_integers() -> None:
    rng = np.random.default_rng(0)
    a, b, c = rng.integers(-128, 128, (5, 40)), rng.integers(-128, 128, (40, 7)), rng.integers(-999, 999, (5, 7))
    w = Writer()
    x, y = w.input("a", a, "i8"), w.input("b", b, "i8")
    z = w.input("c", c, "i32")
    kind = "tensor<5x7xi32>"
    product = w.op(f"linalg.matmul ins({x}, {y} : tensor<5x40xi8>, tensor<40x7xi8>) outs({z} : {kind}) -> {kind}")
    w.output("o", product, [5, 7], "i32")
    np.testing.assert_array_equal(w.run(card_only=True)["o"], a @ b + c)


def test_scan_arg_reduce_and_sort() -> None:
    a = f16(5, 33)
    w = Writer()
    x = w.input("a", a, "f32")
    kind = "tensor<5x33xf32>"
    w.output("s", w.op(f'spyreop.scan {x} {{dimension = 1 : i64, kind = "max"}} : {kind} -> {kind}'), [5, 33], "f32")
    i, v = w.name(), w.name()
    w.add(
        f'{i}, {v} = spyreop.arg_reduce {x} {{dimension = 0 : i64, kind = "min"}} : {kind} -> '
        "(tensor<33xi32>, tensor<33xf32>)"
    )
    w.output("i", i, [33], "i32")
    w.output("v", v, [33], "f32")
    sv, si = w.name(), w.name()
    w.add(
        f"{sv}, {si} = spyreop.sort {x} "
        f"{{dimension = 1 : i64, descending = true, stable = true, k = 4 : i64}} : {kind} -> "
        "(tensor<5x4xf32>, tensor<5x4xi32>)"
    )
    w.output("sv", sv, [5, 4], "f32")
    w.output("si", si, [5, 4], "i32")
    out = w.run()
    np.testing.assert_array_equal(out["s"], np.maximum.accumulate(a, 1))
    np.testing.assert_array_equal(out["i"], a.argmin(0))
    np.testing.assert_array_equal(out["v"], a.min(0))
    order = np.argsort(-a, 1, kind="stable")[:, :4]
    np.testing.assert_array_equal(out["si"], order)
    np.testing.assert_array_equal(out["sv"], np.take_along_axis(a, order, 1))


def test_what_constants_alone_give_is_computed_once() -> None:
    w = Writer()
    a, b = (w.op(f"arith.constant dense<{v}> : tensor<40x64xf16>") for v in ("3.0", "4.0"))
    x = w.input("a", f16(40, 64))
    y = w.op(f"arith.mulf {a}, {b} : tensor<40x64xf16>")
    w.output("o", w.op(f"arith.addf {x}, {y} : tensor<40x64xf16>"), [40, 64])
    vectors = [i for i in w.compile().instructions if isinstance(i, asm.VopInst)]
    assert [len(i.dims) for i in vectors] == [0, 2]
    np.testing.assert_array_equal(w.run()["o"], round_sen169(f16(40, 64) + 12))
