# SPDX-License-Identifier: Apache-2.0
"""Runs a random graph three times, eager, compiled and compiled under other knobs, and compares.

The eager run has every ATen call checked against the CPU (graph_fuzz_oracle.py). The others must give its bits, change
the same inputs and return the same aliases.
"""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from functorch.compile import make_boxed_func
from graph_fuzz_oracle import Lockstep, Mismatch, host_values
from graph_fuzz_program import Program, unique
from torch._dynamo.backends.common import aot_autograd

from torch_spyre import _C, knobs, sanitizer
from torch_spyre._inductor import config
from torch_spyre._inductor.planning import candidates
from torch_spyre.ops import fallbacks


@dataclass
class Outcome:
    """What a run leaves: results, inputs afterwards, gradients; which results share memory with which input."""

    results: list[torch.Tensor]
    inputs: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    aliases: list[int | None]


def execute(program: Program, fn: Any) -> Outcome:
    generator = torch.Generator().manual_seed(program.data_seed)
    bases = program.bases(generator, "spyre")
    results = list(fn(*program.live(bases)))
    gradients: list[torch.Tensor | None] = []
    leaves = unique(b for b in bases if b.requires_grad)
    if program.backward:
        ends = [r for r in results if r.requires_grad]
        weights = [torch.randint(1, 4, r.shape, generator=generator).to(r.dtype).to("spyre") for r in ends]
        gradients = list(torch.autograd.grad(ends, leaves, weights, allow_unused=True))
    places = {b.untyped_storage().data_ptr(): i for i, b in enumerate(bases) if b.device.type == "spyre" and b.numel()}
    aliases = [places.get(r.untyped_storage().data_ptr()) for r in results]
    return Outcome(results, bases, gradients, aliases)


def strides(x: torch.Tensor) -> list[int]:
    """Of dims longer than one; a tensor without elements has none."""
    return [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1] if x.numel() else []


def same_strides(kind: str, program: Program, found: Outcome) -> None:
    """A result has the strides and the offset that PyTorch gives it: its kernels for tensors without data, which tell
    compilers what to keep on every device, or those of the CPU, which differ from them here and there.

    Only dims longer than one count, and a tensor without elements has none. A compiled result may also have what
    Inductor gives it on the CPU: it stores results of stride 0 in full, and takes x for x + 0, whatever its strides.
    And where PyTorch has a view of something larger, it may be a tensor of its own with dims in the same order.
    """
    program = dataclasses.replace(program, backward=False)
    runs = [lambda: _run_on(program, "meta"), lambda: _run_on(program, "cpu")]
    if kind != "eager":
        runs += [lambda d=d: _run_on(program, "cpu", inductor={"dynamic": d}) for d in (False, True)]  # type: ignore[misc]
    for run in runs:
        with torch.no_grad():
            expected = run()
        wrong = [
            f"result {name}: {facts(x)} where PyTorch has {facts(y)}"
            for name, x, y in zip(program.returned, found.results, expected, strict=True)
            if facts(x) != facts(y) and (kind == "eager" or not _own_copy(x, y))
        ]
        if not wrong:
            return
    raise Mismatch(f"{kind} strides", "; ".join(wrong))


def _run_on(program: Program, device: str, inductor: dict[str, Any] | None = None) -> Any:
    generator = torch.Generator().manual_seed(program.data_seed) if device == "cpu" else None
    function = program.function()
    if inductor is not None:
        function = torch.compile(function, backend="inductor", **inductor)
    return function(*program.live(program.bases(generator, device)))


def _own_copy(x: torch.Tensor, view: torch.Tensor) -> bool:
    if x.shape != view.shape or x.dtype != view.dtype or x.storage_offset() or is_dense(view) or not is_dense(x):
        return False
    long = [d for d in range(x.ndim) if x.shape[d] > 1]
    return sorted(long, key=x.stride) == sorted(long, key=view.stride)


def is_dense(x: torch.Tensor) -> bool:
    return x.numel() == 1 + sum(s * (n - 1) for s, n in zip(x.stride(), x.shape, strict=True))


def facts(x: torch.Tensor) -> tuple[torch.dtype, list[int], list[int], int]:
    return x.dtype, list(x.shape), strides(x), x.storage_offset() if x.numel() else 0


def same_bits(kind: str, what: str, one: torch.Tensor | None, two: torch.Tensor | None, any_zero: bool = False) -> None:
    if one is None or two is None:
        if one is not two and bool((one if two is None else two).any()):  # type: ignore[union-attr]
            raise Mismatch(kind, f"{what}: one gradient is missing and the other is not zero")
        return
    if one.shape != two.shape or one.dtype != two.dtype:
        raise Mismatch(kind, f"{what}: {two.dtype}{list(two.shape)} where eager has {one.dtype}{list(one.shape)}")
    a, b = host_values(one), host_values(two)
    if one.dtype == torch.bfloat16 and a.numel() and (a == a.flatten()[0]).all():
        # Inductor computes what is the same number everywhere ahead, and its graph has that number as bfloat16, which
        # is coarser than what the card makes of it.
        a = torch.where(b == a.bfloat16().float(), b, a)
    if a.dtype == torch.float32:
        a, b = (torch.where(x == 0, 0.0, x) if any_zero else x for x in (a, b))
        a, b = (torch.where(x.isnan(), torch.nan, x).contiguous().view(torch.int32) for x in (a, b))
    bad = a != b
    if bad.any():
        at = bad.nonzero()
        box = ", ".join(f"{int(c.min())}..{int(c.max())}" for c in at.T)
        first = tuple(at[0].tolist())
        ours, eager = (host_values(x)[first].item() for x in (two, one))
        raise Mismatch(
            kind,
            f"{what}: {len(at)} of {bad.numel()} values of {one.dtype}{list(one.shape)} differ, in [{box}]; "
            f"first at {list(first)}: {ours:.9g} where eager has {eager:.9g}",
        )


def same(kind: str, program: Program, one: Outcome, two: Outcome, any_zero: bool = False) -> None:
    for name, a, b in zip(program.returned, one.results, two.results, strict=True):
        same_bits(kind, f"result {name}", a, b, any_zero)
    for x, a, b in zip(program.inputs, one.inputs, two.inputs, strict=True):
        if x.on_card:
            same_bits(kind, f"input {x.name} afterwards", a, b, any_zero)
    leaves = [x.name for x in program.inputs if program.needs_gradient(x)]
    for name, g, h in zip(leaves if program.backward else [], one.gradients, two.gradients, strict=True):
        same_bits(kind, f"gradient of {name}", g, h, any_zero)
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
        torch.spyre.reset()  # an error of the card stays with its stream until then
        line = str(error).strip().splitlines()[:12]
        raise Mismatch(f"{kind} {type(error).__name__}", " | ".join(line)) from error


def check(program: Program) -> Lockstep:
    """Raises Mismatch; returns what was checked."""
    import graph_fuzz_runs

    lockstep = Lockstep()
    fn = program.function()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(fallbacks.disabled())
        if program.sanitize:
            stack.enter_context(sanitizer.sanitize())
        if program.lengths:
            graph_fuzz_runs.check_lengths(program, lockstep)
            return lockstep
        try:
            with raising("eager"), lockstep:
                eager = execute(program, fn)
        except Mismatch as error:
            if error.__cause__ is not None and refused(program, fn):
                return lockstep
            raise
        same_strides("eager", program, eager)
        if program.exported:
            graph_fuzz_runs.check_exported(program, fn, eager)
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


def refused(program: Program, fn: Any) -> bool:
    """Does the CPU raise as well? Shapes alone do not tell: the maximum of no elements."""
    generator = torch.Generator().manual_seed(program.data_seed)
    try:
        fn(*program.live(program.bases(generator, "cpu")))
    except Exception:
        return True
    return False


def check_compiled(kind: str, program: Program, fn: Any, eager: Outcome) -> None:
    with raising(kind):
        compiled = execute(program, optimised(fn, "spyre"))
    same_strides(kind, program, compiled)
    try:
        same(kind, program, eager, compiled)
    except Mismatch:
        # Dynamo and AOTAutograd write some ops in other terms than eager PyTorch. Then the unfused form of the graph is
        # what they hand to the compiler, run op by op. (Inductor then drops sums with zeros, which turn -0 into 0.)
        with raising("eager"):
            unfused = execute(program, optimised(fn, aot_autograd(fw_compiler=op_by_op)))
        same(kind, program, unfused, compiled, any_zero=True)


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


def optimised(fn: Any, backend: Any, reset: bool = True) -> Any:
    if reset:
        torch._dynamo.reset()
    return torch.compile(fn, backend=backend, fullgraph=True, dynamic=False)
