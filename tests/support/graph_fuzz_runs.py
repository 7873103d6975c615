# SPDX-License-Identifier: Apache-2.0
"""Other ways to run a random graph: with sizes that vary, and by way of `torch.export`."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from graph_fuzz_check import (
    Outcome,
    check_compiled,
    execute,
    op_by_op,
    optimised,
    raising,
    refused,
    same,
    same_bits,
    same_strides,
    whole_k,
)
from graph_fuzz_oracle import Lockstep, Mismatch, host_values
from graph_fuzz_program import Program
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.graph import GraphLowering

from torch_spyre._inductor import compile as compiler
from torch_spyre._inductor import config
from torch_spyre.ops import fallbacks

# Sizes that vary.


def check_lengths(program: Program, lockstep: Lockstep) -> None:
    """Every n eager and under the oracle; then one compiled function for all, which must give the same bits."""
    fn = program.function()
    eager: dict[int, Outcome] = {}
    for n in program.lengths:
        at = sized(program, n)
        if refused(at, fn):  # an index past the end: the card has no use for its results after that
            continue
        lockstep.places.clear()
        with raising("eager"), lockstep:
            found = execute(at, fn)
        same_strides("eager", at, found)
        unchanged(at, found, lockstep)
        if n in eager:  # now by a program for many sizes
            same("eager again", at, eager[n], found)
        eager[n] = found
    if program.eager_only:
        return
    program = dataclasses.replace(program, lengths=tuple(eager))
    graphs = pytorch_graphs(program, fn) if eager else None
    if graphs is None:
        return
    check_one_function("lengths", program, fn, eager, graphs)
    if program.knobs:
        with config.patch(**program.knobs):
            check_one_function("knobs", program, fn, eager, graphs)
    if program.exported:
        check_exported_lengths(program, fn, eager)


def unchanged(program: Program, found: Outcome, lockstep: Lockstep) -> None:
    """Elements of the inputs that no call wrote have the bits that they had."""
    generator = torch.Generator().manual_seed(program.data_seed)
    before = program.bases(generator, "spyre")
    for x, old, new in zip(program.inputs, before, found.inputs, strict=True):
        if x.on_card:
            kept = ~lockstep.written(new)
            a, b = (torch.where(kept, host_values(t), 0) for t in (old, new))
            same_bits("eager around", f"input {x.name} where nothing is written", a, b)


def sized(program: Program, n: int) -> Program:
    return dataclasses.replace(program.at(n), lengths=(), exported=False)


def check_one_function(kind: str, program: Program, fn: Any, eager: dict[int, Outcome], graphs: int) -> None:
    try:
        compare_lengths(kind, program, fn, eager, graphs)
    except Mismatch as error:
        if error.__cause__ is not None or not error.kind == kind:
            if error.__cause__ is not None and wrong_on_cpu(program, fn):
                return
            raise
        try:
            with whole_k():  # how k of a matmul is cut follows from its bucket, and so the order of its sum
                again = {n: execute(sized(program, n), fn) for n in program.lengths}
                compare_lengths(kind, program, fn, again, graphs)
        except Mismatch:
            if not wrong_on_cpu(program, fn):
                raise


def wrong_on_cpu(program: Program, fn: Any) -> bool:
    """Does Inductor, for the CPU, get it wrong as well, or raise? PyTorch forgets, with sizes that vary, where in its
    memory a written input begins that a result is a view of."""
    try:
        return not right_on_cpu(program, fn, varying(fn, "inductor", program))
    except Exception:
        return True


def right_on_cpu(program: Program, fn: Any, compiled: Any) -> bool:
    with torch.no_grad():
        for n in program.lengths:
            at = dataclasses.replace(sized(program, n), backward=False)
            runs = []
            for function in (fn, marking(compiled, program) if program.marked else compiled):
                bases = at.bases(torch.Generator().manual_seed(at.data_seed), "cpu")
                runs.append([*function(*at.live(bases)), *bases])
            for one, two in zip(*runs, strict=True):
                a, b = one.double(), two.double()
                if a.numel() and float(((a - b).abs() > 0.1 * a.abs().max()).float().mean()) > 0.3:
                    return False
    return True


def compare_lengths(kind: str, program: Program, fn: Any, eager: dict[int, Outcome], graphs: int) -> None:
    counter = CompileCounterWithBackend("spyre")
    compiled = varying(fn, counter, program)
    for n in program.lengths:
        at = sized(program, n)
        with raising(f"{kind} {n}"):
            found = execute(at, marking(compiled, program) if program.marked else compiled)
        same_strides(kind, at, found)
        try:
            same(kind, at, eager[n], found)
        except Mismatch:
            with raising("eager"):
                unfused = execute(at, optimised(fn, aot_autograd(fw_compiler=op_by_op), reset=False))
            same(kind, at, unfused, found, any_zero=True)
    if counter.frame_count > graphs and "logcumsumexp" not in str(program):  # steps double: a graph for each power of 2
        raise Mismatch(f"{kind} graphs", f"{counter.frame_count} graphs where PyTorch's guards ask for {graphs}")


def varying(fn: Any, backend: Any, program: Program) -> Any:
    torch._dynamo.reset()
    return torch.compile(fn, backend=backend, fullgraph=True, dynamic=None if program.marked else True)


def marking(compiled: Any, program: Program) -> Callable[..., Any]:
    """Calls with the dims marked whose sizes follow n."""
    shapes = [[tuple(x.shape) if isinstance(x, torch.Tensor) else () for x in live(program, n)] for n in (210, 211)]

    def call(*args: Any) -> Any:
        for x, one, two in zip(args, *shapes, strict=True):
            for dim, (m, n) in enumerate(zip(one, two, strict=True)):
                if m != n and x.shape[dim] > 1:
                    torch._dynamo.mark_dynamic(x, dim)
        return compiled(*args)

    return call


def live(program: Program, n: int) -> list[Any]:
    at = program.at(n)
    return at.live(at.bases(None, "meta"))


def pytorch_graphs(program: Program, fn: Any) -> int | None:
    """How many graphs PyTorch's guards ask for, by a compiler that computes nothing; None: it refuses the program."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = varying(fn, counter, program)
    try:
        for n in program.lengths:
            at = sized(program, n)
            generator = torch.Generator().manual_seed(at.data_seed)
            args = at.live(at.bases(generator, "cpu"))
            results = (marking(compiled, program) if program.marked else compiled)(*args)
            ends = [r for r in results if r.requires_grad]
            if program.backward:
                torch.autograd.backward(ends, [torch.ones_like(r) for r in ends])
    except Exception:
        return None
    return counter.frame_count


# Another process.


def digests(programs: Sequence[Program]) -> dict[str, Any]:
    """What each program computes, eager and compiled, and how much was lowered, planned and assembled for that."""
    bits = {}
    lowered = mock.patch.object(GraphLowering, "run", autospec=True, side_effect=GraphLowering.run)
    planned = mock.patch.object(compiler, "compile_graph", side_effect=compiler.compile_graph)
    with fallbacks.disabled(), lowered as graphs, planned as kernels:
        for program in programs:
            fn = program.function()
            for name, run in (("eager", fn), ("compiled", optimised(fn, "spyre"))):
                found = execute(program, run)
                tensors = [x for x in (*found.results, *found.inputs, *found.gradients) if x is not None]
                values = [host_values(x).float().numpy().tobytes() for x in tensors]
                bits[f"{program.data_seed} {name}"] = hashlib.sha256(b"".join(values)).hexdigest()
    return {"bits": bits, "lowered": graphs.call_count, "planned": kernels.call_count}


# Exported graphs.


class Wrapped(torch.nn.Module):
    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def exported(program: Program, fn: Any, device: str, dynamic: Any = None) -> Any:
    generator = torch.Generator().manual_seed(program.data_seed)
    args = tuple(x.detach() for x in program.live(program.bases(generator, device)))
    return torch.export.export(Wrapped(fn), args, dynamic_shapes=dynamic).module()


def check_exported(program: Program, fn: Any, eager: Outcome) -> None:
    program = dataclasses.replace(program, backward=False)
    try:
        with raising("export"):
            module = exported(program, fn, "spyre")
    except Mismatch:
        try:
            exported(program, fn, "cpu")
        except Exception:
            return
        raise
    with raising("exported"):
        run = execute(program, module)
    expected = dataclasses.replace(eager, gradients=[])
    same_strides("exported", program, run)
    same("exported", program, expected, run, any_zero=True)
    check_compiled("exported compiled", program, module, expected)


def check_exported_lengths(program: Program, fn: Any, eager: dict[int, Outcome]) -> None:
    program = dataclasses.replace(program, backward=False)
    shapes = [[tuple(x.shape) if isinstance(x, torch.Tensor) else () for x in live(program, n)] for n in (210, 211)]
    auto = torch.export.Dim.AUTO
    dims = [
        {d: auto for d, (m, n) in enumerate(zip(one, two, strict=True)) if m != n}
        for one, two in zip(*shapes, strict=True)
    ]
    first = sized(program, program.lengths[0])
    try:
        with raising("export"):
            module = exported(first, fn, "spyre", (tuple(dims),))
    except Mismatch:
        try:
            exported(first, fn, "cpu", (tuple(dims),))
        except Exception:
            return
        raise
    for n in program.lengths:
        at = sized(program, n)
        try:
            run = execute(at, module)
        except Exception as error:  # a guard of PyTorch's, or ours?
            if "Guard failed" in str(error):
                continue
            raise Mismatch(f"exported {type(error).__name__}", str(error)) from error
        same("exported", at, dataclasses.replace(eager[n], gradients=[]), run, any_zero=True)
