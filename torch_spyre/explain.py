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

from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.debug.inspect import KernelRecord
from torch_spyre._inductor.debug.kernel_text import kernel_text, traffic

__all__ = ["KernelRecord", "kernel_text", "last_kernels", "start", "traffic"]


def start() -> None:
    """Record every kernel compiled from now on (the program cache is not read meanwhile)."""
    inspect.start()


def last_kernels() -> list[KernelRecord]:
    return inspect.records()


def main(argv: Sequence[str]) -> int:
    if not argv:
        print("usage: python -m torch_spyre.explain script.py [arguments of the script]", file=sys.stderr)
        return 2
    start()
    sys.argv = list(argv)
    try:
        runpy.run_path(argv[0], run_name="__main__")
    finally:
        for record in last_kernels():
            print(record.text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
