# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/backend/test_backend_access.py. Views and access tiles: order, domains, addresses, grids."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ktir_write import Writer, box, decode, encode, f16, shaped
from program_interp import round_sen169

from torch_spyre.backend.options import DEFAULT, Options
from torch_spyre.backend.program import assembler as asm
from torch_spyre.errors import InvalidProgram

STRICT = Options(strict=True)


def copy_tile(w: Writer, source: str, target: str, shape: list[int], at: list[str], size: list[int]) -> None:
    w.store(
        w.load(w.tile(source, shape, "f16", at, size)),
        w.tile(target, shape, "f16", at, size),
    )


# -- A1: the order of a tile -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_tile_lists_its_points_in_lexicographic_order_of_the_map(order: tuple[int, ...]) -> None:
    """Element i of the tile is the point p with O(p) = i; only three-cycles tell this from the inverse."""
    a = f16(3, 4, 5)
    w = Writer()
    view = w.array("a", a)
    value = w.load(w.tile(view, a.shape, "f16", [w.index(0)] * 3, a.shape, order))
    shape = [a.shape[d] for d in order]
    w.output("o", value, shape)
    np.testing.assert_array_equal(w.run()["o"], a.transpose(order))


def test_a_permuted_store_is_the_inverse_of_a_permuted_load() -> None:
    a = f16(3, 4, 5)
    w = Writer()
    order = (1, 2, 0)
    value = w.load(w.tile(w.array("a", a), a.shape, "f16", [w.index(0)] * 3, a.shape, order))
    w.store(value, w.tile(w.array("o", np.zeros_like(a)), a.shape, "f16", [w.index(0)] * 3, a.shape, order))
    np.testing.assert_array_equal(w.run()["o"], a)


# -- A2: ids -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis0_fastest", [True, False])
def test_flat_ids_of_a_grid(axis0_fastest: bool) -> None:
    """All tiles sum over the group of flat ids 0..1: with axis 0 fastest these are (0, 0, 0) and (1, 0, 0)."""
    a = np.arange(12, dtype=np.float32).reshape(12, 1) + 1
    w = Writer((2, 3, 2))
    i, j, k = w.ids(3)
    row = w.sum(w.product(w.sum(w.product(i, 3), j), 2), k)
    x = w.load(w.tile(w.array("a", a), a.shape, "f16", [row, w.index(0)], [1, 1]))
    future = "!ktdp.tile_future<(tensor<1x1xf16>), groups = affine_set<(g) : (g >= 0, -g + 5 >= 0)>>"
    pair = "affine_set<(i)[g] : (i - 2 * g >= 0, -i + 2 * g + 1 >= 0)>"
    zero = w.op("arith.constant dense<0.0> : tensor<1x1xf16>")
    f = w.op(
        f"ktdp.inter_tile_produce producer_tiles_per_group = {pair} -> {future} {{\n^bb0(%g: index):\n"
        f"ktdp.yield_partial {x} : tensor<1x1xf16>\n}}"
    )
    total = w.op(
        f"ktdp.inter_tile_reduce({f}) consumer_tiles_per_group = {pair}, identity({zero} : tensor<1x1xf16>) : {future} "
        "-> tensor<1x1xf16> {\n^bb0(%l: tensor<1x1xf16>, %r: tensor<1x1xf16>):\n"
        "%s = arith.addf %l, %r : tensor<1x1xf16>\nktdp.yield_reduced %s : tensor<1x1xf16>\n}"
    )
    w.store(total, w.tile(w.array("o", np.zeros_like(a)), a.shape, "f16", [row, w.index(0)], [1, 1]))
    out = w.run(options=Options(axis0_fastest=axis0_fastest))["o"].reshape(2, 3, 2)
    grid = a.reshape(2, 3, 2)
    axis = 0 if axis0_fastest else 2
    np.testing.assert_array_equal(out, np.broadcast_to(grid.sum(axis, keepdims=True), grid.shape))


def test_ids_of_fewer_axes_and_constant_arithmetic() -> None:
    """Row from a flat id by divui, remui, divsi and remsi."""
    a = f16(24, 8)
    w = Writer((4, 3))
    i, j = w.ids(2)
    flat = w.sum(i, w.product(j, 4))
    high = w.op(f"arith.divui {flat}, {w.index(5)} : index")
    low = w.op(f"arith.remui {flat}, {w.index(5)} : index")
    row = w.product(w.sum(w.product(high, 5), low), 2)
    out = w.array("o", np.zeros_like(a))
    copy_tile(w, w.array("a", a), out, [24, 8], [row, w.index(0)], [2, 8])
    np.testing.assert_array_equal(w.run()["o"], a)


# -- A4: signed division -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("divisor", [2, 3, -2])
def test_signed_division_truncates(divisor: int) -> None:
    """Indices -7 … 7 by tile id; the quotient (shifted) says which row is written."""
    w = Writer((15,))
    (i,) = w.ids()
    value = w.op(f"arith.subi {i}, {w.index(7)} : index")
    quotient = w.op(f"arith.divsi {value}, {w.index(divisor)} : index")
    rest = w.op(f"arith.remsi {value}, {w.index(divisor)} : index")
    packed = w.sum(w.product(quotient, 10), rest)
    as_int = w.op(f"arith.index_cast {packed} : index to i32")
    tensor = w.op(f"tensor.splat {as_int} : tensor<1xi32>")
    w.store(tensor, w.tile(w.array("o", np.zeros(15), "i32"), [15], "i32", [i], [1]), "i32")
    numbers = np.arange(-7, 8)
    quotients = np.trunc(numbers / divisor).astype(int)
    np.testing.assert_array_equal(w.run()["o"], quotients * 10 + (numbers - quotients * divisor))


# -- A5: domains -------------------------------------------------------------------------------------------------------


def clipped(at: int, options: Options = DEFAULT) -> dict[str, np.ndarray]:
    """x = rows at … at+3 of a view with rows 2 … 6; stored as they are, and plus one to the same rows of another."""
    a = f16(10, 8)
    w = Writer()
    domain = box((2, 6), 8)
    view = w.view(w.argument("a", a), a.shape, domain=domain)
    x = w.load(w.tile(view, a.shape, "f16", [w.index(at), w.index(0)], [4, 8]))
    w.output("x", x, [4, 8])
    one = w.op("arith.constant dense<1.0> : tensor<4x8xf16>")
    target = w.view(w.argument("o", np.full_like(a, 7)), a.shape, domain=domain)
    more = w.op(f"arith.addf {x}, {one} : tensor<4x8xf16>")
    w.store(more, w.tile(target, a.shape, "f16", [w.index(at), w.index(0)], [4, 8]))
    return {"source": a, **w.run(options=options)}


@pytest.mark.parametrize("at", [-3, 0, 1, 2, 3, 4, 6, 8])
def test_outside_its_domain_a_load_gives_0_and_a_store_nothing(at: int) -> None:
    arrays = clipped(at)
    a = arrays["source"]
    rows = np.arange(at, at + 4)
    inside = (rows >= 2) & (rows <= 6)
    expected = np.where(inside[:, None], a[np.clip(rows, 0, 9)], 0)
    np.testing.assert_array_equal(arrays["x"], expected)
    out = np.full_like(a, 7)
    out[rows[inside]] = round_sen169(expected[inside] + 1)
    np.testing.assert_array_equal(arrays["o"], out)


def test_strict_mode_refuses_what_leaves_the_domain() -> None:
    clipped(3, STRICT)
    with pytest.raises(InvalidProgram, match="coordinate set"):
        clipped(4, STRICT)


@pytest.mark.parametrize("cores", [1, 4, 7])
def test_the_last_tile_of_an_uneven_split_is_cut(cores: int) -> None:
    a = f16(29, 33)
    w = Writer((cores,))
    (i,) = w.ids()
    rows = -(-29 // cores)
    at = [w.product(i, rows), w.index(0)]
    x = w.load(w.tile(w.array("a", a), a.shape, "f16", at, [rows, 40]))
    y = w.op(f"arith.negf {x} : tensor<{rows}x40xf16>")
    w.store(y, w.tile(w.array("o", np.ones_like(a)), a.shape, "f16", at, [rows, 40]))
    np.testing.assert_array_equal(w.run()["o"], -a)


# -- addresses ---------------------------------------------------------------------------------------------------------


def test_views_with_any_strides() -> None:
    """Columns of a row-major matrix, every second row from the end, and a broadcast (stride 0)."""
    a = f16(8, 6)
    w = Writer()
    base = w.argument("a", a)
    columns = w.view(base, [6, 8], strides=[1, 6])
    w.output("t", w.load(w.tile(columns, [6, 8], "f16", [w.index(0)] * 2, [6, 8])), [6, 8])
    last = w.op(f"arith.addi {base}, {w.index(42)} : index")
    backwards = w.view(last, [4, 6], strides=[-12, 1])
    w.output("b", w.load(w.tile(backwards, [4, 6], "f16", [w.index(0)] * 2, [4, 6])), [4, 6])
    repeated = w.view(base, [5, 6], strides=[0, 1])
    w.output("r", w.load(w.tile(repeated, [5, 6], "f16", [w.index(0)] * 2, [5, 6])), [5, 6])
    out = w.run()
    np.testing.assert_array_equal(out["t"], a.T)
    np.testing.assert_array_equal(out["b"], a[7::-2])
    np.testing.assert_array_equal(out["r"], np.broadcast_to(a[0], (5, 6)))


@pytest.mark.parametrize("sticks", [False, True])
def test_literal_addresses(sticks: bool) -> None:
    """a at element (or stick) 128, o at 512; element types differ, so the byte address does too."""
    a = f16(4, 64)
    w = Writer()
    x = w.load(w.tile(w.view(w.index(128), [4, 64]), [4, 64], "f16", [w.index(0)] * 2, [4, 64]))
    wide = w.op(f"arith.extf {x} : tensor<4x64xf16> to tensor<4x64xf32>")
    w.store(wide, w.tile(w.view(w.index(512), [4, 64], "f32"), [4, 64], "f32", [w.index(0)] * 2, [4, 64]), "f32")
    memory = np.zeros(1 << 17, np.uint8)
    source, target = (128 * 128, 512 * 128) if sticks else (128 * 2, 512 * 4)
    memory[source : source + 512] = encode(a, "f16")
    w.run(memory=memory, options=Options(stick_addresses=sticks))
    np.testing.assert_array_equal(decode(memory[target : target + 1024], "f32", (4, 64)), a)


def test_dynamic_sizes_are_bound_when_compiling() -> None:
    """A view of n elements in a longer buffer: what lies behind is neither read nor written."""
    a = f16(100)
    for n in (0, 7, 64, 100):
        w = Writer()
        source, target = w.argument("a", a), w.argument("o", np.full(100, 9))
        w.arguments.append("%n: index")
        views = [
            w.op(
                f"ktdp.construct_memory_view {base}, sizes: [%n], strides: [1] {{coordinate_set = "
                f"affine_set<(d0)[s0] : (d0 >= 0, -d0 + s0 - 1 >= 0)>, memory_space = #ktdp.memory_space<global>}} "
                ": memref<?xf16>"
            )
            for base in (source, target)
        ]
        tiles = [
            w.op(
                f"ktdp.construct_access_tile {view}[{w.index(0)}] {{access_tile_set = {box(100)}, access_tile_order = "
                "affine_map<(d0) -> (d0)>} : memref<?xf16> -> !ktdp.access_tile<100xindex>"
            )
            for view in views
        ]
        x = w.load((tiles[0], [100]))
        w.store(w.op(f"arith.negf {x} : tensor<100xf16>"), (tiles[1], [100]))
        out = w.run(bind={"n": n})["o"]
        np.testing.assert_array_equal(out, np.where(np.arange(100) < n, -a, 9))


def test_dynamic_tiles_take_their_size_from_symbols() -> None:
    """Tile i has 1 + i elements."""
    a = f16(5, 8)
    w = Writer((5,))
    (i,) = w.ids()
    size = w.op(f"arith.addi {i}, {w.index(1)} : index")
    points = box(1, 8, symbols=1, uppers={1: "s0 - 1"})

    def tile(view: str) -> tuple[str, list[str]]:
        name = w.op(
            f"ktdp.construct_access_tile {view}[{i}, {w.index(0)}] symbols({size}) {{access_tile_set = {points}, "
            "access_tile_order = affine_map<(d0, d1) -> (d0, d1)>} : memref<5x8xf16> -> !ktdp.access_tile<1x?xindex>"
        )
        return name, ["1", "?"]

    x = w.load(tile(w.array("a", a)))  # type: ignore[arg-type]
    y = w.op(f"arith.negf {x} : tensor<1x?xf16>")
    w.store(y, tile(w.array("o", np.zeros_like(a))))  # type: ignore[arg-type]
    np.testing.assert_array_equal(w.run()["o"], np.where(np.arange(8) <= np.arange(5)[:, None], -a, 0))


def test_runtime_arguments_are_multiples_below_a_bound() -> None:
    a = f16(64)
    w = Writer()
    view = w.array("a", a)
    w.arguments.append("%n: !ktdp.runtime_arg<index, granularity = 8, upperbound = 64>")
    n = w.op(
        "ktdp.runtime_arg_extract value from %n : !ktdp.runtime_arg<index, granularity = 8, upperbound = 64> -> index"
    )
    w.scalars.append(24)
    name = w.op(
        f"ktdp.construct_access_tile {view}[{w.index(0)}] symbols({n}) {{access_tile_set = "
        f"{box(64, symbols=1, uppers={0: 's0 - 1'})}, access_tile_order = affine_map<(d0) -> "
        "(d0)>} : memref<64xf16> -> "
        "!ktdp.access_tile<?xindex>"
    )
    x = w.load((name, ["?"]))  # type: ignore[list-item]
    w.store(w.op(f"arith.negf {x} : tensor<?xf16>"), (name, ["?"]))  # type: ignore[list-item]
    np.testing.assert_array_equal(w.run()["a"], np.where(np.arange(64) < 24, -a, a))


def test_indices_have_64_bits() -> None:
    """A12: a row 3 000 000 000 elements into a buffer, found by arithmetic that 32 bits cannot hold."""
    w = Writer()
    far = w.sum(w.argument("a", np.zeros(1)), w.product(w.index(3_000_000), 1000))
    view = w.view(far, [8])
    tile = w.tile(view, [8], "f16", [w.index(0)], [8])
    w.store(w.op(f"arith.negf {w.load(tile)} : tensor<8xf16>"), tile)
    program = w.compile()
    assert program.args[0].bytes == 3_000_000_000 * 2 + 16


def test_a_core_may_not_span_more_than_256_mib() -> None:
    """Two rows 300 MiB apart: one core that reads both is refused, two cores that read one each are not."""
    stride = 150 << 20

    def program(cores: int) -> Writer:
        w = Writer((cores,))
        (i,) = w.ids()
        view = w.view(w.argument("a", np.zeros(1)), [2, 8], strides=[stride, 1])
        rows = 2 // cores
        at = [i, w.index(0)]
        w.store(w.load(w.tile(view, [2, 8], "f16", at, [rows, 8])), w.tile(view, [2, 8], "f16", at, [rows, 8]))
        return w

    assert program(2).compile().args[0].bytes == stride * 2 + 16
    with pytest.raises(InvalidProgram, match="256 MiB"):
        program(1).compile()


def test_the_span_counts_for_one_iteration_of_a_loop() -> None:
    """One core that takes the rows one by one starts anew at each; the loop is not absorbed into one long access."""
    stride = 150 << 20
    w = Writer((1,))
    view = w.view(w.argument("a", np.zeros(1)), [4, 8], strides=[stride, 1])
    first, last, step = w.index(0), w.index(4), w.index(1)
    w.add(f"scf.for %row = {first} to {last} step {step} {{")
    tile = w.tile(view, [4, 8], "f16", ["%row", first], [1, 8])
    w.store(w.op(f"arith.negf {w.load(tile)} : tensor<1x8xf16>"), tile)
    w.add("}")
    program = w.compile()
    assert any("loop" in str(inst).lower() for inst in program.instructions)
    assert program.args[0].bytes == stride * 6 + 16


@pytest.mark.parametrize("space", ["#ktdp.memory_space<ct_local>", "#ktdp.spyre_memory_space<LX>"])
def test_scratchpad_views_in_both_spellings(space: str) -> None:
    a = f16(4, 64)
    w = Writer((4,))
    (i,) = w.ids()
    x = w.load(w.tile(w.array("a", a), a.shape, "f16", [i, w.index(0)], [1, 64]))
    local = w.view(w.index(64), [1, 64], space=space)
    w.store(w.op(f"arith.negf {x} : tensor<1x64xf16>"), w.tile(local, [1, 64], "f16", [w.index(0)] * 2, [1, 64]))
    y = w.load(w.tile(local, [1, 64], "f16", [w.index(0)] * 2, [1, 64]))
    w.store(y, w.tile(w.array("o", np.zeros_like(a)), a.shape, "f16", [i, w.index(0)], [1, 64]))
    np.testing.assert_array_equal(w.run()["o"], -a)


def test_subviews() -> None:
    a = f16(8, 10)
    w = Writer()
    view = w.array("a", a)
    sub = w.op(
        f"memref.subview {view}[2, 1] [3, 4] [2, 2] : memref<8x10xf16> to memref<3x4xf16, strided<[20, 2], offset: 21>>"
    )
    kind = "memref<3x4xf16, strided<[20, 2], offset: 21>>"
    tile = w.op(
        f"ktdp.construct_access_tile {sub}[{w.index(0)}, {w.index(0)}] {{access_tile_set = {box(3, 4)}, "
        f"access_tile_order = affine_map<(d0, d1) -> (d0, d1)>}} : {kind} -> !ktdp.access_tile<3x4xindex>"
    )
    w.output("o", w.load((tile, [3, 4])), [3, 4])
    np.testing.assert_array_equal(w.run()["o"], a[2:8:2, 1:9:2])


# -- any tile ----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_tiles(data: st.DataObject) -> None:
    """Loads and stores of random boxes, orders and offsets, partly outside the view, on one core or several."""
    rank = data.draw(st.integers(1, 3))
    shape = [data.draw(st.integers(1, 7)) for _ in range(rank)]
    size = [data.draw(st.integers(1, 6)) for _ in range(rank)]
    start = [data.draw(st.integers(-3, 6)) for _ in range(rank)]
    order = data.draw(st.permutations(range(rank)))
    cores = data.draw(st.sampled_from([1, 2, 3]))
    step = data.draw(st.integers(0, 3))
    a = f16(*shape)
    w = Writer((cores,))
    (i,) = w.ids()
    first = w.sum(w.product(i, step), start[0])
    at = [first, *(w.index(s) for s in start[1:])]
    value = w.load(w.tile(w.array("a", a), shape, "f16", at, size, order))
    tiled = [size[d] for d in order]
    one = w.op(f"arith.constant dense<1.0> : tensor<{shaped(tiled, 'f16')}>")
    value = w.op(f"arith.addf {value}, {one} : tensor<{shaped(tiled, 'f16')}>")
    out = np.zeros((cores, *tiled))
    view = w.array("o", out)
    flat = w.op(
        f"tensor.expand_shape {value} [[0, 1]{''.join(f', [{d + 2}]' for d in range(rank - 1))}] output_shape "
        f"[1, {', '.join(map(str, tiled))}] : tensor<{shaped(tiled, 'f16')}> into tensor<{shaped([1, *tiled], 'f16')}>"
    )
    w.store(flat, w.tile(view, out.shape, "f16", [i, *[w.index(0)] * rank], [1, *tiled]))
    result = w.run()["o"]
    for core in range(cores):
        origin = [start[0] + step * core, *start[1:]]
        points = np.ix_(*[np.clip(np.arange(o, o + s), 0, n - 1) for o, s, n in zip(origin, size, shape, strict=True)])
        inside = np.ones(size, bool)
        for d, (o, s, n) in enumerate(zip(origin, size, shape, strict=True)):
            ok = (np.arange(o, o + s) >= 0) & (np.arange(o, o + s) < n)
            inside &= ok.reshape([-1 if e == d else 1 for e in range(rank)])
        expected = round_sen169(np.where(inside, a[points], 0) + 1).transpose(order)
        np.testing.assert_array_equal(result[core], expected)


def test_tiles_that_stay_inside_cost_nothing() -> None:
    a = f16(64, 64)
    w = Writer((4,))
    (i,) = w.ids()
    at = [w.product(i, 16), w.index(0)]
    x = w.load(w.tile(w.array("a", a), a.shape, "f16", at, [16, 64]))
    w.store(w.op(f"arith.negf {x} : tensor<16x64xf16>"), w.tile(w.array("o", a), a.shape, "f16", at, [16, 64]))
    program = w.compile(STRICT)
    assert [type(inst) for inst in program.instructions] == [asm.VopInst, asm.EndInst]
    assert program.lx_bytes == 0
