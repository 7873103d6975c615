# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/triton_speed.py [--strict]: Triton kernels against what the project's own compiler plans.

In the environment of `make test-triton`. Card time and wall time of the kernels of examples/triton_kernels, on tensors
that lie row by row in card memory, are compared with the same function of `torch.compile` on tensors as they usually
lie. Then what a launch costs: the first one of a kernel beyond Triton's own compiler, and a warm one beyond an eager
operation.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from common import ROOT, Figure, finish, interleaved, machine_line

from torch_spyre import _C

sys.path.insert(0, str(ROOT / "examples" / "triton_kernels"))

Call = Callable[[], object]
DTYPE = torch.float16


def rows(*shape: int) -> torch.Tensor:
    """A tensor that lies row by row: a vector seen as a matrix."""
    count = 1
    for size in shape:
        count *= size
    return torch.randn(count).to(DTYPE).to("spyre").view(shape)


def card_us(call: Call) -> float:
    """On the card's clock, which gives each run the same time."""
    call()
    torch.spyre.synchronize()
    start = _C.clock_ns(0)
    call()
    torch.spyre.synchronize()
    return (_C.clock_ns(0) - start) / 1e3


def pairs() -> dict[str, tuple[Call, Call]]:
    """The kernel on tensors that lie in rows, and the compiled function on the same numbers in sticks."""
    from layer_norm import normalise_rows  # late: the path
    from matmul import multiply_blocks
    from softmax import softmax_rows
    from vector_add import add_blocks

    n, height, width = 1 << 20, 2048, 1024
    x, y, out = (rows(n) for _ in range(3))
    a, b = (t.clone() for t in (x, y))
    matrix, result = rows(height, width), rows(height, width)
    sticks = torch.randn(height, width).to(DTYPE).to("spyre")
    weight, bias = rows(width), rows(width)
    means, scales = (torch.zeros(height, device="spyre") for _ in range(2))
    M, N, K = 1024, 1024, 1024
    left, right, product = rows(M, K), rows(K, N), rows(M, N)
    left_s, right_s = (torch.randn(M, K).to(DTYPE).to("spyre") for _ in range(2))

    def add() -> None:
        add_blocks[(32,)](x, y, out, n, BLOCK=n // 32)

    def softmax() -> None:
        softmax_rows[(32,)](result, matrix, width, width, height, width, BLOCK=width)

    def layer_norm() -> None:
        normalise_rows[(height,)](matrix, weight, bias, result, means, scales, width, width, 1e-5, BLOCK=width)

    def matmul() -> None:
        strides = (*left.stride(), *right.stride(), *product.stride())
        sizes = {"BM": 128, "BN": 256, "BK": 256, "GROUP": 4, "RELU": False}
        multiply_blocks[(triton.cdiv(M, 128) * triton.cdiv(N, 256),)](left, right, product, M, N, K, *strides, **sizes)

    own_add = torch.compile(lambda p, q: p + q)
    own_softmax = torch.compile(lambda p: p.softmax(-1))
    own_norm = torch.compile(lambda p, w, c: F.layer_norm(p, (width,), w, c))
    own_matmul = torch.compile(lambda p, q: p @ q)
    return {
        "vector add, 2^20": (add, lambda: own_add(a, b)),
        "softmax, 2048x1024": (softmax, lambda: own_softmax(sticks)),
        "layer norm, 2048x1024": (layer_norm, lambda: own_norm(sticks, weight, bias)),
        "matmul, 1024^3": (matmul, lambda: own_matmul(left_s, right_s)),
    }


def times(name: str, kernel: Call, own: Call) -> list[Figure]:
    def waited(call: Call) -> Call:
        def run() -> None:
            call()
            torch.spyre.synchronize()

        return run

    card = card_us(kernel), card_us(own)
    wall = interleaved({"kernel": waited(kernel), "own": waited(own)}, rounds=5, least_s=0.05)
    card_note = f"{card[0]:.1f} us, planned by the compiler {card[1]:.1f} us"
    wall_note = f"{wall['kernel'] * 1e3:.3f} ms, compiled {wall['own'] * 1e3:.3f} ms"
    return [
        Figure(f"{name}: card time", card[0] / card[1], "x", "<=", 1.3, card_note),
        Figure(f"{name}: wall time", wall["kernel"] / wall["own"], "x", "<=", 2, wall_note),
    ]


@triton.jit
def scaled(x, out, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place, mask=place < n) * FACTOR, mask=place < n)


def first_launches() -> list[Figure]:
    """New constants make new kernels: what Triton's compiler takes, and what the launch takes after it."""
    x, out = rows(10_000), rows(10_000)
    fresh = time.time() % 1000
    own, ours = [], []
    for i in range(6):
        sizes = {"FACTOR": fresh + 1.5 * i, "BLOCK": 1024}
        start = time.perf_counter()
        scaled.warmup(x, out, 10_000, grid=(10,), **sizes)
        middle = time.perf_counter()
        scaled[(10,)](x, out, 10_000, **sizes)
        torch.spyre.synchronize()
        own.append(middle - start)
        ours.append(time.perf_counter() - middle)
    note = f"Triton's own {statistics.median(own[1:]):.3f} s"
    return [
        Figure("first launch of a process", ours[0], "s", "<=", 0.5, f"imports included; Triton's own {own[0]:.3f} s"),
        Figure("first launch of a new kernel", statistics.median(ours[1:]), "s", "<=", 0.5, note),
    ]


def warm_launch() -> Figure:
    x, y, out = (rows(1024) for _ in range(3))
    from vector_add import add_blocks  # late: the path

    def kernel() -> None:
        add_blocks[(1,)](x, y, out, 1024, BLOCK=1024)

    def eager() -> None:
        torch.add(x, y, out=out)

    found = interleaved({"kernel": kernel, "eager": eager}, rounds=9)
    note = f"{found['kernel'] * 1e6:.1f} us, an eager add {found['eager'] * 1e6:.1f} us"
    return Figure(
        "warm launch beyond an eager operation", (found["kernel"] - found["eager"]) * 1e6, "us", "<=", 25, note
    )


def main() -> int:
    print(machine_line())
    figures = [*first_launches(), warm_launch()]
    for name, (kernel, own) in pairs().items():
        figures += times(name, kernel, own)
    return finish(figures)


if __name__ == "__main__":
    raise SystemExit(main())
