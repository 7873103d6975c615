# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/card/test_sanitizer.py. Planted defects are reported with instruction, core, address and origin."""

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
    SEN169,
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
    remote,
    vop,
)

from torch_spyre import _card, sanitizer
from torch_spyre.backend.program.isa import Access
from torch_spyre.errors import (
    IndexOutOfRange,
    InvalidArgument,
    OutOfBounds,
    RaceDetected,
    SpyreError,
    UninitializedRead,
)
from torch_spyre.sanitizer import Report


@pytest.fixture(autouse=True)
def checked() -> Iterator[None]:
    sanitizer.clear()
    with sanitizer.sanitize():
        yield
    sanitizer.clear()


def launch(
    body: list[a.Instruction],
    args: list[tuple[Access, int]],
    *,
    cores: int = 1,
    lx_bytes: int = 4096,
    data: dict[int, np.ndarray] | None = None,
) -> list[bytes]:
    """Runs on a fresh card. Arguments that the program reads hold `data`, or ones."""
    card = _card.Card()
    buffers = []
    for index, (access, size) in enumerate(args):
        buffers.append((card.allocate(size), size))
        given = (data or {}).get(index)
        if given is not None:
            card.write(buffers[-1][0], given.tobytes())
        elif access & Access.READ:
            card.write(buffers[-1][0], np.ones(size // 4, np.float32).tobytes())
    card.launch(_card.Program.load(build(body, args, cores=cores, lx_bytes=lx_bytes)), buffers)
    return [card.read(address, size) for address, size in buffers]


def only() -> Report:
    (report,) = sanitizer.reports()
    assert str(report).startswith(report.kind)
    return report


def test_a_clean_program_has_no_reports_and_the_same_results() -> None:
    x = np.arange(128, dtype=np.float32)
    body = [
        copy(dims(32), lx(0, 4), mem(0, CORE * 128, 4)),
        BARRIER,
        copy(dims(32), lx(128, 4), remote(CORE * -1 + 3, 0, 4)),
        vop("add", dims(32), mem(1, CORE * 128, 4), lx(128, 4), lx(0, 4)),
    ]
    args = [(R, 512), (W, 512)]
    _, out = launch(body, args, cores=4, data={0: x})
    sanitizer.disable()
    assert launch(body, args, cores=4, data={0: x})[1] == out
    assert sanitizer.reports() == []
    expected = x.reshape(4, 32)[::-1] + x.reshape(4, 32)
    np.testing.assert_array_equal(np.frombuffer(out, np.float32).reshape(4, 32), expected)


def test_two_cores_write_the_same_memory() -> None:
    body = [vop("neg", dims(33), mem(1, CORE * 128, 4), mem(0, 0, 4))]
    body[0] = a.VopInst(
        body[0].op, body[0].compute, body[0].dims, body[0].out, body[0].inputs, origin="k0: n1: aten.neg"
    )
    with pytest.raises(RaceDetected, match=r"instruction 0 \(VOP\) on core 1, from k0: n1: aten.neg: writes memory"):
        launch(body, [(R, 512), (W, 512)], cores=2)
    report = only()
    assert (report.kind, report.kernel, report.instruction, report.op) == ("RaceDetected", "k0", 0, "neg")
    assert (report.core, report.space, report.end - report.begin) == (1, "memory", 4)
    assert "argument 1 from byte 128" in report.message and "core 0 writes in the same phase" in report.message


def test_a_missing_barrier_between_cores() -> None:
    produce = copy(dims(32), mem(0, CORE * 128, 4), imm(1.0))
    consume = copy(dims(32), mem(1, CORE * 128, 4), mem(0, CORE * -128 + 128, 4))
    args = [(RW, 256), (W, 256)]
    launch([produce, BARRIER, consume], args, cores=2)
    assert sanitizer.reports() == []
    with pytest.raises(RaceDetected, match="BARRIER between"):
        launch([produce, consume], args, cores=2)
    kinds = {(r.core, "reads memory" in r.message) for r in sanitizer.reports()}
    assert kinds  # one of the two sides is named as the reader, the other as the writer


def test_arguments_that_share_memory_race_too() -> None:
    card = _card.Card()
    address = card.allocate(256)
    card.write(address, bytes(256))
    body = [vop("neg", dims(32), mem(1, CORE * -128 + 128, 4), mem(0, CORE * 128, 4))]
    program = _card.Program.load(build(body, [(R, 256), (W, 256)], cores=2))
    with pytest.raises(RaceDetected):
        card.launch(program, [(address, 256), (address, 256)])


@pytest.mark.parametrize(("rows", "races"), [([0, 1, 2, 3], False), ([0, 1, 1, 2], True)])
def test_index_values_make_scatter_races_exact(rows: list[int], races: bool) -> None:
    where = (a.IndexOperand(mem(0, CORE * 8, 4, 0, fmt=INT32), a.DimMap(128), 4),)
    body = [a.ScatterInst(dims(2, 32), mem(1, 0, 0, 4), imm(1.0), where)]
    data = {0: np.array(rows, np.int32)}
    if not races:
        launch(body, [(R, 128), (W, 512)], cores=2, data=data)
        return
    with pytest.raises(RaceDetected):
        launch(body, [(R, 128), (W, 512)], cores=2, data=data)
    report = only()
    assert report.end - report.begin == 128 and "from byte 128" in report.message


def test_a_missing_ring_transfer() -> None:
    """What load proves is reported in the same form: nobody sent the slice, or no phase lies between."""
    fill, take = copy(dims(32), lx(0, 4), imm(1.0)), copy(dims(32), lx(128, 4), remote(1, 0, 4))
    with pytest.raises(UninitializedRead):
        _card.Program.load(build([BARRIER, take], [], cores=2, lx_bytes=256))
    with pytest.raises(RaceDetected):
        _card.Program.load(build([fill, take], [], cores=2, lx_bytes=256))
    assert [(r.kind, r.instruction, r.core) for r in sanitizer.reports()] == [
        ("UninitializedRead", 1, 0),
        ("RaceDetected", 1, 0),
    ]


def test_a_core_reads_the_slice_of_another() -> None:
    """Core 0 alone fills its scratchpad; core 1 reads the same address in its own."""
    fill = [a.IfInst(CORE * -1), copy(dims(32), lx(0, 4), imm(1.0)), a.EndIfInst()]
    with pytest.raises(UninitializedRead):
        _card.Program.load(build([*fill, copy(dims(32), mem(0, 0, 4), lx(0, 4))], [(W, 128)], cores=2, lx_bytes=256))
    report = only()
    assert (report.core, report.op) == (1, "COPY")


def test_out_of_bounds_is_reported() -> None:
    with pytest.raises(OutOfBounds):
        _card.Program.load(build([copy(dims(33), mem(0, 0, 4), imm(1.0))], [(W, 128)]))
    assert only().kind == "OutOfBounds"


def swapped(first: int, second: int, source: int) -> list[a.Instruction]:
    """Two tensors of different formats in LX and one reader."""
    return [
        copy(dims(32), lx(first, 4), mem(0, 0, 4)),
        copy(dims(64), lx(second, 2, fmt=SEN169), mem(0, 0, 4)),
        copy(dims(32), mem(1, 0, 4), lx(source, 4)),
        copy(dims(64), mem(1, 128, 2, fmt=SEN169), lx(128, 2, fmt=SEN169)),
    ]


def test_a_swapped_scratchpad_address() -> None:
    args = [(R, 256), (W, 256)]
    launch(swapped(0, 128, 0), args)
    assert sanitizer.reports() == []
    launch(swapped(0, 128, 128), args)  # the reader looks at the other tensor
    by_kind = {r.kind: r for r in sanitizer.reports()}
    assert set(by_kind) == {"FormatMismatch", "DeadWrite"}
    assert by_kind["FormatMismatch"].instruction == 2 and by_kind["DeadWrite"].instruction == 0
    assert all(r.warning for r in by_kind.values())
    with pytest.raises(UninitializedRead):  # the writer does
        launch(swapped(128, 128, 0), args)


def test_memory_that_nothing_wrote() -> None:
    body = [vop("neg", dims(64), mem(1, 0, 4), mem(0, 0, 4))]
    with pytest.raises(UninitializedRead, match="nothing wrote since it was allocated"):
        launch(body, [(W | R, 256), (W, 256)], data={0: np.ones(16, np.float32)})
    report = only()
    assert (report.space, report.end - report.begin) == ("memory", 128)  # the first stick is written
    assert "from byte 128" in report.message


def test_results_and_transfers_count_as_writes() -> None:
    card = _card.Card()
    addresses = [card.allocate(256) for _ in range(3)]
    card.dma_in(np.ones((2, 20), np.float32), addresses[0], FP32, [2, 32], [20, 1], host_stride=[20, 1])
    program = _card.Program.load(build([vop("neg", dims(64), mem(1, 0, 4), mem(0, 0, 4))], [(R, 256), (W, 256)]))
    for source in range(2):
        card.launch(program, [(addresses[source], 256), (addresses[source + 1], 256)])
    card.free(addresses[0])
    again = card.allocate(256)
    assert again == addresses[0]
    with pytest.raises(UninitializedRead):
        card.launch(program, [(again, 256), (addresses[1], 256)])


def test_memory_allocated_before_counts_as_written() -> None:
    sanitizer.disable()
    card = _card.Card()
    addresses = [card.allocate(128) for _ in range(2)]
    with sanitizer.sanitize():
        program = _card.Program.load(build([vop("neg", dims(32), mem(1, 0, 4), mem(0, 0, 4))], [(R, 128), (W, 128)]))
        card.launch(program, [(address, 128) for address in addresses])
    assert sanitizer.reports() == []


def test_the_origin_of_nan_and_overflow() -> None:
    body = [
        vop("sub", dims(32), lx(0, 4), mem(0, 0, 4), imm(1.0)),  # 0
        vop("div", dims(32), lx(128, 4), lx(0, 4), lx(0, 4)),  # 0 / 0
        vop("add", dims(32), lx(128, 4), lx(128, 4), imm(1.0)),
        vop("mul", dims(32), lx(0, 4), mem(0, 0, 4), imm(1e30)),
        copy(dims(32), lx(256, 2, fmt=SEN169), lx(0, 4)),
        copy(dims(32), mem(1, 0, 2, fmt=SEN169), lx(256, 2, fmt=SEN169)),
        copy(dims(32), mem(2, 0, 4), lx(128, 4)),
    ]
    launch(body, [(R, 128), (W, 128), (W, 128)])
    assert [(r.kind, r.instruction, r.warning) for r in sanitizer.reports()] == [
        ("NanProduced", 1, True),
        ("Saturated", 4, True),
    ]
    assert sanitizer.reports()[0].origin == "test div"


def test_infinities_that_come_in_are_nobodys_fault() -> None:
    x = np.full(32, -np.inf, np.float32)
    launch([vop("exp", dims(32), mem(1, 0, 4), mem(0, 0, 4))], [(R, 128), (W, 128)], data={0: x})
    launch([copy(dims(32), mem(0, 0, 2, fmt=SEN169), imm(float("-inf")))], [(W, 128)])
    assert sanitizer.reports() == []


def test_one_report_for_each_instruction_and_a_bounded_number() -> None:
    body = loop(1, 0, 8, 1, vop("div", dims(32), lx(0, 4), imm(0.0), imm(0.0)))
    body += [copy(dims(32), mem(0, CORE * 128, 4), lx(0, 4))]
    launch(body, [(W, 1024)], cores=8)
    assert [r.kind for r in sanitizer.reports()] == ["NanProduced"]
    many = [vop("div", (), mem(0, 4 * i), imm(0.0), imm(0.0)) for i in range(1100)]
    launch(many, [(W, 8192)])
    assert len(sanitizer.reports()) == 1000


def test_report_mode_raises_nothing() -> None:
    body = [vop("neg", dims(33), mem(1, CORE * 128, 4), mem(0, 0, 4))]
    with sanitizer.sanitize(raise_errors=False):
        launch(body, [(R, 512), (W, 512)], cores=2)
    assert only().kind == "RaceDetected"


def test_failures_of_the_launch_are_reports_too() -> None:
    where = (a.IndexOperand(mem(0, 0, 4, fmt=INT32), a.DimMap(4), 4),)
    body = [a.GatherInst(dims(4), mem(2, 0, 4), mem(1, 0, 0), where)]
    with pytest.raises(IndexOutOfRange):
        launch(body, [(R, 128), (R, 128), (W, 128)], data={0: np.array([0, 1, 4, 2], np.int32)})
    assert only().kind == "IndexOutOfRange"


def test_modes() -> None:
    with pytest.raises(InvalidArgument, match="known are off, report and raise"):
        _card.set_sanitize("loud")
    assert sanitizer.enabled()
    sanitizer.disable()
    assert not sanitizer.enabled()


def test_the_variable_is_read_when_a_card_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    sanitizer.disable()
    monkeypatch.setenv("SPYRE_SANITIZE", "0")
    _card.Card()
    assert not sanitizer.enabled()
    monkeypatch.setenv("SPYRE_SANITIZE", "maybe")
    with pytest.raises(SpyreError, match="invalid SPYRE_SANITIZE value maybe"):
        _card.Card()
    monkeypatch.setenv("SPYRE_SANITIZE", "1")
    _card.Card()
    assert sanitizer.enabled()


def test_writes_while_it_was_off_are_not_held_against_a_tensor() -> None:
    card = _card.Card()
    address = card.allocate(128)
    sanitizer.disable()
    card.write(address, bytes(128))
    sanitizer.enable()
    program = _card.Program.load(build([vop("neg", dims(32), mem(0, 0, 4), mem(0, 0, 4))], [(RW, 128)]))
    card.launch(program, [(address, 128)])
    assert sanitizer.reports() == []
