# SPDX-License-Identifier: Apache-2.0
"""Looking inside: keeps what each compiled kernel became, and writes it out when ``SPYRE_DUMP`` (or
TORCH_COMPILE_DEBUG) asks.

While inspection is active the program cache is not read, so that every kernel that runs is seen.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_spyre import knobs
from torch_spyre.errors import NotExpressible

if TYPE_CHECKING:  # a process that finds its programs in the cache never imports the planner
    from torch_spyre._inductor.planner import Plan

_records: list[KernelRecord] = []
_recording = False


@dataclass
class KernelRecord:
    """One compiled kernel with every form it took."""

    graph_json: str
    plan: Plan
    module: Any  # the KTIR module
    program: Any  # backend.compile.CompiledProgram

    @property
    def name(self) -> str:
        return self.plan.kernel.name

    def text(self) -> str:
        """The readable account: ops, layouts, core split, where each tensor lives, bytes moved."""
        from torch_spyre.explain import kernel_text

        return kernel_text(self.plan)

    def ktir(self) -> str:
        from torch_spyre.ktir import print_module

        return str(print_module(self.module))

    def disassembly(self) -> str:
        from torch_spyre import _C

        return str(_C.Program.load(self.program.binary).disassemble())


def start() -> None:
    """Keep records of all kernels compiled from now on."""
    global _recording
    _recording = True


def stop() -> None:
    global _recording
    _recording = False


def records() -> list[KernelRecord]:
    return list(_records)


def active() -> bool:
    return _recording or dump_folder() is not None


def dump_folder() -> Path | None:
    folder = knobs.get("dump")
    if folder:
        return Path(folder)
    if os.environ.get("TORCH_COMPILE_DEBUG") == "1":
        from torch._dynamo.utils import get_debug_dir

        return Path(get_debug_dir()) / "spyre"
    return None


def record(graph_json: str, plan: Plan, module: Any, program: Any) -> None:
    entry = KernelRecord(graph_json, plan, module, program)
    if _recording:
        _records.append(entry)
    folder = dump_folder()
    if folder is not None:
        _write(entry, folder)


def _write(entry: KernelRecord, root: Path) -> None:
    """<root>/<kernel>_<n>/: tilegraph, plan, SuperDSC bundle (or why there is none), KTIR, program."""
    from torch_spyre.sdsc import writer

    number = 0
    while (folder := root / f"{entry.name}_{number}").exists():
        number += 1
    folder.mkdir(parents=True)
    (folder / "tilegraph.json").write_text(entry.graph_json)
    (folder / "tilegraph.txt").write_text(entry.plan.graph.text())
    (folder / "explain.txt").write_text(entry.text())
    (folder / "kernel.ktir").write_text(entry.ktir())
    (folder / "program.bin").write_bytes(entry.program.binary)
    (folder / "program.txt").write_text(entry.disassembly())
    try:
        writer.write_bundle(entry.plan.kernel, folder / "sdsc")
    except NotExpressible as reason:
        (folder / "sdsc_not_expressible.txt").write_text(f"{reason}\n")
