# SPDX-License-Identifier: Apache-2.0
"""Triton's interpreter for kernels that it runs in another way than the compiler does.

The compiler makes values of its own of float arguments and loop counters, so that kernels call `.to` on them, and knows
`"tl.constexpr"` in quotes; the interpreter hands Python's floats and integers to the kernel.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


class _Counter(int):
    def to(self, kind: Any, *_: Any, **__: Any) -> _Counter:
        return self


class _Range:
    """`range` whose numbers have `.to`."""

    def __init__(self, *ends: Any) -> None:
        self._numbers = builtins.range(*(int(end) for end in ends))

    def __iter__(self) -> Iterator[_Counter]:
        return map(_Counter, self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def prepare() -> None:
    """Before kernels are decorated."""
    convert, make = interpreter._implicit_cvt, interpreter.InterpretedFunction.__init__

    def converted(argument: Any) -> Any:
        if isinstance(argument, float):
            handle = interpreter.TensorHandle(np.array([argument], dtype=np.float32), tl.float32)
            return tl.tensor(handle, tl.float32)
        return convert(argument)

    def made(self: Any, function: Any, **options: Any) -> None:
        function.__globals__.setdefault("range", _Range)
        function.__annotations__.update(
            {name: tl.constexpr for name, kind in function.__annotations__.items() if kind == "tl.constexpr"}
        )
        make(self, function, **options)

    interpreter._implicit_cvt = converted
    interpreter.InterpretedFunction.__init__ = made
