# SPDX-License-Identifier: Apache-2.0
"""Writes reproducers: one Python file per kernel, which `torch_spyre.repro` runs.

The file holds the TileGraph, the layout and offset of each input, and the knobs. It is written before the kernel is
planned, so that one that fails to compile has it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torch_spyre import __version__, knobs

if TYPE_CHECKING:
    from torch_spyre._inductor.tilegraph.graph import Graph

FILE = "kernel_repro.py"
VALUES = "inputs.pt"

_TEMPLATE = '''\
"""Reproducer of {name}: python {file} [--help]

{text}"""

import sys

from torch_spyre import repro

# The layout-free TileGraph, as torch_spyre {version} built it.
GRAPH = {graph}

# Each input: (device_size, stride_map, format, storage offset[, names of its dims]); () for a launch scalar.
INPUTS = [
{inputs}]

# The knobs that the planner read.
KNOBS = {knobs}

# The kernel in KTIR as it was compiled, if it came that far; --dumped runs this text instead of planning again.
KTIR = {ktir}

if __name__ == "__main__":
    sys.exit(repro.main(__file__, GRAPH, INPUTS, KNOBS, KTIR))
'''


def source(graph: Graph, graph_json: str, inputs: Sequence[tuple[Any, ...]], ktir: str | None) -> str:
    """The text of a reproducer."""
    lines = graph_json.replace('{"_":"Buffer"', '\n{"_":"Buffer"').replace('{"_":"Node"', '\n{"_":"Node"')
    return _TEMPLATE.format(
        name=graph.name,
        file=FILE,
        text=graph.text().replace("\\", "/").replace('"""', "'''"),
        version=__version__,
        graph=_literal(lines),
        inputs="".join(f"    {described!r},\n" for described in inputs),
        knobs="{\n" + "".join(f"    {name!r}: {value!r},\n" for name, value in knobs.planning().items()) + "}",
        ktir=_literal(ktir) if ktir is not None else "None",
    )


def _literal(text: str) -> str:
    """A Python literal with real line breaks where that is possible."""
    if "'''" in text or text.endswith(("\\", "'")):
        return repr(text)
    return f"r'''{text}'''"


def save_inputs(folder: Path, inputs: Sequence[Any]) -> None:
    """The values of a launch, for the reproducer in that folder."""
    torch.save([x.detach().cpu() if isinstance(x, torch.Tensor) else x for x in inputs], folder / VALUES)
