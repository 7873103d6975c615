# SPDX-License-Identifier: Apache-2.0
"""vLLM on the card against vLLM's own CPU backend, same engine, same weights (SmolLM2), one run.

    make .venv-serving/.setup-stamp; .venv-serving/bin/python benchmarks/serving.py [--rounds 3] [--dtypes float32]

Each contender is a process of its own, one after the other, in eager mode on the CPU side; figures are medians. Prints
tokens per second of one stream and of eight, the time to the first token of a 512-token prompt, and the time from the
start of the process to a ready engine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

DECODED = 48
PROMPT = 512


def measure(dtype: str, rounds: int) -> dict[str, float]:
    began = float(os.environ["SERVING_BENCHMARK_BEGAN"])
    from vllm import LLM, SamplingParams

    from torch_spyre.models.smollm2 import checkpoint

    limits = {
        "max_model_len": 768,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "kv_cache_memory_bytes": 256 << 20,
    }
    engine = LLM(str(checkpoint()), dtype=dtype, enforce_eager=True, enable_prefix_caching=False, **limits)
    ready = time.time() - began

    def seconds(streams: int, length: int, tokens: int) -> float:
        prompts = [
            {"prompt_token_ids": [(n * 131 + k * 7) % 30000 + 100 for n in range(length)]} for k in range(streams)
        ]
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        start = time.perf_counter()
        engine.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    def decoded(streams: int) -> float:
        """Tokens per second after the first one."""
        return streams * (DECODED - 1) / (seconds(streams, 16, DECODED) - seconds(streams, 16, 1))

    seconds(1, 16, 4)
    return {
        "one stream, tokens/s": statistics.median(decoded(1) for _ in range(rounds)),
        "eight streams, tokens/s": statistics.median(decoded(8) for _ in range(rounds)),
        "first token of 512, s": statistics.median(seconds(1, PROMPT, 1) for _ in range(rounds)),
        "ready, s": ready,
    }


def run(name: str, dtype: str, rounds: int) -> dict[str, float]:
    quiet = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    quiet |= {"HF_HUB_OFFLINE": "1", "SERVING_BENCHMARK_BEGAN": str(time.time())}
    environment = {**os.environ, **quiet, **({} if name == "card" else {"VLLM_PLUGINS": ""})}
    words = [sys.executable, __file__, "--measure", dtype, "--rounds", str(rounds)]
    lines = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return dict(json.loads(next(line for line in lines if line.startswith('{"one stream'))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtypes", default="float32,float16,bfloat16", help="of the CPU backend")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed here: run this with .venv-serving/bin/python (make serve sets it up)")
        return
    if given.measure:
        print(json.dumps(measure(given.measure, given.rounds)))
        return
    run("card", "float16", 1)  # fills the caches
    found: dict[str, Any] = {"card": run("card", "float16", given.rounds)}
    for dtype in given.dtypes.split(","):
        found[f"CPU {dtype}"] = run("cpu", dtype, given.rounds)
    for name, figures in found.items():
        print(f"{name:14}", "  ".join(f"{what}: {value:.3g}" for what, value in figures.items()))
    others = [figures for name, figures in found.items() if name != "card"]
    for what, value in found["card"].items():
        best = max(f[what] for f in others) if "tokens/s" in what else min(f[what] for f in others)
        print(f"card / best CPU, {what}: {value / best:.2f}")


if __name__ == "__main__":
    main()
