# SPDX-License-Identifier: Apache-2.0
"""Streams under their published name; ``torch.spyre`` has the same."""

from __future__ import annotations

from torch_spyre.device.streams import Event, Stream, current_stream, default_stream, stream, synchronize

__all__ = ["Event", "Stream", "current_stream", "default_stream", "stream", "synchronize"]
