# SPDX-License-Identifier: Apache-2.0
"""``spyre-predict``: how fast a language model would run on a card, without running it."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch_spyre import command_line
from torch_spyre.errors import InvalidArgument
from torch_spyre.perf.device import Device
from torch_spyre.predict import configs
from torch_spyre.predict.dimensions import ModelConfig
from torch_spyre.predict.model import USABLE_BYTES, Prediction, enough_cards, memory
from torch_spyre.predict.passes import Request
from torch_spyre.predict.sharding import shard

_EXAMPLES = """llama-3.1-8b --batch 1 --prompt 512 --decode 128
config.json --sweep prompt=128,512,2048 --plot sweep.html
serve granite-3.3-8b --cards 4 --rate 2 --input 1024 --output 256   # a service; see `serve --help`"""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Point:
    """One thing to predict; `value` is what a sweep varies."""

    request: Request
    cards: int
    value: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["serve"]:
        from torch_spyre.predict.serving import command  # late: start-up

        return command.main(words[1:])
    args = make_parser().parse_args(words)
    return command_line.guarded("predict", lambda: _run(args), bad=2)


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.parser("predict", __doc__, _EXAMPLES)
    parser.add_argument("model", nargs="?", help="a published model (see --list) or a transformers config.json")
    parser.add_argument("--list", action="store_true", help="the models whose dimensions come with the package")
    parser.add_argument("--batch", type=int, default=1, help="sequences (default 1)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of each prompt (default 512)")
    parser.add_argument("--decode", type=int, default=128, help="tokens to generate (default 128)")
    parser.add_argument(
        "--weights",
        choices=("fp16", "fp8", "int8"),
        default="fp16",
        help="codes of eight bits in the linear layers but the head, routers and experts (default fp16)",
    )
    parser.add_argument("--together", action="store_true", help="all prompts in one pass (default: one after another)")
    parser.add_argument("--layers", type=int, help="as if the model had so many layers")
    parser.add_argument("--cards", metavar="1,2,4,8", help="tensor parallel on so many cards; several: a sweep")
    parser.add_argument("--sweep", metavar="batch=1,2,4", help="several values of batch, prompt, decode or cards")
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=command_line.output_file,
        help="as an HTML page: where the time goes, or the sweep",
    )
    parser.add_argument("--device", help="another device description, compared with the real card's")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="change a constant")
    parser.add_argument("--plans", action="store_true", help="also print how every matmul is divided")
    command_line.add_json(parser)
    command_line.add_quiet(parser, "no progress on stderr")
    return parser


def _run(args: argparse.Namespace) -> int:
    if args.list or not args.model:
        if args.json:
            known = configs.PUBLISHED.values()
            command_line.print_json([{"name": c.name, "parameters": c.parameters, "layers": c.layers} for c in known])
            return 0
        for c in configs.PUBLISHED.values():
            print(f"{c.name:18} {c.parameters / 1e9:7.2f} billion parameters, {c.layers} layers")
        return 0
    config = configs.find(args.model)
    if args.layers is not None:
        config = config.with_layers(args.layers)
    config = replace(config, weights=args.weights)
    name, points = _points(args)
    for point in points:
        shard(config, point.cards)  # says what does not divide before anything is compiled
    devices = _devices(args)
    if name:
        return _sweep(config, name, points, devices, args)
    return _single(config, points[0], devices, args)


def _points(args: argparse.Namespace) -> tuple[str, list[Point]]:
    """What is varied (nothing: an empty name), and what to predict."""
    request = Request(args.batch, args.prompt, args.decode, args.together)
    cards = [1] if args.cards is None else _numbers(f"--cards {args.cards}", args.cards, "4, or 1,2,4,8")
    if not args.sweep:
        return "cards" if len(cards) > 1 else "", [Point(request, n, n) for n in cards]
    name, _, text = args.sweep.partition("=")
    form = "batch=1,2,4 (or prompt=…, decode=…, cards=…)"
    if name not in ("batch", "prompt", "decode", "cards"):
        raise InvalidArgument(f"--sweep {args.sweep}: write {form}")
    values = _numbers(f"--sweep {args.sweep}", text, form)
    if args.cards is not None and (name == "cards" or len(cards) > 1):
        raise InvalidArgument(f"--sweep {args.sweep} --cards {args.cards}: vary one thing at a time")
    if name == "cards":
        return name, [Point(request, n, n) for n in values]
    changes: list[dict[str, Any]] = [{name: value} for value in values]
    return name, [Point(replace(request, **c), cards[0], v) for c, v in zip(changes, values, strict=True)]


def _numbers(option: str, text: str, form: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(v) for v in text.split(",")))
    except ValueError:
        raise InvalidArgument(f"{option}: write {form}") from None


def _devices(args: argparse.Namespace) -> dict[str, Device | None]:
    """The real card, and what --device and --set make of it."""
    if not args.device and not args.set:
        return {"spyre": None}
    from torch_spyre.predict import whatif  # late: start-up

    label = ", ".join([*([args.device] if args.device else []), *args.set])
    return {"spyre": None, label: whatif.described(args.device, args.set)}


def _refusal(config: ModelConfig, point: Point, told: bool) -> str:
    """Why it does not fit; empty if it does. `told`: the user named a number of cards."""
    from torch_spyre.predict import report  # late: start-up

    needed = memory(config, point.request, point.cards)
    if needed.total <= USABLE_BYTES:
        return ""
    if not told:
        return report.does_not_fit(config.name, needed)
    return report.does_not_fit_cards(config.name, needed, point.cards, enough_cards(config, point.request))


def _single(config: ModelConfig, point: Point, devices: dict[str, Device | None], args: argparse.Namespace) -> int:
    from torch_spyre.predict import report  # late: start-up

    refusal = _refusal(config, point, bool(args.cards))
    if refusal:
        if args.json:
            command_line.print_json({"model": config.name, "does_not_fit": [refusal], "predictions": []})
        else:
            print(refusal)
        return 1
    found, notes = _predictions(config, "", [point], devices, args.quiet)
    if args.json:
        _print_json(config, "", [point], found, notes, [])
    elif len(found) == 1:
        print(report.text_report(found["spyre"][0]))
    else:
        r, where = point.request, f" on {point.cards} cards" if point.cards > 1 else ""
        print(f"{config.name}{where}, batch {r.batch}, prompt {r.prompt}, {r.decode} tokens\n")
        print(report.side_by_side(list(found), [each[0] for each in found.values()]))
    _say_more("", [point], found, notes, args)
    if args.plot:
        _write(args, report.time_page({label: each[0] for label, each in found.items()}))
    return 0


def _sweep(
    config: ModelConfig, name: str, points: list[Point], devices: dict[str, Device | None], args: argparse.Namespace
) -> int:
    from torch_spyre.predict import report  # late: start-up

    fitting, refusals = [], []
    for point in points:
        refusal = _refusal(config, point, point.cards > 1 or name == "cards")
        if refusal:
            refusals.append(refusal if name == "cards" else f"{name} {point.value}: {refusal}")
        else:
            fitting.append(point)
    if not args.json:
        print("".join(f"{refusal}\n" for refusal in refusals), end="")
    if not fitting:
        if args.json:
            _print_json(config, name, fitting, {}, [], refusals)
        return 1
    values = [p.value for p in fitting]
    found, notes = _predictions(config, name, fitting, devices, args.quiet)
    if args.json:
        _print_json(config, name, fitting, found, notes, refusals)
    for label, each in found.items() if not args.json else ():
        heading = f"{label}:\n" if len(found) > 1 else ""
        print(heading + report.sweep_table(name, values, each))
    _say_more(name, fitting, found, notes, args)
    if args.plot:
        _write(args, report.sweep_page(name, values, found))
    return 0


def _write(args: argparse.Namespace, page: str) -> None:
    Path(args.plot).write_text(page)
    if not args.json:
        print(args.plot)


def _print_json(
    config: ModelConfig,
    name: str,
    points: Sequence[Point],
    found: dict[str, list[Prediction]],
    notes: Sequence[str],
    refusals: Sequence[str],
) -> None:
    from torch_spyre.predict import report  # late: start-up

    rows = [
        {"device": label, **({name: point.value} if name else {}), **report.data(p)}
        for label, each in found.items()
        for point, p in zip(points, each, strict=True)
    ]
    more = {"notes": list(notes), "does_not_fit": list(refusals)}
    command_line.print_json({"model": config.name, "parameters": config.parameters, **more, "predictions": rows})


def _predictions(
    config: ModelConfig, name: str, points: Sequence[Point], devices: dict[str, Device | None], quiet: bool
) -> tuple[dict[str, list[Prediction]], list[str]]:
    """For each device, one for each point; and what of the devices the compiler cannot follow."""
    from torch_spyre.predict.model import predict  # late: start-up

    found: dict[str, list[Prediction]] = {label: [] for label in devices}
    table = bool(name) or len(devices) > 1  # which has no room for assumptions
    notes = [f"assumed: {configs.UNCONFIRMED[config.name]}"] if table and config.name in configs.UNCONFIRMED else []
    runs = len(devices) * len(points)
    with _bar(quiet) as progress:
        for label, device in devices.items():
            with _assumed(device) as said:
                for point in points:
                    done = sum(map(len, found.values()))
                    where = f"{label}: " if len(devices) > 1 else f"{name} {point.value}: " if name else ""

                    def tell(block: str, i: int, n: int, done: int = done, where: str = where) -> None:
                        progress(where + block, done * n + i, runs * n)

                    found[label].append(predict(config, point.request, tell, point.cards))
            notes += said
    return found, notes


def _assumed(device: Device | None) -> contextlib.AbstractContextManager[list[str]]:
    from torch_spyre.predict import whatif  # late: start-up

    return contextlib.nullcontext([]) if device is None else whatif.assumed(device)


def _say_more(
    name: str,
    points: Sequence[Point],
    found: dict[str, list[Prediction]],
    notes: Sequence[str],
    args: argparse.Namespace,
) -> None:
    if args.json:
        return
    for note in notes:
        print(f"note: {note}")
    if not args.plans:
        return
    for label, each in found.items():
        for point, p in zip(points, each, strict=True):
            where = [*([label] if len(found) > 1 else []), *([f"{name} {point.value}"] if name else [])]
            for part, block in p.blocks.items():
                print(f"\n{', '.join([*where, part.label])} {part.batch}x{part.tokens}, cache {part.context}:")
                print("\n".join(f"  {plan}" for plan in block.plans))


@contextlib.contextmanager
def _bar(quiet: bool) -> Iterator[Progress]:
    """A progress bar on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True, quiet=quiet)) as bar:
        task = bar.add_task("starting", total=None)

        def tell(label: str, number: int, total: int) -> None:
            bar.update(task, description=label, completed=number, total=total)

        yield tell


if __name__ == "__main__":
    sys.exit(main())
