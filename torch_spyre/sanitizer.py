# SPDX-License-Identifier: Apache-2.0
"""The card's sanitizer from Python: switch it, read its reports. See docs/sanitizer.md.

``SPYRE_SANITIZE=1`` turns it on when the first card of a process is opened. This file imports no torch.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

import torch_spyre._card as _card


@dataclass(frozen=True)
class Report:
    """One defect. `begin` and `end` are card addresses (space "memory") or offsets in the core's LX (space "LX")."""

    kind: str  # a class of torch_spyre.errors, or NanProduced, Saturated, FormatMismatch, DeadWrite
    warning: bool  # collected, never raised
    kernel: str
    origin: str  # kernel, node, aten ops and the user's line, as the compiler wrote them into the program
    instruction: int
    op: str
    core: int
    space: str
    begin: int
    end: int
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def enable(raise_errors: bool = True) -> None:
    """Checks launches and transfers of all cards from now on. Without `raise_errors` defects are only collected."""
    _card.set_sanitize("raise" if raise_errors else "report")


def disable() -> None:
    """Stops checking."""
    _card.set_sanitize("off")


def enabled() -> bool:
    """Whether launches and transfers are checked."""
    return bool(_card.sanitize_mode() != "off")


def reports() -> list[Report]:
    """What was found since the start or `clear`, oldest first; a thousand at most."""
    return [Report(**row) for row in _card.sanitizer_reports()]


def print_reports(file: TextIO | None = None) -> None:
    """One line per report, for the commands' --sanitize (to stderr unless told otherwise)."""
    found = reports()
    for report in found:
        print(f"sanitizer: {report}", file=file or sys.stderr)
    print(f"sanitizer: {len(found)} reports", file=file or sys.stderr)


def clear() -> None:
    """Forgets the reports so far."""
    _card.clear_sanitizer_reports()


def inject_fault(kind: str, nth: int = 1, device: int = -1) -> None:
    """Makes the `nth` next "allocation", "dma" or "launch" of a card fail, or loses the card there ("device_lost"), so
    that a program can try what it does about an error."""
    from torch_spyre import _C  # late: it needs torch

    _C._inject_fault(kind, nth, device)


@contextlib.contextmanager
def sanitize(raise_errors: bool = True) -> Iterator[None]:
    """The sanitizer for a block. Tensors that were made before it count as written."""
    before = _card.sanitize_mode()
    enable(raise_errors)
    try:
        yield
    finally:
        _card.set_sanitize(before)
