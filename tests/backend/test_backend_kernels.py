# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/backend/test_backend_kernels.py. Whole kernels as other people write them, against float64."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from ktir_write import Writer, decode, encode, f16
from program_interp import round_sen169, run_on_card

from torch_spyre import ktir
from torch_spyre.backend.compile import compile_module

ULP = 2.0**-9
FILES = Path(__file__).parents[1] / "support" / "ktir"


def close(result: np.ndarray, exact: np.ndarray, ulps: float = 4) -> None:
    """Within some ulps of the largest value of a row."""
    bound = np.abs(exact).max(-1, keepdims=True) * ULP * ulps
    assert (np.abs(result - exact) <= bound + 1e-6).all(), np.abs(result - exact).max()


def test_attention_with_a_transposed_load_and_f16_throughout() -> None:
    """softmax(q kᵀ / 8) v for 32 x 64 on one core; k is read transposed by the order of its tile."""
    q, k, v = f16(32, 64), f16(32, 64, seed=1), f16(32, 64, seed=2)
    w = Writer()
    x = w.input("q", q)
    kt = w.load(w.tile(w.array("k", k), k.shape, "f16", [w.index(0)] * 2, [32, 64], [1, 0]))
    y = w.input("v", v)
    square, wide, row = "tensor<32x32xf16>", "tensor<32x64xf16>", "tensor<32xf16>"
    e = w.op(f"tensor.empty() : {square}")
    zero = w.op("arith.constant 0.0 : f16")
    z = w.op(f"linalg.fill ins({zero} : f16) outs({e} : {square}) -> {square}")
    s = w.op(f"linalg.matmul ins({x}, {kt} : {wide}, tensor<64x32xf16>) outs({z} : {square}) -> {square}")
    scale = w.op(f"tensor.splat {w.op('arith.constant 0.125 : f16')} : {square}")
    s = w.op(f"arith.mulf {s}, {scale} : {square}")
    low = w.op("arith.constant 0xFC00 : f16")
    er = w.op(f"tensor.empty() : {row}")
    start = w.op(f"linalg.fill ins({low} : f16) outs({er} : {row}) -> {row}")
    m = w.op(f"linalg.reduce {{ arith.maxnumf }} ins({s} : {square}) outs({start} : {row}) dimensions = [1]")
    column = w.op(f"tensor.expand_shape {m} [[0, 1]] output_shape [32, 1] : {row} into tensor<32x1xf16>")
    flat = w.op(f"tensor.collapse_shape {column} [[0, 1]] : tensor<32x1xf16> into {row}")
    mb = w.op(f"linalg.broadcast ins({flat} : {row}) outs({e} : {square}) dimensions = [1]")
    p = w.op(f"math.exp {w.op(f'arith.subf {s}, {mb} : {square}')} : {square}")
    begin = w.op(f"linalg.fill ins({zero} : f16) outs({er} : {row}) -> {row}")
    t = w.op(f"linalg.reduce {{ arith.addf }} ins({p} : {square}) outs({begin} : {row}) dimensions = [1]")
    tb = w.op(f"linalg.broadcast ins({t} : {row}) outs({e} : {square}) dimensions = [1]")
    p = w.op(f"arith.divf {p}, {tb} : {square}")
    eo = w.op(f"tensor.empty() : {wide}")
    o = w.op(f"linalg.matmul ins({p}, {y} : {square}, {wide}) outs({eo} : {wide}) -> {wide}")
    w.output("o", o, [32, 64])
    scores = q.astype(np.float64) @ k.T.astype(np.float64) / 8
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    close(w.run(exact=False)["o"], weights @ v, 8)


def test_rope_over_heads_in_an_i32_loop() -> None:
    """Halves of 16 are rotated by position; heads over grid axis 0, positions over axis 1, one head at a time."""
    heads, length, half = 6, 10, 16
    x = f16(heads, length, 2 * half)
    angle = np.random.default_rng(1).uniform(0, 3, (length, half))
    cos, sin = (encoded(np.cos(angle)), encoded(np.sin(angle)))
    w = Writer((2, 5))
    i, j = w.ids(2)
    vx, vc, vs = w.array("x", x), w.array("c", cos), w.array("s", sin)
    vo = w.array("o", np.zeros_like(x))
    position = w.product(j, 2)
    first = w.op(f"arith.index_cast {w.product(i, 3)} : index to i32")
    three, one = w.op("arith.constant 3 : i32"), w.op("arith.constant 1 : i32")
    last = w.op(f"arith.addi {first}, {three} : i32")
    c, s = (w.load(w.tile(v, cos.shape, "f16", [position, w.index(0)], [2, half])) for v in (vc, vs))
    w.add(f"scf.for %h = {first} to {last} step {one} : i32 {{")
    head = w.op("arith.index_cast %h : i32 to index")
    whole = w.load(w.tile(vx, x.shape, "f16", [head, position, w.index(0)], [1, 2, 2 * half]))
    flat = w.op(
        f"tensor.collapse_shape {whole} [[0, 1], [2]] : tensor<1x2x{2 * half}xf16> into tensor<2x{2 * half}xf16>"
    )
    kind = f"tensor<2x{half}xf16>"
    a, b = (
        w.op(f"tensor.extract_slice {flat}[0, {at}] [2, {half}] [1, 1] : tensor<2x{2 * half}xf16> to {kind}")
        for at in (0, half)
    )
    ac, bs, bc, as_ = (w.op(f"arith.mulf {p}, {q} : {kind}") for p, q in ((a, c), (b, s), (b, c), (a, s)))
    left, right = w.op(f"arith.subf {ac}, {bs} : {kind}"), w.op(f"arith.addf {bc}, {as_} : {kind}")
    for value, at in ((left, 0), (right, half)):
        out = w.op(
            f"tensor.expand_shape {value} [[0, 1], [2]] output_shape [1, 2, {half}] : {kind} into "
            f"tensor<1x2x{half}xf16>"
        )
        w.store(out, w.tile(vo, x.shape, "f16", [head, position, w.index(at)], [1, 2, half]))
    w.add("}")
    p, q = x[..., :half].astype(np.float64), x[..., half:].astype(np.float64)
    exact = np.concatenate([p * cos - q * sin, q * cos + p * sin], -1)
    close(w.run()["o"], exact, 4)


def encoded(values: np.ndarray) -> np.ndarray:
    return round_sen169(values.astype(np.float32))


def test_rms_norm_split_over_rows_and_columns() -> None:
    """Grid 2 x 2: sums of squares of half rows are combined between the tiles of axis 0."""
    rows, columns = 6, 80
    x, g = f16(rows, columns), f16(columns, seed=1)
    w = Writer((2, 2))
    i, j = w.ids(2)
    at = [w.product(j, 3), w.product(i, 40)]
    half = "tensor<3x40xf16>"
    v = w.load(w.tile(w.array("x", x), x.shape, "f16", at, [3, 40]))
    wide = w.op(f"arith.extf {v} : {half} to tensor<3x40xf32>")
    zero = w.op("arith.constant dense<0.0> : tensor<3xf32>")
    partial = w.op(
        "linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], "
        f'iterator_types = ["parallel", "reduction"]}} ins({wide} : tensor<3x40xf32>) outs({zero} : tensor<3xf32>) {{\n'
        "^bb0(%p: f32, %q: f32):\n%m = arith.mulf %p, %p : f32\n%s = arith.addf %q, %m : f32\nlinalg.yield %s : f32\n} "
        "-> tensor<3xf32>"
    )
    pair = "affine_set<(i)[g] : (i - 2 * g >= 0, -i + 2 * g + 1 >= 0)>"
    future = "!ktdp.tile_future<(tensor<3xf32>), groups = affine_set<(g) : (g >= 0, -g + 1 >= 0)>>"
    f = w.op(
        f"ktdp.inter_tile_produce producer_tiles_per_group = {pair} -> {future} {{\n^bb0(%g: index):\n"
        f"ktdp.yield_partial {partial} : tensor<3xf32>\n}}"
    )
    total = w.op(
        f"ktdp.inter_tile_reduce({f}) consumer_tiles_per_group = {pair}, identity({zero} : tensor<3xf32>) "
        f": {future} -> "
        "tensor<3xf32> {\n^bb0(%l: tensor<3xf32>, %r: tensor<3xf32>):\n%s = arith.addf %l, %r : tensor<3xf32>\n"
        "ktdp.yield_reduced %s : tensor<3xf32>\n}"
    )
    n = w.op(f"tensor.splat {w.op(f'arith.constant {1 / columns} : f32')} : tensor<3xf32>")
    r = w.op(f"math.rsqrt {w.op(f'arith.mulf {total}, {n} : tensor<3xf32>')} : tensor<3xf32>")
    full = w.op("tensor.empty() : tensor<3x40xf32>")
    rb = w.op(f"linalg.broadcast ins({r} : tensor<3xf32>) outs({full} : tensor<3x40xf32>) dimensions = [1]")
    y = w.op(f"arith.mulf {wide}, {rb} : tensor<3x40xf32>")
    gain = w.load(w.tile(w.array("g", g), [columns], "f16", [at[1]], [40]))
    g32 = w.op(f"arith.extf {gain} : tensor<40xf16> to tensor<40xf32>")
    gb = w.op(f"linalg.broadcast ins({g32} : tensor<40xf32>) outs({full} : tensor<3x40xf32>) dimensions = [0]")
    z = w.op(f"arith.truncf {w.op(f'arith.mulf {y}, {gb} : tensor<3x40xf32>')} : tensor<3x40xf32> to {half}")
    w.store(z, w.tile(w.array("o", np.zeros_like(x)), x.shape, "f16", at, [3, 40]))
    wide_x = x.astype(np.float64)
    close(w.run(exact=False)["o"], wide_x / np.sqrt((wide_x**2).mean(1, keepdims=True)) * g, 2)


def test_masks_from_coordinates_cut_an_unpadded_row() -> None:
    """Offsets pid * 32 + arange(32) against n, as Triton writes masks: other lanes load 0 and store nothing."""
    n = 75
    a = f16(n)
    w = Writer((3,))
    (pid,) = w.ids()
    base = w.product(pid, 32)
    tensor = "tensor<32xi32>"
    lanes = w.op(
        "tensor.generate {\n^bb0(%i: index):\n%t = arith.index_cast %i : index to i32\ntensor.yield %t : i32\n} : "
        + tensor
    )
    start = w.op(f"tensor.splat {w.op(f'arith.index_cast {base} : index to i32')} : {tensor}")
    offsets = w.op(f"arith.addi {start}, {lanes} : {tensor}")
    limit = w.op(f"arith.constant dense<{n - 5}> : {tensor}")
    mask = w.op(f"arith.cmpi slt, {offsets}, {limit} : {tensor}")
    x = w.load(w.tile(w.array("a", a), [n], "f16", [base], [32]))
    other = w.op("arith.constant dense<-1.0> : tensor<32xf16>")
    y = w.op(f"arith.select {mask}, {x}, {other} : tensor<32xi1>, tensor<32xf16>")
    w.store(y, w.tile(w.array("o", np.zeros(n)), [n], "f16", [base], [32]))
    np.testing.assert_array_equal(w.run()["o"], np.where(np.arange(n) < n - 5, a, -1))


def test_copies_between_memories_by_literal_address() -> None:
    """A row from card memory to LX and back to another place, at addresses written as numbers."""
    a = f16(2, 64)
    w = Writer((2,))
    (i,) = w.ids()
    source = w.view(w.index(4096), [2, 64])
    target = w.view(w.index(8192), [2, 64])
    local = w.view(w.index(0), [1, 64], space="#ktdp.spyre_memory_space<LX>")
    whole = w.tile(local, [1, 64], "f16", [w.index(0)] * 2, [1, 64])
    w.store(w.load(w.tile(source, [2, 64], "f16", [i, w.index(0)], [1, 64])), whole)
    w.store(w.load(whole), w.tile(target, [2, 64], "f16", [i, w.index(0)], [1, 64]))
    memory = np.zeros(8192 * 2 + 256, np.uint8)
    memory[8192 : 8192 + 256] = encode(a, "f16")
    w.run(memory=memory)
    np.testing.assert_array_equal(memory[16384:], memory[8192 : 8192 + 256])


def test_a_gated_layer_on_four_cores() -> None:
    """silu(x g) * (x u) times d, the inner dim split over the cores: a K split with a sum to everybody."""
    x = f16(4, 32)
    g, u, d = f16(32, 64, seed=1) * 0.25, f16(32, 64, seed=2) * 0.25, f16(64, 32, seed=3) * 0.25
    w = Writer((4,))
    (i,) = w.ids()
    at = w.product(i, 16)
    v = w.input("x", x)
    wide = "tensor<4x16xf32>"
    zero = w.op(f"arith.constant dense<0.0> : {wide}")
    parts = []
    for name, matrix in (("g", g), ("u", u)):
        m = w.load(w.tile(w.array(name, matrix), matrix.shape, "f16", [w.index(0), at], [32, 16]))
        parts.append(
            w.op(f"linalg.matmul ins({v}, {m} : tensor<4x32xf16>, tensor<32x16xf16>) outs({zero} : {wide}) -> {wide}")
        )
    e = w.op(f"tensor.empty() : {wide}")
    gate = w.op(
        "linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>], "
        f'iterator_types = ["parallel", "parallel"]}} ins({parts[0]} : {wide}) outs({e} : {wide}) {{\n'
        f"^bb0(%p: f32, %q: f32):\n%s = spyreop.silu %p : f32\nlinalg.yield %s : f32\n}} -> {wide}"
    )
    h = w.op(f"arith.truncf {w.op(f'arith.mulf {gate}, {parts[1]} : {wide}')} : {wide} to tensor<4x16xf16>")
    down = w.load(w.tile(w.array("d", d), d.shape, "f16", [at, w.index(0)], [16, 32]))
    full = "tensor<4x32xf32>"
    nothing = w.op(f"arith.constant dense<0.0> : {full}")
    part = w.op(
        f"linalg.matmul ins({h}, {down} : tensor<4x16xf16>, tensor<16x32xf16>) outs({nothing} : {full}) -> {full}"
    )
    everyone = "affine_set<(i)[g] : (i >= 0, -i + 3 >= 0)>"
    future = f"!ktdp.tile_future<({full}), groups = affine_set<(g) : (g == 0)>>"
    f = w.op(
        f"ktdp.inter_tile_produce producer_tiles_per_group = {everyone} -> {future} {{\n^bb0(%g: index):\n"
        f"ktdp.yield_partial {part} : {full}\n}}"
    )
    total = w.op(
        f"ktdp.inter_tile_reduce({f}) consumer_tiles_per_group = {everyone}, identity({nothing} : {full}) "
        f": {future} -> "
        f"{full} {{\n^bb0(%l: {full}, %r: {full}):\n%s = arith.addf %l, %r : {full}\nktdp.yield_reduced %s : {full}\n}}"
    )
    o = w.op(f"arith.truncf {total} : {full} to tensor<4x32xf16>")
    mine = w.op(f"tensor.extract_slice {o}[{i}, 0] [1, 32] [1, 1] : tensor<4x32xf16> to tensor<1x32xf16>")
    w.store(mine, w.tile(w.array("o", np.zeros((4, 32))), [4, 32], "f16", [i, w.index(0)], [1, 32]))
    wide_x = x.astype(np.float64)
    a, b = wide_x @ g, wide_x @ u
    hidden = a / (1 + np.exp(-a)) * b
    result = w.run(exact=False, card_only=True)["o"]
    assert np.abs(result - hidden @ d).max() <= np.abs(hidden).max() * np.abs(d).sum(0).max() * 2 * ULP


# -- files -------------------------------------------------------------------------------------------------------------


def run_file(name: str, buffers: list[np.ndarray], scalars: list[float]) -> list[np.ndarray]:
    program = compile_module(ktir.parse((FILES / name).read_text(encoding="utf-8")))
    return run_on_card(program.binary, buffers, scalars)


def test_the_softmax_file() -> None:
    x = f16(4096, 1024)
    out = run_file("softmax_4096x1024.mlir", [encode(x, "f16"), np.zeros(x.size * 2, np.uint8)], [])[1]
    e = np.exp(x - x.max(1, keepdims=True))
    close(decoded(out, x.shape), e / e.sum(1, keepdims=True))


def decoded(data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return decode(data, "f16", shape)


def test_the_paged_attention_file() -> None:
    q, k, v = f16(8, 32, 128), f16(64, 16, 8, 128, seed=1), f16(64, 16, 8, 128, seed=2)
    table = np.random.default_rng(3).permutation(64)[:8]
    buffers = [
        encode(q, "f16"),
        encode(k, "f16"),
        encode(v, "f16"),
        encode(table, "i32"),
        np.zeros(q.size * 2, np.uint8),
    ]
    out = decoded(run_file("paged_attention.mlir", buffers, [128**-0.5])[4], q.shape)
    keys, values = (x[table].reshape(128, 8, 128).repeat(4, 1).astype(np.float64) for x in (k, v))
    scores = np.einsum("thd,chd->thc", q.astype(np.float64), keys) * 128**-0.5
    p = np.exp(scores - scores.max(-1, keepdims=True))
    close(out, np.einsum("thc,chd->thd", p / p.sum(-1, keepdims=True), values), 2)


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.glob("*.mlir")))
def test_every_file_compiles_within_a_second(name: str) -> None:
    text = (FILES / name).read_text(encoding="utf-8")
    start = time.process_time()
    program = compile_module(ktir.parse(text), bind={"n": 64})
    assert time.process_time() - start < 1
    assert len(program.instructions) < 100
