# SPDX-License-Identifier: Apache-2.0
"""SuperDSC files as a front end would write them, built from a short description."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch_spyre.ir.superdsc.constant_formats import encode, stick_elements, word_bytes
from torch_spyre.ir.superdsc.rules import derive_folds
from torch_spyre.ir.superdsc.schema import Allocation, Compute, Constant, LabeledDs, Primary, SuperDSC, Window

SEGMENT = 16 << 30
FP16, FP32, FP8, INT32, UINT32 = "SEN169_FP16", "IEEE_FP32", "SEN143_FP8", "IEEE_INT32", "SENUINT32"


@dataclass(frozen=True)
class T:
    """A tensor: `order` inner to outer; `lacks` dims by scale; `at` is a byte of segment `seg`, or of LX."""

    order: str
    stick: str
    seg: int = 0
    at: int = 0
    lx: bool = False
    lacks: Mapping[str, int] = field(default_factory=dict)
    format: str = FP16
    gap: Mapping[str, int] = field(default_factory=dict)
    table: str = ""  # gathered dims
    windows: str = ""  # dims that are read through windows
    index: bool = False
    stick_sizes: tuple[int, ...] = ()


def core_map(slices: Mapping[str, int], fastest: Sequence[str]) -> dict[int, dict[str, int]]:
    cores = 1
    for n in slices.values():
        cores *= n
    result = {}
    for core in range(cores):
        rest, place = core, dict.fromkeys(slices, 0)
        for dim in (*fastest, *(d for d in slices if d not in fastest)):
            rest, place[dim] = divmod(rest, slices[dim])
        result[core] = place
    return result


def sdsc(
    opfunc: str,
    sizes: Mapping[str, int],
    tensors: Sequence[T],
    splits: Mapping[str, int] | None = None,
    *,
    constants: Mapping[str, float] | None = None,
    constant_format: str = FP32,
    mask: Mapping[str, int] | None = None,
    outputs: int = 1,
    accumulate: bool = False,
    fastest: Sequence[str] = (),
    unit: str = "sfp",
    index: int = 0,
    parts: Mapping[str, int] | None = None,
    windows: Mapping[str, Window] | None = None,
) -> SuperDSC:
    """The last tensor is the result. `mask` gives the valid elements of padded dims."""
    slices = {d: (splits or {}).get(d, 1) for d in sizes}
    core_sizes = {d: (parts or {}).get(d, -(-n // slices[d])) for d, n in sizes.items()}
    last = {d: n - (slices[d] - 1) * core_sizes[d] for d, n in sizes.items()}
    places = core_map(slices, fastest)
    primary: dict[str, Primary] = {}
    labels: dict[Any, str] = {}
    names = iter(["INPUT", "KERNEL", "OUTPUT", "KERNEL_IDX", "L4", "L5", "L6"])
    described, nodes = [], []
    for i, t in enumerate(tensors):
        order, sticks = tuple(t.order.split()), tuple(t.stick.split())
        stick_sizes = t.stick_sizes or (stick_elements(t.format),)
        key = (frozenset(order), sticks, stick_sizes)
        if key not in labels:
            labels[key] = next(names)
            primary[labels[key]] = Primary(order, sticks, stick_sizes)
        scale = tuple(t.lacks.get(d, 1) for d in primary[labels[key]].order)
        described.append(LabeledDs(i, labels[key], scale, word_bytes(t.format), t.format, not t.lx))
        gaps = {d: dict.fromkeys([-1] if not t.lx else [-1, *places], g) for d, g in t.gap.items()}
        nodes.append(
            Allocation(
                i,
                "lx" if t.lx else "hbm",
                order,
                {},
                {},
                gaps or None,
                dict.fromkeys(t.table.split(), 1),
                "value_tensor" if t.table else "index_tensor" if t.index else "no_indirection",
                windows=tuple(t.windows.split()),
            )
        )
    indices = tuple(i for i, t in enumerate(tensors) if t.index)
    inputs = tuple(i for i in range(len(tensors) - outputs) if i not in indices)
    results = tuple(range(len(tensors) - outputs, len(tensors)))
    made = SuperDSC(
        index,
        opfunc,
        dict(sizes),
        core_sizes,
        slices,
        places,
        primary,
        tuple(nodes),
        tuple(described),
        Compute(unit, opfunc, tensors[0].format, (*inputs, *results) if accumulate else inputs, results, indices),
        {d: (n, sizes[d] - n) for d, n in (mask or {}).items()},
        0 if mask and accumulate else -1,
        tuple(Constant(n, constant_format, encode(v, constant_format)) for n, v in (constants or {}).items()),
        {d: n for d, n in last.items() if n != core_sizes[d]},
        windows=dict(windows or {}),
    )
    placed = []
    for i, (node, t) in enumerate(zip(made.allocations, tensors, strict=True)):
        base = t.at if t.lx else t.seg * SEGMENT + t.at
        start = {c: base + made.core_offset(i, c) for c in places}
        folds = {d: derive_folds(made, i, d) for d in node.order}
        placed.append(replace(node, start=start, folds=folds))
    return replace(made, allocations=tuple(placed))


def write_files(folder: Path, sdscs: Sequence[SuperDSC]) -> Path:
    """A bundle directory of literal addresses."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for i, s in enumerate(sdscs):
        (folder / f"sdsc_{i}.json").write_text(json.dumps(replace(s, index=i).to_json(), indent=2))
        lines.append(f'\t\tsdscbundle.sdsc_execute () {{sdsc_filename="sdsc_{i}.json"}}\n')
    body = "".join(lines)
    text = f"module {{\n\tfunc.func @sdsc_bundle() {{\n{body}\t\treturn\n\t}}\n}}\n"
    (folder / "bundle.mlir").write_text(text)
    return folder


def rows(seg: int = 0, **more: Any) -> T:
    """[mb, out] with out in the sticks, rows inside, as a host matrix is laid out by default."""
    return T("mb out", "out", seg, **more)


def per_row(seg: int = 0, **more: Any) -> T:
    """One value per row, each in a stick of its own."""
    return T("mb out", "out", seg, lacks={"out": -2}, **more)


def per_column(seg: int = 0, **more: Any) -> T:
    return T("out mb", "out", seg, lacks={"mb": -1}, **more)
