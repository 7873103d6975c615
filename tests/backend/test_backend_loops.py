# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/backend/test_backend_loops.py. Absorbed and streamed programs give the bits of the plain ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ktir_write import Writer, f16
from program_interp import round_sen169

from torch_spyre.backend.compile import CompiledProgram
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.schedule import absorb


def loops(program: CompiledProgram) -> int:
    return sum(isinstance(inst, asm.LoopInst) for inst in program.instructions)


def row_tile(w: Writer, view: str, shape: tuple[int, ...], row: str, height: int = 1) -> tuple[str, list[int]]:
    return w.tile(view, shape, "f16", [row, w.index(0)], [height, shape[1]])


def over_rows(rows: int, columns: int, body: Callable[[Writer, str], None], step: int = 1, grid: int = 1) -> Writer:
    """A loop over rows 0 … rows-1 of each core's block."""
    w = Writer((grid,))
    (i,) = w.ids()
    first = w.product(i, rows)
    w.add(f"scf.for %r = {w.index(0)} to {w.index(rows)} step {w.index(step)} {{")
    body(w, w.sum(first, "%r"))
    w.add("}")
    return w


def softmax_rows(w: Writer, row: str, views: tuple[str, str], shape: tuple[int, int]) -> None:
    wide, narrow = f"tensor<1x{shape[1]}xf16>", "tensor<1xf16>"
    x = w.load(row_tile(w, views[0], shape, row))
    e, full = w.op(f"tensor.empty() : {narrow}"), w.op(f"tensor.empty() : {wide}")
    peak = w.op(f"linalg.reduce {{ arith.maximumf }} ins({x} : {wide}) outs({e} : {narrow}) dimensions = [1]")
    peaks = w.op(f"linalg.broadcast ins({peak} : {narrow}) outs({full} : {wide}) dimensions = [1]")
    p = w.op(f"math.exp {w.op(f'arith.subf {x}, {peaks} : {wide}')} : {wide}")
    total = w.op(f"linalg.reduce {{ arith.addf }} ins({p} : {wide}) outs({e} : {narrow}) dimensions = [1]")
    totals = w.op(f"linalg.broadcast ins({total} : {narrow}) outs({full} : {wide}) dimensions = [1]")
    w.store(w.op(f"arith.divf {p}, {totals} : {wide}"), row_tile(w, views[1], shape, row))


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 70), st.sampled_from([64, 200, 3000]), st.sampled_from([1, 3]))
def test_rows_become_a_dim(rows: int, columns: int, grid: int) -> None:
    """Softmax row by row: absorbed whole or in blocks, it has the bits of the loop."""
    shape = (rows * grid, columns)
    a = f16(*shape)
    w = Writer((grid,))
    (i,) = w.ids()
    first = w.product(i, rows)
    views = w.array("a", a), w.array("o", np.zeros(shape))
    w.add(f"scf.for %r = {w.index(0)} to {w.index(rows)} step {w.index(1)} {{")
    softmax_rows(w, w.sum(first, "%r"), views, shape)
    w.add("}")
    absorbed = w.run(exact=False, card_only=True)["o"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(absorb, "absorb", lambda instructions, *_: instructions)
        plain = w.run(exact=False, card_only=True)["o"]
    np.testing.assert_array_equal(absorbed, plain)
    widest = max(len(inst.dims) for inst in w.compile().instructions if isinstance(inst, asm.VopInst))
    assert widest == 2  # rows and columns, no unit dim left


def test_iterations_that_depend_on_each_other_stay_a_loop() -> None:
    """a[i + 1] = a[i] + 1."""
    a = np.zeros((9, 8), np.float32)
    a[0] = np.arange(8)

    def body(w: Writer, row: str) -> None:
        view = w.array("a", a)
        one = w.op("arith.constant dense<1.0> : tensor<1x8xf16>")
        x = w.load(row_tile(w, view, a.shape, row))
        w.store(w.op(f"arith.addf {x}, {one} : tensor<1x8xf16>"), row_tile(w, view, a.shape, w.sum(row, 1)))

    w = over_rows(8, 8, body)
    assert loops(w.compile()) == 1
    np.testing.assert_array_equal(w.run()["a"], np.arange(8) + np.arange(9)[:, None])


def test_the_last_iteration_wins_where_all_write_one_row() -> None:
    a = f16(6, 8)

    def body(w: Writer, row: str) -> None:
        va, vo = w.array("a", a), w.array("o", np.zeros((1, 8)))
        w.store(w.load(row_tile(w, va, a.shape, row)), row_tile(w, vo, (1, 8), w.index(0)))

    w = over_rows(6, 8, body)
    assert loops(w.compile()) == 1
    np.testing.assert_array_equal(w.run()["o"], a[5:])


def test_overlapping_tiles_stay_a_loop() -> None:
    """Three rows at a time in steps of two, in place: each iteration sees what the one before wrote."""
    a = f16(9, 8)

    def body(w: Writer, row: str) -> None:
        view = w.array("a", a)
        x = w.load(row_tile(w, view, a.shape, row, 3))
        w.store(w.op(f"arith.addf {x}, {x} : tensor<3x8xf16>"), row_tile(w, view, a.shape, row, 3))

    w = over_rows(7, 8, body, step=2)
    assert loops(w.compile()) == 1
    expected = a.copy()
    for row in (0, 2, 4, 6):
        expected[row : row + 3] = round_sen169(expected[row : row + 3] * 2)
    np.testing.assert_array_equal(w.run()["a"], expected)


def test_a_sum_along_k_is_one_product_with_the_same_bits() -> None:
    a, b = f16(7, 96), f16(96, 40, seed=1)

    def program(block: int) -> Writer:
        w = Writer()
        va, vb = w.array("a", a), w.array("b", b)
        kind = "tensor<7x40xf32>"
        zero = w.op(f"arith.constant dense<0.0> : {kind}")
        total = w.name()
        w.add(
            f"{total} = scf.for %k = {w.index(0)} to {w.index(96)} step {w.index(block)} iter_args(%acc = {zero}) -> "
            f"({kind}) {{"
        )
        x = w.load(w.tile(va, a.shape, "f16", [w.index(0), "%k"], [7, block]))
        y = w.load(w.tile(vb, b.shape, "f16", ["%k", w.index(0)], [block, 40]))
        n = w.op(
            f"linalg.matmul ins({x}, {y} : tensor<7x{block}xf16>, tensor<{block}x40xf16>) outs(%acc : {kind}) -> {kind}"
        )
        w.add(f"scf.yield {n} : {kind}\n}}")
        w.output("o", total, [7, 40], "f32")
        return w

    results = [program(block).run()["o"] for block in (96, 32, 8)]
    assert loops(program(8).compile()) == 0
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("rows, columns", [(3000, 700), (40, 60000)])
def test_tiles_larger_than_lx_are_streamed(rows: int, columns: int) -> None:
    """A chain with a row reduction on one tile of several MB, on one core: strips of rows, or of columns before it."""
    a = f16(rows, columns)
    kind = f"tensor<{rows}x{columns}xf16>"
    w = Writer()
    x = w.input("a", a)
    y = w.op(f"arith.mulf {x}, {x} : {kind}")
    z = w.op(f"arith.subf {y}, {x} : {kind}")
    u = w.op(f"arith.addf {z}, {y} : {kind}")
    w.output("o", u, [rows, columns])
    program = w.compile()
    assert loops(program) == 1 and program.lx_bytes <= 2 << 20
    y_ = round_sen169(a * a)
    np.testing.assert_array_equal(w.run(card_only=True)["o"], round_sen169(round_sen169(y_ - a) + y_))


def test_row_reductions_of_large_tiles_are_streamed() -> None:
    rows, columns = 4000, 400
    a = f16(rows, columns)
    wide, narrow = f"tensor<{rows}x{columns}xf16>", f"tensor<{rows}xf16>"
    w = Writer()
    x = w.input("a", a)
    e, full = w.op(f"tensor.empty() : {narrow}"), w.op(f"tensor.empty() : {wide}")
    y = w.op(f"arith.mulf {x}, {x} : {wide}")
    s = w.op(f"linalg.reduce {{ arith.addf }} ins({y} : {wide}) outs({e} : {narrow}) dimensions = [1]")
    t = w.op(f"linalg.broadcast ins({s} : {narrow}) outs({full} : {wide}) dimensions = [1]")
    w.output("o", w.op(f"arith.divf {y}, {t} : {wide}"), [rows, columns])
    assert w.compile().lx_bytes <= 2 << 20
    squares = round_sen169(a * a).astype(np.float64)
    expected = squares / squares.sum(1, keepdims=True)
    np.testing.assert_allclose(w.run(card_only=True)["o"], expected, rtol=2 * 2.0**-9, atol=1e-9)


def test_products_whose_result_does_not_fit_are_streamed() -> None:
    """relu(a @ b) + a @ b with a 12 MB f32 product, on one core."""
    rows, columns, depth = 2000, 1500, 64
    a, b = f16(rows, depth), f16(depth, columns, seed=1)
    kind = f"tensor<{rows}x{columns}xf32>"
    w = Writer()
    x, y = w.input("a", a), w.input("b", b)
    zero = w.op(f"arith.constant dense<0.0> : {kind}")
    types = f"tensor<{rows}x{depth}xf16>, tensor<{depth}x{columns}xf16>"
    c = w.op(f"linalg.matmul ins({x}, {y} : {types}) outs({zero} : {kind}) -> {kind}")
    positive = w.op(f"arith.maximumf {c}, {zero} : {kind}")
    total = w.op(f"arith.addf {positive}, {c} : {kind}")
    w.output("o", w.op(f"arith.truncf {total} : {kind} to tensor<{rows}x{columns}xf16>"), [rows, columns])
    program = w.compile()
    assert loops(program) == 1 and program.lx_bytes <= 2 << 20
    exact = a.astype(np.float64) @ b.astype(np.float64)
    exact = np.maximum(exact, 0) + exact
    np.testing.assert_allclose(w.run(card_only=True)["o"], exact, rtol=2.0**-9, atol=1e-4)
