# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/llm.py [--quick] [--strict] [--only WORD ...]: SmolLM2-135M on the card and on the CPU device.

One run, interleaved, medians: prefill of 512 tokens, decoding from 64 tokens of context with the greedy choice of each
token read back. Every contender runs the same Hugging Face code on the same weights; llama.cpp takes part, with its
own code, where it is installed (benchmarks/llamacpp.py). --quick leaves out whatever takes
minutes to compile; --only keeps the contenders whose name contains one of the words. On a machine with other work,
--clock cpu --threads 1 counts the CPU seconds of the process instead of the time on the wall.
"""

from __future__ import annotations

import argparse
import copy
import mmap
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo
from common import CONTEXT, PROMPT, STEPS, Figure, finish, interleaved, machine_line
from llamacpp import FILE_TYPES, LlamaCpp, installed

from torch_spyre import _card

CPU_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FROZEN = {"max_autotune": True, "freezing": True}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
EIGHT_BIT = ("fp8", "int8")
QUICK = ("card blocks", *(f"card {name}" for name in EIGHT_BIT), "cpu eager fp32", "cpu eager bf16", "cpu eager fp16")
QUICK += tuple(f"llama.cpp {kind}" for kind in FILE_TYPES)


@dataclass
class Contender:
    """One way to run the model. `static` caches have a fixed size, as compiled graphs of the whole model want them."""

    name: str
    model: Any
    device: str
    forward: Callable[..., Any]
    static: bool
    clock: Callable[[], float]
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"prefill": [], "decode": []})
    cache: Any = None
    kept: dict[int, Any] = field(default_factory=dict)

    def new_cache(self, length: int) -> Any:
        from transformers import DynamicCache, StaticCache

        config = self.model.config
        if not self.static:
            return DynamicCache(config=config)
        # A compiled graph knows its cache by its tensors: one for each length, made outside the graph.
        if length not in self.kept:
            cache = self.kept[length] = StaticCache(config=config, max_cache_len=length)
            heads, width = config.num_key_value_heads, config.head_dim
            cache.early_initialization(1, heads, width, self.model.dtype, torch.device(self.device))
        self.kept[length].reset()
        return self.kept[length]

    def run(self, ids: torch.Tensor, start: int, cache: Any) -> torch.Tensor:
        positions = torch.arange(start, start + ids.shape[1])[None].to(self.device)
        out = self.forward(input_ids=ids, position_ids=positions, past_key_values=cache, logits_to_keep=1)
        return out.logits[:, -1:].argmax(-1)

    def prefill(self, ids: torch.Tensor) -> float:
        cache = self.new_cache(PROMPT)
        start = self.clock()
        int(self.run(ids.to(self.device), 0, cache))
        return self.clock() - start

    def decode(self, ids: torch.Tensor) -> float:
        """Seconds per token of STEPS tokens that follow CONTEXT others."""
        if self.cache is None:
            self.cache = self.new_cache(2 * CONTEXT)
            for i in range(CONTEXT):
                self.run(ids[:, i : i + 1].to(self.device), i, self.cache)
        token = ids[:, CONTEXT : CONTEXT + 1].to(self.device)
        start = self.clock()
        for i in range(STEPS):
            token = self.run(token, CONTEXT + i, self.cache)
            int(token)
        seconds = (self.clock() - start) / STEPS
        self.rewind()
        return seconds

    def rewind(self) -> None:
        if not self.static:
            self.cache.crop(-STEPS)
            return
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(CONTEXT)


def load(dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    from torch_spyre.models.smollm2 import checkpoint

    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint(), dtype=dtype)
    return model.eval()


def contenders(wanted: Callable[[str], bool], clock: Callable[[], float]) -> Iterator[Any]:
    """Those whose name is wanted. Models of one device and dtype share their weights."""
    from torch_spyre.models.blocks import compile_blocks
    from torch_spyre.models.quantised_linear import quantise

    if any(wanted(f"card {kind}") for kind in ("eager", "blocks", "whole", *EIGHT_BIT)):
        card = load(torch.float16).to("spyre")
        if wanted("card eager"):
            yield Contender("card eager", card, "spyre", card, False, clock)
        if wanted("card whole"):
            yield Contender("card whole", card, "spyre", torch.compile(card, dynamic=False), True, clock)
        if wanted("card blocks"):
            blocks = compile_blocks(sharing(card))
            yield Contender("card blocks", blocks, "spyre", blocks, False, clock)
        for kind in EIGHT_BIT:
            if wanted(f"card {kind}"):
                blocks = compile_blocks(quantise(sharing(card), kind, skip=()))  # Q8_0 holds the head so, too
                yield Contender(f"card {kind}", blocks, "spyre", blocks, False, clock)
    for name, dtype in CPU_DTYPES.items():
        kinds = [kind for kind in ("eager", "compile", "max-autotune") if wanted(f"cpu {kind} {name}")]
        model = load(dtype) if kinds else None
        for kind in kinds:
            options = FROZEN if kind == "max-autotune" else {}
            forward = model if kind == "eager" else torch.compile(sharing(model), dynamic=False, options=options)
            yield Contender(f"cpu {kind} {name}", model, "cpu", forward, kind != "eager", clock)
    for kind in FILE_TYPES:
        if wanted(f"llama.cpp {kind}") and installed():
            yield LlamaCpp(clock, torch.get_num_threads(), kind)


def sharing(model: Any) -> Any:
    """A copy of the modules on the same parameters."""
    memo = {id(p): p for p in [*model.parameters(), *model.buffers()]}
    return copy.deepcopy(model, memo)


def measure(entrants: list[Contender], rounds: int) -> None:
    ids = torch.randint(100, 40_000, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    for entrant in entrants:  # compiles and warms up
        start = time.perf_counter()
        for _ in range(2):
            entrant.prefill(ids)
            entrant.decode(ids)
        print(f"  {entrant.name}: ready after {time.perf_counter() - start:.0f} s", flush=True)
    for _ in range(rounds):
        for entrant in entrants:
            entrant.seconds["prefill"].append(entrant.prefill(ids))
        for _ in range(3):
            for entrant in entrants:
                entrant.seconds["decode"].append(entrant.decode(ids))


def rate(entrant: Contender, part: str) -> float:
    """Tokens per second."""
    return (PROMPT if part == "prefill" else 1) / statistics.median(entrant.seconds[part])


def read_bandwidth() -> float:
    """Bytes per second of the best reader of 512 MiB at hand, on small and on huge pages."""
    size = 512 << 20
    huge = mmap.mmap(-1, size)
    huge.madvise(mmap.MADV_HUGEPAGE)
    arrays = {"small": torch.ones(size // 4), "huge": torch.frombuffer(huge, dtype=torch.float32).fill_(1)}
    readers = {f"{name} {op}": getattr(a, op) for name, a in arrays.items() for op in ("sum", "amax")}
    return size / min(interleaved(readers, rounds=5).values())


def fastest(entrants: list[Contender], part: str) -> Contender | None:
    return max(entrants, key=lambda e: rate(e, part), default=None)


def ratio(what: str, ours: Contender | None, theirs: Contender | None, part: str, target: float) -> Iterator[Figure]:
    if ours is None or theirs is None:
        return
    note = f"{ours.name} {rate(ours, part):.1f} tokens/s, {theirs.name} {rate(theirs, part):.1f}"
    yield Figure(f"{part} {what}", rate(ours, part) / rate(theirs, part), "x", ">=", target, note)


def ratios(entrants: list[Contender], clock: str) -> list[Figure]:
    """fp16 decodes 1.1 times as fast as llama.cpp and 2.5 times as PyTorch, or as fast as memory is read."""
    eight = [e for e in entrants if e.name.removeprefix("card ") in EIGHT_BIT]
    ours = [e for e in entrants if e.device == "spyre" and e not in eight]
    theirs = [e for e in entrants if e.device == "cpu"]
    others = {e.name: e for e in entrants if e.device == "llama.cpp"}
    figures: list[Figure] = []
    for part, of_pytorch, of_fp16, of_llama in (("decode", 2.5, 3.0, 1.1), ("prefill", 1.0, 4.0, 1.2)):
        best = fastest(ours, part)
        without_bf16 = [e for e in theirs if "bf16" not in e.name]
        fp16_eager = [e for e in theirs if e.name == "cpu eager fp16"]
        figures += ratio("vs best of CPU", best, fastest(theirs, part), part, of_pytorch)
        figures += ratio("vs best of CPU without bf16", best, fastest(without_bf16, part), part, of_pytorch)
        figures += ratio("vs CPU fp16 eager", best, fastest(fp16_eager, part), part, of_fp16)
        figures += ratio("vs llama.cpp F16", best, others.get("llama.cpp F16"), part, of_llama)
    if ours and clock == "wall":
        figures.append(streaming(max(ours, key=lambda e: rate(e, "decode"))))
    best = fastest(eight, "decode")
    figures += ratio("in 8 bits vs fp16", best, fastest(ours, "decode"), "decode", 1.5)
    figures += ratio("in 8 bits vs llama.cpp Q8_0", best, others.get("llama.cpp Q8_0"), "decode", 1.1)
    return figures


def streaming(best: Contender) -> Figure:
    peak = read_bandwidth()
    weights = 2 * sum(p.numel() for p in best.model.parameters())
    speed = weights * rate(best, "decode")
    note = f"{weights / 1e6:.0f} MB per token, {speed / 1e9:.1f} of {peak / 1e9:.1f} GB/s"
    return Figure("decode, weights streamed / read bandwidth", speed / peak, "", ">=", 0.85, note)


def print_rates(entrants: list[Contender]) -> None:
    print(f"\n{'tokens/s':<24}{'prefill ' + str(PROMPT):>14}{'decode at ' + str(CONTEXT):>14}")
    for entrant in entrants:
        print(f"{entrant.name:<24}{rate(entrant, 'prefill'):>14.1f}{rate(entrant, 'decode'):>14.1f}")
    print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="nothing that takes minutes to compile")
    parser.add_argument("--only", nargs="+", default=[], help="contenders whose name contains one of these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a target is missed")
    args = parser.parse_args()

    def wanted(name: str) -> bool:
        return (name in QUICK or not args.quick) and (not args.only or any(word in name for word in args.only))

    # All models share the code of one class: with the limit of 8 the last ones would silently run uncompiled.
    torch._dynamo.config.recompile_limit = 64
    torch.set_num_threads(args.threads)
    _card.set_host_threads(args.threads)
    print(machine_line(), flush=True)
    with torch.no_grad():
        entrants = list(contenders(wanted, CLOCKS[args.clock]))
        measure(entrants, args.rounds)
    print_rates(entrants)
    return finish(ratios(entrants, args.clock))


if __name__ == "__main__":
    sys.exit(main())
