# SPDX-License-Identifier: Apache-2.0
"""What may stand where a file of ours is expected, and must neither hang nor kill the reader."""

from __future__ import annotations

import os
from pathlib import Path


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def nested(path: Path) -> None:
    path.write_text("[" * 100_000 + "]" * 100_000)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")
