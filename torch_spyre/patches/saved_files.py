# SPDX-License-Identifier: Apache-2.0
"""Ways out of the process that read memory at its address: pickling, older files, other processes, DLPack."""

from __future__ import annotations

import copyreg
import functools
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from torch_spyre.constants import DEVICE_NAME
from torch_spyre.device import serialization
from torch_spyre.patches.tensor_methods import with_own_signature

STORAGES = (torch.UntypedStorage, torch.storage.TypedStorage)


def pickle_storages() -> None:
    """``pickle.dumps(tensor)`` reads storages at their data pointer. Pickle has the hook, and it replaces nothing of
    PyTorch's; what is missing is one for the storage bytes of a device whose data pointer is no address."""
    for kind in STORAGES:
        copyreg.pickle(kind, serialization.reduce_any_storage)


def refuse_older_files() -> None:
    """``torch.save(…, _use_new_zipfile_serialization=False)`` reads storages at their data pointer, and loading such a
    file writes there. Missing hook: as above."""
    for name in ("_write_file", "_set_from_file"):
        _guard_older_files(name)


def _guard_older_files(name: str) -> None:
    original = getattr(torch.UntypedStorage, name)

    @functools.wraps(original)
    def on_host(self: torch.UntypedStorage, *args: Any) -> Any:
        if self.device.type == DEVICE_NAME:
            serialization.refuse_older_files()
        return original(self, *args)

    setattr(torch.UntypedStorage, name, with_own_signature(on_host))


def send_to_processes() -> None:
    """torch.multiprocessing sends handles of memory. Missing hook: a device whose memory cannot be shared."""
    for kind in (torch.Tensor, torch.nn.Parameter, *STORAGES):
        original = ForkingPickler._extra_reducers[kind]  # type: ignore[attr-defined]
        ForkingPickler.register(kind, serialization.copied_to_processes(original))


def refuse_dlpack() -> None:
    """PyTorch exports tensors of any renamed device with their data pointer. Missing hook: a device's refusal."""
    for owner, name in ((torch.Tensor, "__dlpack__"), (torch.Tensor, "__dlpack_device__")):
        _guard_dlpack(owner, name)
    for owner in (torch, torch.utils.dlpack, torch._C):
        for name in ("to_dlpack", "_to_dlpack", "_to_dlpack_versioned"):
            if hasattr(owner, name):
                _guard_dlpack(owner, name)


def _guard_dlpack(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def export(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.device.type == DEVICE_NAME:
            serialization.refuse_dlpack(tensor)
        return original(tensor, *args, **kwargs)

    setattr(owner, name, with_own_signature(export))
