# SPDX-License-Identifier: Apache-2.0
"""``spyre-sdsc``: check, explain, run and dump SuperDSC bundles.

A path is a bundle directory (bundle.mlir and sdsc_<i>.json), its bundle.mlir, or a lone SuperDSC file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_spyre.errors import InvalidArgument, SpyreError, exit_status
from torch_spyre.ir.superdsc.bundle import Bundle, load
from torch_spyre.ktir.cli import add_forms, parse

if TYPE_CHECKING:
    from torch_spyre.sdsc.slots import Launch

_ULPS = 4.0  # of the format; the card computes in fp32, NumPy in float64


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(_parser(), _one_by_one(sys.argv[1:] if argv is None else argv))
    status = 0
    for path in args.files:
        try:
            status = max(status, int(args.run(load(path), args)))
        except (SpyreError, OSError) as e:
            print(f"spyre-sdsc: {path}: {type(e).__name__}: {e}", file=sys.stderr)
            status = max(status, exit_status(e) if Path(path).exists() else 2)
    return status


def _one_by_one(words: Sequence[str]) -> list[str]:
    """``--inputs a.npy b.npy bundle/`` as an option per array: argparse would take the bundle for another one."""
    found: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word != "--inputs" or not rest or rest[0].startswith("-"):
            found.append(word)
            continue
        found.append(f"--inputs={rest.pop(0)}")
        while rest and rest[0].endswith((".npy", ".npz")):
            found.append(f"--inputs={rest.pop(0)}")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spyre-sdsc", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    checked = commands.add_parser("check", help="read files and check them against the machine's rules")
    checked.set_defaults(run=_check)
    explained = commands.add_parser("explain", help="ops, splits, tensors with their places, per-core work, time")
    explained.add_argument("--no-time", action="store_true", help="do not compile for the estimated time")
    explained.set_defaults(run=_explain)
    ran = commands.add_parser("run", help="run on the card, on given or random inputs")
    text = ".npz by name, or .npy in order; several may follow, or repeat the option"
    ran.add_argument("--inputs", action="append", default=[], metavar="FILE", help=text)
    ran.add_argument("--output", metavar="FILE", help="write inputs and results to this .npz")
    ran.add_argument("--seed", type=int, default=0, help="of random inputs")
    ran.add_argument("--verify", action="store_true", help="compare with the same ops in NumPy")
    ran.add_argument("--all", action="store_true", help="intermediate tensors too")
    ran.add_argument("--sanitize", action="store_true", help="run under the card's sanitizer (SPYRE_SANITIZE=1)")
    ran.set_defaults(run=_run)
    dumped = commands.add_parser("dump", help="print the KTIR, the instructions, the explanation or the files")
    add_forms(dumped, "ktir", "program", "explain", "json")
    dumped.set_defaults(run=_dump)
    for command in (checked, explained, ran, dumped):
        command.add_argument("files", nargs="+", metavar="path")
        command.add_argument(
            "--fragment", action="store_true", help="LX tensors that nobody wrote are inputs, also in a directory"
        )
    return parser


def _prepared(bundle: Bundle, args: argparse.Namespace) -> Bundle:
    return replace(bundle, fragment=True) if args.fragment else bundle


def _check(bundle: Bundle, args: argparse.Namespace) -> int:
    bundle = _prepared(bundle, args)
    found = bundle.problems()
    for problem in found:
        print(f"{bundle.name}: {problem}")
    if found:
        return 1
    from torch_spyre.sdsc.run import compile_launch  # late: start-up
    from torch_spyre.sdsc.slots import bind  # late: start-up

    program = compile_launch(bind(bundle))
    notes = sorted({note for step in bundle.steps for note in step.sdsc.notes})
    for note in notes:
        print(f"{bundle.name}: note: field {note} is not known and was ignored")
    ops = f"{len(bundle.steps)} op{'s' * (len(bundle.steps) != 1)}"
    print(f"{bundle.name}: ok, {ops}, {len(program.instructions)} instructions on {program.cores} cores")
    return 0


def _explain(bundle: Bundle, args: argparse.Namespace) -> int:
    from torch_spyre.sdsc.printed import estimate_times, explain  # late: start-up

    bundle = _prepared(bundle, args)
    bundle.verify()
    print(explain(bundle, None if args.no_time else estimate_times(bundle)), end="")
    return 0


def _run(bundle: Bundle, args: argparse.Namespace) -> int:
    from torch_spyre.sdsc.run import execute, random_inputs  # late: start-up
    from torch_spyre.sdsc.slots import INPUT, bind  # late: start-up

    bundle = _prepared(bundle, args)
    bundle.verify()
    launch = bind(bundle)
    slots = launch.of_role(INPUT)
    given = _read_inputs(args.inputs, [s.name for s in slots], [n for s in slots for n in s.aliases])
    inputs = given if args.inputs else random_inputs(launch, args.seed)
    result = execute(launch, inputs, args.sanitize)
    if args.sanitize:
        from torch_spyre import sanitizer  # late: start-up

        sanitizer.print_reports()
    shown = {**result.outputs, **(result.intermediates if args.all else {})}
    for slot in launch.slots:
        if slot.name in shown:
            print(f"{bundle.name}: {slot.role} {slot.name} {_summary(shown[slot.name])}")
    if args.output:
        arrays: dict[str, Any] = {**inputs, **shown}
        np.savez(args.output, **arrays)
    if args.verify:
        return _verify(bundle, launch, inputs, shown)
    return 0


def _summary(values: np.ndarray) -> str:
    shape = "x".join(map(str, values.shape)) or "one value"
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    bad = values.size - finite.size
    text = (
        f"{shape}: min {finite.min():.6g}, max {finite.max():.6g}, mean {finite.mean():.6g}" if finite.size else shape
    )
    return text + (f", {bad} not finite" if bad else "")


def _verify(bundle: Bundle, launch: Launch, inputs: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> int:
    from torch_spyre.sdsc.reference import compare, evaluate  # late: start-up

    expected = evaluate(launch, inputs)
    status = 0
    for name, want in {**expected.outputs, **expected.intermediates}.items():
        if name not in got:
            continue
        slot = next(s for s in launch.slots if s.name == name)
        error = compare(got[name], want, slot)
        verdict = "agrees with" if error <= _ULPS else "DIFFERS from"
        print(f"{bundle.name}: {name} {verdict} NumPy: at most {error:.3g} units in the last place")
        status |= error > _ULPS
    return int(status)


def _read_inputs(files: Sequence[str], names: Sequence[str], aliases: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays of .npz files by name, those of .npy files for the names that are left, in order."""
    found: dict[str, np.ndarray] = {}
    for file in files:
        try:
            data = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as e:
            raise InvalidArgument(f"{file} is no .npy or .npz file: {e}") from None
        if isinstance(data, np.ndarray):
            free = [n for n in names if n not in found]
            if not free:
                raise InvalidArgument(f"{file} is one array too many; the inputs are {', '.join(names) or 'none'}")
            found[free[0]] = data
        else:
            found.update({n: data[n] for n in data.files if n in (*names, *aliases)})
    return found


def _dump(bundle: Bundle, args: argparse.Namespace) -> int:
    from torch_spyre.sdsc.run import compile_launch  # late: start-up
    from torch_spyre.sdsc.slots import bind  # late: start-up

    bundle = _prepared(bundle, args)
    bundle.verify()
    if args.form == "json":
        for name, text in bundle.files().items():
            print(f"// {name}\n{text}")
        return 0
    if args.form == "explain":
        from torch_spyre.sdsc.printed import estimate_times, explain  # late: start-up

        print(explain(bundle, estimate_times(bundle)), end="")
        return 0
    launch = bind(bundle)
    if args.form == "program":
        print(compile_launch(launch).explain())
        return 0
    from torch_spyre.ir.ktir.emit.kernel_function import emit  # late: start-up
    from torch_spyre.ktir import print_module  # late: start-up

    print(print_module(emit(launch.kernel)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
