# SPDX-License-Identifier: Apache-2.0
"""spyre-ktir: check, run, time and dump KTIR files."""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from torch_spyre import command_line
from torch_spyre.errors import InvalidArgument, SpyreError, exit_status

_EXAMPLES = """example softmax > softmax.mlir
check kernels/*.mlir
time softmax.mlir -n 20"""
Found = tuple[str, dict[str, Any]]  # what a command found about a file: as text, and as data


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else list(argv)
    other = _commands_of_others().get(given[0]) if given else None
    if other is not None:
        return int(other.load()(given[1:]))
    return command_line.guarded("ktir", lambda: _run_all(parse(make_parser(), given)))


def _run_all(options: argparse.Namespace) -> int:
    if getattr(options, "sanitize", False):
        os.environ["SPYRE_SANITIZE"] = "1"  # read when the card is opened
    status, records = 0, []
    for file in options.files:
        try:
            text, record = options.action(file, options)
            records.append({"file": file, **record})
            if not options.json:
                print(text, end="" if text.endswith("\n") else "\n")
        except SpyreError as error:
            print(f"{file}: {type(error).__name__}: {error}", file=sys.stderr)
            records.append({"file": file, "error": command_line.error_record(error)})
            status = max(status, exit_status(error))
    if options.json:
        command_line.print_json(records)
    if getattr(options, "sanitize", False):
        from torch_spyre import sanitizer  # late: start-up

        sanitizer.print_reports()
    return status


def _commands_of_others() -> dict[str, EntryPoint]:
    """Commands of front ends, which stand above this package: functions of the arguments that follow their names."""
    return {point.name: point for point in entry_points(group="torch_spyre.ktir_commands")}


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command on files. The form that ``dump`` prints may also stand before the files."""
    options = parser.parse_args(argv)
    if options.files[0] in getattr(options, "forms", ()) and not Path(options.files[0]).exists():
        options.form = options.files.pop(0)
        if not options.files:
            parser.error(f"dump {options.form} of which file?")
    return options


def add_forms(dump: argparse.ArgumentParser, *forms: str) -> None:
    dump.add_argument("--form", choices=forms, default=forms[0], help=f"which one (default {forms[0]})")
    dump.set_defaults(forms=forms)


def make_parser() -> argparse.ArgumentParser:
    others = ", ".join(_commands_of_others())
    more = f"commands of front ends: {others}" if others else ""
    parser = command_line.parser("ktir", "Check, run, time and dump KTIR files.", _EXAMPLES, epilog=more)
    commands = parser.add_subparsers(required=True, metavar="command")
    text = "print a kernel that comes with the package; without a name, their names"
    command = commands.add_parser("example", help=text, description=text)
    command.set_defaults(action=_example)
    command.add_argument("files", nargs="*", metavar="name", default=[""])
    command_line.add_json(command)
    for name, action, text in (
        ("check", _check, "parse, verify, check the rules and compile"),
        ("run", _run, "run with random inputs and print what the outputs hold"),
        ("time", _time, "time on the card's clock and on this machine"),
        ("dump", _dump, "print the normalised KTIR, the instructions or the explanation"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(action=action)
        if name == "dump":
            add_forms(command, "ktir", "program", "explain")
        command.add_argument("files", nargs="+", metavar="file")
        command_line.add_json(command)
        command_line.add_quiet(command, "no notes on stderr")
        command.add_argument("-f", "--function", help="the function, if a file has several (check: all of them)")
        command.add_argument("--strict", action="store_true", help="refuse older spellings and accesses out of range")
        command.add_argument(
            "--axis0-slowest", action="store_true", help="flat tile ids count along the last axis first"
        )
        command.add_argument(
            "--stick-addresses", action="store_true", help="literal addresses count sticks of 128 bytes"
        )
        command.add_argument(
            "--wide-accumulate", action="store_true", help="sums of products that a loop carries stay fp32"
        )
        command.add_argument(
            "-s", "--set", action="append", default=[], metavar="NAME=VALUE", help="a scalar argument; repeatable"
        )
        if name in ("run", "time"):
            command.add_argument("--seed", type=int, default=0, help="of the random inputs")
            command.add_argument("--sanitize", action="store_true", help="check every access while running")
        if name == "time":
            command.add_argument("-n", "--repeat", type=command_line.count, default=10, help="launches to time")
    return parser


def _example(name: str, options: argparse.Namespace) -> Found:
    from torch_spyre import ktir  # late: start-up

    if not name:
        return "\n".join(ktir.examples()), {"examples": ktir.examples()}
    path = ktir.example(name)
    return path.read_text(), {"path": str(path), "text": path.read_text()}


def _load(file: str, options: argparse.Namespace) -> Any:
    from torch_spyre import ktir  # late: start-up

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ktir.KtirWarning)
        module = ktir.load(
            Path(file),
            strict=options.strict,
            axis0_fastest=not options.axis0_slowest,
            stick_addresses=options.stick_addresses,
            wide_accumulate=options.wide_accumulate,
        )
    for note in () if options.quiet else module.warnings:
        print(f"note: {note}", file=sys.stderr)
    return module


def _scalars(function: Any, options: argparse.Namespace) -> dict[str, int | float]:
    """Values of --set that this function has."""
    values: dict[str, int | float] = {}
    for entry in options.set:
        name, equals, number = entry.partition("=")
        argument = function.argument(name)
        if argument is None and len(options.files) > 1:
            continue
        if not equals or argument is None or argument.role == "buffer":
            raise InvalidArgument(f"--set {entry}: {function.signature} has no such scalar; write NAME=VALUE")
        try:
            values[name] = int(number) if argument.role == "integer" else float(number)
        except ValueError:
            raise InvalidArgument(f"--set {entry}: {number} is not a {argument.type}") from None
    return values


def _integers(function: Any, values: dict[str, int | float]) -> dict[str, int]:
    return {n: int(v) for n, v in values.items() if function.argument(n).role == "integer"}


def _check(file: str, options: argparse.Namespace) -> Found:
    module = _load(file, options)
    lines, functions = [], []
    chosen = module.functions if options.function is None else {options.function: module.function(options.function)}
    for name, function in chosen.items():
        values = _integers(function, _scalars(function, options))
        program = module.compile(name, **values)
        instructions, lx = len(program.instructions), program.lx_bytes
        lines.append(
            f"{file}: {function.signature} on {function.cores} tiles: {instructions} instructions, LX {lx} bytes"
        )
        functions.append({**_named(function), "instructions": instructions, "lx_bytes": lx})
    return "\n".join(lines), {"functions": functions}


def _named(function: Any) -> dict[str, Any]:
    return {"function": function.name, "signature": function.signature, "tiles": function.cores}


def _dump(file: str, options: argparse.Namespace) -> Found:
    module = _load(file, options)
    if options.form == "ktir":
        return module.text, {"form": "ktir", "text": module.text}
    function = module.function(options.function)
    values = _integers(function, _scalars(function, options))
    program = options.form == "program"
    text = module.compile(function.name, **values).explain() if program else module.explain(function.name, **values)
    return text, {**_named(function), "form": options.form, "text": text}


def _run(file: str, options: argparse.Namespace) -> Found:
    import torch

    from torch_spyre.ktir.sample import facts, line, random_arguments  # late: start-up

    module = _load(file, options)
    function = module.function(options.function)
    arguments, memory = random_arguments(module, function, _scalars(function, options), options.seed)
    before = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}
    module.run(function.name, memory=memory or None, **arguments)
    values = facts(before, arguments, memory)
    lines = [f"{file}: {function.signature} on {function.cores} tiles", *(f"  {line(fact)}" for fact in values)]
    return "\n".join(lines), {**_named(function), "seed": options.seed, "values": values}


def _time(file: str, options: argparse.Namespace) -> Found:
    import torch

    from torch_spyre.ktir.report import timeline  # late: start-up
    from torch_spyre.ktir.sample import random_arguments  # late: start-up

    module = _load(file, options)
    function = module.function(options.function)
    arguments, memory = random_arguments(module, function, _scalars(function, options), options.seed)
    integers = {a.position: int(arguments[a.name]) for a in function.arguments if a.role == "integer"}
    started = time.perf_counter()
    program = module.compile(function.name, **{function.arguments[p].name: v for p, v in integers.items()})
    compiled = time.perf_counter() - started
    placed = module.place(function.name, **arguments)
    seconds = []
    for _ in range(max(1, options.repeat) + 1):
        started = time.perf_counter()
        module.run(function.name, memory=memory or None, **placed)
        torch.spyre.synchronize()
        seconds.append(time.perf_counter() - started)
    wall = sorted(seconds[1:])
    model = timeline(program, integers)
    median = wall[len(wall) // 2]
    text = (
        f"{file}: {function.signature} on {function.cores} tiles\n"
        f"  card: {model.duration_ns / 1e3:.1f} us, bound by {model.bottleneck}\n"
        f"  this machine: median {median * 1e3:.3f} ms, best {wall[0] * 1e3:.3f} ms of {len(wall)}; "
        f"compiled in {compiled:.2f} s"
    )
    card = {"card_us": model.duration_ns / 1e3, "bottleneck": model.bottleneck}
    here = {"median_ms": median * 1e3, "best_ms": wall[0] * 1e3, "launches": len(wall), "compiled_s": compiled}
    return text, {**_named(function), **card, **here}


if __name__ == "__main__":
    sys.exit(main())
