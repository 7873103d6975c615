# SPDX-License-Identifier: Apache-2.0
"""KTIR files on the card: load one, run its functions on tensors, look at them; the command `spyre-ktir`.

Enters: KTIR text by anybody. Leaves: a `Module` whose functions run on tensors (docs/ktir.md). The language itself is
`ir/ktir/`; importing this package does not import xDSL, the functions below do when first called.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from xdsl.dialects.builtin import ModuleOp

    from torch_spyre.ktir.module import KtirWarning as KtirWarning
    from torch_spyre.ktir.module import Module as Module


_EXAMPLES = Path(__file__).parent / "examples"


def example(name: str) -> Path:
    """The file of a kernel that comes with the package: softmax, vector_add, matmul."""
    from torch_spyre.errors import InvalidArgument  # late: start-up

    if name not in examples():
        raise InvalidArgument(f"no KTIR example {name!r}; there are {', '.join(examples())}")
    return _EXAMPLES / f"{name}.mlir"


def examples() -> list[str]:
    """Names of the kernels that come with the package."""
    return sorted(file.stem for file in _EXAMPLES.glob("*.mlir"))


def load(
    source: str | os.PathLike[str],
    *,
    strict: bool = False,
    axis0_fastest: bool = True,
    stick_addresses: bool = False,
    poison_empty: bool = False,
    wide_accumulate: bool = False,
) -> Module:
    """Reads, verifies and checks KTIR: a path, or the text itself.

    strict: refuse older spellings, and accesses that may leave their coordinate set (else they read 0, write nothing).
    axis0_fastest: the flat tile id counts along grid axis 0 first. stick_addresses: literal addresses count sticks.
    poison_empty: `tensor.empty` is NaN and not 0. wide_accumulate: an f16 sum of products that a loop carries stays
    fp32 until the loop ends.
    """
    from torch_spyre.backend.options import Options  # late: start-up
    from torch_spyre.ktir import module  # late: start-up

    return module.load(source, Options(strict, axis0_fastest, stick_addresses, poison_empty, wide_accumulate))


def parse(text: str, name: str = "<ktir>") -> ModuleOp:
    """Read KTIR text in any of its spellings and verify it."""
    from torch_spyre.ir.ktir import text as ktir_text  # late: start-up

    return ktir_text.parse(text, name)


def print_module(module: ModuleOp) -> str:
    """KTIR text in the current spelling."""
    from torch_spyre.ir.ktir import text as ktir_text  # late: start-up

    return ktir_text.print_module(module)


def verify(module: ModuleOp) -> None:
    """Raise InvalidProgram with the broken rule, or return."""
    from torch_spyre.ir.ktir import text as ktir_text  # late: start-up

    ktir_text.verify(module)


def __getattr__(name: str) -> Any:
    if name in ("Module", "KtirWarning"):
        from torch_spyre.ktir import module  # late: start-up

        return getattr(module, name)
    raise AttributeError(f"module 'torch_spyre.ktir' has no attribute {name!r}")
