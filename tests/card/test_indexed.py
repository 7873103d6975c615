# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/card/test_indexed.py. GATHER, SCATTER, IOTA, SCAN, ARGREDUCE and SORT programs against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import BARRIER, CORE, INT32, RW, SEN169, R, W, a, build, const, copy, dims, imm, lx, mem, remote, run

from torch_spyre import _card
from torch_spyre.backend.program.isa import Compute, Rop, Space
from torch_spyre.errors import IndexOutOfRange, InvalidProgram, OutOfBounds, RaceDetected, UninitializedRead
from torch_spyre.ir.affine import Affine

ROWS = st.sampled_from([1, 2, 5, 16])
WIDTHS = st.sampled_from([1, 3, 32, 64, 70])


def index(operand: a.Operand, stride: int | tuple[int, int, int], limit: int) -> a.IndexOperand:
    along = a.DimMap(stride) if isinstance(stride, int) else a.DimMap(stride[1], stride[0], stride[2])
    return a.IndexOperand(operand, along, limit)


def load(instructions: list[a.Instruction], **kwargs: Any) -> Any:
    kwargs = {"lx_bytes": 4096, **kwargs}
    return _card.Program.load(build(instructions, kwargs.pop("args", [(RW, 4096)]), **kwargs))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_rows_of_a_table_on_several_cores(data: Any) -> None:
    """Each core gathers `per` rows; the indices come from memory, the scratchpad or the constants."""
    cores, per, width, table_rows = data.draw(ROWS), data.draw(ROWS), data.draw(WIDTHS), data.draw(WIDTHS)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    masked = data.draw(st.booleans())
    low, high = (-2, table_rows + 2) if masked else (0, table_rows)
    rows = rng.integers(low, high, (cores, per)).astype(np.int32)
    table = rng.standard_normal((table_rows, width)).astype(np.float32)
    source = mem(0, CORE * per * 4, 4, 0, fmt=INT32)
    body: list[a.Instruction] = []
    match data.draw(st.sampled_from(["memory", "lx", "const"])):
        case "lx":
            body.append(copy(dims(per), lx(0, 4, fmt=INT32), mem(0, CORE * per * 4, 4, fmt=INT32)))
            source = lx(0, 4, 0, fmt=INT32)
        case "const":
            source = a.Operand(Space.CONST, INT32, CORE * per * 4, (a.DimMap(4), a.DimMap()))
    out = mem(2, CORE * per * width * 4, width * 4, 4)
    where = index(source, width * 4, table_rows)
    body.append(a.GatherInst(dims(per, width), out, mem(1, 0, 0, 4), (where,), masked))
    args = [(R, rows.nbytes), (R, table.nbytes), (W, cores * per * width * 4)]
    binary = build(body, args, cores=cores, lx_bytes=128, constants=rows.tobytes())
    result = run(binary, [rows, table, np.zeros((cores, per, width), np.float32)])[2]
    inside = (rows >= 0) & (rows < table_rows)
    expected = np.where(inside[..., None], table[np.where(inside, rows, 0)], np.float32(0))
    np.testing.assert_array_equal(result, expected)


def test_two_indices_and_a_stick_table_in_the_scratchpad() -> None:
    """Pages and slots, as in paged attention: the table of a core lies in its LX, sticks of 32 lanes."""
    rng = np.random.default_rng(3)
    pages, slots, width = 3, 4, 64
    table = rng.standard_normal((pages, slots, width)).astype(np.float32)
    page, slot = (rng.integers(0, n, 20).astype(np.int32) for n in (pages, slots))
    # In LX the two sticks of a row are `stick` bytes apart.
    stick = pages * slots * 128
    into = lx(0, slots * 128, 128, (32, 4, stick))
    body = [
        copy(dims(pages, slots, width), into, mem(0, 0, slots * width * 4, width * 4, 4)),
        a.GatherInst(
            dims(20, width),
            mem(3, 0, width * 4, 4),
            lx(0, 0, (32, 4, stick)),
            (
                index(mem(1, 0, 4, 0, fmt=INT32), slots * 128, pages),
                index(mem(2, 0, 4, 0, fmt=INT32), 128, slots),
            ),
        ),
    ]
    args = [(R, table.nbytes), (R, 80), (R, 80), (W, 20 * width * 4)]
    binary = build(body, args, lx_bytes=2 * stick)
    out = run(binary, [table, page, slot, np.zeros((20, width), np.float32)])[3]
    np.testing.assert_array_equal(out, table[page, slot])
    text = _card.Program.load(binary).disassemble()
    assert "GATHER [20, 64]" in text and f"*({slots * 128})<{pages}" in text


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_scatter(data: Any) -> None:
    count, width, table_rows = data.draw(WIDTHS), data.draw(ROWS), data.draw(WIDTHS)
    accumulate, masked, in_lx = (data.draw(st.booleans()) for _ in range(3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    low, high = (-2, table_rows + 2) if masked else (0, table_rows)
    rows = rng.integers(low, high, count).astype(np.int32)
    table = rng.standard_normal((table_rows, width)).astype(np.float32)
    values = rng.standard_normal((count, width)).astype(np.float32)
    where = index(mem(0, 0, 4, 0, fmt=INT32), width * 4, table_rows)
    target = lx(0, 0, 4) if in_lx else mem(2, 0, 0, 4)
    body: list[a.Instruction] = [
        a.ScatterInst(dims(count, width), target, mem(1, 0, width * 4, 4), (where,), accumulate, masked)
    ]
    if in_lx:
        whole = dims(table_rows * width)
        body = [copy(whole, lx(0, 4), mem(2, 0, 4)), *body, copy(whole, mem(2, 0, 4), lx(0, 4))]
    args = [(R, rows.nbytes), (R, values.nbytes), (RW, table.nbytes)]
    result = run(build(body, args, lx_bytes=table.nbytes), [rows, values, table])[2]
    for row, value in zip(rows, values, strict=True):
        if 0 <= row < table_rows:
            table[row] = table[row] + value if accumulate else value
    np.testing.assert_array_equal(result, table)


def test_a_bad_index_fails_the_launch_and_sticks() -> None:
    rows = np.array([[0, 1], [2, 7], [3, -1]], np.int32)
    where = index(mem(0, CORE * 8, 4, fmt=INT32), 4, 5)
    gather = a.GatherInst(dims(2), mem(2, CORE * 8, 4), mem(1, 0, 0), (where,), origin="aten.index")
    binary = build([gather], [(R, 24), (R, 20), (W, 24)], cores=3)
    card, program = _card.Card(), _card.Program.load(binary)
    buffers = [(card.allocate(128), 128) for _ in range(3)]
    card.write(buffers[0][0], rows.tobytes())
    card.launch(program, buffers)
    expected = r"instruction 0 \(GATHER\) on core 1, from aten.index: index 7 lies outside \[0, 5\)"
    for _ in range(2):
        with pytest.raises(IndexOutOfRange, match=expected):
            card.synchronize()
    card.reset()
    with pytest.raises(UninitializedRead, match="failed or was dropped"):
        card.read(buffers[2][0], 24)
    card.write(buffers[2][0], bytes(128))
    scatter = a.ScatterInst(dims(2), mem(1, 0, 0), mem(2, CORE * 8, 4), (where,))
    card.launch(_card.Program.load(build([scatter], [(R, 24), (RW, 20), (R, 24)], cores=3)), buffers)
    with pytest.raises(IndexOutOfRange, match="SCATTER"):
        card.synchronize()


def test_tables_are_proved_for_every_index_value() -> None:
    def gather(limit: int, stride: int = 128) -> list[a.Instruction]:
        return [a.GatherInst(dims(32), mem(0, 0, 4), mem(0, 0, 4), (index(const(0, 0, fmt=INT32), stride, limit),))]

    load(gather(32), constants=bytes(4))
    with pytest.raises(OutOfBounds, match="argument 0, which has 4096"):
        load(gather(33), constants=bytes(4))
    with pytest.raises(OutOfBounds):
        load(gather(2, -128), constants=bytes(4))
    with pytest.raises(OutOfBounds):
        load(gather(1 << 40, 1 << 40), constants=bytes(4))


def test_scratchpad_tables_must_hold_values() -> None:
    where = (index(const(0, 0, fmt=INT32), 128, 4),)
    fill, most = copy(dims(128), lx(0, 4), imm(1.0)), copy(dims(96), lx(0, 4), imm(1.0))
    gather = a.GatherInst(dims(32), mem(0, 0, 4), lx(0, 4), where)
    scatter = a.ScatterInst(dims(32), lx(0, 4), imm(1.0), where)
    for use in (gather, scatter):
        load([fill, use], constants=bytes(4))
        with pytest.raises(UninitializedRead):
            load([most, use], constants=bytes(4))


def test_a_scatter_counts_as_a_write_of_the_whole_table() -> None:
    where = (index(const(0, 0, fmt=INT32), 128, 4),)
    fill = copy(dims(128), lx(0, 4), imm(1.0))
    scatter = a.ScatterInst(dims(32), lx(0, 4), imm(1.0), where)
    take = copy(dims(32), lx(1024, 4), remote(1, 384, 4))
    load([fill, scatter, BARRIER, take], cores=2, constants=bytes(4))
    with pytest.raises(RaceDetected):
        load([fill, BARRIER, scatter, take], cores=2, constants=bytes(4))


def test_counters_count_what_the_indices_name() -> None:
    where = (index(mem(0, 0, 4, 0, fmt=INT32), 128, 4),)
    body = [a.GatherInst(dims(8, 32), lx(0, 128, 4), mem(1, 0, 0, 4), where)]
    card, program = _card.Card(), _card.Program.load(build(body, [(R, 32), (R, 512)], lx_bytes=1024))
    card.launch(program, [(card.allocate(n), n) for n in (128, 512)])
    card.synchronize()
    counters = card.counters()
    assert counters["memory_read_bytes"] == 8 * 128 + 8 * 4
    assert counters["lx_write_bytes"] == 8 * 128


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_iota(data: Any) -> None:
    shape = tuple(data.draw(st.lists(WIDTHS, min_size=1, max_size=3)))
    numbers = st.integers(-5000, 5000)
    start, coefficient = data.draw(numbers), data.draw(numbers)
    steps = tuple(data.draw(st.builds(a.DimMap, numbers, st.sampled_from([0, 1, 8, 64]), numbers)) for _ in shape)
    cores, points = 3, int(np.prod(shape))
    strides = [int(np.prod(shape[d + 1 :])) * 4 for d in range(len(shape))]
    body = [a.IotaInst(dims(*shape), mem(0, CORE * points * 4, *strides, fmt=INT32), CORE * coefficient + start, steps)]
    (out,) = run(build(body, [(W, cores * points * 4)], cores=cores), [np.zeros((cores, *shape), np.int32)])
    expected = np.arange(cores).reshape(-1, *[1] * len(shape)) * coefficient + start
    for d, m in enumerate(steps):
        v = np.arange(shape[d])
        part = v % m.block * m.inner + v // m.block * m.outer if m.block else v * m.inner
        expected = expected + part.reshape([-1 if i == d else 1 for i in range(len(shape))])
    np.testing.assert_array_equal(out, expected)


def test_iota_numbers_stay_in_62_bits() -> None:
    step = (a.DimMap(1 << 40),)
    load([a.IotaInst(dims(1 << 10), mem(0, 0, 4, fmt=INT32), Affine(0), step)])
    with pytest.raises(InvalidProgram, match="exceeds 62 bits"):
        load([a.IotaInst(dims(1 << 30), mem(0, 0, 0, fmt=INT32), Affine(0), step)])


@pytest.mark.parametrize("op", list(Rop))
@pytest.mark.parametrize("dim", [0, 1])
def test_scan(op: Rop, dim: int) -> None:
    rng = np.random.default_rng(dim)
    x = (1 + rng.standard_normal((7, 70)) / 8).astype(np.float32)
    body = [a.ScanInst(op, Compute.F32, dim, dims(7, 70), mem(1, 0, 280, 4), mem(0, 0, 280, 4))]
    (_, out) = run(build(body, [(R, x.nbytes), (W, x.nbytes)]), [x, np.zeros_like(x)])
    combine = {Rop.SUM: np.add, Rop.MAX: np.maximum, Rop.MIN: np.minimum, Rop.PROD: np.multiply}[op]
    np.testing.assert_array_equal(out, combine.accumulate(x, axis=dim, dtype=np.float32))


@pytest.mark.parametrize("outputs", [1, 2, 3])
@pytest.mark.parametrize("op", [Rop.MAX, Rop.MIN])
def test_arg_reduce(op: Rop, outputs: int) -> None:
    """Sticks run along the reduced dim; ties go to the first, values leave as SEN169."""
    x = np.random.default_rng(outputs).integers(-9, 9, (5, 100)).astype(np.float32)
    source = lx(0, 128, (32, 4, 640))
    out_index = mem(1, 0, 4, 0, fmt=INT32) if outputs & 1 else None
    out_value = mem(2, 0, 2, 0, fmt=SEN169) if outputs & 2 else None
    body = [copy(dims(5, 100), source, mem(0, 0, 400, 4)), a.ArgReduceInst(op, 1, dims(5, 100), out_index, out_value, source)]  # fmt: skip # noqa: E501
    binary = build(body, [(R, x.nbytes), (W, 20), (W, 10)], lx_bytes=4 * 640)
    _, found, values = run(binary, [x, np.full(5, -7, np.int32), np.zeros(5, np.uint16)])
    best = (x.argmax if op is Rop.MAX else x.argmin)(axis=1)
    np.testing.assert_array_equal(found, best if outputs & 1 else [-7] * 5)
    decoded = [_card.decode(int(v), SEN169) for v in values]
    assert decoded == (x[np.arange(5), best].tolist() if outputs & 2 else [0.0] * 5)
    text = _card.Program.load(binary).disassemble()
    assert ("index=arg1" in text, "value=arg2" in text) == (bool(outputs & 1), bool(outputs & 2))


@pytest.mark.parametrize("k", [1, 3, 90])
@pytest.mark.parametrize("descending", [False, True])
def test_sort(descending: bool, k: int) -> None:
    x = np.random.default_rng(k).integers(-20, 20, (4, 90)).astype(np.float32)
    value, where = mem(1, 0, k * 4, 4), mem(2, 0, k * 4, 4, fmt=INT32)
    body = [a.SortInst(1, descending, True, k, dims(4, 90), value, where, mem(0, 0, 360, 4))]
    binary = build(body, [(R, x.nbytes), (W, 16 * k), (W, 16 * k)])
    _, values, order = run(binary, [x, np.zeros((4, k), np.float32), np.zeros((4, k), np.int32)])
    expected = np.argsort(-x if descending else x, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, 1))
    only_order = a.SortInst(1, descending, True, k, dims(4, 90), None, where, mem(0, 0, 360, 4))
    binary = build([only_order], [(R, x.nbytes), (R, 16 * k), (W, 16 * k)])
    np.testing.assert_array_equal(
        run(binary, [x, np.zeros((4, k), np.float32), np.zeros((4, k), np.int32)])[2], expected
    )


def test_structure_rules() -> None:
    m = mem(0, 0, 4)
    i32 = mem(0, 0, 4, fmt=INT32)
    table = {
        "is no integer": a.GatherInst(dims(4), m, m, (index(m, 4, 4),)),
        "the table must be a tensor": a.GatherInst(dims(4), m, imm(1.0), (index(i32, 4, 4),)),
        "index limit 0": a.GatherInst(dims(4), m, m, (index(i32, 4, 0),)),
        "not a multiple of the element": a.GatherInst(dims(4), m, m, (index(i32, 2, 4),)),
        "only COPY and RINGSUM": a.GatherInst(dims(4), m, remote(0, 0, 4), (index(i32, 4, 4),)),
        "output must be memory": a.ScatterInst(dims(4), imm(1.0), m, (index(i32, 4, 4),)),
        "dim 1 of 1 dims": a.ScanInst(Rop.SUM, Compute.F32, 1, dims(4), m, m),
        "finds the largest": a.ArgReduceInst(Rop.SUM, 0, dims(4), mem(0, 0, 0, fmt=INT32), None, m),
        "moves along the reduced dim": a.ArgReduceInst(Rop.MAX, 0, dims(4), i32, None, m),
        "at least 1": a.SortInst(0, False, False, 0, dims(4), m, None, m),
        "keeps 5 of 4": a.SortInst(0, False, False, 5, dims(4), m, None, m),
        "at most 2\\^24": a.SortInst(0, False, False, 1, dims(1 << 25), m, None, mem(0, 0, 0)),
    }
    for message, instruction in table.items():
        with pytest.raises(InvalidProgram, match=message):
            load([instruction])


def test_a_layout_that_only_the_exact_visit_bounds() -> None:
    """The columns 60..99 of three rows of 100: the quick bound adds lanes of the first stick to the last one."""
    layout = a.LayoutMap(Affine(60), (100, 1), ((100, 3, 128), (64, 2, 384), (1, 64, 2)))
    operand = a.Operand(Space.MEM, SEN169, Affine(0), layout, index=0)
    exact = 2 * 128 + 384 + 36 * 2
    load([copy(dims(3, 40), operand, imm(0.0))], args=[(RW, exact)])
    with pytest.raises(OutOfBounds):
        load([copy(dims(3, 40), operand, imm(0.0))], args=[(RW, exact - 2)])
