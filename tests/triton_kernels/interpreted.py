# SPDX-License-Identifier: Apache-2.0
"""Runs kernels in Triton's interpreter (``TRITON_INTERPRET=1``), in a process of its own.

The process reads (module, kernel, grid, arguments) from its input and answers with the arguments after the launch.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import torch


class Interpreter:
    def __enter__(self) -> Interpreter:
        environment = dict(os.environ, TRITON_INTERPRET="1", PYTHONPATH=os.pathsep.join(sys.path))
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def __call__(self, kernel: Any, grid: Sequence[int], *arguments: Any, **constants: Any) -> list[Any]:
        """The arguments after a launch; tensors are on the host and stay as they are."""
        assert self._process.stdin is not None and self._process.stdout is not None
        function = kernel
        while not hasattr(function, "params"):
            function = function.fn
        name = function.__module__, function.__name__
        pickle.dump((*name, tuple(grid), arguments, constants), self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        if isinstance(answer, str):
            raise AssertionError(f"the interpreter fails: {answer}")
        return list(answer)


def serve() -> None:
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what kernels print is no answer
    while True:
        try:
            module, name, grid, arguments, constants = pickle.load(source)
        except EOFError:
            return
        copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        try:
            getattr(importlib.import_module(module), name)[grid](*copies, **constants)
            answer: Any = copies
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, target)
        target.flush()


if __name__ == "__main__":
    serve()
