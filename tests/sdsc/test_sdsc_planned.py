# SPDX-License-Identifier: Apache-2.0
"""pytest tests/sdsc/test_sdsc_planned.py

Compiled functions as the planner plans them: the program made from the printed bundle is the one made from the plan,
and it gives the same bits on the card.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_sdsc_programs import check
from test_sdsc_roundtrip import files_json
from torch.nn import functional

from torch_spyre import _C
from torch_spyre._inductor.compile import _cached
from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.debug.inspect import KernelRecord
from torch_spyre.backend.compile import compile_module
from torch_spyre.errors import NotExpressible
from torch_spyre.ir.ktir.emit.kernel_function import emit
from torch_spyre.ir.superdsc.unroll import without_loops
from torch_spyre.runtime import driver
from torch_spyre.sdsc import bundle_files, read_kernel

HALF, FULL, BOOL = torch.float16, torch.float32, torch.bool
Case = tuple[Callable[..., torch.Tensor], list[torch.Tensor]]


def values(*size: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.randn(size).gt(0) if dtype is BOOL else torch.randn(size).to(dtype)


def planned(fn: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> list[KernelRecord]:
    """The kernels that compiling and running a function makes."""
    on_card = [x.to("spyre") for x in inputs]
    torch._dynamo.reset()
    inspect.start()
    before = len(inspect.records())
    try:
        torch.compile(fn, dynamic=False)(*on_card)
    finally:
        inspect.stop()
    return inspect.records()[before:]


def run(record: KernelRecord, binary: bytes, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    plan = driver.launch_plan(driver.load(_cached(record.plan, binary)))
    return [x.cpu() for x in _C.KernelLauncher(record.name, lambda _: plan)(*inputs)]


def check_on_card(record: KernelRecord) -> None:
    """Inputs are made up: what a kernel computes does not matter here, only that both programs agree."""
    kernel, graph = record.plan.kernel, record.plan.graph
    inputs: list[Any] = []
    for name in graph.inputs:
        buffer = graph.buffers[name]
        span = 1 + sum((n - 1) * s for n, s in zip(buffer.size, buffer.stride, strict=True))
        flat = values(span, dtype=getattr(torch, buffer.dtype))
        inputs.append(torch.as_strided(flat, buffer.size, buffer.stride).to("spyre"))
    back = read_kernel(files_json(kernel), kernel.name, kernel.cores)
    direct = run(record, record.program.binary, inputs)
    bundle = run(record, compile_module(emit(back)).binary, inputs)
    for a, b in zip(direct, bundle, strict=True):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def mlp(x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor) -> torch.Tensor:
    return functional.linear(torch.relu(functional.linear(x, w1, b1)), w2, b2)


def mlp_case(*x: int, hidden: int, out: int) -> Case:
    return mlp, [values(*x), values(hidden, x[-1]), values(hidden), values(out, hidden), values(out)]


def add_matmul(m: int, k: int, n: int) -> Case:
    return lambda a, b, w: (a + b) @ w, [values(m, k), values(m, k), values(k, n)]


def one(fn: Callable[..., torch.Tensor], *size: int, dtype: torch.dtype = HALF) -> Case:
    return fn, [values(*size, dtype=dtype)]


def two(fn: Callable[..., torch.Tensor], *size: int, dtype: torch.dtype = HALF) -> Case:
    return fn, [values(*size, dtype=dtype), values(*size, dtype=dtype)]


SHAPES = [(5,), (1000,), (7, 1), (33, 100), (64, 256), (4, 7, 130), (2, 3, 5, 65)]
BY_SHAPE: dict[str, Callable[..., Case]] = {
    "softmax": lambda *s: one(lambda x: torch.softmax(x, -1), *s),
    "add": lambda *s: two(lambda a, b: a + b, *s),
    "sub mul div": lambda *s: two(lambda a, b: (a - b) * a / b, *s),
    "relu exp": lambda *s: one(lambda a: torch.relu(a).exp(), *s),
    "scalars": lambda *s: one(lambda a: 1 - a * 0.1, *s),
    "where": lambda *s: two(lambda a, b: torch.where(a > b, a, b * 2), *s),
    "fp32 where": lambda *s: two(lambda a, b: torch.where(a > b, a, b), *s, dtype=FULL),
    "masked": lambda *s: (
        lambda m, a: torch.where(m, a, -math.inf),
        [values(*s, dtype=BOOL), values(*s)],
    ),
    "row sum": lambda *s: one(lambda a: a.sum(-1), *s),
    "row max": lambda *s: one(lambda a: a.amax(-1, keepdim=True), *s),
    "column sum": lambda *s: one(lambda a: a.sum(0), *s),
    "to fp32": lambda *s: one(lambda a: a.float() + 1, *s),
    "to fp16": lambda *s: one(lambda a: a.half(), *s, dtype=FULL),
    "to bf16": lambda *s: one(lambda a: a.bfloat16(), *s),
    "bias": lambda *s: (lambda a, b: a + b, [values(*s), values(s[-1])]),
    "0-d operand": lambda *s: (lambda a, b: a * b, [values(*s), values()]),
    "copy": lambda *s: one(lambda a: a.clone(), *s),
}
CASES: dict[str, Callable[[], Case]] = {
    **{f"{name} {s}": lambda make=make, s=s: make(*s) for name, make in BY_SHAPE.items() for s in SHAPES},  # type: ignore[misc]
    "add matmul 64": lambda: add_matmul(64, 128, 192),
    "add matmul odd": lambda: add_matmul(50, 200, 130),
    "add matmul small": lambda: add_matmul(3, 5, 7),
    "add matmul of one column": lambda: add_matmul(33, 64, 1),
    "mlp 64": lambda: mlp_case(64, 128, hidden=256, out=128),
    "mlp odd": lambda: mlp_case(32, 100, hidden=256, out=70),
    "mlp small": lambda: mlp_case(5, 3, hidden=7, out=2),
    "mlp of one row": lambda: mlp_case(1, 64, hidden=64, out=64),
    "mlp 3-d": lambda: mlp_case(3, 10, 100, hidden=256, out=70),
    "bmm": lambda: (torch.matmul, [values(2, 3, 30, 100), values(2, 3, 100, 65)]),
    "transpose": lambda: one(lambda a: a.t().contiguous(), 100, 130),
    "transpose and add": lambda: (lambda a, b: a.t() + b, [values(100, 130), values(130, 100)]),
    "fp32 transpose": lambda: one(lambda a: a.t().contiguous(), 67, 5, dtype=FULL),
    "permute": lambda: one(lambda a: a.permute(0, 2, 1, 3).contiguous(), 2, 3, 40, 100),
    "flatten": lambda: (lambda a, b: a.flatten(0, 1) + b, [values(5, 10, 200), values(50, 200)]),
    "flatten sticks": lambda: one(lambda a: a.reshape(5, -1).exp(), 5, 10, 128),
}


@pytest.mark.parametrize("name", CASES)
def test_bundle_gives_the_same_bits(name: str) -> None:
    records = planned(*CASES[name]())
    assert records
    for record in records:
        check(without_loops(record.plan.kernel))
        check_on_card(record)


def test_reshape_across_sticks_says_why_not() -> None:
    (record,) = planned(*one(lambda a: a.reshape(-1).exp(), 5, 10, 200))
    with pytest.raises(NotExpressible, match="touched at linear host offsets"):
        bundle_files(record.plan.kernel)
