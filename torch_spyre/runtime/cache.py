# SPDX-License-Identifier: Apache-2.0
"""Program cache on disk, keyed by content.

An entry is a folder ``<root>/<key[:2]>/<key>``, a SpyreCode directory that `prepare_kernel` takes too: `program.bin`,
`kernel.json` (how to launch it, and the checksum of both) and `spyrecode.json`. Entries are written to a temporary
folder and renamed, so that a reader sees all or nothing. An entry that does not check out is reported, removed and
compiled again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch_spyre import knobs
from torch_spyre.runtime import spyrecode

log = logging.getLogger("torch_spyre.runtime")


@dataclass(frozen=True)
class OutputSpec:
    """A result that the launcher allocates."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]
    format: str


@dataclass(frozen=True)
class CachedKernel:
    """All that launching needs: no compiler object, no layout object.

    `inputs` are the layouts the program was made for: (device_size, stride_map, format, offset), () for a scalar. If
    it is `displaced`, launches move it along its inputs, and an offset is what `_C.view_start` leaves of theirs.
    """

    name: str
    program: bytes
    bindings: tuple[tuple[str, int], ...]
    scalars: tuple[tuple[int, str], ...]
    outputs: tuple[OutputSpec, ...]
    pool_bytes: int
    inputs: tuple[tuple[Any, ...], ...] = ()
    displaced: bool = False

    @property
    def n_inputs(self) -> int:
        used = [i for kind, i in self.bindings if kind == "input"] + [i for i, _ in self.scalars]
        return len(self.inputs) or max(used, default=-1) + 1


class Key(str):
    """Name of an entry, with the inputs it stands for: what is stored under it says for which layouts it was made."""

    inputs: tuple[tuple[Any, ...], ...] = ()


@functools.cache
def compiler_fingerprint() -> str:
    """Hash of everything that decides what a program looks like: compiler sources and instruction tables."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    folders = ("_inductor", "ktir", "backend", "ops", "perf", "csrc/card/include")
    files = [f for folder in folders for f in (root / folder).rglob("*") if f.suffix in (".py", ".def", ".toml")]
    for file in sorted([*files, root / "constants.py", root / "formats.py", Path(__file__)]):
        digest.update(file.relative_to(root).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def key(graph_json: str, inputs: Sequence[tuple[Any, ...]]) -> Key:
    """Key of a planned kernel: compiler, planning knobs, device, graph, and each input's layout and offset."""
    digest = hashlib.sha256()
    for part in (compiler_fingerprint(), planning(), graph_json, repr(list(inputs))):
        digest.update(part.encode())
        digest.update(b"\0")
    name = Key(digest.hexdigest())
    name.inputs = tuple(inputs)
    return name


def planning() -> str:
    """What plans depend on beside compiler and graph: knobs and device."""
    return repr([(k.name, knobs.get(k.name)) for k in knobs.TABLE if k.group == "compiler"]) + _device()


def _device() -> str:
    """The description that plans are made for, where it is not the card's own, which the fingerprint holds."""
    device = sys.modules.get("torch_spyre.perf.device")
    return "" if device is None or device.assumed() is None else repr(device.assumed())


def folder_of(entry: str) -> Path:
    """Where an entry lies, if it was stored."""
    return Path(knobs.get("cache_dir")).expanduser() / entry[:2] / entry


def load(entry: str) -> CachedKernel | None:
    folder = folder_of(entry)
    try:
        found = read(folder)
        log.debug("found %s in %s", found.name, folder)
        return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        discard(entry, error)
        return None


def read(folder: Path) -> CachedKernel:
    """The kernel of a directory; ValueError, KeyError, TypeError or AttributeError if it is damaged."""
    meta = json.loads((folder / "kernel.json").read_text())
    program = (folder / "program.bin").read_bytes()
    if meta.pop("sha256") != _checksum(meta, program):
        raise ValueError("its checksum does not match")
    return CachedKernel(
        meta["name"],
        program,
        tuple((kind, i) for kind, i in meta["bindings"]),
        tuple((i, kind) for i, kind in meta["scalars"]),
        tuple(_output(o) for o in meta["outputs"]),
        meta["pool_bytes"],
        tuple(tuple(tuple(x) if isinstance(x, list) else x for x in i) for i in meta["inputs"]),
        bool(meta["displaced"]),
    )


def write(folder: Path, kernel: CachedKernel) -> None:
    """Fills an existing folder."""
    meta = asdict(kernel)
    program = meta.pop("program")
    meta["sha256"] = _checksum(meta, program)
    (folder / "program.bin").write_bytes(program)
    (folder / "kernel.json").write_text(json.dumps(meta))
    (folder / spyrecode.FILE).write_text(json.dumps(spyrecode.program_plan(len(program))))


def discard(entry: str, reason: object) -> None:
    """Removes an entry that cannot be used, and says so."""
    folder = folder_of(entry)
    log.warning("program cache entry %s is damaged (%s): compiling again", folder, reason)
    shutil.rmtree(folder, ignore_errors=True)


def _checksum(meta: dict[str, Any], program: bytes) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode() + b"\0" + program).hexdigest()


def _output(meta: dict[str, Any]) -> OutputSpec:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in meta.items()}
    return OutputSpec(**fields)


def store(entry: str, kernel: CachedKernel) -> None:
    """Best effort: a cache that cannot be written costs time, not correctness."""
    folder = folder_of(entry)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=folder.parent))
        write(staging, replace(kernel, inputs=entry.inputs) if isinstance(entry, Key) else kernel)
        try:
            os.replace(staging, folder)
        except OSError:  # another process wrote the same entry first
            shutil.rmtree(staging, ignore_errors=True)
        log.info("stored %s: %d bytes of program in %s", kernel.name, len(kernel.program), folder)
    except OSError as error:
        _warn_unwritable(str(knobs.get("cache_dir")), error.strerror or str(error))


@functools.cache
def _warn_unwritable(root: str, reason: str) -> None:
    """Once per reason: every kernel would say the same."""
    log.warning("program cache %s cannot be written: %s; set SPYRE_CACHE_DIR to a writable directory", root, reason)
