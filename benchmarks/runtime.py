# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/runtime.py [--strict]: what PyTorch costs on top of the card, weight copies, the autoload."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from common import Figure, finish, interleaved, machine_line

from torch_spyre import _C, _card
from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.kernel import kernel

HALF = torch.float16


def launch_overhead() -> list[Figure]:
    """A matmul of about a millisecond: the card's own interface, our launcher, an eager op."""
    a, b = torch.randn(256, 512, dtype=HALF), torch.randn(512, 512, dtype=HALF)
    on_card = [a.to("spyre"), b.to("spyre")]
    inspect.start()
    compiled = torch.compile(torch.mm, dynamic=False)
    compiled(*on_card)
    record = inspect.records()[-1]
    inspect.stop()
    card = _card.Card(0)
    program = _card.Program.load(record.program.binary)
    sizes = [program.arg_bytes(i) for i in range(program.n_args)]
    buffers = [(card.allocate(n), n) for n in sizes]
    for address, n in buffers:
        card.write(address, bytes(n))
    launcher = kernel(record.name, record.graph_json)

    def submitted(action: Callable[[], object], wait: Callable[[], object]) -> float:
        """Median seconds until a submission returns; the work itself follows and is waited for outside the clock."""
        times = []
        for _ in range(200):
            start = time.perf_counter()
            action()
            times.append(time.perf_counter() - start)
            wait()
        return statistics.median(times)

    base = submitted(lambda: card.launch(program, buffers), card.synchronize)
    start = time.perf_counter()
    for _ in range(50):
        launcher(*on_card)
    torch.spyre.synchronize()
    work = (time.perf_counter() - start) / 50
    figures = []
    contenders = {"compiled artefact": launcher, "eager op": torch.mm}
    for name, action in contenders.items():
        extra = submitted(lambda action=action: action(*on_card), torch.spyre.synchronize) - base
        note = f"{work * 1e3:.2f} ms kernel"
        figures.append(Figure(f"{name}: submission over the card's own interface", extra * 1e6, "us", "<", 20, note))
        figures.append(Figure(f"{name}: as a share of the kernel", extra / work * 100, "%", "<", 5))
    return figures


def new_offsets() -> list[Figure]:
    """Eager ops on views that begin elsewhere each time, against the same ops on a view that was used before."""
    x = torch.randn(400, 130, dtype=HALF).to("spyre")
    forms = {
        "x[i] + 1": lambda i: x[i] + 1,
        "x[i] <= x[i + 1]": lambda i: x[i] <= x[i + 1],
        "x[i, 6].add_(1.)": lambda i: x[i, 6].add_(1.0),
    }

    def seconds(form: Callable[[int], object], places: range) -> float:
        times = []
        for i in places:
            start = time.perf_counter()
            form(i)
            times.append(time.perf_counter() - start)
            torch.spyre.synchronize()
        return statistics.median(times)

    figures = []
    for name, form in forms.items():
        form(0)
        new, again = (seconds(form, range(1, 40)) for _ in range(2))
        note = f"{new * 1e6:.1f} us, then {again * 1e6:.1f} us"
        figures.append(Figure(f"{name}, each i for the first time, over again", new / again, "x", "<", 2, note))
    return figures


def copies() -> list[Figure]:
    """64 MB fp16, both layouts of a 2-D weight, against Tensor.clone()."""
    host = torch.randn(4096, 8192, dtype=HALF)
    plain = host.to("spyre")
    swapped = _C.spyre_empty_with_layout(
        [4096, 8192], [8192, 1], HALF, _C.SpyreTensorLayout([4096, 8192], [8192, 1], HALF, [1, 0])
    )
    back = torch.empty_like(host)
    seconds = interleaved(
        {
            "clone": host.clone,
            "in": lambda: plain.copy_(host),
            "in swapped": lambda: swapped.copy_(host),
            "out": lambda: back.copy_(plain),
            "out swapped": lambda: back.copy_(swapped),
        },
        rounds=5,
    )
    return [
        Figure(f"64 MB fp16 {name}, speed vs clone()", seconds["clone"] / seconds[name], "x", ">=", 0.5)
        for name in ("in", "in swapped", "out", "out swapped")
    ]


def autoload() -> list[Figure]:
    """What ``import torch`` pays for the device."""

    def seconds(on: str) -> float:
        code = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"
        env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": on}
        return float(
            subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
        )

    pairs = [(seconds("0"), seconds("1")) for _ in range(7)]
    extra = statistics.median(b for _, b in pairs) - statistics.median(a for a, _ in pairs)
    return [Figure("import torch with autoload, extra", extra * 1e3, "ms", "<", 150)]


if __name__ == "__main__":
    print(machine_line())
    sys.exit(finish([*launch_overhead(), *new_offsets(), *copies(), *autoload()]))
