# SPDX-License-Identifier: Apache-2.0
"""Errors with names. Each message says what was attempted, the offending value, and what to do."""


class SpyreError(RuntimeError):
    """Base of every error this project raises itself."""


class UnsupportedOp(SpyreError, NotImplementedError):
    """An operation, dtype or form that the card or the compiler does not have."""


class InvalidProgram(SpyreError):
    """A program, KTIR module or SuperDSC bundle that breaks a rule of the format or the machine."""


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


class UninitializedRead(SpyreError):
    """A read of bytes that nothing wrote."""


class RaceDetected(SpyreError):
    """Two cores touch the same bytes in one phase and at least one writes."""


class DeviceFault(SpyreError):
    """A transfer or launch failed on the card; torch.spyre.reset() clears the error of its stream."""


class DeviceLost(SpyreError):
    """The card does not answer any more; torch.spyre.reset() opens it again."""


class NotExpressible(SpyreError):
    """A kernel outside SuperDSC's vocabulary; the message says why."""
