# SPDX-License-Identifier: Apache-2.0
"""The driver: the one way from a planned kernel or a KTIR module to a program that can be launched.

Enters: a plan (`ir.plan.tileops.Kernel`), a KTIR module, or the key of something compiled before. Leaves: a `Loaded`
kernel and its `_C.LaunchPlan`. Compiled graphs, eager calls, KTIR files, SuperDSC bundles, JobPlans and reproducers all
come through here, so that there is one cache with one kind of key, and every program carries its time on the card's
clock. Imports torch, xDSL and the back end only when they are needed: a program in the cache needs no compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_spyre.ir.plan.tileops import Kernel
from torch_spyre.runtime import cache
from torch_spyre.runtime.cache import CachedKernel, FunctionArguments, OutputSpec

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from torch_spyre.backend.compile import CompiledProgram
    from torch_spyre.backend.options import Options

# Each says whether somebody watches graphs being compiled just now; then they are not recalled, so that all are seen.
watchers: list[Callable[[], bool]] = []


class Loaded(NamedTuple):
    """A kernel and its program, which the card has proved."""

    kernel: CachedKernel
    program: Any  # _C.Program


# Compiling


class Built(NamedTuple):
    """A plan, printed and compiled."""

    module: ModuleOp
    program: CompiledProgram


def build(kernel: Kernel) -> Built:
    """A plan as KTIR and as a program."""
    from torch_spyre.ir.ktir.emit.kernel_function import emit  # late: start-up

    module = emit(kernel)
    return Built(module, build_ktir(module, sizes=[arg.bytes for arg in kernel.args]))


def build_ktir(
    module: ModuleOp,
    function: str | None = None,
    options: Options | None = None,
    bind: Mapping[str | int, int] | None = None,
    sizes: Sequence[int] | None = None,
) -> CompiledProgram:
    """The program of one function of a module. For the arguments see `backend.compile.compile_module`."""
    from torch_spyre.backend import options as choices  # late: start-up
    from torch_spyre.backend.compile import compile_module  # late: start-up
    from torch_spyre.perf.pricing import duration_ns  # late: start-up

    return compile_module(module, function, duration_ns, options=options or choices.DEFAULT, bind=bind, sizes=sizes)


def of_function(name: str, program: CompiledProgram) -> CachedKernel:
    """A kernel whose caller passes every buffer and then every scalar."""
    count = len(program.args)
    kinds = ["f" if kind.name == "FP32" else "i" for kind in program.scalars]
    return CachedKernel(
        name,
        program.binary,
        tuple(("input", i) for i in range(count)),
        tuple((count + i, kind) for i, kind in enumerate(kinds)),
        (),
        0,
        function=FunctionArguments(
            tuple((int(arg.access), arg.bytes) for arg in program.args),
            program.buffers,
            program.launch_scalars,
            program.memory_arg,
        ),
    )


# The cache


def recall(entry: cache.Key) -> Loaded | None:
    """What the cache holds under the key of a graph; None if it must be compiled, or if somebody watches that."""
    return None if any(watch() for watch in watchers) else _recall(entry)


def _recall(entry: cache.Key) -> Loaded | None:
    found = cache.load(entry)
    if found is None:
        return None
    try:
        return load(found)
    except Exception as error:  # a faulty entry, or one of another version, may fail in any way; it is compiled again
        cache.discard(entry, error)
        return None


def accept(entry: cache.Key, made: CachedKernel) -> Loaded:
    """Loads a new kernel and stores it; one that the card refuses is not stored."""
    loaded = load(made)
    cache.store(entry, made)
    return loaded


def obtain(entry: cache.Key, make: Callable[[], CachedKernel]) -> Loaded:
    """The kernel of a key, from the cache if possible. Nobody watches what is no graph."""
    return _recall(entry) or accept(entry, make())


def obtain_plan(kernel: Kernel) -> Loaded:
    """A planned kernel whose caller passes all of its arguments. Its own text is its key."""
    entry = cache.key(f"plan {kernel!r}", [])
    return obtain(entry, lambda: of_function(kernel.name, build(kernel).program))


# The card


def load(kernel: CachedKernel) -> Loaded:
    """The card decodes the program and proves it."""
    from torch_spyre import _C  # late: the rest works without torch

    return Loaded(kernel, _C.Program.load(kernel.program))


def launch_plan(loaded: Loaded) -> Any:
    """The `_C.LaunchPlan` of a kernel: what each argument is, which results are made, how much pool they need."""
    from torch_spyre import _C  # late: the rest works without torch

    kernel = loaded.kernel
    outputs = [_output(o) for o in kernel.outputs]
    bindings, scalars = list(kernel.bindings), list(kernel.scalars)
    return _C.LaunchPlan(
        loaded.program, bindings, outputs, kernel.pool_bytes, [], scalars, kernel.name, kernel.displaced
    )


def launcher(loaded: Loaded) -> Any:
    """A callable that launches the kernel, whatever tensors it is given."""
    from torch_spyre import _C  # late: the rest works without torch

    plan = launch_plan(loaded)
    return _C.KernelLauncher(loaded.kernel.name, lambda _: plan)


def _output(o: OutputSpec) -> tuple[Any, ...]:
    import torch

    from torch_spyre import _C  # late: the rest works without torch

    layout = _C.SpyreTensorLayout(list(o.device_size), list(o.stride_map), getattr(_C.DataFormats, o.format))
    return list(o.size), list(o.stride), getattr(torch, o.dtype), layout
