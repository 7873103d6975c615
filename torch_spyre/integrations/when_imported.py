# SPDX-License-Identifier: Apache-2.0
"""Runs a function on a module right after its import, whenever that is."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Action = Callable[[ModuleType], object]


def when_imported(name: str, action: Action) -> None:
    """Runs `action` now if the module is there already."""
    module = sys.modules.get(name)
    if module is not None and not _is_running(module):
        action(module)
        return
    if module is None:
        _finder.actions.setdefault(name, []).append(action)
    else:
        _finder.waiting.append((module, action))
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _is_running(module: ModuleType) -> bool:
    """Is its import still going on? So it is with a library that is the first to import torch."""
    return bool(getattr(module.__spec__, "_initializing", False))


class _Finder(importlib.abc.MetaPathFinder):
    """Leaves the finding to the others. A module may be looked up many times before it is imported (libraries ask
    ``find_spec`` whether another one is installed), so an action is done with when the module has run."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}
        self.waiting: list[tuple[ModuleType, Action]] = []  # until a later import finds the module complete

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if self.waiting:
            self._run_waiting()
        if name not in self.actions:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for action in self.actions.pop(name, ()):
                action(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _run_waiting(self) -> None:
        ready = [entry for entry in self.waiting if not _is_running(entry[0])]
        self.waiting = [entry for entry in self.waiting if entry not in ready]
        for module, action in ready:
            action(module)


_finder = _Finder()
