# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of one file in processes of their own.

What enters: a file, its settings, and which of its tests to run. What leaves: one record for each. A test that ends the
process is a `crash`, one that uses up its limits a `timeout`; a new process goes on with the next.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from .config import FileSettings, Limits, TestId

_WORKER = Path(__file__).with_name("worker.py")
_POLL_SECONDS = 0.5
_EXIT_SECONDS = 60  # for a process whose tests are done
_LOG_TAIL_BYTES = 4000

Record = dict[str, Any]


class NotRunnable(Exception):
    """The file cannot be imported here."""


class _Dead(Exception):
    """The process ended or was ended; the reason is the message, the kind is `outcome`."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


class Session:
    """The processes that the worker leads, seen through /proc."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._page_bytes = os.sysconf("SC_PAGESIZE")
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")

    def _stats(self) -> Iterator[tuple[str, list[str]]]:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if int(fields[3]) == self._leader:
                yield pid, fields

    def usage(self) -> tuple[float, int, bool]:
        """Processor seconds so far, resident bytes, and whether some thread uses or waits for the processor."""
        ticks = pages = 0
        busy = False
        for pid, fields in self._stats():
            ticks += sum(map(int, fields[11:15]))
            pages += int(fields[21])
            busy = busy or any(state in "RD" for state in _thread_states(pid))
        return ticks / self._ticks_per_second, pages * self._page_bytes, busy


def _thread_states(pid: str) -> Iterator[str]:
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            yield Path(f"/proc/{pid}/task/{task}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return


class _Watch:
    """Measures one stretch of work against the limits."""

    def __init__(self, session: Session, limits: Limits) -> None:
        self._session, self._limits = session, limits
        self.begin()

    def begin(self) -> None:
        self._cpu_at_start, self.resident_bytes, _ = self._session.usage()
        self._last_cpu = self._cpu_at_start
        self._wall_at_start = self._active_at = time.monotonic()

    def check(self) -> None:
        now, limits = time.monotonic(), self._limits
        cpu, self.resident_bytes, busy = self._session.usage()
        if busy or cpu != self._last_cpu:
            self._last_cpu, self._active_at = cpu, now
        if cpu - self._cpu_at_start > limits.cpu_seconds:
            raise _Dead("timeout", f"used {limits.cpu_seconds:g} s of processor time")
        if now - self._active_at > limits.idle_seconds:
            raise _Dead("timeout", f"waited {limits.idle_seconds:g} s without using the processor")
        if now - self._wall_at_start > limits.wall_seconds:
            raise _Dead("timeout", f"took {limits.wall_seconds:g} s")
        if self.resident_bytes > limits.memory_gib * 2**30:
            raise _Dead("crash", f"ended by the runner: uses more than {limits.memory_gib:g} GiB of memory")


class _Worker:
    """One process; `next_event` waits for its next word, within the limits."""

    def __init__(self, job: dict[str, Any], settings: FileSettings, folder: Path, log: IO[bytes]) -> None:
        job_file = folder / "job.json"
        job_file.write_text(json.dumps(job))
        self._log = log
        read, write = os.pipe()
        environment = {
            **os.environ,
            "PYTHONPYCACHEPREFIX": str(folder.parent / "pycache"),  # the checkout stays as it is
            "PYTHONUNBUFFERED": "1",
            **settings.environment,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(_WORKER), str(job_file), str(write)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            pass_fds=(write,),
            start_new_session=True,
        )
        os.close(write)
        self._read, self._buffer = read, b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(read, selectors.EVENT_READ)
        self.watch = _Watch(Session(self.process.pid), settings.limits)

    def next_event(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            if not self._selector.select(_POLL_SECONDS):
                self.watch.check()
                continue
            data = os.read(self._read, 1 << 16)
            if not data:
                raise _Dead("crash", _exit_reason(self.process.wait()))
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def tell(self, tests: list[TestId]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([[t.cls, t.name] for t in tests]).encode() + b"\n")
        self.process.stdin.close()

    def log_position(self) -> int:
        return self._log.seek(0, os.SEEK_END)

    def log_since(self, position: int) -> str:
        end = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(position, end - _LOG_TAIL_BYTES))
        return self._log.read().decode(errors="replace")

    def ask_where(self) -> None:
        """Has the traceback of every thread written to the log."""
        try:
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(1)
        except OSError:
            pass

    def close(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass
        self.process.wait()
        os.close(self._read)
        self._selector.close()

    def wait_for_exit(self) -> None:
        try:
            self.process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            pass


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"the process ended with exit code {code}"
    try:
        return f"the process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"the process was killed by signal {-code}"


class FileRun:
    """The tests of one file. `choose` gets all of them and returns those to run, in order."""

    def __init__(
        self,
        file: str,
        test_root: Path,
        device: str,
        settings: FileSettings,
        folder: Path,
        choose: Callable[[list[TestId]], list[TestId]],
    ) -> None:
        self._file, self._settings, self._choose = file, settings, choose
        self._folder = folder
        self._job = {
            "path": str(test_root / file),
            "test_root": str(test_root),
            "device": device,
            "set": settings.set,
            "recover": settings.recover,
            "tolerance": settings.tolerance,
        }
        self.tests: list[TestId] = []  # every test of the file, once it has been imported

    def records(self) -> Iterator[Record]:
        """Runs what is to be run; raises NotRunnable where the file cannot be imported."""
        left: list[TestId] | None = None
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / (self._file.replace("/", ".") + ".log")).open("a+b") as log:
            while left is None or left:
                with tempfile.TemporaryDirectory(dir=self._folder, prefix="work-") as work:
                    worker = _Worker(self._job, self._settings, Path(work), log)
                    try:
                        left = self._welcome(worker, left)
                        for record in self._serve(worker, left):
                            left = left[1:]
                            yield record
                    finally:
                        worker.close()

    def _welcome(self, worker: _Worker, left: list[TestId] | None) -> list[TestId]:
        try:
            hello = worker.next_event()
        except _Dead as end:
            raise NotRunnable(f"{end} while it was imported") from None
        if "not_runnable" in hello:
            raise NotRunnable(hello["not_runnable"])
        if left is None:
            self.tests = [TestId(self._file, cls, name) for cls, name in hello["tests"]]
            left = self._choose(self.tests)
        worker.tell(left[: self._settings.limits.tests_per_process])
        return left

    def _serve(self, worker: _Worker, left: list[TestId]) -> Iterator[Record]:
        """The records of the tests that this process runs, in the order of `left`."""
        for test in left[: self._settings.limits.tests_per_process]:
            position = worker.log_position()
            worker.watch.begin()
            started, fault = time.monotonic(), None
            try:
                while "end" not in (event := worker.next_event()):
                    fault = event.get("fault")
                yield {**_identity(test), **event["end"]}
            except _Dead as end:
                yield {**_identity(test), **(fault or _unfinished(worker, end, time.monotonic() - started, position))}
                return
            if worker.watch.resident_bytes > self._settings.limits.memory_gib * 2**29:
                return
        worker.wait_for_exit()


def _unfinished(worker: _Worker, end: _Dead, seconds: float, log_position: int) -> Record:
    """What is known of a test that took its process along."""
    if end.outcome == "timeout":
        worker.ask_where()
    error, text = f"{end.outcome}: {end}", worker.log_since(log_position)
    return {"seconds": round(seconds, 3), "outcome": end.outcome, "error": error, "traceback": text}


def _identity(test: TestId) -> Record:
    return {"file": test.file, "cls": test.cls, "name": test.name}
