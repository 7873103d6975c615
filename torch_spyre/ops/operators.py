# SPDX-License-Identifier: Apache-2.0
# python -m torch_spyre.ops.operators > docs/operators.md
"""Which ops run on the card and which on the host, and why. The page docs/operators.md is printed from here.

What is not named here runs on the card, or is refused with a reason and then runs on the host; both are counted by
``torch_spyre.report()``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HostOps:
    """Ops of aten that run on the CPU, and the reason that they share."""

    reason: str
    names: tuple[str, ...]


# Functions of one or two numbers: Inductor has a formula that calls a library of the host.
HOST_FUNCTIONS = (
    "lgamma", "digamma", "polygamma", "igamma", "igammac", "i0", "nextafter", "frexp", "special_airy_ai",
    "special_bessel_j0", "special_bessel_j1", "special_bessel_y0", "special_bessel_y1",
    "special_chebyshev_polynomial_t", "special_chebyshev_polynomial_u", "special_chebyshev_polynomial_v",
    "special_chebyshev_polynomial_w", "special_erfcx", "special_hermite_polynomial_h", "special_hermite_polynomial_he",
    "special_i0e", "special_i1", "special_i1e", "special_laguerre_polynomial_l", "special_legendre_polynomial_p",
    "special_log_ndtr", "special_modified_bessel_i0", "special_modified_bessel_i1", "special_modified_bessel_k0",
    "special_modified_bessel_k1", "special_ndtri", "special_scaled_modified_bessel_k0",
    "special_scaled_modified_bessel_k1", "special_shifted_chebyshev_polynomial_t",
    "special_shifted_chebyshev_polynomial_u", "special_shifted_chebyshev_polynomial_v",
    "special_shifted_chebyshev_polynomial_w", "special_spherical_bessel_j0", "special_zeta",
)  # fmt: skip

HOST = (
    HostOps(
        "the size of the result depends on values",
        ("nonzero", "masked_select", "index (by a bool tensor)", "unique", "unique_consecutive", "argwhere",
         "repeat_interleave (by a tensor)", "bincount"),
    ),
    HostOps("the result is a number on the host", ("_local_scalar_dense", "equal", "is_nonzero", "allclose")),
    HostOps(
        "random numbers of a distribution that needs a loop of its own for each number",
        ("poisson", "binomial", "_standard_gamma", "_sample_dirichlet"),
    ),
    HostOps("the card has no such function, and no short formula keeps its precision", HOST_FUNCTIONS),
    HostOps("counts in float64 steps", ("histogram", "histogramdd", "histc (of integers, without bounds)")),
    HostOps(
        "a matrix factorisation: a chain of small dependent steps",
        ("linalg_cholesky_ex", "linalg_qr", "linalg_lu", "linalg_svd", "linalg_eigh", "linalg_inv_ex",
         "linalg_solve_ex", "linalg_solve_triangular", "linalg_det", "linalg_slogdet", "linalg_lstsq",
         "linalg_matrix_exp", "triangular_solve", "cholesky", "cholesky_inverse", "_cholesky_solve_helper",
         "linalg_lu_factor_ex", "linalg_lu_solve", "lu_unpack", "_linalg_svd", "_linalg_slogdet",
         "_linalg_det", "_linalg_eigh", "_linalg_solve_ex", "linalg_householder_product", "geqrf", "ormqr"),
    ),
    HostOps("refused: the card has no complex numbers", ("fft, stft, linalg_eig and everything complex",)),
    HostOps("refused: the card has no float64", ("everything in float64",)),
    HostOps("refused: the card has dense tensors only", ("sparse, quantized, nested strided tensors",)),
    HostOps("a recurrence over time with data-dependent lengths", ("_ctc_loss", "_pack_padded_sequence")),
    HostOps(
        "indices made from numbers alone: the host makes them once", ("tril_indices", "triu_indices"),
    ),
    HostOps(
        "its steps are taken in float64, and whole numbers depend on their last bit",
        ("logspace", "linspace (of integers, where fp64 rounds)"),
    ),
    HostOps("rows of different lengths in one tensor", ("segment_reduce", "_pdist_forward", "_pdist_backward")),
    HostOps(
        "a sparse gradient: refused, the card has no sparse tensors",
        ("embedding (sparse=True)", "embedding_bag (sparse=True)"),
    ),
    HostOps("pseudo-random windows", ("fractional_max_pool2d", "fractional_max_pool3d")),
)  # fmt: skip


def reason(name: str) -> str | None:
    """Why the op of that name runs on the host, if it is known to."""
    return next((row.reason for row in HOST if name in row.names), None)


HEAD = """# Operators

Every op of PyTorch reaches the card the same way, eager or compiled: decompositions, a lowering to loops, one device
operation for each step of a loop body, planning. This page is printed by `python -m torch_spyre.ops.operators` from the
tables that the compiler uses. `print(torch_spyre.report())` shows what ran on the host in the present process.
"""


def _device() -> list[str]:
    from torch_spyre.ktir.opfuncs import OPFUNCS

    lines = ["## Device operations", "", "| class | operations |", "|---|---|"]
    for kind in dict.fromkeys(f.kind for f in OPFUNCS.values()):
        names = ", ".join(f.name for f in OPFUNCS.values() if f.kind == kind)
        lines.append(f"| {kind} | {names} |")
    return lines


def _rules() -> list[str]:
    from torch_spyre._inductor import registration  # noqa: F401  (fills the tables)
    from torch_spyre._inductor.guards import REGISTERED
    from torch_spyre._inductor.lowering_functions import WHOLE
    from torch_spyre.ops.decompositions import TABLE

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
        "| attention | scaled_dot_product_attention: grouped heads are rows of one product, nothing is repeated |",
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

Optimisers with `fused=True` take a step in one launch. `foreach` ones, which PyTorch prefers, launch each of their ten
or so functions once for each tensor: launches are cheap, and programs for whole lists would be planned for each model.

`torch.cond`, `while_loop` and `scan` in a compiled graph: the host reads the condition, branches and bodies run on the
card. `torch.use_deterministic_algorithms(True)` changes nothing on the card, which adds and scatters in a fixed order;
`torch.empty` is not filled. `torch.jit.trace` needs ``check_trace=False``: its check converts results to float64.

`nn.TransformerEncoder` in inference packs a padded batch into a nested tensor, which has no place on the card: there it
stays padded, and what stands in the padding of its result is not 0. `mask_check=False`, which packs unasked, raises.

Activation checkpointing, eager and compiled, draws the same random numbers again in the backward pass. A compiled graph
keeps the two words of each draw's key for it.
"""


def page() -> str:
    return "\n".join([HEAD, *_device(), "", *_rules(), "", *_host(), "", LIMITS])


if __name__ == "__main__":
    print(page(), end="")
