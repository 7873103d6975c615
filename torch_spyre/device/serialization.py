# SPDX-License-Identifier: Apache-2.0
"""Files and other libraries: pickling, DLPack, safetensors.

``torch.save`` and ``torch.load`` need nothing from here: a storage speaks host bytes, and its layout travels as tensor
metadata (csrc/aten/serialization.cpp).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import io
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.errors import UnsupportedOp


def reduce_storage(storage: Any) -> tuple[Any, ...]:
    """Pickles a storage on the card: like PyTorch's own ``__reduce__``, in the file format that asks for host bytes
    through a copy. The older one reads them at the data pointer."""
    buffer = io.BytesIO()
    torch.save(storage, buffer, _use_new_zipfile_serialization=True)
    return torch.storage._load_from_bytes, (buffer.getvalue(),)


def refuse_older_files() -> None:
    raise UnsupportedOp(
        "the file format before zip (torch.save with _use_new_zipfile_serialization=False) reads and writes memory at "
        "host addresses, and tensors on the card have none: save with the default format or from .cpu(), and load "
        'such a file with map_location="cpu"'
    )


def copied_to_processes(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """How torch.multiprocessing sends a tensor or storage, if it is not on the card: those on it are sent as copies,
    because a card belongs to one process."""

    def send(value: Any) -> Any:
        untyped = getattr(value, "_untyped_storage", value)  # a typed one warns when it is asked for its device
        if untyped.device.type != DEVICE_NAME:
            return reduce(value)
        if not isinstance(value, torch.Tensor):
            return reduce_storage(value)
        if value.requires_grad and not value.is_leaf:  # PyTorch's rule for every device
            raise RuntimeError("a non-leaf tensor that requires grad cannot be sent to another process: detach() it")
        return value.__reduce_ex__(2)

    return send


def refuse_dlpack(tensor: torch.Tensor) -> None:
    raise UnsupportedOp(
        f"DLPack cannot share a tensor on {tensor.device}: its memory holds card formats in sticks, at no host "
        "address. Copy it with .cpu() first"
    )


# safetensors


def is_card(device: Any) -> bool:
    try:
        return not isinstance(device, int) and torch.device(device).type == DEVICE_NAME
    except RuntimeError:
        return False


class CardFile:
    """A safetensors file whose tensors go straight from the mapped file to the card."""

    def __init__(self, file: Any, device: Any) -> None:
        self._file, self._device = file, torch.device(device)

    def __enter__(self) -> CardFile:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._file.__exit__(*error)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._file.get_tensor(name).to(self._device)

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self._file.keys()}

    def get_slice(self, name: str) -> CardSlice:
        return CardSlice(self._file.get_slice(name), self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class CardSlice:
    """A lazy tensor of a safetensors file; indexing reads that part and moves it."""

    def __init__(self, part: Any, device: torch.device) -> None:
        self._part, self._device = part, device

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._part[index].to(self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)


def accept_cards(module: ModuleType) -> None:
    """``safetensors.safe_open(device="spyre")``, and with it ``safetensors.torch.load_file``."""
    original = getattr(module, "safe_open", None)
    if original is None or hasattr(original, "_spyre_patched"):
        return

    def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        if not is_card(device):
            return original(filename, framework, device, **options)
        return CardFile(original(filename, framework, "cpu", **options), device)

    safe_open._spyre_patched = True  # type: ignore[attr-defined]
    module.safe_open = safe_open  # type: ignore[attr-defined]


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
