# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/profiler.py [--strict]: what the profiler and the clock cost, and how fast timing-only runs are."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from common import Figure, finish, machine_line
from torch.profiler import ProfilerActivity, profile

from torch_spyre.predict import timing_only

HALF = torch.float16


def per_call(action: Callable[[], object], calls: int, rounds: int = 15) -> float:
    """Best of several rounds, seconds per call: other processes only ever add."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            action()
        torch.spyre.synchronize()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def profiler_off(launch: Callable[[], object]) -> list[Figure]:
    """Launches before any profile, and after one has come and gone. Arithmetic is off, so that nothing hides them."""
    with timing_only():
        before = statistics.median(per_call(launch, 500, 3) for _ in range(7))
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]):
            on = per_call(launch, 200, 3)
        after = statistics.median(per_call(launch, 500, 3) for _ in range(7))
    note = f"{before * 1e6:.2f} us never profiled, {after * 1e6:.2f} us afterwards, {on * 1e6:.1f} us while profiling"
    return [Figure("launch after a profile / before", after / before, "x", "<=", 1.05, note)]


def clock(model: Callable[[], object]) -> list[Figure]:
    """Everything that is not arithmetic, the clock included, bounds what the clock can cost."""
    functional = per_call(model, 5, 5)
    with timing_only():
        timed = per_call(model, 200)
    note = f"functional {functional * 1e3:.2f} ms; launch without arithmetic {timed * 1e6:.1f} us"
    return [
        Figure("clock, at most, of a functional run", 100 * timed / functional, "%", "<=", 3.0, note),
        Figure("timing-only kernels", 1 / timed, "1/s", ">=", 1000),
    ]


def main() -> int:
    print(machine_line())
    x, w = (torch.randn(1024, 1024, dtype=HALF).to("spyre") for _ in range(2))
    compiled = torch.compile(lambda a, b: torch.relu(a @ b) @ b, dynamic=False)
    compiled(x, w)
    small = torch.randn(64, 64, dtype=HALF).to("spyre")
    torch.mm(small, small)
    figures = profiler_off(lambda: torch.mm(small, small))
    return finish([*figures, *clock(lambda: compiled(x, w))])


if __name__ == "__main__":
    sys.exit(main())
