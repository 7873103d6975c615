# SPDX-License-Identifier: Apache-2.0
"""JobPlans: a SpyreCode directory made ready on a card, and its launch.

`prepare_kernel` allocates the job's memory on the card, transfers its files and proves its programs, once.
`launch_jobplan` runs the steps in order on the current stream. A kernel of ours takes its inputs and returns its
outputs; given inputs and outputs together it writes into the latter. A directory without kernel.json binds its
arguments in order.

The card runs the contents of the job's memory: a program that an H2D step overwrites is read back and proved again.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from torch_spyre import _C, files
from torch_spyre.constants import DEVICE_NAME, STICK_BYTES
from torch_spyre.errors import InvalidArgument, InvalidProgram, UnsupportedOp
from torch_spyre.runtime import cache, driver, spyrecode
from torch_spyre.runtime.spyrecode import PROGRAM_BASE, Compute, HostCompute, SpyreCode, Transfer

log = logging.getLogger(__name__)

_CARD_ADDRESS = (1 << 40) - 1  # of a data_ptr
_WORD_BYTES = 8


class StepIndexError(InvalidArgument, IndexError):
    """A step that a plan does not have."""


@dataclass
class _Runner:
    """A program with its launchers: one that allocates outputs, one that is given them."""

    fresh: Any
    given: Any
    program: Any


class JobPlan:
    """A kernel on a card, ready to launch. Made by `prepare_kernel`."""

    def __init__(self, folder: Path, code: SpyreCode, device: int) -> None:
        self.code = code
        self.device = device
        self.kernel = _kernel_of(folder)
        self.name = self.kernel.name if self.kernel else folder.name
        self._files = {t.pointer: (folder / t.file, t.size) for t in code.transfers}
        self._memory = _device_bytes(code.size, device)
        self._pinned = {handle: _pinned(size) for handle, size in code.buffers.items()}
        self._runners: dict[bytes, _Runner] = {}
        self._binaries: dict[int, bytes] = {}
        self._load()

    def num_steps(self) -> int:
        return len(self.code.steps)

    def job_allocation_size(self) -> int:
        return self.code.size

    def get_step_type(self, index: int) -> str:
        """H2D, D2H, Compute or HostCompute."""
        if not 0 <= index < len(self.code.steps):
            raise StepIndexError(f"Step index out of range: {index}, the plan has {len(self.code.steps)} steps")
        return self.code.steps[index].step_type

    def __repr__(self) -> str:
        return (
            f"<JobPlan steps={self.num_steps()} job_allocation_size={self.code.size} "
            f"expected_inputs={self.n_inputs} pinned_buffers={len(self._pinned)}>"
        )

    @property
    def n_inputs(self) -> int:
        """Inputs the kernel takes; 0 if the directory does not say."""
        return self.kernel.n_inputs if self.kernel else 0

    # -- preparation

    def _load(self) -> None:
        for pointer, (path, size) in self._files.items():
            content = _content(path, size)
            self._bytes_at(pointer, size).copy_(_as_tensor(content))
            self._binaries[pointer] = content
        for step in self.code.steps:
            if isinstance(step, Compute) and not self._is_corrected(step.pointer):
                binary = self._binary(step.pointer)
                if binary.startswith(b"SPYP"):  # anything else is refused when it is launched
                    self._runner(binary)
        torch.spyre.synchronize(self.device)

    def _bytes_at(self, pointer: int, size: int) -> torch.Tensor:
        start = pointer - PROGRAM_BASE
        return self._memory[start : start + size]

    def _binary(self, pointer: int) -> bytes:
        if pointer not in self._binaries:
            raise InvalidProgram(f"{self.name}: ComputeOnDevice at {pointer}, where no InitTransfer put a program")
        return self._binaries[pointer]

    def _is_corrected(self, pointer: int) -> bool:
        """True if a step of the plan writes into the program."""
        size = len(self._binaries.get(pointer, b""))
        writes = [s for s in self.code.steps if isinstance(s, Transfer) and not s.to_host]
        return any(s.pointer < pointer + size and pointer < s.pointer + s.size for s in writes)

    def _runner(self, binary: bytes) -> _Runner:
        if binary not in self._runners:
            try:
                self._runners[binary] = _make_runner(self.name, binary, self.kernel)
            except (AttributeError, TypeError) as error:
                raise InvalidProgram(f"{self.name}: kernel.json is damaged: {error}; compile it again") from error
        return self._runners[binary]

    # -- launch

    def launch(self, args: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        self._check(args)
        results: tuple[torch.Tensor, ...] = ()
        with torch.spyre.device(self.device):
            for step in self.code.steps:
                if isinstance(step, Compute):
                    results = self._compute(step, args)
                elif isinstance(step, Transfer):
                    self._transfer(step)
                else:
                    self._host_compute(step, args)
        return results

    def _check(self, args: Sequence[Any]) -> None:
        """Everything that can be refused is refused before anything is queued."""
        scalars = {i for i, _ in self.kernel.scalars} if self.kernel else set()
        for i, x in enumerate(args):
            on_card = isinstance(x, torch.Tensor) and x.device.type == DEVICE_NAME
            if not on_card and i not in scalars:
                raise InvalidArgument(f"SpyreStream::launch: argument {i} must be on Spyre device")
            if on_card and x.device.index != self.device:
                raise InvalidArgument(f"{self.name}: argument {i} is on {x.device}, the plan is on spyre:{self.device}")
        if self.kernel is None:
            return
        n_in, n_out = self.kernel.n_inputs, len(self.kernel.outputs)
        if len(args) not in (n_in, n_in + n_out):
            raise InvalidArgument(
                f"{self.name}: {len(args)} arguments; it takes {n_in} inputs, or {n_in} inputs and {n_out} outputs"
            )
        for i, x in enumerate(args):
            if isinstance(x, torch.Tensor) and x.device.type == DEVICE_NAME:
                self._check_layout(i, x)

    def _check_layout(self, i: int, x: torch.Tensor) -> None:
        assert self.kernel is not None
        layout, offset = _C.get_spyre_tensor_layout(x), x.storage_offset()
        if self.kernel.displaced and i < self.kernel.n_inputs:
            offset, _ = _C.view_start(layout, list(x.shape), list(x.stride()), offset)
        found = (tuple(layout.device_size), tuple(layout.stride_map), layout.device_dtype.name, offset)
        if i >= self.kernel.n_inputs:
            o = self.kernel.outputs[i - self.kernel.n_inputs]
            wanted: tuple[Any, ...] = (o.device_size, o.stride_map, o.format, 0)
            if (tuple(x.shape), tuple(x.stride())) != (o.size, o.stride):
                raise InvalidArgument(f"{self.name}: output {i} must have size {o.size} and stride {o.stride}")
        elif self.kernel.inputs and self.kernel.inputs[i]:
            wanted = self.kernel.inputs[i]
        else:
            return
        if found != wanted:
            raise InvalidArgument(f"{self.name}: argument {i} has layout {found}; the program was made for {wanted}")

    def _compute(self, step: Compute, args: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        binary = self._binary(step.pointer)
        if self._is_corrected(step.pointer):
            binary = self._bytes_at(step.pointer, len(binary)).cpu().numpy().tobytes()
        runner = self._runner(binary)
        n_in = self.n_inputs
        if self.kernel is None or len(args) != n_in:
            runner.given(*args)
            return tuple(args[n_in:]) if self.kernel else ()
        return tuple(runner.fresh(*args))

    def _transfer(self, step: Transfer) -> None:
        memory = self._bytes_at(step.pointer, step.size)
        host = self._pinned[step.host_handle][: step.size]
        if step.to_host:
            host.copy_(memory, non_blocking=True)
        else:
            memory.copy_(host, non_blocking=True)

    def _host_compute(self, step: HostCompute, args: Sequence[Any]) -> None:
        # The buffers are reused: what an earlier step or launch still reads or writes must be done first.
        torch.spyre.current_stream(self.device).synchronize()
        data = self._host_input(step, args) + _constants(step.hcm)
        if len(data) > step.size:
            raise InvalidArgument(
                f"{self.name}: ComputeOnHost makes {len(data)} bytes; '{step.ohandle}' has {step.size}"
            )
        buffer = self._pinned[step.ohandle][: step.size]
        buffer.zero_()
        if data:
            buffer[: len(data)].copy_(_as_tensor(data))

    def _host_input(self, step: HostCompute, args: Sequence[Any]) -> bytes:
        if step.ishape == (0,):
            return b""
        count = math.prod(step.ishape)
        if step.ihandle:
            return bytes(self._pinned[step.ihandle].numpy().tobytes())
        words = [x.untyped_storage().data_ptr() & _CARD_ADDRESS for x in args if isinstance(x, torch.Tensor)]
        if count != len(words):
            shape = list(step.ishape)
            raise InvalidArgument(f"{self.name}: ComputeOnHost has ishape {shape}, but there are {len(words)} tensors")
        return b"".join(w.to_bytes(_WORD_BYTES, "little") for w in words)


def _constants(hcm: dict[str, Any]) -> bytes:
    """What host computation appends to its input: senConstants as int64. Conversions (vdci) belong to the closed
    compiler's programs; ours need none."""
    if hcm.get("vdci"):
        raise UnsupportedOp(f"ComputeOnHost with a data conversion (vdci {hcm['vdci']!r}); only an empty one is known")
    constants = hcm.get("senConstants") or []
    try:
        values = list(constants.values()) if isinstance(constants, dict) else list(constants)
        return b"".join(int(v).to_bytes(_WORD_BYTES, "little", signed=True) for v in values)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidProgram(
            f"ComputeOnHost: senConstants {constants!r:.80} are not 64-bit integers: {error}"
        ) from None


def _device_bytes(size: int, device: int) -> torch.Tensor:
    """Plain bytes on a card."""
    sticks = -(-size // STICK_BYTES)
    layout = _C.SpyreTensorLayout([sticks, STICK_BYTES], [STICK_BYTES, 1], _C.DataFormats.SENINT8)
    with torch.spyre.device(device):
        return _C.spyre_empty_with_layout([size], [1], torch.int8, layout)


def _pinned(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int8, pin_memory=True)


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.int8)


def _content(path: Path, size: int) -> bytes:
    try:
        with files.opened(path) as (file, status):
            if status.st_size < size:
                raise InvalidProgram(f"InitTransfer: {path} has {status.st_size} bytes, {size} are to be transferred")
            return file.read(size)
    except OSError as error:
        raise InvalidProgram(f"InitTransfer: cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise InvalidProgram(f"InitTransfer: {error}") from None


def _kernel_of(folder: Path) -> cache.CachedKernel | None:
    """How to bind the program's arguments, if the directory says so."""
    if not (folder / "kernel.json").exists():
        return None
    try:
        return cache.read(folder)
    except files.DAMAGE as error:
        raise InvalidProgram(f"{folder} is damaged: {error}; compile the kernel again") from error


def _make_runner(name: str, binary: bytes, kernel: cache.CachedKernel | None) -> _Runner:
    if kernel is None:
        program = _C.Program.load(binary)
        whole = cache.CachedKernel(name, binary, tuple(("input", i) for i in range(program.n_args)), (), (), 0)
        given = driver.launcher(driver.Loaded(whole, program))
        return _Runner(given, given, program)
    fresh = driver.load(replace(kernel, program=binary, name=name))
    # Outputs that the caller passes are further inputs to the launcher.
    flat = tuple(("input", kernel.n_inputs + i) if kind == "output" else (kind, i) for kind, i in kernel.bindings)
    given = driver.Loaded(replace(fresh.kernel, bindings=flat, outputs=()), fresh.program)
    return _Runner(driver.launcher(fresh), driver.launcher(given), fresh.program)


def prepare_kernel(spyrecode_dir: str | Path, stream: Any = None) -> JobPlan:
    """Loads a SpyreCode directory onto the card of `stream`, or of the current device. Blocks until it is loaded."""
    folder = Path(spyrecode_dir)
    code = spyrecode.read(folder)
    with stream if stream is not None else nullcontext():
        plan = JobPlan(folder, code, _C.current_device())
    log.info("prepared %s from %s: %r", plan.name, folder, plan)
    return plan


def launch_jobplan(job_plan: JobPlan, args: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Queues a prepared kernel on the current stream of its device; returns its outputs."""
    return job_plan.launch(list(args))


_plans: dict[tuple[str, int], JobPlan] = {}
_bundles: dict[str, Any] = {}
_lock = threading.Lock()


def launch_kernel(code_dir: str | Path, args: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Launches a directory: SpyreCode if it holds spyrecode.json, else a SuperDSC bundle, which is compiled first.
    Either is loaded once per process and device."""
    folder = Path(code_dir).resolve()
    for found in (folder, folder / "spyreCodeDir"):
        if (found / spyrecode.FILE).is_file():
            with _lock:
                key = str(found), _C.current_device()
                if key not in _plans:
                    _plans[key] = prepare_kernel(found)
            return launch_jobplan(_plans[key], args)
    for i, x in enumerate(args):
        if not isinstance(x, torch.Tensor) or x.device.type != DEVICE_NAME:
            raise InvalidArgument(f"SpyreStream::launch: argument {i} must be on Spyre device")
    with _lock:
        if str(folder) not in _bundles:
            _bundles[str(folder)] = _compile_bundle(folder)
    _bundles[str(folder)](*args)
    return ()


def _compile_bundle(folder: Path) -> Any:
    if not (folder / "bundle.mlir").is_file():
        raise InvalidProgram(f"Bundle not found: {folder / 'bundle.mlir'}")
    from torch_spyre.ir.superdsc.bundle import read_bundle  # late: start-up

    return driver.launcher(driver.obtain_plan(replace(read_bundle(folder), name=folder.name)))


def clear() -> None:
    """Forgets the directories that launch_kernel loaded; their memory returns to the card."""
    with _lock:
        _plans.clear()
        _bundles.clear()
