# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/card.py [--strict]: the card's own kernels against PyTorch on the same CPU, in one run."""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from common import ROOT, Figure, finish, interleaved, machine_line

HALF = torch.float16
KERNELS = ROOT / "tests" / "support" / "ktir"
PAGED_ATTENTION = "paged_attention.mlir"


def synced(action: Callable[[], object]) -> Callable[[], None]:
    def call() -> None:
        action()
        torch.spyre.synchronize()

    return call


def rotated(action: Callable[[torch.Tensor], object], weights: Sequence[torch.Tensor]) -> Callable[[], None]:
    """Each call takes the next weight: with enough of them every one has left the caches when its turn comes."""
    turn = itertools.cycle(weights)
    return lambda: (action(next(turn)), None)[1]


def gemm() -> list[Figure]:
    figures = []
    for m, k, n in ((512, 4096, 4096), (1024, 1024, 1024), (64, 4096, 4096)):
        a, b = torch.randn(m, k, dtype=HALF), torch.randn(k, n, dtype=HALF)
        a32, b32 = a.float(), b.float()
        card = a.to("spyre"), b.to("spyre")
        seconds = interleaved(
            {"card": synced(lambda c=card: torch.mm(*c)), "fp32": lambda a=a32, b=b32: torch.mm(a, b)}, rounds=9
        )
        note = f"{2 * m * n * k / seconds['card'] / 1e9:.0f} GFLOP/s"
        name = f"GEMM {m}x{k}x{n}, speed vs torch.mm fp32"
        figures.append(Figure(name, seconds["fp32"] / seconds["card"], "x", ">=", 0.85, note))
    return figures


def read_bandwidth() -> float:
    """Bytes per second of the best whole-array reader at hand, over memory far larger than the caches."""
    data = torch.ones(128 << 20, dtype=torch.float32)  # 512 MiB
    seconds = interleaved({"sum": data.sum, "amax": data.amax}, rounds=5)
    return data.nbytes / min(seconds.values())


def gemv() -> list[Figure]:
    peak = read_bandwidth()
    figures = []
    for n, k in ((4096, 4096), (8192, 2048)):
        host = [torch.randn(n, k, dtype=HALF) for _ in range(12)]  # 384 MiB
        card = [torch.nn.Linear(k, n, bias=False, dtype=HALF).to("spyre").weight.detach() for _ in host]
        x = torch.randn(1, k, dtype=HALF)
        x_card = x.to("spyre")
        seconds = interleaved(
            {
                "card": rotated(synced_linear(x_card), card),
                "fp16": rotated(lambda w, x=x: F.linear(x, w), host),
            },
            rounds=9,
            least_s=0.1,
        )
        rate = 2 * n * k / seconds["card"]
        note = f"{rate / 1e9:.1f} of {peak / 1e9:.1f} GB/s"
        name = f"GEMV {n}x{k} out of cache"
        figures += [
            Figure(f"{name}, speed vs torch fp16", seconds["fp16"] / seconds["card"], "x", ">=", 1.1),
            Figure(f"{name}, share of read bandwidth", rate / peak, "", ">=", 0.75, note),
        ]
    w = torch.randn(2048, 2048, dtype=HALF)
    w_card = torch.nn.Linear(2048, 2048, bias=False, dtype=HALF).to("spyre").weight.detach()
    x = torch.randn(1, 2048, dtype=HALF)
    run = synced_linear(x.to("spyre"))
    seconds = interleaved({"card": lambda: run(w_card), "fp16": lambda: F.linear(x, w)}, rounds=9)
    name = "GEMV 2048x2048 in cache, speed vs torch fp16"
    return [*figures, Figure(name, seconds["fp16"] / seconds["card"], "x", ">=", 2.5)]


def synced_linear(x: torch.Tensor) -> Callable[[torch.Tensor], None]:
    def run(weight: torch.Tensor) -> None:
        F.linear(x, weight)
        torch.spyre.synchronize()

    return run


def elementwise() -> list[Figure]:
    a, b = (torch.randn(8192, 4096, dtype=HALF) for _ in range(2))  # 64 MiB each
    card = a.to("spyre"), b.to("spyre")
    out, out_card = torch.empty_like(a), torch.empty_like(card[0])
    seconds = interleaved(
        {"card": synced(lambda: torch.add(*card, out=out_card)), "fp16": lambda: torch.add(a, b, out=out)}, rounds=9
    )
    note = f"{3 * a.nbytes / seconds['card'] / 1e9:.1f} GB/s"
    return [Figure("add of 64 MiB, speed vs torch.add fp16", seconds["fp16"] / seconds["card"], "x", ">=", 0.7, note)]


def kernels() -> list[Figure]:
    """KTIR files, as their authors would run them."""
    from torch_spyre import ktir
    from torch_spyre.ktir.sample import random_arguments

    figures = []
    for file, limit in (("softmax_4096x1024.mlir", 60.0), ("layernorm_1151x8192.mlir", 60.0), (PAGED_ATTENTION, 5.0)):
        module = ktir.load(KERNELS / file)
        start = time.perf_counter()
        module.compile()
        compiled = time.perf_counter() - start
        arguments = module.place(**random_arguments(module, module.function(), {}, seed=0)[0])
        seconds = interleaved({"run": synced(functools.partial(module.run, **arguments))})["run"]
        name = file.removesuffix(".mlir")
        figures.append(Figure(f"KTIR {name}", seconds * 1e3, "ms", "<", limit))
        if file == PAGED_ATTENTION:
            figures.append(Figure(f"KTIR {name}, compile", compiled, "s", "<", 1.0))
    return figures


def main() -> int:
    print(machine_line())
    torch.manual_seed(0)
    parts = (gemm, gemv, elementwise, kernels)
    chosen = [part for part in parts if part.__name__ in sys.argv] or parts
    return finish([figure for part in chosen for figure in part()])


if __name__ == "__main__":
    sys.exit(main())
