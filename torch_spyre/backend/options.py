# SPDX-License-Identifier: Apache-2.0
"""Choices where KTIR leaves room. The defaults are what docs/backend.md states."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    strict: bool = False  # an access that may leave its coordinate set is an error, instead of reading 0 or nothing
    axis0_fastest: bool = True  # the flat id counts along grid axis 0 first
    stick_addresses: bool = False  # offsets of views without an argument count sticks of 128 bytes, not elements
    poison_empty: bool = False  # reading tensor.empty gives NaN instead of 0, to find programs that rely on it
    wide_accumulate: bool = False  # an f16 sum of products that a loop carries stays fp32 until the loop ends
    limit_span: bool = True  # a core that reaches over more than 256 MiB of a tensor is an error


DEFAULT = Options()
