# SPDX-License-Identifier: Apache-2.0
"""SuperDSC bundles: the published interface between a front end and a back end for this card.

Enters: a planned `Kernel` (`ktir/tileops.py`), or a directory with `bundle.mlir` and `sdsc_<i>.json` by anybody.
Leaves: the other one. `write_bundle` / `bundle_files` print, `read_bundle` / `read_kernel` / `read_sdsc` read.
Holds: `canonical(read(write(kernel))) == canonical(kernel)` for every kernel that can be written, so that both
compile to programs that touch the same bytes on the same cores; every file written or read passes `SuperDSC.verify`.

Limits of the vocabulary, each reported as NotExpressible with its reason and never bent:

* one op per file, from a fixed list of opfuncs; no loops, no gathers; the values an op computes with share one number
  format (casts, conditions and truth values aside);
* tensors are device memory in at most 7 launch arguments (address = argument * 16 GiB + offset) or scratchpad at one
  address on all cores; no moves between scratchpads;
* coordinates are plain dims and at most one stick dim, each from 0 with step 1; a tensor may be longer than the dim
  (backGapCore_) but not start inside it; several dims may count one device dim together if they tile it (mixed radix:
  each has its own place in the layout order); linear host offsets (`LinearOperand`) have no form;
* splits are even: slices times per-core size is the size padded to sticks; slices of a stick dim are whole sticks;
* stick rules: operands of a pointwise op share the stick dim or lack it; batchmatmul sticks on k, n, n; a reduction
  over the stick dim leaves one value per stick;
* no launch scalars: a scalar is a 0-d tensor, a constant of the op (`TileOp.constants`, kept as fp32) or an immediate.

How existing fields carry what the public front end does not write there:

* `coordinateMasking_` {dim: [[valid, pad]]} gives the true size of a padded dim for every op class, so reading
  restores exact extents; without it (the public front end masks reductions only) the padded size is the size;
* `maxDimSizes_` of an allocate node is the tensor's extent in elements where that is shorter than the padded size
  (rows of a weight under an odd K, either side of a restickify, fp32 sticks under fp16 padding), else -1 as usual;
  addresses and strides follow the true extent;
* `constantInfo_` entries named `imm<i>` are scalar operands: operand i of the op, in the encoding of its dataFormat_,
  left out of inputLabeledDs, which lists the remaining operands in order;
* dl16tofp32 and fp32todl16 are logical conversions between two layout labels of 64 and 32 elements per stick. On this
  card fp32 sticks are in plain element order; the published DL16_TO_FP32 interleaving is an element arrangement that
  we do not use;
* a copy that changes the stick dim is ReStickifyOpHBM between memory tensors, identity if a side is in LX.

Not in the format, hence not restored: names, origins, roles of arguments, bytes of a buffer past those touched, and the
grid (`Kernel.cores`).
"""

from torch_spyre.sdsc.canonical import canonical
from torch_spyre.sdsc.reader import read_bundle, read_kernel, read_sdsc
from torch_spyre.sdsc.schema import SuperDSC
from torch_spyre.sdsc.writer import bundle_files, write_bundle, write_sdsc

__all__ = [
    "SuperDSC",
    "bundle_files",
    "canonical",
    "read_bundle",
    "read_kernel",
    "read_sdsc",
    "write_bundle",
    "write_sdsc",
]
