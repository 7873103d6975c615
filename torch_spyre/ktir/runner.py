# SPDX-License-Identifier: Apache-2.0
"""Running a KTIR function: binding its arguments, compiling it once per kind of call, launching it."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from xdsl.dialects.builtin import IntAttr, ModuleOp
from xdsl.dialects.func import FuncOp

from torch_spyre import _C
from torch_spyre.backend.compile import CompiledProgram
from torch_spyre.backend.options import Options
from torch_spyre.backend.program.isa import Access, format_bytes, format_of_type
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.errors import InvalidArgument, UninitializedRead, UnsupportedOp
from torch_spyre.ir.ktir.signatures import Argument, Function, Shape, View, local_views
from torch_spyre.ir.ktir.text import print_module
from torch_spyre.ktir import filled_scratchpads, host_arrays, linear_memory
from torch_spyre.ktir.filled_scratchpads import Filling
from torch_spyre.ktir.host_arrays import Stage, Stages
from torch_spyre.ktir.linear_memory import Placement
from torch_spyre.ktir.literal_memory import SharedMemory
from torch_spyre.runtime import cache, driver

Value = Any
_KEPT_PLACEMENTS = 4096


class Compiled:
    """A function's program on the card, and what a launcher has to know of it."""

    def __init__(self, loaded: driver.Loaded, bound: dict[int, int]) -> None:
        assert loaded.kernel.function is not None
        self.arguments = loaded.kernel.function
        self.launcher = driver.launcher(loaded)
        self.bound = bound  # integer arguments that the program relies on, by position

    def needed(self, index: int, element: str) -> int:
        """Elements that the views of a launch buffer reach."""
        return -(-self.arguments.buffers[index][1] // format_bytes(format_of_type(element)))

    def writes(self, index: int) -> bool:
        return Access.WRITE in Access(self.arguments.buffers[index][0])


class Runner:
    """Compiles and launches one function. Programs are kept per set of bound values."""

    def __init__(self, module: ModuleOp, function: Function, options: Options, single: bool) -> None:
        self._module = module
        self.function = function
        self.options = options
        self._name = None if single else function.name
        self._programs: dict[tuple[tuple[int, int], ...], Compiled] = {}
        self._built: dict[tuple[tuple[int, int], ...], CompiledProgram] = {}
        self._needs_values: UnsupportedOp | None = None
        self._placements: dict[Any, Placement] = {}
        self._stages = Stages()
        self._roles = {r: [a for a in function.arguments if a.role == r] for r in ("buffer", "integer", "float")}
        self._filled: dict[tuple[Filling, ...], Runner] = {}

    # -- compilation -----------------------------------------------------------------------------------------------

    def compile(self, integers: Mapping[int, int] | None = None) -> Compiled:
        """The program for these integer arguments, by position.

        A program that takes them at launch serves all values; where one cannot be made, each set of values has its own.
        """
        if () in self._programs:
            return self._programs[()]
        if self._needs_values is None:
            try:
                return self._keep({})
            except UnsupportedOp as error:
                if not any(a.role == "integer" for a in self.function.arguments):
                    raise
                self._needs_values = error
        if integers is None:
            names = ", ".join(a.name for a in self.function.arguments if a.role == "integer")
            raise UnsupportedOp(f"{self._needs_values}; or give the values of {names}") from self._needs_values
        key = tuple(sorted(integers.items()))
        return self._programs.get(key) or self._keep(dict(integers))

    def program(self, integers: Mapping[int, int] | None = None) -> CompiledProgram:
        """The program for these integer arguments with its instructions, for people who want to read it."""
        return self._build(self.compile(integers).bound)

    def _build(self, bound: Mapping[int, int]) -> CompiledProgram:
        key = tuple(sorted(bound.items()))
        if key not in self._built:
            values: dict[str | int, int] = {position: value for position, value in key}
            self._built[key] = driver.build_ktir(self._module, self._name, self.options, values)
        return self._built[key]

    def _keep(self, bound: Mapping[int, int]) -> Compiled:
        key = tuple(sorted(bound.items()))
        entry = cache.key(f"ktir {self._text} {self._name} {self.options} {key}", [])
        try:
            loaded = driver.obtain(entry, lambda: driver.of_function(self.function.name, self._build(bound)))
        except UninitializedRead as error:
            if not local_views(self.function.op):
                raise
            hint = "scratchpads hold nothing when a function starts; run(..., lx={address: tensor}) fills them first"
            raise UninitializedRead(f"{error}\n  {hint} (docs/ktir.md)") from error
        self._programs[key] = compiled = Compiled(loaded, dict(bound))
        return compiled

    @functools.cached_property
    def _text(self) -> str:
        return print_module(self._module)

    # -- launch ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def run(
        self,
        given: Mapping[int, Value],
        memory: Mapping[int, Value] | None = None,
        lx: Mapping[int, Value] | None = None,
    ) -> Compiled:
        if lx:
            runner, given = self._with_scratchpads(given, lx)
            return cast(Compiled, runner.run(given, memory))
        integers = {a.position: _integer(a, given[a.position]) for a in self._of("integer")}
        floats = {a.position: _float(a, given[a.position]) for a in self._of("float")}
        tensors = {a.position: _tensor(a, given[a.position]) for a in self._of("buffer")}
        compiled = self.compile(integers)
        values = [integers[p] if p in integers else floats[p] for p in compiled.arguments.scalar_positions]
        if not memory and compiled.arguments.memory is None:
            arrays = [tensors[p] for p in compiled.arguments.buffer_positions]
            if host_arrays.are_separate(arrays):
                self._run_staged(compiled, arrays, integers, given, values)
                return compiled
        literals = {address: linear_memory.as_tensor(f"memory[{address}]", v) for address, v in (memory or {}).items()}
        device = _device([*tensors.values(), *literals.values()])
        buffers = self._bind(compiled, tensors, integers, device)
        shared = self._bind_memory(compiled, literals, integers, device)
        _check_aliases(buffers)
        arguments = [b.memory for b in buffers] + ([shared.buffer] if shared else [])
        with torch.spyre.device(device.index):
            compiled.launcher(*arguments, *values)
        for position, bound in zip(compiled.arguments.buffer_positions, buffers, strict=True):
            if bound.written and not _same(bound.memory, bound.tensor):
                linear_memory.take(bound.memory, bound.tensor, bound.placement)
                linear_memory.write_back(bound.name, given[position], bound.tensor)
        if shared:
            shared.take()
            for address, value in (memory or {}).items():
                if address in shared.written:
                    linear_memory.write_back(f"memory[{address}]", value, literals[address])
        return compiled

    def _run_staged(
        self,
        compiled: Compiled,
        arrays: Sequence[torch.Tensor],
        integers: Mapping[int, int],
        given: Mapping[int, Value],
        values: Sequence[float],
    ) -> None:
        """A launch on the current card with arrays of the host alone."""
        device = _C.current_device()
        kind = (id(compiled), device, *integers.values(), *((a.shape, a.dtype) for a in arrays))
        stage = self._stages.borrow(kind)
        positions = compiled.arguments.buffer_positions
        if stage is None:
            own = [self.function.arguments[p] for p in positions]
            places = [
                self._place_for(a, t, compiled, i, integers) for i, (a, t) in enumerate(zip(own, arrays, strict=True))
            ]
            written = [compiled.writes(i) for i in range(len(own))]
            stage = Stage.of([a.name for a in own], arrays, places, written, torch.device(DEVICE_NAME, device))
        stage.fill(arrays)
        compiled.launcher(*stage.memories, *values)
        stage.take(arrays, [given[p] for p in positions])
        self._stages.give_back(kind, stage)

    def _with_scratchpads(self, given: Mapping[int, Value], lx: Mapping[int, Value]) -> tuple[Runner, dict[int, Value]]:
        """The runner of the function that fills scratchpads first, and its arguments."""
        known = self._known({a.position: _integer(a, given[a.position]) for a in self._of("integer")})
        arrays = {address: linear_memory.as_array(f"lx[{address}]", value) for address, value in lx.items()}
        found, values = filled_scratchpads.fillings(self.function, arrays, known)
        if found not in self._filled:
            name, grid = self.function.name, self.function.grid
            module = filled_scratchpads.filled(self._module, name, found, grid, self.options.axis0_fastest)
            function = next(f for f in module.body.block.ops if isinstance(f, FuncOp) and f.sym_name.data == name)
            self._filled[found] = Runner(module, Function(function), self.options, self._name is None)
        first = len(self.function.arguments)
        return self._filled[found], {**given, **{first + i: value for i, value in enumerate(values)}}

    @torch.no_grad()
    def place(self, given: Mapping[int, Value]) -> dict[int, Value]:
        """The arguments with their tensors in card memory as the function expects them."""
        integers = {a.position: _integer(a, given[a.position]) for a in self._of("integer")}
        tensors = {a.position: _tensor(a, given[a.position]) for a in self._of("buffer")}
        compiled = self.compile(integers)
        placed = dict(given)
        bound = self._bind(compiled, tensors, integers, _device(list(tensors.values())))
        for position, b in zip(compiled.arguments.buffer_positions, bound, strict=True):
            placed[position] = b.memory.as_strided(b.tensor.shape, b.placement.strides)
        return placed

    def _of(self, role: str) -> list[Argument]:
        return self._roles[role]

    def _bind(
        self,
        compiled: Compiled,
        tensors: Mapping[int, torch.Tensor],
        integers: Mapping[int, int],
        device: torch.device,
    ) -> list[_Bound]:
        """Every buffer argument in card memory; a tensor that is given twice is stored once."""
        places: list[tuple[Argument, torch.Tensor, Placement]] = []
        for index, position in enumerate(compiled.arguments.buffer_positions):
            argument, tensor = self.function.arguments[position], tensors[position]
            places.append((argument, tensor, self._place_for(argument, tensor, compiled, index, integers)))
        room: dict[Any, int] = {}
        for _, tensor, where in places:
            key = _identity(tensor, where)
            room[key] = max(room.get(key, 0), where.elements)
        memories: dict[Any, torch.Tensor] = {}
        bound = []
        for index, (argument, tensor, where) in enumerate(places):
            key = _identity(tensor, where)
            where = replace(where, elements=room[key])
            if key not in memories:
                in_place = linear_memory.lies_so(tensor, where)
                memories[key] = tensor if in_place else linear_memory.put(argument.name, tensor, where, device)
            bound.append(_Bound(argument.name, tensor, where, memories[key], compiled.writes(index)))
        return bound

    def _place_for(
        self, argument: Argument, tensor: torch.Tensor, compiled: Compiled, index: int, integers: Mapping[int, int]
    ) -> Placement:
        key = (argument.position, tuple(tensor.shape), tuple(integers.items()), id(compiled))
        if key not in self._placements:
            if len(self._placements) >= _KEPT_PLACEMENTS:
                self._placements.clear()
            element = _element(argument.name, argument.elements)
            base = self.function.value(argument.position)
            shapes = _shapes(argument.views, self._known(integers), base)
            needed = compiled.needed(index, element)
            self._placements[key] = linear_memory.choose(
                argument.name, tensor, element, shapes, needed, self.options.strict
            )
        return self._placements[key]

    def _known(self, integers: Mapping[int, int]) -> dict[Any, int]:
        return {self.function.value(position): value for position, value in integers.items()}

    def _bind_memory(
        self,
        compiled: Compiled,
        literals: Mapping[int, torch.Tensor],
        integers: Mapping[int, int],
        device: torch.device,
    ) -> Any:
        if compiled.arguments.memory is None:
            if literals:
                raise InvalidArgument(f"{self.function.name} uses no literal addresses; memory= has nothing to hold")
            return None
        size = compiled.arguments.buffers[compiled.arguments.memory][1]
        known = self._known(integers)
        return SharedMemory(self.function, literals, known, size, device, self.options.stick_addresses)


@dataclass(frozen=True)
class _Bound:
    name: str
    tensor: torch.Tensor
    placement: Placement
    memory: torch.Tensor
    written: bool


def _same(memory: torch.Tensor, tensor: torch.Tensor) -> bool:
    """True if the tensor is used in place."""
    places = (memory.untyped_storage().data_ptr(), tensor.untyped_storage().data_ptr())
    return bool(memory.device == tensor.device and places[0] == places[1])


def _identity(tensor: torch.Tensor, where: Placement) -> Any:
    """Equal for views of the same memory that are stored the same way."""
    own = tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())
    return (*own, tensor.dtype, tensor.device, where.strides, where.dtype)


def _element(name: str, elements: Sequence[str]) -> str:
    formats = {format_of_type(e) for e in elements}
    if len(formats) > 1:
        raise UnsupportedOp(f"argument {name} has views of {', '.join(elements)}, which one tensor cannot hold")
    return elements[0] if elements else "f16"


def _shapes(views: Sequence[View], known: Mapping[Any, int], base: Any) -> list[Shape]:
    return [s for s in (v.shape(known, base) for v in views) if s is not None]


def _tensor(argument: Argument, value: Value) -> torch.Tensor:
    """What is given for a base address; an argument that nothing uses may be anything."""
    if not argument.views and not isinstance(value, torch.Tensor):
        return torch.zeros(1)
    return linear_memory.as_tensor(argument.name, value)


def _integer(argument: Argument, value: Value) -> int:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, numbers.Integral):
        raise InvalidArgument(f"argument {argument.name} is {argument.type}: give an integer, not {value!r}")
    number = int(value)
    if argument.runtime is not None:
        step, most = argument.runtime.granularity, argument.runtime.upperbound
        if isinstance(step, IntAttr) and number % step.data:
            raise InvalidArgument(f"argument {argument.name} = {number} is not a multiple of {step.data}")
        if isinstance(most, IntAttr) and number > most.data:
            raise InvalidArgument(f"argument {argument.name} = {number} is above its upper bound {most.data}")
    return number


def _float(argument: Argument, value: Value) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise InvalidArgument(f"argument {argument.name} is {argument.type}: give a number, not {value!r}")
    return float(value)


def _device(tensors: Sequence[torch.Tensor]) -> torch.device:
    """The card of the tensors that are on one, else the current one."""
    found = {t.device for t in tensors if t.device.type == DEVICE_NAME}
    if len(found) > 1:
        raise InvalidArgument(f"arguments are on several cards: {', '.join(map(str, sorted(found, key=str)))}")
    return found.pop() if found else torch.device(DEVICE_NAME, _C.current_device())


def _check_aliases(buffers: Sequence[_Bound]) -> None:
    """Tensors that share memory must share it on the card too, or none of them may be written."""
    for i, a in enumerate(buffers):
        for b in buffers[i + 1 :]:
            if (a.written or b.written) and a.memory is not b.memory and linear_memory.overlap(a.tensor, b.tensor):
                if _same(a.memory, a.tensor) and _same(b.memory, b.tensor):
                    continue
                raise InvalidArgument(
                    f"arguments {a.name} and {b.name} share memory and one of them is written; give the same tensor, "
                    f"placed as the function expects (Module.place), or separate ones"
                )
