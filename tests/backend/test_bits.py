# SPDX-License-Identifier: Apache-2.0
# pytest tests/backend/test_bits.py
"""One semantics: the bits do not depend on threads, core count, scratchpad planning, fusion, or the printed form."""

import pytest
import torch

from torch_spyre import _card
from torch_spyre._inductor import config
from torch_spyre._inductor.debug import inspect
from torch_spyre._inductor.planning.planner import Plan
from torch_spyre.backend.compile import compile_module
from torch_spyre.backend.program.decoder import decode
from torch_spyre.ir.ktir.emit.kernel_function import emit
from torch_spyre.ir.superdsc.writer import write_bundle
from torch_spyre.sdsc import read_bundle


def half(*size: int) -> torch.Tensor:
    return torch.randn(*size).to(torch.float16)


def attention_like(x, w, b):
    return torch.softmax(torch.relu((x + b) @ w) * 0.5, -1)


def mlp(x, w, b):
    return torch.relu(x @ w) @ w.t() + b


def reductions(x, w, b):
    return (x * x).sum(-1, keepdim=True) + (x + b).amax(-1, keepdim=True)


FUNCTIONS = [attention_like, mlp, reductions]
SIZES = [(33, 100, 70), (64, 128, 192)]


def arguments(m: int, k: int, n: int) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [half(m, k), half(k, n), half(k)]


def run(fn, args, **patches) -> torch.Tensor:
    torch._dynamo.reset()
    with config.patch(**patches):
        return torch.compile(fn, dynamic=False)(*(a.to("spyre") for a in args)).cpu()


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("size", SIZES)
def test_core_count_and_scratchpad_do_not_change_bits(fn, size) -> None:
    args = arguments(*size)
    want = run(fn, args)
    for patches in ({"sencores": 1}, {"sencores": 3}, {"sencores": 8}, {"sencores": 31}, {"lx_planning": False}):
        assert torch.equal(run(fn, args, **patches), want), patches


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_host_threads_do_not_change_bits(fn) -> None:
    args = arguments(65, 100, 130)
    results = []
    before = _card.host_threads()
    try:
        for threads in (1, 2, 3):
            _card.set_host_threads(threads)
            results.append(run(fn, args))
    finally:
        _card.set_host_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("size", SIZES)
def test_compiled_equals_eager(fn, size) -> None:
    """Eager runs one op per program, compiled code all of them in one: each op rounds to its own type in both."""
    args = arguments(*size)
    eager = fn(*(a.to("spyre") for a in args)).cpu()
    assert torch.equal(run(fn, args), eager)


def plans_of(fn, args) -> list[Plan]:
    before = len(inspect.records())
    inspect.start()
    try:
        run(fn, args)
    finally:
        inspect.stop()
    return [r.plan for r in inspect.records()[before:]]


def chain(x, w, b):
    return torch.where(x > b, torch.exp(x) - b, x / (b * b + x))


def row_max(x, w, b):
    return x.amax(-1) + (x + b).sum(-1)


def transposed(x, w, b):
    return (x.t() + x.t()).contiguous() @ x


ISSUE_FUNCTIONS = [lambda x, w, b: (x + x) @ w, lambda x, w, b: torch.softmax(x, -1), mlp, chain, row_max, transposed]


@pytest.mark.parametrize("fn", ISSUE_FUNCTIONS)
@pytest.mark.parametrize("size", [(33, 100, 70), (64, 128, 192), (50, 200, 130)])
def test_superdsc_read_back_is_the_same_program(fn, size, tmp_path) -> None:
    """Every kernel is printed as a SuperDSC bundle, read back, and compiled to the same instructions."""
    plans = plans_of(fn, arguments(*size))
    assert plans
    for i, plan in enumerate(plans):
        write_bundle(plan.kernel, tmp_path / str(i))
        again = read_bundle(tmp_path / str(i), cores=plan.kernel.cores)
        direct, through = (decode(compile_module(emit(k)).binary) for k in (plan.kernel, again))
        assert [strip(x) for x in through.instructions] == [strip(x) for x in direct.instructions]


def strip(instruction):
    """An instruction without its origin: names are not part of a SuperDSC."""
    import dataclasses

    return dataclasses.replace(instruction, origin="") if hasattr(instruction, "origin") else instruction


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("sign", [1, -1])
def test_infinity_is_the_same_operand_eager_and_compiled(dtype: torch.dtype, sign: int) -> None:
    """A Python number that takes part in arithmetic is one of fp32: 0 * inf is NaN, a finite number / inf is 0."""
    infinity = sign * float("inf")
    x = torch.tensor([1.0, 0.0, -2.0, 3e4]).to(dtype).to("spyre")

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * infinity, x + infinity, x / infinity, infinity - x, torch.fmod(x, infinity), x.clamp(max=infinity)]

    torch._dynamo.reset()
    for eager, compiled, host in zip(fn(x), torch.compile(fn, dynamic=False)(x), fn(x.cpu()), strict=True):
        assert torch.equal(eager.cpu().nan_to_num(7, 8, 9), compiled.cpu().nan_to_num(7, 8, 9))
        assert torch.equal(eager.cpu().nan_to_num(7, 8, 9), host.nan_to_num(7, 8, 9))
