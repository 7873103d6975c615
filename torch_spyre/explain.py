# SPDX-License-Identifier: Apache-2.0
"""``python -m torch_spyre.explain script.py [args]``: run a script and print one readable block per kernel.

Each block says what the kernel computes, the layout of every tensor, how the work is split over the cores, where each
tensor lives (card memory, pool or scratchpad, and on which cores), and how many bytes move. `last_kernels()` gives
the same records to a program that called `start()` first.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.debug.inspect import KernelRecord
from torch_spyre._inductor.debug.kernel_text import kernel_text, traffic

__all__ = ["KernelRecord", "kernel_text", "last_kernels", "start", "traffic"]


def start() -> None:
    """Record every kernel compiled from now on (the program cache is not read meanwhile)."""
    inspect.start()


def last_kernels() -> list[KernelRecord]:
    return inspect.records()


_USAGE = """usage: python -m torch_spyre.explain script.py [arguments of the script]

Runs the script and prints one block per kernel: what it computes, layouts, the split over the cores, where each tensor
lives, and how many bytes move. The exit status is that of the script, or 2 if there is no such script.

example: python -m torch_spyre.explain train.py --steps 1"""


def main(argv: Sequence[str]) -> int:
    if argv and argv[0] in ("-h", "--help"):
        print(_USAGE)
        return 0
    problem = _problem(argv)
    if problem:
        print(f"{_USAGE.splitlines()[0]}\nexplain: {problem}", file=sys.stderr)
        return 2
    start()
    sys.argv = list(argv)
    if Path(argv[0]).is_file():
        sys.path.insert(0, str(Path(argv[0]).resolve().parent))  # modules beside the script, as `python script.py` does
    try:
        runpy.run_path(argv[0], run_name="__main__")
    finally:
        for record in last_kernels():
            print(record.text())
    return 0


def _problem(argv: Sequence[str]) -> str:
    """What is wrong with the command line; empty if nothing is."""
    if not argv:
        return "which script?"
    if argv[0].startswith("-"):
        return f"there is no option {argv[0]}; options after the name of the script are passed to it"
    return "" if Path(argv[0]).exists() else f"there is no script {argv[0]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
