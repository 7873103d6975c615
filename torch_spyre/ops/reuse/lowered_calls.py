# SPDX-License-Identifier: Apache-2.0
"""Lowered eager ops on disk, keyed by the call: a second process neither traces nor lowers an op it has seen before.

Enters: an op call. Leaves: its layout-free graph and how the call's tensors bind to it, or the size to which the call
resizes one of its tensors. The program itself is an entry of the program cache, as for any other graph.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torch_spyre import _C, files, knobs
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.decompositions.user_rules import RULES
from torch_spyre.runtime import cache

log = logging.getLogger("torch_spyre.runtime")

Record = dict[str, Any]
_known: dict[Path, Record] = {}  # by file: with another cache directory nothing is known
_BYTES = 64 << 20  # at most, of one entry
_MOST = 16384  # a growing size must not grow the table for ever


class _NoKey(Exception):
    """A value that cannot be part of a key."""


def _fingerprint() -> str:
    return _fingerprint_with(tuple(RULES), str(knobs.get("errata")))


@functools.cache
def _fingerprint_with(rules: tuple[str, ...], errata: str) -> str:
    """Hash of what decides how an op is lowered: the compiler with its decompositions, PyTorch, rules of users, and the
    deviations of the real card that are reproduced."""
    digest = hashlib.sha256(cache.compiler_fingerprint().encode())
    digest.update(torch.__version__.encode())
    digest.update(repr([*rules, errata]).encode())
    return digest.hexdigest()


def key(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
    """Name of the call's entry; None for a call that has none. A 0-d host tensor is a launch scalar: only its kind. An
    offset does not change how an op is lowered."""
    try:
        described = (str(op), _describe(list(args)), [(name, _describe(kwargs[name])) for name in sorted(kwargs)])
    except _NoKey:
        return None
    return hashlib.sha256(repr((_fingerprint(), described)).encode()).hexdigest()


def family(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
    """Name of the entry of all calls that differ in sizes, strides and layouts only, under the present knobs."""
    try:
        named = [(name, _describe(kwargs[name], sizes=False)) for name in sorted(kwargs)]
        described = (str(op), _describe(list(args), sizes=False), named)
    except _NoKey:
        return None
    return hashlib.sha256(repr((_fingerprint(), cache.planning(), described)).encode()).hexdigest()


def _describe(x: Any, sizes: bool = True) -> Any:
    if isinstance(x, (list, tuple)):
        return [_describe(item, sizes) for item in x]
    if x is None or isinstance(x, (bool, int, float, str, torch.dtype, torch.layout, torch.memory_format)):
        return (type(x).__name__, repr(x))
    if isinstance(x, torch.device):
        return ("device", x.type)
    if isinstance(x, torch.Generator):
        return "generator"
    if not isinstance(x, torch.Tensor):
        raise _NoKey
    plain = (x.device.type, str(x.dtype), tuple(x.shape), tuple(x.stride()), x.requires_grad)
    if x.device.type != DEVICE_NAME:
        if x.dim() or x.device.type != "cpu":
            raise _NoKey
        return plain
    if not sizes:
        return (x.device.type, str(x.dtype), x.dim(), x.requires_grad)
    layout = _C.get_spyre_tensor_layout(x)
    return (*plain, tuple(layout.device_size), tuple(layout.stride_map), layout.device_dtype.name)


def _file(entry: str) -> Path:
    return cache.root() / "eager" / entry[:2] / f"{entry}.json"


def load(entry: str) -> Record | None:
    file = _file(entry)
    found = _known.get(file)
    if found is None:
        try:
            if not cache.trusted(file):
                return None
            found = files.read_json(file, _BYTES, links=False)
            if found["sha256"] != _checksum(found):
                raise ValueError("its checksum does not match")
            if found["key"] != entry:
                raise ValueError(f"it is the entry {found['key']!r:.80}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except files.DAMAGE as error:
            log.warning("eager cache entry %s is damaged (%s): compiling again", file, error)
            _remove(file)
            return None
        _remember(file, found)
    return found


def _remove(file: Path) -> None:
    """Whatever it is: another file, a folder, a FIFO."""
    try:
        file.unlink(missing_ok=True)
    except OSError:
        shutil.rmtree(file, ignore_errors=True)


def store(entry: str, record: Record) -> None:
    """Best effort, whole files only."""
    record["key"] = entry
    record["sha256"] = _checksum(record)
    file = _file(entry)
    _remember(file, record)
    try:
        with cache.staged(file.parent) as staging:
            if staging is not None:
                files.write_private(staging / file.name, json.dumps(record).encode())
                os.replace(staging / file.name, file)
    except OSError as error:
        log.info("eager cache entry %s cannot be written: %s", file, error)


def _remember(file: Path, record: Record) -> None:
    if len(_known) >= _MOST:
        _known.clear()
    _known[file] = record


def _checksum(record: Record) -> str:
    body = {name: value for name, value in record.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def knobs_word() -> int:
    """Stands for the knobs of this thread: the dispatcher keeps plans apart that were made under others."""
    words = cache.planning()
    return 0 if words == _unchanged() else int(hashlib.sha256(words.encode()).hexdigest()[:15], 16)


def follow_knobs() -> None:
    """Tells the dispatcher the knobs of this thread, and to ask again when they change."""
    _watch()
    _C._set_eager_knobs(knobs_word())


@functools.cache
def _watch() -> None:
    _C._set_eager_knobs_reader(knobs_word)
    knobs.on_change(lambda: _C._set_eager_knobs(-1))


@functools.cache
def _unchanged() -> str:
    """What plans depend on if nobody changes a knob in this process."""
    from torch_spyre._inductor import config  # late: start-up

    values: Any = config
    return repr([(k.name, values._config[k.name].default) for k in knobs.TABLE if k.plans])
