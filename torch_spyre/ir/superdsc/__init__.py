# SPDX-License-Identifier: Apache-2.0
"""SuperDSC as a language: single files and whole bundles, read, written and checked.

Enters: a planned `Kernel`, or a directory with `bundle.mlir` and `sdsc_<i>.json` by anybody. Leaves: the other one.
Holds: `canonical(read(write(kernel))) == canonical(kernel)` for every kernel that can be written, so that both
compile to programs that touch the same bytes on the same cores; every file written or read passes `SuperDSC.verify`.

docs/superdsc.md has what the opfuncs compute, the rules, and how fields carry what a planned kernel says.

| file | |
|---|---|
| `schema`, `json_read`, `json_write` | one file as dataclasses, and its JSON |
| `bundle_mlir`, `bundle` | bundle.mlir with its loops and symbols; the steps that run |
| `vocabulary`, `constant_formats`, `arrays` | opfuncs and labels; number formats of constants; of whole arrays |
| `rules`, `class_rules`, `bundle_rules` | what files, classes of ops and whole bundles must obey |
| `op_reader`, `layer_norms` | SuperDSCs to tile ops |
| `stick_accesses`, `op_writer`, `unroll`, `writer`, `canonical` | tile ops to SuperDSCs; equality of kernels |
| `operand_tensors`, `steps` | scalars and positions as tensors; a kernel as bundles with steps between them |

Not in the format, hence not restored: names, origins, roles of arguments, bytes of a buffer past those touched, and the
grid (`Kernel.cores`).
"""
