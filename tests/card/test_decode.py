# SPDX-License-Identifier: Apache-2.0
# pytest tests/card/test_decode.py
"""Untrusted binaries: whatever is broken, load raises a named error, quickly, and nothing else happens."""

from __future__ import annotations

import random
import struct
import zlib

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
    scalar,
    sop,
    vop,
    when,
)

from torch_spyre import _card
from torch_spyre.backend.program import assembler as a
from torch_spyre.backend.program.isa import Compute, Rop, ScalarKind, Sop, Space
from torch_spyre.errors import InvalidProgram, OutOfBounds, RaceDetected, SpyreError, UninitializedRead
from torch_spyre.ir.affine import Affine

HEADER = 16


def everything() -> bytes:
    """A valid program with every instruction and operand space."""
    layout = a.Operand(Space.MEM, FP32, Affine(0), a.LayoutMap(Affine(0), (1,), ((32, 2, 128), (1, 32, 4))), index=0)
    rows = a.IndexOperand(lx(2752, 8, 0, fmt=INT32), a.DimMap(16), 4)
    body: list[a.Instruction] = [
        vop("add", dims(4, 64), lx(0, 256, (32, 4, 128)), mem(0, CORE * 1024, 256, 4), imm(1.0)),
        vop("mul", dims(4, 64), lx(1024, 256, 4), lx(0, 256, 4), scalar(0)),
        a.ReduceInst(Rop.SUM, Compute.F32, 2, dims(4, 64), lx(2048, 4, 0), lx(1024, 256, 4)),
        a.MatmulInst(dims(4, 4, 4), lx(2304, 16, 4, 0), lx(0, 16, 0, 4), lx(64, 0, 4, 16)),
        sop(1, Sop.MOD, CORE + 1, 4),
        BARRIER,
        copy(dims(16), lx(2560, 4), remote(reg(1), 2304, 4)),
        a.RingSumInst(4, Affine(0), 1, dims(16), lx(2624, 4), remote(0, 2304, 4), origin="ring of four"),
        *loop(2, 0, 2, 1, copy(dims(8), lx(reg(2, 32) + 2688, 4), const(0, 4))),
        *when(reg(0, -1), copy(dims(64), mem(1, 0, 4), layout)),
        BARRIER,
        copy(dims(16), mem(1, CORE * 64 + 256, 4), lx(2624, 4)),
        a.IotaInst(dims(4, 2), lx(2752, 8, 4, fmt=INT32), Affine(0), (a.DimMap(1), a.DimMap(1, 2, 3))),
        a.GatherInst(dims(4, 4), lx(2784, 16, 4), mem(0, 0, 0, 4), (rows,), True),
        a.ScatterInst(dims(4, 4), lx(2304, 0, 4), lx(2784, 16, 4), (rows,), True, True),
        a.ScanInst(Rop.SUM, Compute.F32, 1, dims(4, 4), lx(2784, 16, 4), lx(2784, 16, 4)),
        a.ArgReduceInst(Rop.MAX, 1, dims(4, 4), lx(2848, 4, 0, fmt=INT32), lx(2864, 4, 0), lx(2784, 16, 4)),
        a.SortInst(0, True, True, 2, dims(4, 4), lx(2880, 16, 4), None, lx(2784, 16, 4)),
    ]
    return build(
        body,
        [(R, 4096), (RW, 512)],
        cores=4,
        lx_bytes=4096,
        scalars=(ScalarKind.FP32,),
        constants=np.arange(8, dtype=np.float32).tobytes(),
    )


def seal(body: bytes) -> bytes:
    return b"SPYP" + struct.pack("<HHII", 3, 0, len(body), zlib.crc32(body)) + body


def load_or_named_error(binary: bytes) -> bool:
    """True if it loads. Anything but a program or a named error fails the test."""
    try:
        program = _card.Program.load(binary)
    except (InvalidProgram, OutOfBounds, UninitializedRead, RaceDetected):
        return False
    assert program.disassemble()
    return True


def test_valid_program_disassembles() -> None:
    text = _card.Program.load(everything()).disassemble()
    assert "4 cores, 4096 bytes of LX" in text
    assert "arg0: read, 4096 bytes" in text
    assert "VOP add f32 [4, 64] out=LX+0x0:IEEE_FP32(256,4/128%32)" in text
    assert "; ring of four" in text
    assert len(text.splitlines()) > 15


def test_truncated_anywhere() -> None:
    binary = everything()
    for length in range(len(binary)):
        with pytest.raises(InvalidProgram):
            _card.Program.load(binary[:length])
    body = binary[HEADER:]
    for length in range(len(body)):
        with pytest.raises(SpyreError):
            _card.Program.load(seal(body[:length]))


def test_checksum_finds_flipped_bits() -> None:
    binary = bytearray(everything())
    for bit in range(0, len(binary) * 8, 7):
        binary[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidProgram):
            _card.Program.load(bytes(binary))
        binary[bit // 8] ^= 1 << bit % 8


def test_flipped_bits_behind_a_valid_checksum() -> None:
    body = bytearray(everything()[HEADER:])
    loaded = 0
    for bit in range(len(body) * 8):
        body[bit // 8] ^= 1 << bit % 8
        loaded += load_or_named_error(seal(bytes(body)))
        body[bit // 8] ^= 1 << bit % 8
    assert loaded < len(body) * 4


def test_random_damage_behind_a_valid_checksum() -> None:
    rng = random.Random(7)
    original = everything()[HEADER:]
    for _ in range(1500):
        body = bytearray(original)
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(body))
            match rng.randrange(4):
                case 0:
                    body[at] = rng.randrange(256)
                case 1:
                    body[at : at + 8] = struct.pack("<q", rng.choice([-1, 1 << 62, -(1 << 63), (1 << 63) - 1, 1 << 40]))
                case 2:
                    del body[at : at + rng.randint(1, 9)]
                case 3:
                    body[at:at] = rng.randbytes(rng.randint(1, 9))
        load_or_named_error(seal(bytes(body)))


def test_huge_counts_do_not_allocate() -> None:
    body = bytearray(everything()[HEADER:])
    body[:4] = b"\xff\xff\xff\xff"  # arguments
    with pytest.raises(InvalidProgram, match="exceeds what is left"):
        _card.Program.load(seal(bytes(body)))


def test_structure_rules() -> None:
    one = copy(dims(1), mem(0, 0, 4), const(0, 4))
    table = {
        "BARRIER inside IF": when(0, BARRIER),
        "closes nothing": [a.EndLoopInst()],
        "is not closed": [a.IfInst(Affine(0))],
        "step must be positive": loop(1, 0, 4, 0, one),
        "cannot be written": [sop(0, Sop.ADD, 1, 1)],
        "out of range": [sop(1, Sop.ADD, reg(99), 1)],
        "c moves along k": [a.MatmulInst(dims(1, 1, 1), mem(0, 0, 0, 0, 4), mem(0, 0, 0, 0, 0), mem(0, 0, 0, 0, 0))],
        "moves along a reduced dim": [a.ReduceInst(Rop.SUM, Compute.F32, 1, dims(2), mem(0, 0, 4), mem(0, 0, 4))],
        "only COPY and RINGSUM": [vop("neg", dims(1), mem(0, 0, 4), remote(0, 0, 4))],
        "takes 2": [vop("add", dims(1), mem(0, 0, 4), imm(1.0))],
        "not stored by this card": [copy(dims(1), mem(0, 0, 8, fmt=11), imm(1.0))],
        "not a multiple of the element": [copy(dims(2), mem(0, 0, 2), imm(1.0))],
    }
    for message, instructions in table.items():
        with pytest.raises(InvalidProgram, match=message):
            _card.Program.load(build(instructions, [(RW, 64)], constants=bytes(64)))
    with pytest.raises(InvalidProgram, match="writes an argument"):
        _card.Program.load(build([one], [(R, 64)], constants=bytes(64)))
    with pytest.raises(InvalidProgram, match="reads an argument"):
        _card.Program.load(build([copy(dims(1), mem(0, 0, 4), mem(0, 0, 4))], [(W, 64)]))
