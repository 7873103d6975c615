# SPDX-License-Identifier: Apache-2.0
"""Deviations of the real card, where a user asks for them: SPYRE_ERRATA, the table [errata] of perf/spyre.toml."""

from __future__ import annotations

from torch_spyre import knobs
from torch_spyre._inductor.tilegraph.expr import SIXTEEN_BIT, Expr, const
from torch_spyre.perf import device


def reproduced(x: Expr) -> Expr:
    """The expression with what the real card makes of its outermost operation.

    `exp` in 16 bits never falls below 2^-24, also at -inf. A softmax of 16-bit values counts, whose steps this compiler
    takes in fp32.
    """
    if x.op != "exp" or knobs.get("errata") != "exp" or not _in_sixteen_bits(x):
        return x
    return Expr("maximum", x.dtype, (x, const(device.load("spyre")["errata.exp_least"], x.dtype)))


def _in_sixteen_bits(x: Expr) -> bool:
    """Is it a 16-bit number, or made of one?"""
    return x.dtype in SIXTEEN_BIT or x.op == "dl16tofp32" or any(_in_sixteen_bits(a) for a in x.args)
