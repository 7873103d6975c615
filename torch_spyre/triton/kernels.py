# SPDX-License-Identifier: Apache-2.0
"""A compiled kernel and its launches.

Enters: the TTIR of a kernel, and for each launch its grid and arguments. Leaves: a program in the program cache, made
for these integers and this grid, and its launch through the ordinary driver. A program that the cache holds is launched
without reading TTIR.

Kernels count in the strides of the host, while tensors are stored in sticks. A tensor that is stored row by row
in card memory is used where it is; every other one is copied into such memory and, if it was written, back. Tensors
that share memory share that copy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_spyre import _C
from torch_spyre.backend.program.isa import Access
from torch_spyre.constants import DEVICE_NAME
from torch_spyre.errors import InvalidArgument, InvalidProgram, OutOfBounds, ScratchpadFull, UnsupportedOp
from torch_spyre.formats import BYTES
from torch_spyre.ktir import linear_memory
from torch_spyre.ktir.linear_memory import Placement
from torch_spyre.runtime import cache, driver

# Kernels read bytes without sign as i8, which the card stores otherwise than uint8.
_STORED_AS = {torch.uint8: torch.int8}
_GRID_LIMIT = 1 << 31
_READS_INTEGERS = re.compile(r"tt\.load .*!tt\.ptr<i(32|64)>")  # which may well be places

Grid = tuple[int, int, int]
Shared = tuple[tuple[int, int, int], ...]  # tensor, the one whose memory it shares, elements between their starts


class _Elsewhere(Exception):
    """A tensor does not lie in card memory as the program needs it."""


class Kernel:
    """Programs of one kernel, by grid, integers, shared memory and, where it matters, what memory holds."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self._programs: dict[Any, _Program] = {}
        self._needs_counts = False
        self._needs_lengths = _READS_INTEGERS.search(text) is not None
        self._careful = False
        self._direct: dict[Any, Any] = {}

    def __call__(self, grid: Grid, names: Sequence[str], values: Sequence[Any]) -> None:
        """Launches all programs of a grid; the arguments come in the order of the TTIR function."""
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        numbers = tuple([v if isinstance(v, int) else type(v) for v in values])
        storages = [t.untyped_storage() for t in tensors]
        bytes_ = tuple([s.nbytes() for s in storages]) if self._needs_lengths else None
        key = (grid, numbers, bytes_)
        launcher = self._direct.get(key)
        if launcher is not None and len({s.data_ptr() for s in storages}) == len(storages):
            try:
                launcher(*tensors, *[v for v in values if type(v) is float])
                return
            except _Elsewhere:
                del self._direct[key]
        program = self._launch(grid, list(zip(names, values, strict=True)))
        if program is not None and not self._needs_counts:
            self._direct[key] = program.direct()

    @torch.no_grad()
    def _launch(self, grid: Grid, arguments: Sequence[tuple[str, Any]]) -> _Program | None:
        """Finds or makes the program. It is returned if it used all tensors where they are."""
        _check_grid(self.name, grid)
        tensors = [(name, value) for name, value in arguments if isinstance(value, torch.Tensor)]
        device = _device(self.name, tensors)
        if 0 in grid:
            return None
        values = tuple(_number(name, value) for name, value in arguments)
        shared = _shared([tensor for _, tensor in tensors])
        integers = tuple(v if type(v) is int else None for v in values)
        while True:
            asked = self._asked([t for _, t in tensors], integers, grid, [v is None for v in values])
            key = (grid, integers, shared, self._careful, *asked)
            program = self._programs.get(key)
            if program is not None:
                break
            try:
                program = self._programs[key] = self._obtain(grid, integers, shared, *asked)
            except UnsupportedOp as error:  # the modules of these two kinds are imported by the compiler only
                if type(error).__name__ == "LengthNeeded" and not self._needs_lengths:
                    self._needs_lengths = True
                elif type(error).__name__ == "CountsNeeded" and not self._needs_counts:
                    self._needs_counts = True
                else:
                    raise
            except (OutOfBounds, InvalidProgram) as error:  # maybe only the box around what a mask lets through
                if self._careful or isinstance(error, ScratchpadFull):
                    raise
                self._careful = self._needs_lengths = True
        placed = program.launch([t for _, t in tensors], [v for v in values if type(v) is float], device)
        return program if placed and tensors else None

    def _asked(
        self, tensors: Sequence[torch.Tensor], integers: Sequence[int | None], grid: Grid, is_pointer: Sequence[bool]
    ) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """What some programs are made for beyond integers: lengths of memory, and how often their loops run."""
        lengths = _lengths(tensors) if self._needs_lengths else None
        if not self._needs_counts:
            return lengths, None
        from torch_spyre.triton import compiling  # late: the compiler

        places = [i for i, pointer in enumerate(is_pointer) if pointer]

        def memory(argument: int) -> Any:
            tensor = tensors[places.index(argument)]
            length = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
            return tensor.as_strided((_available(tensor, length),), (1,), tensor.storage_offset()).cpu().numpy()

        return lengths, compiling.loop_counts(self.name, self.text, tuple(integers), grid, memory)

    def _obtain(
        self,
        grid: Grid,
        integers: Sequence[int | None],
        shared: Shared,
        lengths: tuple[int, ...] | None,
        counts: tuple[int, ...] | None,
    ) -> _Program:
        entry = cache.key(f"triton {self.text} {grid} {list(integers)} {shared} {lengths} {counts} {self._careful}", [])

        def make() -> cache.CachedKernel:
            from torch_spyre.triton import compiling  # late: a program in the cache needs no compiler

            return compiling.compiled(self.name, self.text, integers, grid, shared, lengths, counts, self._careful)

        return _Program(driver.obtain(entry, make), shared)


def _check_grid(name: str, grid: Grid) -> None:
    if any(not 0 <= size < _GRID_LIMIT for size in grid):
        raise InvalidArgument(f"{name}: grid {grid}; each axis has 0 to {_GRID_LIMIT - 1} programs")


def _device(kernel: str, tensors: Sequence[tuple[str, torch.Tensor]]) -> torch.device:
    """The card of all tensors."""
    for name, tensor in tensors:
        if tensor.device.type != DEVICE_NAME:
            raise InvalidArgument(
                f"{kernel}: argument {name} is on {tensor.device}; Triton kernels run on the card, move it there with "
                f'.to("{DEVICE_NAME}")'
            )
    devices = {tensor.device for _, tensor in tensors}
    if len(devices) > 1:
        raise InvalidArgument(f"{kernel}: arguments are on several cards: {', '.join(sorted(map(str, devices)))}")
    return devices.pop() if devices else torch.device(DEVICE_NAME, _C.current_device())


def _number(name: str, value: Any) -> Any:
    """An int, a float, or None for a tensor."""
    if isinstance(value, torch.Tensor):
        return None
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, float):
        return value
    raise InvalidArgument(f"argument {name} is {type(value).__name__}; kernels take tensors, integers and floats")


def _span(tensor: torch.Tensor) -> int:
    """Elements from the first to the last one of a tensor in its storage."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((int(size) - 1) * int(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _lengths(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Elements from the start of each tensor to the end of its storage: what a place from memory may reach."""
    return tuple(t.untyped_storage().nbytes() // t.element_size() - t.storage_offset() for t in tensors)


def _shared(tensors: Sequence[torch.Tensor]) -> Shared:
    """Tensors that may share elements with another one, counted from the one that begins first."""
    found: list[tuple[int, int, int]] = []
    storages: dict[int, list[int]] = {}
    for i, tensor in enumerate(tensors):
        if tensor.numel():
            storages.setdefault(tensor.untyped_storage().data_ptr(), []).append(i)
    for members in storages.values():
        if len(members) < 2:
            continue
        first = min(members, key=lambda i: tensors[i].storage_offset())
        for i in members:
            if tensors[i].dtype != tensors[first].dtype:
                raise UnsupportedOp(
                    f"tensors of {tensors[first].dtype} and {tensors[i].dtype} share memory, which the card stores in "
                    "one format; copy one of them"
                )
            if i != first:
                found.append((i, first, tensors[i].storage_offset() - tensors[first].storage_offset()))
    return tuple(found)


@dataclass(frozen=True)
class _Image:
    """The part of a storage that a buffer of a launch stands for."""

    tensor: torch.Tensor
    placement: Placement


class _Program:
    """A program on the card and where its arguments come from."""

    def __init__(self, loaded: driver.Loaded, shared: Shared) -> None:
        assert loaded.kernel.function is not None
        function = loaded.kernel.function
        self._loaded = loaded
        self._launcher = driver.launcher(loaded)
        self._buffers = function.buffers
        self._leaders = {i: first for i, first, _ in shared}

    def direct(self) -> Any:
        """A launcher for tensors that are used where they are and share no memory; others raise `_Elsewhere`. It asks
        once for each layout, shape and offset."""
        plan, buffers = driver.launch_plan(self._loaded), self._buffers

        def miss(inputs: Sequence[Any]) -> Any:
            for tensor, (_, size) in zip(inputs, buffers, strict=False):  # floats follow
                if tensor.device.type != DEVICE_NAME:
                    raise _Elsewhere
                if size:
                    image = _image(tensor, [], size)
                    if image.tensor is not tensor or not linear_memory.lies_so(tensor, image.placement):
                        raise _Elsewhere
            return plan

        return _C.KernelLauncher(self._loaded.kernel.name, miss)

    def launch(self, tensors: Sequence[torch.Tensor], floats: Sequence[float], device: torch.device) -> bool:
        """True if all tensors were used where they are."""
        memories: list[torch.Tensor] = []
        images: list[tuple[_Image, torch.Tensor]] = []
        direct = not self._leaders
        for i, (tensor, (access, size)) in enumerate(zip(tensors, self._buffers, strict=True)):
            if i in self._leaders or not size:
                memories.append(tensor)
                continue
            others = [tensors[j] for j, first in self._leaders.items() if first == i]
            image = _image(tensor, others, size)
            placed = linear_memory.lies_so(image.tensor, image.placement)
            direct &= placed and image.tensor is tensor
            memory = (
                image.tensor if placed else linear_memory.put(f"argument {i}", image.tensor, image.placement, device)
            )
            memories.append(memory)
            if Access.WRITE in Access(access) and not placed:
                images.append((image, memory))
        with torch.spyre.device(device.index):
            self._launcher(*memories, *floats)
        for image, memory in images:
            linear_memory.take(memory, image.tensor, image.placement)
        return direct


def _image(tensor: torch.Tensor, others: Sequence[torch.Tensor], size: int) -> _Image:
    """What a program that reaches `size` bytes from the start of a tensor has to see.

    A tensor without gaps, of which nothing beyond its end is reached, is its own image. Otherwise it is the storage
    from the tensor's start on: a kernel may well reach what other views of the same storage show.
    """
    dtype = _STORED_AS.get(tensor.dtype, tensor.dtype)
    needed = size // BYTES[_C.get_device_dtype(dtype).name]
    span = _span(tensor)
    if not others and tensor.numel() == span and needed <= span:
        return _Image(tensor, Placement(tuple(tensor.stride()), max(span, 1), dtype))
    start = tensor.storage_offset()
    ends = [span, *(t.storage_offset() - start + _span(t) for t in others)]
    length = max(_available(tensor, max(needed, *ends)), *ends)
    flat = tensor.as_strided((length,), (1,), start)
    return _Image(flat, Placement((1,), max(length, needed), dtype))


def _available(tensor: torch.Tensor, wanted: int) -> int:
    """How many of the wanted elements a storage has from the start of a tensor on."""
    low, high = _span(tensor), wanted
    while low < high:
        middle = (low + high + 1) // 2
        try:
            tensor.as_strided((middle,), (1,), tensor.storage_offset())
            low = middle
        except RuntimeError:
            high = middle - 1
    return low
