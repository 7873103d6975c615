# SPDX-License-Identifier: Apache-2.0
"""``spyre-predict serve``: how a service would feel to its users, with vLLM's scheduler, in virtual time."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from torch_spyre import command_line
from torch_spyre.errors import InvalidArgument
from torch_spyre.predict import configs
from torch_spyre.predict.dimensions import ModelConfig
from torch_spyre.predict.serving import workload
from torch_spyre.predict.serving.scheduler import Limits
from torch_spyre.predict.serving.workload import Arrival
from torch_spyre.predict.sharding import shard

_EXAMPLES = """granite-3.3-8b --cards 4 --rate 2 --input 1024 --output 256
granite-3.3-8b --cards 4 --trace requests.jsonl --chunk 256,512,1024 --plot timeline.html"""


def main(argv: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    return command_line.guarded("predict serve", lambda: _run(args), bad=2)


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.parser("predict serve", __doc__, _EXAMPLES)
    parser.add_argument("model", help="a published model (spyre-predict --list) or a transformers config.json")
    parser.add_argument("--cards", type=int, default=1, help="tensor parallel on so many cards (default 1)")
    parser.add_argument("--requests", type=int, default=200, help="how many arrive (default 200)")
    parser.add_argument("--rate", type=float, default=1.0, help="arrivals per second, inf: all at once (default 1)")
    parser.add_argument("--input", type=int, default=1024, help="tokens of each prompt (default 1024)")
    parser.add_argument("--output", type=int, default=256, help="tokens to generate for each (default 256)")
    parser.add_argument("--lengths", metavar="FILE.csv", help="columns input and output to draw lengths from instead")
    parser.add_argument(
        "--trace", metavar="FILE.jsonl", help='lines {"at": s, "input": n, "output": n} instead of drawing'
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default 0)")
    parser.add_argument("--chunk", default="512", metavar="256,512", help="tokens of a step; several: compared")
    parser.add_argument(
        "--sequences", default="32", metavar="8,32", help="requests at work together; several: compared"
    )
    parser.add_argument("--length", type=int, default=4096, help="longest request, with its answer (default 4096)")
    parser.add_argument("--layers", type=int, help="as if the model had so many layers")
    parser.add_argument("--plot", metavar="FILE", help="the timeline as an HTML page")
    command_line.add_json(parser)
    command_line.add_quiet(parser, "no progress on stderr")
    return parser


def _run(args: argparse.Namespace) -> int:
    config = configs.find(args.model)
    if args.layers is not None:
        config = config.with_layers(args.layers)
    shard(config, args.cards)  # says what does not divide before anything is compiled
    arrivals = _arrivals(args)
    variants = _variants(args)
    from torch_spyre.predict.serving import figures  # late: start-up
    from torch_spyre.predict.serving.prices import StepPrices  # late: start-up
    from torch_spyre.predict.serving.simulate import simulate  # late: start-up

    runs = {}
    with _bar(args.quiet) as (say, move):
        prices = StepPrices(config, args.cards, say)
        for i, (label, limits) in enumerate(variants.items()):

            def tell(done: int, count: int, i: int = i) -> None:
                move(i * count + done, len(variants) * count)

            runs[label] = simulate(config, arrivals, limits, prices, args.cards, tell)
    title = _title(config, args, len(arrivals))
    if args.json:
        rows = [{"variant": label, **figures.data(run)} for label, run in runs.items()]
        command_line.print_json({"model": config.name, "cards": args.cards, "runs": rows})
    else:
        print(f"{title}\n\n{figures.report(runs)}")
        print("\nVirtual time of cards and scheduler; of the host, only the cost of a launch is in it.")
    if args.plot:
        Path(args.plot).write_text(figures.timeline_page(title, runs))
        if not args.json:
            print(args.plot)
    return 0


def _title(config: ModelConfig, args: argparse.Namespace, count: int) -> str:
    cards = f"{args.cards} card{'s' * (args.cards > 1)}"
    source = args.trace or f"{args.rate:g} per second, {args.lengths or f'{args.input} tokens and {args.output} more'}"
    return f"{config.name} on {cards}: {count} requests, {source}"


def _arrivals(args: argparse.Namespace) -> list[Arrival]:
    if args.trace:
        if args.lengths:
            raise InvalidArgument("--trace and --lengths: a trace has its lengths; give one of them")
        return workload.from_trace(Path(args.trace))
    lengths = workload.lengths_of(Path(args.lengths)) if args.lengths else [(args.input, args.output)]
    return workload.drawn(args.requests, args.rate, lengths, args.seed)


def _variants(args: argparse.Namespace) -> dict[str, Limits]:
    chunks, sequences = (_numbers(f"--{n}", getattr(args, n)) for n in ("chunk", "sequences"))
    if args.length < 2:
        raise InvalidArgument(f"--length {args.length}: a request has a prompt and an answer")
    found = {}
    for chunk, together in product(chunks, sequences):
        parts = [f"chunk {chunk}"] * (len(chunks) > 1) + [f"{together} sequences"] * (len(sequences) > 1)
        if chunk < together:
            raise InvalidArgument(f"--chunk {chunk}: a step has a token for each of {together} sequences; give more")
        found[", ".join(parts) or "value"] = replace(Limits(), tokens=chunk, sequences=together, length=args.length)
    return found


def _numbers(option: str, words: str) -> list[int]:
    try:
        found = list(dict.fromkeys(int(v) for v in words.split(",")))
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise InvalidArgument(f"{option} {words}: write a number above 0, or several as 256,512")
    return found


@contextlib.contextmanager
def _bar(quiet: bool) -> Iterator[tuple[Callable[[str], None], Callable[[int, int], None]]]:
    """A progress bar on stderr: what is compiled, and how many requests are served."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True, quiet=quiet)) as bar:
        task = bar.add_task("starting", total=None)
        yield (
            lambda words: bar.update(task, description=words),
            lambda done, count: bar.update(task, completed=done, total=count),
        )
