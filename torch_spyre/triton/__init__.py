# SPDX-License-Identifier: Apache-2.0
"""Triton kernels on the card: ``kernel[grid](...)`` on `spyre` tensors, with the wheel of Triton from PyPI.

Triton finds this package through the entry point group ``triton.backends`` and imports its modules `compiler` and
`driver`; all that is private to Triton is in `adapter`. Enters: a kernel as TTIR, its arguments and its grid. Leaves:
KTIR (`lowering`) and a launch through the ordinary driver (`kernels`).
"""

from __future__ import annotations

import triton as _triton  # noqa: F401  Triton's own discovery must come first: it imports the modules of this package
