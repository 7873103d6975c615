# SPDX-License-Identifier: Apache-2.0
"""torchrun --nproc-per-node 3 examples/tensor_parallel.py ["a question"]: SmolLM2-135M-Instruct on three cards.

Each card holds three of the model's nine heads, one of its three key/value heads and a third of every MLP; twice in
each layer the cards add up what they have. The first rank then asks one card that has the whole model, and compares
the tokens. `make demo-cards` starts it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from torch_spyre.errors import SpyreError

QUESTION = "Name three cities in Italy and one thing each is known for."
WARM = 4  # steps that are not timed: the block is compiled, then a step recorded


@dataclass
class Written:
    """Tokens, and the seconds that each later one took, here and on the card's clock."""

    tokens: torch.Tensor
    seconds: float
    card_seconds: float

    def line(self) -> str:
        return f"{1 / self.seconds:6.1f} tokens/s here, {self.card_seconds * 1e3:.3f} ms per token on the card's clock"


def write(model: Any, ids: torch.Tensor, tokens: int) -> Written:
    """Greedy choice of `tokens` tokens. Every rank computes the same logits, so every rank makes the same choice."""
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=ids.shape[1] + tokens)
    made, start, clock = [], 0.0, torch.spyre.Event(enable_timing=True)
    given, done = ids, 0
    with torch.inference_mode():
        for step in range(tokens):
            if step == WARM:
                torch.spyre.synchronize()
                start = time.perf_counter()
                clock.record()
            positions = torch.arange(done, done + given.shape[1])[None]
            out = model(input_ids=given, position_ids=positions, past_key_values=cache, logits_to_keep=1)
            done += given.shape[1]
            given = out.logits[:, -1:].cpu().argmax(-1)
            made.append(given)
    end = torch.spyre.Event(enable_timing=True)
    end.record()
    end.synchronize()
    counted = tokens - WARM
    return Written(
        torch.cat(made, 1)[0], (time.perf_counter() - start) / counted, clock.elapsed_time(end) * 1e-3 / counted
    )


def run(question: str, tokens: int) -> int:
    from transformers import PreTrainedTokenizerFast

    from torch_spyre.models.blocks import compile_blocks
    from torch_spyre.models.checkpoint import load
    from torch_spyre.models.smollm2 import checkpoint

    dist.init_process_group("cpu:gloo,spyre:spyreccl")
    rank, cards = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        checkpoint()  # written once, by one rank
    dist.barrier()
    folder = checkpoint()
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    model = compile_blocks(load(folder, group=dist.group.WORLD))
    mine = write(model, ids, tokens)
    dist.barrier()
    dist.destroy_process_group()
    if rank:
        return 0
    one = write(compile_blocks(load(folder)), ids, tokens)
    print(tokenizer.decode(mine.tokens, skip_special_tokens=True).strip())
    print(f"\n{cards} cards: {mine.line()}\n1 card:  {one.line()}")
    equal = int((mine.tokens != one.tokens).int().cumsum(0).eq(0).sum())
    print(f"the first {equal} of {tokens} tokens are those of one card")
    return 0 if equal == tokens else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--tokens", type=int, default=32)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TORCH_SPYRE_DOWNCAST_WARN", "0")  # ids never come near the limits of int32
    if "RANK" not in os.environ:
        parser.error("start it with: torchrun --nproc-per-node 3 examples/tensor_parallel.py")
    try:
        return run(args.question, args.tokens)
    except SpyreError as error:
        print(f"rank {os.environ['RANK']}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
