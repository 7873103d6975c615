# SPDX-License-Identifier: Apache-2.0
"""``spyre-predict``: how fast a language model would run on a card, without running it."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch_spyre.errors import InvalidArgument, SpyreError
from torch_spyre.predict import configs
from torch_spyre.predict.model import USABLE_BYTES, Prediction, Request, memory

Progress = Callable[[str, int, int], None]


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        return _run(args)
    except (SpyreError, OSError) as e:
        print(f"spyre-predict: {e}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spyre-predict", description=__doc__)
    parser.add_argument("model", nargs="?", help="a published model (see --list) or a transformers config.json")
    parser.add_argument("--list", action="store_true", help="the models whose dimensions come with the package")
    parser.add_argument("--batch", type=int, default=1, help="sequences (default 1)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of each prompt (default 512)")
    parser.add_argument("--decode", type=int, default=128, help="tokens to generate (default 128)")
    parser.add_argument("--together", action="store_true", help="all prompts in one pass (default: one after another)")
    parser.add_argument("--layers", type=int, help="as if the model had so many layers")
    parser.add_argument("--sweep", metavar="batch=1,2,4", help="predict for several values of batch, prompt or decode")
    parser.add_argument("--plot", metavar="FILE", help="the sweep as an HTML page")
    parser.add_argument("--device", help="another device description, compared with the real card's")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change a constant")
    parser.add_argument("--plans", action="store_true", help="also print how every matmul is divided")
    return parser


def _run(args: argparse.Namespace) -> int:
    if args.list or not args.model:
        for c in configs.PUBLISHED.values():
            print(f"{c.name:18} {c.parameters / 1e9:7.2f} billion parameters, {c.layers} layers")
        return 0
    config = configs.find(args.model)
    if args.layers:
        config = replace(config, layers=args.layers)
    request = Request(args.batch, args.prompt, args.decode, args.together)
    if args.sweep:
        return _sweep(config, request, args)
    from torch_spyre.predict import report  # late: start-up

    needed = memory(config, request)
    if needed.total > USABLE_BYTES:
        print(report.does_not_fit(config.name, needed))
        return 1
    if args.device or args.set:
        return _what_if(config, request, args)
    with _bar() as progress:
        found = _predict(config, request, progress)
    print(report.text_report(found))
    if args.plans:
        for part, block in found.blocks.items():
            print(f"\n{part.label} {part.batch}x{part.tokens}, cache {part.context}:")
            print("\n".join(f"  {plan}" for plan in block.plans))
    return 0


def _predict(config: configs.ModelConfig, request: Request, progress: Progress) -> Prediction:
    from torch_spyre.predict.model import predict  # late: start-up

    return predict(config, request, progress)


def _what_if(config: configs.ModelConfig, request: Request, args: argparse.Namespace) -> int:
    from torch_spyre.predict import report, whatif  # late: start-up

    changed = whatif.described(args.device, args.set)
    label = ", ".join([*([args.device] if args.device else []), *args.set])
    with _bar() as progress:
        before = _predict(config, request, lambda block, i, n: progress(f"spyre: {block}", i, 2 * n))
        with whatif.assumed(changed) as notes:
            after = _predict(config, request, lambda block, i, n: progress(f"{label}: {block}", n + i, 2 * n))
            frozen = report.side_by_side(("spyre", label), (before, after))
    print(f"{config.name}, batch {request.batch}, prompt {request.prompt}, {request.decode} tokens\n")
    print(frozen)
    for note in notes:
        print(f"note: {note}")
    return 0


def _sweep(config: configs.ModelConfig, request: Request, args: argparse.Namespace) -> int:
    from torch_spyre.predict import report  # late: start-up

    name, _, text = args.sweep.partition("=")
    try:
        values = [int(v) for v in text.split(",")]
    except ValueError:
        values = []
    if name not in ("batch", "prompt", "decode") or not values:
        raise InvalidArgument(f"--sweep {args.sweep}: write batch=1,2,4 (or prompt=…, decode=…)")
    found: list[Prediction] = []
    fitting: list[int] = []
    with _bar() as progress:
        for i, value in enumerate(values):
            changed: dict[str, Any] = {name: value}
            point = replace(request, **changed)
            needed = memory(config, point)
            if needed.total > USABLE_BYTES:
                print(f"{name} {value}: {report.does_not_fit(config.name, needed)}")
                continue

            def tell(block: str, k: int, n: int, i: int = i, value: int = value) -> None:
                progress(f"{name} {value}: {block}", i * n + k, len(values) * n)

            found.append(_predict(config, point, tell))
            fitting.append(value)
    if not found:
        return 1
    print(report.sweep_table(name, fitting, found))
    if args.plot:
        Path(args.plot).write_text(report.sweep_page(name, fitting, found))
        print(args.plot)
    return 0


@contextlib.contextmanager
def _bar() -> Iterator[Progress]:
    """A progress bar on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("starting", total=None)

        def tell(label: str, number: int, total: int) -> None:
            bar.update(task, description=label, completed=number, total=total)

        yield tell


if __name__ == "__main__":
    sys.exit(main())
