# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/collectives.py [--strict]: collectives of two cards against Gloo's on CPU tensors.

Two ranks of this host in one run, medians of interleaved samples. "done" is one call after which the host waits for the
result, as Gloo's call does; "in a row" are calls that follow each other on the stream, with one wait at the end.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from common import Figure, finish, machine_line, sample

RANKS = 2
ROUNDS = 9
LEAST_S = 0.02
# bytes of float16, how many times as fast as Gloo
TARGETS = {8 * 1024: 30.0, 4 * 1024 * 1024: 4.0}


def agreed_calls(action: Callable[[], object]) -> int:
    """Calls that take at least LEAST_S, the same number on all ranks."""
    sample(action, 3)
    calls = torch.tensor([max(int(LEAST_S / sample(action, 3)), 3)])
    dist.all_reduce(calls, op=dist.ReduceOp.MAX)
    return int(calls)


def medians(actions: dict[str, Callable[[int], float]]) -> dict[str, float]:
    """Seconds per call; an action takes the number of calls to make and returns the seconds of all of them."""
    calls = {name: agreed_calls(lambda action=action: action(1)) for name, action in actions.items()}
    samples: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(ROUNDS):
        for name, action in actions.items():
            dist.barrier()
            samples[name].append(action(calls[name]) / calls[name])
    return {name: statistics.median(values) for name, values in samples.items()}


def timed(call: Callable[[], object], each: Callable[[], object], last: Callable[[], object]) -> Callable[[int], float]:
    def action(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            call()
            each()
        last()
        return time.perf_counter() - start

    return action


def compare(size: int) -> dict[str, float]:
    card = torch.zeros(size // 2, dtype=torch.float16, device="spyre")
    host = torch.zeros(size // 2, dtype=torch.float16)
    nothing = lambda: None  # noqa: E731
    return medians(
        {
            "gloo": timed(lambda: dist.all_reduce(host), nothing, nothing),
            "done": timed(lambda: dist.all_reduce(card), torch.spyre.synchronize, nothing),
            "in a row": timed(lambda: dist.all_reduce(card), nothing, torch.spyre.synchronize),
        }
    )


def name_of(size: int) -> str:
    return f"{size // 1024} KB" if size < 1 << 20 else f"{size >> 20} MB"


def main() -> int:
    dist.init_process_group("cpu:gloo,spyre:spyreccl")
    torch.set_num_threads(1)
    measured = {size: compare(size) for size in TARGETS}
    rank = dist.get_rank()
    dist.barrier()
    dist.destroy_process_group()
    if rank:
        return 0
    print(machine_line())
    figures = []
    for size, target in TARGETS.items():
        gloo = measured[size]["gloo"]
        for way in ("done", "in a row"):
            ours = measured[size][way]
            note = f"{ours * 1e6:.1f} µs, Gloo {gloo * 1e6:.0f} µs"
            figures.append(Figure(f"all_reduce {name_of(size)}, {way}", gloo / ours, "x Gloo", ">=", target, note))
    return finish(figures)


if __name__ == "__main__":
    if "RANK" not in os.environ:
        launch = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(RANKS),
            __file__,
            *sys.argv[1:],
        ]
        sys.exit(subprocess.run(launch, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode)
    sys.exit(main())
