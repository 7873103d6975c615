# SPDX-License-Identifier: Apache-2.0
"""Another device: constants changed in a description, and plans made for it."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator, Sequence

from torch_spyre import knobs
from torch_spyre.constants import LX_BYTES
from torch_spyre.errors import InvalidArgument
from torch_spyre.perf import device as devices
from torch_spyre.perf.device import Device


def described(name: str | None, settings: Sequence[str]) -> Device:
    """A description by name or path, with constants changed by ``section.name=value``."""
    device = devices.load(name or "spyre")
    changes = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        try:
            number = float(value)
        except ValueError:
            raise InvalidArgument(f"--set {setting}: write section.name=number, e.g. memory.bandwidth=300") from None
        if not 0 < number < math.inf:
            raise InvalidArgument(f"--set {setting}: constants are positive numbers")
        changes[key.strip().replace(".", "__")] = number
    return device.with_values(**changes) if changes else device


@contextlib.contextmanager
def assumed(device: Device) -> Iterator[list[str]]:
    """Plans and times for this device; yields what of it the compiler cannot follow."""
    cores, lx = int(device["cores.count"]), device["cores.lx"]
    if cores > 32:
        raise InvalidArgument(f"cores.count = {cores}: programs have at most 32 cores")
    notes = []
    kept = 1 - device["cores.lx_fraction"]
    if lx > LX_BYTES:
        notes.append(f"plans use {LX_BYTES} bytes of LX; only the times know of {lx:.0f}")
    reserved = 1 - kept * min(lx, LX_BYTES) / LX_BYTES
    with (
        tempfile.TemporaryDirectory() as cache,
        devices.assume(device),
        knobs.patch(sencores=cores, dxp_lx_frac_avail=reserved, cache_dir=cache),
    ):
        yield notes
