# SPDX-License-Identifier: Apache-2.0
"""The pipeline: a KTIR module to a program binary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import Float16Type, Float32Type, IndexType, IntegerType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from torch_spyre.backend import contractions, control, elementwise, memory, phases, scratch
from torch_spyre.backend.access import Accesses
from torch_spyre.backend.affine import Affine, arg_symbol
from torch_spyre.backend.assembler import Instruction, Program, ProgramArg, ProgramBuilder
from torch_spyre.backend.isa import MAX_CORES, Access, ScalarKind
from torch_spyre.backend.scalars import Scalars
from torch_spyre.backend.selector import Selector
from torch_spyre.backend.stream import Stream
from torch_spyre.constants import LX_BYTES
from torch_spyre.errors import InvalidProgram, UnsupportedOp

_PASSES = (memory, elementwise, contractions, phases, control)


@dataclass(frozen=True)
class CompiledProgram:
    """`binary` is docs/program-format.md; the rest says what is in it, for launchers and for `explain`."""

    binary: bytes
    args: tuple[ProgramArg, ...]
    scalars: tuple[ScalarKind, ...]
    cores: int
    lx_bytes: int
    instructions: tuple[Instruction, ...]
    program: Program

    def explain(self) -> str:
        return str(self.program)


def compile_module(
    module: ModuleOp, function: str | None = None, duration_ns: Callable[[Program], int] | None = None
) -> CompiledProgram:
    """Compiles the one function of a module, or the one that is named. `duration_ns` says how long a launch takes."""
    functions = [op for op in module.body.block.ops if isinstance(op, FuncOp)]
    if function is not None:
        functions = [f for f in functions if f.sym_name.data == function]
    if len(functions) != 1:
        names = [f.sym_name.data for f in functions]
        raise InvalidProgram(f"a program is one function; found {names or 'none'}, name the one to compile")
    program = _compile(functions[0], eager_barriers=False)
    if program.lx_bytes > LX_BYTES:
        program = _compile(functions[0], eager_barriers=True)
    if duration_ns is not None:
        program.duration_ns = duration_ns(program)
    binary = ProgramBuilder(program).build()
    return CompiledProgram(
        binary,
        tuple(program.args),
        tuple(program.scalars),
        program.cores,
        program.lx_bytes,
        tuple(program.instructions),
        program,
    )


def _compile(function: FuncOp, eager_barriers: bool) -> Program:
    grid = _grid(function)
    cores = 1
    for size in grid:
        cores *= size
    if not 1 <= cores <= MAX_CORES:
        raise UnsupportedOp(f"grid {list(grid)} has {cores} compute tiles; a card has {MAX_CORES} cores")
    body = function.body.block
    buffers, launch_scalars = _classify_arguments(body.args)
    kinds = [_scalar_kind(value) for value in launch_scalars]
    stream = Stream(cores, kinds.count(ScalarKind.INTEGER))
    scalars = Scalars(stream, grid)
    for index, value in enumerate(buffers):
        scalars.bind(value, Affine.symbol(arg_symbol(index)))
    integers = [value for value, kind in zip(launch_scalars, kinds, strict=True) if kind is ScalarKind.INTEGER]
    for register, value in enumerate(integers, start=1):
        scalars.bind(value, Affine.symbol(register))
    selector = Selector(stream, scalars, Accesses(stream, scalars), function.sym_name.data)
    selector.eager_barriers = eager_barriers
    selector.launch_scalars = {value: index for index, value in enumerate(launch_scalars)}
    for table in _PASSES:
        selector.register(table.HANDLERS)
    selector.run(body)
    instructions, lx_end = scratch.assign(stream.finish(), selector.scratch, selector.accesses.lx_bytes)
    args = [
        ProgramArg(selector.arg_access.get(i, Access.READ), selector.accesses.arg_bytes.get(i, 0))
        for i in range(len(buffers))
    ]
    return Program(args, kinds, stream.registers, cores, lx_end, bytes(selector.constants), instructions)


def _grid(function: FuncOp) -> tuple[int, ...]:
    attr: Any = function.attributes.get("grid")
    return tuple(entry.value.data for entry in attr.data) if attr is not None else (1,)


def _classify_arguments(args: Any) -> tuple[list[SSAValue], list[SSAValue]]:
    """Buffers are index arguments that views start from, or that nothing uses; all others are launch scalars."""
    buffers: list[SSAValue] = []
    launch_scalars: list[SSAValue] = []
    for arg in args:
        is_buffer = isinstance(arg.type, IndexType) and (not arg.uses or _reaches_view(arg))
        (buffers if is_buffer else launch_scalars).append(arg)
    return buffers, launch_scalars


def _reaches_view(value: SSAValue) -> bool:
    for use in value.uses:
        op = use.operation
        if op.name == "ktdp.construct_memory_view" and use.index == 0:
            return True
        if op.name == "arith.addi" and _reaches_view(op.results[0]):
            return True
    return False


def _scalar_kind(value: SSAValue) -> ScalarKind:
    if isinstance(value.type, IndexType | IntegerType):
        return ScalarKind.INTEGER
    if isinstance(value.type, Float16Type | Float32Type):
        return ScalarKind.FP32
    raise UnsupportedOp(f"a function argument of type {value.type}; arguments are index, integers, f16 and f32")
