# SPDX-License-Identifier: Apache-2.0
"""TTIR to a program: the lowering, then the back end. Imported when a kernel is compiled, not when it is launched."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from torch_spyre import knobs
from torch_spyre.ir.ktir.text import print_module
from torch_spyre.runtime import cache, driver
from torch_spyre.triton.lowering import pipeline
from torch_spyre.triton.lowering.pipeline import Counts, Grid, Lengths, Shared, Trace


def ktir(
    name: str,
    text: str,
    integers: Sequence[int | None],
    grid: Grid,
    shared: Shared = (),
    lengths: Lengths = None,
    counts: Counts = None,
    careful: bool = False,
    trace: Trace | None = None,
) -> ModuleOp:
    """The KTIR of a kernel; `integers` has a number for each integer argument and None for the others."""
    return pipeline.lower(text, name, integers, grid, shared, lengths, counts, careful, trace)


def loop_counts(
    name: str, text: str, integers: tuple[int | None, ...], grid: Grid, memory: Callable[[int], Any]
) -> tuple[int, ...]:
    """How often loops run whose bounds are in memory, up to a power of two: each set has a program of its own."""
    found = pipeline.counted(text, name, integers, grid, memory)
    return tuple(1 << (count - 1).bit_length() if count else 0 for count in found)


def compiled(
    name: str,
    text: str,
    integers: Sequence[int | None],
    grid: Grid,
    shared: Shared = (),
    lengths: Lengths = None,
    counts: Counts = None,
    careful: bool = False,
) -> cache.CachedKernel:
    folder = knobs.get("dump")
    variant = (integers, grid, shared, lengths, counts, careful)
    if not folder:
        return driver.of_function(name, driver.build_ktir(ktir(name, text, *variant)))
    trace = _Dump(Path(folder), name, text, repr(variant))
    program = driver.build_ktir(ktir(name, text, *variant, trace))
    trace.write("program.txt", program.explain())
    return driver.of_function(name, program)


class _Dump:
    """Writes the kernel after every pass to files of its own."""

    def __init__(self, root: Path, name: str, text: str, variant: str) -> None:
        digest = hashlib.sha256(f"{text} {variant}".encode()).hexdigest()[:12]
        self._folder = root / f"triton_{name}_{digest}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._count = 0
        self.write("kernel.ttir", text)

    def __call__(self, title: str, module: ModuleOp) -> None:
        self.write(f"{self._count:02d}-{title}.mlir", print_module(module))
        self._count += 1

    def write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)
