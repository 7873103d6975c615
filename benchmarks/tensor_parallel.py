# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/tensor_parallel.py [--strict]: decoding steps on several cards against one card with all the cores.

Llama-3.2-1B's configuration, cut to two layers, with random weights. Contenders are processes that wait while they are
not measured: one with a card that has every core of the machine, two and eight that share cores and model. Every round
samples all of them; figures are medians. Processor time counts all threads of all ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import Figure, finish, machine_line

CONTENDERS = (1, 2, 8)
ROUNDS, STEPS, WARM = 7, 8, 6
LLAMA = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "num_hidden_layers": 2,
}


def make_checkpoint(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**LLAMA, rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    LlamaForCausalLM(config).to(torch.float16).save_pretrained(folder)


class Worker:
    """A process that holds one card, and its share of the model."""

    def __init__(self, folder: Path, rank: int, size: int, port: int) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        if size > 1:
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            env |= {name: str(value) for name, value in ranks.items()}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", str(folder)], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a rank ended before it was asked to")
        return json.loads(line)


class Team:
    """The ranks that share one model."""

    def __init__(self, folder: Path, size: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.workers = [Worker(folder, rank, size, port) for rank in range(size)]
        for worker in self.workers:
            worker.answer()
        self.seconds: list[float] = []
        self.processor: list[float] = []

    def sample(self) -> None:
        for worker in self.workers:
            worker.tell("run")
        answers = [worker.answer() for worker in self.workers]
        self.seconds.append(max(a["seconds"] for a in answers))
        self.processor.append(sum(a["processor"] for a in answers))

    def end(self) -> None:
        for worker in self.workers:
            worker.tell("end")
        for worker in self.workers:
            worker.process.wait()


def work(folder: Path) -> None:
    """A worker: one line of JSON when it is ready, and one for each line that it reads."""
    import torch
    import torch.distributed as dist

    from torch_spyre.models.blocks import compile_blocks
    from torch_spyre.models.checkpoint import load

    group = None
    if "RANK" in os.environ:
        dist.init_process_group("cpu:gloo,spyre:spyreccl")
        group = dist.group.WORLD
    decode = Decoding(compile_blocks(load(folder, group=group)))
    decode.steps(WARM)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        if group is not None:
            dist.barrier()
        start, used = time.perf_counter(), time.process_time()
        decode.steps(STEPS)
        answer = {"seconds": time.perf_counter() - start, "processor": time.process_time() - used}
        print(json.dumps(answer), flush=True)
    if group is not None:
        torch.spyre.synchronize()
        dist.destroy_process_group()


class Decoding:
    """Greedy text after a first token, for as long as the cache has room."""

    def __init__(self, model: Any) -> None:
        import torch
        from transformers import StaticCache

        self.model = model
        self.cache = StaticCache(config=model.config, max_cache_len=WARM + STEPS * (ROUNDS + 1))
        self.token, self.done = torch.tensor([[1]]), 0

    def steps(self, count: int) -> None:
        import torch

        with torch.inference_mode():
            for _ in range(count):
                positions = torch.tensor([[self.done]])
                out = self.model(input_ids=self.token, position_ids=positions, past_key_values=self.cache)
                self.token = out.logits[:, -1:].argmax(-1).cpu()
                self.done += 1


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="spyre-llama-"))
    try:
        make_checkpoint(folder)
        teams = {size: Team(folder, size) for size in CONTENDERS}
        for _ in range(ROUNDS):
            for team in teams.values():
                team.sample()
        for team in teams.values():
            team.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(machine_line())
    step = {size: statistics.median(team.seconds) / STEPS for size, team in teams.items()}
    used = {size: statistics.median(team.processor) / STEPS for size, team in teams.items()}
    figures = [
        Figure("decoding step, 2 cards", step[1] / step[2], "x one card", ">=", 0.9,
               f"{step[2] * 1e3:.1f} ms, one card with all cores {step[1] * 1e3:.1f} ms"),
        Figure("processor time of 8 ranks", used[8] / used[1], "x one card", "<=", 1.5,
               f"{used[8] * 1e3:.1f} ms per step, one card {used[1] * 1e3:.1f} ms"),
    ]  # fmt: skip
    return finish(figures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strict", action="store_true", help="fail where a target is missed")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        work(args.worker)
        sys.exit(0)
    sys.exit(main())
