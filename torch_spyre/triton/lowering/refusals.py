# SPDX-License-Identifier: Apache-2.0
"""What cannot be said on the card: the user's line, the operation, the reason, and what to write instead."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torch_spyre.errors import UnsupportedOp
from torch_spyre.ir.ktir.locations import place

if TYPE_CHECKING:
    from xdsl.ir import Operation

    from torch_spyre.triton.lowering.ttir_text import Places

# Operations of TTIR without a counterpart, and what stands for them.
REFUSED = {
    "tt.atomic_poll": "a core cannot wait for another one; split the kernel in two launches",
    "tt.elementwise_inline_asm": "the card has no PTX; write the expression with tl functions",
    "tt.int_to_ptr": "an address is an argument plus an offset; pass the tensor itself",
    "tt.ptr_to_int": "addresses are no numbers here; compute with offsets",
    "tt.dot_scaled": "the card has no scaled products; scale the operands and use tl.dot",
    "tt.make_tensor_ptr": "block pointers of Triton 3.7 are not lowered; use tensor descriptors or pointer arithmetic",
    "tt.advance": "block pointers of Triton 3.7 are not lowered; use tensor descriptors or pointer arithmetic",
}
_OPERATION = re.compile(r"^\s*(?:%[\w:, %#-]+ = )?\"?((?:tt|ttg|ttng|scf)\.[\w.]+)\"?", re.MULTILINE)
_STRUCTURE = {"tt.func", "tt.return"}


class LengthNeeded(UnsupportedOp):
    """A place comes from memory, so that the program has to know where the memory of its tensor ends."""


class CountsNeeded(UnsupportedOp):
    """The number of iterations of a loop comes from memory, so that the launch has to count them."""


def refusal(op: Operation, reason: str) -> UnsupportedOp:
    """The error for an operation that a pass cannot lower."""
    return UnsupportedOp(f"{place(op)}{op.name}: {reason}")


def refuse_unknown(text: str, places: Places) -> None:
    """Raises for the first operation of a kernel that no pass lowers."""
    from torch_spyre.triton.lowering.ttir_ops import KNOWN  # late: it is read with the text

    for match in _OPERATION.finditer(text):
        name = match[1]
        if name in KNOWN or name in _STRUCTURE or (name.startswith("scf.") and name not in REFUSED):
            continue
        line = text.count("\n", 0, match.end()) + 1
        found = places.of(line)
        where = f"{found[0]}:{found[1]}:{found[2]}: " if found else ""
        raise UnsupportedOp(f"{where}{name}: {REFUSED.get(name, 'the card has nothing like it')}")
