# SPDX-License-Identifier: Apache-2.0
"""``spyre explain script.py``: run a script and say what its kernels take and why (docs/explain.md).

Enters: the records of `_inductor/debug`. Leaves: one summary by kernel and user line (`lines`), a readable block for
each kernel, JSON, or an HTML page with pictures of the plans. `last_kernels()` gives the records to a program that
called `start()` first.
"""

from __future__ import annotations

from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.debug.inspect import KernelRecord
from torch_spyre._inductor.debug.kernel_text import kernel_text, traffic

__all__ = ["KernelRecord", "kernel_text", "last_kernels", "start", "stop", "traffic"]


def start() -> None:
    """Record every kernel compiled from now on (caches of graphs and programs are not read meanwhile)."""
    inspect.start()


def stop() -> None:
    """Read caches again; the records stay."""
    inspect.stop()


def last_kernels() -> list[KernelRecord]:
    """The kernels recorded since `start`, oldest first."""
    return inspect.records()
