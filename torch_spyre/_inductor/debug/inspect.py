# SPDX-License-Identifier: Apache-2.0
"""Looking inside: keeps what each compiled kernel became, writes it out when ``SPYRE_DUMP`` (or TORCH_COMPILE_DEBUG)
asks, and logs it under the names in `ARTIFACTS` when TORCH_LOGS does.

While inspection is active the program cache is not read, so that every kernel that runs is seen.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch._functorch.config
import torch._inductor.config

from torch_spyre import knobs
from torch_spyre._inductor.debug import reproducer
from torch_spyre.errors import NotExpressible, SpyreError, find_reproducers_by, located, reproducer_hint
from torch_spyre.logging_config import ARTIFACTS
from torch_spyre.runtime import driver

if TYPE_CHECKING:  # a process that finds its programs in the cache never imports the planner
    from torch_spyre._inductor.planning.planner import Plan
    from torch_spyre._inductor.tilegraph.graph import Graph

log = logging.getLogger(__name__)

_records: list[KernelRecord] = []
_recording = False
_GRAPH_CACHES: tuple[tuple[Any, str], ...] = (
    (torch._inductor.config, "fx_graph_cache"),
    (torch._functorch.config, "enable_autograd_cache"),
)
_before: dict[str, Any] = {}
_by_origin: dict[str, Path] = {}  # "kernel: node: ops at user line", as programs say it -> where it was dumped
_by_inputs: dict[tuple[Any, ...], Path] = {}  # (graph, inputs) -> where it was dumped


@dataclass
class KernelRecord:
    """One compiled kernel with every form it took."""

    graph_json: str
    plan: Plan
    module: Any  # the KTIR module
    program: Any  # backend.compile.CompiledProgram
    inputs: tuple[tuple[Any, ...], ...] = ()  # how each input is stored, as planning sees it

    @property
    def name(self) -> str:
        return self.plan.kernel.name

    def text(self) -> str:
        """The readable account: ops, layouts, core split, where each tensor lives, bytes moved."""
        from torch_spyre._inductor.debug.kernel_text import kernel_text  # late: start-up

        return kernel_text(self.plan)

    def ktir(self) -> str:
        from torch_spyre.ir.ktir.text import print_module  # late: start-up

        return str(print_module(self.module))

    def disassembly(self) -> str:
        from torch_spyre import _C  # late: start-up

        return str(_C.Program.load(self.program.binary).disassemble())


def start() -> None:
    """Keep records of all kernels compiled from now on. PyTorch's caches of graphs are not read meanwhile: their keys
    leave out lines, so a graph from there would name those of the program that filled the cache."""
    # Without its caches Inductor takes its table of decompositions before it asks for the device's back end.
    from torch_spyre._inductor import registration  # noqa: F401  # late: start-up (registers the device)

    global _recording
    if not _recording:
        _recording = True
        for config, name in _GRAPH_CACHES:
            _before[name] = getattr(config, name)
            setattr(config, name, False)


def stop() -> None:
    global _recording
    _recording = False
    for config, name in _GRAPH_CACHES:
        if name in _before:
            setattr(config, name, _before.pop(name))


def records() -> list[KernelRecord]:
    return list(_records)


def active() -> bool:
    return _recording or dump_folder() is not None or any(map(_logged, ARTIFACTS))


driver.watchers.append(active)


def dump_folder() -> Path | None:
    folder = knobs.get("dump")
    if folder:
        return Path(folder).absolute()
    if os.environ.get("TORCH_COMPILE_DEBUG") == "1":
        from torch._dynamo.utils import get_debug_dir

        return Path(get_debug_dir()) / "spyre"
    return None


def folder_of(message: str) -> Path | None:
    """Where the kernel that a message of the card speaks of was dumped; None if it was not."""
    found = [origin for origin in _by_origin if f", from {origin}: " in message]
    return _by_origin[max(found, key=len)] if found else None


find_reproducers_by(folder_of)


class Compilation:
    """One kernel on its way; `done` hands over what it became."""

    def __init__(self, graph: Graph, graph_json: str, inputs: Sequence[tuple[Any, ...]]) -> None:
        self.graph, self.graph_json, self.inputs = graph, graph_json, tuple(inputs)
        root = dump_folder()
        self.folder = None if root is None else _new_folder(root, graph.name)
        if self.folder is not None:
            (self.folder / "tilegraph.json").write_text(graph_json)
            (self.folder / "tilegraph.txt").write_text(graph.text())
            self._write_reproducer(None)

    def _write_reproducer(self, ktir: str | None) -> None:
        assert self.folder is not None
        (self.folder / reproducer.FILE).write_text(reproducer.source(self.graph, self.graph_json, self.inputs, ktir))

    def done(self, plan: Plan, module: Any, program: Any) -> None:
        entry = KernelRecord(self.graph_json, plan, module, program, self.inputs)
        if _recording:
            _records.append(entry)
        _log(entry)
        if self.folder is not None:
            self._write_reproducer(entry.ktir())
            _write(entry, self.folder)
            _by_inputs[self.graph_json, self.inputs] = self.folder
            for op in plan.kernel.ops:
                label = f"{op.name}: {op.origin}" if op.origin else op.name
                _by_origin[f"{plan.kernel.name}: {label}"] = self.folder


@contextlib.contextmanager
def compiling(graph: Graph, graph_json: str, inputs: Sequence[tuple[Any, ...]]) -> Iterator[Compilation]:
    """The block that plans and assembles a kernel. An error that leaves it says where the kernel came from and how to
    reproduce it."""
    opened = Compilation(graph, graph_json, inputs)
    try:
        with located(lambda: user_lines(graph)):
            yield opened
    except Exception as error:
        if opened.folder is not None:
            (opened.folder / "error.txt").write_text(f"{type(error).__name__}: {error}\n")
        if isinstance(error, SpyreError):
            error.args = (f"{error}\n  {reproducer_hint(opened.folder)}",)
        else:
            error.add_note(f"while compiling {graph.name}; {reproducer_hint(opened.folder)}")
        raise


def user_lines(graph: Graph, most: int = 3) -> str:
    """A kernel and the lines of the user's program that it computes, a few of them."""
    places = [n.origin.rpartition(" at ")[2] for n in graph.nodes if " at " in n.origin]
    lines = list(dict.fromkeys(line for place in places for line in place.split("; ")))
    shown = "; ".join(lines[:most]) + (f"; and {len(lines) - most} more lines" if len(lines) > most else "")
    return f"{graph.name}, which computes {shown}" if lines else graph.name


def save_inputs(graph_json: str, described: Sequence[tuple[Any, ...]], inputs: Sequence[Any]) -> None:
    """Values of a launch, beside the reproducer of its kernel."""
    folder = _by_inputs.get((graph_json, tuple(described)))
    if folder is not None:
        reproducer.save_inputs(folder, inputs)


def _new_folder(root: Path, name: str) -> Path:
    """<root>/<kernel>_<n>, the first number that is free; another process may take numbers at the same time."""
    number = 0
    while True:
        try:
            folder = root / f"{name}_{number}"
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1


def _write(entry: KernelRecord, folder: Path) -> None:
    """Plan, KTIR, program, and the SuperDSC bundle or why there is none."""
    from torch_spyre._inductor.debug import bundles  # late: start-up

    (folder / "tilegraph.txt").write_text(entry.plan.graph.text())
    (folder / "explain.txt").write_text(entry.text())
    (folder / "kernel.ktir").write_text(entry.ktir())
    (folder / "program.bin").write_bytes(entry.program.binary)
    (folder / "program.txt").write_text(entry.disassembly())
    try:
        bundles.write(entry, folder / "sdsc")
    except NotExpressible as reason:
        (folder / "sdsc_not_expressible.txt").write_text(f"{reason}\n")
    except Exception:  # the kernel itself is fine: a dump must not stop the program that is being looked at
        log.exception("%s: the SuperDSC bundle in %s could not be written", entry.name, folder)


# Artefacts of TORCH_LOGS


@functools.cache
def _logger(artifact: str) -> logging.Logger:
    from torch._logging import getArtifactLogger

    logger: logging.Logger = getArtifactLogger(__name__, artifact)
    return logger


def _logged(artifact: str) -> bool:
    return _logger(artifact).isEnabledFor(logging.DEBUG)


def _log(entry: KernelRecord) -> None:
    forms = {
        "spyre_tilegraph": entry.plan.graph.text,
        "spyre_plan": entry.text,
        "spyre_ktir": entry.ktir,
        "spyre_program": entry.disassembly,
    }
    for artifact, form in forms.items():
        if _logged(artifact):
            _logger(artifact).debug("%s\n%s", entry.name, form())
