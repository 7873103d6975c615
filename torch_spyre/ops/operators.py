# SPDX-License-Identifier: Apache-2.0
# python -m torch_spyre.ops.operators > docs/operators.md
"""Prints docs/operators.md: which ops run on the card and which on the host, and why."""

from __future__ import annotations

from torch_spyre._inductor import registration  # noqa: F401  (fills the tables)
from torch_spyre._inductor.lowering.guards import REGISTERED
from torch_spyre._inductor.lowering.whole_functions import WHOLE
from torch_spyre.decompositions.collected import TABLE
from torch_spyre.decompositions.host_ops import HOST, HOST_FUNCTIONS
from torch_spyre.optable import OPS

HEAD = """# Operators

Every op of PyTorch reaches the card the same way, eager or compiled: decompositions, a lowering to loops, one device
operation for each step of a loop body, planning. This page is printed by `python -m torch_spyre.ops.operators` from the
tables that the compiler uses. `print(torch_spyre.report())` shows what ran on the host in the present process.
"""


def _device() -> list[str]:
    lines = ["## Device operations", "", "| class | operations |", "|---|---|"]
    for kind in dict.fromkeys(row.kind for row in OPS.values()):
        names = ", ".join(row.name for row in OPS.values() if row.kind is kind)
        lines.append(f"| {kind.value} | {names} |")
    return lines


def _rules() -> list[str]:
    host = {name for name in HOST_FUNCTIONS}
    packets = {str(op).split(".")[1] for op in REGISTERED if str(op).startswith("aten.")} - host
    return [
        "## Ops with a rule of their own",
        "",
        "All others follow Inductor's decompositions and lowerings.",
        "",
        "| rule | ops |",
        "|---|---|",
        f"| decomposition | {', '.join(sorted(str(op).removeprefix('aten.') for op in TABLE))} |",
        f"| lowering | {', '.join(sorted(packets))} |",
        f"| one function of the card | {', '.join(sorted(str(op).removeprefix('aten.') for op in WHOLE))} |",
        "| attention | scaled_dot_product_attention: grouped heads are rows of one product, nothing is repeated; "
        "flex_attention and varlen_attn ([models.md](models.md#attention-of-your-own)) |",
        "| grouped products | grouped_mm: the host reads the sizes of the groups, rows and products stay on the card |",
    ]


def _host() -> list[str]:
    lines = ["## Ops that run on the host", "", "| why | ops |", "|---|---|"]
    return lines + [f"| {row.reason} | {', '.join(row.names)} |" for row in HOST]


LIMITS = """## Integers and checks

The card keeps int64 as int32. A value that does not fit raises when it is copied to the card, and so does a number
among the arguments (`full`, `arange`, `x + 2**40`). Results that leave int32 fail the launch: sums, differences and
products (also of matrices, along dims, scattered, of lists), shifts, powers, the negative, absolute value and quotient
of -2**31, floats converted to int64. They are computed in fp32 beside, where a wrapped result is off by a multiple of
2**32, or the operands are compared. Each step counts: `x * 3 // 3` fails where `x * 3` does. Where the operands cannot
be that large (positions, truth values, small numbers) nothing is checked. NaN becomes 0; int32 wraps as everywhere.

What fails a launch raises at the next synchronisation, eager and compiled: `Overflow` for an int64 result that leaves
int32, `ZeroDivision` for whole numbers divided by 0, `AssertionFailed` with the message of a `torch._assert_async`,
`IndexOutOfRange` for an index outside its range.

In 16 bits the card has no infinity: the largest code stands for it, and inside the card it is a number
([number-formats.md](number-formats.md)). `isinf`, `isfinite`, `hypot` and `nan_to_num` take it for infinity; arithmetic
does not, so that `inf - inf` is 0. `nan_to_num` puts the largest number there that reads back as finite: 65472 for
float16 (the CPU has 65504, which the format has not) and 8556380160 for bfloat16, whose own largest number would read
back as infinity. Numbers that a call gives for infinity (`posinf=1e30`) are brought down to these too.

Eager calls that PyTorch refuses (sizes, dtypes, an `out=` that cannot hold the result or is on another device, memory
that is written twice or read and written) raise what the CPU raises. PyTorch's shape functions and, for small tensors,
its CPU kernels are asked once for each new signature; a call that is known is not asked about again. In-place ops on
expanded tensors raise also where the CPU gives some result (`tril_`, `triu_`, `threshold_`, `baddbmm_`), while
`masked_fill_`, `index_fill_` and `index_put_` on them run on the host. Errors that depend on values come with the
launch: an index out of range is named with its bound, and one that counts from the end after the size has been added.
Compiled calls are as Inductor has them on every device: it does not refuse all of these.

Writes at given places (`x[index] = v`, `index_copy_`, `index_add_`, `index_fill_`, `scatter_`, `scatter_add_`,
`scatter_reduce_`, also through views) change the tensor in place, eager and in compiled graphs, and cost what they
write; their functional forms copy the tensor first. Of several values for one place the last one stays; sums are made
in fp32 or int32 and rounded once. A program is for a number of places: a new number is planned once. An index out of
range fails the launch, in which other places may have been written. Truth values as indices (`x[:, mask]`,
`x[:, mask] = v`, `masked_select`) are listed on the card, and the host reads how many there are; a small tensor that is
written by one mask is written whole instead, without waiting.

Optimisers with `fused=True` take a step in one launch. `foreach` ones, which PyTorch prefers, launch each of their ten
or so functions once for each tensor: launches are cheap, and programs for whole lists would be planned for each model.

`torch.cond`, `while_loop` and `scan` in a compiled graph: the host reads the condition, branches and bodies run on the
card. `torch.use_deterministic_algorithms(True)` changes no sum on the card, which adds and scatters in a fixed order;
it fills new memory, with NaN or the largest number (for int64 that of int32), as everywhere. `torch.jit.trace` needs
``check_trace=False``: its check converts results to float64.

`nn.TransformerEncoder` in inference packs a padded batch into a nested tensor, which has no place on the card: there it
stays padded, and what stands in the padding of its result is not 0. `mask_check=False`, which packs unasked, raises.

Activation checkpointing, eager and compiled, draws the same random numbers again in the backward pass. A compiled graph
keeps the two words of each draw's key for it.
"""


def page() -> str:
    return "\n".join([HEAD, *_device(), "", *_rules(), "", *_host(), "", LIMITS])


if __name__ == "__main__":
    print(page(), end="")
