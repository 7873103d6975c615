# SPDX-License-Identifier: Apache-2.0
"""``spyre-numerics``: where a model on the card departs from the CPU in fp32, layer by layer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch_spyre import command_line
from torch_spyre.errors import InvalidArgument
from torch_spyre.predict.configs import ALIASES

_TEXT = "The card has thirty-two cores, and each of them has a scratchpad of its own. A ring carries data between them."


def main(argv: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    return command_line.guarded("numerics", lambda: _run(args))


def _from(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return number


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.parser(
        "numerics",
        __doc__,
        "smollm2\ngranite-4-h-tiny --mode both --plot page.html\ngranite-4-h-small --stream --layers 6",
    )
    parser.add_argument("model", nargs="?", help="a priority model (see --list), smollm2, or a checkpoint folder")
    parser.add_argument("--list", action="store_true", help="the priority models, which get random weights")
    parser.add_argument("--mode", choices=("eager", "compiled", "both"), default="eager", help="default eager")
    parser.add_argument(
        "--depth", type=_from(0), default=0, help="levels of modules inside a layer, eager only (default 0)"
    )
    parser.add_argument("--size", choices=("tiny", "real"), default="tiny", help="widths of a priority model")
    parser.add_argument("--layers", type=_from(1), help="run so many layers")
    parser.add_argument(
        "--stream",
        action="store_true",
        help="layer by layer, with the weights of one layer at a time: published widths and vocabulary, all layers",
    )
    parser.add_argument("--text", default=_TEXT, help="what a checkpoint with a tokenizer reads")
    parser.add_argument("--plot", metavar="FILE", type=command_line.output_file, help="also as an HTML page")
    command_line.add_json(parser)
    command_line.add_quiet(parser, "no progress on stderr")
    return parser


def _run(args: argparse.Namespace) -> int:
    from torch_spyre.numerics import priority  # late: start-up

    if args.list or not args.model:
        if args.json:
            known = priority.STREAMED.values()
            command_line.print_json([{"name": p.name, "layers": p.layers, "model": p.model} for p in known])
            return 0
        for p in priority.STREAMED.values():
            print(f"{p.name:18} {p.layers} layers, {p.model}" + ("" if p.name in priority.PRIORITY else ", --stream"))
        return 0
    from rich.console import Console

    from torch_spyre.numerics import layers, report  # late: start-up

    if args.stream and args.depth:
        raise InvalidArgument("--stream walks whole layers; leave out --depth")
    model, inputs = (None, {}) if args.stream else _model(args)
    modes = ("eager", "compiled") if args.mode == "both" else (args.mode,)
    console, found = Console(width=None if sys.stdout.isatty() else 160), []
    for mode in modes:
        with Console(stderr=True, quiet=args.quiet).status(f"{args.model}, {mode}") as status:
            if args.stream:
                found.append(_streamed(args, mode, status))
            else:
                found.append(layers.compare(model, inputs, args.model, mode, args.depth))
        if not args.json:
            report.show(found[-1], console)
    if args.plot:
        Path(args.plot).write_text(report.page_of(found))
        if not args.json:
            console.print(args.plot)
    if args.json:
        command_line.print_json([report.data(r) for r in found])
    return 1 if any(layer.nans or layer.saturated for r in found for layer in r.layers) else 0


def _streamed(args: argparse.Namespace, mode: str, status: Any) -> Any:
    from torch_spyre.numerics import priority, streamed  # late: start-up

    def progress(what: str, done: int, all_parts: int) -> None:
        status.update(f"{args.model}, {mode}, {what}: {done} of {all_parts}")

    known = priority.STREAMED.get(ALIASES.get(args.model.lower(), args.model.lower()))
    if known is not None:
        return streamed.compare_random(known, mode, args.layers, progress)
    folder = _folder(args)
    return streamed.compare_folder(folder, args.model, mode, args.layers, lambda c: _text_of(folder, args, c), progress)


def _model(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The model in fp32 with weights that the card has exactly, and its inputs."""
    from torch_spyre.numerics import priority  # late: start-up

    known = priority.PRIORITY.get(args.model.lower())
    if known is not None:
        try:
            model = priority.build(known, args.size, args.layers)
        except Exception as error:  # configurations check themselves, each in its own way
            if args.layers is None:
                raise
            reason = str(error).strip().splitlines()[-1].strip()
            raise InvalidArgument(f"--layers {args.layers}: {args.model} has no such form ({reason})") from error
        inputs: dict[str, Any] = dict(known.inputs(model.config))
        return model, {**inputs, **({"use_cache": False} if known.cached else {})}
    return _checkpoint(_folder(args), args)


def _folder(args: argparse.Namespace) -> Path:
    from torch_spyre.numerics import priority  # late: start-up

    folder = Path(args.model)
    if args.model.lower() == "smollm2":
        from torch_spyre.models import smollm2  # late: start-up

        folder = smollm2.checkpoint()
    if not (folder / "config.json").is_file():
        names = ", ".join([*(priority.STREAMED if args.stream else priority.PRIORITY), "smollm2"])
        raise InvalidArgument(f"no model {args.model!r}: not one of {names}, and no folder with a config.json")
    return folder


def _checkpoint(folder: Path, args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    from torch_spyre.numerics.format import round_dl16  # late: start-up

    more = {} if args.layers is None else {"num_hidden_layers": args.layers}
    config = transformers.AutoConfig.from_pretrained(folder, **more)
    kinds = config.architectures or [""]
    causal = kinds[0].endswith(("ForCausalLM", "LMHeadModel"))
    loader = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
    model = loader.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(round_dl16(p.half()))
    return model, {**_text_of(folder, args, config), **({"use_cache": False} if causal else {})}


def _text_of(folder: Path, args: argparse.Namespace, config: Any) -> dict[str, Any]:
    """What the model reads: the text, or without a tokenizer some tokens."""
    import torch
    import transformers

    try:
        return dict(transformers.AutoTokenizer.from_pretrained(folder)(args.text, return_tensors="pt"))
    except (OSError, ValueError):
        return {"input_ids": torch.arange(4, 40)[None] % config.vocab_size}


if __name__ == "__main__":
    sys.exit(main())
