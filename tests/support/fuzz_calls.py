# SPDX-License-Identifier: Apache-2.0
"""Native functions and classes, called with anything."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import fuzz_numbers as numbers
import torch
from fuzz_views import attempt, told
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_spyre import _C, _card

# These change what later cases see: test_native_calls.py calls them in a process of their own.
GLOBAL = {
    "set_eager_compiler", "_set_eager_knobs", "_set_eager_knobs_reader", "_inject_fault", "_set_memory_hook",
    "_set_timing_only", "_record_activities", "_recorded_activities", "_set_launch_blocking", "set_current_stream",
    "set_sanitize", "set_host_threads", "record_timeline", "count_kernel_times", "manual_seed", "manual_seed_all",
    "set_rng_state", "reset", "clear_eager_cache", "set_downcast_warning", "set_device", "trim", "inject_fault",
}  # fmt: skip


def show(*call: Any) -> None:
    """Replaced where each call shall be printed before it is made."""


def members(module: Any) -> dict[str, Callable[..., Any]]:
    """Functions of a module, its classes, and the methods of its classes without their first argument."""
    found: dict[str, Callable[..., Any]] = {}
    for name in dir(module):
        value = getattr(module, name)
        if name.startswith("__") or not callable(value):
            continue
        found[f"{module.__name__}.{name}"] = value
        if isinstance(value, type):
            for method in dir(value):
                if callable(getattr(value, method)) and (method == "__setstate__" or not method.startswith("__")):
                    found[f"{module.__name__}.{name}.{method}"] = getattr(value, method)
    return found


@functools.cache
def functions() -> tuple[Callable[..., Any], ...]:
    everything = {**members(_C), **members(_card)}
    return tuple(value for name, value in everything.items() if name.rpartition(".")[2] not in GLOBAL)


def program_bytes() -> bytes:
    """A program that adds two vectors, as the eager compiler makes it."""
    from torch_spyre._inductor.debug import inspect

    inspect.start()
    torch.add(torch.ones(70, device="spyre"), torch.ones(70, device="spyre"))
    inspect.stop()
    return bytes(inspect.records()[-1].program.binary)


@functools.cache
def objects() -> tuple[Any, ...]:
    card = torch.arange(12.0, device="spyre").reshape(3, 4)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(card)
    layout = _C.SpyreTensorLayout([3, 4], torch.float32)
    own = _card.Card(0)
    return (
        None, True, 0, 1, 2, 7, 1.5, float("nan"), "", "f", "input", "\0", b"", b"ab", (), [], {}, [1], [1, 2], [3, 4],
        [[1], [2]], ("input", 0), ("output", -1), [("input", 0), ("input", 1), ("output", 0)], object(), len,
        lambda *_: None, torch.float32, torch.float64, torch.device("spyre"), torch.device("cpu"), torch.device("meta"),
        torch.contiguous_format, torch.preserve_format, torch.Generator(), card, card.cpu(), card[1:].t(), fake,
        torch.empty(0), torch.empty(0, device="spyre"), torch.empty(2, device="meta"), torch.tensor(1.0),
        torch.nn.Parameter(card), torch.empty(16, dtype=torch.uint8), layout, _C.DataFormats.SEN169_FP16,
        _C.DataFormats.INVALID, _C.ElementArrangement.EXX2, _C.Recording(), own, own.record(0),
        torch.arange(6).numpy(), memoryview(b"abcdef"), ([3, 4], [4, 1], torch.float32, layout),
        (3, [1, 64], [-1, 1], _C.DataFormats.SEN169_FP16, _C.ElementArrangement.STANDARD), (2, [], [], None), [card],
    )  # fmt: skip


@functools.cache
def launchables() -> tuple[Any, ...]:
    """A real program and plans with it, so that calls get past the first check."""
    program = _C.Program.load(program_bytes())
    inputs = _C.LaunchPlan(program, [("input", i) for i in range(program.n_args)], [])
    return program, inputs, _C.EagerPlan(inputs, [0, 1, 2], []), _C.KernelLauncher("any", lambda _: inputs)


def argument(draw: random.Random) -> Any:
    way = draw.random()
    if way < 0.15:
        return draw.choice(numbers.ABSURD)
    if way < 0.25:
        return [draw.choice([*numbers.ABSURD, 0, 1, 2]) for _ in range(draw.randrange(4))]
    return draw.choice(launchables()) if way < 0.35 else draw.choice(objects())


def run(draw: random.Random) -> str:
    call = draw.choice((*functions(), launchables()[3]))
    accepted = 0
    for _ in range(20):
        given = [argument(draw) for _ in range(draw.randrange(7))]
        show(call, *(x if not isinstance(x, torch.Tensor) else told(x) for x in given))
        accepted += not isinstance(attempt(lambda: call(*given)), Exception)  # noqa: B023
    attempt(torch.spyre.synchronize)
    attempt(torch.spyre.reset)
    return "called" if accepted else "refused"
