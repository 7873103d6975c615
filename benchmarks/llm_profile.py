# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/llm_profile.py [--mode blocks] [--part decode] [--timeline]: where a step of SmolLM2-135M goes.

Kernels: CPU time of each kind of kernel call, summed over threads. Launches: their number times what a launch of a
tiny kernel costs here. Python: a step that computes nothing (timing only), less its launches. The rest of the wall time
is waiting: threads that wake, spin or are not scheduled. --timeline shows the launches that take longest, stage by
stage: how long each took, on how many threads, after what wait.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import timeline
import torch
from common import CONTEXT, PROMPT, machine_line
from llm import EIGHT_BIT, Contender, contenders

from torch_spyre import _C, _card, predict

Row = tuple[str, float, float]  # name, calls per step, microseconds per step


def stepper(entrant: Contender, part: str) -> Callable[[], Any]:
    """A call that does one step; decoding stays at the same place of the cache."""
    ids = torch.randint(100, 40_000, (1, PROMPT), generator=torch.Generator().manual_seed(0)).to("spyre")
    if part == "prefill":
        return lambda: entrant.run(ids, 0, entrant.new_cache(PROMPT))
    entrant.decode(ids.cpu())
    token = ids[:, :1]

    def step() -> None:
        entrant.run(token, CONTEXT, entrant.cache)
        if entrant.static:
            for layer in entrant.cache.layers:
                layer.cumulative_length.fill_(CONTEXT)
        else:
            entrant.cache.crop(-1)

    return step


def seconds(step: Callable[[], Any], count: int) -> tuple[float, float]:
    """Median wall and CPU seconds of the calling thread, of a step and the wait for it."""
    wall, cpu = [], []
    for _ in range(count):
        start, used = time.perf_counter(), time.thread_time()
        step()
        torch.spyre.synchronize()
        wall.append(time.perf_counter() - start)
        cpu.append(time.thread_time() - used)
    return statistics.median(wall), statistics.median(cpu)


def launch_cost() -> float:
    """CPU seconds of one launch with its output tensor and dispatch."""
    x = torch.ones(64, dtype=torch.float16).to("spyre")
    calls = 500
    samples = []
    with predict.timing_only():
        for _ in range(9):
            start = time.thread_time()
            for _ in range(calls):
                torch.add(x, x)
            samples.append((time.thread_time() - start) / calls)
            torch.spyre.synchronize()
    return min(samples)


def kernel_rows(step: Callable[[], Any], count: int) -> list[Row]:
    """By kind; matrix products by shape, as they differ most."""
    _card.count_kernel_times(True)
    seconds(step, count)
    times = _card.kernel_times()
    _card.count_kernel_times(False)
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for kind, shape, calls, ns in times:
        row = sums[f"{kind} {shape}" if kind == "MATMUL" else kind]
        row[0] += calls / count
        row[1] += ns / 1e3 / count
    return sorted(((name, calls, us) for name, (calls, us) in sums.items()), key=lambda row: -row[2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("eager", "blocks", "whole", *EIGHT_BIT), default="blocks")
    parser.add_argument("--part", choices=("decode", "prefill"), default="decode")
    parser.add_argument("--rows", type=int, default=20, help="kernels shown; the others are summed up")
    parser.add_argument("--timeline", action="store_true", help="stages of the longest launches instead of sums")
    args = parser.parse_args()
    print(machine_line())
    count = 20 if args.part == "decode" else 3
    with torch.no_grad():
        (entrant,) = contenders(lambda name: name == f"card {args.mode}", time.perf_counter)
        step = stepper(entrant, args.part)
        for _ in range(3):
            step()
        if args.timeline:
            timeline.report(step, count)
            return 0
        before = _C._card_counters(0)["launches"]
        wall, _ = seconds(step, count)
        launches = (_C._card_counters(0)["launches"] - before) / count
        kernels = kernel_rows(step, count)
        with predict.timing_only():
            _, host = seconds(step, count)
    launch_us = launches * launch_cost() * 1e6
    report(args.rows, wall * 1e6, kernels, launches, launch_us, host * 1e6)
    return 0


def report(shown: int, wall_us: float, kernels: list[Row], launches: float, launch_us: float, host_us: float) -> None:
    rest = kernels[shown:]
    rows = [*kernels[:shown], ("other kernels", sum(r[1] for r in rest), sum(r[2] for r in rest))]
    card_us = sum(us for _, _, us in kernels)
    rows += [
        (f"all kernels, on {_card.host_threads()} threads", sum(r[1] for r in kernels), card_us),
        ("launches", launches, launch_us),
        ("Python", 1, max(host_us - launch_us, 0.0)),
        ("wall time of a step", 1, wall_us),
    ]
    print(f"\n{'per step':<44}{'calls':>9}{'us':>12}{'of wall':>10}")
    for name, calls, us in rows:
        print(f"{name:<44}{calls:>9.0f}{us:>12.0f}{us / wall_us:>10.0%}")


if __name__ == "__main__":
    sys.exit(main())
