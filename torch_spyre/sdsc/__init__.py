# SPDX-License-Identifier: Apache-2.0
"""SuperDSC bundles: the published interface between a front end and a back end for this card.

Enters: a planned `Kernel` (`ir/plan/tileops.py`), or a directory with `bundle.mlir` and `sdsc_<i>.json` by anybody.
Leaves: the other one. `write_bundle` / `bundle_files` print, `read_bundle` / `read_kernel` / `read_sdsc` read.
Holds: `canonical(read(write(kernel))) == canonical(kernel)` for every kernel that can be written, so that both
compile to programs that touch the same bytes on the same cores; every file written or read passes `SuperDSC.verify`.

docs/superdsc.md has what the opfuncs compute, the rules, and how fields carry what a planned kernel says.

| file | |
|---|---|
| `schema`, `json_read`, `json_write` | one file as dataclasses, and its JSON |
| `bundle_mlir`, `bundle` | bundle.mlir with its loops and symbols; the steps that run |
| `vocabulary`, `formats`, `arrays` | opfuncs and labels; number formats of constants; of whole arrays |
| `rules`, `class_rules`, `bundle_rules` | what files, classes of ops and whole bundles must obey |
| `reader`, `composites` | SuperDSCs to tile ops |
| `access`, `op_writer`, `unroll`, `writer`, `canonical` | tile ops to SuperDSCs; when two kernels are the same |
| `launch`, `run`, `reference` | inputs and results; runs on the card; the same in NumPy |
| `explain`, `cli` | tables; the command `spyre-sdsc` |

Not in the format, hence not restored: names, origins, roles of arguments, bytes of a buffer past those touched, and the
grid (`Kernel.cores`).
"""

from torch_spyre.ir.superdsc.bundle import Bundle, load, read_bundle
from torch_spyre.ir.superdsc.canonical import canonical
from torch_spyre.ir.superdsc.op_reader import read_kernel, read_sdsc
from torch_spyre.ir.superdsc.op_writer import write_sdsc
from torch_spyre.ir.superdsc.schema import SuperDSC
from torch_spyre.ir.superdsc.writer import bundle_files, write_bundle

__all__ = [
    "Bundle",
    "SuperDSC",
    "bundle_files",
    "canonical",
    "load",
    "read_bundle",
    "read_kernel",
    "read_sdsc",
    "write_bundle",
    "write_sdsc",
]
