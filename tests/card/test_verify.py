# SPDX-License-Identifier: Apache-2.0
# pytest tests/card/test_verify.py
"""The proof at load: bounds, scratchpad ownership, definition before use, for every core and loop iteration."""

from __future__ import annotations

import pytest
from programs import (
    BARRIER,
    CORE,
    FP32,
    RW,
    W,
    build,
    const,
    copy,
    dims,
    imm,
    loop,
    lx,
    mem,
    reg,
    remote,
    sop,
    vop,
    when,
)

from torch_spyre import _card
from torch_spyre.backend.program import assembler as a
from torch_spyre.backend.program.isa import Compute, Rop, ScalarKind, Sop, Space
from torch_spyre.errors import InvalidProgram, OutOfBounds, RaceDetected, UninitializedRead
from torch_spyre.ir.affine import Affine

ARGS = [(RW, 4096)]


def load(instructions: list[a.Instruction], **kwargs: object) -> object:
    kwargs = {"lx_bytes": 4096, **kwargs}
    args = kwargs.pop("args", ARGS)
    return _card.Program.load(build(instructions, args, **kwargs))  # type: ignore[arg-type]


def test_memory_bounds_on_every_core_and_iteration() -> None:
    def program(cores: int, trips: int) -> list[a.Instruction]:
        return loop(1, 0, trips, 1, copy(dims(32), mem(0, CORE * 1024 + reg(1, 128), 4), imm(0.0)))

    load(program(4, 8), cores=4)
    with pytest.raises(OutOfBounds, match=r"instruction 1 \(COPY\) on core 3.*\[4096, 4224\) of argument 0"):
        load(program(4, 9), cores=4)
    with pytest.raises(OutOfBounds, match="core 4"):
        load(program(5, 1), cores=5)


def test_negative_and_strided_bounds() -> None:
    load([copy(dims(32), mem(0, 124, -4), imm(0.0))])
    with pytest.raises(OutOfBounds):
        load([copy(dims(32), mem(0, 120, -4), imm(0.0))])
    load([copy(dims(1024), mem(0, 0, 4), imm(0.0))])
    with pytest.raises(OutOfBounds):
        load([copy(dims(1025), mem(0, 0, 4), imm(0.0))])
    # The last stick is partial: only the lanes in use count.
    load([copy(dims(33), mem(0, 0, (32, 4, 4092)), imm(0.0))])
    with pytest.raises(OutOfBounds):
        load([copy(dims(34), mem(0, 0, (32, 4, 4092)), imm(0.0))])


def test_extent_zero_touches_nothing() -> None:
    load([copy(dims(0, 64), mem(0, 1 << 30, 4, 4), lx(0, 4, 4))])
    load([copy((a.Extent(CORE * -1, 8),), mem(0, 1 << 30, 4), lx(0, 4))])


def test_layout_bounds() -> None:
    def program(offset: int, size: int) -> list[a.Instruction]:
        layout = a.LayoutMap(Affine(offset), (1,), ((100, 3, 256), (64, 2, 768), (1, 64, 4)))
        return [copy(dims(size), a.Operand(Space.MEM, FP32, Affine(0), layout, index=0), imm(0.0))]

    load(program(0, 300))
    load(program(200, 100))
    with pytest.raises(OutOfBounds, match="outside the layout"):
        load(program(1, 300))


def test_uninitialised_scratchpad() -> None:
    fill = copy(dims(32), lx(128, 4), imm(1.0))
    load([fill, vop("neg", dims(32), lx(0, 4), lx(128, 4))])
    with pytest.raises(UninitializedRead, match="test neg"):
        load([vop("neg", dims(32), lx(0, 4), lx(128, 4))])
    with pytest.raises(UninitializedRead):
        load([fill, vop("neg", dims(33), lx(0, 4), lx(128, 4))])
    with pytest.raises(UninitializedRead):  # written on core 0 only
        load([*when(CORE * -1, fill), vop("neg", dims(32), lx(0, 4), lx(128, 4))], cores=2)
    with pytest.raises(UninitializedRead):  # an accumulating output is read
        load([fill, a.ReduceInst(Rop.SUM, Compute.F32, 1, dims(32), lx(0, 0), lx(128, 4), accumulate=True)])


def test_strided_writes_cover_exactly_their_bytes() -> None:
    evens, odds = copy(dims(16), lx(0, 8), imm(1.0)), copy(dims(16), lx(4, 8), imm(1.0))
    use = copy(dims(32), mem(0, 0, 4), lx(0, 4))
    load([evens, odds, use])
    with pytest.raises(UninitializedRead):
        load([evens, use])
    # Two half-filled sticks per row.
    rows = copy(dims(2, 48), lx(0, 128, (32, 4, 256)), imm(1.0))
    load([rows, copy(dims(2, 32), mem(0, 0, 128, 4), lx(0, 128, 4)), copy(dims(16), mem(0, 0, 4), lx(256, 4))])
    with pytest.raises(UninitializedRead):
        load([rows, copy(dims(17), mem(0, 0, 4), lx(256, 4))])


def test_scratchpad_bounds() -> None:
    load([copy(dims(1024), lx(0, 4), imm(1.0))])
    with pytest.raises(OutOfBounds, match="of LX, which has 4096"):
        load([copy(dims(1025), lx(0, 4), imm(1.0))])


def test_remote_reads() -> None:
    fill, take = copy(dims(32), lx(0, 4), imm(1.0)), copy(dims(32), lx(128, 4), remote(1, 0, 4))
    load([fill, BARRIER, take], cores=2)
    with pytest.raises(RaceDetected, match="put a BARRIER"):
        load([fill, take], cores=2)
    with pytest.raises(UninitializedRead, match="earlier phase"):
        load([BARRIER, take], cores=2)
    with pytest.raises(RaceDetected):  # the owner overwrites while another core reads
        load([fill, BARRIER, take, fill], cores=2)
    with pytest.raises(OutOfBounds, match="core 1, but 1 cores run"):
        load([fill, BARRIER, take], cores=1)


def test_ring_sum_sources() -> None:
    fill = copy(dims(32), lx(0, 4), imm(1.0))

    def ring(count: int, first: int, step: int) -> a.Instruction:
        return a.RingSumInst(count, Affine(first), step, dims(32), lx(128, 4), remote(77, 0, 4))

    load([fill, BARRIER, ring(4, 0, 1)], cores=4)
    load([fill, BARRIER, ring(2, 3, -3)], cores=4)
    with pytest.raises(OutOfBounds):
        load([fill, BARRIER, ring(3, 0, 2)], cores=4)
    with pytest.raises(RaceDetected):
        load([fill, ring(4, 0, 1)], cores=4)


def test_barrier_needs_equal_trip_counts() -> None:
    load(loop(1, 0, 3, 1, BARRIER), cores=4)
    with pytest.raises(InvalidProgram, match="same trip count"):
        load(loop(1, 0, CORE + 1, 1, BARRIER), cores=4)


def test_registers_and_scalar_arithmetic() -> None:
    with pytest.raises(InvalidProgram, match="register 3 is read before"):
        load([copy(dims(1), mem(0, reg(3), 4), imm(0.0))])
    with pytest.raises(InvalidProgram, match="positive divisor"):
        load([sop(1, Sop.MOD, 5, CORE)])
    with pytest.raises(InvalidProgram, match="overflows"):
        load([sop(1, Sop.ADD, 1 << 62, 0), sop(1, Sop.MUL, reg(1), 8)])


def test_endless_loops_are_refused_in_time() -> None:
    with pytest.raises(InvalidProgram, match="50 million steps"):
        load(loop(1, 0, 1 << 60, 1))
    with pytest.raises(InvalidProgram, match="50 million steps"):
        load(loop(1, 0, 10, 1, sop(1, Sop.SUB, reg(1), 1)))


def test_a_loop_over_the_same_scratchpad_bytes_is_cheap() -> None:
    """Rows of 28 in sticks of 32 are a run each: 2000 rows, written and read 20,000 times, are 80 million runs."""
    rows = 2000
    fill = copy(dims(rows, 28), lx(0, 128, 4), imm(1.0))
    use = copy(dims(rows, 28), mem(0, 0, 128, 4), lx(0, 128, 4))
    load(loop(1, 0, 20_000, 1, fill, use), args=[(W, rows * 128)], lx_bytes=rows * 128)
    # ... and no byte more than those is taken for written.
    with pytest.raises(UninitializedRead):
        wide = copy(dims(rows, 29), mem(0, 0, 128, 4), lx(0, 128, 4))
        load(loop(1, 0, 20_000, 1, fill, use, wide), args=[(W, rows * 128)], lx_bytes=rows * 128)


def test_a_loop_over_exchanges_is_cheap() -> None:
    rows = 200
    fill = copy(dims(rows, 28), lx(0, 128, 4), imm(1.0))
    take = copy(dims(rows, 28), lx(rows * 128, 128, 4), remote(1, 0, 128, 4))
    body = [fill, BARRIER, take, BARRIER]
    load(loop(1, 0, 10_000, 1, *body), cores=2, lx_bytes=2 * rows * 128)
    with pytest.raises(RaceDetected):  # in the second round only
        late = [*when(reg(1) - 1, fill), take, BARRIER]
        load([fill, BARRIER, *loop(1, 0, 10_000, 1, *late)], cores=2, lx_bytes=2 * rows * 128)


# Each dim ends inside a block of its own: 3^8 points in 2^8 boxes.
BOXES = copy(dims(*[3] * 8), mem(0, 0, *[(2, 4, 12)] * 8), imm(0.0))


def test_boxes_of_memory_operands_count() -> None:
    """A few hundred bytes of program must not hold the loader for hours."""
    load(loop(1, 0, 100_000, 1, BOXES))
    with pytest.raises(InvalidProgram, match="50 million steps"):
        load(loop(1, 0, 400_000, 1, BOXES))


def test_terms_of_affine_forms_count() -> None:
    many = Affine(0, tuple((1 + i, 1) for i in range(200)))
    body = [sop(1 + i, Sop.ADD, 0, 0) for i in range(200)]
    body += loop(250, 0, 1_000_000, 1, *[sop(251 + i, Sop.ADD, many, many) for i in range(4)])
    with pytest.raises(InvalidProgram, match="50 million steps"):
        load(body, registers=256)


def test_integer_scalars_are_proved_at_launch() -> None:
    binary = build(
        loop(2, 0, reg(1), 1, copy(dims(32), mem(0, reg(2, 128), 4), const(0, 4))),
        [(W, 4096)],
        scalars=(ScalarKind.INTEGER,),
        constants=bytes(128),
    )
    program, card = _card.Program.load(binary), _card.Card()
    buffer = (card.allocate(4096), 4096)
    card.launch(program, [buffer], [32])
    card.launch(program, [buffer], [0])
    with pytest.raises(OutOfBounds):
        card.launch(program, [buffer], [33])
    card.launch(program, [buffer], [32])
    card.synchronize()
    assert card.counters()["memory_write_bytes"] == 2 * 4096


def test_constants_are_bounded() -> None:
    load([copy(dims(4), mem(0, 0, 4), const(0, 4))], constants=bytes(16), args=[(W, 4096)])
    with pytest.raises(OutOfBounds, match="the constants, which has 16"):
        load([copy(dims(5), mem(0, 0, 4), const(0, 4))], constants=bytes(16))
