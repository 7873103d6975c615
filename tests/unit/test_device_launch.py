# SPDX-License-Identifier: Apache-2.0
"""pytest tests/unit/test_device_launch.py

Launch plans, the kernel launcher and the eager fallback with hand-made programs: bindings, scalars, keys, errors.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torch_spyre import _C
from torch_spyre.backend.program import assembler as a
from torch_spyre.backend.program.isa import VOPS, Access, Compute, ScalarKind, Space
from torch_spyre.errors import InvalidArgument, InvalidProgram
from torch_spyre.ir.affine import ZERO, Affine

N = 32  # one stick of float32
FP32 = _C.DataFormats.IEEE_FP32.value
LAYOUT = _C.SpyreTensorLayout([N], torch.float32)
OUTPUT = ([N], [1], torch.float32, LAYOUT)


def memory(argument: int) -> a.Operand:
    return a.Operand(Space.MEM, FP32, ZERO, (a.DimMap(4),), index=argument)


def program(op: str, inputs: int, scalars: int = 0) -> _C.Program:
    """args: inputs..., output. The scalars are further operands."""
    operands = [memory(i) for i in range(inputs)] + [a.Operand(Space.SCALAR, FP32, index=i) for i in range(scalars)]
    body = a.VopInst(VOPS[op].code, Compute.F32, (a.Extent.of(N),), memory(inputs), tuple(operands), origin=op)
    binary = a.ProgramBuilder(
        a.Program(
            args=[a.ProgramArg(Access.READ, 128)] * inputs + [a.ProgramArg(Access.WRITE, 128)],
            scalars=[ScalarKind.FP32] * scalars,
            registers=1,
            cores=1,
            lx_bytes=0,
            constants=b"",
            instructions=[body, a.EndInst()],
        )
    ).build()
    return _C.Program.load(binary)


def add_plan(*_: Any) -> _C.LaunchPlan:
    return _C.LaunchPlan(program("add", 2), [("input", 0), ("input", 1), ("output", 0)], [OUTPUT])


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(float(N)).to("spyre"), torch.full((N,), 0.5).to("spyre")


def test_program() -> None:
    loaded = program("add", 2)
    assert (loaded.n_args, loaded.n_scalars, loaded.arg_bytes(2)) == (3, 0, 128)
    assert "add" in loaded.disassemble()
    with pytest.raises(InvalidProgram):
        _C.Program.load(b"not a program")


def slow_proof(scalars: list[ScalarKind], limit: Affine) -> bytes:
    """Proved in some tenths of a second: each dim ends inside a block of its own, which gives 2^8 boxes per round."""
    maps = tuple(a.DimMap(4, 2, 12) for _ in range(8))
    box = a.CopyInst(
        tuple(a.Extent.of(3) for _ in range(8)),
        a.Operand(Space.MEM, FP32, ZERO, maps, index=0),
        a.Operand(Space.IMM, FP32, bits=0),
    )
    body = [a.LoopInst(2, ZERO, limit, 1), box, a.EndLoopInst(), a.EndInst()]
    arg = a.ProgramArg(Access.WRITE, 128)
    return a.ProgramBuilder(a.Program([arg], scalars, 3, 1, 0, b"", body)).build()


def ticks_during(work: Callable[[], object]) -> int:
    """How often this thread gets the interpreter while another one works."""
    ticks = seen = 0

    def measured() -> None:
        nonlocal seen
        before = ticks
        work()
        seen = ticks - before

    thread = threading.Thread(target=measured)
    thread.start()
    while thread.is_alive():
        ticks += 1
        time.sleep(0.001)
    return seen


def test_other_threads_go_on_during_a_proof() -> None:
    rounds = Affine(100_000)
    assert ticks_during(lambda: _C.Program.load(slow_proof([], rounds))) > 10
    counted = _C.Program.load(slow_proof([ScalarKind.INTEGER], Affine.symbol(1)))
    plan = _C.LaunchPlan(counted, [("input", 0)], [], scalars=[(1, "i")])
    launcher = _C.KernelLauncher("counted", lambda _: plan)
    x = torch.zeros(N).to("spyre")

    def refused() -> None:
        with pytest.raises(InvalidProgram, match="50 million steps"):
            launcher(x, 1_000_000)

    assert ticks_during(refused) > 10


def test_launcher_plans_once_per_signature(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The key holds sizes, strides, offset, dtype and layout of each input."""
    seen: list[list[Any]] = []

    def miss(inputs: list[Any]) -> _C.LaunchPlan:
        seen.append(inputs)
        return add_plan()

    launcher = _C.KernelLauncher("add", miss)
    x, y = pair
    for _ in range(3):
        (z,) = launcher(x, y)
        assert torch.equal(z.cpu(), x.cpu() + 0.5)
    assert len(seen) == 1 and seen[0][0] is x
    launcher(x.view(4, 8), y)
    launcher(x.view(4, 8).t(), y)
    launcher(x[1:], y)
    other = _C.spyre_empty_with_layout(
        [N], [1], torch.float32, _C.SpyreTensorLayout([2, N], [N, 1], LAYOUT.device_dtype)
    )
    launcher(other, y)
    assert len(seen) == launcher.variants == 5
    launcher(y, x), launcher(x[1:], y)
    assert launcher.variants == 5
    assert repr(launcher) == "<KernelLauncher add>"


def test_launch_scalars(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Numbers and CPU scalars are values of a launch, not part of its key."""
    plan = _C.LaunchPlan(program("mul", 1, 1), [("input", 0), ("output", 0)], [OUTPUT], scalars=[(1, "f")])
    launcher = _C.KernelLauncher("mul", lambda inputs: plan)
    x, _ = pair
    for value in (2, 3):
        assert torch.equal(launcher(x, value)[0].cpu(), x.cpu() * value)
        assert torch.equal(launcher(x, value / 2)[0].cpu(), x.cpu() * (value / 2))
        assert torch.equal(launcher(x, torch.tensor(value))[0].cpu(), x.cpu() * value)
    assert launcher.variants == 3


def test_pool_and_constants(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = pair
    before = torch.spyre.memory_allocated()
    plan = _C.LaunchPlan(program("add", 2), [("input", 0), ("constant", 0), ("output", 0)], [OUTPUT], constants=[y])
    assert torch.equal(_C.KernelLauncher("k", lambda i: plan)(x)[0].cpu(), x.cpu() + 0.5)
    scratch = _C.LaunchPlan(program("neg", 1), [("input", 0), ("pool", 0)], [], pool_bytes=4096)
    assert _C.KernelLauncher("p", lambda i: scratch)(x) == ()
    torch.spyre.synchronize()
    assert torch.spyre.memory_allocated() == before


def test_inputs_may_be_written(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = pair
    plan = _C.LaunchPlan(program("add", 2), [("input", 0), ("input", 1), ("input", 0)], [])
    assert _C.KernelLauncher("add_", lambda i: plan)(x, y) == ()
    assert torch.equal(x.cpu(), torch.arange(float(N)) + 0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _C.LaunchPlan(program("add", 2), [("input", 0)], []), "3 arguments"),
        (lambda: _C.LaunchPlan(program("neg", 1), [("input", 0), ("output", 0)], []), "does not exist"),
        (lambda: _C.LaunchPlan(program("neg", 1), [("input", 0), ("place", 0)], []), "binding kind 'place'"),
        (lambda: _C.LaunchPlan(program("mul", 1, 1), [("input", 0), ("output", 0)], [OUTPUT]), "1 launch scalars"),
    ],
)
def test_plans_are_checked(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        make()


def test_launcher_errors(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, _ = pair
    launcher = _C.KernelLauncher("add", add_plan)
    with pytest.raises(RuntimeError, match=r"add: .*rank 1 on cpu"):
        launcher(x, torch.ones(N))
    with pytest.raises(TypeError, match=r"add: .*got str"):
        launcher(x, "y")
    with pytest.raises(TypeError):
        launcher(x, other=x)

    def fails(inputs: list[Any]) -> _C.LaunchPlan:
        raise KeyError("no plan")

    with pytest.raises(KeyError, match="no plan"):
        _C.KernelLauncher("k", fails)(x)
    with pytest.raises(InvalidArgument):
        _C.KernelLauncher("k", add_plan)(x)


@pytest.fixture
def eager() -> Iterator[list[tuple[Any, Any, Any]]]:
    """Calls that reach the eager compiler; add gives plans, everything else a result made on the host."""
    from torch_spyre import _compile_op

    calls: list[tuple[Any, Any, Any]] = []

    def compiler(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls.append((op, args, kwargs))
        if op is torch.ops.aten.add.Tensor:
            return _C.EagerPlan(add_plan(), [0, 1], [("output", 0)])
        if op is torch.ops.aten.add_.Tensor:
            plan = _C.LaunchPlan(program("add", 2), [("input", 0), ("input", 1), ("input", 0)], [])
            return _C.EagerPlan(plan, [0, 1], [("input", 0)])
        if op is torch.ops.aten._copy_from.default:
            return "result", args[1].copy_(args[0].cpu())
        to_host = [x.cpu() if isinstance(x, torch.Tensor) else x for x in args]
        result = op(*to_host, **kwargs)
        if isinstance(result, torch.Tensor):
            return "result", result.to("spyre")
        if isinstance(result, list | tuple):
            return "result", type(result)(t.to("spyre") for t in result)
        return "result", result

    _C.clear_eager_cache()
    _C.set_eager_compiler(compiler)
    yield calls
    _C.set_eager_compiler(_compile_op)
    _C.clear_eager_cache()


def test_eager_ops_are_planned_once(eager: list[Any], pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Functional and in-place forms arrive as they were called; alpha is part of the key."""
    x, y = pair
    for _ in range(3):
        assert torch.equal((x + y).cpu(), torch.arange(float(N)) + 0.5)
    assert [op for op, _, _ in eager] == [torch.ops.aten.add.Tensor]
    _, args, kwargs = eager[0]
    assert args[0].is_spyre and kwargs == {"alpha": 1}
    torch.add(x, y, alpha=2)
    assert len(eager) == 2
    same = x
    x += y
    x += y
    assert same is x and torch.equal(x.cpu(), torch.arange(float(N)) + 1)
    assert len(eager) == 3


def test_eager_results_computed_elsewhere(eager: list[Any], pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Lists, tuples and numbers come back in the op's own form; enumerations arrive as Python objects."""
    x, _ = pair
    assert torch.equal(torch.cumsum(x, 0, dtype=torch.float32).cpu(), torch.arange(float(N)).cumsum(0))
    op, args, kwargs = eager[-1]
    assert op is torch.ops.aten.cumsum.default and args[1] == 0 and kwargs == {"dtype": torch.float32}
    values, indices = torch.sort(x, descending=True)
    assert values[0].item() == N - 1 and indices[0].item() == N - 1
    assert torch.equal(x, x) is True


def test_eager_autograd(eager: list[Any], pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = pair
    x.requires_grad_()
    z = x + y
    assert z.requires_grad and type(z.grad_fn).__name__ == "AddBackward0"
    z.backward(torch.ones(N, device="spyre"))
    assert torch.equal(x.grad.cpu(), torch.ones(N))


def test_eager_compiler_errors_pass_through(eager: list[Any], pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = pair
    _C.set_eager_compiler(lambda op, args, kwargs: struct.unpack("<I", b""))
    with pytest.raises(struct.error):
        torch.add(x, y)
    _C.set_eager_compiler(lambda op, args, kwargs: 7)
    with pytest.raises(TypeError, match="EagerPlan"):
        torch.add(x, y)
    _C.set_eager_compiler(None)
    with pytest.raises(NotImplementedError, match=r"aten::add\.Tensor"):
        torch.add(x, y)
