# SPDX-License-Identifier: Apache-2.0
"""Where the documents look for `register_spyre_decomposition`; the rules themselves stand in ops/decompositions.py."""

from __future__ import annotations

from torch_spyre.ops.decompositions import register_spyre_decomposition

__all__ = ["register_spyre_decomposition"]
