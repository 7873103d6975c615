# SPDX-License-Identifier: Apache-2.0
"""Rules that users have registered, as text: part of the keys of lowered ops. A hit reads it without the compiler."""

from __future__ import annotations

RULES: list[str] = []  # filled by `_inductor.decompositions.register_spyre_decomposition`
