# SPDX-License-Identifier: Apache-2.0
"""Which size of an eager call varies.

Two calls of an op that differ in one size, and in what follows from it, give a pattern: a call with n in the place of
that size and polynomials in n in the places of other sizes and of strides. Nothing here knows what the op does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_spyre.constants import DEVICE_NAME

Polynomial = list[int]  # coefficients of 1, n, n², …


@dataclass(frozen=True)
class Seen:
    """A tensor on the card as a call passed it."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


Call = tuple[Seen | None, ...]  # the tensors of a call; None for a number


def seen(tensors: Sequence[torch.Tensor]) -> Call:
    return tuple(
        Seen(tuple(t.shape), tuple(t.stride()), t.storage_offset()) if t.device.type == DEVICE_NAME else None
        for t in tensors
    )


def value(polynomial: Sequence[int], n: Any) -> Any:
    total: Any = polynomial[-1]
    for c in reversed(polynomial[:-1]):
        total = total * n + c
    return total


@dataclass(frozen=True)
class Shape:
    """A tensor of a pattern."""

    size: list[Polynomial]
    stride: list[Polynomial]
    offset: int

    def at(self, n: Any) -> tuple[list[Any], list[Any]]:
        return [value(p, n) for p in self.size], [value(p, n) for p in self.stride]

    def holds(self, tensor: Seen, n: int) -> bool:
        return (
            self.offset == tensor.offset
            and tuple(value(p, n) for p in self.size) == tensor.size
            and tuple(value(p, n) for p in self.stride) == tensor.stride
        )


@dataclass(frozen=True)
class Pattern:
    """A call whose sizes and strides depend on n, which is the size of dim `place[1]` of tensor `place[0]`."""

    place: tuple[int, int]
    tensors: tuple[Shape | None, ...]

    def matches(self, call: Call) -> int | None:
        """The n of a call, or None if it is not one of this pattern. Sizes below 2 are a matter of their own: 1 is
        broadcast, 0 is nothing."""
        if len(call) != len(self.tensors):
            return None
        first = call[self.place[0]]
        if first is None or len(first.size) <= self.place[1]:
            return None
        n = first.size[self.place[1]]
        if n < 2:
            return None
        for shape, tensor in zip(self.tensors, call, strict=True):
            if (shape is None) != (tensor is None):
                return None
            if shape is not None and tensor is not None and not shape.holds(tensor, n):
                return None
        return n

    def plain(self) -> list[Any]:
        return [list(self.place), [None if s is None else [s.size, s.stride, s.offset] for s in self.tensors]]

    @staticmethod
    def of_plain(plain: Sequence[Any]) -> Pattern:
        place, tensors = plain
        return Pattern((place[0], place[1]), tuple(None if s is None else Shape(*s) for s in tensors))


def pattern(before: Call, now: Call) -> Pattern | None:
    """What two calls have in common, if they differ in one size and what follows from it."""
    pairs = list(_pairs(before, now))
    changed = [(b, a, place) for a, b, place in pairs if a != b]
    if len(before) != len(now) or not changed:
        return None
    new, old, place = min(changed)
    if min(new, old) < 2:
        return None
    tensors: list[Shape | None] = []
    for x, y in zip(before, now, strict=True):
        if x is None or y is None:
            if x is not y:
                return None
            tensors.append(None)
            continue
        if len(x.size) != len(y.size) or x.offset != y.offset:
            return None
        size = [_fitted(a, b, old, new, only=1) for a, b in zip(x.size, y.size, strict=True)]
        stride = [_fitted(a, b, old, new) for a, b in zip(x.stride, y.stride, strict=True)]
        tensors.append(Shape(_whole(size), _whole(stride), x.offset))
        if None in size or None in stride:
            return None
    return Pattern(place, tuple(tensors))


def _whole(found: Sequence[Polynomial | None]) -> list[Polynomial]:
    return [p for p in found if p is not None]


def _pairs(before: Call, now: Call) -> Iterator[tuple[int, int, tuple[int, int]]]:
    for i, (x, y) in enumerate(zip(before, now, strict=False)):
        if x is not None and y is not None and len(x.size) == len(y.size):
            for d, (a, b) in enumerate(zip(x.size, y.size, strict=True)):
                yield a, b, (i, d)


def _fitted(a: int, b: int, old: int, new: int, only: int | None = None) -> Polynomial | None:
    """A polynomial in n that is a for n = old and b for n = new: a multiple of n, n² or n³, else a sum of a number and
    a multiple of n (`only` that one, if given)."""
    if a == b:
        return [a]
    for power in (1, 2, 3):
        times = b // new**power
        if times and times * new**power == b and times * old**power == a:
            return [0] * power + [times]
    times, rest = divmod(b - a, new - old)
    return None if rest or times < 1 or (only is not None and times != only) else [b - times * new, times]
