# SPDX-License-Identifier: Apache-2.0
"""Streams under their published name; `torch.spyre` has them too. What they do is in `torch_spyre.device.streams`."""

from __future__ import annotations

from torch_spyre.device.streams import Stream, current_stream, default_stream, stream, synchronize

__all__ = ["Stream", "current_stream", "default_stream", "stream", "synchronize"]
