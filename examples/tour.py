# SPDX-License-Identifier: Apache-2.0
"""python examples/tour.py: an MLP and a softmax on the card, compared with float64: layouts, core splits, placement."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import torch_spyre

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from oracle import Bounded

TTY = sys.stdout.isatty()
console = Console(width=None if TTY else 120, highlight=False)


def title(text: str) -> None:
    console.print()
    if TTY:
        console.rule(f"[bold]{text}")
    else:
        console.print(f"== {text}")


def show_layout(tensor: torch.Tensor) -> None:
    layout = tensor.device_tensor_layout()
    rows = [
        ("host size", list(tensor.shape), f"stride {list(tensor.stride())}"),
        ("device_size", list(layout.device_size), "the last dim is one stick of 128 bytes"),
        ("stride_map", list(layout.stride_map), "host offset = dot(device coordinates, stride_map)"),
        ("device_dtype", layout.device_dtype.name, "1 sign, 6 exponent and 9 fraction bits"),
    ]
    table = Table(box=None if not TTY else Table().box, show_header=False)
    for name, value, meaning in rows:
        table.add_row(f"[bold]{name}[/]", str(value).replace("[", r"\["), meaning.replace("[", r"\["))
    console.print(table)


def run(function: Callable[..., torch.Tensor], *host: torch.Tensor) -> torch.Tensor:
    """Compiles, runs twice on the card, and tells how long it took and what the cores did."""
    inputs = [x.to("spyre") for x in host]
    seen = len(torch_spyre.explain.last_kernels())
    compiled = torch.compile(function)
    times = []
    for _ in range(2):
        start = time.perf_counter()
        result = compiled(*inputs).cpu()
        times.append(time.perf_counter() - start)
    console.print(f"first call {times[0]:.2f} s (compiles), second {times[1] * 1e3:.2f} ms (with the copy back)")
    for kernel in torch_spyre.explain.last_kernels()[seen:]:
        if not kernel.name.startswith("eager_"):  # Inductor makes a few constants on the device of its first graph
            console.print(kernel.text(), markup=False, soft_wrap=True)
    return result


def compare(actual: torch.Tensor, expected: Bounded) -> bool:
    """`expected` holds exact float64 values and how far the card's roundings may be from them."""
    worst = expected.worst(actual)
    error = torch.from_numpy(expected.value).sub(actual.double()).abs()
    relative = (error.mean() / torch.from_numpy(expected.value).abs().mean()).item()
    verdict = "[green]right[/]" if worst <= 1 else "[red]WRONG[/]"
    console.print(
        f"{verdict}: {actual.numel()} values, mean error {relative:.1e} of the mean value, "
        f"the worst uses {worst:.0%} of its bound (docs/accuracy.md)"
    )
    return worst <= 1


def mlp(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w1) @ w2


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


def main() -> int:
    torch.manual_seed(0)
    torch_spyre.explain.start()
    title("A tensor in card memory")
    show_layout(torch.rand(5, 10, 200, dtype=torch.float16).to("spyre"))

    title("MLP: relu(x @ w1) @ w2")
    x = torch.randn(128, 512, dtype=torch.float16)
    w1 = torch.randn(512, 1024, dtype=torch.float16) / 512**0.5
    w2 = torch.randn(1024, 256, dtype=torch.float16) / 1024**0.5
    hidden = (Bounded.of(x) @ Bounded.of(w1)).store().relu()
    good = compare(run(mlp, x, w1, w2), (hidden @ Bounded.of(w2)).store())

    title("Softmax over rows")
    logits = torch.randn(512, 1024, dtype=torch.float16)
    good &= compare(run(softmax, logits), Bounded.of(logits).softmax())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
