# SPDX-License-Identifier: Apache-2.0
# python docs/pictures/draw.py
"""Draws the pictures of docs/concepts.md and docs/worked-matmul.md from the plans of two small programs.

The functions below are compiled for the card, and the components of ``spyre explain --html`` draw the result, so each
picture shows a real plan. Running this writes the SVG files beside it; a test compares them with what is committed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch

from torch_spyre import explain
from torch_spyre.explain import lines, plan_pictures
from torch_spyre.explain.lines import Explained
from torch_spyre.perf.device import load

FOLDER = Path(__file__).parent
_STYLE = "text{font:11px system-ui,'DejaVu Sans',sans-serif;fill:#333}"
_TAG = re.compile(r"<svg data-zoom='\w+'(?: data-\w+='[^']*')* (width='\d+' height='\d+' viewBox='[^']*')>")


def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = torch.relu(x @ w)
    return torch.softmax(hidden, dim=-1)


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def planned(function: object, *shapes: tuple[int, ...]) -> Explained:
    """The one kernel of a function, compiled for tensors of zeros."""
    tensors = [torch.zeros(shape, dtype=torch.float16).to("spyre") for shape in shapes]
    before = len(explain.last_kernels())
    torch.compile(function)(*tensors).cpu()  # type: ignore[call-overload]
    (kernel,) = [k for k in map(lines.explained, explain.last_kernels()[before:]) if not k.eager]
    return kernel


def picture(figure: str) -> str:
    """A figure of a page as a file of its own, on white so that dark pages show it."""
    found = _TAG.search(figure)
    assert found is not None
    body = figure[found.end() : figure.index("</svg>")]
    body = re.sub(r" data-key='[^']*'", "", body).replace("><", ">\n<")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {found[1]}>\n<style>{_STYLE}</style>\n'
    body = body.replace(f"{Path(__file__).parents[2]}/", "")  # lines of these functions
    return f"{head}<rect width='100%' height='100%' fill='#fff'/>\n{body}\n</svg>\n"


def pictures() -> dict[str, str]:
    explain.start()
    try:
        small = planned(add_one, (8, 200))
        whole = planned(layer, (512, 1024), (1024, 4096))
    finally:
        explain.stop()
    read = next(b for b in small.record.plan.graph.buffers.values() if b.kind == "input")
    matmul = next(op for op in whole.record.plan.kernel.ops if op.op == "batchmatmul")
    moved = next(op for op in whole.record.plan.kernel.ops if op.source)
    found = {
        "sticks": plan_pictures.stick_picture(read),
        "cores": plan_pictures.core_picture(matmul),
        "hand-over": plan_pictures.core_picture(moved),
        "scratchpads": plan_pictures.scratchpad_picture(whole, int(load()["cores.lx"])),
        "graph": plan_pictures.graph_picture(whole),
        "units": plan_pictures.step_picture(whole),
    }
    return {f"{name}.svg": picture(figure) for name, figure in found.items()}


def main() -> int:
    for name, text in pictures().items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
