# SPDX-License-Identifier: Apache-2.0
"""KTIR, the kernel-tile IR: dialect, printer of planned kernels, text in and out.

Enters: a planned `tileops.Kernel` (printed by `emit.emit`), or KTIR text from anybody. Leaves: a verified xDSL module
for `backend/`. Importing this package, `tileops`, `opfuncs` or `barriers` does not import xDSL; the functions below do
when first called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


def parse(text: str, name: str = "<ktir>") -> ModuleOp:
    """Read KTIR text in any of its spellings and verify it."""
    from torch_spyre.ktir import text as ktir_text

    return ktir_text.parse(text, name)


def print_module(module: ModuleOp) -> str:
    """KTIR text in the current spelling."""
    from torch_spyre.ktir import text as ktir_text

    return ktir_text.print_module(module)


def verify(module: ModuleOp) -> None:
    """Raise InvalidProgram with the broken rule, or return."""
    from torch_spyre.ktir import text as ktir_text

    ktir_text.verify(module)
