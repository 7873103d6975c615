# SPDX-License-Identifier: Apache-2.0
"""Packages above PyTorch, changed when they are imported, whenever that is."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from torch_spyre.device import serialization


def safetensors_onto_the_card() -> None:
    """``safetensors.safe_open(device="spyre")``, and with it ``safetensors.torch.load_file``. safetensors knows a fixed
    list of device names. Missing hook: a name registered with PyTorch."""
    WhenImported("safetensors", _open_onto_the_card).install()


def _open_onto_the_card(module: ModuleType) -> None:
    original: Any = getattr(module, "safe_open", None)
    if original is None or hasattr(original, "_spyre_patched"):
        return

    def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        if not serialization.is_card(device):
            return original(filename, framework, device, **options)
        return serialization.CardFile(original(filename, framework, "cpu", **options), device)

    safe_open._spyre_patched = True  # type: ignore[attr-defined]
    module.safe_open = safe_open  # type: ignore[attr-defined]


def generation_of_transformers() -> None:
    """transformers' `generate` lists devices too; patches/generation.py says which hooks are missing there."""

    def accept(module: ModuleType) -> None:
        from torch_spyre.patches import generation  # late: only if transformers is there

        generation.accept_cards(module)

    WhenImported("transformers.generation.utils", accept).install()


class WhenImported(importlib.abc.MetaPathFinder):
    """Runs `action` on one module right after its import, whenever that is, and then steps aside."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self.name, self.action = name, action

    def install(self) -> None:
        if self.name in sys.modules:
            self.action(sys.modules[self.name])
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.action(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
