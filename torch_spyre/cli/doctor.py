# SPDX-License-Identifier: Apache-2.0
"""``spyre doctor``: what is installed, where caches are, and whether an op, a compiled graph and a KTIR file work."""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_spyre import __version__, command_line, knobs
from torch_spyre.errors import SpyreError

_NEEDED = ("torch", "numpy", "xdsl", "rich")
_OPTIONAL = {
    "transformers": "Hugging Face models: pip install 'torch_spyre[models]'",
    "triton": "Triton kernels: pip install 'torch_spyre[triton]'",
    "spyre_inference": "serving",
}


@dataclass(frozen=True)
class Row:
    """One line of the report. `state`: ok, note, or wrong, which makes the exit status 1."""

    name: str
    state: str
    text: str


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.parser("doctor", __doc__, "--json")
    command_line.add_json(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(argv)
    return command_line.guarded("doctor", lambda: _report(options.json))


def _report(as_json: bool) -> int:
    rows: list[Row] = []
    for probe in (_system, _packages, _native, _cards, _caches, _memory, _variables, _tools):
        rows += _tried(probe.__name__.strip("_"), probe)
    for name, trial in (("eager op", _op), ("compiled graph", _graph), ("KTIR file", _ktir)):
        rows += _tried(name, functools.partial(_timed, name, trial))
    wrong = sum(row.state == "wrong" for row in rows)
    if as_json:
        command_line.print_json({"ok": not wrong, "checks": [vars(row) for row in rows]})
        return int(wrong > 0)
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    colours = {"ok": "green", "note": "yellow", "wrong": "bold red"}
    for row in rows:
        table.add_row(f"[{colours[row.state]}]{row.state}[/]", row.name, escape(row.text))
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)
    print(f"\n{wrong} of {len(rows)} checks found something wrong" if wrong else "\neverything works")
    return int(wrong > 0)


def _tried(name: str, probe: Callable[[], list[Row]]) -> list[Row]:
    """A check that fails is a finding, and the others go on."""
    try:
        return probe()
    except Exception as error:
        return [Row(name, "wrong", f"{type(error).__name__}: {error}".partition("\n")[0])]


def _system() -> list[Row]:
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    tested = (platform.system(), platform.machine()) == ("Linux", "x86_64")
    python = f"{platform.python_version()} in {sys.prefix}"
    return [
        Row("torch_spyre", "ok", f"{__version__} in {Path(__file__).parents[1]}"),
        Row("machine", "ok" if tested else "note", machine if tested else f"{machine}: only x86-64 Linux is tested"),
        Row("Python", "ok", python),
    ]


def _packages() -> list[Row]:
    rows = []
    for name in (*_NEEDED, *_OPTIONAL):
        try:
            rows.append(Row(name, "ok", importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            needed = name in _NEEDED
            rows.append(Row(name, "wrong" if needed else "note", f"not installed; {_OPTIONAL.get(name, 'needed')}"))
    return rows


def _native() -> list[Row]:
    import torch  # noqa: F401  (the extension needs libtorch in the process)

    extension = importlib.import_module("torch_spyre._C")  # late: start-up
    card = Path(__file__).parents[1] / "lib" / "libspyre_card.so"
    built = "ok" if card.is_file() else "wrong"
    return [
        Row("extension", "ok", str(extension.__file__)),
        Row("card library", built, f"{card}{'' if card.is_file() else ' is missing'}; SPYRE_ISA={knobs.get('isa')}"),
    ]


def _cards() -> list[Row]:
    import torch

    count = torch.spyre.device_count()
    return [Row("cards", "ok", f"{count}; AIU_WORLD_SIZE sets their number")]


def _caches() -> list[Row]:
    folder = Path(knobs.get("cache_dir")).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        return [Row("program cache", "wrong", f"{folder} cannot be written: set SPYRE_CACHE_DIR")]
    files = [f for f in folder.rglob("*") if f.is_file()]
    size, free = sum(f.stat().st_size for f in files), shutil.disk_usage(folder).free
    text = f"{folder}: {len(files)} files, {size / 2**20:.1f} MiB; {free / 2**30:.1f} GiB free"
    return [Row("program cache", "ok" if free > 2**30 else "note", text)]


def _memory() -> list[Row]:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    budget = knobs.get("host_memory_gb") or 0.8 * total
    return [Row("host memory", "ok", f"{total:.1f} GiB; cards may use {budget:.1f} GiB (SPYRE_HOST_MEMORY_GB)")]


def _variables() -> list[Row]:
    rows = []
    for row in knobs.TABLE:
        if row.env and row.env in os.environ:
            try:
                knobs.get(row.name)
                rows.append(Row(row.env, "ok", os.environ[row.env]))
            except SpyreError as error:
                rows.append(Row(row.env, "wrong", str(error)))
    return rows


def _tools() -> list[Row]:
    found = shutil.which("g++")
    text = found or "not found: PyTorch needs it for the parts of a compiled graph that run on the host"
    return [Row("g++", "ok" if found else "note", text)]


def _timed(name: str, trial: Callable[[], str]) -> list[Row]:
    start = time.perf_counter()
    text = trial()
    return [Row(name, "ok", f"{text}; {time.perf_counter() - start:.1f} s here")]


def _op() -> str:
    import torch

    x = torch.arange(96, dtype=torch.float32).reshape(6, 16).half()
    _equal((x.to("spyre") + 1).cpu(), x + 1)
    return "x + 1 agrees with the CPU"


def _graph() -> str:
    import torch

    x = torch.arange(96, dtype=torch.float32).reshape(6, 16).half()
    compiled = torch.compile(lambda x: torch.relu(x - 40).sum(-1), dynamic=False)
    _equal(compiled(x.to("spyre")).cpu(), torch.relu(x - 40).sum(-1))
    return "relu(x - 40).sum(-1) agrees with the CPU"


def _ktir() -> str:
    import torch

    from torch_spyre import ktir  # late: start-up

    x = torch.linspace(-3, 3, 64 * 64).reshape(64, 64).half()
    y = torch.zeros_like(x)
    ktir.load(ktir.example("softmax")).run(input=x, output=y)
    error = float((y.double() - torch.softmax(x.double(), -1)).abs().max())
    if error > 2.0**-8:
        raise AssertionError(f"softmax.mlir differs from the CPU by {error:g}")
    return f"softmax.mlir differs from float64 by at most {error:.1g}"


def _equal(found: Any, expected: Any) -> None:
    if not bool((found == expected).all()):
        raise AssertionError(f"the card says {found.flatten()[:4].tolist()}, the CPU {expected.flatten()[:4].tolist()}")


if __name__ == "__main__":
    sys.exit(main())
