# SPDX-License-Identifier: Apache-2.0
"""What PyTorch leaves out when it makes a process group with a backend from outside its tree."""

from __future__ import annotations

import functools
from typing import Any

from torch_spyre.constants import DEVICE_NAME


def default_backend_of_groups() -> None:
    """A group has a default backend, which PyTorch asks for hooks when the group is destroyed. For groups whose
    backends are named by device, or not named at all, it takes one that the group does not have, and warns. Missing
    hook: the default backend in the registry of backends (PyTorch compares names in capitals with names in small
    letters)."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    module = dist.distributed_c10d
    original = module._new_process_group_helper

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if isinstance(made[0], dist.ProcessGroup):
            _name_default(made[0])
        return made

    module._new_process_group_helper = make


def _name_default(group: Any) -> None:
    import torch.distributed as dist

    backends = {device.type: group._get_backend(device).name() for device in group._device_types}
    if DEVICE_NAME in backends and group.name() not in (*backends.values(), "custom"):
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
