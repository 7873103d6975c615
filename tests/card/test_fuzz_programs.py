# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/card/test_fuzz_programs.py (-m slow for 10,000 mutations). Mutated program binaries crash nothing
and write nowhere: what loads is launched between guard allocations, with and without the sanitizer."""

from __future__ import annotations

import random
import struct
import zlib

import numpy as np
import pytest
from test_decode import HEADER, everything

from torch_spyre import _card, sanitizer
from torch_spyre.backend.program.decoder import decode
from torch_spyre.backend.program.isa import ScalarKind
from torch_spyre.errors import SpyreError

MOST_WORK = 1 << 22  # element operations; more would only cost time
SIZE = 8192
NUMBERS = [
    0,
    1,
    -1,
    2,
    4,
    64,
    127,
    128,
    255,
    4096,
    SIZE,
    1 << 31,
    -(1 << 31),
    1 << 40,
    1 << 62,
    -(1 << 63),
    (1 << 63) - 1,
]


def mutate(body: bytearray, rng: random.Random) -> None:
    """A few changes that keep most of the structure."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(body))
        match rng.randrange(6):
            case 0:
                body[at] = rng.randrange(256)
            case 1:
                body[at] ^= 1 << rng.randrange(8)
            case 2:
                body[at : at + 8] = struct.pack("<q", rng.choice(NUMBERS))
            case 3:
                (value,) = struct.unpack_from("<q", body, min(at, len(body) - 8))
                changed = (value + rng.choice([-128, -4, -1, 1, 4, 128])) & (1 << 64) - 1
                struct.pack_into("<Q", body, min(at, len(body) - 8), changed)
            case 4:
                del body[at : at + rng.randint(1, 9)]
            case 5:
                body[at:at] = rng.randbytes(rng.randint(1, 9))


class Bench:
    """One card whose argument buffers lie between guards."""

    def __init__(self) -> None:
        self.card = _card.Card()
        self.guard = np.random.default_rng(0).bytes(SIZE)
        self.guards: list[int] = []
        self.buffers: list[int] = []
        for _ in range(6):
            self.guards.append(self.card.allocate(SIZE))
            self.buffers.append(self.card.allocate(SIZE))
        self.guards.append(self.card.allocate(SIZE))
        for address in self.guards:
            self.card.write(address, self.guard)
        for address in self.buffers:
            self.card.write(address, np.random.default_rng(1).integers(0, 64, SIZE // 4, np.int32).tobytes())
        self.launched = 0

    def try_program(self, binary: bytes, checked: bool) -> None:
        """Loads and launches; anything but a named error is a failure."""
        try:
            program = _card.Program.load(binary)
            program.disassemble()
            scalars = [3 if kind is ScalarKind.INTEGER else 0.5 for kind in decode(binary).scalars]
            fits = program.n_args <= len(self.buffers) and all(
                program.arg_bytes(i) <= SIZE for i in range(program.n_args)
            )
            if not fits or program.work > MOST_WORK or ScalarKind.INTEGER in decode(binary).scalars:
                return
            args = [(self.buffers[i], SIZE) for i in range(program.n_args)]
            if checked:
                with sanitizer.sanitize(raise_errors=False):
                    self.card.launch(program, args, scalars)
            else:
                self.card.launch(program, args, scalars)
            self.launched += 1
            self.card.synchronize()
        except SpyreError:
            self.card.reset()

    def check_guards(self) -> None:
        for address in self.guards:
            assert self.card.read(address, SIZE) == self.guard


def fuzz(seed: int, count: int) -> int:
    rng, bench, body = random.Random(seed), Bench(), everything()[HEADER:]
    for index in range(count):
        mutant = bytearray(body)
        mutate(mutant, rng)
        sealed = b"SPYP" + struct.pack("<HHII", 3, 0, len(mutant), zlib.crc32(mutant)) + bytes(mutant)
        bench.try_program(sealed, checked=index % 4 == 0)
        if index % 100 == 99:
            bench.check_guards()
    bench.check_guards()
    sanitizer.clear()
    return bench.launched


def test_some_mutations() -> None:
    assert fuzz(1, 400) > 20  # many do load: the guards mean something


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_ten_thousand_mutations(seed: int) -> None:
    assert fuzz(100 + seed, 1000) > 50
