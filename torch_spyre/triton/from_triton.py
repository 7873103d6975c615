# SPDX-License-Identifier: Apache-2.0
"""spyre-ktir from-triton: the KTIR of a Triton kernel for given types, constants, integers and grid; no launch."""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from torch_spyre import command_line
from torch_spyre.errors import InvalidArgument, SpyreError
from torch_spyre.triton import adapter


def main(argv: Sequence[str]) -> int:
    options = make_parser().parse_args(argv)
    sys.path.insert(0, os.getcwd())
    try:
        print(_text(options), end="")
    except SpyreError as error:
        print(f"{options.kernel}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    text = "print the KTIR of a Triton kernel"
    parser = argparse.ArgumentParser(prog=f"{command_line.full_name('ktir')} from-triton", description=text)
    parser.add_argument("kernel", metavar="module:kernel")
    add = parser.add_argument
    add("-t", "--type", action="append", default=[], metavar="NAME=TYPE", help="of an argument: *fp16, i32, fp32")
    add("-c", "--constant", action="append", default=[], metavar="NAME=VALUE", help="a tl.constexpr")
    add(
        "-s",
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an integer argument; of a pointer, its elements",
    )
    add("-g", "--grid", type=int, nargs="+", default=[1], metavar="SIZE", help="programs on one to three axes")
    add("--passes", action="store_true", help="print the module after every pass")
    return parser


def _text(options: argparse.Namespace) -> str:
    from torch_spyre.ir.ktir.text import print_module  # late: start-up
    from torch_spyre.triton import compiling  # late: start-up

    kernel = adapter.check_kernel(_named(options.kernel))
    types, constants, values = (_pairs(given) for given in (options.type, options.constant, options.set))
    names = [name for name in kernel.arg_names if name not in constants]
    missing = [name for name in names if name not in types]
    if missing:
        raise InvalidArgument(f"no type for {', '.join(missing)}; write --type NAME=TYPE, or --constant NAME=VALUE")
    integers = [_integer(name, types[name], values) for name in names]
    lengths = [int(values[name]) if name in values else None for name in names if types[name].startswith("*")]
    grid = (*options.grid, 1, 1)[:3]
    name, text = adapter.ttir_of(kernel, types, {n: _literal(v) for n, v in constants.items()})
    printed: list[str] = []

    def trace(title: str, module: Any) -> None:
        printed.append(f"// after {title}\n{print_module(module)}\n")

    module = compiling.ktir(name, text, integers, grid, lengths=lengths, trace=trace if options.passes else None)
    return "".join(printed) or print_module(module)


def _named(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise InvalidArgument(f"{name}: write module:kernel")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"{name}: {error}") from error


def _pairs(given: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for entry in given:
        name, equals, value = entry.partition("=")
        if not equals:
            raise InvalidArgument(f"{entry}: write NAME=VALUE")
        pairs[name] = value
    return pairs


def _literal(text: str) -> Any:
    """A number, truth value or text of Python; what is none of these is text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _integer(name: str, kind: str, values: Mapping[str, str]) -> int | None:
    if not kind.startswith(("i", "u")):
        return None
    try:
        return int(values[name])
    except (KeyError, ValueError):
        raise InvalidArgument(f"argument {name} is {kind}; give its value: --set {name}=NUMBER") from None
