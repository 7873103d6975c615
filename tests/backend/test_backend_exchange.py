# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/backend/test_backend_exchange.py. Data between cores: all deliveries, distributed views."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ktir_write import Writer, box, f16, shaped
from program_interp import round_sen169

from torch_spyre.backend.options import Options
from torch_spyre.backend.program import assembler as asm
from torch_spyre.errors import InvalidProgram, SpyreError, UnsupportedOp

ALL = "affine_set<(i)[g] : (i >= 0, -i + {last} >= 0)>"


def groups(count: int) -> str:
    return f"affine_set<(g) : (g >= 0, -g + {count - 1} >= 0)>"


def span(size: int) -> str:
    """Group g is cores size*g … size*g + size - 1."""
    return f"affine_set<(i)[g] : (i - {size} * g >= 0, -i + {size} * g + {size - 1} >= 0)>"


class Exchange:
    """Every core loads its block of `a`, produces it, and stores what it gets to its block of `o`."""

    def __init__(self, cores: int, partial: Sequence[int], result: Sequence[int], kind: str = "f16") -> None:
        self.w = w = Writer((cores,))
        self.cores, self.kind = cores, kind
        self.partial, self.result = list(partial), list(result)
        self.a = np.round(f16(cores, *partial) * 16)
        (self.id,) = w.ids()
        rank = len(partial)
        view = w.array("a", self.a, kind)
        tile = w.tile(view, self.a.shape, kind, [self.id, *[w.index(0)] * rank], [1, *partial])
        loaded = w.load(tile, kind)
        self.value = self._drop(loaded, [1, *partial])

    def _drop(self, value: str, shape: list[int]) -> str:
        rest = "".join(f", [{d + 2}]" for d in range(len(shape) - 2))
        return self.w.op(
            f"tensor.collapse_shape {value} [[0, 1]{rest}] : tensor<{shaped(shape, self.kind)}> into "
            f"tensor<{shaped(shape[1:], self.kind)}>"
        )

    @property
    def kinds(self) -> tuple[str, str]:
        return f"tensor<{shaped(self.partial, self.kind)}>", f"tensor<{shaped(self.result, self.kind)}>"

    def produce(self, producers: str, group_set: str, body: str = "", value: str | None = None) -> tuple[str, str]:
        future = f"!ktdp.tile_future<({self.kinds[0]}), groups = {group_set}>"
        name = self.w.op(
            f"ktdp.inter_tile_produce producer_tiles_per_group = {producers} -> {future} {{\n^bb0(%g: index):\n{body}"
            f"ktdp.yield_partial {value or self.value} : {self.kinds[0]}\n}}"
        )
        return name, future

    def deliver(
        self, op: str, future: tuple[str, str], consumers: str, attributes: str = "", combiner: str | None = None
    ) -> str:
        text = f"ktdp.{op}({future[0]}) consumer_tiles_per_group = {consumers}{attributes}"
        if combiner is not None:
            identity = self.w.op(f"arith.constant dense<{self.identity(combiner)}> : {self.kinds[0]}")
            text += f", identity({identity} : {self.kinds[0]})"
        text += f" : {future[1]} -> {self.kinds[1]}"
        if combiner is not None:
            part = self.kinds[0]
            text += (
                f" {{\n^bb0(%l: {part}, %r: {part}):\n%t = arith.{combiner} %l, %r : {part}\n"
                f"ktdp.yield_reduced %t : {part}\n}}"
            )
        return self.w.op(text)

    def identity(self, combiner: str) -> str:
        return {"addf": "0.0", "addi": "0", "maximumf": "0xFC00", "mulf": "1.0"}[combiner]

    def finish(self, value: str, only: Sequence[int] | None = None) -> np.ndarray:
        """Stores on all cores, or on those in `only`."""
        w = self.w
        out = np.full((self.cores, *self.result), 99.0)
        rank = len(self.result)
        rest = "".join(f", [{d + 2}]" for d in range(rank - 1))
        shape = [1, *self.result]
        view = w.array("o", out, self.kind)

        def store() -> None:
            wide = w.op(
                f"tensor.expand_shape {value} [[0, 1]{rest}] output_shape [{', '.join(map(str, shape))}] : "
                f"{self.kinds[1]} into tensor<{shaped(shape, self.kind)}>"
            )
            w.store(wide, w.tile(view, out.shape, self.kind, [self.id, *[w.index(0)] * rank], shape), self.kind)

        if only is None:
            store()
        for core in only or ():
            c = w.op(f"arith.cmpi eq, {self.id}, {w.index(core)} : index")
            w.add(f"scf.if {c} {{")
            store()
            w.add("}")
        return w.run()["o"]


@pytest.mark.parametrize("combiner, function", [("addf", np.sum), ("maximumf", np.max), ("mulf", np.prod)])
@pytest.mark.parametrize("cores, size", [(4, 4), (8, 2), (6, 3)])
def test_all_reduce_in_groups(combiner: str, function: Callable[..., np.ndarray], cores: int, size: int) -> None:
    e = Exchange(cores, [2, 8], [2, 8])
    if combiner == "mulf":
        e.a[:] = np.sign(e.a) + (e.a == 0)
    f = e.produce(span(size), groups(cores // size))
    out = e.finish(e.deliver("inter_tile_reduce", f, span(size), combiner=combiner))
    expected = function(e.a.reshape(-1, size, 2, 8), axis=1).repeat(size, 0)
    np.testing.assert_array_equal(out, round_sen169(expected.astype(np.float32)))


def test_strided_groups() -> None:
    """Cores i with (i - g) mod 2 == 0."""
    e = Exchange(6, [4], [4])
    members = "affine_set<(i)[g] : ((i - g) mod 2 == 0, i >= 0, -i + 5 >= 0)>"
    f = e.produce(members, groups(2))
    out = e.finish(e.deliver("inter_tile_reduce", f, members, combiner="addf"))
    expected = np.stack([e.a[i % 2 :: 2].sum(0) for i in range(6)])
    np.testing.assert_array_equal(out, round_sen169(expected))


def test_groups_of_unequal_shape() -> None:
    """Group 0 is cores 0 … 1, group 1 is cores 2 … 6."""
    members = "affine_set<(i)[g] : (i - 2 * g >= 0, -i + 5 * g + 1 >= 0)>"
    for combiner in ("addf", "maximumf"):
        e = Exchange(7, [4], [4])
        f = e.produce(members, groups(2))
        out = e.finish(e.deliver("inter_tile_reduce", f, members, combiner=combiner))
        function = np.sum if combiner == "addf" else np.max
        parts = [function(e.a[:2], axis=0)] * 2 + [function(e.a[2:], axis=0)] * 5
        np.testing.assert_array_equal(out, round_sen169(np.stack(parts)))


def test_produce_may_use_its_group_and_skips_other_cores() -> None:
    """Cores 1 and 3 of six produce group + a; all of their group's cores get it."""
    e = Exchange(6, [4], [4], "i32")
    e.a[:] = np.arange(24).reshape(6, 4)
    producers = "affine_set<(i)[g] : (i - 3 * g - 1 == 0)>"
    body = (
        "%n = arith.index_cast %g : index to i32\n%s = tensor.splat %n : tensor<4xi32>\n"
        f"%p = arith.addi %s, {e.value} : tensor<4xi32>\n"
    )
    f = e.produce(producers, groups(2), body, "%p")
    out = e.finish(e.deliver("inter_tile_consume", f, span(3)))
    np.testing.assert_array_equal(out, np.stack([e.a[3 * (i // 3) + 1] + i // 3 for i in range(6)]))


def test_routing_by_dependencies() -> None:
    """Core c takes from core (c + 1) mod 4."""
    e = Exchange(4, [4], [4])
    everyone = ALL.format(last=3)
    f = e.produce(everyone, groups(1))
    needs = ", producer_dependency_per_consumer = affine_set<(p)[c] : ((p - c - 1) mod 4 == 0)>"
    np.testing.assert_array_equal(e.finish(e.deliver("inter_tile_consume", f, everyone, needs)), np.roll(e.a, -1, 0))


def test_consume_from_several_producers_is_refused() -> None:
    e = Exchange(4, [4], [4])
    everyone = ALL.format(last=3)
    f = e.produce(everyone, groups(1))
    with pytest.raises(SpyreError):
        e.finish(e.deliver("inter_tile_consume", f, everyone))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_gather_scatter_all_to_all_and_reduce_scatter(data: st.DataObject) -> None:
    size, count = data.draw(st.sampled_from([(2, 2), (4, 1), (3, 2), (4, 2)]))
    cores = size * count
    rank = data.draw(st.integers(1, 3))
    shape = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    kind = data.draw(st.sampled_from(["f16", "f32"]))
    op = data.draw(st.sampled_from(["gather", "scatter", "all_to_all", "reduce_scatter"]))
    first, second = (data.draw(st.integers(0, rank - 1)) for _ in range(2))
    members = span(size)
    if op == "gather":
        result = [n * size if d == first else n for d, n in enumerate(shape)]
        e = Exchange(cores, shape, result, kind)
        f = e.produce(members, groups(count))
        out = e.finish(e.deliver("inter_tile_gather", f, members, f", gather_dimensions = [{first}]"))
        parts = [np.concatenate(list(e.a[size * g : size * (g + 1)]), first) for g in range(count)]
        expected = np.stack([parts[i // size] for i in range(cores)])
    elif op == "scatter":
        partial = [n * size if d == first else n for d, n in enumerate(shape)]
        e = Exchange(cores, partial, shape, kind)
        f = e.produce(f"affine_set<(i)[g] : (i - {size} * g == 0)>", groups(count))
        out = e.finish(e.deliver("inter_tile_scatter", f, members, f", scatter_dimensions = [{first}]"))
        expected = np.stack([np.split(e.a[i // size * size], size, first)[i % size] for i in range(cores)])
    elif op == "all_to_all":
        partial = [n * size if d == first else n for d, n in enumerate(shape)]
        result = [n * size if d == second else n for d, n in enumerate(shape)]
        e = Exchange(cores, partial, result, kind)
        f = e.produce(members, groups(count))
        dims = f", split_dimensions = [{first}], concat_dimensions = [{second}]"
        out = e.finish(e.deliver("inter_tile_all_to_all", f, members, dims))
        expected = np.stack(
            [
                np.concatenate(
                    [np.split(e.a[p], size, first)[i % size] for p in range(i // size * size, i // size * size + size)],
                    second,
                )
                for i in range(cores)
            ]
        )
    else:
        partial = [n * size if d == first else n for d, n in enumerate(shape)]
        e = Exchange(cores, partial, shape, kind)
        f = e.produce(members, groups(count))
        out = e.finish(
            e.deliver("inter_tile_reduce_scatter", f, members, f", scatter_dimensions = [{first}]", combiner="addf")
        )
        totals = e.a.reshape(count, size, *partial).sum(1)
        expected = np.stack([np.split(totals[i // size], size, first)[i % size] for i in range(cores)])
    np.testing.assert_array_equal(out, expected)


def test_a_pair_of_partials_finds_the_core_of_the_maximum() -> None:
    """Value and core number, combined by a region with four arguments."""
    cores = 5
    a = np.round(f16(cores, 8) * 4)
    w = Writer((cores,))
    (i,) = w.ids()
    x = w.load(w.tile(w.array("a", a), a.shape, "f16", [i, w.index(0)], [1, 8]))
    number = w.op(f"tensor.splat {w.op(f'arith.index_cast {i} : index to i32')} : tensor<1x8xi32>")
    pair = "tensor<1x8xf16>, tensor<1x8xi32>"
    future = f"!ktdp.tile_future<({pair}), groups = {groups(1)}>"
    everyone = ALL.format(last=cores - 1)
    f = w.op(
        f"ktdp.inter_tile_produce producer_tiles_per_group = {everyone} -> {future} {{\n^bb0(%g: index):\n"
        f"ktdp.yield_partial {x}, {number} : {pair}\n}}"
    )
    low = w.op("arith.constant dense<0xFC00> : tensor<1x8xf16>")
    none = w.op("arith.constant dense<0> : tensor<1x8xi32>")
    v, n = w.name(), w.name()
    args = "%a0: tensor<1x8xf16>, %a1: tensor<1x8xi32>, %b0: tensor<1x8xf16>, %b1: tensor<1x8xi32>"
    w.add(
        f"{v}, {n} = ktdp.inter_tile_reduce({f}) consumer_tiles_per_group = {everyone}, identity({low}, "
        f"{none} : {pair}) : "
        f"{future} -> {pair} {{\n^bb0({args}):\n%c = arith.cmpf ogt, %b0, %a0 : tensor<1x8xf16>\n"
        "%s = arith.select %c, %b0, %a0 : tensor<1x8xi1>, tensor<1x8xf16>\n"
        "%t = arith.select %c, %b1, %a1 : tensor<1x8xi1>, tensor<1x8xi32>\n"
        f"ktdp.yield_reduced %s, %t : {pair}\n}}"
    )
    w.store(v, w.tile(w.array("v", np.zeros((cores, 8))), a.shape, "f16", [i, w.index(0)], [1, 8]))
    w.store(n, w.tile(w.array("n", np.zeros((cores, 8)), "i32"), a.shape, "i32", [i, w.index(0)], [1, 8]), "i32")
    out = w.run()
    np.testing.assert_array_equal(out["v"], np.broadcast_to(a.max(0), a.shape))
    np.testing.assert_array_equal(out["n"], np.broadcast_to(a.argmax(0), a.shape))


# -- distributed views -------------------------------------------------------------------------------------------------


def distributed(
    w: Writer, parts: Sequence[str], shapes: Sequence[Sequence[int]], whole: Sequence[int], kind: str = "f16"
) -> str:
    types = ", ".join(f"memref<{shaped(s, kind)}>" for s in shapes)
    return w.op(
        f"ktdp.construct_distributed_memory_view ({', '.join(parts)} : {types}) : memref<{shaped(whole, kind)}>"
    )


def test_loads_and_stores_over_parts_in_memory() -> None:
    """Rows 0 … 3 row-major, rows 4 … 9 column-major; tiles of three rows on four cores, the last one cut."""
    first, second = f16(4, 6), f16(6, 6, seed=1)
    w = Writer((4,))
    (i,) = w.ids()
    views = []
    for name, top, bottom in (("a", first, second.T.copy()), ("o", np.zeros((4, 6)), np.zeros((6, 6)))):
        p = w.view(w.argument(f"{name}0", top), [4, 6], domain=box((0, 3), 6))
        q = w.view(w.argument(f"{name}1", bottom), [6, 6], strides=[1, 6], domain=box((4, 9), 6))
        views.append(distributed(w, [p, q], [[4, 6], [6, 6]], [10, 6]))
    at = [w.product(i, 3), w.index(0)]
    x = w.load(w.tile(views[0], [10, 6], "f16", at, [3, 6]))
    w.store(w.op(f"arith.negf {x} : tensor<3x6xf16>"), w.tile(views[1], [10, 6], "f16", at, [3, 6]))
    out = w.run()
    np.testing.assert_array_equal(out["o0"], -first)
    np.testing.assert_array_equal(out["o1"], -second.T)


@pytest.mark.parametrize("cores", [2, 4])
def test_scratchpads_of_other_cores(cores: int) -> None:
    """Every core puts its row into its scratchpad; a view of all of them is read backwards by everybody."""
    a = f16(cores, 8)
    w = Writer((cores,))
    (i,) = w.ids()
    x = w.load(w.tile(w.array("a", a), a.shape, "f16", [i, w.index(0)], [1, 8]))
    own = w.view(w.index(0), [1, 8], space="#ktdp.memory_space<ct_local>")
    w.store(x, w.tile(own, [1, 8], "f16", [w.index(0)] * 2, [1, 8]))
    parts = [
        w.view(w.index(0), [1, 8], domain=box((c, c), 8), space=f"#ktdp.memory_space<ct_local, ct_id = {c}>")
        for c in range(cores)
    ]
    whole = distributed(w, parts, [[1, 8]] * cores, [cores, 8])
    back = w.op(f"arith.subi {w.index(cores - 1)}, {i} : index")
    y = w.load(w.tile(whole, [cores, 8], "f16", [back, w.index(0)], [1, 8]))
    w.store(y, w.tile(w.array("o", np.zeros_like(a)), a.shape, "f16", [i, w.index(0)], [1, 8]))
    everything = w.load(w.tile(whole, [cores, 8], "f16", [w.index(0)] * 2, [cores, 8]))
    total = w.op(
        f"linalg.reduce {{ arith.addf }} ins({everything} : tensor<{cores}x8xf16>) "
        f"outs({w.op('tensor.empty() : tensor<8xf16>')} : tensor<8xf16>) dimensions = [0]"
    )
    row = w.op(f"tensor.expand_shape {total} [[0, 1]] output_shape [1, 8] : tensor<8xf16> into tensor<1x8xf16>")
    w.store(row, w.tile(w.array("s", np.zeros_like(a)), a.shape, "f16", [i, w.index(0)], [1, 8]))
    program = w.compile()
    assert any(isinstance(inst, asm.BarrierInst) for inst in program.instructions)
    out = w.run()
    np.testing.assert_array_equal(out["o"], a[::-1])
    np.testing.assert_allclose(out["s"], np.broadcast_to(a.astype(np.float64).sum(0), a.shape), rtol=2**-9, atol=1e-4)


def test_a_core_may_not_write_the_scratchpad_of_another() -> None:
    w = Writer((2,))
    x = w.input("a", f16(8))
    other = w.view(w.index(0), [8], space="#ktdp.memory_space<ct_local, ct_id = 1>")
    w.store(x, w.tile(other, [8], "f16", [w.index(0)], [8]))
    with pytest.raises(UnsupportedOp, match="scratchpad of tile 1"):
        w.compile()


@pytest.mark.parametrize("strict", [False, True])
def test_points_that_no_part_holds_are_an_error(strict: bool) -> None:
    """Rows 0 … 1 and 3 … 4: row 2 belongs to nobody."""

    def program(rows: int) -> Writer:
        w = Writer()
        parts = [w.view(w.argument(n, f16(2, 4)), [2, 4], domain=box((r, r + 1), 4)) for n, r in (("a", 0), ("b", 3))]
        whole = distributed(w, parts, [[2, 4]] * 2, [5, 4])
        w.output("o", w.load(w.tile(whole, [5, 4], "f16", [w.index(0)] * 2, [rows, 4])), [rows, 4])
        return w

    program(2).compile(Options(strict=strict))
    with pytest.raises(InvalidProgram, match="no part"):
        program(5).compile(Options(strict=strict))


def test_an_exchange_in_a_guarded_loop_is_refused() -> None:
    """All cores must reach a barrier."""
    e = Exchange(4, [4], [4])
    w = e.w
    c = w.op(f"arith.cmpi slt, {e.id}, {w.index(2)} : index")
    w.add(f"scf.if {c} {{\nscf.for %k = {w.index(0)} to {w.index(2)} step {w.index(1)} {{")
    f = e.produce(ALL.format(last=3), groups(1))
    value = e.deliver("inter_tile_reduce", f, ALL.format(last=3), combiner="addf")
    w.store(value, w.whole("o", np.zeros(4)))
    w.add("}\n}")
    with pytest.raises(SpyreError):
        w.compile()
