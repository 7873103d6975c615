# SPDX-License-Identifier: Apache-2.0
"""A compiled bundle as `libflex` takes it: `spyrecode.json` and the job's image. Imports no torch.

The image is one file that InitTransfer loads (`sdk/src/flex/job.h` reads it):

    correction region    one 64-bit address for each launch argument, written by the host before each launch
    header               where ComputeOnDevice points: how many arguments, where the region and the program are
    positions            for each buffer of the program, the launch argument it is bound to
    program              docs/program-format.md
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from torch_spyre.constants import STICK_BYTES
from torch_spyre.errors import InvalidProgram
from torch_spyre.ir.superdsc.bundle import Bundle
from torch_spyre.runtime import driver
from torch_spyre.runtime.spyrecode import FILE, PROGRAM_BASE

if TYPE_CHECKING:
    from torch_spyre.backend.compile import CompiledProgram

IMAGE = "init_binary.bin"
_HEADER = struct.Struct("<8sIIQQQII")
_MAGIC, _VERSION = b"SPYREJOB", 1
_WORD_BYTES = 8
_BUFFER = "correction"
_NAME_CHARACTERS = 100


def compile_bundle(bundle: Bundle) -> dict[str, bytes]:
    """The files of a bundle's `spyreCodeDir`. Raises InvalidProgram with every rule that it breaks."""
    found = bundle.problems()
    if found:
        report = "".join(f"\n  {problem}" for problem in found)
        raise InvalidProgram(f"the bundle breaks the machine's rules:{report}")
    kernel = bundle.kernel()
    program = driver.build(kernel).program
    _prove(program)
    return job_files(program, max(len(bundle.arguments), len(kernel.args)), kernel_name(bundle))


def _prove(program: CompiledProgram) -> None:
    """The card's own proof, which a launch would make: a compiler's user wants to hear of it now."""
    try:
        from torch_spyre import _card  # late: the extension may not be built, and the launch proves it again
    except ImportError:
        return
    try:
        _card.Program.load(program.binary)
    except RuntimeError as error:
        raise InvalidProgram(f"the card refuses the program: {error}") from None


def kernel_name(bundle: Bundle) -> str:
    """What profiles show: the ops in the order they run, each run of equal ones once."""
    ops: list[str] = []
    for step in bundle.steps:
        if not ops or ops[-1] != step.sdsc.opfunc:
            ops.append(step.sdsc.opfunc)
    return "_".join(ops)[:_NAME_CHARACTERS]


def job_files(program: CompiledProgram, arguments: int, name: str) -> dict[str, bytes]:
    """`spyrecode.json` and the image of a program that takes buffers only."""
    if program.launch_scalars or program.memory_arg is not None:
        raise InvalidProgram("a job passes addresses of tensors only; the program wants scalars or literal addresses")
    region = _whole_sticks(arguments * _WORD_BYTES)
    positions = struct.pack(f"<{len(program.buffers)}I", *program.buffers)
    start = _whole_sticks(_HEADER.size + len(positions))
    header = _HEADER.pack(_MAGIC, _VERSION, arguments, 0, start, len(program.binary), len(program.buffers), 0)
    image = bytes(region) + (header + positions).ljust(start, b"\0") + program.binary
    image = image.ljust(_whole_sticks(len(image)), b"\0")
    return {FILE: json.dumps(_plan(len(image), region, arguments, name), indent=1).encode(), IMAGE: image}


def _plan(size: int, region: int, arguments: int, name: str) -> dict[str, Any]:
    base = str(PROGRAM_BASE)
    load = _command("InitTransfer", init_bin_file=IMAGE, dev_ptr=base, size=str(size))
    compute = _command("ComputeOnDevice", job_bin_ptr=str(PROGRAM_BASE + region), name=name)
    steps = [compute]
    if arguments:
        hcm = {"vdci": {"arguments": {"count": str(arguments)}}, "senConstants": []}
        addresses = _command(
            "ComputeOnHost", ohandle=_BUFFER, size=str(region), ishape=[str(arguments)], ihandle="", hcm=hcm
        )
        send = _command("DataTransfer", dirn="false", dev_ptr=base, size=str(region), host_handle=_BUFFER)
        steps = [addresses, send, compute]
    return {"JobPreparationPlan": [_command("Allocate", size=str(size)), load], "JobExecPlan": steps}


def _command(command: str, /, **properties: Any) -> dict[str, Any]:
    return {"command": command, "properties": properties}


def _whole_sticks(count: int) -> int:
    return -(-count // STICK_BYTES) * STICK_BYTES
