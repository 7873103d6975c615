# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/perplexity.py [--tokens 4096] [--only WORD ...]: what 8-bit weights cost SmolLM2 in perplexity.

The model reads a public-domain text (benchmarks/data) in windows of 512 tokens on the card: once with fp16 weights,
then with each 8-bit form. Printed are perplexities, how much larger than with fp16 they are, and the mean cosine of
the logits with those of fp16. Ends with an error if a form is off by more than its limit, or if an operation ran on
the host.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch

import torch_spyre
from torch_spyre.models.blocks import compile_blocks
from torch_spyre.models.checkpoint import load
from torch_spyre.models.quantised_linear import HEAD, quantise
from torch_spyre.models.smollm2 import checkpoint

TEXT = Path(__file__).parent / "data/alice.txt"
WINDOW = 512
# Form -> weights, codes also of the activations, layers that stay as they are, most that the perplexity may grow.
FORMS: dict[str, tuple[str, bool, tuple[str, ...], float]] = {
    "fp16": ("", False, HEAD, 0.0),
    "int8 weights": ("int8", False, HEAD, 0.03),
    "fp8 weights": ("fp8", False, HEAD, 0.03),
    "int8 and head": ("int8", False, (), 0.03),
    "fp8 and head": ("fp8", False, (), 0.03),
    "int8 dynamic": ("int8", True, HEAD, 0.06),
    "fp8 dynamic": ("fp8", True, HEAD, 0.06),
}


def tokens_of(folder: Path, count: int) -> torch.Tensor:
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    ids = tokenizer(TEXT.read_text(), return_tensors="pt").input_ids[0]
    if len(ids) < count:
        raise SystemExit(f"{TEXT} has {len(ids)} tokens, fewer than {count}")
    return torch.as_tensor(ids[:count])


@torch.no_grad()
def logits_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Window after window, on the host in fp32 where they are compared."""
    windows = [model(ids[None, i : i + WINDOW], use_cache=False).logits[0].cpu() for i in range(0, len(ids), WINDOW)]
    return torch.cat(windows)


def loss_of(logits: torch.Tensor, ids: torch.Tensor) -> float:
    """Mean negative log likelihood of each token that follows another one in its window."""
    total, count = 0.0, 0
    for i in range(0, len(ids), WINDOW):
        part, targets = logits[i : i + WINDOW - 1].float(), ids[i + 1 : i + WINDOW]
        total += float(torch.nn.functional.cross_entropy(part[: len(targets)], targets, reduction="sum"))
        count += len(targets)
    return total / count


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    steps = range(0, len(a), WINDOW)
    parts = [torch.cosine_similarity(a[i : i + WINDOW].float(), b[i : i + WINDOW].float(), -1) for i in steps]
    return float(torch.cat(parts).mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--only", nargs="*", default=[], help="forms whose name contains one of these words, and fp16")
    args = parser.parse_args()
    folder = checkpoint()
    ids = tokens_of(folder, args.tokens)
    print(f"{'form':<14} {'perplexity':>10} {'against fp16':>13} {'cosine':>8} {'seconds':>8}")
    base: tuple[float, torch.Tensor] | None = None
    failed = False
    for name, (weights, activations, skip, limit) in FORMS.items():
        if base is not None and args.only and not any(word in name for word in args.only):
            continue
        model = load(folder)
        if weights:
            quantise(model, weights, activations, skip)
        compile_blocks(model)
        start = time.perf_counter()
        logits = logits_of(model, ids)
        seconds, loss = time.perf_counter() - start, loss_of(logits, ids)
        if base is None:
            base = (loss, logits)
        growth = math.exp(loss - base[0]) - 1
        failed |= growth > limit
        print(f"{name:<14} {math.exp(loss):>10.3f} {growth:>+12.2%} {cosine(logits, base[1]):>9.5f} {seconds:>8.1f}")
        del model, logits
    if torch_spyre.report().fallbacks:
        print(torch_spyre.report())
        failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
