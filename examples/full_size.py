# SPDX-License-Identifier: Apache-2.0
"""python examples/full_size.py llama-3.1-8b [--weights fp8]: a decoder of published size on the card, layer by layer.

Weights are random and seeded, or those of a checkpoint folder; each goes to the card as soon as it is made or read. The
model answers a prompt with tokens, and the share of the machine's read bandwidth that a step streams is printed. Then
every layer's output is compared with the same layer in CPU fp32, whose weights are there for that layer alone. Ends
with an error if a layer's cosine is below 0.9995, or if an operation ran on the host.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torch_spyre.models import checkpoint, full_size
from torch_spyre.models.random_weights import RandomWeights, described
from torch_spyre.models.tensor_files import TensorFiles
from torch_spyre.numerics import decoded, priority

LEAST_COSINE = 0.9995
TARGET_SHARE = 0.60


def main() -> int:
    args = parsed()
    say = (lambda *words: None) if args.json else (lambda *words: print(*words, flush=True))
    start = time.perf_counter()
    model, kind, weights = placed(args)
    placing = time.perf_counter() - start
    blocks = model.config.num_hidden_layers
    parameters, held = sum(p.numel() for p in model.parameters()), sum(p.nbytes for p in model.parameters())
    after_placing = full_size.peak_bytes()
    say(f"{args.model}, {blocks} layers, {args.weights}: {parameters:,} parameters in {held / 1e9:.2f} GB")
    say(f"placed in {placing:.0f} s; most memory of the process {after_placing / 1e9:.2f} GB, the card's included")

    vocabulary = model.config.vocab_size
    ids = torch.randint(4, vocabulary, (1, args.prompt), generator=torch.Generator().manual_seed(1))
    answer = full_size.ask(model, ids, args.tokens)
    host = full_size.on_host()
    times = (answer.card_prompt_us / 1e3, answer.card_step_us / 1e3)
    say(f"prompt of {args.prompt} tokens: {answer.prompt_s:.1f} s with compiling")
    say(f"tokens {answer.tokens}")
    say(f"on the device clock: prompt {times[0]:.1f} ms, a token {times[1]:.1f} ms")
    say(
        f"a step streams {answer.streamed_bytes / 1e9:.2f} GB, {answer.bytes_per_s / 1e9:.1f} GB/s: {answer.share:.0%} "
        f"of a plain read ({answer.read_bytes_per_s / 1e9:.1f} GB/s); target {TARGET_SHARE:.0%}"
    )
    config = model.config
    del model
    torch.spyre.empty_cache()

    say("layer  cosine with CPU fp32 (worst token)  of all tokens  in a run of the whole model")
    rows = decoded.compare(
        kind, config, weights, args.weights, answer.embedded, answer.hidden,
        lambda row: say(f"{row.layer:5}  {row.own:36.6f}  {row.own_whole:13.6f}  {row.drift:26.6f}"),
    )  # fmt: skip
    worst = min(row.own for row in rows)
    good = worst >= LEAST_COSINE and not host
    say(f"worst layer {worst:.6f} (at least {LEAST_COSINE}); on the host: {', '.join(host) or 'nothing'}")
    say(f"most memory of the process {full_size.peak_bytes() / 1e9:.2f} GB; {time.perf_counter() - start:.0f} s in all")
    if args.json:
        found = {
            "model": args.model,
            "weights": args.weights,
            "layers": blocks,
            "parameters": parameters,
            "card_bytes": held,
            "peak_bytes": {"placed": after_placing, "all": full_size.peak_bytes()},
            "seconds": {"placing": placing, "prompt": answer.prompt_s, "steps": answer.step_s},
            "card_us": {"prompt": answer.card_prompt_us, "step": answer.card_step_us},
            "tokens": answer.tokens,
            "streamed_bytes": answer.streamed_bytes,
            "bytes_per_s": answer.bytes_per_s,
            "read_bytes_per_s": answer.read_bytes_per_s,
            "share": answer.share,
            "cosines": [vars(row) for row in rows],
            "worst": worst,
            "on_host": host,
        }
        print(json.dumps(found, indent=1))
    return 0 if good else 1


def placed(args: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The model on the card, its class, and where its weights can be had again."""
    folder = Path(args.model)
    if (folder / "config.json").is_file():
        if args.layers is not None:
            raise SystemExit("--layers is for random weights; a checkpoint runs whole")
        kind, _ = checkpoint.architecture(folder)
        model = checkpoint.load(folder, weights=args.weights, progress=bar(args))
        return model, kind, TensorFiles(folder)
    import transformers

    known = priority.find(args.model)
    config = getattr(transformers, known.config)(**known.figures("whole", args.layers))
    kind = getattr(transformers, known.model)
    empty = described(kind, config, torch.float16)
    weights = RandomWeights(empty, args.seed)
    return checkpoint.fill(empty, weights, known.name, weights=args.weights, progress=bar(args)), kind, weights


def bar(args: argparse.Namespace) -> Callable[[int, int], None]:
    """A progress bar on a terminal, else nothing."""

    def draw(done: int, whole: int) -> None:
        filled = 40 * done // whole
        end = "\n" if done == whole else ""
        print(
            f"\rplacing [{'#' * filled}{'.' * (40 - filled)}] {done / 1e9:.2f} of {whole / 1e9:.2f} GB",
            end=end,
            file=sys.stderr,
        )

    return draw if sys.stderr.isatty() and not args.json else lambda done, whole: None


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a decoder of `spyre-numerics --list`, or a checkpoint folder")
    parser.add_argument("--weights", choices=("fp16", "fp8", "int8"), default="fp16")
    parser.add_argument("--layers", type=int, help="so many layers (default all)")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of the prompt (default 32)")
    parser.add_argument("--tokens", type=int, default=16, help="tokens to make (default 16)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
