# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/indexed_writes.py [--strict]: writes at a few places of a large tensor, and the first write of all.

The card in fp16 against the CPU in fp32, in the same run. A write costs what it writes: the same write into a base of
eight times the rows must take about as long.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from common import Figure, finish, interleaved, machine_line

HALF, FULL = torch.float16, torch.float32
ROWS, COLUMNS = 1024, 65536
AT = (3, 700)
ROUNDS = 5

Action = Callable[[], object]


def writes(rows: int, columns: int, device: str, dtype: torch.dtype) -> dict[str, Action]:
    """Two rows, or two elements of each column."""
    x = torch.zeros(rows, columns, dtype=dtype, device=device)
    index, v = torch.tensor(AT, device=device), torch.ones(len(AT), columns, dtype=dtype, device=device)
    each = torch.tensor(AT)[:, None].expand(-1, columns).contiguous().to(device)
    mask = torch.zeros(rows, dtype=torch.bool)
    mask[list(AT)] = True
    marked = mask.to(device)
    return {
        "x[index] = v": lambda: x.__setitem__(index, v),
        "x[mask] = v": lambda: x.__setitem__(marked, v),
        "index_copy_": lambda: x.index_copy_(0, index, v),
        "index_fill_": lambda: x.index_fill_(0, index, 2.0),
        "index_add_": lambda: x.index_add_(0, index, v),
        "index_put_, adding": lambda: x.index_put_((index,), v, accumulate=True),
        "scatter_": lambda: x.scatter_(0, each, v),
        "scatter_add_": lambda: x.scatter_add_(0, each, v),
    }


def waited(action: Action) -> Action:
    def call() -> None:
        action()
        torch.spyre.synchronize()

    return call


def small_writes() -> list[Figure]:
    """The CPU takes one thread: for so little it is faster than several."""
    torch.set_num_threads(1)
    card, host = writes(ROWS, COLUMNS, "spyre", HALF), writes(ROWS, COLUMNS, "cpu", FULL)
    figures = []
    for name in card:
        seconds = interleaved({"card": waited(card[name]), "cpu": host[name]}, ROUNDS)
        note = f"{seconds['card'] * 1e6:.0f} us, CPU {seconds['cpu'] * 1e6:.0f} us"
        ratio = seconds["card"] / seconds["cpu"]
        figures.append(Figure(f"{name}, 2 rows of {ROWS} x {COLUMNS}", ratio, "x", "<=", 10, note))
    return figures


def growth() -> list[Figure]:
    """The same write, 2 rows of 8192 elements, where the base has 8 times the rows."""
    small, large = (writes(rows, 8192, "spyre", HALF) for rows in (ROWS, 8 * ROWS))
    figures = []
    for name in small:
        seconds = interleaved({"small": waited(small[name]), "large": waited(large[name])}, ROUNDS)
        figures.append(Figure(f"{name}, base 8 times as large", seconds["large"] / seconds["small"], "x", "<=", 2))
    return figures


def compiled() -> list[Figure]:
    """In a compiled graph, whose input is written."""

    def step(x: torch.Tensor, index: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        x[index] = v * 2
        return x[0, 0] + 1

    function = torch.compile(step, dynamic=False)
    times = {}
    for rows in (ROWS, 8 * ROWS):
        x = torch.zeros(rows, 8192, dtype=HALF, device="spyre")
        index, v = torch.tensor(AT, device="spyre"), torch.ones(len(AT), 8192, dtype=HALF, device="spyre")
        times[str(rows)] = waited(lambda x=x, index=index, v=v: function(x, index, v))
    seconds = interleaved(times, ROUNDS)
    ratio = seconds[str(8 * ROWS)] / seconds[str(ROWS)]
    return [Figure("compiled x[index] = v, base 8 times as large", ratio, "x", "<=", 2)]


def first_writes() -> list[Figure]:
    """A row of a tensor that nobody has written, against the same row of one that was filled."""

    def seconds(make: Callable[..., torch.Tensor], rows: int) -> float:
        times = []
        for _ in range(ROUNDS):
            x = make(rows, COLUMNS, dtype=HALF, device="spyre")
            torch.spyre.synchronize()
            start = time.perf_counter()
            x[5].fill_(1.0)
            torch.spyre.synchronize()
            times.append(time.perf_counter() - start)
            del x
            torch.spyre.empty_cache()
        return median(times)

    seconds(torch.zeros, 64)  # plans
    filled, small, large = seconds(torch.zeros, 4096), seconds(torch.empty, 4096), seconds(torch.empty, 65536)
    note = f"{large * 1e3:.2f} ms, {small * 1e3:.2f} ms, {filled * 1e3:.2f} ms after zeros"
    return [
        Figure("first write of a row of empty, 8 GiB over 512 MiB", large / small, "x", "<=", 2, note),
        Figure("first write of a row of empty, 8 GiB", large * 1e3, "ms", "<=", 20),
    ]


if __name__ == "__main__":
    print(machine_line())
    sys.exit(finish([*small_writes(), *growth(), *compiled(), *first_writes()]))
