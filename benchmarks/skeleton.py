# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/skeleton.py [--strict]: matmul, DMA, launch and compile costs against PyTorch on the same CPU."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Callable

import torch
import torch.nn.functional as F
from common import ROOT, Figure, finish, interleaved, machine_line, once_each

from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.kernel import kernel

sys.path.insert(0, str(ROOT / "tests"))
import oracle

HALF = torch.float16
TINY = (64, 64)
BURST = 50  # launches in a row before a wait: short enough that none has to wait for room in the queue


def synced(action: Callable[[], object]) -> Callable[[], None]:
    def call() -> None:
        action()
        torch.spyre.synchronize()

    return call


def burst(action: Callable[[], object]) -> Callable[[], None]:
    """BURST calls and one wait: the cost of calling, with the work itself behind it."""

    def call() -> None:
        for _ in range(BURST):
            action()
        torch.spyre.synchronize()

    return call


def matmul() -> list[Figure]:
    a, w = torch.randn(1024, 1024, dtype=HALF), torch.randn(1024, 1024, dtype=HALF)
    a32, b32 = a.float(), w.t().contiguous().float()
    a_card, b_card = a.to("spyre"), w.t().contiguous().to("spyre")
    x, y = oracle.dl16(a), oracle.dl16(w).T
    oracle.assert_close_dl16(torch.mm(a_card, b_card).cpu(), x @ y, extra=oracle.matmul_error(x, y))
    seconds = interleaved(
        {
            "card": synced(lambda: torch.mm(a_card, b_card)),
            "fp16": lambda: F.linear(a, w),
            "fp32": lambda: torch.mm(a32, b32),
        }
    )
    note = f"{2 * 1024**3 / seconds['card'] / 1e9:.0f} GFLOP/s"
    return [
        Figure("matmul 1024^3 fp16, speed vs CPU fp16 F.linear", seconds["fp16"] / seconds["card"], "x", ">=", 3, note),
        Figure("matmul 1024^3 fp16, speed vs CPU fp32 torch.mm", seconds["fp32"] / seconds["card"], "x", ">=", 0.5),
    ]


def dma() -> list[Figure]:
    host = torch.randn(8192, 4096).to(HALF)  # 64 MiB
    card = host.to("spyre")
    seconds = interleaved(
        {"clone": host.clone, "in": synced(lambda: host.to("spyre")), "out": card.cpu}, rounds=9, least_s=0.05
    )

    def figure(name: str, key: str) -> Figure:
        note = f"{host.nbytes / seconds[key] / 1e9:.1f} GB/s"
        return Figure(name, seconds["clone"] / seconds[key], "x", ">=", 0.3, note)

    return [
        figure("64 MiB fp16 host to card, speed vs Tensor.clone()", "in"),
        figure("64 MiB fp16 card to host, speed vs Tensor.clone()", "out"),
    ]


def tiny_pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(TINY, dtype=HALF).to("spyre"), torch.randn(TINY, dtype=HALF).to("spyre")


def launch() -> list[Figure]:
    """The launcher alone, as a compiled graph's wrapper calls it: look up layouts, allocate the output, queue."""
    x, y = tiny_pair()
    inspect.start()
    torch.compile(torch.sub, dynamic=False)(x, y)
    inspect.stop()
    record = inspect.records()[-1]
    launcher = kernel(record.name, record.graph_json)
    seconds = interleaved({"launch": burst(lambda: launcher(x, y))})["launch"] / BURST
    return [Figure("launch of a planned program, 64x64 sub", seconds * 1e6, "us", "<", 20)]


def eager() -> list[Figure]:
    x, y = tiny_pair()
    hit = interleaved({"hit": burst(lambda: torch.add(x, y))})["hit"] / BURST
    pairs = [tuple(torch.randn(3 + i, 70 + 67 * i, dtype=HALF).to("spyre") for _ in range(2)) for i in range(15)]
    miss = once_each([synced(functools.partial(torch.mul, *pair)) for pair in pairs])
    return [
        Figure("eager call, program known (hit), 64x64 add", hit * 1e6, "us", "<", 40),
        Figure("eager call, new signature (miss), mul", miss * 1e3, "ms", "<", 100),
    ]


def compiled() -> list[Figure]:
    def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    host = torch.randn(TINY, dtype=HALF), torch.randn(TINY, dtype=HALF)
    card = tiny_pair()
    on_host, on_card = torch.compile(add, dynamic=False), torch.compile(add, dynamic=False)
    seconds = interleaved(
        {"host": burst(lambda: on_host(*host)), "card": burst(lambda: on_card(*card))}, rounds=15, least_s=0.03
    )
    more = (seconds["card"] - seconds["host"]) / BURST * 1e6
    note = f"{seconds['card'] / BURST * 1e6:.1f} - {seconds['host'] / BURST * 1e6:.1f} us"
    return [Figure("torch.compile call, card minus CPU Inductor, 64x64 add", more, "us", "<=", 15, note)]


def main() -> int:
    print(machine_line())
    with tempfile.TemporaryDirectory(prefix="spyre-bench-") as caches:  # empty, so that an eager miss is one
        os.environ["SPYRE_CACHE_DIR"] = os.path.join(caches, "programs")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(caches, "inductor")
        figures = [figure for part in (matmul, dma, launch, eager, compiled) for figure in part()]
    return finish(figures)


if __name__ == "__main__":
    sys.exit(main())
