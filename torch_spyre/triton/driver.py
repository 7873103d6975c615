# SPDX-License-Identifier: Apache-2.0
"""What Triton looks for: exactly one driver."""

from torch_spyre.triton.adapter import SpyreDriver

__all__ = ["SpyreDriver"]
