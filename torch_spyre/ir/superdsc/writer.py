# SPDX-License-Identifier: Apache-2.0
"""Print a planned Kernel as a SuperDSC bundle: `sdsc_<i>.json` per op and `bundle.mlir`.

Up to 7 launch arguments have literal addresses, one 16 GiB segment each. More arguments, which no literal address can
name, have symbolic ones: the files hold symbol ids and bundle.mlir adds each core's offset to the argument's base. A
launch scalar becomes what a front end without scalars passes: a 0-d tensor, one more argument after the others. The
trips of a tile loop become files of their own.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from torch_spyre.constants import DATA_SEGMENTS, SEGMENT_BYTES
from torch_spyre.errors import NotExpressible
from torch_spyre.ir.plan.tileops import Kernel
from torch_spyre.ir.superdsc.bundle_mlir import print_bundle, print_symbolic_bundle
from torch_spyre.ir.superdsc.op_writer import write_sdsc
from torch_spyre.ir.superdsc.operand_tensors import scalars_as_tensors
from torch_spyre.ir.superdsc.rules import MAX_SEGMENTS
from torch_spyre.ir.superdsc.schema import SuperDSC
from torch_spyre.ir.superdsc.unroll import without_loops


def write_bundle(kernel: Kernel, directory: str | Path) -> None:
    """Write the bundle's files into a directory, created if needed; a kernel that is not expressible writes nothing."""
    files = bundle_files(kernel)
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name).write_text(text)


def bundle_files(kernel: Kernel, symbolic: bool | None = None) -> dict[str, str]:
    """File name -> text. Raises NotExpressible that names the kernel, the op and the reason."""
    kernel = scalars_as_tensors(without_loops(kernel))
    if len(kernel.args) > MAX_SEGMENTS:
        raise NotExpressible(f"{kernel.name}: {len(kernel.args)} arguments; a bundle has at most {MAX_SEGMENTS}")
    sdscs = [write_sdsc(op, i, kernel.name) for i, op in enumerate(kernel.ops)]
    names = [f"sdsc_{i}.json" for i in range(len(sdscs))]
    if symbolic is None:
        symbolic = len(kernel.args) > DATA_SEGMENTS
    text = print_bundle(names)
    if symbolic:
        made = [symbolic_form(s) for s in sdscs]
        sdscs = [s for s, _ in made]
        text = print_symbolic_bundle(
            names, [[divmod(a, SEGMENT_BYTES) for a in at] for _, at in made], len(kernel.args)
        )
    files = {n: json.dumps(s.to_json(), indent=2) for n, s in zip(names, sdscs, strict=True)}
    return {**files, "bundle.mlir": text}


def symbolic_form(sdsc: SuperDSC) -> tuple[SuperDSC, list[int]]:
    """The file with symbol ids instead of memory addresses, and the address of each symbol -1, -2, …"""
    addresses: list[int] = []
    allocations = []
    for a in sdsc.allocations:
        if a.component != "hbm":
            allocations.append(a)
            continue
        for address in a.start.values():
            if address not in addresses:
                addresses.append(address)
        ids = {c: -(addresses.index(address) + 1) for c, address in a.start.items()}
        allocations.append(replace(a, start=ids, symbolic=True))
    return replace(sdsc, allocations=tuple(allocations)), addresses
