# SPDX-License-Identifier: Apache-2.0
"""The pipeline: a KTIR module to a program binary."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import IndexType, IntAttr, IntegerType, ModuleOp, _FloatType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, SSAValue

from torch_spyre import constants
from torch_spyre.backend.addressing.access_tiles import Accesses
from torch_spyre.backend.options import DEFAULT, Options
from torch_spyre.backend.program.assembler import Instruction, Program, ProgramArg, ProgramBuilder
from torch_spyre.backend.program.isa import MAX_CORES, Access, ScalarKind
from torch_spyre.backend.schedule import absorb, phases, scratch, streaming
from torch_spyre.backend.schedule.scalars import Scalars
from torch_spyre.backend.schedule.stream import Register, Stream
from torch_spyre.backend.select import (
    bodies,
    comparisons,
    composed,
    contractions,
    control,
    conversions,
    elementwise,
    loads,
    reshapes,
    sorting,
    unsigned,
)
from torch_spyre.backend.select.selector import Selector
from torch_spyre.constants import LX_BYTES
from torch_spyre.errors import InvalidArgument, InvalidProgram, ScratchpadFull, UnsupportedOp
from torch_spyre.ir.affine import Affine, arg_symbol
from torch_spyre.ir.ktir.dialect.spyreop import DF16Type
from torch_spyre.ir.ktir.dialect.types import RuntimeArgType

_HANDLERS = (
    loads,
    bodies,
    elementwise,
    comparisons,
    composed,
    conversions,
    unsigned,
    reshapes,
    contractions,
    sorting,
    phases,
    control,
)


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
    buffers: tuple[int, ...] = ()  # position of the function argument behind each launch buffer
    launch_scalars: tuple[int, ...] = ()  # ... behind each launch scalar
    memory_arg: int | None = None  # the buffer that literal addresses count from, if there are any

    def explain(self) -> str:
        return str(self.program)


def compile_module(
    module: ModuleOp,
    function: str | None = None,
    duration_ns: Callable[[Program], int] | None = None,
    *,
    options: Options = DEFAULT,
    bind: Mapping[str | int, int] | None = None,
    sizes: Sequence[int] | None = None,
) -> CompiledProgram:
    """Compiles the one function of a module, or the one that is named. `duration_ns` says how long a launch takes.

    `bind` gives integer arguments, by position or name, values that the program may rely on. `sizes` are bytes of the
    launch buffers, where a view could reach further than its accesses do; the card proves that they do not.
    """
    functions = [op for op in module.body.block.ops if isinstance(op, FuncOp)]
    if function is not None:
        functions = [f for f in functions if f.sym_name.data == function]
    if len(functions) != 1:
        names = [f.sym_name.data for f in functions]
        raise InvalidProgram(f"a program is one function; found {names or 'none'}, name the one to compile")
    arguments = _Arguments(functions[0].body.block.args, bind or {})
    program, uses_memory = _within_scratchpads(functions[0], arguments, options)
    if sizes is not None:
        ends = zip(program.args, sizes, strict=True)
        program.args = [ProgramArg(arg.access, min(arg.bytes, size)) for arg, size in ends]
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
        tuple(value.index for value in arguments.buffers),
        tuple(value.index for value in arguments.scalars),
        len(arguments.buffers) if uses_memory else None,
    )


class _Arguments:
    """What each function argument is: a launch buffer, a launch scalar, or a bound value."""

    def __init__(self, args: Sequence[BlockArgument], bind: Mapping[str | int, int]) -> None:
        self.buffers: list[BlockArgument] = []
        self.scalars: list[BlockArgument] = []
        self.bound: dict[BlockArgument, int] = {}
        for arg in args:
            value = bind.get(arg.index, bind.get(arg.name_hint or "", None))
            # Buffers are index arguments that views start from, or that nothing uses.
            if isinstance(arg.type, IndexType) and (not arg.uses or _reaches_view(arg)) and value is None:
                self.buffers.append(arg)
            elif value is not None:
                self.bound[arg] = _check_bound(arg, value)
            else:
                self.scalars.append(arg)
        self.kinds = [_scalar_kind(value.type) for value in self.scalars]
        self.integers = [
            value for value, kind in zip(self.scalars, self.kinds, strict=True) if kind is ScalarKind.INTEGER
        ]


def _check_bound(arg: BlockArgument, value: int) -> int:
    kind = arg.type
    if isinstance(kind, RuntimeArgType):
        step, most = (getattr(kind, name) for name in ("granularity", "upperbound"))
        if isinstance(step, IntAttr) and value % step.data:
            raise InvalidArgument(f"argument {arg.name_hint} = {value} is not a multiple of {step.data}")
        if isinstance(most, IntAttr) and value > most.data:
            raise InvalidArgument(f"argument {arg.name_hint} = {value} is above its upper bound {most.data}")
    return value


def _known(kind: Attribute) -> Register:
    """What the type of an integer argument says about its value."""
    if not isinstance(kind, RuntimeArgType):
        return Register(0)
    step, most = kind.granularity, kind.upperbound
    return Register(
        0,
        None,
        None,
        most.data if isinstance(most, IntAttr) else None,
        step.data if isinstance(step, IntAttr) else 1,
    )


def _within_scratchpads(function: FuncOp, arguments: _Arguments, options: Options) -> tuple[Program, bool]:
    """The program and whether it uses literal addresses. The less scratch there is, the sooner it is used again."""
    try:
        for frugality in range(3):
            program, uses_memory, fullest = _compile(function, arguments, options, frugality)
            if program.lx_bytes <= LX_BYTES:
                return program, uses_memory
    except RecursionError:
        raise InvalidProgram(
            f"function {function.sym_name.data} nests blocks too deeply, or computes a scalar in too many steps; write "
            "it in fewer"
        ) from None
    message = f"a program needs {program.lx_bytes} bytes of LX, a core has {LX_BYTES}; use smaller tiles"
    raise ScratchpadFull(message, program.lx_bytes, LX_BYTES, fullest)


def _compile(function: FuncOp, arguments: _Arguments, options: Options, frugality: int) -> tuple[Program, bool, str]:
    """The program, whether it uses literal addresses, and the operation that takes most scratch if that is too much."""
    grid = _grid(function)
    cores = math.prod(grid)
    if not 1 <= cores <= MAX_CORES or len(grid) > 3:
        raise UnsupportedOp(f"grid {list(grid)} has {cores} compute tiles; a card has {MAX_CORES} cores")
    stream = Stream(cores, [_known(value.type) for value in arguments.integers])
    scalars = Scalars(stream, grid, options.axis0_fastest)
    for index, value in enumerate(arguments.buffers):
        scalars.bind(value, Affine.symbol(arg_symbol(index)))
    for register, value in enumerate(arguments.integers, start=1):
        scalars.bind(value, Affine.symbol(register))
    for value, number in arguments.bound.items():
        scalars.bind(value, Affine(number))
    memory_arg = len(arguments.buffers)
    accesses = Accesses(stream, scalars, options, memory_arg)
    selector = Selector(stream, scalars, accesses, function.sym_name.data, options)
    selector.eager_barriers, selector.spare_scratch = frugality > 0, frugality > 1
    selector.launch_scalars = {value: index for index, value in enumerate(arguments.scalars)}
    for table in _HANDLERS:
        selector.register(table.HANDLERS)
    selector.run(function.body.block)
    registers = stream.registers
    span = constants.MAX_SPAN_BYTES if options.limit_span else math.inf
    instructions = absorb.absorb(stream.finish(), selector.scratch, stream, span)
    named = accesses.views.lx_bytes
    placed, lx_end = scratch.assign(instructions, selector.scratch, named)
    if lx_end > LX_BYTES:
        instructions, registers = streaming.stream(instructions, selector.scratch, registers, LX_BYTES - named)
        placed, lx_end = scratch.assign(instructions, selector.scratch, named)
    uses_memory = memory_arg in accesses.views.arg_bytes
    args = [
        ProgramArg(selector.arg_access.get(i, Access.READ), accesses.views.arg_bytes.get(i, 0))
        for i in range(memory_arg + uses_memory)
    ]
    program = Program(args, arguments.kinds, registers, cores, lx_end, bytes(selector.constants), placed)
    return program, uses_memory, scratch.fullest(instructions, selector.scratch) if lx_end > LX_BYTES else ""


def _grid(function: FuncOp) -> tuple[int, ...]:
    attr: Any = function.attributes.get("grid")
    return tuple(entry.value.data for entry in attr.data) if attr is not None else (1,)


_ADDRESS_CODE = {"arith.subi", "arith.index_cast", "arith.index_castui", "ktdp.runtime_arg_extract"}


def _reaches_view(value: SSAValue) -> bool:
    for use in value.uses:
        op = use.operation
        if op.name == "ktdp.construct_memory_view" and use.index == 0:
            return True
        if (op.name in _ADDRESS_CODE and use.index == 0) or op.name == "arith.addi":
            if _reaches_view(op.results[0]):
                return True
    return False


def _scalar_kind(kind: Attribute) -> ScalarKind:
    if isinstance(kind, RuntimeArgType):
        kind = kind.value_type
    if isinstance(kind, IndexType | IntegerType):
        return ScalarKind.INTEGER
    if isinstance(kind, _FloatType | DF16Type):
        return ScalarKind.FP32
    raise UnsupportedOp(f"a function argument of type {kind}; arguments are index, integers, floats and runtime_arg")
