# SPDX-License-Identifier: Apache-2.0
"""SpyreCode: a compiled kernel as a directory. ``spyrecode.json`` says what to load and what to run; imports no torch.

    {"JobPreparationPlan": [Allocate, InitTransfer, ...], "JobExecPlan": [command, ...]}

A command is ``{"command": name, "properties": {...}}``; numbers are decimal strings; pointers are in segment 7, the
memory of programs. Beside it, a kernel of ours has `program.bin` (docs/program-format.md), which InitTransfer loads and
ComputeOnDevice runs, and `kernel.json`, which says how tensors bind to the program's arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_spyre import files
from torch_spyre.constants import DATA_SEGMENTS, SEGMENT_BYTES, STICK_BYTES
from torch_spyre.errors import InvalidProgram

FILE = "spyrecode.json"
_FILE_BYTES = 64 << 20  # at most
PROGRAM_BASE = DATA_SEGMENTS * SEGMENT_BYTES
PROGRAM_LIMIT = PROGRAM_BASE + SEGMENT_BYTES

_PARSE_ERROR = "Failed to parse SpyreCode command: "
_HOST_PROPERTIES = ("ohandle", "size", "ishape", "ihandle", "hcm")


@dataclass(frozen=True)
class InitTransfer:
    """Loads a file into the job's memory before the first launch."""

    file: str
    pointer: int
    size: int


@dataclass(frozen=True)
class Compute:
    """Runs the program at `pointer`."""

    pointer: int
    step_type = "Compute"


@dataclass(frozen=True)
class Transfer:
    """Copies between a pinned host buffer and the job's memory."""

    to_host: bool
    host_handle: str
    pointer: int
    size: int

    @property
    def step_type(self) -> str:
        return "D2H" if self.to_host else "H2D"


@dataclass(frozen=True)
class HostCompute:
    """Fills the pinned buffer `ohandle` on the host. Empty `ihandle`: the input is the launch's arguments."""

    ohandle: str
    size: int
    ishape: tuple[int, ...]
    ihandle: str
    hcm: dict[str, Any] = field(hash=False)
    step_type = "HostCompute"


Step = Compute | Transfer | HostCompute


@dataclass(frozen=True)
class SpyreCode:
    """A parsed spyrecode.json. The job's `size` bytes are segment 7 from its start, wherever they are allocated;
    `buffers` maps each pinned host buffer to its size in bytes."""

    size: int
    transfers: tuple[InitTransfer, ...]
    steps: tuple[Step, ...]
    buffers: dict[str, int] = field(hash=False)


def program_plan(program_bytes: int, file: str = "program.bin") -> dict[str, Any]:
    """The spyrecode.json of a kernel that is one program."""
    size = -(-program_bytes // STICK_BYTES) * STICK_BYTES
    at = str(PROGRAM_BASE)
    load = {"init_bin_file": file, "dev_ptr": at, "size": str(program_bytes)}
    return {
        "JobPreparationPlan": [_command("Allocate", size=str(size)), _command("InitTransfer", **load)],
        "JobExecPlan": [_command("ComputeOnDevice", job_bin_ptr=at)],
    }


def _command(name: str, **properties: Any) -> dict[str, Any]:
    return {"command": name, "properties": properties}


def read(directory: str | Path) -> SpyreCode:
    folder = Path(directory)
    if not folder.is_dir():
        raise InvalidProgram(f"SpyreCode directory does not exist: {folder}")
    file = folder / FILE
    if not file.exists():
        raise InvalidProgram(f"spyrecode.json not found in {folder}")
    try:
        plan = files.read_json(file, _FILE_BYTES)
    except OSError as error:
        raise InvalidProgram(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, MemoryError) as error:
        raise InvalidProgram(f"{file} is not JSON: {error}") from None
    return parse(plan)


def parse(plan: Any) -> SpyreCode:
    preparation, execution = _list(plan, "JobPreparationPlan"), _list(plan, "JobExecPlan")
    if len(preparation) < 2:
        raise InvalidProgram(f"JobPreparationPlan has {len(preparation)} commands; needs Allocate and an InitTransfer")
    size = _allocation(preparation[0])
    transfers = tuple(_init_transfer(c) for c in preparation[1:])
    for t in transfers:
        _inside(f"InitTransfer of {t.file}", t.pointer, t.size, size)
    buffers: dict[str, int] = {}
    try:
        steps = tuple(_step(c, buffers) for c in execution)
        _check_correction(steps)
    except InvalidProgram as error:
        raise InvalidProgram(f"{_PARSE_ERROR}{error}") from None
    for step in steps:
        if isinstance(step, Transfer):
            _inside("DataTransfer", step.pointer, step.size, size)
    return SpyreCode(size, transfers, steps, buffers)


def _list(plan: Any, key: str) -> list[Any]:
    found = plan.get(key) if isinstance(plan, dict) else None
    if not isinstance(found, list):
        raise InvalidProgram(f"spyrecode.json has no list {key!r}")
    return found


def _parts(command: Any) -> tuple[str, dict[str, Any]]:
    good = isinstance(command, dict) and isinstance(command.get("command"), str)
    if not good or not isinstance(command.get("properties"), dict):
        raise InvalidProgram(f"a command is {{'command': text, 'properties': {{...}}}}, got {command!r}")
    return command["command"], command["properties"]


def _get(command: str, properties: dict[str, Any], name: str) -> Any:
    if name not in properties:
        raise InvalidProgram(f"{command} command missing '{name}' property")
    return properties[name]


def _number(command: str, properties: dict[str, Any], name: str) -> int:
    value = _get(command, properties, name)
    if not isinstance(value, str) or not _is_number(value):
        raise InvalidProgram(f"{command} '{name}' must be a decimal string of up to 19 digits, got {value!r:.80}")
    return int(value)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def _text(command: str, properties: dict[str, Any], name: str) -> str:
    value = _get(command, properties, name)
    if not isinstance(value, str):
        raise InvalidProgram(f"{command} '{name}' must be a string, got {value!r}")
    return value


def _pointer(command: str, properties: dict[str, Any], name: str) -> int:
    value = _number(command, properties, name)
    if not PROGRAM_BASE <= value < PROGRAM_LIMIT:
        raise InvalidProgram(f"{command} '{name}' {value} is outside segment 7 [{PROGRAM_BASE}, {PROGRAM_LIMIT})")
    return value


def _inside(what: str, pointer: int, count: int, size: int) -> None:
    if pointer + count > PROGRAM_BASE + size:
        raise InvalidProgram(f"{what}: {count} bytes at {pointer} leave the job's {size} bytes at {PROGRAM_BASE}")


def _allocation(command: Any) -> int:
    name, properties = _parts(command)
    if name != "Allocate":
        raise InvalidProgram(f"JobPreparationPlan starts with {name!r}; its first command must be Allocate")
    size = _number(name, properties, "size")
    if not 0 < size <= SEGMENT_BYTES:
        raise InvalidProgram(f"Allocate 'size' {size} is outside [1, {SEGMENT_BYTES}]")
    return size


def _init_transfer(command: Any) -> InitTransfer:
    name, properties = _parts(command)
    if name != "InitTransfer":
        raise InvalidProgram(f"JobPreparationPlan holds {name!r}; after Allocate only InitTransfer may follow")
    file = _text(name, properties, "init_bin_file")
    if Path(file).name != file:
        raise InvalidProgram(f"InitTransfer 'init_bin_file' {file!r} must be a file of the SpyreCode directory")
    return InitTransfer(file, _pointer(name, properties, "dev_ptr"), _number(name, properties, "size"))


def _step(command: Any, buffers: dict[str, int]) -> Step:
    name, properties = _parts(command)
    if name == "ComputeOnDevice":
        return Compute(_pointer(name, properties, "job_bin_ptr"))
    if name == "ComputeOnHost":
        return _host_compute(properties, buffers)
    if name == "DataTransfer":
        return _transfer(properties, buffers)
    raise InvalidProgram(f"unknown command {name!r}; known are ComputeOnDevice, ComputeOnHost and DataTransfer")


def _host_compute(properties: dict[str, Any], buffers: dict[str, int]) -> HostCompute:
    name = "ComputeOnHost"
    for key in _HOST_PROPERTIES:
        _get(name, properties, key)
    shape = properties["ishape"]
    if not isinstance(shape, list):
        raise InvalidProgram("ComputeOnHost 'ishape' must be an array")
    if not all(isinstance(x, str) for x in shape):
        raise InvalidProgram("ComputeOnHost 'ishape' elements must be strings")
    if not all(map(_is_number, shape)):
        raise InvalidProgram(f"ComputeOnHost 'ishape' elements must be decimal strings, got {shape!s:.80}")
    hcm = properties["hcm"]
    if not isinstance(hcm, dict):
        raise InvalidProgram(f"ComputeOnHost 'hcm' must be an object with vdci and senConstants, got {hcm!r}")
    ihandle = _text(name, properties, "ihandle")
    if ihandle and ihandle not in buffers:
        raise InvalidProgram(f"ihandle '{ihandle}' not found in pinned buffer map")
    ohandle, size = _text(name, properties, "ohandle"), _number(name, properties, "size")
    if size > SEGMENT_BYTES:
        raise InvalidProgram(f"ComputeOnHost 'size' {size} exceeds a segment of {SEGMENT_BYTES} bytes")
    buffers[ohandle] = max(size, buffers.get(ohandle, 0))
    return HostCompute(ohandle, size, tuple(int(x) for x in shape), ihandle, hcm)


def _transfer(properties: dict[str, Any], buffers: dict[str, int]) -> Transfer:
    name = "DataTransfer"
    direction = _get(name, properties, "dirn")
    if direction not in ("false", "true"):
        raise InvalidProgram(f"DataTransfer 'dirn' must be 'false' (host to device) or 'true', got {direction!r}")
    handle, to_host = _text(name, properties, "host_handle"), direction == "true"
    size = _number(name, properties, "size")
    if to_host:
        buffers[handle] = max(size, buffers.get(handle, 0))
    elif handle not in buffers:
        raise InvalidProgram(f"host_handle '{handle}' not found in pinned buffer map")
    elif size > buffers[handle]:
        raise InvalidProgram(f"DataTransfer of {size} bytes from '{handle}', which has {buffers[handle]}")
    return Transfer(to_host, handle, _pointer(name, properties, "dev_ptr"), size)


def _check_correction(steps: tuple[Step, ...]) -> None:
    """A job that starts on the host corrects its program: HostCompute, H2D, then Compute only."""
    if not steps or not isinstance(steps[0], HostCompute):
        return
    kinds = [s.step_type for s in steps]
    if len(kinds) < 3 or kinds[1] != "H2D" or any(k != "Compute" for k in kinds[2:]):
        raise InvalidProgram(f"after HostCompute come H2D and one or more Compute, got {', '.join(kinds)}")
