# SPDX-License-Identifier: Apache-2.0
"""Timing-only runs: the device clock advances as ever, nothing is computed and no memory is committed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch_spyre import knobs


def is_default() -> bool:
    """Whether cards are opened in this mode."""
    return bool(knobs.get("timing_only"))


@contextlib.contextmanager
def timing_only(device: int = -1) -> Iterator[None]:
    """Launches and transfers of this card take their time but touch no memory.

    What they would have written is undefined: the host reads zeros and is warned once; work that reads it outside of
    the block raises UninitializedRead. ``SPYRE_TIMING_ONLY=1`` makes it the mode of a whole process.
    """
    import torch  # noqa: F401  (the extension needs libtorch in the process)

    from torch_spyre import _C  # late: start-up

    before = _C._timing_only(device)
    _C._set_timing_only(True, device)
    try:
        yield
    finally:
        _C._set_timing_only(before, device)
