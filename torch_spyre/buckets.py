# SPDX-License-Identifier: Apache-2.0
"""Capacities: a program or a graph is made for a capacity and serves every size up to it.

All capacities are powers of two, and the numbers halfway between two of them. `TABLE` has one row for each kind of
size; a row says which of these numbers it uses and why not the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_spyre.errors import InvalidArgument


@dataclass(frozen=True)
class Steps:
    """The capacities of one kind of size, and the reason for them."""

    kind: str
    least: int  # the smallest capacity, a power of two
    halves: int | None  # above this power of two, the number halfway to the next one is a capacity too
    most: int | None  # the largest capacity; None: there is none
    skipped: tuple[int, ...]
    reason: str

    def capacity(self, size: int) -> int:
        """The smallest capacity that holds a size."""
        found = max(self.least, 1 << max(size - 1, 0).bit_length())
        halfway = found // 4 * 3
        if self.halves is not None and found > self.halves and size <= halfway:
            found = halfway
        if found in self.skipped:
            return self.capacity(found + 1)
        if self.most is not None and found > self.most:
            raise InvalidArgument(f"{size} {self.kind} do not fit into the largest capacity, {self.most}")
        return found

    def least_size(self, capacity: int) -> int:
        """The smallest size that has this capacity."""
        high, low = capacity, 0
        while high - low > 1:  # capacities grow with sizes: bisect
            middle = (high + low) // 2
            if self.capacity(middle) == capacity:
                high = middle
            else:
                low = middle
        return high


KERNEL_SIZES = Steps(
    "elements along a dim",
    least=16,
    halves=128,
    most=None,
    skipped=(),
    reason="A capacity costs one plan of a kernel, a fraction of a second; in return at most half of a program's work, "
    "from size 8 on, is for nothing. From 64 on capacities are multiples of 64: a stick has 32, 64 or 128 elements, "
    "and a second stick in a dim means that the first one is full.",
)

PROMPT_ROWS = Steps(
    "rows of a prompt",
    least=16,
    halves=None,
    most=512,
    skipped=(32,),
    reason="A capacity costs a graph of a block, which Dynamo and Inductor compile. A block with few rows takes the "
    "time in which the card reads its weights: 0.88 ms with 32 rows and 0.92 ms with 64 (llama-3.2-1b, predicted), so "
    "that a capacity of 32 would save 4 %. Longer prompts go in chunks of 512.",
)

CACHE_ROWS = Steps(
    "rows of a cache",
    least=128,
    halves=512,
    most=None,
    skipped=(),
    reason="A capacity costs a graph of the decoding step, and a copy of the cache when it grows into it. A token "
    "reads the whole buffer, which is little beside the weights while the buffer is short.",
)

TABLE = (KERNEL_SIZES, PROMPT_ROWS, CACHE_ROWS)
