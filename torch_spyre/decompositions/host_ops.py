# SPDX-License-Identifier: Apache-2.0
"""Ops that run on the host, and why.

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
        ("nonzero", "unique", "unique_consecutive", "argwhere", "repeat_interleave (by a tensor)", "bincount"),
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
