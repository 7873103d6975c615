# SPDX-License-Identifier: Apache-2.0
"""TTIR to KTIR, pass by pass.

Enters: the text of a kernel as Triton prints it, its arguments and its grid. Leaves: a verified KTIR module whose one
function runs all programs of the grid on the cores of the card. `trace` sees the module after each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import ModuleOp

from torch_spyre.ir.ktir import text as ktir_text
from torch_spyre.ir.ktir.narrow import narrow
from torch_spyre.triton.lowering import (
    carried_steps,
    chosen_pointers,
    conditions,
    descriptors,
    early_returns,
    float_arguments,
    kept_loads,
    known_integers,
    locks,
    program_grid,
    scalar_words,
    ttir_text,
    unused,
)
from torch_spyre.triton.lowering.accesses import tile_accesses
from torch_spyre.triton.lowering.elements import (
    combined_elements,
    element_functions,
    moved_positions,
    rearranged,
)
from torch_spyre.triton.lowering.loops import counted_loops, trip_counts
from torch_spyre.triton.lowering.refusals import refusal

Grid = tuple[int, int, int]
Shared = tuple[tuple[int, int, int], ...]  # pointer, the one whose memory it shares, elements between their starts
Lengths = program_grid.Lengths
Counts = counted_loops.Counts
Trace = Callable[[str, ModuleOp], None]


def passes(
    arguments: Sequence[object],
    grid: Grid,
    shared: Shared,
    lengths: Lengths = None,
    counts: Counts = None,
    careful: bool = False,
) -> list[tuple[str, Callable[[ModuleOp], None]]]:
    """Name and function of every pass, in order. `arguments` holds the integers of a launch, `lengths` the elements
    from the start of each pointer to the end of its memory, `counts` how often the loops run that the launch counts;
    `careful` is about masks that are no boxes (`tile_accesses`)."""
    return [
        ("descriptors", descriptors.run),
        ("known-integers", lambda m: known_integers.bind(m, arguments, grid)),
        ("fold", known_integers.fold),
        ("early-returns", early_returns.run),
        ("locks", locks.run),
        ("counted-loops", lambda m: counted_loops.run(m, counts)),
        ("carried-steps", carried_steps.run),
        ("programs", lambda m: program_grid.run(m, grid, tile_accesses.needs_order(m), shared, lengths)),
        ("chosen-pointers", chosen_pointers.run),
        ("conditions", conditions.run),
        ("scalar-words", scalar_words.run),
        ("tile-accesses", lambda m: tile_accesses.run(m, careful)),
        ("unused", unused.run),
        ("rearranged", rearranged.run),
        ("combined-elements", combined_elements.run),
        ("element-functions", element_functions.run),
        ("moved-positions", moved_positions.run),
        ("unused", unused.run),
        ("kept-loads", kept_loads.run),
        ("narrow", narrow),
    ]


def lower(
    text: str,
    name: str,
    arguments: Sequence[object],
    grid: Grid,
    shared: Shared = (),
    lengths: Lengths = None,
    counts: Counts = None,
    careful: bool = False,
    trace: Trace | None = None,
) -> ModuleOp:
    module = ttir_text.read(text, name)
    float_arguments.run(module)
    _refuse_double(module)
    if trace is not None:
        trace("ttir", module)
    for title, run in passes(arguments, grid, shared, lengths, counts, careful):
        run(module)
        if trace is not None:
            trace(title, module)
    for op in module.walk():
        if op.name.startswith(("tt.", "cf.", "ub.")):
            raise refusal(op, "nothing of KTIR stands for it here")
    ktir_text.verify(module)
    return module


def counted(
    text: str, name: str, arguments: Sequence[object], grid: Grid, memory: Callable[[int], object]
) -> tuple[int, ...]:
    """How often the loops run whose bounds are in memory; `memory` gives the elements of an argument."""
    module = ttir_text.read(text, name)
    for title, run in passes(arguments, grid, ()):
        if title == "counted-loops":
            break
        run(module)
    return trip_counts.count(module, grid, memory)


def _refuse_double(module: ModuleOp) -> None:
    for op in module.walk():
        for value in (*op.results, *(a for region in op.regions for block in region.blocks for a in block.args)):
            if "f64" in str(value.type):
                raise refusal(op, "float64, which the card does not have; use float32")
