# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/conv_nets.py [--large] [--strict]: nets of convolutions next to the CPU in fp32.

resnet18, convnext-tiny and a small UNet with random weights. Each runs in a process of its own with empty caches: the
first call plans, later ones alternate with the CPU, and the best of each counts.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile

import torch
from common import Figure, finish, machine_line, sample
from torch import nn


class Basic(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.down = nn.Identity()
        if stride > 1 or inner != outer:
            self.down = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.down(x))


def resnet18(classes: int = 1000) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    inner = 64
    for outer, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Basic(inner, outer, stride), Basic(outer, outer, 1)]
        inner = outer
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class ChannelNorm(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class NextBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.scale = nn.Parameter(torch.full((dim,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(nn.functional.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext_tiny(classes: int = 1000) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96, eps=1e-6)]
    dims = (96, 192, 384, 768)
    for stage, (dim, depth) in enumerate(zip(dims, (3, 3, 9, 3), strict=True)):
        if stage:
            layers += [ChannelNorm(dims[stage - 1], eps=1e-6), nn.Conv2d(dims[stage - 1], dim, 2, 2)]
        layers += [NextBlock(dim) for _ in range(depth)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768), nn.Linear(768, classes))


class Res(nn.Module):
    """Group norm, SiLU, convolution, twice."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        silu = nn.functional.silu
        y = self.conv1(silu(self.norm1(x)))
        return self.conv2(silu(self.norm2(y))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, width: int = 32, levels: int = 3) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(levels)]
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.downs = nn.ModuleList(Res(a, b) for a, b in zip([width, *widths[:-1]], widths, strict=True))
        self.shrinks = nn.ModuleList(nn.Conv2d(w, w, 3, 2, 1) for w in widths[:-1])
        self.middle = Res(widths[-1], widths[-1])
        self.grows = nn.ModuleList(nn.Conv2d(w, w // 2, 3, padding=1) for w in reversed(widths[1:]))
        self.ups = nn.ModuleList(Res(w, w // 2) for w in reversed(widths[1:]))
        self.norm, self.last = nn.GroupNorm(8, width), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, kept = self.first(x), []
        for i, down in enumerate(self.downs):
            x = down(x)
            if i < len(self.shrinks):
                kept.append(x)
                x = self.shrinks[i](x)
        x = self.middle(x)
        for grow, up in zip(self.grows, self.ups, strict=True):
            x = grow(nn.functional.interpolate(x, scale_factor=2.0, mode="nearest"))
            x = up(torch.cat([x, kept.pop()], 1))
        return self.last(nn.functional.silu(self.norm(x)))


def unet(classes: int = 0) -> nn.Module:
    return UNet()


NETS = {"resnet18": resnet18, "convnext-tiny": convnext_tiny, "UNet": unet}


CHILD = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import torch
import conv_nets
print(json.dumps(conv_nets.measured(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
"""


def measured(name: str, size: int, batch: int, mode: str) -> list[float]:
    """Seconds: the first call, and the best of later ones on the card and on the CPU in fp32, in turns."""
    torch.manual_seed(0)
    net, x = NETS[name]().eval(), torch.randn(batch, 3, size, size)
    card, there = copy.deepcopy(net).half().to("spyre"), x.half().to("spyre")
    (there + there).cpu()  # lazy imports
    run = card if mode == "eager" else torch.compile(card, dynamic=False)
    with torch.no_grad():
        cold = sample(lambda: run(there).cpu(), 1)
        times: dict[str, list[float]] = {"card": [], "cpu": []}
        for _ in range(6):
            for _ in range(3):
                times["card"].append(sample(lambda: run(there).cpu(), 1))
            for _ in range(3):
                times["cpu"].append(sample(lambda: net(x), 1))
    return [cold, min(times["card"]), min(times["cpu"])]


def in_process(*what: object) -> list[float]:
    """`measured` in a process of its own, with caches of its own that start empty."""
    with tempfile.TemporaryDirectory(prefix="spyre-bench-") as caches:
        here = os.path.dirname(os.path.abspath(__file__))
        env = {
            **os.environ,
            "SPYRE_CACHE_DIR": os.path.join(caches, "programs"),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(caches, "inductor"),
            "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, "-c", CHILD, *map(str, what)]
        run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{what}: {run.stderr[-2000:]}")
    return list(json.loads(run.stdout.splitlines()[-1]))


def main() -> int:
    print(machine_line())
    sizes = [(32, 1), (32, 8)] + ([(64, 8), (224, 1)] if "--large" in sys.argv else [])
    figures = []
    for name in NETS:
        for size, batch in sizes:
            for mode in ("eager", "compiled"):
                cold, card, cpu = in_process(name, size, batch, mode)
                title = f"{name}, {batch} x {size}x{size}, {mode}"
                note = f"{card * 1e3:.1f} ms, CPU {cpu * 1e3:.1f} ms"
                figures.append(Figure(f"{title}: time vs CPU fp32", card / cpu, "x", "<=", 3, note))
                if name == "resnet18" and (size, batch) == (32, 1):
                    figures.append(Figure(f"{title}: first call", cold, "s", "<=", 10))
                else:
                    print(f"{title}: first call {cold:.1f} s")
    return finish(figures)


if __name__ == "__main__":
    sys.exit(main())
