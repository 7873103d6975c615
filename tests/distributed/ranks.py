# SPDX-License-Identifier: Apache-2.0
"""Processes that play ranks: started once, used by many tests.

`Ranks.run(n, f, ...)` makes the first n processes a world, calls the module-level function f in each of them and gives
what it returned, rank by rank. A world stays as long as the next call wants the same one and nothing went wrong in it.
`main` is such a process.
"""

from __future__ import annotations

import datetime
import faulthandler
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

MOST = 8  # ranks of one host
PATIENCE = 900  # seconds after which a rank hangs for certain, on however busy a machine
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); import ranks; ranks.main()"
BACKEND = "cpu:gloo,spyre:spyreccl"


class Hangs(Exception):
    """A rank does not answer."""


class RankFailed(AssertionError):
    """A rank raised where none should; the message holds its traceback."""


@dataclass
class Outcome:
    """What a call came to on one rank. `error` is None where it returned; a killed rank has no outcome."""

    value: Any = None
    error: BaseException | None = None
    trace: str = ""


@dataclass(frozen=True)
class World:
    """A process group of the first `size` processes. `prefix` keeps its keys in the store apart from others'."""

    size: int
    links: str = "auto"
    timeout: float = 600.0
    prefix: str = field(default="", compare=False)


def send(connection: Connection, thing: Any) -> None:
    """As bytes: torch teaches Connection.send to share memory instead, which needs a secret that ranks do not have."""
    data = io.BytesIO()
    torch.save(thing, data)
    connection.send_bytes(data.getvalue())


def receive(connection: Connection) -> Any:
    return torch.load(io.BytesIO(connection.recv_bytes()), weights_only=False)


class RankProcess:
    """One rank, as the test sees it."""

    def __init__(self, rank: int, port: int, environment: dict[str, str]) -> None:
        ours, theirs = Pipe()
        self.log = tempfile.TemporaryFile(mode="w+")
        variables = {
            "LOCAL_RANK": rank,
            "RANK": rank,
            "LOCAL_WORLD_SIZE": MOST,
            "WORLD_SIZE": MOST,
            "OMP_NUM_THREADS": 1,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(Path(__file__).parent), str(theirs.fileno()), str(port)],
            env={**os.environ, **{k: str(v) for k, v in variables.items()}, "OMP_NUM_THREADS": "1", **environment},
            pass_fds=[theirs.fileno()],
            stderr=self.log,
        )
        theirs.close()
        self.connection: Connection = ours
        send(self.connection, sys.path)

    def answer(self) -> Outcome | None:
        """None from a rank that was killed."""
        try:
            if self.connection.poll(PATIENCE):
                return receive(self.connection)
        except (EOFError, ConnectionResetError):
            self.process.wait()
            return None
        self.process.send_signal(signal.SIGUSR1)  # prints where its threads are
        time.sleep(2)
        return Outcome(error=Hangs(f"process {self.process.pid} does not answer"), trace=self.told())

    def told(self) -> str:
        self.log.seek(0)
        return self.log.read()[-8000:]

    def end(self) -> None:
        self.connection.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class Ranks:
    """Up to eight processes of this host."""

    def __init__(self, **environment: str) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.environment = environment
        self.processes: list[RankProcess] = []
        self.world: World | None = None
        self.worlds = 0

    def run(self, n: int, f: Callable[..., Any], *args: Any, **world: Any) -> list[Any]:
        """The values of f(*args) on each of n ranks. Raises RankFailed if one raised."""
        outcomes = self.outcomes(n, f, *args, **world)
        failed = [(r, o) for r, o in enumerate(outcomes) if o is None or o.error]
        if failed:
            texts = (f"rank {r}: {o.trace if o else 'killed'}\n{self.processes[r].told()}" for r, o in failed)
            raise RankFailed("\n".join(texts))
        return [o.value for o in outcomes if o]

    def outcomes(self, n: int, f: Callable[..., Any], *args: Any, **world: Any) -> list[Outcome | None]:
        """The same with errors as values; None for ranks that were killed."""
        self._enter(World(n, **world))
        outcomes = self._call(n, f, args)
        if any(o is None or o.error for o in outcomes):
            self._leave()
        return outcomes

    def alone(self, n: int, f: Callable[..., Any], *args: Any) -> list[Outcome | None]:
        """Calls f in n processes that are no world."""
        self._leave()
        self._start(n)
        return self._call(n, f, args)

    def dissolve(self) -> None:
        """The next call finds a new world, in the same processes."""
        self._leave()

    def replace(self) -> None:
        """The next call finds new processes."""
        self._leave()
        for process in self.processes:
            process.end()
        self.processes.clear()

    def end(self) -> None:
        self.replace()

    def _call(self, n: int, f: Callable[..., Any], args: tuple[Any, ...]) -> list[Outcome | None]:
        for process in self.processes[:n]:
            send(process.connection, (f, args))
        outcomes = [process.answer() for process in self.processes[:n]]
        for rank, outcome in enumerate(outcomes):
            if outcome is None or isinstance(outcome.error, Hangs):
                self.processes[rank].process.kill()
        return outcomes

    def _start(self, n: int) -> None:
        for rank, process in enumerate(self.processes):
            if process.process.poll() is not None:
                process.end()
                self.processes[rank] = RankProcess(rank, self.store.port, self.environment)
        for rank in range(len(self.processes), n):
            self.processes.append(RankProcess(rank, self.store.port, self.environment))

    def _enter(self, world: World) -> None:
        if self.world == world:
            return
        self._leave()
        self._start(world.size)
        self.worlds += 1
        named = World(world.size, world.links, world.timeout, f"world{self.worlds}")
        outcomes = self._call(world.size, enter, (named,))
        for rank, outcome in enumerate(outcomes):
            if outcome is None or outcome.error:
                raise RankFailed(f"rank {rank}: {outcome.trace if outcome else self.processes[rank].told()}")
        self.world = world

    def _leave(self) -> None:
        """Also after a failure: then some ranks are gone, and all of them must still be able to destroy the group."""
        if self.world is None:
            return
        n, self.world = self.world.size, None
        living = [p for p in self.processes[:n] if p.process.poll() is None]
        for process in living:
            send(process.connection, (leave, ()))
        for process in living:
            outcome = process.answer()
            if outcome is None or outcome.error:
                process.process.kill()
                process.process.wait()


# What follows runs in the ranks.

_port = 0
_world = ""  # the prefix of the present one


def enter(world: World) -> None:
    global _world
    _world = world.prefix
    leave()  # where the last one did not come about on all ranks
    os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"] = str(world.size)
    os.environ["SPYRE_LINKS"] = world.links
    store = dist.PrefixStore(world.prefix, dist.TCPStore("127.0.0.1", _port, is_master=False))
    timeout = datetime.timedelta(seconds=world.timeout)
    rank = int(os.environ["RANK"])
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=world.size, timeout=timeout)


def second_store() -> Any:
    """For a world that a rank makes itself, after it has left the present one."""
    return dist.PrefixStore(f"{_world}/second", dist.TCPStore("127.0.0.1", _port, is_master=False))


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def serve(connection: Connection) -> None:
    """Calls what it is told to until the test goes away."""
    sys.path[:] = receive(connection)
    while True:
        try:
            f, args = receive(connection)
        except EOFError:
            return
        try:
            outcome = Outcome(f(*args))
        except Exception as error:
            outcome = Outcome(error=_portable(error), trace=traceback.format_exc())
        send(connection, outcome)


def _portable(error: Exception) -> Exception:
    """Without what cannot travel: the cause and the traceback."""
    try:
        return type(error)(*map(str, error.args))
    except TypeError:
        return RuntimeError(repr(error))


def main() -> None:
    global _port
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    connection, _port = Connection(int(sys.argv[2])), int(sys.argv[3])
    serve(connection)
