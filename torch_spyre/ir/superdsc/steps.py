# SPDX-License-Identifier: Apache-2.0
"""A kernel as a sequence of bundles, with the ops that have no word in SuperDSC between them.

The published front end ends a bundle where an op runs on the host; here such an op is a step in KTIR. `steps.json` says
what runs in which order on which arguments of the kernel; arguments that hold constants have their bytes beside it. A
kernel that needs neither is a plain bundle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch_spyre.errors import NotExpressible
from torch_spyre.ir.plan.tileops import Input, Kernel, LinearOperand, Operand, Space, Tensor, TileLoop, TileOp
from torch_spyre.ir.superdsc.op_writer import write_sdsc
from torch_spyre.ir.superdsc.operand_tensors import Constant, positions_as_tensors, scalars_as_tensors
from torch_spyre.ir.superdsc.rules import MAX_SEGMENTS
from torch_spyre.ir.superdsc.unroll import MAX_OPS, without_loops
from torch_spyre.ir.superdsc.vocabulary import CLOSEST
from torch_spyre.ir.superdsc.writer import bundle_files

FILE = "steps.json"


@dataclass(frozen=True)
class Step:
    """A part of a kernel over arguments of its own, numbered as in `args` in the whole. With `reasons`, one per op, it
    has no words."""

    kernel: Kernel
    args: tuple[int, ...]
    reasons: tuple[str, ...] = ()

    @property
    def is_bundle(self) -> bool:
        return not self.reasons


@dataclass(frozen=True)
class Steps:
    """`kernel` has the launch scalars and the constants as arguments after its own."""

    kernel: Kernel
    constants: tuple[Constant, ...]
    steps: tuple[Step, ...]

    @property
    def wordless(self) -> list[tuple[TileOp, str]]:
        """Ops outside the vocabulary with the reasons."""
        return [pair for s in self.steps if not s.is_bundle for pair in zip(s.kernel.ops, s.reasons, strict=True)]

    @property
    def is_bundle(self) -> bool:
        return len(self.steps) == 1 and self.steps[0].is_bundle and not self.constants


def in_steps(kernel: Kernel) -> Steps:
    """NotExpressible if a scratchpad holds something from one step to the next, which no plan for SuperDSC does."""
    whole, constants = positions_as_tensors(scalars_as_tensors(kernel))
    steps: list[Step] = []
    for part in _parts(whole):
        args = _arguments(part.ops)
        numbers = {arg: i for i, arg in enumerate(args)}
        ops = tuple(_renumbered(op, numbers) for op in part.ops)
        own = replace(whole, args=tuple(whole.args[a] for a in args), ops=ops, loops=part.loops)
        steps.append(Step(own, args, part.reasons))
    held: dict[tuple[str, int], int] = {}
    for i, step in enumerate(steps):
        for tensor in {t for op in step.kernel.ops for t in _tensors(op) if t.space is Space.LX}:
            if held.setdefault((tensor.name, tensor.base), i) != i or not step.is_bundle:
                raise NotExpressible(f"{kernel.name}: {tensor.name} stays in a scratchpad from one bundle to the next")
    return Steps(whole, tuple(constants), tuple(steps))


def write_steps(kernel: Kernel, directory: str | Path) -> Steps:
    """A bundle, or a directory with `steps.json`, a folder per bundle and a file per step without words."""
    made = in_steps(kernel)
    files: dict[str, str | bytes] = {}
    if made.is_bundle:
        files.update(bundle_files(made.kernel))
    else:
        files.update(_files(made))
    path = Path(directory)
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return made


def _files(made: Steps) -> Iterator[tuple[str, str | bytes]]:
    from torch_spyre.ir.ktir.emit.kernel_function import emit  # late: start-up
    from torch_spyre.ir.ktir.text import print_module  # late: start-up

    listed: list[dict[str, Any]] = []
    for i, step in enumerate(made.steps):
        if step.is_bundle:
            name = f"bundle_{i}"
            yield from ((f"{name}/{file}", text) for file, text in bundle_files(step.kernel).items())
            listed.append({"bundle": name, "arguments": step.args})
            continue
        name = f"host_{i}.ktir"
        yield name, str(print_module(emit(step.kernel)))
        ops = [
            {"name": op.name, "op": op.op, "reason": reason, "closest": CLOSEST.get(op.op, "")}
            for op, reason in zip(step.kernel.ops, step.reasons, strict=True)
        ]
        listed.append({"host": name, "arguments": step.args, "ops": ops})
    constants = {c.arg: f"argument_{c.arg}.bin" for c in made.constants}
    for c in made.constants:
        yield constants[c.arg], c.values.tobytes()
    arguments = [
        {"name": a.name, "role": a.role, "bytes": a.bytes, **({"file": constants[i]} if i in constants else {})}
        for i, a in enumerate(made.kernel.args)
    ]
    content = {"kernel": made.kernel.name, "cores": made.kernel.cores, "arguments": arguments, "steps": listed}
    yield FILE, json.dumps(content, indent=1)


# Cutting


@dataclass(frozen=True)
class _Part:
    ops: tuple[TileOp, ...]
    reasons: tuple[str, ...] = ()
    loops: tuple[TileLoop, ...] = ()


def _parts(kernel: Kernel) -> Iterator[_Part]:
    """As few as possible, each within the limits of a bundle."""
    current: list[TileOp] = []
    reasons: list[str] = []

    def closed() -> Iterator[_Part]:
        if current:
            yield _Part(tuple(current), tuple(reasons))
        current.clear()
        reasons.clear()

    for part in _pieces(kernel):
        if part.loops:
            yield from closed()
            yield part
            continue
        wordless = bool(part.reasons)
        full = len(current) + len(part.ops) > MAX_OPS or len(_arguments((*current, *part.ops))) > MAX_SEGMENTS
        if current and (wordless != bool(reasons) or full):
            yield from closed()
        current += part.ops
        reasons += part.reasons
    yield from closed()


def _pieces(kernel: Kernel) -> Iterator[_Part]:
    """Single ops, and tile loops without the loop where they can be."""
    loops = {loop.begin: loop for loop in kernel.loops}
    at = 0
    while at < len(kernel.ops):
        loop = loops.get(at)
        if loop is None:
            op = kernel.ops[at]
            reason = _reason(op)
            yield _Part((op,), (reason,) if reason else ())
            at += 1
            continue
        body = kernel.ops[loop.begin : loop.end]
        own = replace(kernel, ops=body, loops=(TileLoop(0, len(body), loop.trips),))
        try:
            ops = without_loops(own).ops
            reason = next((r for r in map(_reason, ops) if r), "")
        except NotExpressible as error:
            ops, reason = (), str(error)
        if reason:
            yield _Part(body, (reason,) * len(body), own.loops)
        else:
            yield from (_Part((op,)) for op in ops)
        at = loop.end


def _reason(op: TileOp) -> str:
    try:
        write_sdsc(_renumbered(op, {arg: i for i, arg in enumerate(_arguments((op,)))}))
    except NotExpressible as error:
        return str(error).split("has no SuperDSC form: ")[-1]
    return ""


def _operands(op: TileOp) -> Iterator[Operand | LinearOperand]:
    yield from (x for x in (*op.inputs, op.output) if isinstance(x, Operand | LinearOperand))


def _tensors(op: TileOp) -> Iterator[Tensor]:
    return (x.tensor for x in _operands(op))


def _arguments(ops: Sequence[TileOp]) -> tuple[int, ...]:
    return tuple(sorted({t.arg for op in ops for t in _tensors(op) if t.space is Space.MEMORY}))


def _renumbered(op: TileOp, numbers: dict[int, int]) -> TileOp:
    def own(x: Input) -> Input:
        if not isinstance(x, Operand | LinearOperand) or x.tensor.space is Space.LX:
            return x
        return replace(x, tensor=replace(x.tensor, arg=numbers[x.tensor.arg]))

    output = own(op.output)
    assert isinstance(output, Operand | LinearOperand)
    return replace(op, inputs=tuple(own(x) for x in op.inputs), output=output)
