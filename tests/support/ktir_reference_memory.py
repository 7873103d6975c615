# SPDX-License-Identifier: Apache-2.0
"""Memory, views and integer sets of the KTIR interpreter for tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir.affine import AffineSet


class Undefined(Exception):
    """The program does not determine its result."""


class TooLong(Exception):
    """More work than a test should do."""


def holds(points: AffineSet, dims: Sequence[Any], symbols: Sequence[int]) -> Any:
    """Which points a set contains; `dims` are arrays or numbers."""
    result: Any = True
    for c in points.constraints:
        left, right = c.lhs.eval(list(dims), list(symbols)), c.rhs.eval(list(dims), list(symbols))
        test = {"==": np.equal, ">=": np.greater_equal, "<=": np.less_equal}[c.kind.value](left, right)
        result = np.logical_and(result, test)
    return result


class Memory:
    """Elements of one buffer, with who touched each since the tiles last met (0 nobody, -1 several)."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data
        self.writer = np.zeros(data.size, np.int32)
        self.reader = np.zeros(data.size, np.int32)

    def meet(self) -> None:
        self.writer[:] = 0
        self.reader[:] = 0

    def check(self, where: np.ndarray) -> None:
        if where.size and (where.min() < 0 or where.max() >= self.data.size):
            raise Undefined("an address outside the buffer")

    def read(self, where: np.ndarray, tile: int) -> np.ndarray:
        self.check(where)
        if not np.isin(self.writer[where], (0, tile + 1)).all():
            raise Undefined("a tile reads what another has written")
        self.reader[where] = np.where(np.isin(self.reader[where], (0, tile + 1)), tile + 1, -1)
        return self.data[where]

    def write(self, where: np.ndarray, values: np.ndarray, tile: int, add: bool) -> None:
        self.check(where)
        for other in (self.writer, self.reader):
            if not np.isin(other[where], (0, tile + 1)).all():
                raise Undefined("a tile writes what another has touched")
        self.writer[where] = tile + 1
        if add:
            np.add.at(self.data, where, values)
        else:
            self.data[where] = values


class View:
    """Memory with offset and strides in elements, and its domain; `origin` is the least coordinate of the domain."""

    def __init__(self, memory: Any, offset: int, sizes: Sequence[int], strides: Sequence[int], domain: Any) -> None:
        self.memory, self.offset, self.sizes, self.strides = memory, offset, tuple(sizes), tuple(strides)
        self.domain = domain  # coordinates array -> mask
        self.origin = [0] * len(self.sizes)
        self.local: int | None = None  # the tile whose scratchpad it names

    def where(self, coordinates: np.ndarray) -> np.ndarray:
        relative = coordinates - np.array(self.origin, dtype=np.int64)
        return self.offset + (relative * np.array(self.strides, dtype=np.int64)).sum(-1)


class Parts:
    """A distributed view; the first part that has a coordinate counts."""

    def __init__(self, parts: list[View], sizes: Sequence[int]) -> None:
        self.parts, self.sizes = parts, tuple(sizes)


class Pointer:
    def __init__(self, memory: Memory, offset: int) -> None:
        self.memory, self.offset = memory, offset


def move(values: list[Any], sign: int) -> Pointer:
    pointer, number = values if isinstance(values[0], Pointer) else values[::-1]
    if isinstance(number, Pointer):
        raise Undefined("an address made of two")
    return Pointer(pointer.memory, pointer.offset + sign * int(number))


def bounds(points: AffineSet, symbols: Sequence[int]) -> tuple[list[int], list[int]]:
    """Least and greatest coordinate per dim of a box, by its constraints."""
    low, high = [-(10**9)] * points.num_dims, [10**9] * points.num_dims
    for c in points.constraints:
        origin = [0] * points.num_dims
        at_zero = c.lhs.eval(origin, list(symbols)) - c.rhs.eval(origin, list(symbols))
        for d in range(points.num_dims):
            unit = [int(i == d) for i in range(points.num_dims)]
            slope = c.lhs.eval(unit, list(symbols)) - c.rhs.eval(unit, list(symbols)) - at_zero
            if slope == 0:
                continue
            if c.kind.value == "<=":
                slope, at_zero = -slope, -at_zero
            if c.kind.value == "==" or slope > 0:
                low[d] = max(low[d], math.ceil(-at_zero / slope))
            if c.kind.value == "==" or slope < 0:
                high[d] = min(high[d], math.floor(-at_zero / slope))
    if any(lo <= -(10**9) or h >= 10**9 for lo, h in zip(low, high, strict=True)):
        raise NotImplementedError("a set without bounds")
    return low, high


def least(domain: AffineSet, symbols: Sequence[int], sizes: Sequence[int]) -> list[int]:
    try:
        return bounds(domain, symbols)[0]
    except NotImplementedError:
        return [0] * len(sizes)
