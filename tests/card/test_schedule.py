# SPDX-License-Identifier: Apache-2.0
# pytest tests/card/test_schedule.py
"""A program that runs again runs by its schedule, with calls joined across cores: same bits, same errors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from programs import BARRIER, CORE, SEN169, R, W, a, build, copy, dims, imm, loop, lx, mem, reg, remote, sop, vop, when

from torch_spyre import _card
from torch_spyre.backend.program.isa import Compute, Rop, Sop
from torch_spyre.errors import SpyreError
from torch_spyre.ir.affine import Affine

CORES, ROWS, WIDTH = 12, 3, 64


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = _card.host_threads()
    _card.set_host_threads(request.param)
    yield request.param
    _card.set_host_threads(before)


class Bench:
    """One card with a program and its buffers, launched again and again."""

    def __init__(self, binary: bytes, arrays: list[np.ndarray]) -> None:
        self.card, self.program, self.arrays = _card.Card(), _card.Program.load(binary), arrays
        self.buffers = [(self.card.allocate(x.nbytes), x.nbytes) for x in arrays]

    def launch(self) -> list[np.ndarray]:
        """What the arrays hold after a launch that began with their first contents."""
        for x, (address, _) in zip(self.arrays, self.buffers, strict=True):
            self.card.write(address, x.tobytes())
        self.card.launch(self.program, self.buffers, [])
        self.card.synchronize()
        return [
            np.frombuffer(self.card.read(address, size), x.dtype).reshape(x.shape)
            for (address, size), x in zip(self.buffers, self.arrays, strict=True)
        ]


def mixed(long_rows: int) -> bytes:
    """A 4x3 grid of cores: uneven slices, a loop, scratchpads of neighbours, reductions and products."""
    row = WIDTH * 4
    area = CORE * (ROWS * row)
    reduce_rows = a.ReduceInst(Rop.SUM, Compute.F32, 0b10, dims(ROWS, WIDTH), lx(0x1000, 4, 0), lx(0, row, 4))
    product = a.MatmulInst(
        dims(long_rows, WIDTH, WIDTH),
        mem(3, CORE * (long_rows * WIDTH * 2), WIDTH * 2, 2, 0, fmt=SEN169),
        mem(2, 0, WIDTH * 2, 0, 2, fmt=SEN169),
        mem(2, 0, 0, 2, WIDTH * 2, fmt=SEN169),
    )
    body = [
        sop(1, Sop.MOD, CORE, 3),
        sop(2, Sop.FLOORDIV, CORE, 3),
        sop(3, Sop.MOD, CORE + 1, CORES),
        copy(dims(ROWS, WIDTH), lx(0, row, 4), mem(0, area, row, 4)),
        *when(reg(1, -1) + 1, vop("mul", dims(ROWS, WIDTH), lx(0, row, 4), lx(0, row, 4), imm(1.25))),
        *loop(4, 0, reg(1) + 1, 1, vop("add", dims(WIDTH), lx(0, 4), lx(0, 4), lx(reg(4, row), 4))),
        reduce_rows,
        product,
        BARRIER,
        copy(dims(ROWS), lx(0x2000, 4), remote(reg(3), 0x1000, 4)),
        vop("sub", dims(ROWS), lx(0x2000, 4), lx(0x2000, 4), lx(0x1000, 4)),
        BARRIER,
        vop("mul", dims(ROWS, WIDTH), mem(1, area, row, 4), lx(0, row, 4), lx(0x2000, 4, 0)),
    ]
    bytes_of_rows = CORES * ROWS * row
    args = [(R, bytes_of_rows), (W, bytes_of_rows), (R, WIDTH * WIDTH * 2), (W, CORES * long_rows * WIDTH * 2)]
    return build(body, args, cores=CORES, lx_bytes=0x3000)


@pytest.mark.parametrize("long_rows", [1, 48])  # all of it for one thread, or a long phase that threads share
def test_bits_stay(long_rows: int, threads: int) -> None:
    rng = np.random.default_rng(7)
    values = rng.standard_normal((CORES, ROWS, WIDTH)).astype(np.float32)
    codes = rng.integers(0x3000, 0x4000, (max(long_rows, WIDTH), WIDTH)).astype(np.uint16)[:WIDTH]
    out = np.zeros((CORES, long_rows, WIDTH), np.uint16)
    bench = Bench(mixed(long_rows), [values, np.zeros_like(values), codes, out])
    first = bench.launch()
    assert np.any(first[1]) and np.any(first[3])
    for _ in range(3):
        for before, now in zip(first, bench.launch(), strict=True):
            np.testing.assert_array_equal(before, now)


def test_joined_cores_give_the_values(threads: int) -> None:
    """Slices at even and at uneven distances, computed by hand."""
    body = [
        sop(1, Sop.MOD, CORE * 5, CORES),  # each core takes another row, out of order
        vop("add", dims(WIDTH), mem(1, reg(1, WIDTH * 4), 4), mem(0, reg(1, WIDTH * 4), 4), imm(0.5)),
    ]
    x = np.arange(CORES * WIDTH, dtype=np.float32).reshape(CORES, WIDTH)
    bench = Bench(build(body, [(R, x.nbytes), (W, x.nbytes)], cores=CORES), [x, np.zeros_like(x)])
    for _ in range(3):
        np.testing.assert_array_equal(bench.launch()[1], x + 0.5)


def products(cores: int, rows: int) -> bytes:
    """Long products: cores with the same remainder share a weight; each then scales its own rows in its scratchpad."""
    row, weight = WIDTH * 2, WIDTH * WIDTH * 2
    at = CORE * (rows * row)
    product = a.MatmulInst(
        dims(rows, WIDTH, WIDTH),
        lx(0, row, 2, 0, fmt=SEN169),
        mem(0, at, row, 0, 2, fmt=SEN169),
        mem(1, reg(1, weight), 0, 2, row, fmt=SEN169),
    )
    second = a.MatmulInst(
        dims(rows, WIDTH, WIDTH),
        mem(2, at, row, 2, 0, fmt=SEN169),
        lx(0, row, 0, 2, fmt=SEN169),
        mem(1, 0, 0, 2, row, fmt=SEN169),
    )
    scale = vop("mul", dims(rows, WIDTH), lx(0, row, 2, fmt=SEN169), lx(0, row, 2, fmt=SEN169), imm(0.5))
    uneven = when(reg(1) + -2, vop("add", dims(rows, WIDTH), *[lx(0, row, 2, fmt=SEN169)] * 2, imm(1.0)))
    body = [sop(1, Sop.MOD, CORE, 4), product, scale, *uneven, second]
    size = cores * rows * row
    return build(body, [(R, size), (R, 4 * weight), (W, size)], cores=cores, lx_bytes=rows * row)


def test_products_of_cores_that_share_an_operand(threads: int) -> None:
    """Joined products, the rest core after core: the bits of the first launch, fewer calls."""
    cores, rows = 32, 64
    rng = np.random.default_rng(3)
    x = rng.integers(0x3A00, 0x3F00, (cores, rows, WIDTH)).astype(np.uint16)
    signs = rng.integers(0, 2, (4, WIDTH, WIDTH)) << 15
    weights = (rng.integers(0x3200, 0x3B00, signs.shape) | signs).astype(np.uint16)
    bench = Bench(products(cores, rows), [x, weights, np.zeros_like(x)])
    _card.count_kernel_times(True)
    first = bench.launch()[2]
    calls = [sum(row[2] for row in _card.kernel_times() if row[0] == "MATMUL")]
    assert len(np.unique(first)) > 100
    for _ in range(3):
        _card.count_kernel_times(True)
        np.testing.assert_array_equal(bench.launch()[2], first)
        calls.append(sum(row[2] for row in _card.kernel_times() if row[0] == "MATMUL"))
    _card.count_kernel_times(False)
    assert calls[0] == 2 * cores and calls[1] <= cores and len(set(calls[1:])) == 1


def test_a_failure_keeps_its_place(threads: int) -> None:
    """An index out of range on core 2: the same message from the first launch and from the schedule; no later phase."""
    index = np.array([0, 1, 9, 9], np.int32)
    table = np.arange(4 * 4, dtype=np.float32).reshape(4, 4)
    gather = a.GatherInst(
        dims(4),
        mem(2, CORE * 16, 4),
        mem(1, 0, 4),
        (a.IndexOperand(mem(0, CORE * 4, 0, fmt=12), a.DimMap(16), 4),),
    )
    body = [gather, BARRIER, vop("add", dims(4), mem(2, CORE * 16, 4), imm(1.0), imm(1.0))]
    arrays = [index, table, np.zeros((4, 4), np.float32)]
    bench = Bench(build(body, [(R, 16), (R, 64), (W, 64)], cores=4), arrays)
    messages = []
    for _ in range(3):
        with pytest.raises(SpyreError) as error:
            bench.launch()
        messages.append(str(error.value))
        bench.card.reset()
        got = np.frombuffer(bench.card.peek(bench.buffers[2][0], 64), np.float32).reshape(4, 4)
        np.testing.assert_array_equal(got[:2], table[:2])
    assert "core 2" in messages[0] and len(set(messages)) == 1


def test_too_many_calls_for_a_schedule(threads: int) -> None:
    """A long loop stays with the interpreter."""
    body = loop(
        1, 0, 5000, 1, vop("add", dims(1), mem(0, Affine(0) + CORE * 4, 4), mem(0, Affine(0) + CORE * 4, 4), imm(1.0))
    )
    x = np.zeros(CORES, np.float32)
    bench = Bench(build(body, [(R | W, x.nbytes)], cores=CORES), [x])
    for _ in range(3):
        np.testing.assert_array_equal(bench.launch()[0], x + 5000)


def test_kernel_times_count_the_joined_calls(threads: int) -> None:
    """Twelve cores add their slices: twelve calls at first, one when the schedule joins them."""
    size = CORES * WIDTH * 4
    at = CORE * (WIDTH * 4)
    body = [vop("add", dims(WIDTH), mem(1, at, 4), mem(0, at, 4), imm(0.5))]
    x = np.ones((CORES, WIDTH), np.float32)
    bench = Bench(build(body, [(R, size), (W, size)], cores=CORES), [x, np.zeros_like(x)])
    seen = []
    for _ in range(2):
        _card.count_kernel_times(True)
        bench.launch()
        seen.append([(kind, shape, calls) for kind, shape, calls, _ in _card.kernel_times()])
    _card.count_kernel_times(False)
    assert seen == [[("VOP add", "64", CORES)], [("VOP add", f"{CORES}x64", 1)]]
    bench.launch()
    assert _card.kernel_times() == []
