# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/numerics.py: what the card's 16-bit format costs in typical places of a model; CPU only, seconds.

The numbers of docs/numerics.md. Errors are root mean squares, relative to the exact result.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from torch_spyre.numerics.format import round_dl16
from torch_spyre.numerics.layers import Errors


def _error(found: Tensor, exact: Tensor) -> str:
    return f"{Errors.of(found, exact).relative:.2e}"


def stores(x: Tensor) -> Iterator[tuple[str, str]]:
    yield "one store of fp32 values", _error(round_dl16(x), x)
    yield "  the same into IEEE fp16", _error(x.half().float(), x)
    yield "  the same into bf16", _error(x.bfloat16().float(), x)
    through = round_dl16(x.half())
    yield "fp32 through fp16 onto the card", _error(through, x)
    yield "  magnitudes grow on average by", f"{float(through.abs().mean() / x.abs().mean()) - 1:.2e}"
    bf16 = x.bfloat16().float()
    yield "bf16 onto the card", _error(round_dl16(bf16), bf16)


def cancellation(x: Tensor) -> Iterator[tuple[str, str]]:
    for offset in (10, 100, 1000):
        yield f"(x + {offset}) - {offset}", _error(round_dl16(round_dl16(round_dl16(x) + offset) - offset), x)


def softmax() -> Iterator[tuple[str, str]]:
    for spread in (1, 4, 16, 64):
        scores = torch.randn(256, 512) * spread
        found = torch.softmax(round_dl16(scores), -1)
        yield f"softmax of scores that were stored, spread {spread}", _error(found, torch.softmax(scores, -1))


def running_sums() -> Iterator[tuple[str, str]]:
    for count in (256, 1024, 4096):
        total = torch.zeros(1)
        for _ in range(count):
            total = round_dl16(total + 0.1)
        yield f"{count} times 0.1, stored after each addition", f"{float(total):.1f} instead of {0.1 * count:.1f}"


def rotary() -> Iterator[tuple[str, str]]:
    places, rates = torch.arange(2048.0)[:, None], 1 / 10000 ** (torch.arange(0, 64, 2) / 64)
    exact = torch.cos(places * rates)
    stored = float((torch.cos(places * round_dl16(rates)) - exact).abs().max())
    yield "rotary table, 2048 places: frequencies stored in 16 bits", f"off by up to {stored:.2f}"
    yield "  only the cosines stored", f"off by up to {float((round_dl16(exact) - exact).abs().max()):.5f}"


def updates() -> Iterator[tuple[str, str]]:
    for step in (1e-3, 9e-4):
        yield f"a weight of 1 plus {step:g}, stored in 16 bits", f"{float(round_dl16(torch.tensor(1 + step))):.6f}"


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(1 << 20)
    for rows in (stores(x), cancellation(x), softmax(), running_sums(), rotary(), updates()):
        for name, value in rows:
            print(f"{name:60} {value}")


if __name__ == "__main__":
    main()
