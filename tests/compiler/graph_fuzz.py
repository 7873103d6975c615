# SPDX-License-Identifier: Apache-2.0
"""Random graphs, reproducible from a seed: print one, run it, make a failing one smaller.

    python tests/compiler/graph_fuzz.py show 17          # the program of seed 17
    python tests/compiler/graph_fuzz.py run 17 18        # check these seeds, print what fails
    python tests/compiler/graph_fuzz.py run 0:200        # or a range
    python tests/compiler/graph_fuzz.py shrink 17        # drop steps, results and knobs while it still fails

A program is a straight line of PyTorch statements on named values. It runs three times: eager on the card with every
ATen call checked against the CPU (graph_fuzz_oracle.py), compiled, and compiled under other knobs; the last two must
give the bits of the first, change the same inputs and return the same aliases.
"""

from __future__ import annotations

import argparse
import dataclasses
import linecache
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from functorch.compile import make_boxed_func
from graph_fuzz_oracle import FLOATS, Lockstep, Mismatch, host_values
from torch._dynamo.backends.common import aot_autograd

from torch_spyre import _C, knobs, sanitizer
from torch_spyre._inductor import config
from torch_spyre._inductor.passes import candidates
from torch_spyre.ops import fallbacks


@dataclass(frozen=True)
class Input:
    """A tensor on the card, filled as `kind` says, and the view of it that the program receives."""

    name: str
    size: tuple[int, ...]
    dtype: torch.dtype
    kind: str = "normal"  # normal, integers, positive, mask, index <n>, order <n>, number (a Python number), host
    view: str = ""  # an expression in x
    scale: float = 1.0

    def make(self, generator: torch.Generator) -> torch.Tensor:
        kind, _, limit = self.kind.partition(" ")
        if kind == "index":
            values = torch.randint(0, int(limit), self.size, generator=generator)
        elif kind == "order":
            values = torch.randperm(int(limit), generator=generator)[: self.size[0]]
        elif kind == "mask":
            values = torch.randint(0, 2, self.size, generator=generator)
        elif kind == "integers" or self.dtype not in FLOATS:
            values = torch.randint(-9, 10, self.size, generator=generator)
        else:
            values = torch.randn(self.size, generator=generator) * self.scale
        return (values.abs() + 0.25 if kind == "positive" else values).to(self.dtype)

    def viewed(self, x: torch.Tensor) -> torch.Tensor:
        return eval(self.view, {"torch": torch, "x": x}) if self.view else x

    def __str__(self) -> str:
        view = f", x -> {self.view}" if self.view else ""
        return f"{self.name}: {str(self.dtype)[6:]}{list(self.size)} {self.kind}{view}"


@dataclass(frozen=True)
class Step:
    """One statement: `text` has {0}, {1}, … for the values named in `args`."""

    text: str
    args: tuple[str, ...]
    outs: tuple[str, ...] = ()

    def line(self) -> str:
        call = self.text.format(*self.args)
        return f"{', '.join(self.outs)} = {call}" if self.outs else call


@dataclass(frozen=True)
class Program:
    inputs: tuple[Input, ...] = ()
    steps: tuple[Step, ...] = ()
    returned: tuple[str, ...] = ()
    backward: bool = False
    knobs: dict[str, Any] = field(default_factory=dict)
    sanitize: bool = False
    data_seed: int = 0

    def source(self) -> str:
        lines = [f"def fn({', '.join(x.name for x in self.inputs)}):"]
        lines += [f"    {s.line()}" for s in self.steps]
        return "\n".join([*lines, f"    return ({', '.join(self.returned)},)", ""])

    def function(self) -> Any:
        source = self.source()
        name = f"<graph {abs(hash(source))}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        exec(compile(source, name, "exec"), space)
        return space["fn"]

    def __str__(self) -> str:
        lines = [f"# {x}" for x in self.inputs]
        flags = [f"{k}={v}" for k, v in self.knobs.items()]
        flags += ["sanitizer"] * self.sanitize + ["backward"] * self.backward
        return "\n".join([*lines, f"# {', '.join(flags) or 'default knobs'}", self.source()])

    def live(self, bases: list[torch.Tensor]) -> list[Any]:
        return [x.viewed(base) if x.kind != "number" else base.item() for x, base in zip(self.inputs, bases, strict=True)]

    def needs_gradient(self, x: Input) -> bool:
        return self.backward and x.dtype in FLOATS and x.kind not in ("number", "host")

    def accepted(self) -> bool:
        """Whether PyTorch takes it, shapes and dtypes only."""
        bases = [torch.empty(x.size, dtype=x.dtype, device="cpu" if x.kind in ("number", "host") else "meta") for x in self.inputs]
        bases = [b.fill_(1) if b.device.type == "cpu" else b for b in bases]
        for base, x in zip(bases, self.inputs, strict=True):
            base.requires_grad_(self.needs_gradient(x))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results = self.function()(*self.live(bases))
                leaves = [b for b in bases if b.requires_grad]
                if self.backward:
                    ends = [r for r in results if r.requires_grad]
                    return bool(ends) and bool(torch.autograd.grad(ends, leaves, [torch.ones_like(r) for r in ends], allow_unused=True))
        except Exception:
            return False
        return True


@dataclass
class Outcome:
    """What a run leaves: results, inputs afterwards, gradients; which results share memory with which input."""

    results: list[torch.Tensor]
    inputs: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    aliases: list[int | None]


def execute(program: Program, fn: Any) -> Outcome:
    generator = torch.Generator().manual_seed(program.data_seed)
    bases = []
    for x in program.inputs:
        made = x.make(generator)
        bases.append(made if x.kind in ("number", "host") else made.to("spyre").requires_grad_(program.needs_gradient(x)))
    results = list(fn(*program.live(bases)))
    gradients: list[torch.Tensor | None] = []
    leaves = [b for b in bases if b.requires_grad]
    if program.backward:
        ends = [r for r in results if r.requires_grad]
        weights = [torch.randint(1, 4, r.shape, generator=generator).to(r.dtype).to("spyre") for r in ends]
        gradients = list(torch.autograd.grad(ends, leaves, weights, allow_unused=True))
    places = {b.untyped_storage().data_ptr(): i for i, b in enumerate(bases) if b.device.type == "spyre" and b.numel()}
    aliases = [places.get(r.untyped_storage().data_ptr()) for r in results]
    return Outcome(results, bases, gradients, aliases)


def same_bits(kind: str, what: str, one: torch.Tensor | None, two: torch.Tensor | None) -> None:
    if one is None or two is None:
        if one is not two and bool((one if two is None else two).any()):  # type: ignore[union-attr]
            raise Mismatch(kind, f"{what}: one gradient is missing and the other is not zero")
        return
    if one.shape != two.shape or one.dtype != two.dtype:
        raise Mismatch(kind, f"{what}: {two.dtype}{list(two.shape)} where eager has {one.dtype}{list(one.shape)}")
    a, b = host_values(one), host_values(two)
    if a.dtype == torch.float32:
        a, b = (torch.where(x.isnan(), torch.nan, x).contiguous().view(torch.int32) for x in (a, b))
    bad = a != b
    if bad.any():
        at = bad.nonzero()
        box = ", ".join(f"{int(c.min())}..{int(c.max())}" for c in at.T)
        first = tuple(at[0].tolist())
        raise Mismatch(
            kind,
            f"{what}: {len(at)} of {bad.numel()} values of {one.dtype}{list(one.shape)} differ, in [{box}]; first at {list(first)}: "
            f"{host_values(two)[first].item():.9g} where eager has {host_values(one)[first].item():.9g}",
        )


def same(kind: str, program: Program, one: Outcome, two: Outcome) -> None:
    for name, a, b in zip(program.returned, one.results, two.results, strict=True):
        same_bits(kind, f"result {name}", a, b)
    for x, a, b in zip(program.inputs, one.inputs, two.inputs, strict=True):
        if x.kind not in ("number", "host"):
            same_bits(kind, f"input {x.name} afterwards", a, b)
    leaves = [x.name for x in program.inputs if program.needs_gradient(x)]
    for name, g, h in zip(leaves if program.backward else [], one.gradients, two.gradients, strict=True):
        same_bits(kind, f"gradient of {name}", g, h)
    if one.aliases != two.aliases:
        raise Mismatch(kind, f"results share memory with inputs {two.aliases} where eager has {one.aliases}")


@contextmanager
def raising(kind: str) -> Iterator[None]:
    """Any other exception becomes a mismatch of its own kind."""
    try:
        yield
    except Mismatch:
        raise
    except Exception as error:
        line = str(error).strip().splitlines()[:12]
        raise Mismatch(f"{kind} {type(error).__name__}", " | ".join(line)) from error


def check(program: Program) -> Lockstep:
    """Raises Mismatch; returns what was checked."""
    lockstep = Lockstep()
    fn = program.function()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(fallbacks.disabled())
        if program.sanitize:
            stack.enter_context(sanitizer.sanitize())
        with raising("eager"), lockstep:
            eager = execute(program, fn)
        check_compiled("compiled", program, fn, eager)
        if program.knobs:
            with config.patch(**program.knobs):
                try:
                    check_compiled("knobs", program, fn, eager)
                except Mismatch:
                    # The number of cores decides how often k of a matmul is cut, and so the order of its sum.
                    with whole_k():
                        check_compiled("knobs", program, fn, execute(program, fn))
    return lockstep


def check_compiled(kind: str, program: Program, fn: Any, eager: Outcome) -> None:
    with raising(kind):
        compiled = execute(program, optimised(fn, "spyre"))
    try:
        same(kind, program, eager, compiled)
    except Mismatch:
        # Dynamo and AOTAutograd write some ops in other terms than eager PyTorch. Then the unfused form of the graph is
        # what they hand to the compiler, run op by op.
        with raising("eager"):
            unfused = execute(program, optimised(fn, aot_autograd(fw_compiler=op_by_op)))
        same(kind, program, unfused, compiled)


@contextmanager
def whole_k() -> Iterator[None]:
    """Matmuls whose k is never cut: all plans of one graph then give the same bits, for any number of cores."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.enter_context(mock.patch.object(candidates, "_k_ways", lambda *args: (1,)))
        stack.enter_context(knobs.patch(cache_dir=folder))
        stack.callback(_C.clear_eager_cache)
        _C.clear_eager_cache()
        yield


def op_by_op(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    def run(*args: Any) -> Any:
        with Lockstep():
            return graph(*args)

    return make_boxed_func(run)


def optimised(fn: Any, backend: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(fn, backend=backend, fullgraph=True, dynamic=False)


# Shrinking.


def failure(program: Program) -> Mismatch | None:
    try:
        check(program)
    except Mismatch as error:
        return error
    return None


def without_step(program: Program, at: int) -> Program | None:
    """The program without a step; what it made becomes inputs of the same shapes if something needs it."""
    gone = program.steps[at]
    steps = program.steps[:at] + program.steps[at + 1 :]
    used = {a for s in steps for a in s.args} | set(program.returned)
    needed = [o for o in gone.outs if o in used]
    shapes = value_shapes(program)
    inputs = program.inputs + tuple(Input(o, tuple(shapes[o].shape), shapes[o].dtype) for o in needed)
    returned = tuple(r for r in program.returned if r not in needed)
    return trimmed(dataclasses.replace(program, steps=steps, inputs=inputs, returned=returned))


def trimmed(program: Program) -> Program | None:
    """Without inputs that nothing reads; None if nothing is left or PyTorch refuses it."""
    used = {a for s in program.steps for a in s.args} | set(program.returned)
    inputs = tuple(x for x in program.inputs if x.name in used)
    if not program.returned:
        last = [o for s in program.steps for o in s.outs]
        if not last:
            return None
        program = dataclasses.replace(program, returned=(last[-1],))
    program = dataclasses.replace(program, inputs=inputs)
    return program if program.accepted() else None


def value_shapes(program: Program) -> dict[str, torch.Tensor]:
    bases = [torch.ones(x.size, dtype=x.dtype, device="cpu" if x.kind in ("number", "host") else "meta") for x in program.inputs]
    space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    space.update(zip((x.name for x in program.inputs), program.live(bases), strict=True))
    for step in program.steps:
        exec(step.line(), space)
    return space


def smaller(program: Program) -> Iterator[Program | None]:
    for change in ({"knobs": {}}, {"sanitize": False}, {"backward": False}):
        if any(getattr(program, k) != v for k, v in change.items()):
            yield dataclasses.replace(program, **change)
    for i in reversed(range(len(program.steps))):
        yield without_step(program, i)
    for name in program.returned if len(program.returned) > 1 else ():
        yield trimmed(dataclasses.replace(program, returned=tuple(r for r in program.returned if r != name)))
    for i, x in enumerate(program.inputs):
        if x.view:
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
        first, _, last = text.partition(":")
        yield from range(int(first), int(last) if last else int(first) + 1)


def main() -> int:
    from graph_fuzz_build import draw_program

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=["show", "run", "shrink"])
    parser.add_argument("seeds", nargs="+", help="a seed, or first:end")
    parser.add_argument("--trace", action="store_true", help="print where an exception came from")
    options = parser.parse_args()
    failed, count = [], 0
    for seed in seeds(options.seeds):
        program = draw_program(seed)
        if options.action == "show":
            print(program)
            continue
        count += 1
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
