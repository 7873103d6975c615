# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/backend/test_backend_splits.py. How a program is cut over cores and loops leaves its bits alone.

Each class of operation is written with random shapes, splits over 1 to 32 cores, blocks, loop orders and places for its
intermediate (a value, LX, card memory); without a split of the summed dim all give the bits of the plain program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ktir_write import Writer, f16, shaped

ULP = 2.0**-9


@dataclasses.dataclass(frozen=True)
class Cut:
    """Rows over `cores`, then blocks of rows and columns in loops, outer first; where the intermediate goes."""

    cores: int = 1
    rows: int | None = None
    columns: int | None = None
    columns_first: bool = False
    place: str = "value"


CUTS = st.builds(
    Cut,
    st.sampled_from([1, 2, 3, 5, 8, 32]),
    st.sampled_from([None, 1, 2, 5]),
    st.sampled_from([None, 3, 16, 64]),
    st.booleans(),
    st.sampled_from(["value", "lx", "memory"]),
)


class Blocks:
    """The loops of a cut over `rows` x `columns`; tiles that reach over the end are cut by their view."""

    def __init__(self, cut: Cut, rows: int, columns: int) -> None:
        self.w = w = Writer((cut.cores,))
        self.cut = cut
        (self.id,) = w.ids()
        self.per_core = -(-rows // cut.cores)
        self.height = min(cut.rows or self.per_core, self.per_core)
        self.width = min(cut.columns or columns, columns)
        self.columns = columns
        self._depth = 0

    def open(self) -> tuple[str, str]:
        w = self.w
        first = w.product(self.id, self.per_core)
        limits = {"%r": (self.per_core, self.height), "%c": (self.columns, self.width)}
        order = ("%c", "%r") if self.cut.columns_first else ("%r", "%c")
        for name in order:
            size, step = limits[name]
            w.add(f"scf.for {name} = {w.index(0)} to {w.index(size)} step {w.index(step)} {{")
        return w.sum(first, "%r"), "%c"

    def close(self) -> None:
        self.w.add("}\n}")

    def through(self, value: str, shape: list[int], like: tuple[str, list[int], list[str]], kind: str = "f16") -> str:
        """The value after a stay in LX or memory."""
        w = self.w
        if self.cut.place == "value":
            return value
        if self.cut.place == "lx":
            view = w.view(w.index(256), shape, kind, space="#ktdp.memory_space<ct_local>")
            tile = w.tile(view, shape, kind, [w.index(0)] * len(shape), shape)
        else:
            tile = w.tile(like[0], like[1], kind, like[2], shape)
        w.store(value, tile, kind)
        return w.load(tile, kind)


# -- programs ----------------------------------------------------------------------------------------------------------


def pointwise(cut: Cut, rows: int, columns: int) -> np.ndarray:
    """relu(a * b) - a, with the product rounded."""
    a, b = f16(rows, columns), f16(rows, columns, seed=1)
    p = Blocks(cut, rows, columns)
    w = p.w
    views = [w.array(n, x) for n, x in (("a", a), ("b", b), ("t", 0 * a), ("o", 0 * a))]
    at = list(p.open())
    size = [p.height, p.width]
    kind = f"tensor<{shaped(size, 'f16')}>"
    x, y = (w.load(w.tile(v, a.shape, "f16", at, size)) for v in views[:2])
    m = p.through(w.op(f"arith.mulf {x}, {y} : {kind}"), size, (views[2], list(a.shape), at))
    zero = w.op(f"arith.constant dense<0.0> : {kind}")
    z = w.op(f"arith.subf {w.op(f'arith.maximumf {m}, {zero} : {kind}')}, {x} : {kind}")
    w.store(z, w.tile(views[3], a.shape, "f16", at, size))
    p.close()
    return w.run(card_only=True)["o"]


def row_reduction(cut: Cut, rows: int, columns: int) -> np.ndarray:
    """a - max(a) and its sum by rows: whole rows in every block."""
    a = f16(rows, columns)
    p = Blocks(dataclasses.replace(cut, columns=None), rows, columns)
    w = p.w
    views = [w.array(n, x) for n, x in (("a", a), ("t", 0 * a), ("o", 0 * a[:, :1]))]
    row, _ = p.open()
    size = [p.height, columns]
    wide, narrow = f"tensor<{shaped(size, 'f16')}>", f"tensor<{p.height}xf16>"
    x = w.load(w.tile(views[0], a.shape, "f16", [row, w.index(0)], size))
    e = w.op(f"tensor.empty() : {narrow}")
    peak = w.op(f"linalg.reduce {{ arith.maximumf }} ins({x} : {wide}) outs({e} : {narrow}) dimensions = [1]")
    full = w.op(f"tensor.empty() : {wide}")
    peaks = w.op(f"linalg.broadcast ins({peak} : {narrow}) outs({full} : {wide}) dimensions = [1]")
    d = w.op(f"arith.subf {x}, {peaks} : {wide}")
    d = p.through(d, size, (views[1], list(a.shape), [row, w.index(0)]))
    total = w.op(f"linalg.reduce {{ arith.addf }} ins({d} : {wide}) outs({e} : {narrow}) dimensions = [1]")
    column = w.op(
        f"tensor.expand_shape {total} [[0, 1]] output_shape [{p.height}, 1] : {narrow} into tensor<{p.height}x1xf16>"
    )
    w.store(column, w.tile(views[2], [rows, 1], "f16", [row, w.index(0)], [p.height, 1]))
    p.close()
    return w.run(card_only=True)["o"]


DEPTH = 70


def product(cut: Cut, rows: int, columns: int) -> np.ndarray:
    """a @ b with a sum in f32 and whole K in every block."""
    a, b = f16(rows, DEPTH), f16(DEPTH, columns, seed=1)
    p = Blocks(cut, rows, columns)
    w = p.w
    va, vb, vt = w.array("a", a), w.array("b", b), w.array("t", np.zeros((rows, columns)), "f32")
    vo = w.array("o", np.zeros((rows, columns)))
    row, column = p.open()
    x = w.load(w.tile(va, a.shape, "f16", [row, w.index(0)], [p.height, DEPTH]))
    y = w.load(w.tile(vb, b.shape, "f16", [w.index(0), column], [DEPTH, p.width]))
    size = [p.height, p.width]
    zero = w.op(f"arith.constant dense<0.0> : tensor<{shaped(size, 'f32')}>")
    c = w.op(
        f"linalg.matmul ins({x}, {y} : tensor<{p.height}x{DEPTH}xf16>, tensor<{DEPTH}x{p.width}xf16>) "
        f"outs({zero} : tensor<{shaped(size, 'f32')}>) -> tensor<{shaped(size, 'f32')}>"
    )
    c = p.through(c, size, (vt, [rows, columns], [row, column]), "f32")
    n = w.op(f"arith.truncf {c} : tensor<{shaped(size, 'f32')}> to tensor<{shaped(size, 'f16')}>")
    w.store(n, w.tile(vo, [rows, columns], "f16", [row, column], size))
    p.close()
    return w.run(card_only=True)["o"]


def gathered(cut: Cut, rows: int, columns: int) -> np.ndarray:
    """t[i[r], c] for every r and c."""
    table, index = f16(9, columns), np.random.default_rng(2).integers(0, 9, rows)
    p = Blocks(cut, rows, columns)
    w = p.w
    vt, vi, vs = w.array("table", table), w.array("i", index, "i32"), w.array("t", np.zeros((rows, columns)))
    vo = w.array("o", np.zeros((rows, columns)))
    row, column = p.open()
    size = [p.height, p.width]
    points = f"affine_set<(d0, d1) : (d0 >= 0, -d0 + {size[0] - 1} >= 0, d1 >= 0, -d1 + {size[1] - 1} >= 0)>"
    tile = w.op(
        f"ktdp.construct_indirect_access_tile intermediate_variables(%x, %y) {vt}[ind({vi}[{row} + %x]), "
        f"({column} + %y)] "
        f"{{variables_space_set = {points}, variables_space_order = affine_map<(d0, d1) -> (d0, d1)>}} : "
        f"memref<9x{columns}xf16>, memref<{rows}xi32> -> !ktdp.access_tile<{shaped(size, 'index')}>"
    )
    x = p.through(w.load((tile, size)), size, (vs, [rows, columns], [row, column]))
    w.store(x, w.tile(vo, [rows, columns], "f16", [row, column], size))
    p.close()
    return w.run(card_only=True)["o"]


def ordered(cut: Cut, rows: int, columns: int) -> np.ndarray:
    """The running maximum of each row, minus the row sorted in descending order."""
    a = f16(rows, columns)
    p = Blocks(dataclasses.replace(cut, columns=None), rows, columns)
    w = p.w
    views = [w.array(n, x) for n, x in (("a", a), ("t", 0 * a), ("o", 0 * a))]
    row, _ = p.open()
    size = [p.height, columns]
    kind = f"tensor<{shaped(size, 'f16')}>"
    x = w.load(w.tile(views[0], a.shape, "f16", [row, w.index(0)], size))
    up = w.op(f'spyreop.scan {x} {{dimension = 1 : i64, kind = "max"}} : {kind} -> {kind}')
    up = p.through(up, size, (views[1], list(a.shape), [row, w.index(0)]))
    down, places = w.name(), w.name()
    w.add(
        f"{down}, {places} = spyreop.sort {x} "
        f"{{dimension = 1 : i64, descending = true, stable = true, k = {columns} : i64}} "
        f": {kind} -> ({kind}, tensor<{shaped(size, 'i32')}>)"
    )
    z = w.op(f"arith.subf {up}, {down} : {kind}")
    w.store(z, w.tile(views[2], a.shape, "f16", [row, w.index(0)], size))
    p.close()
    return w.run(card_only=True)["o"]


def oracle(name: str, rows: int, columns: int) -> tuple[np.ndarray, float]:
    """The result in float64, and the bound of the error relative to its largest summand."""
    wide = np.float64
    if name == "pointwise":
        a, b = f16(rows, columns).astype(wide), f16(rows, columns, seed=1)
        return np.maximum(a * b, 0) - a, 16 * ULP
    if name == "row_reduction":
        a = f16(rows, columns).astype(wide)
        d = a - a.max(1, keepdims=True)
        return d.sum(1, keepdims=True), columns * 8 * ULP
    if name == "product":
        return f16(rows, DEPTH).astype(wide) @ f16(DEPTH, columns, seed=1), 40 * ULP
    if name == "ordered":
        a = f16(rows, columns).astype(wide)
        return np.maximum.accumulate(a, 1) + np.sort(-a, 1), 16 * ULP
    return f16(9, columns)[np.random.default_rng(2).integers(0, 9, rows)], 0.0


PROGRAMS: dict[str, Callable[[Cut, int, int], np.ndarray]] = {
    "pointwise": pointwise,
    "row_reduction": row_reduction,
    "product": product,
    "gathered": gathered,
    "ordered": ordered,
}


def check(name: str, cut: Cut, rows: int, columns: int) -> None:
    plain = PROGRAMS[name](Cut(), rows, columns)
    exact, bound = oracle(name, rows, columns)
    np.testing.assert_allclose(plain, exact, rtol=ULP, atol=bound)
    np.testing.assert_array_equal(PROGRAMS[name](cut, rows, columns), plain)


@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_bits_do_not_depend_on_the_cut(name: str, data: st.DataObject) -> None:
    check(name, data.draw(CUTS), data.draw(st.integers(1, 40)), data.draw(st.integers(1, 90)))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_bits_do_not_depend_on_the_cut_at_length(name: str, data: st.DataObject) -> None:
    check(name, data.draw(CUTS), data.draw(st.integers(1, 100)), data.draw(st.integers(1, 200)))


# -- the summed dim ----------------------------------------------------------------------------------------------------


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_split_sums_stay_within_their_bound(data: st.DataObject) -> None:
    """K over the cores of a group, partials in f32 combined over the ring: half an ulp, and the error of fp32 sums."""
    ways, count = data.draw(st.sampled_from([(2, 1), (4, 2), (8, 4), (3, 3), (32, 1)]))
    rows, columns, slice_ = (data.draw(st.integers(1, n)) for n in (6, 40, 30))
    depth = ways * slice_
    a, b = f16(count * rows, depth), f16(depth, columns, seed=1)
    w = Writer((ways, count))
    k, g = w.ids(2)
    va, vb, vo = w.array("a", a), w.array("b", b), w.array("o", np.zeros((count * rows, columns)))
    at = w.product(g, rows)
    first = w.product(k, slice_)
    x = w.load(w.tile(va, a.shape, "f16", [at, first], [rows, slice_]))
    y = w.load(w.tile(vb, b.shape, "f16", [first, w.index(0)], [slice_, columns]))
    kind = f"tensor<{rows}x{columns}xf32>"
    zero = w.op(f"arith.constant dense<0.0> : {kind}")
    c = w.op(
        f"linalg.matmul ins({x}, {y} : tensor<{rows}x{slice_}xf16>, tensor<{slice_}x{columns}xf16>) "
        f"outs({zero} : {kind}) -> {kind}"
    )
    members = f"affine_set<(i)[g] : (i - {ways} * g >= 0, -i + {ways} * g + {ways - 1} >= 0)>"
    future = f"!ktdp.tile_future<({kind}), groups = affine_set<(g) : (g >= 0, -g + {count - 1} >= 0)>>"
    f = w.op(
        f"ktdp.inter_tile_produce producer_tiles_per_group = {members} -> {future} {{\n^bb0(%g: index):\n"
        f"ktdp.yield_partial {c} : {kind}\n}}"
    )
    total = w.op(
        f"ktdp.inter_tile_reduce({f}) consumer_tiles_per_group = {members}, identity({zero} : {kind}) : "
        f"{future} -> {kind} {{\n"
        f"^bb0(%l: {kind}, %r: {kind}):\n%s = arith.addf %l, %r : {kind}\nktdp.yield_reduced %s : {kind}\n}}"
    )
    n = w.op(f"arith.truncf {total} : {kind} to tensor<{rows}x{columns}xf16>")
    lead = w.op(f"arith.cmpi eq, {k}, {w.index(0)} : index")
    w.add(f"scf.if {lead} {{")
    w.store(n, w.tile(vo, [count * rows, columns], "f16", [at, w.index(0)], [rows, columns]))
    w.add("}")
    exact = a.astype(np.float64) @ b.astype(np.float64)
    size = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    error = np.abs(w.run()["o"] - exact)
    assert (error <= np.abs(exact) * ULP / 2 + size * depth * 2.0**-23 + 2.0**-31).all()
