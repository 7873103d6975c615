# SPDX-License-Identifier: Apache-2.0
# pytest tests/card/test_exec.py
"""Phases, rings, threads, the queue and its errors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from programs import (
    BARRIER,
    CORE,
    FP32,
    INT32,
    RW,
    R,
    W,
    a,
    build,
    copy,
    dims,
    imm,
    loop,
    lx,
    mem,
    reg,
    remote,
    run,
    sop,
    vop,
)

from torch_spyre import _card
from torch_spyre.backend.program.isa import Compute, Rop, Sop
from torch_spyre.errors import InvalidArgument, OutOfBounds, Overflow
from torch_spyre.ir.affine import Affine


@pytest.fixture
def threads() -> Iterator[None]:
    before = _card.host_threads()
    yield
    _card.set_host_threads(before)


def rotate(cores: int, rounds: int, width: int) -> bytes:
    """Every core adds 1 to what its right neighbour had one phase before, `rounds` times."""
    row = width * 4
    bank, other = reg(3, row), reg(4, row)
    body = [
        sop(5, Sop.MOD, CORE + 1, cores),
        copy(dims(width), lx(0, 4), mem(0, CORE * row, 4)),
        BARRIER,
        *loop(
            1,
            0,
            rounds,
            1,
            sop(3, Sop.MOD, reg(1), 2),
            sop(4, Sop.MOD, reg(1) + 1, 2),
            copy(dims(width), lx(2 * row, 4), remote(reg(5), bank, 4)),
            vop("add", dims(width), lx(other, 4), lx(2 * row, 4), imm(1.0)),
            BARRIER,
        ),
        sop(3, Sop.MOD, rounds, 2),
        copy(dims(width), mem(1, CORE * row, 4), lx(bank, 4)),
    ]
    return build(body, [(R, cores * row), (W, cores * row)], cores=cores, lx_bytes=3 * row)


def test_barriers_order_remote_reads() -> None:
    x = np.arange(32 * 16, dtype=np.float32).reshape(32, 16)
    _, y = run(rotate(32, 5, 16), [x, np.zeros_like(x)])
    np.testing.assert_array_equal(y, np.roll(x, -5, axis=0) + 5)


def test_ring_sum_in_ascending_order() -> None:
    cores, width = 8, 96
    body = [
        copy(dims(width), lx(0, 4), mem(0, CORE * width * 4, 4)),
        BARRIER,
        a.RingSumInst(4, CORE * 0, 2, dims(width), lx(512, 4), remote(0, 0, 4)),
        copy(dims(width), mem(1, CORE * width * 4, 4), lx(512, 4)),
    ]
    size = cores * width * 4
    binary = build(body, [(R, size), (W, size)], cores=cores, lx_bytes=1024)
    scale = 10.0 ** np.arange(cores)[:, None]  # so that the order of the additions shows
    x = (np.random.default_rng(0).standard_normal((cores, width)) * scale).astype(np.float32)
    _, y = run(binary, [x, np.zeros_like(x)])
    expected = ((x[0] + x[2]) + x[4]) + x[6]
    for core in range(cores):
        np.testing.assert_array_equal(y[core], expected)


def mixed_program(cores: int, rows: int) -> bytes:
    """Matmul with k split over cores, ring sum, reduction: work that differs per core."""
    k, n = 64, 64
    a_bytes, b_bytes, c_bytes = rows * k * 4 * cores, k * n * 4 * cores, rows * n * 4
    body = [
        a.MatmulInst(
            dims(rows, n, k),
            lx(0, n * 4, 4, 0),
            mem(0, CORE * rows * k * 4, k * 4, 0, 4),
            mem(1, CORE * k * n * 4, 0, 4, n * 4),
        ),
        *loop(1, 0, CORE + 1, 1, vop("add", dims(rows * n), lx(0, 4), lx(0, 4), imm(0.25))),
        BARRIER,
        a.RingSumInst(cores, Affine(0), 1, dims(rows, n), lx(c_bytes, n * 4, 4), remote(0, 0, n * 4, 4)),
        a.ReduceInst(Rop.SUM, Compute.F32, 2, dims(rows, n), mem(2, CORE * rows * 4, 4, 0), lx(c_bytes, n * 4, 4)),
    ]
    args = [(R, a_bytes), (R, b_bytes), (W, rows * 4 * cores)]
    return build(body, args, cores=cores, lx_bytes=2 * c_bytes)


def test_bits_do_not_depend_on_threads(threads: None) -> None:
    cores, rows = 32, 16
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((cores, rows, 64), (cores, 64, 64)))
    binary = mixed_program(cores, rows)
    results = []
    for n in (1, 2, 5, 1, 3):
        _card.set_host_threads(n)
        assert _card.host_threads() == n
        for _ in range(4):
            results.append(run(binary, [x, w, np.zeros((cores, rows), np.float32)])[2].tobytes())
    assert len(set(results)) == 1
    total = np.einsum("crk,ckn->rn", x.astype(np.float64), w) + 0.25 * sum(range(1, cores + 1))
    result = np.frombuffer(results[0], np.float32).reshape(cores, rows)
    np.testing.assert_allclose(result[3], total.sum(1), rtol=1e-4, atol=1e-2)


def test_many_short_phases_with_many_threads(threads: None) -> None:
    _card.set_host_threads(6)
    x = np.random.default_rng(2).standard_normal((32, 1024)).astype(np.float32)
    for _ in range(3):
        _, y = run(rotate(32, 64, 1024), [x, np.zeros_like(x)])
        expected = np.roll(x, -64, axis=0)
        for _ in range(64):
            expected = expected + np.float32(1)
        np.testing.assert_array_equal(y, expected)


def test_counters() -> None:
    card, program = _card.Card(), _card.Program.load(rotate(4, 3, 32))
    buffers = [(card.allocate(512), 512) for _ in range(2)]
    for _ in range(2):
        card.launch(program, buffers)
    card.synchronize()
    assert card.counters() == {
        "launches": 2,
        "instructions": 2 * 4 * (2 + 2 * 3),
        "memory_read_bytes": 2 * 512,
        "memory_write_bytes": 2 * 512,
        "lx_read_bytes": 2 * 4 * (3 + 1) * 128,
        "lx_write_bytes": 2 * 4 * (1 + 2 * 3) * 128,
        "ring_bytes": 2 * 4 * 3 * 128,
        "dma_in_bytes": 0,
        "dma_out_bytes": 0,
        "page_reclaims": 0,
        "compute_ns": 0,
        "dma_in_ns": 0,
        "dma_out_ns": 0,
    }


def test_queue_runs_in_order_and_dma_waits_for_it() -> None:
    card = _card.Card()
    body = [vop("add", dims(1 << 16), mem(0, 0, 4), mem(0, 0, 4), imm(1.0))]
    program = _card.Program.load(build(body, [(RW, 4 << 16)]))
    address = card.allocate(4 << 16)
    x = np.zeros(1 << 16, np.float32)
    card.write(address, x.tobytes())
    for _ in range(20):
        card.launch(program, [(address, 4 << 16)])
    out = np.empty_like(x)
    card.dma_out(address, FP32, [1 << 11, 32], [32, 1], out)
    assert (out == 20).all()
    assert card.idle()


def test_launch_checks_its_arguments() -> None:
    card = _card.Card()
    program = _card.Program.load(build([copy(dims(32), mem(0, 0, 4), imm(1.0))], [(W, 128)]))
    address = card.allocate(256)
    with pytest.raises(InvalidArgument, match="0 buffers and 0 scalars"):
        card.launch(program, [])
    with pytest.raises(InvalidArgument, match="has 64 bytes, the program touches 128"):
        card.launch(program, [(address, 64)])
    with pytest.raises(InvalidArgument, match="not 128-byte aligned"):
        card.launch(program, [(address + 64, 128)])
    with pytest.raises(OutOfBounds):
        card.launch(program, [(address, 512)])
    card.launch(program, [(address + 128, 128)])
    card.free(address)
    card.synchronize()
    with pytest.raises(OutOfBounds):
        card.launch(program, [(address, 128)])


def test_errors_stick_until_cleared() -> None:
    card = _card.Card()
    program = _card.Program.load(build([copy(dims(32), mem(0, 0, 4), imm(1.0))], [(W, 128)]))
    address = card.allocate(128)
    too_large = np.array([1, 1 << 40], np.int64)
    card.dma_in(too_large, address, INT32, [1, 32], [32, 1], blocking=False)
    for _ in range(2):
        with pytest.raises(Overflow, match="outside int32"):
            card.synchronize()
    with pytest.raises(Overflow):
        card.launch(program, [(address, 128)])
    with pytest.raises(Overflow):
        card.read(address, 128)
    card.free(card.allocate(128))  # memory stays usable
    card.reset()
    card.launch(program, [(address, 128)])
    card.synchronize()
    assert np.frombuffer(card.read(address, 128), np.float32).tolist() == [1.0] * 32


def test_blocking_errors_do_not_stick() -> None:
    card = _card.Card()
    address = card.allocate(128)
    with pytest.raises(Overflow):
        card.dma_in(np.array([-1 << 33]), address, INT32, [1, 32], [32, 1])
    card.synchronize()


def test_two_cards_are_independent() -> None:
    cards = [_card.Card(i) for i in range(2)]
    program = _card.Program.load(
        build([vop("add", dims(1 << 15), mem(0, 0, 4), mem(0, 0, 4), imm(1.0))], [(RW, 4 << 15)])
    )
    addresses = [card.allocate(4 << 15) for card in cards]
    for card, address in zip(cards, addresses, strict=True):
        card.write(address, bytes(4 << 15))
    for i in range(30):
        cards[i % 3 % 2].launch(program, [(addresses[i % 3 % 2], 4 << 15)])
    for card, address, count in zip(cards, addresses, (20, 10), strict=True):
        card.synchronize()
        assert (np.frombuffer(card.read(address, 4 << 15), np.float32) == count).all()
