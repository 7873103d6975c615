# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/backend/test_backend_gather.py. Coordinates that are data: gathers, scatters, read indices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ktir_write import Writer, box, f16, permutation, shaped
from program_interp import round_sen169

from torch_spyre.backend.program import assembler as asm

RNG = np.random.default_rng(5)


def indirect(
    w: Writer,
    base: tuple[str, list[int], str],
    subscripts: str,
    variables: list[int],
    views: list[list[int]],
    order: list[int] | None = None,
) -> tuple[str, list[int]]:
    """An indirect tile over variables %x0, %x1, …; `views` are the shapes of the index views, in order of use."""
    names = ", ".join(f"%x{i}" for i in range(len(variables)))
    order = order or list(range(len(variables)))
    shape = [variables[d] for d in order]
    kinds = ", ".join([f"memref<{shaped(base[1], base[2])}>", *(f"memref<{shaped(v, 'i32')}>" for v in views)])
    name = w.op(
        f"ktdp.construct_indirect_access_tile intermediate_variables({names}) {base[0]}[{subscripts}] "
        f"{{variables_space_set = {box(*variables)}, variables_space_order = {permutation(order)}}} : {kinds} -> "
        f"!ktdp.access_tile<{shaped(shape, 'index')}>"
    )
    return name, shape


def test_rows_through_an_index_view() -> None:
    table, rows = f16(20, 70), RNG.integers(0, 20, 9)
    w = Writer()
    t, i = w.array("t", table), w.array("i", rows, "i32")
    w.output("o", w.load(indirect(w, (t, [20, 70], "f16"), f"ind({i}[%x0]), (%x1)", [9, 70], [[9]])), [9, 70])
    np.testing.assert_array_equal(w.run()["o"], table[rows])
    assert any(isinstance(inst, asm.GatherInst) for inst in w.compile().instructions)


def test_two_indices_and_direct_dims_in_any_order() -> None:
    """o[k, j, i] = t[p[i, j], 2 + k, q[j]]."""
    table = f16(6, 9, 7)
    p, q = RNG.integers(0, 6, (3, 4)), RNG.integers(0, 7, 4)
    w = Writer()
    t, pv, qv = w.array("t", table), w.array("p", p, "i32"), w.array("q", q, "i32")
    subscripts = f"ind({pv}[%x0, %x1]), (%x2 + 2), ind({qv}[%x1])"
    tile = indirect(w, (t, [6, 9, 7], "f16"), subscripts, [3, 4, 5], [[3, 4], [4]], [2, 1, 0])
    w.output("o", w.load(tile), [5, 4, 3])
    expected = table[p[:, :, None], 2 + np.arange(5), q[None, :, None]]
    np.testing.assert_array_equal(w.run()["o"], expected.transpose(2, 1, 0))


def test_one_index_view_for_two_dims() -> None:
    table, i = f16(8, 8), RNG.integers(0, 8, 5)
    w = Writer()
    t, v = w.array("t", table), w.array("i", i, "i32")
    w.output("o", w.load(indirect(w, (t, [8, 8], "f16"), f"ind({v}[%x0]), ind({v}[%x0])", [5], [[5], [5]])), [5])
    np.testing.assert_array_equal(w.run()["o"], table[i, i])


@pytest.mark.parametrize("accumulate", [False, True])
def test_scatter_rows(accumulate: bool) -> None:
    """The last write of a row wins; with accumulate all count."""
    values, rows = np.round(f16(9, 5) * 4), RNG.integers(0, 6, 9)
    w = Writer()
    i = w.array("i", rows, "i32")
    x = w.input("x", values)
    t = w.array("t", np.ones((6, 5)))
    attributes = "{accumulate}" if accumulate else ""
    w.store(x, indirect(w, (t, [6, 5], "f16"), f"ind({i}[%x0]), (%x1)", [9, 5], [[9]]), attributes=attributes)
    expected = np.ones((6, 5))
    for row, value in zip(rows, values, strict=True):
        expected[row] = expected[row] + value if accumulate else value
    np.testing.assert_array_equal(w.run()["t"], expected)


def _sticks(table: np.ndarray) -> np.ndarray:
    """Rows of whole sticks as [sticks, rows, 64]: how the card stores a matrix."""
    rows, width = table.shape
    return np.ascontiguousarray(table.reshape(rows, width // 64, 64).transpose(1, 0, 2))


@pytest.mark.parametrize("width", [256, 128, 64, 48, 80, 100])
def test_gather_of_columns_through_sticks(width: int) -> None:
    """Each core takes `width` columns, which begin anywhere in a stick: t[col // 64, i[m], col % 64]."""
    table, rows = f16(20, 256), RNG.integers(0, 20, 9)
    cores = 256 // width
    w = Writer((cores,))
    (c,) = w.ids()
    first = w.product(c, width)
    t, i = w.array("t", _sticks(table)), w.array("i", rows, "i32")
    subscripts = f"(({first} + %x1) floordiv 64), ind({i}[%x0]), (({first} + %x1) mod 64)"
    tile = indirect(w, (t, [4, 20, 64], "f16"), subscripts, [9, width], [[9]])
    o = w.array("o", np.zeros((9, 256)))
    w.store(w.load(tile), w.tile(o, [9, 256], "f16", [w.index(0), first], [9, width]))
    np.testing.assert_array_equal(w.run()["o"][:, : cores * width], table[rows][:, : cores * width])


@pytest.mark.parametrize("start", [0, 5, 60, 64, 130])
def test_gather_through_sticks_from_a_column_that_is_an_argument(start: int) -> None:
    """What the columns reach beyond the table reads 0."""
    table, rows = f16(6, 192), RNG.integers(0, 6, 4)
    w = Writer()
    first = w.scalar("first", start, "index")
    t, i = w.array("t", _sticks(table)), w.array("i", rows, "i32")
    subscripts = f"(({first} + %x1) floordiv 64), ind({i}[%x0]), (({first} + %x1) mod 64)"
    w.output("o", w.load(indirect(w, (t, [3, 6, 64], "f16"), subscripts, [4, 96], [[4]])), [4, 96])
    expected = np.zeros((4, 96))
    part = table[rows][:, start : start + 96]
    expected[:, : part.shape[1]] = part
    np.testing.assert_array_equal(w.run()["o"], expected)


def test_gather_through_sticks_whose_column_is_a_sum_of_two_dims() -> None:
    """o[m, h, d] = t[i[m], 40 * h + d], columns in sticks."""
    table, rows = f16(7, 128), RNG.integers(0, 7, 5)
    w = Writer()
    t, i = w.array("t", _sticks(table)), w.array("i", rows, "i32")
    subscripts = f"((40 * %x1 + %x2) floordiv 64), ind({i}[%x0]), ((40 * %x1 + %x2) mod 64)"
    w.output("o", w.load(indirect(w, (t, [2, 7, 64], "f16"), subscripts, [5, 3, 40], [[5]])), [5, 3, 40])
    np.testing.assert_array_equal(w.run()["o"], table[rows][:, :120].reshape(5, 3, 40))


def test_gather_through_a_layout_of_three_levels() -> None:
    """Column 256 * a + 64 * b + c of a row is at [b, row, a, c]."""
    table, rows = f16(20, 512), RNG.integers(0, 20, 9)
    w = Writer()
    layout = np.ascontiguousarray(table.reshape(20, 2, 4, 64).transpose(2, 0, 1, 3))
    t, i = w.array("t", layout), w.array("i", rows, "i32")
    subscripts = f"(((%x1 + 30) floordiv 64) mod 4), ind({i}[%x0]), ((%x1 + 30) floordiv 256), ((%x1 + 30) mod 64)"
    w.output("o", w.load(indirect(w, (t, [4, 20, 2, 64], "f16"), subscripts, [9, 450], [[9]])), [9, 450])
    np.testing.assert_array_equal(w.run()["o"], table[rows][:, 30:480])


@pytest.mark.parametrize("off", [0, 7])
def test_gather_of_pages(off: int) -> None:
    """Tokens by page: the page from a table of pages, the place in it, columns from inside a stick."""
    cache, pages = f16(12 * 16, 192), RNG.permutation(12)[:8]
    w = Writer()
    k, b = w.array("k", _sticks(cache).reshape(3, 12, 16, 64)), w.array("b", pages, "i32")
    token, column = f"(%x0 + {off})", "(%x1 + 10)"
    subscripts = f"({column} floordiv 64), ind({b}[{token} floordiv 16]), ({token} mod 16), ({column} mod 64)"
    w.output("o", w.load(indirect(w, (k, [3, 12, 16, 64], "f16"), subscripts, [100, 150], [[8]])), [100, 150])
    expected = cache.reshape(12, 16, 192)[pages].reshape(128, 192)[off : off + 100, 10:160]
    np.testing.assert_array_equal(w.run()["o"], expected)


@pytest.mark.parametrize("accumulate", [False, True])
def test_scatter_through_sticks(accumulate: bool) -> None:
    """Columns 40 to 89 of rows; the last write of a row wins, or all add."""
    values, rows = np.round(f16(9, 50) * 4), RNG.integers(0, 6, 9)
    w = Writer()
    x, i, t = w.input("x", values), w.array("i", rows, "i32"), w.array("t", np.ones((2, 6, 64)))
    subscripts = f"((%x1 + 40) floordiv 64), ind({i}[%x0]), ((%x1 + 40) mod 64)"
    tile = indirect(w, (t, [2, 6, 64], "f16"), subscripts, [9, 50], [[9]])
    w.store(x, tile, attributes="{accumulate}" if accumulate else "")
    expected = np.ones((6, 128))
    for row, value in zip(rows, values, strict=True):
        expected[row, 40:90] = expected[row, 40:90] + value if accumulate else value
    np.testing.assert_array_equal(w.run()["t"], _sticks(expected))


def test_masked_accesses_skip_indices_out_of_range() -> None:
    table, rows = f16(6, 5), np.array([0, -1, 5, 6, 3])
    w = Writer()
    t, i = w.array("t", table), w.array("i", rows, "i32")
    x = w.load(indirect(w, (t, [6, 5], "f16"), f"ind({i}[%x0]), (%x1)", [5, 5], [[5]]), attributes="{masked}")
    w.output("o", x, [5, 5])
    s = w.array("s", np.zeros((6, 5)))
    w.store(x, indirect(w, (s, [6, 5], "f16"), f"ind({i}[%x0]), (%x1)", [5, 5], [[5]]), attributes="{masked}")
    out = w.run()
    good = (rows >= 0) & (rows < 6)
    np.testing.assert_array_equal(out["o"], np.where(good[:, None], table[rows.clip(0, 5)], 0))
    expected = np.zeros((6, 5))
    expected[rows[good]] = table[rows[good]]
    np.testing.assert_array_equal(out["s"], expected)


def test_accumulating_stores_without_an_index() -> None:
    a, b = f16(4, 8), f16(4, 8, seed=1)
    w = Writer()
    x = w.input("a", a)
    w.store(x, w.whole("b", b), attributes="{accumulate}")
    np.testing.assert_array_equal(w.run()["b"], round_sen169(a + b))


def test_an_index_that_is_read_from_a_tensor_is_a_coordinate() -> None:
    """Row 2*i[c] + 1 of t for core c, with tensor.extract."""
    table, i = f16(21, 8), RNG.integers(0, 10, 4)
    w = Writer((4,))
    (c,) = w.ids()
    x = w.load(w.tile(w.array("i", i, "i32"), [4], "i32", [c], [1]), "i32")
    scalar = w.op(f"tensor.extract {x}[{w.index(0)}] : tensor<1xi32>")
    row = w.sum(w.product(w.op(f"arith.index_cast {scalar} : i32 to index"), 2), 1)
    y = w.load(w.tile(w.array("t", table), [21, 8], "f16", [row, w.index(0)], [1, 8]))
    w.store(y, w.tile(w.array("o", np.zeros((4, 8))), [4, 8], "f16", [c, w.index(0)], [1, 8]))
    np.testing.assert_array_equal(w.run()["o"], table[2 * i + 1])


def test_index_arithmetic_on_data() -> None:
    """The quotient of a read index is computed as data and is an index again."""
    table, i = f16(7, 8), np.array([13])
    w = Writer()
    x = w.load(w.tile(w.array("i", i, "i32"), [1], "i32", [w.index(0)], [1]), "i32")
    scalar = w.op(f"tensor.extract {x}[{w.index(0)}] : tensor<1xi32>")
    three = w.op("arith.constant 3 : i32")
    quotient = w.op(f"arith.divsi {scalar}, {three} : i32")
    row = w.op(f"arith.index_cast {quotient} : i32 to index")
    y = w.load(w.tile(w.array("t", table), [7, 8], "f16", [row, w.index(0)], [1, 8]))
    w.output("o", y, [1, 8])
    np.testing.assert_array_equal(w.run()["o"], table[4:5])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_gathers_and_scatters(data: st.DataObject) -> None:
    """Random shapes, order, kind and cores; the index view may be cut by its domain and then reads 0."""
    rows, width, count = (data.draw(st.integers(1, 9)) for _ in range(3))
    cores = data.draw(st.sampled_from([1, 2, 4]))
    kind = data.draw(st.sampled_from(["f16", "f32", "i32"]))
    length = data.draw(st.integers(1, cores * count))
    table = np.round(f16(rows, width) * 8)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    index = rng.integers(0, rows, length)
    w = Writer((cores,))
    (c,) = w.ids()
    first = w.product(c, count)
    t, i = w.array("t", table, kind), w.array("i", index, "i32")
    tile = indirect(w, (t, [rows, width], kind), f"ind({i}[{first} + %x0]), (%x1)", [count, width], [[length]], [1, 0])
    o = w.array("o", np.zeros((cores * count, width)), kind)
    target = w.tile(o, [cores * count, width], kind, [first, w.index(0)], [count, width], [1, 0])
    w.store(w.load(tile, kind), target, kind)
    padded = np.zeros(cores * count, np.int64)
    padded[:length] = index
    np.testing.assert_array_equal(w.run()["o"], table[padded])
