# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/compile_time.py [--strict]: compiling a Llama-like block, cold and warm, next to CPU Inductor.

Each compilation runs in a process of its own, with caches of its own that start empty; warm is a second process that
finds them filled. Times are from the first call of the compiled block to its result, imports and moves excluded.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

from common import Figure, finish, machine_line

ROUNDS = 3
CHILD = """
import json, sys, time
import torch
from plan_quality import Block, Shape, block_inputs

device = sys.argv[1]
torch.manual_seed(0)
shape = Shape(sequence=128, hidden=1024, heads=8, kv_heads=2, head=128, mlp=2816)
block, inputs = Block(shape).to(device), [x.to(device) for x in block_inputs(shape)]
torch.compile(lambda x: x + 1, dynamic=False)(torch.ones(8, 8, dtype=torch.float16, device=device))  # lazy imports
compiled = torch.compile(block, dynamic=False)
start = time.perf_counter()
with torch.no_grad():
    compiled(*inputs).cpu()
print(json.dumps(time.perf_counter() - start))
"""


def seconds(device: str, caches: str) -> float:
    here = os.path.dirname(os.path.abspath(__file__))
    env = {
        **os.environ,
        "SPYRE_CACHE_DIR": os.path.join(caches, "programs"),
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(caches, "inductor"),
        "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]),
    }
    run = subprocess.run([sys.executable, "-c", CHILD, device], env=env, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{device}: {run.stderr[-2000:]}")
    return float(json.loads(run.stdout.splitlines()[-1]))


def main() -> int:
    print(machine_line())
    cold: dict[str, list[float]] = {"spyre": [], "cpu": []}
    warm = []
    for _ in range(ROUNDS):
        for device, found in cold.items():
            with tempfile.TemporaryDirectory(prefix="spyre-bench-") as caches:
                found.append(seconds(device, caches))
                if device == "spyre":
                    warm.append(seconds(device, caches))
    medians = {device: statistics.median(found) for device, found in cold.items()}
    note = f"{medians['spyre']:.1f} s, CPU {medians['cpu']:.1f} s"
    ratio = medians["spyre"] / medians["cpu"]
    return finish(
        [
            Figure("Llama-like block, cold, time vs Inductor on the CPU", ratio, "x", "<=", 1.5, note),
            Figure("Llama-like block, warm", statistics.median(warm), "s", "<=", 1.0),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
