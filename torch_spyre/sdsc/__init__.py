# SPDX-License-Identifier: Apache-2.0
"""SuperDSC bundles for people: run one on the card, compare it with NumPy, print it; the command `spyre-sdsc`.

Enters: a bundle by anybody, and arrays. Leaves: results, a reference, tables. The language itself is `ir/superdsc/`,
whose readers and writers have their public names here.
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
