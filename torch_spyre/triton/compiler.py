# SPDX-License-Identifier: Apache-2.0
"""What Triton looks for: exactly one backend."""

from torch_spyre.triton.adapter import SpyreBackend

__all__ = ["SpyreBackend"]
