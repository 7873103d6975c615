# SPDX-License-Identifier: Apache-2.0
# pytest tests/card/test_streamed_products.py
"""Products of one row, streamed by host threads in the order of memory, with prefetches ahead: bits stay."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from programs import BARRIER, CORE, FP32, SEN169, R, W, a, build, copy, dims, imm, lx, mem, reg, sop, vop

from torch_spyre import _card
from torch_spyre.backend.program.isa import Sop

CORES, K, N = 8, 192, 64
WEIGHT = K * N * 2  # bytes of the second operand of one product


@pytest.fixture(params=[1, 2, 3, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = _card.host_threads()
    _card.set_host_threads(request.param)
    yield request.param
    _card.set_host_threads(before)


def values(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Codes of SEN169 numbers of either sign between 2^-4 and 2^-1."""
    return (rng.integers(0x3600, 0x3C00, shape) | (rng.integers(0, 2, shape) << 15)).astype(np.uint16)


def decoded(codes: np.ndarray) -> np.ndarray:
    return np.array([_card.decode(int(c), SEN169) for c in codes.reshape(-1)]).reshape(codes.shape)


def product(out: a.Operand, x: a.Operand, weight: a.Operand) -> a.MatmulInst:
    return a.MatmulInst(dims(1, N, K), out, x, weight)


def row(arg: int) -> a.Operand:
    return mem(arg, 0, 0, 0, 2, fmt=SEN169)


def weight(arg: int, offset: object) -> a.Operand:
    return mem(arg, offset, 0, 2, N * 2, fmt=SEN169)


def two_weights(chained: bool) -> bytes:
    """Alone: x doubles. Then each core makes two products; `chained`, the second begins with what the first made."""
    first = lx(0x1000, 0, 4, 0, fmt=FP32)
    second = lx(0x1000 if chained else 0x2000, 0, 4, 0, fmt=FP32)
    again = a.MatmulInst(dims(1, N, K), second, row(3), weight(2, CORE * WEIGHT), accumulate=chained)
    out = N * 4
    body = [
        vop("add", dims(K), mem(3, 0, 2, fmt=SEN169), mem(0, 0, 2, fmt=SEN169), mem(0, 0, 2, fmt=SEN169)),
        BARRIER,
        product(first, row(3), weight(1, CORE * WEIGHT)),
        again,
        BARRIER,
        copy(dims(N), mem(4, CORE * (2 * out), 4, fmt=FP32), lx(0x1000, 4)),
        copy(dims(N), mem(4, CORE * (2 * out) + out, 4, fmt=FP32), lx(0x1000 if chained else 0x2000, 4)),
    ]
    args = [(R, K * 2), (R, CORES * WEIGHT), (R, CORES * WEIGHT), (R | W, K * 2), (W, CORES * 2 * out)]
    return build(body, args, cores=CORES, lx_bytes=0x3000)


class Bench:
    """A card with a program and its buffers."""

    def __init__(self, chained: bool, seed: int = 3) -> None:
        rng = np.random.default_rng(seed)
        self.card, self.program = _card.Card(), _card.Program.load(two_weights(chained))
        self.x, self.gate, self.up = values(rng, K), values(rng, CORES, K, N), values(rng, CORES, K, N)
        self.arrays = [self.x, self.gate, self.up, np.zeros(K, np.uint16), np.zeros((CORES, 2, N), np.float32)]
        self.buffers: list[tuple[int, int]] = []

    def allocate(self) -> None:
        self.buffers = [(self.card.allocate(x.nbytes), x.nbytes) for x in self.arrays]
        for x, (address, _) in zip(self.arrays, self.buffers, strict=True):
            self.card.write(address, x.tobytes())

    def free(self) -> None:
        for address, _ in self.buffers:
            self.card.free(address)

    def launch(self) -> np.ndarray:
        self.card.launch(self.program, self.buffers, [])
        self.card.synchronize()
        return np.frombuffer(self.card.read(*self.buffers[4]), np.float32).reshape(CORES, 2, N)


@pytest.mark.parametrize("chained", [False, True])
def test_bits_of_any_order(chained: bool, threads: int) -> None:
    """Independent products run in the order of memory, dependent ones in their own."""
    bench = Bench(chained)
    bench.allocate()
    first = bench.launch()
    x = 2 * decoded(bench.x)
    gate, up = (np.einsum("k,ckn->cn", x, decoded(w)) for w in (bench.gate, bench.up))
    wanted = np.stack([gate + up, gate + up] if chained else [gate, up], 1)
    np.testing.assert_allclose(first, wanted, rtol=0, atol=2e-5 * float(np.abs(wanted).max()) * K)
    for _ in range(20):
        np.testing.assert_array_equal(bench.launch(), first)


def test_rows_of_several_cores_with_one_weight(threads: int) -> None:
    """Cores that hold other rows and share a weight: their products join, and the bits are those of each alone."""
    rows, shared = 2, 4
    groups = CORES // shared
    body = [
        sop(1, Sop.MOD, CORE, shared),
        sop(2, Sop.FLOORDIV, CORE, shared),
        a.MatmulInst(
            dims(rows, N, K),
            lx(0x1000, N * 4, 4, 0, fmt=FP32),
            mem(0, reg(2, rows * K * 2), K * 2, 0, 2, fmt=SEN169),
            mem(1, reg(1, WEIGHT), 0, 2, N * 2, fmt=SEN169),
        ),
        BARRIER,
        copy(dims(rows, N), mem(2, CORE * (rows * N * 4), N * 4, 4, fmt=FP32), lx(0x1000, N * 4, 4)),
    ]
    rng = np.random.default_rng(5)
    x, w = values(rng, groups, rows, K), values(rng, shared, K, N)
    arrays = [x, w, np.zeros((groups, shared, rows, N), np.float32)]
    card = _card.Card()
    program = _card.Program.load(
        build(body, [(R, x.nbytes), (R, w.nbytes), (W, arrays[2].nbytes)], cores=CORES, lx_bytes=0x3000)
    )
    buffers = [(card.allocate(array.nbytes), array.nbytes) for array in arrays]
    for array, (address, _) in zip(arrays, buffers, strict=True):
        card.write(address, array.tobytes())
    found = []
    for _ in range(6):  # the first launch is interpreted, core after core
        card.launch(program, buffers, [])
        card.synchronize()
        found.append(np.frombuffer(card.read(*buffers[2]), np.float32).reshape(arrays[2].shape))
    wanted = np.einsum("grk,skn->gsrn", decoded(x), decoded(w))
    np.testing.assert_allclose(found[0], wanted, rtol=0, atol=2e-5 * float(np.abs(wanted).max()) * K)
    for result in found[1:]:
        np.testing.assert_array_equal(result, found[0])


def test_prefetches_of_memory_that_went(threads: int) -> None:
    """Threads that idle may still look at what an earlier launch announced: its memory is freed, reused, given back."""
    bench = Bench(False)
    bench.allocate()
    first = bench.launch()
    for _ in range(12):
        bench.free()
        bench.card.trim()
        bench.allocate()
        for _ in range(3):
            np.testing.assert_array_equal(bench.launch(), first)


def test_short_weights(threads: int) -> None:
    """Less than what a prefetch takes at once, at the end of its buffer."""
    k = 3
    body = [
        vop("add", dims(k), mem(3, 0, 4), mem(0, 0, 4), imm(0.5)),
        BARRIER,
        *[
            a.MatmulInst(dims(1, 4, k), lx(0x100 * i, 0, 4, 0), mem(3, 0, 0, 0, 4), mem(1, CORE * 48, 0, 4, 16))
            for i in range(1, 40)
        ],
        BARRIER,
        copy(dims(4), mem(2, CORE * 16, 4), lx(0x2700, 4)),
    ]
    card, cores = _card.Card(), 32
    program = _card.Program.load(
        build(body, [(R, k * 4), (R, cores * 48), (W, cores * 16), (R | W, k * 4)], cores=cores, lx_bytes=0x4000)
    )
    w = np.arange(cores * k * 4, dtype=np.float32).reshape(cores, k, 4)
    buffers = [(card.allocate(n), n) for n in (k * 4, cores * 48, cores * 16, k * 4)]
    card.write(buffers[1][0], w.tobytes())
    card.write(buffers[0][0], np.zeros(k, np.float32).tobytes())
    for _ in range(4):
        card.write(buffers[2][0], bytes(buffers[2][1]))
        card.launch(program, buffers, [])
        got = np.frombuffer(card.read(*buffers[2]), np.float32).reshape(cores, 4)
        np.testing.assert_array_equal(got, 0.5 * w.sum(1))


def test_waits_at_every_place_of_a_queue(threads: int) -> None:
    """Each of many threads waits for a command of its own; one thread runs them all, and wakes whom it reaches."""
    bench = Bench(False)
    bench.allocate()
    bench.launch()
    markers = []
    for _ in range(60):
        bench.card.launch(bench.program, bench.buffers, [])
        markers.append(bench.card.record())
    waiting = [threading.Thread(target=bench.card.synchronize, args=(m,)) for m in markers[::4]]
    for thread in waiting:
        thread.start()
    for _ in range(20):
        bench.card.launch(bench.program, bench.buffers, [])
    for thread in waiting:
        thread.join(60)
        assert not thread.is_alive()
    assert all(bench.card.complete(m) for m in markers[:-3])
    bench.card.synchronize()
    assert bench.card.idle()


def test_timeline(threads: int) -> None:
    """Calls lie within units, units within launches, and the products of a shared stage in the order of memory."""
    bench = Bench(False)
    bench.allocate()
    for _ in range(2):
        bench.launch()
    _card.record_timeline(True)
    bench.launch()
    spans = _card.timeline()
    _card.record_timeline(False)
    assert all(start <= end for *_, start, end in spans)
    (launch,) = [s for s in spans if s[0] == "launch"]
    units = [s for s in spans if s[0] == "unit"]
    calls = [s for s in spans if s[0] not in ("unit", "launch")]
    assert [s[1] for s in calls if s[0] == "MATMUL"] == [f"1x{N}x{K}"] * (2 * CORES)
    for inner, outer in ((units, [launch]), (calls, units)):
        for s in inner:
            assert any(o[3] <= s[3] and s[4] <= o[4] for o in outer)
    assert len({s[2] for s in units}) <= threads
    bench.launch()
    assert _card.timeline() == []
