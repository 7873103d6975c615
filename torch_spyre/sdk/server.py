# SPDX-License-Identifier: Apache-2.0
"""``python -m torch_spyre.sdk.server <socket> <fd>``: compiles bundles for `dxp_standalone`, which starts it.

A request is two lines, the bundle's folder and the cache entry to make; the reply is a line ``ok`` or ``error`` and a
text. Each request is compiled in a process forked from this one, which has imported the compiler. Ends when nobody has
asked for SPYRE_SDK_IDLE_S seconds. Imports no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

# Those that are not used here are what a compilation imports late: a request is to find them imported.
import torch_spyre.backend.compile
import torch_spyre.ir.ktir.emit.kernel_function
import torch_spyre.ir.superdsc.bundle_rules
import torch_spyre.perf.pricing  # noqa: F401
from torch_spyre import files, knobs
from torch_spyre.errors import SpyreError
from torch_spyre.ir.superdsc.bundle import load_directory
from torch_spyre.runtime.spyrecode import FILE
from torch_spyre.sdk import job

_REQUEST_BYTES = 1 << 16
_ENTRY_BYTES = 1 << 30  # at most, of a file


def main(argv: Sequence[str]) -> int:
    path, ready = Path(argv[0]), int(argv[1])
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    name = f"/proc/self/fd/{folder}/{path.name}"  # short enough for an address
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)  # of a server that was killed
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(name)
        listener.listen(128)
        mine = os.stat(name).st_ino
        os.write(ready, b"1")
        os.close(ready)
        _serve(listener, float(knobs.get("sdk_idle_s")))
        with contextlib.suppress(FileNotFoundError):
            if os.stat(name).st_ino == mine:
                os.unlink(name)
    return 0


def _serve(listener: socket.socket, idle_s: float) -> None:
    """Until nothing has been asked or compiled for `idle_s`."""
    children: set[int] = set()
    listener.settimeout(idle_s)
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            if not _running(children):
                return
            continue
        while len(_running(children)) >= (os.cpu_count() or 1):
            children.discard(os.waitpid(-1, 0)[0])
        with connection:
            connection.settimeout(None)
            child = os.fork()
            if child == 0:
                listener.close()
                _answer(connection)
        children.add(child)


def _running(children: set[int]) -> set[int]:
    while children:
        ended, _ = os.waitpid(-1, os.WNOHANG)
        if not ended:
            break
        children.discard(ended)
    return children


def _answer(connection: socket.socket) -> None:
    """In a process of its own, which ends here."""
    status = 1
    try:
        with connection:
            connection.sendall(_reply(_request(connection)).encode())
        status = 0
    except BaseException:  # a process forked from the server must never go on as the server
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _request(connection: socket.socket) -> list[str]:
    data = b""
    while data.count(b"\n") < 2 and len(data) < _REQUEST_BYTES:
        part = connection.recv(_REQUEST_BYTES)
        if not part:
            break
        data += part
    return data.decode(errors="surrogateescape").split("\n")


def _reply(request: list[str]) -> str:
    if len(request) < 3:
        return "error\nthe request is incomplete"
    bundle, entry = Path(request[0]), Path(request[1])
    try:
        store(entry, job.compile_bundle(load_directory(bundle)))
    except SpyreError as error:
        return f"error\n{type(error).__name__}: {error}"
    except OSError as error:
        return f"error\n{error}"
    except Exception:  # a defect of the compiler: the report is what its user can send us
        return f"error\nthe compiler failed:\n{traceback.format_exc()}"
    return "ok\n"


def store(entry: Path, made: dict[str, bytes]) -> None:
    """Makes an entry of the cache, all or nothing; one that is there and damaged is replaced."""
    checksum = _checksum(made)
    if _stored(entry) == checksum:
        return  # another request was faster, and its client may be reading it
    entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with files.staging(entry.parent) as staging:
        for name, content in {**made, "checksum": checksum.encode()}.items():
            files.write_private(staging / name, content)
        for _ in range(3):
            with contextlib.suppress(OSError):
                os.rename(staging, entry)
                return
            _remove(entry)
        raise OSError(f"cannot write the cache entry {entry}")


def _checksum(made: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in (FILE, job.IMAGE):
        digest.update(f"{len(made[name])}:".encode() + made[name])
    return digest.hexdigest()


def _stored(entry: Path) -> str | None:
    """The checksum of what an entry holds; None if there is none, or if it does not say the same of itself."""
    try:
        found = _checksum({name: files.read_bytes(entry / name, _ENTRY_BYTES) for name in (FILE, job.IMAGE)})
        return found if files.read_bytes(entry / "checksum", 64) == found.encode() else None
    except files.DAMAGE:
        return None


def _remove(entry: Path) -> None:
    with contextlib.suppress(OSError):
        for file in entry.iterdir():
            file.unlink()
        entry.rmdir()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the program that compiles
    sys.exit(main(sys.argv[1:]))
