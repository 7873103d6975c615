# SPDX-License-Identifier: Apache-2.0
"""Run: pytest tests/card/test_planted_defects.py. Compiled kernels with one defect put in: the card refuses
them at load or the sanitizer reports them; the kernels themselves are clean."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from torch_spyre import _card, ktir, sanitizer
from torch_spyre.backend.program import assembler as asm
from torch_spyre.backend.program.decoder import decode
from torch_spyre.backend.program.isa import Access, Space
from torch_spyre.errors import OutOfBounds, RaceDetected, SpyreError, UninitializedRead
from torch_spyre.ir.affine import Affine

KERNELS = Path(__file__).parents[1] / "support" / "ktir"
NAMES = ["softmax_rows", "rmsnorm_2x2", "swiglu", "layernorm_blocks", "ring_reduce", "ksplit", "relayout"]
EXCHANGING = ["rmsnorm_2x2", "swiglu", "ring_reduce", "ksplit", "relayout"]  # one core's data reaches another
Place = tuple[str, int | None]


def program(name: str) -> asm.Program:
    return decode(ktir.load(KERNELS / f"{name}.mlir").compile().binary)


def operands(inst: asm.Instruction) -> Iterator[tuple[Place, asm.Operand]]:
    for field in dataclasses.fields(inst):
        value = getattr(inst, field.name)
        if isinstance(value, asm.Operand):
            yield (field.name, None), value
        elif isinstance(value, tuple):
            yield from (((field.name, i), x) for i, x in enumerate(value) if isinstance(x, asm.Operand))


def with_operand(program: asm.Program, pc: int, place: Place, operand: asm.Operand) -> asm.Program:
    name, index = place
    inst = program.instructions[pc]
    value: object = operand
    if index is not None:
        value = tuple(operand if i == index else x for i, x in enumerate(getattr(inst, name)))
    body = list(program.instructions)
    body[pc] = dataclasses.replace(inst, **{name: value})
    return dataclasses.replace(program, instructions=body)


def run(program: asm.Program) -> list[bytes]:
    """One launch under the sanitizer; inputs hold numbers near 1, outputs nothing."""
    sanitizer.clear()
    card, rng, buffers = _card.Card(), np.random.default_rng(0), []
    with sanitizer.sanitize():
        for arg in program.args:
            size = -(-max(arg.bytes, 1) // 128) * 128
            buffers.append((card.allocate(size), size))
            if arg.access & Access.READ:
                card.write(buffers[-1][0], (0x3E00 + rng.integers(0, 4, size // 2)).astype(np.uint16).tobytes())
        card.launch(_card.Program.load(asm.ProgramBuilder(program).build()), buffers, [1.0] * len(program.scalars))
        return [card.read(*buffer) for buffer in buffers]


@pytest.mark.parametrize("name", NAMES)
def test_the_kernels_are_clean(name: str) -> None:
    run(program(name))
    assert sanitizer.reports() == []


@pytest.mark.parametrize("name", EXCHANGING)
def test_a_missing_barrier_is_caught(name: str) -> None:
    whole = program(name)
    results = run(whole)
    caught = 0
    for pc, barrier in enumerate(whole.instructions):
        if not isinstance(barrier, asm.BarrierInst):
            continue
        body = [inst for i, inst in enumerate(whole.instructions) if i != pc]
        try:
            assert run(dataclasses.replace(whole, instructions=body)) == results  # one that only orders reads
            assert sanitizer.reports() == []
        except (RaceDetected, UninitializedRead):
            caught += 1
    assert caught > 0


@pytest.mark.parametrize("name", [n for n in NAMES if n != "ring_reduce"])
def test_cores_that_write_one_slice_are_caught(name: str) -> None:
    """Every core stores where core 0 does."""
    whole = program(name)
    for pc, inst in enumerate(whole.instructions):
        for place, operand in operands(inst):
            if operand.space is not Space.MEM or place[0] not in ("out", "c"):
                continue
            maps = operand.maps
            if isinstance(maps, asm.LayoutMap):
                maps = dataclasses.replace(maps, offset=Affine(maps.offset.const))
            moved = dataclasses.replace(operand, offset=Affine(operand.offset.const), maps=maps)
            if moved == operand:
                continue
            with pytest.raises(RaceDetected):
                run(with_operand(whole, pc, place, moved))
            assert sanitizer.reports()[0].op


@pytest.mark.parametrize("name", EXCHANGING)
def test_the_slice_of_a_core_that_sends_nothing_is_caught(name: str) -> None:
    """Remote reads of LX that its owner never filled, and of a core that does not run."""
    whole = program(name)
    found = 0
    for pc, inst in enumerate(whole.instructions):
        for place, operand in operands(inst):
            if operand.space is not Space.LX_REMOTE:
                continue
            found += 1
            past = dataclasses.replace(operand, offset=Affine(whole.lx_bytes))
            larger = dataclasses.replace(whole, lx_bytes=2 * whole.lx_bytes)
            with pytest.raises(UninitializedRead, match=f"instruction {pc}"):
                run(with_operand(larger, pc, place, past))
            if isinstance(inst, asm.CopyInst):
                with pytest.raises(OutOfBounds, match="cores run"):
                    run(with_operand(whole, pc, place, dataclasses.replace(operand, core=Affine(whole.cores))))
    assert found


def test_swapped_scratchpad_addresses_are_mostly_caught() -> None:
    """Each LX operand at the address of each other tensor. What stays unseen reads another valid tensor."""
    seen: collections.Counter[str] = collections.Counter()
    for name in NAMES:
        whole = program(name)
        results = run(whole)
        local = (Space.LX, Space.LX_REMOTE)
        offsets = {o.offset for inst in whole.instructions for _, o in operands(inst) if o.space in local}
        for pc, inst in enumerate(whole.instructions):
            for place, operand in operands(inst):
                for other in sorted(offsets - {operand.offset}, key=str) if operand.space in local else ():
                    swapped = with_operand(whole, pc, place, dataclasses.replace(operand, offset=other))
                    try:
                        outcome = "harmless" if run(swapped) == results else "unseen"
                    except SpyreError:
                        outcome = "refused"
                    seen["reported" if sanitizer.reports() and outcome != "refused" else outcome] += 1
    caught = seen["refused"] + seen["reported"]
    assert caught > 3 * seen["unseen"], seen
