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

Look up whether an operation runs on the card, and how. Every operation of PyTorch takes the same way, eager or
compiled: decompositions, a lowering to loops, one device operation for each step of a loop body, planning. What is not
in the tables follows Inductor's own decompositions and lowerings. To see what ran on the host in your program, print
`torch_spyre.report()`.

`python -m torch_spyre.ops.operators` prints this page from the tables that the compiler uses. The site of
`make docs` has another table, with the share of PyTorch's own samples that agree for each operation.
"""


def _device() -> list[str]:
    lines = ["## Device operations", "", "| class | operations |", "|---|---|"]
    for kind in dict.fromkeys(row.kind for row in OPS.values()):
        names = ", ".join(row.name for row in OPS.values() if row.kind is kind)
        lines.append(f"| {kind.value} | {names} |")
    return lines


_GROUPS = {
    "scaled_dot_product_attention": "grouped heads are rows of one product, nothing is repeated",
    "flex_attention": "blocks of scores in one program ([models](models.md#attention-of-your-own))",
    "varlen_attn": "as flex_attention ([models](models.md#attention-of-your-own))",
    "grouped_mm": "the host reads the sizes of the groups; rows and products stay on the card",
}


def _operations() -> list[str]:
    """One row for each operation that has a rule of its own or runs on the host."""
    how: dict[str, tuple[str, str]] = {}
    for op in TABLE:
        how[str(op).removeprefix("aten.")] = ("card", "decomposition")
    for op in WHOLE:
        how[str(op).removeprefix("aten.")] = ("card", "one function of the card")
    for packet in {str(op).split(".")[1] for op in REGISTERED if str(op).startswith("aten.")} - set(HOST_FUNCTIONS):
        how[packet] = ("card", "lowering")
    how |= {name: ("card", text) for name, text in _GROUPS.items()}
    for row in HOST:
        refused = "refused" in row.reason
        place, reason = "refused" if refused else "host", row.reason.rpartition("refused")[2].lstrip(":, ")
        how |= {name: (place, reason) for name in row.names}
    rows = sorted(how.items(), key=lambda item: item[0].strip("_").lower())
    return [
        "## Operations with a rule of their own",
        "",
        '<div class="searchable"></div>',
        "",
        "| operation | runs on | how, or why not on the card |",
        "|---|---|---|",
        *(f"| `{name}` | {place} | {text} |" for name, (place, text) in rows),
    ]


LIMITS = """## Integers

The card keeps int64 as int32.

* A value that does not fit raises `Overflow` when you copy it to the card, and so does a number among the arguments
  (`full`, `arange`, `x + 2**40`).
* A result that leaves int32 fails the launch: sums, differences and products (also of matrices, along dims, scattered,
  of lists), shifts, powers, the negative, absolute value and quotient of -2**31, floats converted to int64. The card
  computes them in fp32 too, where a wrapped result is off by a multiple of 2**32, or compares the operands.
* Each step counts: `x * 3 // 3` fails where `x * 3` does. Where the operands cannot be that large (positions, truth
  values, small numbers) nothing is checked.
* NaN becomes 0; int32 wraps as everywhere.

## Errors that depend on values

What fails a launch raises at the next synchronisation, eager and compiled:

| error | cause |
|---|---|
| `Overflow` | an int64 result leaves int32 |
| `ZeroDivision` | whole numbers are divided by 0 |
| `AssertionFailed` | the condition of a `torch._assert_async` does not hold; the message is that of the assertion |
| `IndexOutOfRange` | an index is outside its range; the message has index and bound (counted from the start) |

Eager calls that PyTorch refuses (sizes, dtypes, an `out=` that cannot hold the result or is on another device, memory
that is written twice or read and written) raise what the CPU raises. For each new signature, PyTorch's shape functions
and, for small tensors, its CPU kernels are asked once. In-place operations on expanded tensors raise also where the CPU
gives some result (`tril_`, `triu_`, `threshold_`, `baddbmm_`), while `masked_fill_`, `index_fill_` and `index_put_` on
them run on the host. Compiled calls are as Inductor has them on every device: it does not refuse all of these.

## Infinity in 16 bits

In 16 bits the card has no infinity: the largest code stands for it, and inside the card it is a number
([number formats](number-formats.md)). `isinf`, `isfinite`, `hypot` and `nan_to_num` take it for infinity; arithmetic
does not, so `inf - inf` is 0. `nan_to_num` puts the largest number there that reads back as finite: 65472 for float16
(the CPU has 65504, which the format lacks) and 8556380160 for bfloat16, whose own largest number would read back as
infinity. Numbers that you give for infinity (`posinf=1e30`) are brought down to these too.

## Indexed writes

Writes at given places (`x[index] = v`, `index_copy_`, `index_add_`, `index_fill_`, `scatter_`, `scatter_add_`,
`scatter_reduce_`, also through views) change the tensor in place, eager and in compiled graphs, and cost what they
write. Their functional forms copy the tensor first.

* If several values go to one place, the last one stays. Sums are made in fp32 or int32 and rounded once.
* A program is for a number of places, so a new number is planned once.
* An index out of range fails the launch, in which other places may have been written.
* Truth values as indices (`x[:, mask]`, `x[:, mask] = v`, `masked_select`) are listed on the card, and the host reads
  how many there are. A small tensor that is written by one mask is written whole instead, without waiting.

## Optimisers, control flow, tracing

* Optimisers with `fused=True` take a step in one launch. `foreach` ones, which PyTorch prefers, launch each of their
  ten or so functions once for each tensor: launches are cheap, and programs for whole lists would be planned for each
  model.
* `torch.cond`, `while_loop` and `scan` in a compiled graph: the host reads the condition, branches and bodies run on
  the card.
* `torch.use_deterministic_algorithms(True)` changes no sum on the card, which adds and scatters in a fixed order. It
  fills new memory, with NaN or the largest number (for int64 that of int32), as everywhere.
* `torch.jit.trace` needs `check_trace=False`, because its check converts results to float64.
* `nn.TransformerEncoder` in inference packs a padded batch into a nested tensor, which the card cannot store. On the
  card the batch stays padded, and the padding of its result is not 0. `mask_check=False`, which packs unasked, raises.
* Activation checkpointing, eager and compiled, draws the same random numbers again in the backward pass. A compiled
  graph keeps the two words of each draw's key for it.
"""


def page() -> str:
    return "\n".join([HEAD, *_device(), "", *_operations(), "", LIMITS])


if __name__ == "__main__":
    print(page(), end="")
