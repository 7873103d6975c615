# SPDX-License-Identifier: Apache-2.0
"""Trains a small character-level transformer on the card and, with the same data, on the CPU in fp32.

    python examples/train.py                        # 300 steps, fp16 with fp32 master weights, compiled
    python examples/train.py --dtype bf16 --eager --steps 100

Mixed precision as anywhere else in PyTorch: parameters and optimizer stay fp32, `torch.autocast("spyre")` casts the
matmuls, `torch.amp.GradScaler("spyre")` scales the loss for fp16.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}

TEXT = """
The card has thirty-two cores. Each core has a scratchpad of its own, and a ring carries data from core to core. A stick
is one hundred and twenty-eight bytes long. A tensor lies in sticks, a row of sticks is a panel, and a panel is what the
matrix unit wants. The plan says which core holds which slice, when it moves, and where the sum is made. A wrong plan
gives a trap or a wrong answer, never a lucky right one. The clock counts what the card would need, not the host.
"""


@dataclass(frozen=True)
class Size:
    width: int = 128
    layers: int = 2
    heads: int = 4
    context: int = 64
    batch: int = 16


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm1, self.norm2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Reads characters, predicts the next one at each place."""

    def __init__(self, vocab: int, size: Size) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, size.width), nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batches(size: Size, steps: int, seed: int = 0) -> tuple[int, Iterator[Tensor]]:
    """The number of characters, and windows of the text: inputs and targets in one."""
    letters = sorted(set(TEXT))
    text = torch.tensor([letters.index(c) for c in TEXT])
    draw = torch.Generator().manual_seed(seed)

    def windows() -> Iterator[Tensor]:
        for _ in range(steps):
            starts = torch.randint(0, len(text) - size.context - 1, (size.batch,), generator=draw)
            yield torch.stack([text[s : s + size.context + 1] for s in starts.tolist()])

    return len(letters), windows()


def train(
    device: str,
    steps: int,
    dtype: torch.dtype = torch.float32,
    compiled: bool = False,
    size: Size | None = None,
    tell: Callable[[float], None] | None = None,
) -> list[float]:
    """The loss of every step."""
    size = size or Size()
    vocab, data = batches(size, steps)
    torch.manual_seed(0)
    model = Model(vocab, size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01, foreach=True)
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)
    forward = torch.compile(model, dynamic=False) if compiled else model
    losses: list[Tensor] = []
    for window in data:
        window = window.to(device)
        with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
            logits = forward(window[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), window[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        if tell is not None:
            tell(float(losses[-1]))
    return [float(x) for x in losses]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--dtype", choices=DTYPES, default="fp16")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    args = parser.parse_args()

    import torch_spyre

    console = Console()
    with Progress(console=console) as progress:
        curves = {}
        for device, dtype in (("cpu", torch.float32), ("spyre", DTYPES[args.dtype])):
            task = progress.add_task(device, total=args.steps)

            def tell(loss: float, task: object = task, device: str = device) -> None:
                progress.update(task, advance=1, description=f"{device:5} loss {loss:.4f}")

            curves[device] = train(device, args.steps, dtype, device == "spyre" and not args.eager, tell=tell)
    console.print(f"{'step':>6} {'cpu fp32':>10} {'spyre ' + args.dtype:>12}")
    for step in sorted({*range(0, args.steps, max(1, args.steps // 12)), args.steps - 1}):
        console.print(f"{step:6} {curves['cpu'][step]:10.4f} {curves['spyre'][step]:12.4f}")
    console.print(str(torch_spyre.report()))


if __name__ == "__main__":
    main()
