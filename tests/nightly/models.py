# SPDX-License-Identifier: Apache-2.0
# python tests/nightly/models.py [model ...]
"""How fast models are, by commit: card time, memory traffic, and wall time against the CPU in fp32 in the same run.

Layers of true width with random weights (`torch_spyre.numerics.priority`), compiled, one forward pass. A line for each
model goes to `.nightly/models.jsonl`; printed is the table of the last commits. Card time and traffic do not depend on
the machine: a change of either is a change of the compiler or of the clock.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import history

ROOT = Path(__file__).resolve().parents[2]
KEPT = history.FOLDER / "models.jsonl"
MODELS = ("gemma-3-1b", "qwen-2.5-7b", "granite-4-h-tiny", "bert-base", "vit-base", "whisper-small")
COMMITS = 5
ROUNDS = 5


def seconds(action: Callable[[], object]) -> float:
    action()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(name: str) -> dict[str, Any]:
    import torch

    from torch_spyre import _C
    from torch_spyre.numerics.priority import build, find, to_card

    priority = find(name)
    model = build(priority, "real").eval()
    inputs = priority.inputs(model.config)
    with torch.inference_mode():
        wall_cpu = seconds(lambda: model(**inputs))
    card = torch.compile(to_card(model), dynamic=False)
    placed = {k: (v.half() if v.is_floating_point() else v).to("spyre") for k, v in inputs.items()}

    @torch.inference_mode()
    def run() -> None:
        card(**placed)
        torch.spyre.synchronize()

    wall = seconds(run)
    before, start = _C._card_counters(0), _C.clock_ns()
    run()
    after = _C._card_counters(0)
    traffic = sum(after[k] - before[k] for k in ("memory_read_bytes", "memory_write_bytes"))
    return {"card_us": (_C.clock_ns() - start) / 1e3, "traffic_mb": traffic / 1e6, "wall_ratio": wall / wall_cpu}


def table() -> str:
    lines = [json.loads(line) for line in KEPT.read_text().splitlines()]
    commits = list(dict.fromkeys(line["commit"] for line in lines))[-COMMITS:]
    text = [f"{'model':22} {'commit':13} {'card us':>10} {'traffic MB':>11} {'wall / CPU':>11}"]
    for model in dict.fromkeys(line["model"] for line in lines):
        for commit in commits:
            last = [line for line in lines if line["model"] == model and line["commit"] == commit][-1:]
            text += [
                f"{model:22} {commit:13} {x['card_us']:10.1f} {x['traffic_mb']:11.2f} {x['wall_ratio']:11.2f}"
                for x in last
            ]
    return "\n".join(text)


def main() -> int:
    warnings.simplefilter("ignore")
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    KEPT.parent.mkdir(exist_ok=True)
    failed = 0
    names = sys.argv[1:] or MODELS
    for name in names:
        try:
            result = measure(name)
        except Exception as error:
            failed += 1
            print(f"{name}: {type(error).__name__}: {error}")
            continue
        with KEPT.open("a") as file:
            file.write(json.dumps({"commit": commit, "model": name, **result}) + "\n")
    if KEPT.exists():
        print(table())
    print(f"{len(names)} cases, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
