# SPDX-License-Identifier: Apache-2.0
"""Plan quality by the card's own traffic counters: decoder blocks, norms and softmaxes.

    python benchmarks/plan_quality.py [--check] [--explain] [--block granite] [--sequence 512] [--decode]

For a block it prints device-memory bytes split into weights, inputs and outputs, and intermediates, as the cores draw
them (the counters) and with multicast slices counted once, restickifies and hand-overs over the ring, and what the time
model says of the greedy and of the joint plan. The Granite-like block is written out by hand and with nn.Linear and
scaled_dot_product_attention; others (--block llama, smollm2) with the latter, --decode with one token and a cache of
512. `--check` fails if intermediates exceed 15 % of the bytes or a norm or softmax touches memory more than once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from torch_spyre import _C
from torch_spyre._inductor.debug import inspect

LIMIT = 0.15


@dataclass(frozen=True)
class Shape:
    sequence: int = 512
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head: int = 128
    mlp: int = 12800


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)
    return (wide * scale).to(x.dtype) * weight


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Block(torch.nn.Module):
    """One decoder layer as Granite has it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        s, self.shape = shape, shape

        def weight(rows: int, columns: int) -> torch.nn.Parameter:
            return torch.nn.Parameter((torch.randn(rows, columns) * rows**-0.5).to(torch.float16), requires_grad=False)

        self.query = weight(s.hidden, s.heads * s.head)
        self.key = weight(s.hidden, s.kv_heads * s.head)
        self.value = weight(s.hidden, s.kv_heads * s.head)
        self.output = weight(s.heads * s.head, s.hidden)
        self.gate = weight(s.hidden, s.mlp)
        self.up = weight(s.hidden, s.mlp)
        self.down = weight(s.mlp, s.hidden)
        self.norm1 = torch.nn.Parameter(torch.ones(s.hidden, dtype=torch.float16), requires_grad=False)
        self.norm2 = torch.nn.Parameter(torch.ones(s.hidden, dtype=torch.float16), requires_grad=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(rms_norm(x, self.norm1), cos, sin, mask) @ self.output
        h = rms_norm(x, self.norm2)
        return x + (functional.silu(h @ self.gate) * (h @ self.up)) @ self.down

    def attention(self, h: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        s = self.shape
        q, k, v = ((h @ w).view(-1, n, s.head).transpose(0, 1) for w, n in
                   ((self.query, s.heads), (self.key, s.kv_heads), (self.value, s.kv_heads)))  # fmt: skip
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q = q.reshape(s.kv_heads, -1, q.shape[1], s.head)  # query heads that share a key
        scores = q @ k.unsqueeze(1).transpose(-1, -2) * s.head**-0.5 + mask
        mixed = torch.softmax(scores, -1) @ v.unsqueeze(1)
        return mixed.reshape(s.heads, -1, s.head).transpose(0, 1).reshape(-1, s.heads * s.head)


class LinearBlock(torch.nn.Module):
    """The same as users write it: nn.Linear, nn.RMSNorm, SDPA with shared keys, and a cache if there is one."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        s, self.shape = shape, shape

        def linear(inputs: int, outputs: int) -> torch.nn.Linear:
            return torch.nn.Linear(inputs, outputs, bias=False, dtype=torch.float16)

        self.query, self.output = linear(s.hidden, s.heads * s.head), linear(s.heads * s.head, s.hidden)
        self.key, self.value = (linear(s.hidden, s.kv_heads * s.head) for _ in range(2))
        self.gate, self.up, self.down = linear(s.hidden, s.mlp), linear(s.hidden, s.mlp), linear(s.mlp, s.hidden)
        self.norm1, self.norm2 = (torch.nn.RMSNorm(s.hidden, eps=1e-5, dtype=torch.float16) for _ in range(2))
        self.requires_grad_(False)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor, *cache: torch.Tensor
    ) -> torch.Tensor:
        s, h = self.shape, self.norm1(x)
        q, k, v = (project(h).view(1, -1, heads, s.head).transpose(1, 2) for project, heads in
                   ((self.query, s.heads), (self.key, s.kv_heads), (self.value, s.kv_heads)))  # fmt: skip
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache:
            keys, values, position = cache
            k, v = keys.index_copy_(2, position, k), values.index_copy_(2, position, v)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(-1, s.heads * s.head))
        h = self.norm2(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


SHAPES = {
    "granite": Shape(),
    "llama": Shape(mlp=14336),
    "smollm2": Shape(hidden=576, heads=9, kv_heads=3, head=64, mlp=1536),
}


def decode_inputs(shape: Shape) -> list[torch.Tensor]:
    """One token at position 300 of a cache of `shape.sequence`."""
    _, cos, sin, mask = block_inputs(shape)
    at = min(300, shape.sequence - 1)
    cache = [torch.randn(1, shape.kv_heads, shape.sequence, shape.head).to(torch.float16) for _ in range(2)]
    row = slice(at, at + 1)
    return [torch.randn(1, shape.hidden).to(torch.float16), cos[row], sin[row], mask[row], *cache, torch.tensor([at])]


def block_inputs(shape: Shape) -> list[torch.Tensor]:
    angle = torch.arange(shape.sequence)[:, None] * 1e4 ** (-torch.arange(0, shape.head, 2) / shape.head)
    angle = torch.cat((angle, angle), -1)
    mask = torch.full((shape.sequence, shape.sequence), float("-inf")).triu(1)
    x = torch.randn(shape.sequence, shape.hidden)
    return [t.to(torch.float16) for t in (x, angle.cos(), angle.sin(), mask)]


def counters() -> dict[str, int]:
    torch.spyre.synchronize()
    return dict(_C._card_counters(0))


def measure(
    fn: Callable[..., torch.Tensor], args: Sequence[torch.Tensor]
) -> tuple[int, int, list[inspect.KernelRecord], torch.Tensor]:
    """Bytes read and written by one call after the first, the kernels it compiled, and its result on the host."""
    inspect.start()
    before = len(inspect.records())
    compiled = torch.compile(fn, dynamic=False)
    compiled(*args)
    inspect.stop()
    a = counters()
    result = compiled(*args)
    b = counters()
    kernels = [r for r in inspect.records()[before:] if not r.name.startswith("eager")]
    return (
        b["memory_read_bytes"] - a["memory_read_bytes"],
        b["memory_write_bytes"] - a["memory_write_bytes"],
        kernels,
        result.cpu().float(),
    )


def by_role(kernels: Sequence[inspect.KernelRecord], weights: Sequence[int], once: bool) -> dict[str, int]:
    """Device-memory bytes by what the tensor is: drawn by the cores, or with a multicast slice counted once."""
    from torch_spyre.backend.program.decoder import decode
    from torch_spyre.perf.survey import survey

    total = {"weights": 0, "inputs and outputs": 0, "intermediates": 0}
    for record in kernels:
        bindings = record.plan.bindings
        for works in survey(decode(record.program.binary)).phases:
            for work in works:
                for stream in (*work.inputs, work.output):
                    if not stream.in_memory:
                        continue
                    role, _ = bindings[stream.arg]
                    key = "intermediates" if role == "pool" else "inputs and outputs"
                    if role == "input" and record.plan.kernel.args[stream.arg].bytes in weights:
                        key = "weights"
                    output = stream is work.output
                    total[key] += stream.total if once and not output else stream.core_bytes * work.cores
    return total


def report_block(name: str, block: torch.nn.Module, args: Sequence[torch.Tensor], explain: bool) -> float:
    """Prints an account of one block; returns the share of intermediates."""
    torch._dynamo.reset()
    want = block.float()(*(a.float() if a.is_floating_point() else a for a in args))
    block = block.to(torch.float16).to("spyre")
    device_args = [a.to("spyre") for a in args]
    with torch.no_grad():
        read, written, kernels, got = measure(block, device_args)
    error = ((got - want).abs().max() / want.abs().max()).item()
    ops = [op.op for r in kernels for op in r.plan.kernel.ops]
    print(f"{name}: {len(kernels)} kernel(s), {len(ops)} operations, relative error {error:.1e}")
    print(f"  {ops.count('ReStickifyOpHBM')} restickifies, {ops.count('handover')} hand-overs over the ring")
    print(f"  counters: {read:,} bytes read, {written:,} written")
    weights = [p.numel() * 2 for p in block.parameters() if p.dim() == 2]
    temps = [b for r in kernels for b in r.plan.graph.buffers.values() if b.kind == "temp"]
    spilled = sorted({b.name for b in temps if b.placement == "memory" and b.layout})
    print(f"  intermediates in memory: {', '.join(spilled) or 'none'}")
    share = 0.0
    for once in (False, True):
        total = by_role(kernels, weights, once)
        everything = sum(total.values())
        label = "multicast slices once" if once else "as the cores draw them"
        print(f"  {label}: " + ", ".join(f"{k} {v:,} ({v / everything:.1%})" for k, v in total.items()))
        if not once and abs(everything - read - written) > 0.02 * everything:
            print(f"    (attributed {everything:,} of {read + written:,} counted bytes)")
        share = max(share, total["intermediates"] / everything)
    for record in kernels:
        greedy, joint = predicted(record)
        print(f"  {record.name}: division priced {greedy / 1e3:,.0f} us greedy, {joint / 1e3:,.0f} us joint")
        if explain:
            print(record.text())
    return share


def predicted(record: inspect.KernelRecord) -> tuple[float, float]:
    """Nanoseconds that the planner's own model gives the greedy and the joint division of a kernel."""
    from torch_spyre._inductor.passes.division import compare

    return compare(record.plan.graph)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias)


CASES: list[tuple[str, Callable[..., torch.Tensor], list[tuple[int, ...]]]] = [
    ("softmax dim -1, 512x1024", lambda x: torch.softmax(x, -1), [(512, 1024)]),
    ("softmax dim -1, 4096x1024", lambda x: torch.softmax(x, -1), [(4096, 1024)]),
    ("softmax dim 0, 1024x512", lambda x: torch.softmax(x, 0), [(1024, 512)]),
    ("layer norm 1151x8192", layer_norm, [(1151, 8192), (8192,), (8192,)]),
    ("RMS norm 512x4096", lambda x, w: functional.rms_norm(x, x.shape[-1:], w), [(512, 4096), (4096,)]),
]


def report_cases() -> bool:
    """Does every case read its large input once and write its result once?"""
    good = True
    for name, fn, sizes in CASES:
        torch._dynamo.reset()
        args = [torch.randn(s).to(torch.float16).to("spyre") for s in sizes]
        read, written, _, _ = measure(fn, args)
        tensor = args[0].numel() * 2
        rows = sum(a.numel() * 2 for a in args[1:])
        # Every core needs every weight of a row, so those are drawn once by each core.
        once = read <= tensor + 64 * rows + (64 << 10) and written <= int(tensor * 1.01) + (64 << 10)
        good &= once
        print(f"{name}: read {read:,}, written {written:,}; tensor {tensor:,}; {'once' if once else 'MORE THAN ONCE'}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--explain", action="store_true")
    parser.add_argument("--block", choices=sorted(SHAPES), default="granite")
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--decode", action="store_true")
    options = parser.parse_args()
    shape = replace(SHAPES[options.block], sequence=options.sequence)
    title = f"{options.block} S={shape.sequence} hidden={shape.hidden}"
    torch.manual_seed(0)
    if options.decode:
        report_block(f"{title}, one token", LinearBlock(shape), decode_inputs(shape), options.explain)
        return 0
    good, shares = report_cases(), []
    if options.block == "granite":
        shares.append(report_block(f"{title}, by hand", Block(shape), block_inputs(shape), options.explain))
    shares.append(report_block(f"{title}, modules", LinearBlock(shape), block_inputs(shape), options.explain))
    print(f"intermediates: {max(shares):.1%} of the device-memory bytes (limit {LIMIT:.0%})")
    return int(options.check and not (good and max(shares) <= LIMIT))


if __name__ == "__main__":
    sys.exit(main())
