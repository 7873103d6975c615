# SPDX-License-Identifier: Apache-2.0
"""Errors with names. Each message says what was attempted, the offending value, and what to do.

The first line stands alone; lines that follow say where it came from and where to find a reproducer.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator


class SpyreError(RuntimeError):
    """Base of every error this project raises itself."""


class UnsupportedOp(SpyreError, NotImplementedError):
    """An operation, dtype or form that the card or the compiler does not have."""


class InvalidProgram(SpyreError):
    """A program, KTIR module or SuperDSC bundle that breaks a rule of the format or the machine."""


class SpanExceeded(InvalidProgram):
    """One execution of an operation reaches over more of a tensor than a core can address."""


class ScratchpadFull(InvalidProgram):
    """A program needs more of a scratchpad than there is. `op` is the origin of the operation that takes most of it."""

    def __init__(self, message: str, needed: int = 0, available: int = 1, op: str = "") -> None:
        super().__init__(message)
        self.needed, self.available, self.op = needed, available, op


class InvalidArgument(SpyreError, ValueError):
    """A launch or call with arguments that do not fit."""


class OutOfMemory(SpyreError, MemoryError):
    """Card memory, or the host memory behind it, does not suffice."""


class Overflow(SpyreError, OverflowError):
    """A value that does not fit the format the card stores it in."""


class OutOfBounds(SpyreError):
    """An access outside a tensor, the scratchpad or card memory."""


class IndexOutOfRange(SpyreError, IndexError):
    """An index value of a gather or scatter outside its table."""


class ZeroDivision(SpyreError, ZeroDivisionError):
    """A whole number divided by 0."""


class AssertionFailed(SpyreError, AssertionError):
    """A condition of torch._assert_async that does not hold."""


class UninitializedRead(SpyreError):
    """A read of bytes that nothing wrote."""


class RaceDetected(SpyreError):
    """Two cores touch the same bytes in one phase and at least one writes."""


class DeviceFault(SpyreError):
    """A transfer or launch failed on the card; torch.spyre.reset() clears the error of its stream."""


class DeviceLost(SpyreError):
    """The card does not answer any more; torch.spyre.reset() opens it again."""


class PeerLost(SpyreError):
    """Another rank of a group ended, left or gave up while this one waited for it; the message says which one."""


class CollectiveMismatch(SpyreError):
    """Ranks of a group called different collectives, or the same one on different dtypes or sizes."""


class CollectiveTimeout(SpyreError, TimeoutError):
    """A rank did not come within the timeout of the group."""


class NotExpressible(SpyreError):
    """A kernel outside SuperDSC's vocabulary; the message says why."""


# Ends the origin of an instruction that checks a condition; the kind of the error and its text follow.
CHECK = ": check failed: "
_CHECKS: dict[str, type[SpyreError]] = {
    kind.__name__: kind for kind in (Overflow, ZeroDivision, InvalidArgument, AssertionFailed)
}
_FROM = "\n  from "


def check_text(message: str) -> str:
    """`CHECK`, kind and text of an assertion, whose message may begin with the kind."""
    named = message.partition(": ")[0] in _CHECKS
    return f"{CHECK}{message}" if named else f"{CHECK}AssertionFailed: assertion failed: {message}"


def failed_check(origin: str) -> SpyreError | None:
    """The error of an instruction that checks a condition; None if it is another one."""
    where, mark, rest = origin.rpartition(CHECK)
    kind, _, text = rest.partition(": ")
    return _CHECKS[kind](f"{where}: {text}") if mark and kind in _CHECKS else None


@contextlib.contextmanager
def located(where: Callable[[], str]) -> Iterator[None]:
    """Adds the place in the user's program to an error of ours that leaves the block without one."""
    try:
        yield
    except SpyreError as error:
        text = where() if _FROM not in str(error) else ""
        if text and text not in str(error):
            error.args = (f"{error}{_FROM}{text}",)
        raise


def exit_status(error: BaseException) -> int:
    """Of a command: 1 for what it found wrong with a file or a run, 2 for a call that cannot be right."""
    return 2 if isinstance(error, (InvalidArgument, OSError)) else 1


def first_line(error: BaseException) -> str:
    """What happened, without the place."""
    return str(error).partition("\n")[0]


def with_reproducer(message: str) -> str:
    """A message about a running kernel, and where its reproducer is or how to get one. The card's errors come here."""
    folders = (find(message) for find in _finders)
    advice = _INDICES if _OUTSIDE.search(message) else ""
    return f"{message}\n  {advice}{reproducer_hint(next((f for f in folders if f is not None), None))}"


_OUTSIDE = re.compile(r"index -?\d+ lies outside")
_INDICES = (
    "compare the smallest and largest index with the size of the indexed dim before the call (for an embedding: token "
    "ids with num_embeddings)\n  "
)


_finders: list[Callable[[str], object]] = []


def find_reproducers_by(find: Callable[[str], object]) -> None:
    """Registers a function from a message of the card to the folder with the reproducer of its kernel, or None. The
    compiler, which knows that, registers itself when it is imported."""
    _finders.append(find)


def reproducer_hint(folder: object) -> str:
    if folder is None:
        return "for a reproducer of this kernel run again with SPYRE_DUMP=<directory> (docs/debugging.md)"
    return f"reproducer: python {folder}/kernel_repro.py"
