# SPDX-License-Identifier: Apache-2.0
"""A whole bundle: the SuperDSCs that run, in order, with their addresses, and what the machine's rules say about them.

`load` reads a directory or a lone file. A lone SuperDSC is a fragment of a bundle: what it finds in LX that nobody
wrote is an input, what it leaves in LX is a result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch_spyre import files
from torch_spyre.constants import CORES, DATA_SEGMENTS, SEGMENT_BYTES
from torch_spyre.errors import InvalidProgram, UnsupportedOp
from torch_spyre.ir.plan.tileops import Kernel
from torch_spyre.ir.superdsc import op_reader, rules
from torch_spyre.ir.superdsc.bundle_mlir import parse_bundle, print_bundle
from torch_spyre.ir.superdsc.forms import several_ops
from torch_spyre.ir.superdsc.schema import Json, SuperDSC

_MAX_FILE_BYTES = 64 << 20


@dataclass(frozen=True)
class Step:
    """One SuperDSC that runs: its file, concrete addresses, and the values of the loops around it."""

    sdsc: SuperDSC
    file: str
    loops: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.file}{list(self.loops) if self.loops else ''}"


@dataclass(frozen=True)
class Bundle:
    """`arguments` names launch arguments whose addresses are symbols; literal addresses name theirs by segment."""

    name: str
    steps: tuple[Step, ...]
    fragment: bool = False
    arguments: tuple[str, ...] = ()

    @property
    def segments(self) -> int:
        return max(DATA_SEGMENTS, len(self.arguments))

    def argument_name(self, segment: int) -> str:
        return self.arguments[segment] if segment < len(self.arguments) else f"segment{segment}"

    def problems(self) -> list[str]:
        """Every broken rule, with file, rule, tensor and core; the rules of whole bundles after those of files."""
        from torch_spyre.ir.superdsc import bundle_rules  # late: written over this class

        found, seen = [], set()
        for step in self.steps:
            for problem in rules.problems(step.sdsc, self.segments):
                text = f"{step.title}: {problem}"
                if (step.file, str(problem)) not in seen:
                    seen.add((step.file, str(problem)))
                    found.append(text)
        return found or [f"{self.steps[p.step].title}: {p.problem}" for p in bundle_rules.problems(self)]

    def verify(self) -> None:
        found = self.problems()
        if found:
            more = f" (and {len(found) - 8} more)" if len(found) > 8 else ""
            raise InvalidProgram(f"bundle {self.name} breaks the machine's rules: " + "; ".join(found[:8]) + more)

    def kernel(self, cores: int = CORES) -> Kernel:
        """The bundle as planned tile ops. LX inputs of a fragment stay reads of LX; `fragment.bind` supplies them."""
        return op_reader.make_kernel([s.sdsc for s in self.steps], self.name, cores)

    def files(self) -> dict[str, str]:
        """File name -> text, with literal addresses."""
        if any(s.loops for s in self.steps):
            raise InvalidProgram(f"bundle {self.name} has loops; its steps cannot be written as plain files")
        names = [f"sdsc_{i}.json" for i in range(len(self.steps))]
        texts = {n: json.dumps(s.sdsc.to_json(), indent=2) for n, s in zip(names, self.steps, strict=True)}
        return {**texts, "bundle.mlir": print_bundle(names)}


def load(path: str | Path) -> Bundle:
    """A bundle directory, the text that says what runs, or a lone SuperDSC file."""
    found = Path(path)
    if found.is_dir() or found.name == "bundle.mlir":
        return load_directory(found if found.is_dir() else found.parent)
    if found.suffix == ".mlir" and found.is_file():
        return load_directory(found.parent, found.name)
    if not found.is_file():
        raise InvalidProgram(f"Bundle not found: {found}; expected a directory with bundle.mlir, or a SuperDSC file")
    return lone(_load(found), found.stem)


def lone(data: Json, name: str = "sdsc") -> Bundle:
    """The ops of one file."""
    steps = _steps([SuperDSC.from_json(one) for one in several_ops.split(data)], f"{name}.json")
    if len(steps) == 1:
        steps = [replace(steps[0], sdsc=_with_own_segments(steps[0].sdsc))]
    elif any(a.symbolic for step in steps for a in step.sdsc.allocations):
        raise UnsupportedOp(f"{name}.json: {len(steps)} ops at symbolic addresses, which only a bundle.mlir can give")
    return Bundle(name, _in_one_way(steps), fragment=True)


def _steps(sdscs: Sequence[SuperDSC], file: str, loops: tuple[int, ...] = ()) -> list[Step]:
    """The ops of a file; where there are several, each says which it is."""
    alone = len(sdscs) == 1
    return [Step(sdsc, file if alone else f"{file} op {i}", loops) for i, sdsc in enumerate(sdscs)]


def _in_one_way(steps: Sequence[Step]) -> tuple[Step, ...]:
    found = op_reader.in_one_way([step.sdsc for step in steps])
    return tuple(replace(step, sdsc=sdsc) for step, sdsc in zip(steps, found, strict=True))


def load_directory(path: Path, name: str = "bundle.mlir") -> Bundle:
    text = path / name
    if not text.is_file():
        raise InvalidProgram(f"Bundle not found: {text}; expected a directory with bundle.mlir and sdsc_<i>.json")
    content = _read(text)
    if "sdscbundle." not in content and re.search(r"\b(ktdp|linalg|tensor|memref)\.", content):
        raise InvalidProgram(
            f"{text} executes no SuperDSC files (sdscbundle.sdsc_execute); if it is KTIR, spyre-ktir reads it"
        )
    parsed = parse_bundle(content)
    names = list(dict.fromkeys(e.file for e in parsed.executions))
    missing = [f for f in names if not (path / f).is_file()]
    if missing:
        raise InvalidProgram(f"{text} executes {', '.join(missing)}, which the directory lacks")
    sdscs = {f: [SuperDSC.from_json(one) for one in several_ops.split(_load(path / f))] for f in names}
    steps: list[Step] = []
    for e in parsed.executions:
        steps += _steps([resolve(sdsc, e.symbols, e.file) for sdsc in sdscs[e.file]], e.file, e.loops)
    return Bundle(path.resolve().name, _in_one_way(steps), arguments=parsed.arguments)


def from_json(sdscs: Sequence[Json], name: str = "bundle") -> Bundle:
    """Files that are already parsed, in execution order."""
    files = ([SuperDSC.from_json(one) for one in several_ops.split(d)] for d in sdscs)
    return Bundle(name, _in_one_way([s for i, found in enumerate(files) for s in _steps(found, f"sdsc_{i}.json")]))


def resolve(sdsc: SuperDSC, symbols: dict[int, int], file: str) -> SuperDSC:
    """The SuperDSC with every symbol id replaced by its address."""
    allocations = []
    for a in sdsc.allocations:
        if not a.symbolic and all(address >= 0 for address in a.start.values()):
            allocations.append(a)
            continue
        unknown = [s for s in a.start.values() if s not in symbols]
        if unknown:
            raise InvalidProgram(
                f"{file}: Tensor{a.index} starts at symbol {unknown[0]}, bundle.mlir gives {sorted(symbols)}"
            )
        allocations.append(replace(a, start={c: symbols[s] for c, s in a.start.items()}, symbolic=False))
    return replace(sdsc, allocations=tuple(allocations))


def _with_own_segments(sdsc: SuperDSC) -> SuperDSC:
    """Symbolic tensors of a lone file, whose addresses nobody gives, each in a segment of its own."""
    if not any(a.symbolic for a in sdsc.allocations):
        return sdsc
    found = rules.problems(sdsc)
    if found:
        raise InvalidProgram(f"SuperDSC {sdsc.title} breaks the format: " + "; ".join(map(str, found)))
    taken = {s // SEGMENT_BYTES for a in sdsc.allocations if not a.symbolic for s in a.start.values()}
    free = (i for i in range(rules.MAX_SEGMENTS) if i not in taken)
    allocations = []
    for a in sdsc.allocations:
        if not a.symbolic:
            allocations.append(a)
            continue
        base = next(free) * SEGMENT_BYTES if a.component == "hbm" else 0
        start = {c: base + sdsc.core_offset(a.index, c) for c in a.start}
        allocations.append(replace(a, start=start, symbolic=False))
    return replace(sdsc, allocations=tuple(allocations))


def _read(file: Path) -> str:
    try:
        return files.read_bytes(file, _MAX_FILE_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidProgram(f"{file} is not UTF-8 text: {error}") from None
    except OSError as error:
        raise InvalidProgram(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidProgram(f"{error}; a bundle has regular files of at most {_MAX_FILE_BYTES} bytes") from None


def _load(file: Path) -> Json:
    try:
        return files.parse_json(_read(file))
    except ValueError as error:
        raise InvalidProgram(f"{file} is not JSON: {error}") from None


def read_bundle(directory: str | Path, cores: int = CORES) -> Kernel:
    """The kernel of a bundle directory that obeys the rules. `cores` is the grid, which the format does not carry."""
    bundle = load_directory(Path(directory))
    bundle.verify()
    return bundle.kernel(cores)
