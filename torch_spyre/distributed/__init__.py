# SPDX-License-Identifier: Apache-2.0
"""`torch.distributed` between cards: the backend ``spyreccl``.

``init_process_group()`` picks it for tensors on ``spyre``; ``"cpu:gloo,spyre:spyreccl"`` names it. One process drives
one card. docs/distributed.md tells who talks to whom and when.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from torch_spyre.constants import DEVICE_NAME

BACKEND = "spyreccl"


def register() -> None:
    """Makes the backend known to torch.distributed, once."""
    if not dist.is_available() or BACKEND in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=[DEVICE_NAME])


def _create(options: Any, _backend_options: Any = None) -> Any:
    from torch_spyre.distributed.groups import create  # late: start-up

    return create(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout.total_seconds(),
        options.group_id,
        list(options.global_ranks_in_group),
    )
