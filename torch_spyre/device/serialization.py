# SPDX-License-Identifier: Apache-2.0
"""Files and other libraries: pickling, DLPack, safetensors.

``torch.save`` and ``torch.load`` need nothing from here: a storage speaks host bytes, and its layout travels as tensor
metadata (csrc/aten/serialization.cpp).
"""

from __future__ import annotations

import io
from collections.abc import Callable
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


def reduce_any_storage(storage: Any) -> Any:
    """For `copyreg`: storages elsewhere are pickled as PyTorch does it."""
    untyped = getattr(storage, "_untyped_storage", storage)  # a typed one warns when it is asked for its device
    return reduce_storage(storage) if untyped.device.type == DEVICE_NAME else storage.__reduce__()


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
