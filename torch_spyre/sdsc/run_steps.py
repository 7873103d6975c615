# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel that was planned for SuperDSC: its bundles through the reader, the steps between them as KTIR.

Enters: the directory that `write_steps` made, and the bytes of each launch argument of the kernel. Leaves: the bytes
of all arguments after the last step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torch_spyre import files
from torch_spyre.constants import STICK_BYTES
from torch_spyre.errors import InvalidArgument, InvalidProgram
from torch_spyre.ir.superdsc.bundle import Bundle, load_directory
from torch_spyre.ir.superdsc.steps import FILE
from torch_spyre.runtime import driver

_MAX_FILE_BYTES = 1 << 30


__all__ = ["FILE", "Listed", "load", "run"]


@dataclass(frozen=True)
class Listed:
    """What `steps.json` says. Arguments are in the order of the kernel's launch, scalars and constants after them."""

    folder: Path
    cores: int
    arguments: tuple[dict[str, Any], ...]
    steps: tuple[dict[str, Any], ...]

    def bundles(self) -> list[Bundle]:
        return [load_directory(self.folder / s["bundle"]) for s in self.steps if "bundle" in s]


def load(folder: str | Path) -> Listed:
    """The steps of a directory; a plain bundle is one step over its own arguments."""
    path = Path(folder)
    if not (path / FILE).is_file():
        bundle = load_directory(path)
        arguments = tuple({"name": a.name, "bytes": a.bytes} for a in bundle.kernel().args)
        return Listed(path, bundle.kernel().cores, arguments, ({"bundle": ".", "arguments": [*range(len(arguments))]},))
    try:
        data = files.parse_json(files.read_bytes(path / FILE, _MAX_FILE_BYTES).decode())
        return Listed(path, data["cores"], tuple(data["arguments"]), tuple(data["steps"]))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidProgram(f"{path / FILE} does not list steps: {error!r}") from None


def run(folder: str | Path, arguments: Sequence[bytes]) -> list[bytes]:
    """The bytes of every argument after the run; constants are read from their files."""
    from torch_spyre import _card  # late: start-up

    listed = load(folder)
    given = iter(arguments)
    card = _card.Card()
    sizes: list[int] = []
    addresses: list[int] = []
    for i, argument in enumerate(listed.arguments):
        if "file" in argument:
            content = files.read_bytes(listed.folder / argument["file"], _MAX_FILE_BYTES)
        else:
            content = next(given, b"")
            if not content:
                raise InvalidArgument(f"{folder}: argument {i} ({argument['name']}) is missing")
        sizes.append(max(len(content), argument["bytes"], STICK_BYTES))
        addresses.append(card.allocate(sizes[-1]))
        card.write(addresses[-1], np.frombuffer(content, np.uint8).tobytes())
    for step in listed.steps:
        program = _card.Program.load(_binary(listed, step))
        card.launch(program, [(addresses[a], sizes[a]) for a in step["arguments"]])
        card.synchronize()
    return [bytes(card.read(at, size)) for at, size in zip(addresses, sizes, strict=True)]


def _binary(listed: Listed, step: dict[str, Any]) -> bytes:
    if "bundle" in step:
        bundle = load_directory(listed.folder / step["bundle"])
        bundle.verify()
        return driver.build(bundle.kernel(listed.cores)).program.binary
    from torch_spyre.ir.ktir.text import parse  # late: start-up

    text = files.read_bytes(listed.folder / step["host"], _MAX_FILE_BYTES).decode()
    return driver.build_ktir(parse(text)).binary
