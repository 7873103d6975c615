# SPDX-License-Identifier: Apache-2.0
"""Random graphs, reproducible from a seed: print one, run it, make a failing one smaller.

python tests/support/graph_fuzz.py show 17          # the program of seed 17
python tests/support/graph_fuzz.py run 17 18        # check these seeds, print what fails
python tests/support/graph_fuzz.py run 0:200        # or a range
python tests/support/graph_fuzz.py run 100000:100200  # programs with more kinds of statements
python tests/support/graph_fuzz.py bits 17 18       # what they compute, and what was compiled for it, as JSON
python tests/support/graph_fuzz.py shrink 17        # drop steps, results and knobs while it still fails
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from graph_fuzz_build import draw_program
from graph_fuzz_check import check
from graph_fuzz_lengths import DRAWN, in_terms_of_n
from graph_fuzz_oracle import Mismatch
from graph_fuzz_program import Input, Program
from graph_fuzz_runs import digests


def failure(program: Program) -> Mismatch | None:
    try:
        check(program)
    except Mismatch as error:
        return error
    except Exception as error:
        wrapped = Mismatch("harness", f"{type(error).__name__}: {error}")
        wrapped.__cause__ = error
        return wrapped
    return None


def without_step(program: Program, at: int) -> Program | None:
    """The program without a step; what it made becomes inputs of the same shapes if something needs it."""
    gone = program.steps[at]
    steps = program.steps[:at] + program.steps[at + 1 :]
    used = {a for s in steps for a in s.args} | set(program.returned)
    needed = [o.rstrip(",") for o in gone.outs if o.rstrip(",") in used]
    shapes = value_shapes(program)
    made = [Input(o, tuple(shapes[o].shape), shapes[o].dtype) for o in needed]
    if program.lengths:
        made = [dataclasses.replace(x, lengths=tuple(in_terms_of_n(m) for m in x.size)) for x in made]
    inputs = (*program.inputs, *made)
    returned = tuple(r for r in program.returned if r not in needed)
    return trimmed(dataclasses.replace(program, steps=steps, inputs=inputs, returned=returned))


def trimmed(program: Program) -> Program | None:
    """Without inputs that nothing reads; None if nothing is left or PyTorch refuses it."""
    used = {a for s in program.steps for a in s.args} | set(program.returned) | {program.length.partition(".")[0]}
    used |= {x.of for x in program.inputs if x.name in used}
    inputs = tuple(x for x in program.inputs if x.name in used)
    if not program.returned:
        last = [o for s in program.steps for o in s.outs]
        if not last:
            return None
        program = dataclasses.replace(program, returned=(last[-1],))
    program = dataclasses.replace(program, inputs=inputs)
    return program if program.accepted() else None


def value_shapes(program: Program) -> dict[str, torch.Tensor]:
    program = program.at(DRAWN) if program.lengths else program
    space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "n": DRAWN}
    live = program.live(program.bases(None, "meta"))
    space.update(zip((x.name for x in program.inputs), live, strict=True))
    for step in program.steps:
        exec(step.line(), space)
    return space


def smaller(program: Program) -> Iterator[Program | None]:
    changes: list[dict[str, Any]] = [{"knobs": {}}, {"sanitize": False}, {"backward": False}, {"exported": False}]
    changes += [{"lengths": (n,)} for n in program.lengths if len(program.lengths) > 1]
    for change in changes:
        if any(getattr(program, k) != v for k, v in change.items()):
            yield dataclasses.replace(program, **change)
    for i in reversed(range(len(program.steps))):
        yield without_step(program, i)
    for name in program.returned if len(program.returned) > 1 else ():
        yield trimmed(dataclasses.replace(program, returned=tuple(r for r in program.returned if r != name)))
    for i, x in enumerate(program.inputs):
        if x.view and not x.of and not x.lengths:
            plain = dataclasses.replace(x, view="", size=tuple(x.viewed(torch.empty(x.size, device="meta")).shape))
            yield trimmed(dataclasses.replace(program, inputs=(*program.inputs[:i], plain, *program.inputs[i + 1 :])))


def shrink(program: Program, error: Mismatch, seconds: float = 120.0) -> tuple[Program, Mismatch]:
    end = time.monotonic() + seconds
    again = True
    while again and time.monotonic() < end:
        again = False
        for candidate in smaller(program):
            found = failure(candidate) if candidate is not None else None
            if found is not None and found.kind == error.kind:
                assert candidate is not None
                program, error, again = candidate, found, True
                break
    return program, error


# Command line.


def seeds(texts: list[str]) -> Iterator[int]:
    for text in texts:
        first, colon, last = text.partition(":")
        if colon and not last:
            yield from itertools.count(int(first))
        yield from range(int(first), int(last) if last else int(first) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=["show", "run", "shrink", "bits"])
    parser.add_argument("seeds", nargs="+", help="a seed, first:end, or first: with --minutes")
    parser.add_argument("--minutes", type=float, default=math.inf, help="draws no new graph after this time")
    parser.add_argument("--trace", action="store_true", help="print where an exception came from")
    options = parser.parse_args()
    if options.action == "bits":
        print(json.dumps(digests([draw_program(seed) for seed in seeds(options.seeds)])))
        return 0
    failed, count, end = [], 0, time.monotonic() + options.minutes * 60
    for seed in itertools.takewhile(lambda _: time.monotonic() < end, seeds(options.seeds)):
        program = draw_program(seed)
        if options.action == "show":
            print(program)
            continue
        count += 1
        if count % 10 == 0:
            print(f"{count} seeds", flush=True)
        error = failure(program)
        if error is None:
            continue
        failed.append(seed)
        if options.trace and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        if options.action == "shrink":
            program, error = shrink(program, error)
            print(f"seed {seed}: {error}\n{program}", flush=True)
        else:
            print(f"seed {seed}: {error}", flush=True)
    if options.action != "show":
        print(f"{count} seeds, {len(failed)} failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
