# SPDX-License-Identifier: Apache-2.0
"""``spyre-sdsc``: check, explain, run and dump SuperDSC bundles.

A path is a bundle directory (bundle.mlir and sdsc_<i>.json), its bundle.mlir, a lone SuperDSC file, or a directory with
steps.json, which stands for its bundles.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_spyre import command_line
from torch_spyre.errors import InvalidArgument, SpyreError, exit_status
from torch_spyre.ir.superdsc.bundle import Bundle, load
from torch_spyre.ktir.cli import add_forms, parse
from torch_spyre.sdsc import run_steps

if TYPE_CHECKING:
    from torch_spyre.sdsc.slots import Launch


@dataclass(frozen=True)
class Found:
    """What a command found in one path: as text, and as data."""

    text: str
    record: dict[str, Any]
    status: int = 0


_ULPS = 4.0  # of the format; the card computes in fp32, NumPy in float64


def main(argv: Sequence[str] | None = None) -> int:
    words = _one_by_one(sys.argv[1:] if argv is None else argv)
    return command_line.guarded("sdsc", lambda: _run_all(parse(make_parser(), words)))


def _run_all(args: argparse.Namespace) -> int:
    status, records = 0, []
    for path in [bundle for given in args.files for bundle in _bundles(given)]:
        try:
            found = args.run(load(path), args)
            status = max(status, found.status)
            records.append({"path": path, **found.record})
            if found.text and not args.json:
                print(found.text, end="" if found.text.endswith("\n") else "\n")
        except (SpyreError, OSError) as e:
            print(f"{command_line.full_name('sdsc')}: {path}: {type(e).__name__}: {e}", file=sys.stderr)
            records.append({"path": path, "error": command_line.error_record(e)})
            status = max(status, exit_status(e) if Path(path).exists() else 2)
    if args.json:
        command_line.print_json(records)
    return status


def _bundles(path: str) -> list[str]:
    """A path, or the bundles of the kernel whose steps it lists."""
    if not (Path(path) / run_steps.FILE).is_file():
        return [path]
    return [str(Path(path) / s["bundle"]) for s in run_steps.load(path).steps if "bundle" in s]


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


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.parser("sdsc", __doc__, "check bundle/ sdsc_0.json\nrun bundle/ --verify --seed 1")
    commands = parser.add_subparsers(required=True, metavar="command")
    checked = commands.add_parser("check", help="read files and check them against the machine's rules")
    checked.set_defaults(run=_check)
    explained = commands.add_parser("explain", help="ops, splits, tensors with their places, per-core work, time")
    explained.add_argument("--no-time", action="store_true", help="do not compile for the estimated time")
    explained.set_defaults(run=_explain)
    ran = commands.add_parser("run", help="run on the card, on given or random inputs")
    text = ".npz by name, or .npy in order; several may follow, or repeat the option"
    ran.add_argument("--inputs", action="append", default=[], metavar="FILE", help=text)
    ran.add_argument(
        "--output", metavar="FILE", type=command_line.output_file, help="write inputs and results to this .npz"
    )
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
        command_line.add_json(command)
        command.add_argument(
            "--fragment", action="store_true", help="LX tensors that nobody wrote are inputs, also in a directory"
        )
    return parser


def _prepared(bundle: Bundle, args: argparse.Namespace) -> Bundle:
    return replace(bundle, fragment=True) if args.fragment else bundle


def _check(bundle: Bundle, args: argparse.Namespace) -> Found:
    bundle = _prepared(bundle, args)
    problems = [str(problem) for problem in bundle.problems()]
    if problems:
        lines = [f"{bundle.name}: {problem}" for problem in problems]
        return Found("\n".join(lines), {"name": bundle.name, "problems": problems}, 1)
    from torch_spyre.sdsc.run import compile_launch  # late: start-up
    from torch_spyre.sdsc.slots import bind  # late: start-up

    program = compile_launch(bind(bundle))
    notes = sorted({note for step in bundle.steps for note in step.sdsc.notes})
    lines = [f"{bundle.name}: note: field {note} is not known and was ignored" for note in notes]
    ops = f"{len(bundle.steps)} op{'s' * (len(bundle.steps) != 1)}"
    lines.append(f"{bundle.name}: ok, {ops}, {len(program.instructions)} instructions on {program.cores} cores")
    sizes = {"ops": len(bundle.steps), "instructions": len(program.instructions), "cores": program.cores}
    return Found("\n".join(lines), {"name": bundle.name, "problems": [], "unknown_fields": notes, **sizes})


def _explain(bundle: Bundle, args: argparse.Namespace) -> Found:
    from torch_spyre.sdsc.printed import estimate_times, explain  # late: start-up

    bundle = _prepared(bundle, args)
    bundle.verify()
    times = None if args.no_time else estimate_times(bundle)
    ops = [
        {"op": s.sdsc.opfunc, "title": s.title, "sizes": s.sdsc.sizes, "slices": s.sdsc.slices, "cores": s.sdsc.cores}
        for s in bundle.steps
    ]
    record = {"name": bundle.name, "ops": ops, "times": None if times is None else asdict(times)}
    return Found(explain(bundle, times), record)


def _run(bundle: Bundle, args: argparse.Namespace) -> Found:
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
    slots = [slot for slot in launch.slots if slot.name in shown]
    lines = [f"{bundle.name}: {slot.role} {slot.name} {_summary(shown[slot.name])}" for slot in slots]
    values = [{"name": s.name, "role": s.role, **_ends(shown[s.name])} for s in slots]
    if args.output:
        arrays: dict[str, Any] = {**inputs, **shown}
        np.savez(args.output, **arrays)
    errors = _errors(launch, inputs, shown) if args.verify else {}
    for name, error in errors.items():
        verdict = "agrees with" if error <= _ULPS else "DIFFERS from"
        lines.append(f"{bundle.name}: {name} {verdict} NumPy: at most {error:.3g} units in the last place")
    record = {"name": bundle.name, "values": values, **({"units_in_the_last_place": errors} if args.verify else {})}
    return Found("\n".join(lines), record, int(any(error > _ULPS for error in errors.values())))


def _ends(values: np.ndarray) -> dict[str, Any]:
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    shape = {"shape": list(values.shape), "not_finite": values.size - finite.size}
    if not finite.size:
        return shape
    return {**shape, "min": float(finite.min()), "max": float(finite.max()), "mean": float(finite.mean())}


def _summary(values: np.ndarray) -> str:
    ends = _ends(values)
    text = "x".join(map(str, values.shape)) or "one value"
    if "min" in ends:
        text += f": min {ends['min']:.6g}, max {ends['max']:.6g}, mean {ends['mean']:.6g}"
    return text + (f", {ends['not_finite']} not finite" if ends["not_finite"] else "")


def _errors(launch: Launch, inputs: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> dict[str, float]:
    """How far each result is from NumPy's, in units in the last place."""
    from torch_spyre.sdsc.reference import compare, evaluate  # late: start-up

    expected = evaluate(launch, inputs)
    wanted = {**expected.outputs, **expected.intermediates}
    slots = {slot.name: slot for slot in launch.slots}
    return {name: float(compare(got[name], want, slots[name])) for name, want in wanted.items() if name in got}


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


def _dump(bundle: Bundle, args: argparse.Namespace) -> Found:
    from torch_spyre.sdsc.run import compile_launch  # late: start-up
    from torch_spyre.sdsc.slots import bind  # late: start-up

    bundle = _prepared(bundle, args)
    bundle.verify()
    if args.form == "json":
        text = "\n".join(f"// {name}\n{content}" for name, content in bundle.files().items())
    elif args.form == "explain":
        from torch_spyre.sdsc.printed import estimate_times, explain  # late: start-up

        text = explain(bundle, estimate_times(bundle))
    elif args.form == "program":
        text = compile_launch(bind(bundle)).explain()
    else:
        from torch_spyre.ir.ktir.emit.kernel_function import emit  # late: start-up
        from torch_spyre.ktir import print_module  # late: start-up

        text = print_module(emit(bind(bundle).kernel))
    return Found(text, {"name": bundle.name, "form": args.form, "text": text})


if __name__ == "__main__":
    sys.exit(main())
