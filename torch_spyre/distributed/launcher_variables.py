# SPDX-License-Identifier: Apache-2.0
"""Which card a process drives, as launchers say it in the environment."""

from __future__ import annotations

import os

from torch_spyre import _C
from torch_spyre.errors import InvalidArgument


def check_environment() -> None:
    """Raises if a launcher's variables contradict each other or the number of cards."""
    cards = _C.device_count()
    local_size = _number("LOCAL_WORLD_SIZE")
    if local_size is None:
        return
    rank = _number("LOCAL_RANK")
    if rank is None:
        raise InvalidArgument(
            f"LOCAL_WORLD_SIZE is {local_size}, but LOCAL_RANK is not set: nothing says which card this process "
            "drives; start it with torchrun, or set LOCAL_RANK to a number from 0"
        )
    if not 0 <= rank < local_size:
        raise InvalidArgument(f"LOCAL_RANK is {rank}, outside 0..{local_size - 1} (LOCAL_WORLD_SIZE is {local_size})")
    if rank >= cards:
        raise InvalidArgument(
            f"LOCAL_RANK is {rank}, but this host has {cards} card{'s' if cards != 1 else ''}: start at most that many "
            "processes, or raise AIU_WORLD_SIZE (and SPYRE_DEVICES, if it is set)"
        )


def _number(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"{name} is {text!r}; set it to a whole number or unset it") from None
