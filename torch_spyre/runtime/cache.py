# SPDX-License-Identifier: Apache-2.0
"""Program cache on disk, keyed by content.

An entry is a folder ``<root>/<key[:2]>/<key>``, a SpyreCode directory that `prepare_kernel` takes too: `program.bin`,
`kernel.json` (its key, how to launch it, and the checksum of both) and `spyrecode.json`. Entries are written to a
temporary folder in ``<root>/staging`` and renamed, so that a reader sees all or nothing. An entry that does not check
out is reported, removed and compiled again. What another user may have written is not read at all.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch_spyre import files, knobs
from torch_spyre.perf import device
from torch_spyre.runtime import spyrecode

log = logging.getLogger("torch_spyre.runtime")

_META_BYTES = 64 << 20  # at most, of kernel.json
_PROGRAM_BYTES = 1 << 30  # at most, of program.bin
_STAGING = "staging"


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
class FunctionArguments:
    """What a KTIR function's program takes: (access, bytes) of each launch buffer, the position of the function's
    argument behind each buffer and behind each scalar, and the buffer that literal addresses count from."""

    buffers: tuple[tuple[int, int], ...]
    buffer_positions: tuple[int, ...]
    scalar_positions: tuple[int, ...]
    memory: int | None


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
    function: FunctionArguments | None = None

    @property
    def n_inputs(self) -> int:
        used = [i for kind, i in self.bindings if kind == "input"] + [i for i, _ in self.scalars]
        return len(self.inputs) or max(used, default=-1) + 1


class Key(str):
    """Name of an entry, with the inputs that it was made for, which are stored in the entry."""

    inputs: tuple[tuple[Any, ...], ...] = ()


@functools.cache
def compiler_fingerprint() -> str:
    """Hash of everything that decides what a program looks like: compiler sources and instruction tables."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    folders = (
        "optable",
        "ir",
        "backend",
        "perf",
        "decompositions",
        "patches",
        "_inductor",
        "ops",
        "triton",
        "csrc/card/include",
    )
    files = [f for folder in folders for f in (root / folder).rglob("*") if f.suffix in (".py", ".def", ".toml")]
    files += [root / f"{name}.py" for name in ("buckets", "constants", "dl16", "formats")]
    for file in sorted([*files, Path(__file__)]):
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
    return repr(list(knobs.planning().items())) + _device()


def _device() -> str:
    """The description that plans are made for, where it is not the card's own, which the fingerprint holds."""
    assumed = device.assumed()
    return "" if assumed is None else repr(assumed)


def root() -> Path:
    return Path(knobs.get("cache_dir")).expanduser()


def folder_of(entry: str) -> Path:
    """The folder of an entry, whether or not it exists."""
    return root() / entry[:2] / entry


def trusted(path: Path) -> bool:
    """Whether nobody else can have written the file at a path below the root, nor any folder on the way to it."""
    reason = files.distrust(root(), links=True)
    for place in _way(path):
        reason = reason or files.distrust(place)
    if reason is not None:
        _warn_untrusted(reason)
    return reason is None


def _way(path: Path) -> list[Path]:
    """A path below the root, after the folders on the way to it."""
    top = root()
    parts = path.relative_to(top).parts
    return [top.joinpath(*parts[: n + 1]) for n in range(len(parts))]


def load(entry: str) -> CachedKernel | None:
    folder = folder_of(entry)
    try:
        if not all(trusted(folder / name) for name in ("kernel.json", "program.bin")):
            return None
        found = read(folder, entry)
        log.debug("found %s in %s", found.name, folder)
        return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    except files.DAMAGE as error:
        discard(entry, error)
        return None


def read(folder: Path, entry: str | None = None) -> CachedKernel:
    """The kernel of a directory, which may be anywhere, or of an entry of the cache; one of `files.DAMAGE` if it is
    damaged, or if it is another entry."""
    meta = files.read_json(folder / "kernel.json", _META_BYTES, links=entry is None)
    program = files.read_bytes(folder / "program.bin", _PROGRAM_BYTES, links=entry is None)
    if meta.pop("sha256") != _checksum(meta, program):
        raise ValueError("its checksum does not match")
    if entry is not None and meta["key"] != entry:
        raise ValueError(f"it is the entry {meta['key']!r:.80}")
    return CachedKernel(
        meta["name"],
        program,
        tuple((kind, i) for kind, i in meta["bindings"]),
        tuple((i, kind) for i, kind in meta["scalars"]),
        tuple(_output(o) for o in meta["outputs"]),
        meta["pool_bytes"],
        tuple(tuple(tuple(x) if isinstance(x, list) else x for x in i) for i in meta["inputs"]),
        bool(meta["displaced"]),
        _function(meta["function"]),
    )


def write(folder: Path, kernel: CachedKernel, entry: str = "") -> None:
    """Fills an existing folder."""
    meta = asdict(kernel) | {"key": str(entry)}
    program = meta.pop("program")
    meta["sha256"] = _checksum(meta, program)
    files.write_private(folder / "program.bin", program)
    files.write_private(folder / "kernel.json", json.dumps(meta).encode())
    files.write_private(folder / spyrecode.FILE, json.dumps(spyrecode.program_plan(len(program))).encode())


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


def _function(meta: dict[str, Any] | None) -> FunctionArguments | None:
    if meta is None:
        return None
    buffers = tuple((access, count) for access, count in meta["buffers"])
    positions = tuple(meta["buffer_positions"]), tuple(meta["scalar_positions"])
    return FunctionArguments(buffers, *positions, meta["memory"])


def store(entry: str, kernel: CachedKernel) -> None:
    """Best effort: a cache that cannot be written costs time, not correctness."""
    folder = folder_of(entry)
    try:
        with staged(folder.parent) as staging:
            if staging is None:
                return
            write(staging, replace(kernel, inputs=entry.inputs) if isinstance(entry, Key) else kernel, entry)
            with contextlib.suppress(OSError):  # another process wrote the same entry first
                os.replace(staging, folder)
        log.info("stored %s: %d bytes of program in %s", kernel.name, len(kernel.program), folder)
    except OSError as error:
        _warn_unwritable(str(knobs.get("cache_dir")), error.strerror or str(error))


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Path | None]:
    """A temporary folder for what is then moved into a folder of the cache, which is made; None if that is not ours."""
    top = root()
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    for place in _way(folder):
        place.mkdir(mode=0o700, exist_ok=True)
    if not trusted(folder) or not trusted(top / _STAGING):
        yield None
        return
    _sweep(top / _STAGING)
    with files.staging(top / _STAGING) as made:
        yield made


@functools.cache
def _sweep(folder: Path) -> None:
    """Once per process."""
    files.sweep(folder)


@functools.cache
def _warn_unwritable(root: str, reason: str) -> None:
    """Once per reason: every kernel would say the same."""
    log.warning("program cache %s cannot be written: %s; set SPYRE_CACHE_DIR to a writable directory", root, reason)


@functools.cache
def _warn_untrusted(reason: str) -> None:
    log.warning(
        "program cache not used: %s, and a program in it may be anybody's; compiling without it. Set SPYRE_CACHE_DIR "
        "to a directory of your own, or take the cache over: chown -R it to yourself and chmod -R go-w",
        reason,
    )
