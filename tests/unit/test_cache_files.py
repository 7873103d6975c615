# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_cache_files.py

Cache folders that others have touched: entries that were swapped, planted or made unreadable, folders of other users,
full disks. An op gives the right result every time, and what is wrong is said once.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bad_files import endless, fifo, nested

from torch_spyre import _C, files
from torch_spyre.errors import InvalidProgram
from torch_spyre.ops.reuse import lowered_calls
from torch_spyre.runtime import cache, driver

KERNEL = cache.CachedKernel("k", b"not a program", (("input", 0),), (), (), 0)
ENTRY = "ab" * 32


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(210.0).reshape(3, 70).to(torch.float16).to("spyre")


def forget() -> None:
    """As a new process: what was found or said before is not known."""
    _C.clear_eager_cache()
    lowered_calls._known.clear()
    cache._warn_untrusted.cache_clear()


def entries(root: Path) -> list[Path]:
    return sorted(root.glob("??/*"))


def eager_entries(root: Path) -> list[Path]:
    """Those of calls; there are others, of families of calls."""
    return sorted(p for p in root.glob("eager/??/*.json") if p.is_file() and '"graph"' in p.read_text()[:200])


def made_by(root: Path, op: Callable[[], Any]) -> tuple[set[Path], set[Path]]:
    """The new program entries and eager entries after a call."""
    before = set(entries(root)), set(eager_entries(root))
    op()
    return set(entries(root)) - before[0], set(eager_entries(root)) - before[1]


def swap(a: Path, b: Path) -> None:
    aside = a.with_name("aside")
    a.rename(aside)
    b.rename(a)
    aside.rename(b)


def test_swapped_entries_do_not_exchange_results(
    x: torch.Tensor, fresh_caches: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forget()
    ops: list[Callable[[], torch.Tensor]] = [lambda: torch.neg(x), lambda: torch.abs(x)]
    want = [op().cpu() for op in ops]
    shutil.rmtree(fresh_caches)
    fresh_caches.mkdir()
    forget()
    made = [made_by(fresh_caches, op) for op in ops]
    for kind in (0, 1):
        (first,), (second,) = (found[kind] for found in made)
        swap(first, second)
        forget()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            for op, right in zip(ops, want, strict=True):
                assert torch.equal(op().cpu(), right)
        assert caplog.text.count("it is the entry") == 2 and caplog.text.count("compiling again") == 2
        assert all(path.exists() for path in (first, second)), "made again"


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o700)


def huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # a hole: it takes no room


@pytest.mark.parametrize("spoil", [fifo, nested, endless, folder, huge])
def test_files_that_kill_or_hang_a_reader(
    spoil: Callable[[Path], None], x: torch.Tensor, fresh_caches: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forget()
    want = torch.neg(x).cpu()
    (entry,), (eager,) = entries(fresh_caches), eager_entries(fresh_caches)
    for path in (entry / "kernel.json", entry / "program.bin", eager):
        spoil(path)
        forget()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert torch.equal(torch.neg(x).cpu(), want)
        assert "damaged" in caplog.text or "symbolic link" in caplog.text
        forget()
        if spoil is endless:
            shutil.rmtree(fresh_caches)  # a link is not ours to remove: nothing is stored in its place
            fresh_caches.mkdir()
        assert torch.equal(torch.neg(x).cpu(), want)
        (entry,), (eager,) = entries(fresh_caches), eager_entries(fresh_caches)


# Whose folder it is


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the path another user's, or this process."""
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(files.os, "geteuid", lambda: 12345)


def open_to_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(path.stat().st_mode | 0o022)


@pytest.mark.parametrize("change", [give_away, open_to_all])
@pytest.mark.parametrize("place", ["", "??", "??/*", "??/*/kernel.json", "??/*/program.bin"])
def test_what_others_can_write_is_not_used(
    change: Callable[..., None],
    place: str,
    fresh_caches: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    root = fresh_caches / "cache"
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(root))
    cache.store(ENTRY, KERNEL)
    assert cache.load(ENTRY) == KERNEL
    (path,) = root.glob(place) if place else (root,)
    change(path, monkeypatch)
    forget()
    with caplog.at_level(logging.WARNING):
        assert cache.load(ENTRY) is None and cache.load(ENTRY) is None
    (warned,) = [r.message for r in caplog.records]
    assert str(path) in warned and "user" in warned and "SPYRE_CACHE_DIR" in warned and "go-w" in warned
    if place in ("", "??"):
        before = sorted(root.rglob("*"))
        cache.store(ENTRY, KERNEL)
        assert sorted(root.rglob("*")) == before, "nothing is written there either"


@pytest.mark.parametrize("change", [give_away, open_to_all])
def test_a_foreign_cache_costs_time_only(
    change: Callable[..., None],
    x: torch.Tensor,
    fresh_caches: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    change(fresh_caches, monkeypatch)
    forget()
    with caplog.at_level(logging.WARNING):
        assert torch.equal(torch.neg(x).cpu(), -x.cpu())
    assert len([r for r in caplog.records if "program cache not used" in r.message]) == 1
    assert list(fresh_caches.rglob("*.bin")) == list(fresh_caches.rglob("*.json")) == []


def test_folders_and_files_are_private_whatever_the_umask(fresh_caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fresh_caches / "a" / "b"
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(root))
    before = os.umask(0)
    try:
        cache.store(ENTRY, KERNEL)
        lowered_calls.store(ENTRY, {"graph": ""})
    finally:
        os.umask(before)
    for path in (root, *root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    forget()
    assert cache.load(ENTRY) == KERNEL and lowered_calls.load(ENTRY) is not None


# Stores that fail


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_store_leaves_nothing(
    error: BaseException, fresh_caches: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, content: bytes) -> None:
        path.write_bytes(content[:3])
        raise error

    monkeypatch.setattr(files, "write_private", full)
    stores: list[Callable[[], None]] = [
        lambda: cache.store(ENTRY, KERNEL),
        lambda: lowered_calls.store(ENTRY, {"graph": ""}),
    ]
    for store in stores:
        if isinstance(error, OSError):
            with caplog.at_level(logging.WARNING):
                store()
        else:
            with pytest.raises(KeyboardInterrupt):
                store()
    assert [p for p in fresh_caches.rglob("*") if p.is_file()] == []
    assert list((fresh_caches / "staging").iterdir()) == []
    assert ("No space left" in caplog.text) == isinstance(error, OSError)


def test_what_killed_processes_left_is_removed(fresh_caches: Path) -> None:
    old, young = fresh_caches / "staging" / "tmp_old", fresh_caches / "staging" / "tmp_young"
    for left in (old, young):
        left.mkdir(mode=0o700, parents=True)
        (left / "program.bin").write_bytes(b"half")
    (fresh_caches / "staging").chmod(0o700)
    os.utime(old, (time.time() - 7200,) * 2)
    cache.store(ENTRY, KERNEL)
    assert not old.exists() and young.exists(), "a young one may belong to a process at work"


# Programs that the card refuses


def test_a_refused_program_is_not_stored(
    x: torch.Tensor, fresh_caches: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: Any) -> Any:
        raise InvalidProgram("the proof needs more than 50 million steps")

    forget()
    with monkeypatch.context() as patch:
        patch.setattr(driver, "load", refuse)
        with pytest.raises(InvalidProgram, match="50 million steps"):
            torch.neg(x)
    assert entries(fresh_caches) == eager_entries(fresh_caches) == []
    with caplog.at_level(logging.WARNING):
        assert torch.equal(torch.neg(x).cpu(), -x.cpu())
    assert "damaged" not in caplog.text


def test_nor_one_for_a_bucket_of_sizes(fresh_caches: Path) -> None:
    entry = cache.key("graph", [])
    with pytest.raises(InvalidProgram):
        driver.accept(entry, KERNEL)
    assert driver.recall(entry) is None and entries(fresh_caches) == []
    cache.store(entry, KERNEL)
    assert driver.recall(entry) is None and entries(fresh_caches) == [], "refused later: removed"
