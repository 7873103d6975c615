# SPDX-License-Identifier: Apache-2.0
"""Numbers for fuzz_storage.py: small ones, and those at which arithmetic on sizes goes wrong.

Nothing lies between: a size that the host grants but cannot fill would take the machine down.
"""

from __future__ import annotations

import random

import torch

ABSURD = [
    -1, -2, -64, 1 << 40, 1 << 45, (1 << 45) - 1, 1 << 50, 1 << 57, 1 << 58, 1 << 60, (1 << 61) - 1, 1 << 61, 1 << 62,
    (1 << 62) - 1024, (1 << 63) - 1, (1 << 63) - 64, -(1 << 62), -(1 << 63), 1 << 63, 1 << 64,
]  # fmt: skip
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8, torch.uint8, torch.bool]
MOST = 4096  # elements of a tensor whose values are looked at
Refused = (Exception,)  # whatever raises has not crashed


def size(draw: random.Random, absurd: float = 0.03) -> int:
    return draw.choice(ABSURD) if draw.random() < absurd else draw.choice([0, 1, 1, 2, 2, 3, 4, 5, 7])


def sizes(draw: random.Random, absurd: float = 0.03, most: int = 4) -> list[int]:
    rank = draw.choice([0, 1, 1, 2, 2, 2, 3, 3, most])
    return [size(draw, absurd) for _ in range(rank)]


def contiguous(shape: list[int]) -> list[int]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return strides[::-1]


def strides(draw: random.Random, shape: list[int], absurd: float = 0.03) -> list[int]:
    """Of a contiguous tensor, a permuted one, one with gaps, or anything."""
    way = draw.random()
    if way < 0.25:
        found = contiguous(shape)
    elif way < 0.45:
        order = draw.sample(range(len(shape)), len(shape))
        packed = contiguous([shape[i] for i in order])
        found = [packed[order.index(i)] for i in range(len(shape))]
    elif way < 0.7:
        found, step = [0] * len(shape), draw.choice([1, 1, 2])
        for i in reversed(range(len(shape))):
            found[i] = step
            step = step * max(shape[i], 1) + draw.choice([0, 0, 1, 3])
    else:
        found = [draw.choice([0, 1, 1, 2, 3, 5, 8]) for _ in shape]
    if draw.random() < 0.03:
        found = found[:-1] if draw.random() < 0.5 else [*found, 1]
    return [draw.choice(ABSURD) if draw.random() < absurd else s for s in found]


def offset(draw: random.Random, absurd: float = 0.03) -> int:
    return draw.choice(ABSURD) if draw.random() < absurd else draw.choice([0, 0, 0, 1, 2, 5, 11])


def reach(tensor: torch.Tensor) -> int:
    """Bytes from the beginning of the storage to the end of the tensor."""
    if tensor.numel() == 0:
        return 0
    last = tensor.storage_offset() + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def nested(tensor: torch.Tensor) -> bool:
    """Do its dims lie inside each other, so that no two elements share an address?"""
    end = 1
    for stride, n in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1):
        if stride < end:
            return False
        end += (n - 1) * stride
    return True
