# SPDX-License-Identifier: Apache-2.0
"""Files and folders that others may have touched: read without hanging, trusted by owner and mode. Imports no torch.

A reader of such files takes the errors of `DAMAGE` as damage: what they hold may be anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError)

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link",
}
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_STALE_SECONDS = 3600.0  # no process writes an entry for so long


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], links: bool = True) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """A regular file, open for reading, and its status. Anything else is a ValueError: a FIFO or a device would hang
    the reader or never end. `links`: whether the name itself may be a symbolic link."""
    if not links and os.path.islink(path):
        raise ValueError(f"{path} is a symbolic link, not a regular file")
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
            raise ValueError(f"{path} is {kind}, not a regular file")
    except BaseException:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb") as file:
        yield file, status


def read_bytes(path: str | os.PathLike[str], most: int, links: bool = True) -> bytes:
    """A regular file of at most `most` bytes, else a ValueError."""
    with opened(path, links) as (file, status):
        content = file.read(min(status.st_size, most) + 1)
    if len(content) > most:
        raise ValueError(f"{path} has more than {most} bytes")
    return content


def read_json(path: str | os.PathLike[str], most: int, links: bool = True) -> Any:
    """A JSON file of at most `most` bytes. Whatever is wrong with its content is a ValueError."""
    return parse_json(read_bytes(path, most, links))


def parse_json(text: str | bytes) -> Any:
    """As json.loads, but text that is nested too deeply is a ValueError too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_private(path: Path, content: bytes) -> None:
    """Fills a file that only its owner may read and write."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(content)


# Trust


def distrust(path: Path, links: bool = False, private: bool = False) -> str | None:
    """Why others may have written the file or folder; None if they cannot, or if it does not exist.

    What belongs to root is trusted: root can write anywhere. `links`: the name may be a symbolic link, and what it
    leads to counts. `private`: it must be this user's own, and others may not even read it.
    """
    try:
        found = os.stat(path, follow_symlinks=links)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a symbolic link"
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in ((os.geteuid(),) if private else (os.geteuid(), 0)):
        return f"{path} belongs to {_user(found.st_uid)}"
    if mode & (_OTHERS if private else _OTHERS_WRITE):
        verb = "read or write" if private else "write"
        return f"group or others may {verb} {path}, which has mode {mode:04o} and belongs to {_user(found.st_uid)}"
    return None


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"


# Whole entries or none


@contextlib.contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A new folder inside `folder` to prepare an entry in. It is removed at the end, whatever happens; what is to stay
    has been moved away by then."""
    folder.mkdir(mode=0o700, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Removes what processes that were killed left in a folder of stagings."""
    oldest = time.time() - _STALE_SECONDS
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime < oldest:
                    shutil.rmtree(entry.path, ignore_errors=True)
